//! Knarr's api crate.
