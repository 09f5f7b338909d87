//! The status of a Node, computed from the last one and the current facts, and its patch.
//!
//! Source: `k8s.io/kubernetes/pkg/kubelet/nodestatus`, `kubelet_node_status.go`.

use std::collections::BTreeMap;
use std::net::IpAddr;

use jiff::Timestamp;
use k8s_openapi::api::core::v1::{
    ContainerImage, DaemonEndpoint, NodeAddress, NodeDaemonEndpoints, NodeFeatures, NodeRuntimeHandler,
    NodeRuntimeHandlerFeatures, NodeStatus, NodeSwapStatus, NodeSystemInfo,
};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity as ApiQuantity;
use knarr_api::core::pod::node_features::{
    EXTEND_WEBSOCKETS_TO_KUBELET, INIT_CONTAINER_RESIZE, POD_LEVEL_RESIZE,
};
use knarr_apimachinery::quantity::{Format, Quantity};
use serde_json::{Map, Value, json};

use super::conditions::{self, DISK, MEMORY, PIDS};
use super::machine::{Machine, architecture};
use super::reserved::Reserved;
use super::thresholds::{Pressure, Thresholds};
use crate::runtime::{Image, RuntimeFeatures, RuntimeHandler};

const MAX_IMAGES: usize = 50;
const MAX_NAMES_PER_IMAGE: usize = 5;

/// The features that this kubelet supports and older ones do not; sorted.
const DECLARED_FEATURES: [&str; 3] = [EXTEND_WEBSOCKETS_TO_KUBELET, POD_LEVEL_RESIZE, INIT_CONTAINER_RESIZE];

pub type ResourceList = BTreeMap<String, ApiQuantity>;

/// The current facts about the node.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Facts {
    pub addresses: Vec<IpAddr>,
    pub hostname: String,
    pub kubelet_port: i32,
    pub max_pods: u32,
    pub machine: Machine,
    pub node_fs_bytes: u64,
    pub thresholds: Thresholds,
    pub reserved: Reserved,
    /// `knarr://0.1.0`
    pub runtime_version: String,
    pub runtime: RuntimeFeatures,
    pub kubelet_version: String,
    pub images: Vec<ContainerImage>,
    pub pressure: Pressure,
    /// Why the node is not ready; empty if it is.
    pub not_ready: Vec<String>,
    /// The attachable volumes in use on this node; while they are not known (`None`), the published list stays.
    pub volumes_in_use: Option<Vec<String>>,
}

/// Returns the status to publish, and the reasons of the events to emit.
pub fn next(old: &NodeStatus, facts: &Facts, now: Timestamp) -> (NodeStatus, Vec<&'static str>) {
    let mut status = old.clone();
    status.addresses = Some(addresses(&facts.addresses, &facts.hostname));
    let capacity = capacity(&facts.machine, facts.node_fs_bytes, facts.max_pods);
    let allocatable = allocatable(&capacity, &facts.thresholds, &facts.reserved);
    status.capacity = Some(with_foreign(old.capacity.as_ref(), capacity));
    status.allocatable = Some(with_foreign(old.allocatable.as_ref(), allocatable));
    status.node_info = Some(node_info(facts));
    status.daemon_endpoints =
        Some(NodeDaemonEndpoints { kubelet_endpoint: Some(DaemonEndpoint { port: facts.kubelet_port }) });
    status.images = Some(facts.images.clone());
    if let Some(volumes) = &facts.volumes_in_use {
        status.volumes_in_use = Some(volumes.clone()).filter(|volumes| !volumes.is_empty());
    }
    status.runtime_handlers = Some(facts.runtime.handlers.iter().map(runtime_handler).collect());
    status.declared_features = Some(DECLARED_FEATURES.iter().map(|&name| name.to_owned()).collect());
    status.features =
        Some(NodeFeatures { supplemental_groups_policy: Some(facts.runtime.supplemental_groups_policy) });
    let list = status.conditions.get_or_insert_default();
    let events = [
        conditions::set_pressure(list, &MEMORY, facts.pressure.memory, now),
        conditions::set_pressure(list, &DISK, facts.pressure.disk, now),
        conditions::set_pressure(list, &PIDS, facts.pressure.pids, now),
        // Ready comes last, for clients that expect it there.
        conditions::set_ready(list, &facts.not_ready, now),
    ];
    (status, events.into_iter().flatten().collect())
}

fn runtime_handler(handler: &RuntimeHandler) -> NodeRuntimeHandler {
    NodeRuntimeHandler {
        name: Some(handler.name.clone()),
        features: Some(NodeRuntimeHandlerFeatures {
            recursive_read_only_mounts: Some(handler.recursive_read_only_mounts),
            user_namespaces: Some(handler.user_namespaces),
        }),
    }
}

fn addresses(ips: &[IpAddr], hostname: &str) -> Vec<NodeAddress> {
    let address = |type_: &str, address: String| NodeAddress { type_: type_.to_owned(), address };
    let mut list: Vec<NodeAddress> = ips.iter().map(|ip| address("InternalIP", ip.to_string())).collect();
    list.push(address("Hostname", hostname.to_owned()));
    list
}

fn binary(bytes: u64) -> ApiQuantity {
    Quantity::new(i64::try_from(bytes).unwrap_or(i64::MAX), Format::BinarySI).to_api()
}

fn decimal(amount: u64) -> ApiQuantity {
    Quantity::new(i64::try_from(amount).unwrap_or(i64::MAX), Format::DecimalSI).to_api()
}

/// Returns the machine's resources.
pub fn capacity(machine: &Machine, node_fs_bytes: u64, max_pods: u32) -> ResourceList {
    let mut list = ResourceList::from([
        ("cpu".to_owned(), decimal(machine.cpus)),
        ("memory".to_owned(), binary(machine.memory_bytes)),
        ("pods".to_owned(), decimal(u64::from(max_pods))),
        ("ephemeral-storage".to_owned(), binary(node_fs_bytes)),
    ]);
    for (kib, bytes) in &machine.huge_pages {
        let size = binary(kib.saturating_mul(1024)).0;
        list.insert(format!("hugepages-{size}"), binary(*bytes));
    }
    list
}

/// Returns the resources for pods: the capacity without reservations and eviction thresholds, and memory without
/// huge pages.
pub fn allocatable(capacity: &ResourceList, thresholds: &Thresholds, reserved: &Reserved) -> ResourceList {
    let amount = |name: &str| {
        let value = capacity.get(name).and_then(|q| Quantity::try_from(q).ok());
        let value = value.map_or(0, |q| if name == "cpu" { q.milli_value() } else { q.value() });
        u64::try_from(value).unwrap_or(0)
    };
    let rest = |name: &str| {
        let whole = amount(name);
        whole.saturating_sub(reserved.of(name)).saturating_sub(thresholds.kept(name, whole))
    };
    let huge: u64 = capacity.keys().filter(|k| k.starts_with("hugepages-")).map(|k| amount(k)).sum();
    let mut list = capacity.clone();
    let cpu = i64::try_from(rest("cpu")).unwrap_or(i64::MAX);
    list.insert("cpu".to_owned(), Quantity::from_milli(cpu, Format::DecimalSI).to_api());
    list.insert("memory".to_owned(), binary(rest("memory").saturating_sub(huge)));
    list.insert("ephemeral-storage".to_owned(), binary(rest("ephemeral-storage")));
    list
}

/// Keeps resources that other components have added (`example.com/gpu`).
fn with_foreign(old: Option<&ResourceList>, mut list: ResourceList) -> ResourceList {
    for (name, amount) in old.into_iter().flatten().filter(|(name, _)| name.contains('/')) {
        list.entry(name.clone()).or_insert_with(|| amount.clone());
    }
    list
}

fn node_info(facts: &Facts) -> NodeSystemInfo {
    let machine = &facts.machine;
    let swap = i64::try_from(machine.swap_bytes).ok().filter(|bytes| *bytes > 0);
    NodeSystemInfo {
        architecture: architecture().to_owned(),
        boot_id: machine.boot_id.clone(),
        container_runtime_version: facts.runtime_version.clone(),
        kernel_version: machine.kernel_version.clone(),
        kube_proxy_version: String::new(),
        kubelet_version: facts.kubelet_version.clone(),
        machine_id: machine.machine_id.clone(),
        operating_system: "linux".to_owned(),
        os_image: machine.os_image.clone(),
        running_in_user_namespace: None,
        swap: swap.map(|bytes| NodeSwapStatus { capacity: Some(bytes) }),
        system_uuid: machine.system_uuid.clone(),
    }
}

/// Returns the largest images, as the status lists them.
pub fn images(all: &[Image]) -> Vec<ContainerImage> {
    let mut sorted: Vec<&Image> = all.iter().collect();
    sorted.sort_by(|a, b| b.size.cmp(&a.size).then_with(|| a.id.cmp(&b.id)));
    let listed = sorted.into_iter().take(MAX_IMAGES).map(|image| {
        let names = image.repo_digests.iter().chain(&image.repo_tags).take(MAX_NAMES_PER_IMAGE).cloned();
        ContainerImage {
            names: Some(names.collect()),
            size_bytes: Some(i64::try_from(image.size).unwrap_or(i64::MAX)),
        }
    });
    listed.collect()
}

/// Returns whether the statuses differ in anything but heartbeat times.
pub fn has_changed(old: &NodeStatus, new: &NodeStatus) -> bool {
    without_heartbeats(old) != without_heartbeats(new)
}

fn without_heartbeats(status: &NodeStatus) -> Value {
    let mut status = status.clone();
    let conditions = status.conditions.get_or_insert_default();
    conditions.sort_by(|a, b| a.type_.cmp(&b.type_));
    for condition in conditions {
        condition.last_heartbeat_time = None;
    }
    to_json(&status)
}

/// Returns JSON without nulls and empty lists, which the API server does not store.
fn to_json(status: &NodeStatus) -> Value {
    let mut value = serde_json::to_value(status).unwrap_or_default();
    if let Some(fields) = value.as_object_mut() {
        fields.retain(|_, v| !v.is_null() && v.as_array().is_none_or(|list| !list.is_empty()));
    }
    value
}

/// Returns the strategic merge patch of the status subresource from `old` to `new`. It contains all conditions,
/// because of their heartbeat times.
pub fn patch(old: &NodeStatus, new: &NodeStatus) -> Value {
    let (before, after) = (to_json(old), to_json(new));
    let (Value::Object(before), Value::Object(mut after)) = (before, after) else { return json!({}) };
    let mut changed = Map::new();
    for (field, value) in before.iter().filter(|(field, _)| !after.contains_key(*field)) {
        let gone = if value.is_array() { json!([]) } else { Value::Null };
        changed.insert(field.clone(), gone);
    }
    after.retain(|field, value| field == "conditions" || before.get(field) != Some(value));
    for (field, mut value) in after {
        match field.as_str() {
            // The list's merge key is the type, but several addresses have the same type.
            "addresses" => {
                if let Some(list) = value.as_array_mut() {
                    list.insert(0, json!({"$patch": "replace"}));
                }
            }
            "capacity" | "allocatable" => {
                let old_names = before.get(&field).and_then(Value::as_object).into_iter().flatten();
                if let Some(map) = value.as_object_mut() {
                    for (name, _) in old_names {
                        map.entry(name.clone()).or_insert(Value::Null);
                    }
                }
            }
            _ => {}
        }
        changed.insert(field, value);
    }
    json!({"status": changed})
}

#[cfg(test)]
mod tests {
    use super::*;

    fn facts() -> Facts {
        Facts {
            addresses: vec!["10.0.0.1".parse().unwrap()],
            hostname: "n1".into(),
            kubelet_port: 10250,
            max_pods: 110,
            machine: Machine {
                cpus: 4,
                memory_bytes: 8 << 30,
                huge_pages: [(2048, 4 << 20), (1 << 20, 0)].into(),
                ..Machine::default()
            },
            node_fs_bytes: 10_000,
            runtime_version: "knarr://0.1.0".into(),
            not_ready: vec!["no network".into()],
            ..Facts::default()
        }
    }

    fn now() -> Timestamp {
        Timestamp::from_second(1_000).unwrap()
    }

    fn shown(list: &Option<ResourceList>) -> Vec<String> {
        list.iter().flatten().map(|(k, v)| format!("{k}={}", v.0)).collect()
    }

    #[test]
    fn a_new_node() {
        let (status, events) = next(&NodeStatus::default(), &facts(), now());
        assert_eq!(
            shown(&status.capacity),
            [
                "cpu=4",
                "ephemeral-storage=10000",
                "hugepages-1Gi=0",
                "hugepages-2Mi=4Mi",
                "memory=8Gi",
                "pods=110"
            ]
        );
        assert_eq!(
            shown(&status.allocatable),
            [
                "cpu=4",
                "ephemeral-storage=9000",
                "hugepages-1Gi=0",
                "hugepages-2Mi=4Mi",
                "memory=8088Mi",
                "pods=110"
            ]
        );
        let types: Vec<String> =
            status.conditions.iter().flatten().map(|c| format!("{}={}", c.type_, c.status)).collect();
        assert_eq!(types, ["MemoryPressure=False", "DiskPressure=False", "PIDPressure=False", "Ready=False"]);
        assert_eq!(events, ["NodeHasSufficientMemory", "NodeHasNoDiskPressure", "NodeHasSufficientPID"]);
        assert_eq!(status.runtime_handlers, Some(Vec::new()), "of a runtime that lists none");
        let addresses: Vec<String> =
            status.addresses.iter().flatten().map(|a| format!("{} {}", a.type_, a.address)).collect();
        assert_eq!(addresses, ["InternalIP 10.0.0.1", "Hostname n1"]);
    }

    /// KEP-4004: the kubelet does not know the version of the service proxy, and clears the one that another
    /// kubelet wrote.
    #[test]
    fn the_version_of_the_service_proxy_is_cleared() {
        let old: NodeStatus =
            serde_json::from_value(json!({"nodeInfo": {"kubeProxyVersion": "v1.30.0"}})).unwrap();
        let (new, _) = next(&old, &facts(), now());
        assert_eq!(new.node_info.as_ref().map(|info| info.kube_proxy_version.as_str()), Some(""));
        assert!(has_changed(&old, &new));
        assert_eq!(patch(&old, &new)["status"]["nodeInfo"]["kubeProxyVersion"], "");
    }

    #[test]
    fn what_is_reserved_is_not_for_pods() {
        let reserved = "cpu=250m,memory=1Gi,ephemeral-storage=2000,pid=1000".parse().unwrap();
        let (status, _) = next(&NodeStatus::default(), &Facts { reserved, ..facts() }, now());
        let all = shown(&status.allocatable);
        assert_eq!(all[..2], ["cpu=3750m", "ephemeral-storage=7000"]);
        assert_eq!(all[4..], ["memory=7064Mi", "pods=110"]);
        let more = "cpu=5,memory=9Gi,ephemeral-storage=10000".parse().unwrap();
        let (status, _) = next(&NodeStatus::default(), &Facts { reserved: more, ..facts() }, now());
        let all = shown(&status.allocatable);
        assert_eq!((&*all[0], &*all[1], &*all[4]), ("cpu=0", "ephemeral-storage=0", "memory=0"));
    }

    #[test]
    fn the_runtime_says_what_it_can_do() {
        let handler = |name: &str, can| RuntimeHandler {
            name: name.into(),
            recursive_read_only_mounts: can,
            user_namespaces: !can,
        };
        let runtime = RuntimeFeatures {
            handlers: vec![handler("", true), handler("kata", false)],
            ..RuntimeFeatures::default()
        };
        let (status, _) = next(&NodeStatus::default(), &Facts { runtime, ..facts() }, now());
        assert_eq!(
            to_json(&status)["runtimeHandlers"],
            json!([
                {"name": "", "features": {"recursiveReadOnlyMounts": true, "userNamespaces": false}},
                {"name": "kata", "features": {"recursiveReadOnlyMounts": false, "userNamespaces": true}},
            ])
        );
        assert_eq!(to_json(&status)["features"], json!({"supplementalGroupsPolicy": false}));
    }

    #[test]
    fn only_changes_are_told() {
        let (old, _) = next(&NodeStatus::default(), &facts(), now());
        let later = Timestamp::from_second(2_000).unwrap();
        let (same, events) = next(&old, &facts(), later);
        assert!(!has_changed(&old, &same) && events.is_empty());
        let heartbeat = patch(&old, &same);
        assert_eq!(heartbeat["status"].as_object().unwrap().keys().collect::<Vec<_>>(), ["conditions"]);

        let ready = Facts {
            not_ready: vec![],
            machine: Machine { huge_pages: BTreeMap::new(), ..facts().machine },
            ..facts()
        };
        let (new, events) = next(&old, &ready, later);
        assert!(has_changed(&old, &new));
        assert_eq!(events, ["NodeReady"]);
        let sent = patch(&old, &new);
        assert_eq!(sent["status"]["capacity"]["hugepages-2Mi"], Value::Null);
        assert!(sent["status"].get("addresses").is_none());

        let moved = Facts { addresses: vec!["10.0.0.2".parse().unwrap()], ..facts() };
        let (new, _) = next(&old, &moved, later);
        assert_eq!(patch(&old, &new)["status"]["addresses"][0], json!({"$patch": "replace"}));
    }

    #[test]
    fn volumes_in_use_are_told_once_known() {
        let (old, _) = next(&NodeStatus::default(), &facts(), now());
        let with = |names: Option<&[&str]>| Facts {
            volumes_in_use: names.map(|names| names.iter().map(|n| (*n).to_owned()).collect()),
            ..facts()
        };
        let (reported, _) = next(&old, &with(Some(&["kubernetes.io/csi/d^h"])), now());
        let in_use = |old: &NodeStatus, new: &NodeStatus| patch(old, new)["status"]["volumesInUse"].clone();
        assert_eq!(in_use(&old, &reported), json!(["kubernetes.io/csi/d^h"]));
        let (kept, _) = next(&reported, &with(None), now());
        assert!(!has_changed(&reported, &kept));
        let (gone, _) = next(&reported, &with(Some(&[])), now());
        assert_eq!(in_use(&reported, &gone), json!([]));
    }

    #[test]
    fn resources_of_others_stay() {
        let (mut old, _) = next(&NodeStatus::default(), &facts(), now());
        old.capacity.as_mut().unwrap().insert("example.com/gpu".into(), ApiQuantity("2".into()));
        let (new, _) = next(&old, &facts(), now());
        assert!(!has_changed(&old, &new));
    }

    #[test]
    fn the_largest_images_with_few_names() {
        let image = |n: u64| Image {
            id: format!("sha256:{n}"),
            repo_tags: (0..4).map(|i| format!("r:{n}-{i}")).collect(),
            repo_digests: (0..2).map(|i| format!("r@{n}-{i}")).collect(),
            size: n,
            user: None,
        };
        let all: Vec<Image> = (1..=60).map(image).collect();
        let listed = images(&all);
        assert_eq!((listed.len(), listed[0].size_bytes, listed[49].size_bytes), (50, Some(60), Some(11)));
        assert_eq!(listed[0].names.as_ref().unwrap(), &["r@60-0", "r@60-1", "r:60-0", "r:60-1", "r:60-2"]);
    }
}
