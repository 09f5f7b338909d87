//! Knarr's kubelet crate.
