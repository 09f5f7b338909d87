//! Knarr's client crate.
