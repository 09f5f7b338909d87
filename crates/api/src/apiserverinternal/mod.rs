//! Kinds that the API servers of a cluster share with each other.

pub mod storageversion;
