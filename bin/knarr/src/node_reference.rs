//! The reference to the Node in events of this program.

use k8s_openapi::api::core::v1::ObjectReference;

/// Returns a reference with the name alone, which also takes the place of the uid, as in the kubelet's own
/// events: `kubectl describe node` selects events by it.
pub fn node_reference(name: &str) -> ObjectReference {
    let name = Some(name.to_owned());
    ObjectReference { kind: Some("Node".to_owned()), uid: name.clone(), name, ..ObjectReference::default() }
}
