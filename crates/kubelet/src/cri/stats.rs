//! Resource usage: of containers as the runtime reports it, of pods from their cgroups, which the kubelet owns.

use std::collections::BTreeMap;

use jiff::Timestamp;

use super::messages as cri;
use super::{Cri, client, status};
use crate::labels;
use crate::pod_cgroups;
use crate::runtime::{
    ContainerStats, DiskUsage, Result, RuntimeError, SandboxState, SandboxStats, Stats, UsageDetails,
};

const ONE: &str = "/runtime.v1.RuntimeService/ContainerStats";
const LIST: &str = "/runtime.v1.RuntimeService/ListContainerStats";

fn value(number: Option<cri::UInt64Value>) -> u64 {
    number.map_or(0, |number| number.value)
}

/// Converts a container's statistics. The key is the pod's uid, by which the sandbox is found later.
fn container(stats: cri::ContainerStats, now: Timestamp) -> Option<(String, ContainerStats)> {
    let attributes = stats.attributes?;
    let (cpu, memory) = (stats.cpu.unwrap_or_default(), stats.memory.unwrap_or_default());
    let usage = value(memory.usage_bytes);
    let working_set = value(memory.working_set_bytes);
    let found = ContainerStats {
        container_id: attributes.id,
        sandbox_id: String::new(),
        name: attributes.metadata.map(|metadata| metadata.name).unwrap_or_default(),
        at: status::time(cpu.timestamp).unwrap_or(now),
        usage: Stats {
            cpu_usage_nanos: value(cpu.usage_core_nano_seconds),
            // Older runtimes report the working set only.
            memory_usage_bytes: if usage == 0 { working_set } else { usage },
            memory_working_set_bytes: working_set,
            memory_rss_bytes: value(memory.rss_bytes),
            page_faults: value(memory.page_faults),
            major_page_faults: value(memory.major_page_faults),
            pids: 0,
        },
        rootfs: stats
            .writable_layer
            .map(|layer| DiskUsage { bytes: value(layer.used_bytes), inodes: value(layer.inodes_used) }),
    };
    Some((attributes.labels.get(labels::POD_UID).cloned().unwrap_or_default(), found))
}

impl Cri {
    pub(super) async fn stats_of(&self, id: &str) -> Result<ContainerStats> {
        let request = cri::ContainerRequest { container_id: id.to_owned() };
        let answer: cri::ContainerStatsResponse =
            self.inner.runtime.call(ONE, &request).await.map_err(client::error)?;
        let found = answer.stats.and_then(|stats| container(stats, self.inner.clock.now()));
        let missing = || RuntimeError::NotFound(format!("no statistics of container {id:?}"));
        found.map(|(_, stats)| stats).ok_or_else(missing)
    }

    pub(super) async fn all_stats(&self) -> Result<Vec<ContainerStats>> {
        let request = cri::ListContainerStatsRequest {};
        let answer: cri::ListContainerStatsResponse =
            self.inner.runtime.call(LIST, &request).await.map_err(client::error)?;
        let sandboxes: BTreeMap<String, String> =
            self.ready_sandboxes().await?.into_iter().map(|sandbox| (sandbox.uid, sandbox.id)).collect();
        let now = self.inner.clock.now();
        let all = answer.stats.into_iter().filter_map(|stats| {
            let (uid, stats) = container(stats, now)?;
            Some(ContainerStats { sandbox_id: sandboxes.get(&uid)?.clone(), ..stats })
        });
        Ok(all.collect())
    }

    async fn ready_sandboxes(&self) -> Result<Vec<crate::runtime::PodSandboxStatus>> {
        let mut found = self.sandboxes(BTreeMap::new()).await?;
        found.retain(|sandbox| sandbox.state == SandboxState::Ready);
        Ok(found)
    }

    fn pod_cgroup_of(&self, uid: &str) -> Option<String> {
        pod_cgroups::possible(uid).into_iter().find(|path| self.inner.cgroups.exists(path))
    }

    /// Returns the details of pods; the cgroups of containers are internal to the runtime.
    pub(super) async fn pod_details(&self) -> Result<Vec<UsageDetails>> {
        let cgroups = &self.inner.cgroups;
        let details = self.ready_sandboxes().await?.into_iter().filter_map(|sandbox| {
            let path = self.pod_cgroup_of(&sandbox.uid)?;
            Some(UsageDetails {
                id: sandbox.id,
                cgroup: format!("/{}", cgroups.full_path(&path)),
                figures: cgroups.details(&path),
                interfaces: Vec::new(),
            })
        });
        Ok(details.collect())
    }

    pub(super) async fn pod_stats(&self) -> Result<Vec<SandboxStats>> {
        let at = self.inner.clock.now();
        let cgroups = &self.inner.cgroups;
        let stats = self.ready_sandboxes().await?.into_iter().filter_map(|sandbox| {
            let path = self.pod_cgroup_of(&sandbox.uid)?;
            let usage = cgroups.stats(&path);
            Some(SandboxStats { sandbox_id: sandbox.id, pod_uid: sandbox.uid, at, usage })
        });
        Ok(stats.collect())
    }
}
