//! Under which names an agent keeps its credentials.

/// With which the node comes to the API server.
pub const CLIENT: &str = "kubelet-client";
/// With which its kubelet serves.
pub const SERVING: &str = "kubelet";
