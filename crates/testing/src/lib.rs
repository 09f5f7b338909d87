//! Knarr's testing crate.
