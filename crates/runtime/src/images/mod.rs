//! Images: references, archives, registries, the content store, overlayfs snapshots.
