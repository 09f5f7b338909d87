//! Knarr's apiserver crate.
