//! Volume plugins: how each kind of volume becomes a folder on the host.
