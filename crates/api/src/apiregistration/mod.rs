//! Kinds that say who serves which group and version.

pub mod apiservice;
