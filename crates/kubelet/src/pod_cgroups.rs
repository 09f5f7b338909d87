//! The cgroups of pods and of the quality-of-service classes above them.

use std::sync::{Arc, Mutex, PoisonError};

use k8s_openapi::api::core::v1::Pod;
use knarr_api::kind::Kind;
use knarr_runtime::containers::Cgroups;

use crate::qos;
use crate::resources::{cpu_shares, pod_cgroup, pod_resources};
use crate::runtime::Resources;

const CLASSES: [(&str, &str); 2] = [(qos::BURSTABLE, "burstable"), (qos::BEST_EFFORT, "besteffort")];

/// Manages the pods' cgroups. All calls block for a few file writes; without cgroups (on a simulated node) they do
/// nothing.
#[derive(Clone)]
pub struct PodCgroups {
    cgroups: Option<Cgroups>,
    pids_limit: i64,
    /// The CPU shares that were last set on the burstable class.
    burstable: Arc<Mutex<u64>>,
}

impl PodCgroups {
    pub fn new(cgroups: Option<Cgroups>, pids_limit: i64) -> Self {
        Self { cgroups, pids_limit, burstable: Arc::default() }
    }

    pub fn are_there(&self) -> bool {
        self.cgroups.is_some()
    }

    /// Creates the cgroups of the classes: best effort gets the CPU time that is left.
    pub fn open(&self) -> Result<(), String> {
        let Some(cgroups) = &self.cgroups else { return Ok(()) };
        for (_, folder) in CLASSES {
            let resources = Resources { cpu_shares: Some(2), ..Resources::default() };
            cgroups.create(folder, &resources).map_err(text)?;
        }
        Ok(())
    }

    /// Limits the resources of all pods together.
    pub fn limit_all_pods(&self, resources: &Resources) -> Result<(), String> {
        let Some(cgroups) = &self.cgroups else { return Ok(()) };
        cgroups.create("", resources).map_err(text)
    }

    /// Creates the pod's cgroup with its limits; succeeds if it exists. An existing cgroup without processes gets
    /// all limits again: some may be missing, because the kernel refused one or this process was killed.
    pub fn ensure(&self, pod: &Pod) -> Result<(), String> {
        let Some(cgroups) = &self.cgroups else { return Ok(()) };
        let path = pod_cgroup(qos::qos_class(pod), pod.uid());
        if !cgroups.processes(&path).is_empty() {
            return Ok(());
        }
        cgroups.create(&path, &pod_resources(pod, self.pids_limit)).map_err(text)
    }

    /// Changes the limits that are set in `resources`.
    pub fn update(&self, pod: &Pod, resources: &Resources) -> Result<(), String> {
        let Some(cgroups) = &self.cgroups else { return Ok(()) };
        cgroups.update(&pod_cgroup(qos::qos_class(pod), pod.uid()), resources).map_err(text)
    }

    /// Returns the limits of the pod that are in force, as far as they can be read.
    pub fn limits(&self, pod: &Pod) -> Resources {
        let Some(cgroups) = &self.cgroups else { return Resources::default() };
        cgroups.limits(&pod_cgroup(qos::qos_class(pod), pod.uid()))
    }

    /// Returns the pod's memory usage in bytes, including all caches; `None` if it is not measured.
    pub fn memory_usage(&self, pod: &Pod) -> Option<u64> {
        self.cgroups.as_ref()?.memory_usage(&pod_cgroup(qos::qos_class(pod), pod.uid()))
    }

    /// Kills all processes in the pod's cgroup and removes it, whatever its class was.
    pub fn remove(&self, uid: &str) -> Result<(), String> {
        let Some(cgroups) = &self.cgroups else { return Ok(()) };
        for path in possible(uid) {
            if cgroups.exists(&path) {
                cgroups.remove(&path).map_err(text)?;
            }
        }
        Ok(())
    }

    /// Sets the weight of the burstable class to the sum of its pods' requests.
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
            Err(error) => tracing::debug!(%error, "cannot set the weight of the burstable class"),
        }
    }
}

/// Returns the cgroups that a pod may have below the kubelet's root, one for each class.
pub fn possible(uid: &str) -> [String; 3] {
    [qos::GUARANTEED, qos::BURSTABLE, qos::BEST_EFFORT].map(|class| pod_cgroup(class, uid))
}

fn text(error: impl std::error::Error) -> String {
    match error.source() {
        Some(source) => format!("{error}: {source}"),
        None => error.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::process::ExitStatusExt;
    use std::path::{Path, PathBuf};
    use std::process::{Child, Command, Stdio};

    use knarr_runtime::containers::cgroups::cpu_weight_from_shares;

    use super::*;

    struct Tree(Cgroups);

    impl Drop for Tree {
        fn drop(&mut self) {
            let _ = self.0.remove("");
        }
    }

    impl Tree {
        fn new(name: &str) -> Self {
            // SAFETY: plain system call.
            assert_eq!(unsafe { libc::geteuid() }, 0, "these tests need root");
            Self(Cgroups::detect(&format!("/knarr-kubelet-test-{}-{name}", std::process::id())).unwrap())
        }

        /// Returns the value of a file, of cgroup v1 or v2.
        fn value(&self, v1: &str, v2: &str) -> String {
            let root = Path::new("/sys/fs/cgroup");
            let (controller, file) = v1.split_once('/').unwrap();
            let of_v1: PathBuf = root.join(controller).join(self.0.full_path("")).join(file);
            let path = if self.0.is_v2() { root.join(self.0.full_path("")).join(v2) } else { of_v1 };
            fs::read_to_string(path).unwrap().trim().to_owned()
        }

        /// Starts a process that allocates 48 MiB in a pod's cgroup once its standard input is closed, and keeps
        /// them until the pipe is read.
        fn hog(&self) -> Child {
            let mut child = Command::new("sh")
                .args(["-c", "read line; exec dd if=/dev/zero bs=48M count=1 2>/dev/null"])
                .stdin(Stdio::piped())
                .stdout(Stdio::piped())
                .spawn()
                .unwrap();
            self.0.create("besteffort/pod1", &Resources::default()).unwrap();
            self.0.add_process("besteffort/pod1", child.id() as i32).unwrap();
            drop(child.stdin.take());
            child
        }
    }

    fn limits(memory_mib: i64) -> Resources {
        Resources {
            cpu_shares: Some(1536),
            memory_limit: Some(memory_mib << 20),
            pids_limit: Some(100),
            ..Resources::default()
        }
    }

    #[test]
    fn all_pods_together_are_limited() {
        let tree = Tree::new("all");
        let cgroups = PodCgroups::new(Some(tree.0.clone()), 0);
        cgroups.open().unwrap();
        cgroups.limit_all_pods(&limits(16)).unwrap();
        assert_eq!(tree.value("memory/memory.limit_in_bytes", "memory.max"), (16 << 20).to_string());
        assert_eq!(tree.value("pids/pids.max", "pids.max"), "100");
        let weight = tree.value("cpu/cpu.shares", "cpu.weight");
        let want = if tree.0.is_v2() { cpu_weight_from_shares(1536) } else { 1536 };
        assert_eq!(weight, want.to_string());
        // A pod without its own limit.
        let status = tree.hog().wait().unwrap();
        assert_eq!(status.signal(), Some(libc::SIGKILL));
        cgroups.limit_all_pods(&limits(256)).unwrap();
        let output = tree.hog().wait_with_output().unwrap();
        assert_eq!((output.status.code(), output.stdout.len()), (Some(0), 48 << 20));
    }

    #[test]
    fn a_pods_group_has_all_of_its_limits_before_anything_runs_in_it() {
        let tree = Tree::new("whole");
        let pod: Pod = serde_json::from_value(serde_json::json!({
            "metadata": {"uid": "u1"},
            "spec": {"containers": [{"name": "c"}]},
        }))
        .unwrap();
        let path = pod_cgroup(qos::BEST_EFFORT, "u1");
        // The cgroup that a killed server has left.
        tree.0.create(&path, &Resources::default()).unwrap();
        let pids = || tree.value(&format!("pids/{path}/pids.max"), &format!("{path}/pids.max"));
        assert_eq!(pids(), "max");
        PodCgroups::new(Some(tree.0.clone()), 77).ensure(&pod).unwrap();
        assert_eq!(pids(), "77");
        // A running pod keeps its limits.
        let mut child = Command::new("sleep").arg("60").spawn().unwrap();
        tree.0.create(&format!("{path}/c"), &Resources::default()).unwrap();
        tree.0.add_process(&format!("{path}/c"), child.id() as i32).unwrap();
        PodCgroups::new(Some(tree.0.clone()), 78).ensure(&pod).unwrap();
        assert_eq!(pids(), "77");
        child.kill().unwrap();
        child.wait().unwrap();
    }

    /// cgroup v1 refuses a limit below the usage; v2 accepts it, and kills processes.
    #[test]
    fn a_limit_below_the_use_is_set_later() {
        let tree = Tree::new("below");
        let cgroups = PodCgroups::new(Some(tree.0.clone()), 0);
        cgroups.limit_all_pods(&limits(256)).unwrap();
        let mut hog = tree.hog();
        // The process writes its first output after it has read everything.
        use std::io::Read;
        hog.stdout.as_mut().unwrap().read_exact(&mut [0]).unwrap();
        match cgroups.limit_all_pods(&limits(16)) {
            Err(error) => assert!(!tree.0.is_v2() && error.contains("memory.limit_in_bytes"), "{error}"),
            Ok(()) => assert!(tree.0.is_v2(), "the machine swaps"),
        }
        hog.kill().unwrap();
        hog.wait().unwrap();
        cgroups.limit_all_pods(&limits(16)).unwrap();
        assert_eq!(tree.value("memory/memory.limit_in_bytes", "memory.max"), (16 << 20).to_string());
    }
}
