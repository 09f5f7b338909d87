//! What a placed pod counts as for its node and for other pods. Pods that count alike share one footprint.

use std::collections::BTreeMap;
use std::sync::Arc;

use k8s_openapi::api::core::v1::{Pod, Volume};

use super::resources::{Resources, placed_requests, pod_non_zero_requests, pod_requests};
use super::shape;
use super::terms::Terms;
use crate::intern::Pool;

/// A host port of a pod.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct HostPort {
    /// `0.0.0.0` if the pod names no address.
    pub ip: Box<str>,
    pub protocol: Box<str>,
    pub port: i32,
}

/// The properties of a pod that other pods and its node depend on. Equal footprints share one `Arc` while it is alive.
#[derive(Debug, Clone, Default)]
pub struct Footprint {
    /// Unique in the process, never reused.
    pub id: u64,
    pub namespace: Arc<str>,
    pub labels: BTreeMap<String, String>,
    /// The pod is being deleted: topology spread ignores it.
    pub terminating: bool,
    pub priority: i32,
    pub requests: Resources,
    /// Requests with the assumed minimums, for scoring.
    pub non_zero: Resources,
    pub host_ports: Vec<HostPort>,
    /// Inter-pod affinity and anti-affinity.
    pub terms: Terms,
    /// Names of the PersistentVolumeClaims, in the pod's namespace.
    pub claims: Vec<Box<str>>,
    /// Volumes of the types whose sharing within a node is restricted.
    pub disks: Vec<Volume>,
}

static POOL: Pool<Vec<u8>, Footprint> = Pool::new();

impl Footprint {
    /// The footprint of a pod that is not placed yet, from its spec alone.
    pub fn of(pod: &Pod) -> Arc<Self> {
        Self::interned(pod, false)
    }

    /// The footprint of a placed pod. During a resize it counts the larger of the allocated and the requested
    /// resources.
    pub fn of_placed(pod: &Pod) -> Arc<Self> {
        Self::interned(pod, true)
    }

    fn interned(pod: &Pod, placed: bool) -> Arc<Self> {
        let requests = if placed { placed_requests(pod) } else { pod_requests(pod) };
        let terminating = pod.metadata.deletion_timestamp.is_some();
        let visible = shape::visible(pod);
        let mut key = serde_json::to_vec(&visible).unwrap_or_default();
        let non_zero = pod_non_zero_requests(pod);
        key.extend_from_slice(format!("{requests:?}{non_zero:?}{terminating}").as_bytes());
        POOL.intern(key, |id| {
            let spec = visible.spec.as_ref();
            Self {
                id,
                namespace: Arc::from(visible.metadata.namespace.as_deref().unwrap_or_default()),
                labels: visible.metadata.labels.clone().unwrap_or_default(),
                terminating,
                priority: spec.and_then(|s| s.priority).unwrap_or(0),
                requests,
                non_zero,
                host_ports: host_ports(pod),
                terms: Terms::of(&visible),
                claims: shape::claims(pod).map(Into::into).collect(),
                disks: spec.and_then(|s| s.volumes.clone()).unwrap_or_default(),
            }
        })
    }

    /// The value of the pod's label.
    pub fn label(&self, key: &str) -> Option<&str> {
        self.labels.get(key).map(String::as_str)
    }
}

fn host_ports(pod: &Pod) -> Vec<HostPort> {
    let Some(spec) = &pod.spec else { return Vec::new() };
    let sidecars =
        spec.init_containers.iter().flatten().filter(|c| c.restart_policy.as_deref() == Some("Always"));
    let ports = spec.containers.iter().chain(sidecars).flat_map(|c| c.ports.iter().flatten());
    ports
        .filter_map(|p| {
            let port = p.host_port.filter(|port| *port > 0)?;
            let ip = p.host_ip.as_deref().filter(|ip| !ip.is_empty()).unwrap_or("0.0.0.0").into();
            let protocol = p.protocol.as_deref().unwrap_or("TCP").into();
            Some(HostPort { ip, protocol, port })
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plugins::testing::pod;

    #[test]
    fn pods_that_count_alike_share_a_footprint() {
        let a = Footprint::of(&pod("a").cpu("1").label("app", "web").build());
        let b = Footprint::of(&pod("b").cpu("1").label("app", "web").build());
        assert!(Arc::ptr_eq(&a, &b));
        let table =
            [pod("c").cpu("2").label("app", "web"), pod("c").cpu("1").label("app", "db"), pod("c").cpu("1")];
        for other in table {
            assert_ne!(Footprint::of(&other.build()).id, a.id);
        }
        let mut leaving = pod("d").cpu("1").label("app", "web").build();
        leaving.metadata.deletion_timestamp = Some(k8s_openapi::apimachinery::pkg::apis::meta::v1::Time(
            k8s_openapi::jiff::Timestamp::UNIX_EPOCH,
        ));
        assert_ne!(Footprint::of(&leaving).id, a.id);
    }
}
