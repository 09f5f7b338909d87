//! Extended resources that devices provide: the classes that provide them, and the claim that requests the devices for
//! the pod. The claim is written when the pod is bound, and exists only in memory until then.
//!
//! Source: KEP-5004.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};

use k8s_openapi::api::core::v1::{Container, ContainerExtendedResourceRequest, Pod};
use k8s_openapi::api::resource::v1::{
    DeviceClaim, DeviceClass, DeviceRequest, ExactDeviceRequest, ResourceClaim, ResourceClaimSpec,
};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, OwnerReference};
use knarr_api::kind::Kind;
use knarr_apimachinery::quantity::Quantity;

use crate::framework::{Catalog, PodInfo, Shape, Status};
use crate::snapshot::NodeRow;

/// The name of the claim in memory, which is not a valid name in the API.
pub const IN_MEMORY: &str = "<extended-resources>";
/// The annotation of claims that were created for extended resources.
const ANNOTATION: &str = "resource.kubernetes.io/extended-resource-claim";
/// Each class also provides the resource with this prefix and its own name.
pub const IMPLICIT: &str = "deviceclass.resource.kubernetes.io/";

/// The class of each extended resource, cached for one version of the classes.
#[derive(Default)]
pub struct ResourceClasses(Mutex<(u64, Arc<BTreeMap<String, String>>)>);

impl ResourceClasses {
    /// Returns the class whose devices provide the resource.
    pub fn class_of(&self, catalog: &Catalog, resource: &str) -> Option<String> {
        match resource.strip_prefix(IMPLICIT) {
            Some(class) => catalog.get::<DeviceClass>("", class).map(|_| class.to_owned()),
            None => self.explicit(catalog).get(resource).cloned(),
        }
    }

    fn explicit(&self, catalog: &Catalog) -> Arc<BTreeMap<String, String>> {
        let version = catalog.version::<DeviceClass>();
        let mut known = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if known.0 != version {
            *known = (version, Arc::new(by_resource(&catalog.list::<DeviceClass>(None))));
        }
        Arc::clone(&known.1)
    }
}

/// Maps resources to classes. If several classes provide a resource, the newest one counts, then the first by name.
fn by_resource(classes: &[Arc<DeviceClass>]) -> BTreeMap<String, String> {
    let mut order: Vec<_> = classes.iter().collect();
    let age = |c: &DeviceClass| c.metadata.creation_timestamp.as_ref().map(|t| t.0);
    order.sort_by(|a, b| age(a).cmp(&age(b)).then_with(|| b.name().cmp(a.name())));
    let named = order
        .iter()
        .filter_map(|c| Some((c.spec.as_ref()?.extended_resource_name.clone()?, c.name().to_owned())));
    named.collect()
}

/// Returns whether devices may provide a resource with this name.
pub fn may_be_devices(resource: &str) -> bool {
    resource.starts_with(IMPLICIT) || resource.contains('/') && !resource.contains("kubernetes.io/")
}

/// The extended resources of a shape, at least one of which has a class.
pub struct Extended {
    pod: Arc<Pod>,
    /// The resources, each with its class if it has one.
    resources: BTreeMap<String, Option<String>>,
}

/// Maps a container's resource to a request of the claim.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Mapping {
    /// The index among the pod's init containers and containers.
    container: usize,
    resource: String,
    request: String,
}

/// The resources that a node must provide as devices.
#[derive(Debug)]
pub struct OnNode {
    pub claim: ResourceClaim,
    pub mappings: Vec<Mapping>,
}

impl Extended {
    /// Returns `None` when no class provides any of the pod's extended resources.
    pub fn of(classes: &ResourceClasses, catalog: &Catalog, shape: &Shape) -> Option<Self> {
        let wanted =
            shape.footprint.requests.scalar.iter().filter(|(name, n)| **n != 0 && may_be_devices(name));
        let resources: BTreeMap<_, _> =
            wanted.map(|(name, _)| (name.clone(), classes.class_of(catalog, name))).collect();
        let any = resources.values().any(Option::is_some);
        any.then(|| Self { pod: Arc::new(shape.pod.clone()), resources })
    }

    /// Returns the claim for the resources that the node's device plugins do not provide; `None` when they provide all.
    pub fn on(&self, row: &NodeRow) -> Result<Option<OnNode>, Status> {
        let mut devices = BTreeMap::new();
        for (name, class) in &self.resources {
            match (row.allocatable.scalar.get(name), class) {
                (None | Some(0), Some(class)) => drop(devices.insert(name.as_str(), class.as_str())),
                (None, None) => return Err(Status::unresolvable("cannot fit resource")),
                _ => {}
            }
        }
        if devices.is_empty() {
            return Ok(None);
        }
        let (requests, mappings) = requests(&self.pod, &devices);
        let spec = ResourceClaimSpec {
            devices: Some(DeviceClaim { requests: Some(requests), ..DeviceClaim::default() }),
        };
        let metadata = ObjectMeta {
            namespace: self.pod.metadata.namespace.clone(),
            name: Some(IN_MEMORY.to_owned()),
            annotations: Some([(ANNOTATION.to_owned(), "true".to_owned())].into()),
            ..ObjectMeta::default()
        };
        Ok(Some(OnNode { claim: ResourceClaim { metadata, spec: Some(spec), status: None }, mappings }))
    }
}

/// Makes the claim the pod's own, with a temporary uid.
pub fn of_pod(mut claim: ResourceClaim, pod: &PodInfo, uid: String) -> ResourceClaim {
    claim.metadata.uid = Some(uid);
    claim.metadata.generate_name = Some(format!("{}-extended-resources-", pod.name));
    claim.metadata.owner_references = Some(vec![OwnerReference {
        api_version: "v1".to_owned(),
        kind: "Pod".to_owned(),
        name: pod.name.to_string(),
        uid: pod.uid.to_string(),
        controller: Some(true),
        block_owner_deletion: None,
    }]);
    claim
}

/// The claim in the form in which it is created.
pub fn to_create(claim: &ResourceClaim) -> ResourceClaim {
    let metadata = ObjectMeta { name: None, uid: None, ..claim.metadata.clone() };
    ResourceClaim { metadata, spec: claim.spec.clone(), status: None }
}

/// Returns whether the claim was created for the extended resources of this pod.
pub fn is_of(claim: &ResourceClaim, pod_uid: &str) -> bool {
    let marked =
        claim.metadata.annotations.as_ref().and_then(|a| a.get(ANNOTATION)).is_some_and(|v| v == "true");
    marked
        && claim
            .metadata
            .owner_references
            .iter()
            .flatten()
            .any(|o| o.controller == Some(true) && o.uid == pod_uid)
}

/// The mappings, with the names of the pod's containers.
pub fn named(mappings: &[Mapping], pod: &Pod) -> Vec<ContainerExtendedResourceRequest> {
    let names: Vec<&str> = containers(pod).map(|c| c.name.as_str()).collect();
    let of = |m: &Mapping| ContainerExtendedResourceRequest {
        container_name: names.get(m.container).copied().unwrap_or_default().to_owned(),
        resource_name: m.resource.clone(),
        request_name: m.request.clone(),
    };
    mappings.iter().map(of).collect()
}

fn containers(pod: &Pod) -> impl Iterator<Item = &Container> {
    let init = pod.spec.iter().flat_map(|s| s.init_containers.iter().flatten());
    init.chain(pod.spec.iter().flat_map(|s| &s.containers))
}

#[derive(Debug, Clone)]
struct Request {
    name: String,
    count: i64,
}

/// Returns the request of one container for one resource, minus what it can use of other `reusable` requests, and the
/// requests it uses.
fn of_container(
    at: usize,
    container: &Container,
    resource: &str,
    reusable: &[Option<Request>],
) -> (Option<Request>, Vec<Mapping>) {
    let list = container.resources.as_ref().and_then(|r| r.requests.as_ref());
    let Some((place, (_, amount))) =
        list.and_then(|l| l.iter().enumerate().find(|(_, (name, _))| *name == resource))
    else {
        return (None, Vec::new());
    };
    let count = Quantity::try_from(amount).map_or(0, |q| q.value());
    let mapping =
        |request: &str| Mapping { container: at, resource: resource.to_owned(), request: request.to_owned() };
    let (mut mappings, mut sum) = (Vec::new(), 0i64);
    if count == 0 {
        return (None, mappings);
    }
    for other in reusable.iter().flatten() {
        sum = sum.saturating_add(other.count);
        mappings.push(mapping(&other.name));
        if sum >= count {
            return (None, mappings);
        }
    }
    let name = format!("container-{at}-request-{place}");
    mappings.push(mapping(&name));
    (Some(Request { name, count: count - sum }), mappings)
}

/// One request for each container that keeps running, and one for all init containers that end. The latter reuse the
/// devices of later containers first.
fn requests(pod: &Pod, devices: &BTreeMap<&str, &str>) -> (Vec<DeviceRequest>, Vec<Mapping>) {
    let all: Vec<&Container> = containers(pod).collect();
    let init = pod.spec.as_ref().and_then(|s| s.init_containers.as_ref()).map_or(0, Vec::len);
    let is_short = |at: usize| at < init && all[at].restart_policy.as_deref() != Some("Always");
    let (mut requests, mut mappings) = (Vec::new(), Vec::new());
    for (resource, class) in devices {
        let mut long: Vec<Option<Request>> = vec![None; all.len()];
        for at in (0..all.len()).filter(|at| !is_short(*at)) {
            let (request, used) = of_container(at, all[at], resource, &[]);
            long[at] = request;
            mappings.extend(used);
        }
        let (mut largest, mut names, mut short) = (None::<Request>, Vec::new(), Vec::new());
        for at in (0..all.len()).filter(|at| is_short(*at)) {
            let (request, used) = of_container(at, all[at], resource, &long[at..]);
            short.extend(used);
            let Some(request) = request else { continue };
            names.push(request.name.clone());
            if largest.as_ref().is_none_or(|known| known.count < request.count) {
                largest = Some(request);
            }
        }
        if let Some(largest) = &largest {
            let own = short.iter_mut().filter(|m: &&mut Mapping| names.contains(&m.request));
            own.for_each(|m| m.request.clone_from(&largest.name));
        }
        mappings.extend(short);
        requests
            .extend(largest.into_iter().chain(long.into_iter().flatten()).map(|r| device_request(r, class)));
    }
    requests.sort_by(|a, b| a.name.cmp(&b.name));
    (requests, mappings)
}

fn device_request(request: Request, class: &str) -> DeviceRequest {
    let exactly = ExactDeviceRequest {
        device_class_name: class.to_owned(),
        allocation_mode: Some("ExactCount".to_owned()),
        count: Some(request.count),
        ..ExactDeviceRequest::default()
    };
    DeviceRequest { name: request.name, exactly: Some(exactly), ..DeviceRequest::default() }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plugins::testing::object;
    use serde_json::{Value, json};

    fn class(name: &str, resource: Option<&str>, created: &str) -> DeviceClass {
        object(
            json!({"metadata": {"name": name, "creationTimestamp": created}, "spec": {"extendedResourceName": resource}}),
        )
    }

    #[test]
    fn classes_stand_for_resources() {
        let (catalog, classes) = (Catalog::default(), ResourceClasses::default());
        let (old, new) = ("2026-01-01T00:00:00Z", "2026-01-02T00:00:00Z");
        let of = |name: &str| classes.class_of(&catalog, name);
        assert_eq!(of("example.com/gpu"), None);
        catalog.put(class("b", Some("example.com/gpu"), old));
        assert_eq!(of("example.com/gpu").as_deref(), Some("b"));
        catalog.put(class("c", Some("example.com/gpu"), new));
        assert_eq!(of("example.com/gpu").as_deref(), Some("c"), "the newest");
        catalog.put(class("a", Some("example.com/gpu"), new));
        assert_eq!(of("example.com/gpu").as_deref(), Some("a"), "the newest classes, the first by name");
        assert_eq!(of("deviceclass.resource.kubernetes.io/b").as_deref(), Some("b"));
        assert_eq!(of("deviceclass.resource.kubernetes.io/x"), None);
        for (name, expected) in [
            ("cpu", false),
            ("example.com/gpu", true),
            ("hugepages-2Mi", false),
            ("x.kubernetes.io/y", false),
        ] {
            assert_eq!(may_be_devices(name), expected, "{name}");
        }
    }

    fn check(init: Value, containers: Value, requested: &[(&str, i64)], mapped: &[(usize, &str)]) {
        let with = |list: &Value| -> Value {
            let of = |(at, c): (usize, &Value)| {
                let mut resources = json!({"cpu": "1"});
                if c["n"] != json!(0) {
                    resources["example.com/gpu"] = c["n"].clone();
                }
                json!({"name": format!("c{at}"), "restartPolicy": c["restart"], "resources": {"requests": resources}})
            };
            list.as_array().unwrap().iter().enumerate().map(of).collect()
        };
        let pod: Pod =
            object(json!({"spec": {"initContainers": with(&init), "containers": with(&containers)}}));
        let (requests, mappings) = requests(&pod, &BTreeMap::from([("example.com/gpu", "gpu")]));
        let asked: Vec<_> =
            requests.iter().map(|r| (r.name.as_str(), r.exactly.as_ref().unwrap().count.unwrap())).collect();
        assert_eq!(asked, requested, "{init} {containers}");
        let told: Vec<_> = mappings.iter().map(|m| (m.container, m.request.as_str())).collect();
        assert_eq!(told, mapped, "{init} {containers}");
    }

    #[test]
    fn containers_requests_become_the_claims() {
        let (c0, c1, c2) = ("container-0-request-1", "container-1-request-1", "container-2-request-1");
        check(json!([]), json!([{"n": 2}]), &[(c0, 2)], &[(0, c0)]);
        check(json!([]), json!([{"n": 2}, {"n": 0}, {"n": 1}]), &[(c0, 2), (c2, 1)], &[(0, c0), (2, c2)]);
        // The init container's devices are reused by a later container.
        check(json!([{"n": 1}]), json!([{"n": 2}]), &[(c1, 2)], &[(1, c1), (0, c1)]);
        check(json!([{"n": 3}]), json!([{"n": 2}]), &[(c0, 1), (c1, 2)], &[(1, c1), (0, c1), (0, c0)]);
        // Two init containers share one request.
        check(json!([{"n": 1}, {"n": 4}]), json!([{"n": 0}]), &[(c1, 4)], &[(0, c1), (1, c1)]);
        // A sidecar keeps its devices.
        check(
            json!([{"n": 1, "restart": "Always"}]),
            json!([{"n": 1}]),
            &[(c0, 1), (c1, 1)],
            &[(0, c0), (1, c1)],
        );
        // An earlier sidecar's devices are still in use when a later init container runs.
        check(
            json!([{"n": 1, "restart": "Always"}, {"n": 1}]),
            json!([{"n": 0}]),
            &[(c0, 1), (c1, 1)],
            &[(0, c0), (1, c1)],
        );
    }
}
