//! The Node that events of this program are about.

use k8s_openapi::api::core::v1::ObjectReference;

/// By its name alone, which stands for its uid too, as in the kubelet's own events: `kubectl describe node` looks for
/// that.
pub fn node_reference(name: &str) -> ObjectReference {
    let name = Some(name.to_owned());
    ObjectReference { kind: Some("Node".to_owned()), uid: name.clone(), name, ..ObjectReference::default() }
}
