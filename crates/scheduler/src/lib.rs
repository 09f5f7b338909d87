//! Knarr's scheduler crate.
