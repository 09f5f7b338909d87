//! Amounts of compute resources, and the requests of pods.
//!
//! Source: KEP-753 (sidecars), `k8s.io/component-helpers/resource`.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::{Container, Pod, ResourceRequirements};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity as ApiQuantity;
use knarr_apimachinery::quantity::Quantity;

/// The CPU request that scoring assumes for a container without one, in millicores.
pub const DEFAULT_MILLI_CPU: i64 = 100;
/// The memory request that scoring assumes for a container without one, in bytes.
pub const DEFAULT_MEMORY: i64 = 200 << 20;

/// Amounts of resources.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Resources {
    pub milli_cpu: i64,
    /// Bytes.
    pub memory: i64,
    /// Bytes.
    pub ephemeral_storage: i64,
    /// The maximum number of pods on a node; unused in requests.
    pub pods: i64,
    /// Extended resources and huge pages, by name.
    pub scalar: BTreeMap<String, i64>,
}

/// A `ResourceList` of the API: quantities by resource name.
pub type ResourceList = BTreeMap<String, ApiQuantity>;

impl Resources {
    /// Converts a `ResourceList`; quantities that do not parse count as zero.
    pub fn from_list(list: Option<&ResourceList>) -> Self {
        let mut sum = Self::default();
        for (name, quantity) in list.into_iter().flatten() {
            let Ok(quantity) = Quantity::try_from(quantity) else { continue };
            match name.as_str() {
                "cpu" => sum.milli_cpu = quantity.milli_value(),
                "memory" => sum.memory = quantity.value(),
                "ephemeral-storage" => sum.ephemeral_storage = quantity.value(),
                "pods" => sum.pods = quantity.value(),
                _ => {
                    sum.scalar.insert(name.clone(), quantity.value());
                }
            }
        }
        sum
    }

    /// Adds the amounts of each resource, without overflow.
    pub fn add(&mut self, other: &Self) {
        self.each(other, i64::saturating_add);
    }

    /// Subtracts the amounts of each resource, without overflow.
    pub fn sub(&mut self, other: &Self) {
        self.each(other, i64::saturating_sub);
        self.scalar.retain(|_, amount| *amount != 0);
    }

    /// Sets each resource to the larger amount of both.
    pub fn max(&mut self, other: &Self) {
        self.each(other, i64::max);
    }

    fn each(&mut self, other: &Self, f: impl Fn(i64, i64) -> i64) {
        self.milli_cpu = f(self.milli_cpu, other.milli_cpu);
        self.memory = f(self.memory, other.memory);
        self.ephemeral_storage = f(self.ephemeral_storage, other.ephemeral_storage);
        for (name, amount) in &other.scalar {
            let own = self.scalar.entry(name.clone()).or_insert(0);
            *own = f(*own, *amount);
        }
    }
}

fn container_requests(container: &Container) -> Resources {
    Resources::from_list(container.resources.as_ref().and_then(|r| r.requests.as_ref()))
}

/// The container's requests, with assumed amounts for missing CPU and memory.
fn non_zero_requests(container: &Container) -> Resources {
    let mut requests = container_requests(container);
    let list = container.resources.as_ref().and_then(|r| r.requests.as_ref());
    let names = |name: &str| list.is_some_and(|l| l.contains_key(name));
    if !names("cpu") {
        requests.milli_cpu = DEFAULT_MILLI_CPU;
    }
    if !names("memory") {
        requests.memory = DEFAULT_MEMORY;
    }
    requests
}

/// The requests of a pod: the larger of the sum of its running containers (sidecars included) and the maximum during
/// initialization, plus overhead. Pod-level requests replace the sum where they are set.
pub fn pod_requests(pod: &Pod) -> Resources {
    requests_by(pod, container_requests, |asked| asked)
}

/// The requests of a pod with assumed minimums for each container, as used by scoring.
pub fn pod_non_zero_requests(pod: &Pod) -> Resources {
    requests_by(pod, non_zero_requests, |asked| asked)
}

/// The requests of a placed pod. While a container or the pod as a whole is resized, this is the larger of the
/// requested and the allocated amount. An infeasible resize does not count.
pub fn placed_requests(pod: &Pod) -> Resources {
    let Some(status) = &pod.status else { return pod_requests(pod) };
    let pending = status.conditions.iter().flatten().filter(|c| c.type_ == "PodResizePending");
    let infeasible = { pending }.any(|c| c.reason.as_deref() == Some("Infeasible"));
    let most = |asked: Resources, has: Option<&ResourceRequirements>, given: Option<&ResourceList>| {
        let mut all = Resources::from_list(has.and_then(|r| r.requests.as_ref()));
        all.max(&Resources::from_list(given));
        if !infeasible || given.is_none() {
            all.max(&asked);
        }
        all
    };
    let statuses = || status.container_statuses.iter().chain(&status.init_container_statuses).flatten();
    let of_container = |container: &Container| {
        let asked = container_requests(container);
        match statuses().find(|s| s.name == container.name) {
            Some(status) => most(asked, status.resources.as_ref(), status.allocated_resources.as_ref()),
            None => asked,
        }
    };
    let of_pod = |asked| most(asked, status.resources.as_ref(), status.allocated_resources.as_ref());
    requests_by(pod, of_container, of_pod)
}

/// Computes the requests of a pod, from the requests of each container and those at pod level.
fn requests_by(
    pod: &Pod,
    of: impl Fn(&Container) -> Resources,
    of_pod: impl FnOnce(Resources) -> Resources,
) -> Resources {
    let Some(spec) = &pod.spec else { return Resources::default() };
    let mut sum = Resources::default();
    spec.containers.iter().for_each(|c| sum.add(&of(c)));
    let (mut sidecars, mut init_peak) = (Resources::default(), Resources::default());
    for container in spec.init_containers.iter().flatten() {
        let mut moment = of(container);
        if container.restart_policy.as_deref() == Some("Always") {
            sidecars.add(&moment);
            moment = sidecars.clone();
        } else {
            moment.add(&sidecars);
        }
        init_peak.max(&moment);
    }
    sum.add(&sidecars);
    sum.max(&init_peak);
    if let Some(list) = spec.resources.as_ref().and_then(|r| r.requests.as_ref()) {
        override_with(&mut sum, list, of_pod(Resources::from_list(Some(list))));
    }
    sum.add(&Resources::from_list(spec.overhead.as_ref()));
    sum
}

/// Replaces the sum of the containers by the pod-level amounts, for each resource that the pod lists.
fn override_with(sum: &mut Resources, list: &ResourceList, of_pod: Resources) {
    if list.contains_key("cpu") {
        sum.milli_cpu = of_pod.milli_cpu;
    }
    if list.contains_key("memory") {
        sum.memory = of_pod.memory;
    }
    sum.scalar.extend(of_pod.scalar.into_iter().filter(|(name, _)| list.contains_key(name)));
}

#[cfg(test)]
mod tests {
    use super::*;
    use k8s_openapi::api::core::v1::PodSpec;
    use serde_json::json;

    fn container(cpu: &str, always: bool) -> Container {
        let requests = BTreeMap::from([("cpu".to_owned(), ApiQuantity(cpu.to_owned()))]);
        Container {
            resources: Some(ResourceRequirements { requests: Some(requests), ..Default::default() }),
            restart_policy: always.then(|| "Always".to_owned()),
            ..Container::default()
        }
    }

    #[test]
    fn init_containers_count_by_their_largest_moment_and_sidecars_stay() {
        /// CPU of the main containers; CPU of the init containers, with whether they are sidecars; the expected CPU of
        /// the pod.
        type Case = (&'static [&'static str], &'static [(&'static str, bool)], i64);
        let table: [Case; 5] = [
            (&["100m", "200m"], &[], 300),
            (&["100m"], &[("500m", false), ("300m", false)], 500),
            (&["100m"], &[("50m", true)], 150),
            (&["100m"], &[("50m", true), ("400m", false)], 450),
            (&["100m"], &[("400m", false), ("350m", true)], 450),
        ];
        for (main, init, expected) in table {
            let spec = PodSpec {
                containers: main.iter().map(|c| container(c, false)).collect(),
                init_containers: Some(init.iter().map(|(c, always)| container(c, *always)).collect()),
                ..PodSpec::default()
            };
            let pod = Pod { spec: Some(spec), ..Pod::default() };
            assert_eq!(pod_requests(&pod).milli_cpu, expected, "{main:?} {init:?}");
        }
    }

    #[test]
    fn containers_without_requests_are_assumed_to_want_something() {
        let spec = PodSpec { containers: vec![Container::default(); 2], ..PodSpec::default() };
        let wanted = pod_non_zero_requests(&Pod { spec: Some(spec), ..Pod::default() });
        assert_eq!((wanted.milli_cpu, wanted.memory), (200, 400 << 20));
    }

    /// Source: `effectivePodLevelResources` of `k8s.io/component-helpers/resource`, KEP-5419.
    #[test]
    fn a_pod_that_is_resized_as_a_whole_takes_the_larger_size() {
        let milli_cpu = |asked: &str, has: &str, given: &str, pending: Option<&str>| {
            let conditions = pending
                .map(|reason| json!([{"type": "PodResizePending", "status": "True", "reason": reason}]));
            let pod = json!({
                "spec": {"resources": {"requests": {"cpu": asked}}, "containers": [{"name": "c"}]},
                "status": {"resources": {"requests": {"cpu": has}}, "allocatedResources": {"cpu": given},
                    "conditions": conditions},
            });
            placed_requests(&serde_json::from_value(pod).unwrap()).milli_cpu
        };
        assert_eq!(milli_cpu("200m", "100m", "100m", Some("Deferred")), 200, "a deferred resize counts");
        assert_eq!(milli_cpu("900m", "100m", "100m", Some("Infeasible")), 100, "an infeasible one does not");
        assert_eq!(milli_cpu("100m", "300m", "100m", None), 300, "the old allocation still counts");
    }
}
