//! ResourceSlice: devices that a driver offers.

use k8s_openapi::api::resource::v1 as api;
use knarr_apimachinery::field::{Error, ErrorList, Path};
use serde_json::Value;

use super::lists::set;
use super::selection::{self, Way};
use super::{counters, device, identifiers};
use crate::kind::Kind;
use crate::naming;
use crate::object::Object;
use crate::prepare;
use crate::resource::{CellContext, Column, Resource};
use crate::strategy::Strategy;
use crate::table::{self, AGE, NAME};
use crate::validate;

pub const RESOURCE: Resource = Resource {
    selectable: &["spec.driver", "spec.nodeName"],
    columns: COLUMNS,
    cells,
    ..Resource::stored(api::ResourceSlice::RESOURCE, "ResourceSliceList", "resourceslice", &Rules)
};

const COLUMNS: &[Column] = &[
    NAME,
    Column::new("Node", "string", "The node that can use the devices."),
    Column::new("Driver", "string", "The driver that publishes the devices."),
    Column::new("Pool", "string", "The pool that the devices belong to."),
    AGE,
];

fn cells(object: &Object, cx: &CellContext) -> Vec<Value> {
    let o = object.typed::<api::ResourceSlice>().unwrap_or_default();
    let spec = &o.spec;
    vec![
        Value::from(object.name()),
        Value::from(spec.node_name.as_deref().unwrap_or("")),
        Value::from(spec.driver.as_str()),
        Value::from(spec.pool.name.as_str()),
        table::age(o.metadata.creation_timestamp.as_ref(), cx),
    ]
}

struct Rules;

impl Strategy for Rules {
    fn prepare_for_create(&self, object: &mut Value) {
        prepare::set_generation(object, 1);
    }

    fn prepare_for_update(&self, new: &mut Value, old: &Value, _: Option<&str>) {
        prepare::bump_generation(new, old, &["/spec"]);
    }

    fn validate(&self, object: &Object) -> ErrorList {
        object.typed::<api::ResourceSlice>().map(|o| validate_spec(&o.spec, None)).unwrap_or_default()
    }

    fn validate_update(&self, new: &Object, old: &Object, _: Option<&str>) -> ErrorList {
        match (new.typed::<api::ResourceSlice>(), old.typed::<api::ResourceSlice>()) {
            (Ok(new), Ok(old)) => validate_spec(&new.spec, Some(&old.spec)),
            _ => ErrorList::new(),
        }
    }

    fn validate_name(&self, name: &str, prefix: bool) -> Vec<String> {
        naming::subdomain(name, prefix)
    }
}

const DEVICES_MAX: usize = 128;
/// The limit if devices have taints, counters or lists, which make them larger.
const RICH_DEVICES_MAX: usize = 64;

fn validate_spec(spec: &api::ResourceSliceSpec, old: Option<&api::ResourceSliceSpec>) -> ErrorList {
    let mut errors = ErrorList::new();
    let path = Path::new("spec");
    identifiers::driver(&mut errors, &path.child("driver"), &spec.driver);
    let (at, pool) = (path.child("pool"), &spec.pool);
    identifiers::pool(&mut errors, &at.child("name"), &pool.name);
    validate::positive(&mut errors, &at.child("resourceSliceCount"), pool.resource_slice_count);
    if pool.generation < 0 {
        let problem = "must be greater than or equal to zero";
        errors.push(Error::invalid(&at.child("generation"), pool.generation, problem));
    }
    if let Some(old) = old {
        validate::immutable(&mut errors, &at.child("name"), &pool.name, &old.pool.name);
        validate::immutable(&mut errors, &path.child("driver"), &spec.driver, &old.driver);
        validate::immutable(&mut errors, &path.child("nodeName"), &spec.node_name, &old.node_name);
    }
    nodes(&mut errors, &path, spec);
    if spec.shared_counters.is_some() && spec.devices.is_some() {
        errors.push(Error::invalid(&path, "", "only one of `sharedCounters` or `devices` is allowed"));
    }
    let devices = spec.devices.as_deref().unwrap_or_default();
    let most = if devices.iter().any(is_rich) { RICH_DEVICES_MAX } else { DEVICES_MAX };
    let per_device = spec.per_device_node_selection.unwrap_or(false);
    let before = |name: &str| old.iter().flat_map(|o| o.devices.iter().flatten()).find(|d| d.name == name);
    set(
        &mut errors,
        &path.child("devices"),
        devices,
        most,
        |d| d.name.clone(),
        |errors, path, device| {
            device::validate(errors, path, device, before(&device.name), per_device);
        },
    );
    let sets = spec.shared_counters.as_deref().unwrap_or_default();
    counters::validate_sets(&mut errors, &path.child("sharedCounters"), sets);
    let skipped = spec.skip_node_operations.as_deref().unwrap_or_default();
    selection::skipped_operations(&mut errors, &path.child("skipNodeOperations"), skipped);
    errors
}

fn is_rich(device: &api::Device) -> bool {
    let lists = |a: &api::DeviceAttribute| {
        a.bools.is_some() || a.ints.is_some() || a.strings.is_some() || a.versions.is_some()
    };
    device.taints.as_ref().is_some_and(|t| !t.is_empty())
        || device.consumes_counters.as_ref().is_some_and(|c| !c.is_empty())
        || device.attributes.iter().flat_map(|a| a.values()).any(lists)
}

fn nodes(errors: &mut ErrorList, path: &Path, spec: &api::ResourceSliceSpec) {
    let at = path.child("nodeName");
    match spec.node_name.as_deref() {
        Some("") => errors.push(Error::invalid(&at, "", "must be either unset or set to a non-empty string")),
        Some(name) => validate::dns_subdomain(errors, &at, name),
        None => {}
    }
    if let Some(selector) = &spec.node_selector {
        let path = path.child("nodeSelector");
        selection::node_selector(errors, &path, selector);
        if selector.node_selector_terms.len() != 1 {
            let shown = validate::shown(&selector.node_selector_terms);
            let problem = "must have exactly one node selector term";
            errors.push(Error::invalid(&path.child("nodeSelectorTerms"), shown, problem));
        }
    }
    selection::unset_or_true(errors, &path.child("allNodes"), spec.all_nodes);
    selection::unset_or_true(errors, &path.child("perDeviceNodeSelection"), spec.per_device_node_selection);
    let used = selection::used(&[
        Way { name: "nodeName", used: spec.node_name.as_deref().is_some_and(|n| !n.is_empty()) },
        Way { name: "nodeSelector", used: spec.node_selector.is_some() },
        Way { name: "allNodes", used: spec.all_nodes == Some(true) },
        Way { name: "perDeviceNodeSelection", used: spec.per_device_node_selection == Some(true) },
    ]);
    let one = "exactly one of `nodeName`, `nodeSelector`, `allNodes`, `perDeviceNodeSelection` is required";
    match used.len() {
        0 => errors.push(Error::required(path, one)),
        1 => {}
        _ => {
            let problem = format!("{one}, but multiple fields are set");
            errors.push(Error::invalid(path, format!("{{{}}}", used.join(", ")), problem));
        }
    }
}
