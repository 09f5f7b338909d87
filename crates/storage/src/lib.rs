//! Knarr's storage crate.
