//! Kinds that register the servers of groups and versions.

pub mod apiservice;
