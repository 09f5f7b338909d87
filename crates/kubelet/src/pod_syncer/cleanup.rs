//! Removes all that is left on the node of pods that the API does not have any more.

use std::collections::BTreeSet;
use std::fs;
use std::path::PathBuf;

use super::{PodSyncer, blocking, lock};
use crate::config::PodDirs;
use crate::runtime::ContainerState;
use crate::volumes::mounts::mounted_below;

impl PodSyncer {
    /// Removes the pod's sandboxes, containers, volumes, folders, logs and cgroup. Idempotent.
    pub async fn clean_up(&self, uid: &str) -> Result<(), String> {
        self.probes.remove_pod(uid);
        let runtime = self.runtime.pod_status(uid).await.map_err(|e| e.to_string())?;
        for container in &runtime.containers {
            self.runtime.remove_container(&container.id).await.map_err(|e| e.to_string())?;
        }
        for sandbox in &runtime.sandboxes {
            self.runtime.remove_pod_sandbox(&sandbox.id).await.map_err(|e| e.to_string())?;
        }
        self.volumes.unmount(uid).await.map_err(|e| e.message)?;
        let (cgroups, dirs, owned) = (self.cgroups.clone(), self.config.dirs(), uid.to_owned());
        blocking(move || {
            cgroups.remove(&owned)?;
            remove_files(&dirs, &owned)
        })
        .await??;
        lock(&self.allocations).forget(uid);
        lock(&self.taken).remove(uid);
        self.decide_resizes();
        lock(&self.crash_back_off).forget(&format!("{uid}_"));
        self.images.forget(uid);
        self.objects.unregister(uid);
        self.status.forget(uid);
        Ok(())
    }

    /// Returns the uids of pods that have sandboxes in the runtime, or folders or logs on disk. Cgroups are not
    /// searched, as another kubelet may own them: this kubelet makes a pod's folder before its cgroup and removes
    /// it afterwards.
    pub async fn uids_here(&self) -> Result<BTreeSet<String>, String> {
        let mut uids = BTreeSet::new();
        let sandboxes = self.runtime.list_pod_sandboxes().await.map_err(|e| e.to_string())?;
        uids.extend(sandboxes.into_iter().map(|s| s.uid));
        let dirs = self.config.dirs();
        uids.extend(blocking(move || on_disk(&dirs)).await?);
        uids.remove("");
        Ok(uids)
    }

    /// Stops the running containers of a pod that the API does not have, and cleans up after it.
    pub async fn remove_orphan(&self, uid: &str) -> Result<(), String> {
        const GRACE_SECONDS: u64 = 2;
        let runtime = self.runtime.pod_status(uid).await.map_err(|e| e.to_string())?;
        let running = runtime.containers.iter().filter(|c| c.state == ContainerState::Running);
        let stops = running.map(|c| self.runtime.stop_container(&c.id, GRACE_SECONDS));
        for stopped in futures_util::future::join_all(stops).await {
            stopped.map_err(|e| e.to_string())?;
        }
        self.clean_up(uid).await
    }
}

fn on_disk(dirs: &PodDirs) -> Vec<String> {
    let names = |folder: PathBuf| {
        let entries = fs::read_dir(folder).into_iter().flatten().flatten();
        entries.filter_map(|entry| entry.file_name().into_string().ok())
    };
    let logs = names(dirs.logs()).filter_map(|name| name.rsplit_once('_').map(|(_, uid)| uid.to_owned()));
    names(dirs.pods()).chain(logs).collect()
}

/// Removes the pod's folder and logs. Refuses while anything is mounted below them, as the mounted data is not the
/// kubelet's.
fn remove_files(dirs: &PodDirs, uid: &str) -> Result<(), String> {
    let pod_dir = dirs.pod_dir(uid);
    if pod_dir.exists() {
        let mounted = mounted_below(&pod_dir).map_err(|e| e.to_string())?;
        if let Some(path) = mounted.first() {
            return Err(format!("{} is still mounted", path.display()));
        }
    }
    let end = format!("_{uid}");
    let logs = fs::read_dir(dirs.logs()).into_iter().flatten().flatten();
    let logs = logs.filter(|e| e.file_name().to_str().is_some_and(|n| n.ends_with(&end))).map(|e| e.path());
    for folder in std::iter::once(pod_dir).chain(logs) {
        knarr_runtime::remove_folder(&folder)
            .map_err(|error| format!("cannot remove {}: {error}", folder.display()))?;
    }
    Ok(())
}
