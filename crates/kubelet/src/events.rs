//! Events about pods and their containers, as shown by `kubectl describe pod`.

use k8s_openapi::api::core::v1::Pod;
use knarr_client::events::{EventRecorder, EventType, reference};

use crate::pod::ContainerKind;

/// Emits the events of this node's pods.
#[derive(Clone)]
pub struct Events(EventRecorder);

impl Events {
    pub fn new(recorder: EventRecorder) -> Self {
        Self(recorder)
    }

    pub fn recorder(&self) -> &EventRecorder {
        &self.0
    }

    pub fn normal(&self, pod: &Pod, reason: &str, message: impl Into<String>) {
        self.0.event(pod, EventType::Normal, reason, message);
    }

    pub fn warning(&self, pod: &Pod, reason: &str, message: impl Into<String>) {
        self.0.event(pod, EventType::Warning, reason, message);
    }

    /// Returns the emitter for one container: its events refer to the container's field.
    pub fn of<'a>(&'a self, pod: &'a Pod, kind: ContainerKind, container: &'a str) -> ContainerEvents<'a> {
        ContainerEvents { events: self, pod, container: Some((kind, container)) }
    }

    /// Returns the emitter for the pod as a whole, where one of a container is expected.
    pub fn of_pod<'a>(&'a self, pod: &'a Pod) -> ContainerEvents<'a> {
        ContainerEvents { events: self, pod, container: None }
    }
}

pub struct ContainerEvents<'a> {
    events: &'a Events,
    pub pod: &'a Pod,
    container: Option<(ContainerKind, &'a str)>,
}

impl ContainerEvents<'_> {
    pub fn normal(&self, reason: &str, message: impl Into<String>) {
        self.send(EventType::Normal, reason, message);
    }

    pub fn warning(&self, reason: &str, message: impl Into<String>) {
        self.send(EventType::Warning, reason, message);
    }

    fn send(&self, type_: EventType, reason: &str, message: impl Into<String>) {
        let mut about = reference(self.pod);
        about.field_path = self.container.map(|(kind, name)| kind.field_path(name));
        self.events.0.event_about(about, type_, reason, message);
    }
}
