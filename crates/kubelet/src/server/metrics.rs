//! /metrics and /metrics/resource, in Prometheus' text format.
//!
//! Source: `k8s.io/kubernetes/pkg/kubelet/metrics/collectors/resource_metrics.go`.

use std::collections::BTreeMap;
use std::sync::Arc;

use futures_util::future::join_all;
use jiff::Timestamp;
use k8s_openapi::api::core::v1::Pod;
use knarr_api::kind::Kind;

use super::answer::{self, Answer};
use super::families::{Family, render, seconds};
use super::handler::Handler;
use super::stats::{self, NodeUsage, PodUsage};
use crate::node_status::KUBELET_VERSION;
use crate::runtime::Disk;
use crate::volume_manager::Room;

pub async fn of_resources(handler: &Handler) -> Answer {
    let now = handler.client.clock().now();
    let usage = stats::pod_usage(handler, Disk::LeftOut).await;
    let failed = usage.is_err();
    answer::prometheus(render(&resource_families(
        &NodeUsage::read(),
        now,
        &usage.unwrap_or_default(),
        failed,
    )))
}

fn resource_families(node: &NodeUsage, now: Timestamp, pods: &[PodUsage], failed: bool) -> Vec<Family> {
    let mut container_cpu = Family::new(
        "container_cpu_usage_seconds_total",
        "counter",
        "[STABLE] Cumulative cpu time consumed by the container in core-seconds",
    );
    let mut container_memory = Family::new(
        "container_memory_working_set_bytes",
        "gauge",
        "[STABLE] Current working set of the container in bytes",
    );
    let mut container_start = Family::new(
        "container_start_time_seconds",
        "gauge",
        "[STABLE] Start time of the container since unix epoch in seconds",
    );
    let mut node_cpu = Family::new(
        "node_cpu_usage_seconds_total",
        "counter",
        "[STABLE] Cumulative cpu time consumed by the node in core-seconds",
    );
    let mut node_memory = Family::new(
        "node_memory_working_set_bytes",
        "gauge",
        "[STABLE] Current working set of the node in bytes",
    );
    let mut pod_cpu = Family::new(
        "pod_cpu_usage_seconds_total",
        "counter",
        "[STABLE] Cumulative cpu time consumed by the pod in core-seconds",
    );
    let mut pod_memory = Family::new(
        "pod_memory_working_set_bytes",
        "gauge",
        "[STABLE] Current working set of the pod in bytes",
    );
    let mut error = Family::new(
        "resource_scrape_error",
        "gauge",
        "[STABLE] 1 if there was an error while getting container metrics, 0 otherwise",
    );
    node_cpu.add(vec![], seconds(node.cpu_nanos), Some(now));
    node_memory.add(vec![], node.memory_working_set as f64, Some(now));
    for usage in pods {
        let pod = &usage.pod;
        let pod_labels = || vec![("namespace", pod.namespace().to_owned()), ("pod", pod.name().to_owned())];
        for container in &usage.containers {
            let labels = || {
                let mut labels = pod_labels();
                labels.insert(0, ("container", container.name.clone()));
                labels
            };
            let (at, used) = (Some(container.at), &container.usage);
            container_cpu.add(labels(), seconds(used.cpu_usage_nanos), at);
            container_memory.add(labels(), used.memory_working_set_bytes as f64, at);
            if let Some(start) = stats::started_at(pod, &container.container_id) {
                container_start.add(labels(), start.as_millisecond() as f64 / 1e3, None);
            }
        }
        if let Some(sandbox) = &usage.sandbox {
            pod_cpu.add(pod_labels(), seconds(sandbox.usage.cpu_usage_nanos), Some(sandbox.at));
            pod_memory.add(pod_labels(), sandbox.usage.memory_working_set_bytes as f64, Some(sandbox.at));
        }
    }
    error.add(vec![], f64::from(u8::from(failed)), None);
    vec![container_cpu, container_memory, container_start, node_cpu, node_memory, pod_cpu, pod_memory, error]
}

/// Returns the usage of the claims of this node's pods. A claim of several pods is counted once.
async fn volume_families(handler: &Handler, pods: &[Arc<Pod>]) -> Vec<Family> {
    let usage = join_all(pods.iter().map(|pod| handler.pods.volume_usage(pod))).await;
    let mut usages = BTreeMap::new();
    for (pod, volumes) in pods.iter().zip(usage) {
        for volume in volumes {
            usages.insert((pod.namespace().to_owned(), volume.claim), (volume.bytes, volume.inodes));
        }
    }
    let family = |name, help, amount: fn(&(Room, Room)) -> u64| {
        let mut family = Family::new(name, "gauge", help);
        for ((namespace, claim), room) in &usages {
            let labels = vec![("namespace", namespace.clone()), ("persistentvolumeclaim", claim.clone())];
            family.add(labels, amount(room) as f64, None);
        }
        family
    };
    vec![
        family(
            "kubelet_volume_stats_available_bytes",
            "[ALPHA] Number of available bytes in the volume",
            |(bytes, _)| bytes.available,
        ),
        family(
            "kubelet_volume_stats_capacity_bytes",
            "[ALPHA] Capacity in bytes of the volume",
            |(bytes, _)| bytes.capacity,
        ),
        family(
            "kubelet_volume_stats_inodes",
            "[ALPHA] Maximum number of inodes in the volume",
            |(_, inodes)| inodes.capacity,
        ),
        family(
            "kubelet_volume_stats_inodes_free",
            "[ALPHA] Number of free inodes in the volume",
            |(_, inodes)| inodes.available,
        ),
        family(
            "kubelet_volume_stats_inodes_used",
            "[ALPHA] Number of used inodes in the volume",
            |(_, inodes)| inodes.used,
        ),
        family(
            "kubelet_volume_stats_used_bytes",
            "[ALPHA] Number of used bytes in the volume",
            |(bytes, _)| bytes.used,
        ),
    ]
}

pub async fn of_kubelet(handler: &Handler) -> Answer {
    let pods = handler.pods.pods();
    let statuses = || pods.iter().filter_map(|p| p.status.as_ref());
    let running = statuses().filter(|s| s.phase.as_deref() == Some("Running")).count();
    let containers = statuses().flat_map(|s| s.container_statuses.iter().flatten());
    let (mut up, mut created, mut exited) = (0u32, 0u32, 0u32);
    for state in containers.filter_map(|c| c.state.as_ref()) {
        match (&state.running, &state.terminated) {
            (Some(_), _) => up += 1,
            (None, Some(_)) => exited += 1,
            (None, None) => created += 1,
        }
    }
    let mut node =
        Family::new("kubelet_node_name", "gauge", "[ALPHA] The node's name. The count is always 1.");
    node.add(vec![("node", handler.node_name.clone())], 1.0, None);
    let mut running_pods =
        Family::new("kubelet_running_pods", "gauge", "[BETA] Number of pods that have a running pod sandbox");
    running_pods.add(vec![], running as f64, None);
    let mut running_containers =
        Family::new("kubelet_running_containers", "gauge", "[BETA] Number of containers currently running");
    for (state, count) in [("created", created), ("exited", exited), ("running", up)] {
        running_containers.add(vec![("container_state", state.to_owned())], f64::from(count), None);
    }
    let active = pods.iter().filter(|p| !crate::pod::is_terminal_phase(crate::pod::phase(p))).count();
    let mut desired_pods = Family::new(
        "kubelet_desired_pods",
        "gauge",
        "[ALPHA] Pods that the kubelet is to run. static is true if a pod is not from the API server.",
    );
    desired_pods.add(vec![("static", String::new())], pods.len() as f64, None);
    let mut active_pods = Family::new(
        "kubelet_active_pods",
        "gauge",
        "[ALPHA] Pods that count when another one is admitted. static is true if a pod is not from the API server.",
    );
    active_pods.add(vec![("static", String::new())], active as f64, None);
    let mut families = vec![build_info(), active_pods];
    let now = handler.client.clock().now();
    families.extend(handler.certificates.iter().flat_map(|certificates| certificates.families(now)));
    families.extend([desired_pods, node, running_containers, running_pods]);
    families.extend(volume_families(handler, &pods).await);
    families.extend(super::process::families());
    // Includes the metrics of requests to the API server, and of work queues.
    let (requests, pods, clients) =
        (handler.requests.render(), handler.pods.metrics(), knarr_client::metrics::render());
    let rest = [requests, pods, (handler.other_metrics)(), clients];
    answer::prometheus(render(&families) + &rest.concat())
}

/// Returns the version of this program. The label of the Go compiler is empty.
fn build_info() -> Family {
    let mut family = Family::new(
        "kubernetes_build_info",
        "gauge",
        "[ALPHA] The version of this program, with the value 1.",
    );
    let arch = match std::env::consts::ARCH {
        "x86_64" => "amd64",
        "aarch64" => "arm64",
        other => other,
    };
    let mut numbers = KUBELET_VERSION.trim_start_matches('v').split('.');
    let (major, minor) = (numbers.next().unwrap_or(""), numbers.next().unwrap_or(""));
    let labels = [
        ("build_date", String::new()),
        ("compiler", "rustc".to_owned()),
        ("git_commit", String::new()),
        ("git_tree_state", String::new()),
        ("git_version", KUBELET_VERSION.to_owned()),
        ("go_version", String::new()),
        ("major", major.to_owned()),
        ("minor", minor.to_owned()),
        ("platform", format!("{}/{arch}", std::env::consts::OS)),
    ];
    family.add(labels.to_vec(), 1.0, None);
    family
}
