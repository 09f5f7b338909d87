//! /stats/summary: the resource usage of the node, its pods and their containers.
//!
//! Source: `k8s.io/kubelet/pkg/apis/stats/v1alpha1`.

use std::collections::BTreeMap;
use std::fs;
use std::sync::{Arc, Mutex, PoisonError};

use futures_util::future::join_all;
use jiff::Timestamp;
use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use knarr_api::kind::Kind;
use serde_json::{Map, Value, json};

use super::answer::{self, Answer};
use super::handler::Handler;
use crate::runtime::{ContainerStats, Disk, DiskUsage, FsInfo, RuntimeError, SandboxStats, Stats};
use crate::volume_manager::VolumeUsage;

/// The kernel counts CPU time in hundredths of a second.
const TICK_NANOS: u64 = 10_000_000;
/// The shortest interval for rates; over shorter ones they are too coarse.
const MIN_RATE_NANOS: i128 = 500_000_000;
const MAX_SAMPLES: usize = 4096;

/// CPU time at a moment.
#[derive(Clone, Copy)]
struct Sample {
    at: Timestamp,
    cpu_nanos: u64,
    rate: Option<u64>,
}

/// CPU rates between one request and the next, by the key of what was measured.
#[derive(Default)]
pub struct Rates(Mutex<BTreeMap<String, Sample>>);

impl Rates {
    /// Returns nanocores since the last request; `None` at the first one.
    fn rate(&self, key: &str, at: Timestamp, cpu_nanos: u64) -> Option<u64> {
        let mut samples = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let last = samples.get(key).copied();
        let span = last.map_or(0, |s| at.as_nanosecond() - s.at.as_nanosecond());
        if let Some(last) = last
            && span < MIN_RATE_NANOS
        {
            return last.rate;
        }
        let rate = last.and_then(|s| {
            let used = i128::from(cpu_nanos.checked_sub(s.cpu_nanos)?);
            u64::try_from(used * 1_000_000_000 / span).ok()
        });
        if samples.len() >= MAX_SAMPLES && last.is_none() {
            samples.pop_first();
        }
        samples.insert(key.to_owned(), Sample { at, cpu_nanos, rate });
        rate
    }

    fn keep(&self, keys: impl Fn(&str) -> bool) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).retain(|key, _| keys(key));
    }
}

/// The usage of the whole machine.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct NodeUsage {
    pub cpu_nanos: u64,
    pub memory_total: u64,
    pub memory_usage: u64,
    pub memory_working_set: u64,
    pub memory_rss: u64,
    /// When the machine booted, in seconds since 1970, if the kernel reports it.
    pub boot_seconds: i64,
}

impl NodeUsage {
    pub fn read() -> Self {
        let text = |path: &str| fs::read_to_string(path).unwrap_or_default();
        Self::parse(&text("/proc/stat"), &text("/proc/meminfo"))
    }

    fn parse(stat: &str, meminfo: &str) -> Self {
        let cpu = stat.lines().find_map(|line| line.strip_prefix("cpu "));
        let ticks: Vec<u64> = cpu.unwrap_or("").split_whitespace().filter_map(|n| n.parse().ok()).collect();
        // The order is user, nice, system, idle, iowait, irq, softirq, steal and guest times.
        let busy: u64 =
            ticks.iter().enumerate().filter(|(i, _)| !matches!(i, 3 | 4 | 8 | 9)).map(|(_, t)| t).sum();
        let boot = stat.lines().find_map(|line| line.strip_prefix("btime "));
        let kib = |key: &str| {
            let line = meminfo.lines().find_map(|line| line.strip_prefix(key)?.strip_prefix(':'));
            let number =
                line.and_then(|rest| rest.split_whitespace().next()).and_then(|n| n.parse::<u64>().ok());
            number.unwrap_or(0) * 1024
        };
        let (total, free) = (kib("MemTotal"), kib("MemFree"));
        let usage = total.saturating_sub(free);
        Self {
            cpu_nanos: busy.saturating_mul(TICK_NANOS),
            memory_total: total,
            memory_usage: usage,
            memory_working_set: usage.saturating_sub(kib("Inactive(file)")),
            memory_rss: kib("AnonPages"),
            boot_seconds: boot.and_then(|n| n.trim().parse().ok()).unwrap_or(0),
        }
    }
}

/// A pod with its usage and that of its containers.
pub struct PodUsage {
    pub pod: Arc<Pod>,
    pub sandbox: Option<SandboxStats>,
    pub containers: Vec<ContainerStats>,
}

/// Returns the usage of all pods on this node, in the pods' order; pods that the runtime does not have are left
/// out.
pub async fn pod_usage(handler: &Handler, disk: Disk) -> Result<Vec<PodUsage>, RuntimeError> {
    let sandboxes = handler.runtime.list_sandbox_stats().await?;
    let containers = handler.runtime.list_container_stats(disk).await?;
    let uid_of: BTreeMap<&str, &str> =
        sandboxes.iter().map(|s| (s.sandbox_id.as_str(), s.pod_uid.as_str())).collect();
    let mut by_pod: BTreeMap<&str, Vec<ContainerStats>> = BTreeMap::new();
    for container in &containers {
        if let Some(uid) = uid_of.get(container.sandbox_id.as_str()) {
            by_pod.entry(uid).or_default().push(container.clone());
        }
    }
    let mut found = Vec::new();
    for pod in handler.pods.pods() {
        let sandbox = sandboxes.iter().find(|s| s.pod_uid == pod.uid()).cloned();
        let mut containers = by_pod.remove(pod.uid()).unwrap_or_default();
        containers.sort_by(|a, b| a.name.cmp(&b.name));
        if sandbox.is_some() || !containers.is_empty() {
            found.push(PodUsage { pod, sandbox, containers });
        }
    }
    Ok(found)
}

fn time(at: Timestamp) -> Value {
    serde_json::to_value(Time(at)).unwrap_or_default()
}

fn cpu(rates: &Rates, key: &str, at: Timestamp, nanos: u64) -> Value {
    let mut value = json!({"time": time(at), "usageCoreNanoSeconds": nanos});
    if let Some(rate) = rates.rate(key, at, nanos) {
        value["usageNanoCores"] = rate.into();
    }
    value
}

fn memory(at: Timestamp, usage: &Stats) -> Value {
    json!({
        "time": time(at),
        "usageBytes": usage.memory_usage_bytes,
        "workingSetBytes": usage.memory_working_set_bytes,
        "rssBytes": usage.memory_rss_bytes,
        "pageFaults": usage.page_faults,
        "majorPageFaults": usage.major_page_faults,
    })
}

/// Fields of unknown values are left out, as in upstream.
fn file_system(at: Timestamp, fs: &FsInfo, used: Option<DiskUsage>) -> Value {
    let mut value = json!({
        "time": time(at),
        "availableBytes": fs.available_bytes,
        "capacityBytes": fs.capacity_bytes,
        "inodesFree": fs.inodes_free,
        "inodes": fs.inodes,
    });
    if let Some(used) = used {
        value["usedBytes"] = used.bytes.into();
        value["inodesUsed"] = used.inodes.into();
    }
    value
}

/// Returns when a container was started, by the pod's status.
pub fn started_at(pod: &Pod, container_id: &str) -> Option<Timestamp> {
    let status = pod.status.as_ref()?;
    let lists =
        [&status.container_statuses, &status.init_container_statuses, &status.ephemeral_container_statuses];
    let found = lists.into_iter().flatten().flatten().find(|c| {
        c.container_id
            .as_deref()
            .and_then(|id| id.split_once("://"))
            .is_some_and(|(_, id)| id == container_id)
    })?;
    found.state.as_ref()?.running.as_ref()?.started_at.as_ref().map(|t| t.0)
}

pub async fn summary(handler: &Handler) -> Answer {
    let (usage, fs) = tokio::join!(pod_usage(handler, Disk::Measured), handler.runtime.image_fs_info());
    let (usage, fs) = match (usage, fs) {
        (Ok(usage), Ok(fs)) => (usage, fs),
        (Err(error), _) | (_, Err(error)) => {
            return answer::text(http::StatusCode::INTERNAL_SERVER_ERROR, error.to_string());
        }
    };
    let volumes = join_all(usage.iter().map(|pod| handler.pods.volume_usage(&pod.pod))).await;
    let now = handler.client.clock().now();
    let with_volumes = |(pod, volumes): (&PodUsage, Vec<VolumeUsage>)| {
        let mut stats = pod_stats(&handler.rates, pod, &fs);
        if !volumes.is_empty() {
            stats["volume"] = volumes.iter().map(|v| volume_stats(now, &pod.pod, v)).collect();
        }
        stats
    };
    let pods: Vec<Value> = usage.iter().zip(volumes).map(with_volumes).collect();
    let known: std::collections::BTreeSet<&str> = usage
        .iter()
        .flat_map(|p| p.containers.iter().map(|c| c.container_id.as_str()).chain([p.pod.uid()]))
        .chain(["node"])
        .collect();
    handler.rates.keep(|key| known.contains(key));
    answer::json(&json!({"node": node_stats(handler, now, &fs), "pods": pods}))
}

fn node_stats(handler: &Handler, now: Timestamp, fs: &FsInfo) -> Value {
    let node = NodeUsage::read();
    let used = fs.capacity_bytes.saturating_sub(fs.available_bytes);
    let inodes_used = fs.inodes.saturating_sub(fs.inodes_free);
    json!({
        "nodeName": handler.node_name,
        "startTime": time(Timestamp::from_second(node.boot_seconds).unwrap_or(now)),
        "cpu": cpu(&handler.rates, "node", now, node.cpu_nanos),
        "memory": {
            "time": time(now),
            "availableBytes": node.memory_total.saturating_sub(node.memory_working_set),
            "usageBytes": node.memory_usage,
            "workingSetBytes": node.memory_working_set,
            "rssBytes": node.memory_rss,
        },
        "fs": file_system(now, fs, Some(DiskUsage { bytes: used, inodes: inodes_used })),
        "runtime": {"imageFs": file_system(now, fs, Some(fs.used))},
    })
}

fn pod_stats(rates: &Rates, usage: &PodUsage, fs: &FsInfo) -> Value {
    let pod = &usage.pod;
    let containers: Vec<Value> =
        usage.containers.iter().map(|c| container_stats(rates, pod, c, fs)).collect();
    let mut value = Map::new();
    value.insert(
        "podRef".to_owned(),
        json!({"name": pod.name(), "namespace": pod.namespace(), "uid": pod.uid()}),
    );
    if let Some(start) = pod.status.as_ref().and_then(|s| s.start_time.as_ref()) {
        value.insert("startTime".to_owned(), time(start.0));
    }
    value.insert("containers".to_owned(), containers.into());
    if let Some(sandbox) = &usage.sandbox {
        value.insert("cpu".to_owned(), cpu(rates, pod.uid(), sandbox.at, sandbox.usage.cpu_usage_nanos));
        value.insert("memory".to_owned(), memory(sandbox.at, &sandbox.usage));
        value.insert("process_stats".to_owned(), json!({"process_count": sandbox.usage.pids}));
        let mut used = Some(DiskUsage::default());
        for container in &usage.containers {
            used = used.zip(container.rootfs).map(|(mut sum, rootfs)| {
                sum += rootfs;
                sum
            });
        }
        value.insert("ephemeral-storage".to_owned(), file_system(sandbox.at, fs, used));
    }
    Value::Object(value)
}

fn volume_stats(at: Timestamp, pod: &Pod, usage: &VolumeUsage) -> Value {
    json!({
        "time": time(at),
        "availableBytes": usage.bytes.available,
        "capacityBytes": usage.bytes.capacity,
        "usedBytes": usage.bytes.used,
        "inodesFree": usage.inodes.available,
        "inodes": usage.inodes.capacity,
        "inodesUsed": usage.inodes.used,
        "name": usage.volume,
        "pvcRef": {"name": usage.claim, "namespace": pod.namespace()},
    })
}

fn container_stats(rates: &Rates, pod: &Pod, stats: &ContainerStats, fs: &FsInfo) -> Value {
    let start = started_at(pod, &stats.container_id).unwrap_or(stats.at);
    json!({
        "name": stats.name,
        "startTime": time(start),
        "cpu": cpu(rates, &stats.container_id, stats.at, stats.usage.cpu_usage_nanos),
        "memory": memory(stats.at, &stats.usage),
        "rootfs": file_system(stats.at, fs, stats.rootfs),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rates_need_two_moments() {
        let rates = Rates::default();
        let at = |ms: i64| Timestamp::from_millisecond(ms).unwrap();
        assert_eq!(rates.rate("a", at(0), 0), None);
        assert_eq!(rates.rate("a", at(1000), 500_000_000), Some(500_000_000));
        assert_eq!(rates.rate("a", at(1100), 600_000_000), Some(500_000_000), "too soon: the last one");
        assert_eq!(rates.rate("a", at(3000), 400_000_000), None, "begun anew");
        rates.keep(|key| key != "a");
        assert_eq!(rates.rate("a", at(5000), 1), None);
    }

    #[test]
    fn texts_of_the_kernel() {
        let usage = NodeUsage::parse(
            "cpu  100 1 50 1000 20 3 4 5 7 0\ncpu0 1 1 1\nbtime 1700000000\n",
            "MemTotal: 1000 kB\nMemFree: 400 kB\nInactive(file): 100 kB\nAnonPages: 50 kB\n",
        );
        assert_eq!(usage.cpu_nanos, 163 * TICK_NANOS);
        assert_eq!((usage.memory_usage, usage.memory_working_set), (600 * 1024, 500 * 1024));
        assert_eq!(usage.boot_seconds, 1_700_000_000);
    }
}
