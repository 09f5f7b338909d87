//! Knarr's network crate.
