//! Limits all pods together to the node's allocatable resources.
//!
//! Source: `k8s.io/kubernetes/pkg/kubelet/cm/node_container_manager_linux.go`.

use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::api::core::v1::ObjectReference;
use knarr_apimachinery::clock::Clock;
use knarr_client::events::{EventRecorder, EventType};
use tokio_util::sync::CancellationToken;

use crate::config::Config;
use crate::node_status::machine::{Machine, Usage};
use crate::node_status::status::{allocatable, capacity};
use crate::node_status::{Enforce, Thresholds};
use crate::pod_cgroups::PodCgroups;
use crate::resources::{amounts, cgroup_of_all_pods};
use crate::runtime::Resources;

/// The pause before a failed attempt is repeated. cgroup v1 refuses a memory limit below the current usage.
const RETRY: Duration = Duration::from_secs(60);

/// Returns the settings of the cgroup above all pods.
pub fn limits(config: &Config, machine: &Machine, max_pids: u64) -> Resources {
    // Storage is not limited by cgroups.
    let whole = capacity(machine, 0, config.max_pods);
    let reserved = config.kube_reserved.plus(config.system_reserved);
    let (list, pids) = match config.enforce_node_allocatable {
        Enforce::Pods => {
            (allocatable(&whole, &Thresholds::NONE, &reserved), max_pids.saturating_sub(reserved.pids))
        }
        Enforce::Nothing => (whole, max_pids),
    };
    cgroup_of_all_pods(&amounts(Some(&list)), i64::try_from(pids.max(1)).unwrap_or(i64::MAX))
}

/// Sets the limits, and retries until it succeeds or `stop` is cancelled.
pub async fn enforce(
    config: Config,
    cgroups: PodCgroups,
    recorder: EventRecorder,
    clock: Arc<dyn Clock>,
    stop: CancellationToken,
) {
    if !cgroups.are_there() {
        return;
    }
    let emit = |type_, reason, message: String| {
        let (kind, name) = (Some("Node".to_owned()), Some(config.node_name.clone()));
        // The Node may not be known yet: as upstream, its name is used in place of its uid.
        let about = ObjectReference { kind, name: name.clone(), uid: name, ..ObjectReference::default() };
        recorder.event_about(about, type_, reason, message);
    };
    loop {
        let (config, cgroups) = (config.clone(), cgroups.clone());
        let set = tokio::task::spawn_blocking(move || {
            let max_pids = Usage::read(&config.data_dir).map_or(u64::MAX, |usage| usage.max_pids);
            cgroups.limit_all_pods(&limits(&config, &Machine::read(), max_pids))
        });
        let error = match set.await {
            Ok(Ok(())) => {
                let message = "Updated Node Allocatable limit across pods";
                return emit(EventType::Normal, "NodeAllocatableEnforced", message.to_owned());
            }
            Ok(Err(error)) => error,
            Err(error) => error.to_string(),
        };
        tracing::warn!(error, "cannot set the limits of all pods together");
        emit(
            EventType::Warning,
            "FailedNodeAllocatableEnforcement",
            format!("Failed to update Node Allocatable Limits: {error}"),
        );
        tokio::select! {
            () = stop.cancelled() => return,
            () = clock.sleep(RETRY) => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn limits_of_all_pods() {
        let mut config = Config::new("n", [192, 0, 2, 1].into(), "/nowhere");
        let huge_pages = [(2048, 64 << 20)].into();
        let machine = Machine { cpus: 4, memory_bytes: 8 << 30, huge_pages, ..Machine::default() };
        let of = |config: &Config| {
            let all = limits(config, &machine, 32_768);
            assert_eq!(all.hugepage_limits["2MB"], 64 << 20);
            assert_eq!((all.cpu_quota, all.memory_swap_limit), (None, None));
            (all.cpu_shares.unwrap(), all.memory_limit.unwrap() >> 20, all.pids_limit.unwrap())
        };
        assert_eq!(of(&config), (4096, 8192 - 64, 32_768));
        config.kube_reserved = "cpu=500m,memory=1Gi,pid=768".parse().unwrap();
        config.system_reserved = "cpu=500m,memory=1Gi,pid=1000".parse().unwrap();
        assert_eq!(of(&config), (3072, 6144 - 64, 31_000));
        config.enforce_node_allocatable = Enforce::Nothing;
        assert_eq!(of(&config), (4096, 8192, 32_768));
    }
}
