//! Knarr's apimachinery crate.
