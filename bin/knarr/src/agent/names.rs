//! The names under which an agent stores its credentials.

/// The client certificate with which the node authenticates to the API server.
pub const CLIENT: &str = "kubelet-client";
/// The serving certificate of its kubelet.
pub const SERVING: &str = "kubelet";
