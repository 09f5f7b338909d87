//! Events that simulated nodes emit about themselves, as kubelets do. If there are more than the recorder's queue
//! holds, as at the start of many nodes, the rest is dropped.

use k8s_openapi::api::core::v1::ObjectReference;
use knarr_api::object::Object;
use knarr_client::events::{EventRecorder, EventType};
use serde::Deserialize;

pub struct NodeEvents {
    recorder: EventRecorder,
}

impl NodeEvents {
    pub fn new(recorder: EventRecorder) -> Self {
        Self { recorder }
    }

    pub fn starting(&self, node: &str, uid: &str) {
        self.emit(node, uid, "Starting", "Starting kubelet.".to_owned());
    }

    /// Emits an event for each reason, which is also the node's new state.
    pub fn status_is(&self, node: &str, uid: &str, reasons: &[&'static str]) {
        for reason in reasons {
            self.emit(node, uid, reason, format!("Node {node} status is now: {reason}"));
        }
    }

    fn emit(&self, node: &str, uid: &str, reason: &str, message: String) {
        let about = ObjectReference {
            kind: Some("Node".to_owned()),
            name: Some(node.to_owned()),
            uid: Some(uid.to_owned()),
            ..ObjectReference::default()
        };
        self.recorder.on_host(node).event_about(about, EventType::Normal, reason, message);
    }
}

/// Returns the reason of the event if a change of a Node affects scheduling.
pub fn scheduling_changed(old: &Object, new: &Object) -> Option<&'static str> {
    let (before, now) = (is_unschedulable(old), is_unschedulable(new));
    (before != now).then_some(if now { "NodeNotSchedulable" } else { "NodeSchedulable" })
}

fn is_unschedulable(node: &Object) -> bool {
    #[derive(Deserialize, Default)]
    #[serde(default)]
    struct View {
        spec: Spec,
    }
    #[derive(Deserialize, Default)]
    #[serde(default)]
    struct Spec {
        unschedulable: bool,
    }
    serde_json::from_slice::<View>(&node.json()).unwrap_or_default().spec.unschedulable
}
