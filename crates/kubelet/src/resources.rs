//! Amounts of resources: a pod's requests and limits, and the cgroup settings that follow from them.
//!
//! Source: KEP-753 for sidecars, `k8s.io/component-helpers/resource`.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::{Container, Pod, ResourceRequirements};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity as ApiQuantity;
use knarr_apimachinery::quantity::{Format, Quantity};

use crate::pod;
use crate::qos;
use crate::runtime::Resources;

pub type ResourceList = BTreeMap<String, ApiQuantity>;

const CPU_PERIOD: u64 = 100_000;
const MIN_QUOTA: i64 = 1000;
/// The kernel refuses quotas of 2^44 microseconds and more (`max_bw_runtime_us`); half of that leaves room for a
/// sum.
const MAX_QUOTA: i64 = 1 << 43;
const MIN_SHARES: u64 = 2;
const MAX_SHARES: u64 = 262_144;
const HUGEPAGES: &str = "hugepages-";

/// Returns the amount of one resource: thousandths for cpu, whole units for all others. `None` if it is not
/// listed.
pub fn amount(list: Option<&ResourceList>, name: &str) -> Option<i64> {
    let quantity = Quantity::try_from(list?.get(name)?).ok()?;
    Some(if name == "cpu" { quantity.milli_value() } else { quantity.value() })
}

/// Amounts by resource, in the units of [`amount`].
pub type Amounts = BTreeMap<String, i64>;

pub fn amounts(list: Option<&ResourceList>) -> Amounts {
    list.into_iter().flatten().filter_map(|(name, _)| Some((name.clone(), amount(list, name)?))).collect()
}

/// Returns the amounts as quantities of the API.
pub fn quantities(amounts: &Amounts) -> ResourceList {
    let quantity = |name: &str, n: i64| match name {
        "cpu" => Quantity::from_milli(n, Format::DecimalSI),
        "memory" | "ephemeral-storage" => Quantity::new(n, Format::BinarySI),
        _ if name.starts_with(HUGEPAGES) => Quantity::new(n, Format::BinarySI),
        _ => Quantity::new(n, Format::DecimalSI),
    };
    amounts.iter().map(|(name, n)| (name.clone(), quantity(name, *n).to_api())).collect()
}

fn add(sum: &mut Amounts, other: &Amounts) {
    for (name, n) in other {
        let own = sum.entry(name.clone()).or_insert(0);
        *own = own.saturating_add(*n);
    }
}

/// Raises each amount to that of the other list.
pub fn max(sum: &mut Amounts, other: &Amounts) {
    for (name, n) in other {
        let own = sum.entry(name.clone()).or_insert(0);
        *own = (*own).max(*n);
    }
}

fn pod_amounts(pod: &Pod, of: impl Fn(&ResourceRequirements) -> Amounts) -> Amounts {
    let of_container = |c: &Container| c.resources.as_ref().map(&of).unwrap_or_default();
    let mut sum = Amounts::new();
    for container in &pod::spec(pod).containers {
        add(&mut sum, &of_container(container));
    }
    let (mut sidecars, mut peak) = (Amounts::new(), Amounts::new());
    for container in pod::init_containers(pod) {
        let mut moment = of_container(container);
        if pod::is_sidecar(container) {
            add(&mut sidecars, &moment);
            moment.clone_from(&sidecars);
        } else {
            add(&mut moment, &sidecars);
        }
        max(&mut peak, &moment);
    }
    add(&mut sum, &sidecars);
    max(&mut sum, &peak);
    if let Some(resources) = &pod::spec(pod).resources {
        sum.extend(of(resources));
    }
    sum
}

/// Returns the pod's total requests, including overhead.
pub fn pod_requests(pod: &Pod) -> Amounts {
    let mut sum = pod_amounts(pod, |r| amounts(r.requests.as_ref()));
    add(&mut sum, &amounts(pod::spec(pod).overhead.as_ref()));
    sum
}

/// Returns the total limits of the pod and its containers, including overhead.
pub fn pod_limits(pod: &Pod) -> Amounts {
    let mut sum = pod_amounts(pod, |r| amounts(r.limits.as_ref()));
    for (name, n) in amounts(pod::spec(pod).overhead.as_ref()) {
        if let Some(own) = sum.get_mut(&name) {
            *own = own.saturating_add(n);
        }
    }
    sum
}

/// Returns the cgroup shares for thousandths of a CPU.
pub fn cpu_shares(milli_cpu: i64) -> u64 {
    let shares = u64::try_from(milli_cpu).unwrap_or(0).saturating_mul(1024) / 1000;
    shares.clamp(MIN_SHARES, MAX_SHARES)
}

/// Returns the quota in microseconds per period of 100 ms; `None` without a limit.
fn cpu_quota(milli_cpu: i64) -> Option<i64> {
    (milli_cpu > 0).then(|| (milli_cpu.saturating_mul(CPU_PERIOD as i64 / 1000)).clamp(MIN_QUOTA, MAX_QUOTA))
}

/// Returns the limits of huge pages by the kernel's names: `hugepages-2Mi` is `2MB`.
fn hugepage_limits(limits: &Amounts) -> BTreeMap<String, u64> {
    let pages = limits.iter().filter_map(|(name, n)| {
        let bytes = u64::try_from(name.strip_prefix(HUGEPAGES)?.parse::<Quantity>().ok()?.value()).ok()?;
        let size = [(1 << 30, "GB"), (1 << 20, "MB"), (1 << 10, "KB")]
            .into_iter()
            .find(|(unit, _)| bytes >= *unit && bytes % unit == 0)
            .map(|(unit, word)| format!("{}{word}", bytes / unit))?;
        Some((size, u64::try_from(*n).unwrap_or(0)))
    });
    pages.collect()
}

fn limit_quota(resources: &mut Resources, milli_cpu: i64) {
    if let Some(quota) = cpu_quota(milli_cpu) {
        resources.cpu_quota = Some(quota);
        resources.cpu_period = Some(CPU_PERIOD);
    }
}

/// Returns the settings of a container's own cgroup. A container without a limit gets that of the whole pod, so
/// that it can read the limit.
///
/// Source: `getCPULimit` and `getMemoryLimit` of `k8s.io/kubernetes/pkg/kubelet/kuberuntime`, KEP-2837.
pub fn container_resources(pod: &Pod, container: &Container) -> Resources {
    let requirements = container.resources.clone().unwrap_or_default();
    let limits = amounts(requirements.limits.as_ref());
    let own = |name: &str| limits.get(name).copied().filter(|n| *n > 0);
    let of_pod = |name: &str| amount(pod::spec(pod).resources.as_ref()?.limits.as_ref(), name);
    let limit = |name: &str| own(name).or_else(|| of_pod(name).filter(|n| *n > 0));
    let cpu = amount(requirements.requests.as_ref(), "cpu").or(limit("cpu")).unwrap_or(0);
    let mut resources = Resources { cpu_shares: Some(cpu_shares(cpu)), ..Resources::default() };
    limit_quota(&mut resources, limit("cpu").unwrap_or(0));
    if let Some(memory) = limit("memory") {
        resources.memory_limit = Some(memory);
        // Pods do not swap.
        resources.memory_swap_limit = Some(memory);
    }
    resources.hugepage_limits = hugepage_limits(&limits);
    resources
}

/// Returns whether the pod's cgroup limits this resource: if the pod has a pod-level limit, or every container has one.
pub fn is_limited(pod: &Pod, name: &str) -> bool {
    let listed = |r: Option<&ResourceRequirements>| {
        amount(r.and_then(|r| r.limits.as_ref()), name).is_some_and(|n| n > 0)
    };
    let mut containers = pod::init_containers(pod).iter().chain(&pod::spec(pod).containers);
    let is_declared =
        listed(pod::spec(pod).resources.as_ref()) || containers.all(|c| listed(c.resources.as_ref()));
    is_declared && qos::qos_class(pod) != qos::BEST_EFFORT
}

/// Returns the settings of the pod's cgroup, above those of its containers.
pub fn pod_resources(pod: &Pod, pids_limit: i64) -> Resources {
    let (requests, limits) = (pod_requests(pod), pod_limits(pod));
    let get = |list: &Amounts, name: &str| list.get(name).copied().unwrap_or(0);
    let best_effort = qos::qos_class(pod) == qos::BEST_EFFORT;
    let shares = if best_effort { MIN_SHARES } else { cpu_shares(get(&requests, "cpu")) };
    let mut resources = Resources { cpu_shares: Some(shares), ..Resources::default() };
    if is_limited(pod, "cpu") {
        limit_quota(&mut resources, get(&limits, "cpu"));
    }
    if is_limited(pod, "memory") {
        resources.memory_limit = Some(get(&limits, "memory"));
    }
    resources.hugepage_limits = hugepage_limits(&limits);
    if pids_limit > 0 {
        resources.pids_limit = Some(pids_limit);
    }
    resources
}

/// Returns the settings of the cgroup above all pods, for these amounts.
pub fn cgroup_of_all_pods(all: &Amounts, pids: i64) -> Resources {
    Resources {
        cpu_shares: all.get("cpu").map(|milli_cpu| cpu_shares(*milli_cpu)),
        memory_limit: all.get("memory").copied(),
        pids_limit: Some(pids),
        hugepage_limits: hugepage_limits(all),
        ..Resources::default()
    }
}

/// Returns the cgroup of a pod below the kubelet's root: `pod<uid>`, `burstable/pod<uid>`, `besteffort/pod<uid>`.
pub fn pod_cgroup(qos_class: &str, uid: &str) -> String {
    match qos_class {
        qos::BURSTABLE => format!("burstable/pod{uid}"),
        qos::BEST_EFFORT => format!("besteffort/pod{uid}"),
        _ => format!("pod{uid}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn list(pairs: &[(&str, &str)]) -> Option<ResourceList> {
        Some(pairs.iter().map(|(k, v)| ((*k).to_owned(), ApiQuantity((*v).to_owned()))).collect())
    }

    fn container(requests: &[(&str, &str)], limits: &[(&str, &str)]) -> Container {
        let resources =
            ResourceRequirements { requests: list(requests), limits: list(limits), ..Default::default() };
        Container { resources: Some(resources), ..Container::default() }
    }

    fn pod(containers: Vec<Container>) -> Pod {
        let spec = k8s_openapi::api::core::v1::PodSpec { containers, ..Default::default() };
        Pod { spec: Some(spec), ..Pod::default() }
    }

    #[test]
    fn containers() {
        let none = Pod::default();
        let r = container_resources(
            &none,
            &container(&[("cpu", "250m")], &[("cpu", "500m"), ("memory", "64Mi")]),
        );
        assert_eq!((r.cpu_shares, r.cpu_quota, r.cpu_period), (Some(256), Some(50_000), Some(100_000)));
        assert_eq!((r.memory_limit, r.memory_swap_limit), (Some(64 << 20), Some(64 << 20)));
        let r = container_resources(&none, &container(&[], &[("cpu", "1m"), ("hugepages-2Mi", "4Mi")]));
        assert_eq!((r.cpu_shares, r.cpu_quota), (Some(2), Some(1000)));
        assert_eq!(r.hugepage_limits, BTreeMap::from([("2MB".to_owned(), 4 << 20)]));
        assert_eq!(container_resources(&none, &Container::default()).cpu_shares, Some(2));
        // Amounts that the kernel would refuse.
        let huge = container_resources(&none, &container(&[], &[("cpu", "100000000000")]));
        assert_eq!(huge.cpu_quota, Some(1 << 43));
    }

    #[test]
    fn limits_of_the_whole_pod_hold_for_containers_without_their_own() {
        let mut pod = pod(vec![container(&[], &[("cpu", "200m")])]);
        let limits = BTreeMap::from(
            [("cpu", "1"), ("memory", "64Mi")].map(|(name, n)| (name.to_owned(), ApiQuantity(n.to_owned()))),
        );
        pod.spec.as_mut().unwrap().resources =
            Some(ResourceRequirements { limits: Some(limits), ..Default::default() });
        let r = container_resources(&pod, &pod::spec(&pod).containers[0]);
        assert_eq!((r.cpu_quota, r.memory_limit, r.cpu_shares), (Some(20_000), Some(64 << 20), Some(204)));
        let r = container_resources(&pod, &Container::default());
        assert_eq!((r.cpu_quota, r.memory_limit, r.cpu_shares), (Some(100_000), Some(64 << 20), Some(1024)));
    }

    #[test]
    fn pods_and_their_classes() {
        let full: &[(&str, &str)] = &[("cpu", "1"), ("memory", "1Gi")];
        let table: [(Vec<Container>, &str, Option<i64>); 5] = [
            (vec![container(full, full)], "Guaranteed", Some(1 << 30)),
            (vec![container(&[], full)], "Guaranteed", Some(1 << 30)),
            (vec![container(full, full), container(&[], &[])], "Burstable", None),
            (vec![container(&[("cpu", "1")], full)], "Guaranteed", Some(1 << 30)),
            (vec![container(&[("nvidia.com/gpu", "1")], &[])], "BestEffort", None),
        ];
        for (containers, class, memory) in table {
            let pod = pod(containers);
            assert_eq!(qos::qos_class(&pod), class);
            let r = pod_resources(&pod, 100);
            assert_eq!((r.memory_limit, r.pids_limit), (memory, Some(100)), "{class}");
        }
        assert_eq!(pod_cgroup("Burstable", "u"), "burstable/podu");
    }

    #[test]
    fn resources_of_the_whole_pod_go_before_the_containers() {
        let mut pod = pod(vec![container(&[("cpu", "250m")], &[("memory", "1Gi")]), container(&[], &[])]);
        assert_eq!(pod_resources(&pod, 0).memory_limit, None, "one container has no limit");
        let whole = container(&[("cpu", "500m")], &[("cpu", "1"), ("memory", "2Gi")]).resources;
        pod.spec.as_mut().unwrap().resources = whole;
        let r = pod_resources(&pod, 0);
        assert_eq!((r.memory_limit, r.cpu_shares, r.cpu_quota), (Some(2 << 30), Some(512), Some(100_000)));
    }

    #[test]
    fn oom_scores() {
        let gi = 1i64 << 30;
        let score_above = |containers: Vec<Container>, own: i32| {
            let pod = pod(containers);
            qos::oom_score_adj(&pod, &pod::spec(&pod).containers[0], 10 * gi, own)
        };
        let score = |containers| score_above(containers, -999);
        assert_eq!(score(vec![container(&[], &[])]), 1000);
        assert_eq!(score(vec![container(&[], &[("cpu", "1"), ("memory", "1Gi")])]), -997);
        assert_eq!(score(vec![container(&[("memory", "1Gi")], &[])]), 900);
        assert_eq!(score(vec![container(&[("memory", "10Gi")], &[])]), 3);
        assert_eq!(score(vec![container(&[("cpu", "1")], &[])]), 999);
        // A server that may not lower its score is still killed last.
        let guaranteed = || vec![container(&[], &[("cpu", "1"), ("memory", "1Gi")])];
        assert_eq!([score_above(guaranteed(), 0), score_above(guaranteed(), -500)], [1, -499]);
        assert_eq!(score_above(vec![container(&[("memory", "10Gi")], &[])], 0), 3);
        assert_eq!(score_above(vec![container(&[], &[])], 1000), 1000);
    }
}
