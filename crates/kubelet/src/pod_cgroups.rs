//! The cgroups of pods and of the quality-of-service classes above them.

use std::sync::{Arc, Mutex, PoisonError};

use k8s_openapi::api::core::v1::Pod;
use knarr_api::kind::Kind;
use knarr_runtime::containers::Cgroups;

use crate::qos;
use crate::resources::{cpu_shares, pod_cgroup, pod_resources};
use crate::runtime::Resources;

const CLASSES: [(&str, &str); 2] = [(qos::BURSTABLE, "burstable"), (qos::BEST_EFFORT, "besteffort")];

/// All calls block for some file writes; without cgroups (a simulated node) they do nothing.
#[derive(Clone)]
pub struct PodCgroups {
    cgroups: Option<Cgroups>,
    pids_limit: i64,
    /// What the burstable class was last given.
    burstable: Arc<Mutex<u64>>,
}

impl PodCgroups {
    pub fn new(cgroups: Option<Cgroups>, pids_limit: i64) -> Self {
        Self { cgroups, pids_limit, burstable: Arc::default() }
    }

    /// Makes the class cgroups: best effort gets what is left over.
    pub fn open(&self) -> Result<(), String> {
        let Some(cgroups) = &self.cgroups else { return Ok(()) };
        for (_, folder) in CLASSES {
            let resources = Resources { cpu_shares: Some(2), ..Resources::default() };
            cgroups.create(folder, &resources).map_err(text)?;
        }
        Ok(())
    }

    /// Makes the pod's cgroup with its limits; fine if it is there.
    pub fn ensure(&self, pod: &Pod) -> Result<(), String> {
        let Some(cgroups) = &self.cgroups else { return Ok(()) };
        let path = pod_cgroup(qos::qos_class(pod), pod.uid());
        if cgroups.exists(&path) {
            return Ok(());
        }
        cgroups.create(&path, &pod_resources(pod, self.pids_limit)).map_err(text)
    }

    /// Changes the limits that are given.
    pub fn update(&self, pod: &Pod, resources: &Resources) -> Result<(), String> {
        let Some(cgroups) = &self.cgroups else { return Ok(()) };
        cgroups.update(&pod_cgroup(qos::qos_class(pod), pod.uid()), resources).map_err(text)
    }

    /// Kills what is left in the pod's cgroup and removes it, whatever its class was.
    pub fn remove(&self, uid: &str) -> Result<(), String> {
        let Some(cgroups) = &self.cgroups else { return Ok(()) };
        for class in [qos::GUARANTEED, qos::BURSTABLE, qos::BEST_EFFORT] {
            let path = pod_cgroup(class, uid);
            if cgroups.exists(&path) {
                cgroups.remove(&path).map_err(text)?;
            }
        }
        Ok(())
    }

    /// The burstable class weighs what its pods request together.
    pub fn weigh_burstable(&self, milli_cpu: i64) {
        let Some(cgroups) = &self.cgroups else { return };
        let shares = cpu_shares(milli_cpu);
        let mut last = self.burstable.lock().unwrap_or_else(PoisonError::into_inner);
        if *last == shares {
            return;
        }
        let resources = Resources { cpu_shares: Some(shares), ..Resources::default() };
        match cgroups.update("burstable", &resources) {
            Ok(()) => *last = shares,
            Err(error) => tracing::debug!(%error, "cannot weigh the burstable class"),
        }
    }

    /// Uids of pods that have a cgroup.
    pub fn uids(&self) -> Vec<String> {
        let Some(cgroups) = &self.cgroups else { return Vec::new() };
        let folders = ["", "burstable", "besteffort"];
        let mut uids: Vec<String> = folders
            .iter()
            .flat_map(|folder| cgroups.children(folder))
            .filter_map(|name| name.strip_prefix("pod").map(str::to_owned))
            .collect();
        uids.sort_unstable();
        uids.dedup();
        uids
    }
}

fn text(error: impl std::error::Error) -> String {
    match error.source() {
        Some(source) => format!("{error}: {source}"),
        None => error.to_string(),
    }
}
