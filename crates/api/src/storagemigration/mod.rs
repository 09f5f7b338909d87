//! Kinds that have stored objects written anew.

pub mod storageversionmigration;
