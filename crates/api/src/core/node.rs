//! Node: a machine that runs pods.

use std::collections::BTreeSet;

use k8s_openapi::api::core::v1 as api;
use serde_json::Value;

use crate::defaults::{existing, unset};
use crate::kind::Kind;
use crate::naming;
use crate::object::Object;
use crate::prepare;
use crate::resource::{self, CellContext, Column, Resource, Subresource};
use crate::strategy::Strategy;
use crate::table::{self, AGE, NAME};

const PROXY: Subresource = Subresource {
    name: "proxy",
    body: Some(("", "v1", "NodeProxyOptions")),
    verbs: &["create", "delete", "get", "patch", "update"],
};

pub const RESOURCE: Resource = Resource {
    short_names: &["no"],
    subresources: &[PROXY, resource::STATUS],
    selectable: &["spec.unschedulable"],
    columns: COLUMNS,
    cells,
    ..Resource::stored(api::Node::RESOURCE, "NodeList", "node", &Rules)
};

const COLUMNS: &[Column] = &[
    NAME,
    Column::new("Status", "string", "Ready or not, and whether it takes pods."),
    Column::new("Roles", "string", "What its role labels say."),
    AGE,
    Column::new("Version", "string", "The kubelet's version."),
    Column::wide("Internal-IP", "string", "Its address inside the cluster."),
    Column::wide("External-IP", "string", "Its address outside."),
    Column::wide("OS-Image", "string", "Its operating system."),
    Column::wide("Kernel-Version", "string", "Its kernel."),
    Column::wide("Container-Runtime", "string", "What runs its containers."),
];

fn cells(object: &Object, cx: &CellContext) -> Vec<Value> {
    let o = object.typed::<api::Node>().unwrap_or_default();
    let status = o.status.clone().unwrap_or_default();
    let info = status.node_info.clone().unwrap_or_default();
    let unknown = |text: &str| if text.is_empty() { "<unknown>".to_owned() } else { text.to_owned() };
    let mut kernel = unknown(&info.kernel_version);
    if !info.architecture.is_empty() {
        kernel = format!("{kernel} ({})", info.architecture);
    }
    let address = |kind: &str| {
        let found = status.addresses.iter().flatten().find(|a| a.type_ == kind);
        Value::from(found.map_or("<none>", |a| &a.address))
    };
    vec![
        Value::from(object.name()),
        Value::from(state(&o)),
        table::or_none(&roles(&o)),
        table::age(o.metadata.creation_timestamp.as_ref(), cx),
        Value::from(info.kubelet_version.as_str()),
        address("InternalIP"),
        address("ExternalIP"),
        Value::from(unknown(&info.os_image)),
        Value::from(kernel),
        Value::from(unknown(&info.container_runtime_version)),
    ]
}

/// `Ready`, `NotReady` or `Unknown`, and `SchedulingDisabled` when it is cordoned.
fn state(node: &api::Node) -> String {
    let conditions = node.status.as_ref().and_then(|s| s.conditions.as_deref()).unwrap_or_default();
    // The last one counts, should there be several.
    let mut text = match conditions.iter().rev().find(|c| c.type_ == "Ready") {
        Some(ready) if ready.status == "True" => "Ready",
        Some(_) => "NotReady",
        None => "Unknown",
    }
    .to_owned();
    if node.spec.as_ref().and_then(|s| s.unschedulable).unwrap_or(false) {
        text.push_str(",SchedulingDisabled");
    }
    text
}

/// Roles from `node-role.kubernetes.io/ROLE` and `kubernetes.io/role=ROLE`, sorted.
fn roles(node: &api::Node) -> String {
    let labels = node.metadata.labels.iter().flatten();
    let roles: BTreeSet<&str> = labels
        .filter_map(|(key, value)| match key.strip_prefix("node-role.kubernetes.io/") {
            Some(role) => Some(role),
            None => (key == "kubernetes.io/role").then_some(value.as_str()),
        })
        .filter(|role| !role.is_empty())
        .collect();
    roles.into_iter().collect::<Vec<_>>().join(",")
}

struct Rules;

impl Strategy for Rules {
    fn default(&self, object: &mut Value) {
        let Some(status) = existing(prepare::object(object), "status") else { return };
        if let Some(capacity) = status.get("capacity").filter(|c| !c.is_null()).cloned() {
            unset(status, "allocatable", capacity);
        }
    }

    fn prepare_for_update(&self, new: &mut Value, old: &Value, subresource: Option<&str>) {
        prepare::update_with_status(new, old, subresource);
    }

    fn validate_name(&self, name: &str, prefix: bool) -> Vec<String> {
        naming::subdomain(name, prefix)
    }
}
