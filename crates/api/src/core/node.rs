//! Node: a machine that runs pods.

use std::collections::BTreeSet;

use k8s_openapi::api::core::v1 as api;
use knarr_apimachinery::field::{Error, ErrorList, Path};
use knarr_apimachinery::names;
use serde_json::Value;

use crate::addresses;
use crate::core::pod::validation::{quantity, taint_effect};
use crate::defaults::{Fields, existing, text, unset};
use crate::kind::Kind;
use crate::naming;
use crate::object::Object;
use crate::prepare;
use crate::resource::{self, CellContext, Column, Resource, Subresource};
use crate::strategy::Strategy;
use crate::table::{self, AGE, NAME};
use crate::validate;

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
    Column::new("Status", "string", "The readiness of the node, and whether scheduling is disabled."),
    Column::new("Roles", "string", "The roles of the node."),
    AGE,
    Column::new("Version", "string", "The version of the kubelet."),
    Column::wide("Internal-IP", "string", "The internal address of the node."),
    Column::wide("External-IP", "string", "The external address of the node."),
    Column::wide("OS-Image", "string", "The operating system image of the node."),
    Column::wide("Kernel-Version", "string", "The kernel version of the node."),
    Column::wide("Container-Runtime", "string", "The container runtime and its version."),
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

/// Returns the STATUS cell: `Ready`, `NotReady` or `Unknown`, with `SchedulingDisabled` if the node is cordoned.
fn state(node: &api::Node) -> String {
    let conditions = node.status.as_ref().and_then(|s| s.conditions.as_deref()).unwrap_or_default();
    // If there are several Ready conditions, the last one counts.
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

/// Returns the roles from `node-role.kubernetes.io/ROLE` and `kubernetes.io/role=ROLE`, sorted.
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

/// Makes `podCIDR` and the first of `podCIDRs` equal.
fn pod_ranges(spec: &mut Fields) {
    let first = spec.get("podCIDRs").and_then(|list| list.get(0)).cloned();
    let single = text(spec, "podCIDR").to_owned();
    match first {
        Some(first) => {
            spec.insert("podCIDR".to_owned(), first);
        }
        None if !single.is_empty() => {
            spec.insert("podCIDRs".to_owned(), Value::from(vec![single]));
        }
        None => {}
    }
}

struct Rules;

impl Strategy for Rules {
    fn default(&self, object: &mut Value) {
        let fields = prepare::object(object);
        if let Some(spec) = existing(fields, "spec") {
            pod_ranges(spec);
        }
        let Some(status) = existing(fields, "status") else { return };
        if let Some(capacity) = status.get("capacity").filter(|c| !c.is_null()).cloned() {
            unset(status, "allocatable", capacity);
        }
    }

    fn prepare_for_update(&self, new: &mut Value, old: &Value, subresource: Option<&str>) {
        prepare::update_with_status(new, old, subresource);
    }

    fn validate(&self, object: &Object) -> ErrorList {
        object.typed::<api::Node>().map(|o| validate_node(&o)).unwrap_or_default()
    }

    fn validate_update(&self, new: &Object, old: &Object, subresource: Option<&str>) -> ErrorList {
        let (Ok(new), Ok(old)) = (new.typed::<api::Node>(), old.typed::<api::Node>()) else {
            return ErrorList::new();
        };
        let mut errors = if subresource.is_none() { validate_node(&new) } else { ErrorList::new() };
        validate_node_update(&mut errors, &new, &old);
        errors
    }

    fn warnings(&self, new: &Object, _: Option<&Object>) -> Vec<String> {
        let spec = new.typed::<api::Node>().ok().and_then(|n| n.spec.clone()).unwrap_or_default();
        let mut warnings = Vec::new();
        if spec.config_source.is_some() {
            warnings.push("spec.configSource: the feature is removed".to_owned());
        }
        if spec.external_id.is_some_and(|id| !id.is_empty()) {
            let text = "spec.externalID: this field is deprecated, and is unused by Kubernetes";
            warnings.push(text.to_owned());
        }
        for (i, range) in spec.pod_cidrs.iter().flatten().enumerate() {
            let path = Path::new("spec").child("podCIDRs").index(i);
            warnings.extend(addresses::cidr_warnings(&path, range));
        }
        warnings
    }

    fn validate_name(&self, name: &str, prefix: bool) -> Vec<String> {
        naming::subdomain(name, prefix)
    }
}

fn validate_node(node: &api::Node) -> ErrorList {
    let mut errors = ErrorList::new();
    let spec = node.spec.clone().unwrap_or_default();
    taints(&mut errors, spec.taints.as_deref().unwrap_or_default());
    amounts(&mut errors, node);
    let path = Path::new("spec").child("podCIDRs");
    let ranges = spec.pod_cidrs.unwrap_or_default();
    for (i, range) in ranges.iter().enumerate() {
        addresses::cidr(&mut errors, &path.index(i), range);
    }
    let families: BTreeSet<bool> = ranges.iter().map(|r| r.contains(':')).collect();
    if ranges.len() > families.len() {
        let problem = "may specify no more than one CIDR for each IP family";
        errors.push(Error::invalid(&path, ranges, problem));
    }
    errors
}

const UNIQUE: &str = "taints must be unique by key and effect pair";

/// Validates taints. Errors name `metadata`, as upstream's do.
fn taints(errors: &mut ErrorList, taints: &[api::Taint]) {
    let mut seen = BTreeSet::new();
    for (i, taint) in taints.iter().enumerate() {
        let path = Path::new("metadata").child("taints").index(i);
        validate::label_key(errors, &path.child("key"), &taint.key);
        let value = taint.value.as_deref().unwrap_or("");
        let found = names::label_value(value);
        if !found.is_empty() {
            errors.push(Error::invalid(&path.child("value"), value, found.join(";")));
        }
        if validate::required(errors, &path.child("effect"), &taint.effect) {
            taint_effect(errors, &path.child("effect"), &taint.effect);
        }
        if !seen.insert((&taint.effect, &taint.key)) {
            let added = validate::shown(&taint.time_added);
            let text = format!(
                r#"{{"Key":{},"Value":{},"Effect":{},"TimeAdded":{added}}}: {UNIQUE}"#,
                Value::from(taint.key.as_str()),
                Value::from(value),
                Value::from(taint.effect.as_str())
            );
            errors.push(validate::duplicate_text(&path, &text));
        }
    }
}

fn amounts(errors: &mut ErrorList, node: &api::Node) {
    let status = node.status.clone().unwrap_or_default();
    for (field, list) in [("capacity", &status.capacity), ("allocatable", &status.allocatable)] {
        for (name, amount) in list.iter().flatten() {
            let path = Path::new("status").child(field).child(name);
            quantity(errors, &path, name, amount);
        }
    }
}

fn validate_node_update(errors: &mut ErrorList, new: &api::Node, old: &api::Node) {
    let (spec, before) = (new.spec.clone().unwrap_or_default(), old.spec.clone().unwrap_or_default());
    amounts(errors, new);
    let addresses = new.status.as_ref().and_then(|s| s.addresses.as_deref()).unwrap_or_default();
    for (i, address) in addresses.iter().enumerate() {
        if addresses[..i].contains(address) {
            let path = Path::new("status").child("addresses").index(i);
            let (kind, text) = (Value::from(address.type_.as_str()), Value::from(address.address.as_str()));
            errors.push(validate::duplicate_text(&path, &format!(r#"{{"Type":{kind},"Address":{text}}}"#)));
        }
    }
    let path = Path::new("spec");
    if before.pod_cidrs.as_ref().is_some_and(|c| !c.is_empty()) && before.pod_cidrs != spec.pod_cidrs {
        let why = "node updates may not change podCIDR except from \"\" to valid";
        errors.push(Error::forbidden(&path.child("podCIDRs"), why));
    }
    let provider = |id: &Option<String>| id.clone().filter(|id| !id.is_empty());
    match (provider(&before.provider_id), provider(&spec.provider_id)) {
        (Some(old), Some(new)) if old != new => {
            let problem = "field cannot be modified once set";
            errors.push(Error::invalid(&path.child("providerID"), Value::Null, problem));
        }
        (Some(_), None) => {
            let problem = "field cannot be cleared once set";
            errors.push(Error::invalid(&path.child("providerID"), Value::Null, problem));
        }
        _ => {}
    }
    taints(errors, spec.taints.as_deref().unwrap_or_default());
}
