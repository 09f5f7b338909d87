//! Knarr's runtime crate.
