//! Knarr's controllers crate.
