//! Kinds that API servers of one cluster tell each other.

pub mod storageversion;
