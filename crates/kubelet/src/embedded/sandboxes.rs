//! Sandboxes: namespaces from the runtime, addresses from the pod network, and their own name files.

use std::collections::BTreeMap;
use std::path::PathBuf;

use knarr_runtime::containers::{SandboxConfig, SandboxStatus, interfaces_of};

use super::{ATTEMPT, CGROUP_PARENT, Embedded, HANDLER, OciHandler, errors, lock};
use crate::container_config::dns::resolv_conf;
use crate::labels;
use crate::pod_network::PodRef;
use crate::runtime::*;

/// Returns a new id of 64 hexadecimal digits, as other runtimes use.
pub fn new_id() -> String {
    (0..4).map(|_| format!("{:016x}", fastrand::u64(..))).collect()
}

/// Returns the pod's sysctls, and before them those that containerd sets for every pod with its own network: low
/// ports and ping for all users.
fn sysctls(config: &PodSandboxConfig) -> BTreeMap<String, String> {
    let open = [("net.ipv4.ip_unprivileged_port_start", "0"), ("net.ipv4.ping_group_range", "0 2147483647")];
    let open = open.into_iter().filter(|_| !config.host_network);
    let mut sysctls: BTreeMap<String, String> =
        open.map(|(name, value)| (name.to_owned(), value.to_owned())).collect();
    let asked = config.sysctls.iter().map(|(name, value)| (name.replace('/', "."), value.clone()));
    sysctls.extend(asked);
    sysctls
}

/// Returns the OCI runtime of the handler, if it is not the default one. An unknown handler is refused, as
/// containerd does: it promises another isolation.
fn program_of(handlers: &[OciHandler], name: &str) -> Result<Option<PathBuf>> {
    if name.is_empty() {
        return Ok(None);
    }
    let found = handlers.iter().find(|handler| handler.name == name);
    let missing = || {
        RuntimeError::Failed(format!("failed to get sandbox runtime: no runtime for {name:?} is configured"))
    };
    found.map(|handler| Some(handler.program.path.clone())).ok_or_else(missing)
}

impl Embedded {
    pub(super) fn sandbox_dir(&self, id: &str) -> PathBuf {
        self.inner.dir.join(id)
    }

    pub(super) async fn run_sandbox(&self, config: PodSandboxConfig) -> Result<String> {
        let oci_runtime = program_of(&self.inner.handlers, &config.runtime_handler)?;
        let id = new_id();
        self.write_files(&id, &config)?;
        let mut annotations = config.annotations.clone();
        annotations.insert(ATTEMPT.to_owned(), config.attempt.to_string());
        annotations.insert(HANDLER.to_owned(), config.runtime_handler.clone());
        annotations.insert(CGROUP_PARENT.to_owned(), config.cgroup_parent.clone());
        lock(&self.inner.pods).insert(id.clone(), config.uid.clone());
        let made = self
            .inner
            .runtime
            .run_sandbox(SandboxConfig {
                id: id.clone(),
                labels: config.labels.clone(),
                annotations,
                hostname: config.hostname.clone(),
                host_network: config.host_network,
                host_ipc: config.host_ipc,
                shared_pid: config.shared_pid,
                sysctls: sysctls(&config),
                cgroup_parent: config.cgroup_parent.clone(),
                user_namespace: config.user_namespace,
                oci_runtime,
                ..SandboxConfig::default()
            })
            .await;
        let connected = match made {
            Ok(status) => self.connect(&id, &config, &status).await,
            Err(error) => Err(errors::container(error)),
        };
        if let Err(error) = connected {
            if let Err(left) = self.remove_sandbox(&id).await {
                tracing::warn!(sandbox = %id, error = %left, "cannot clean up after a failed sandbox");
            }
            return Err(error);
        }
        Ok(id)
    }

    async fn connect(&self, id: &str, config: &PodSandboxConfig, status: &SandboxStatus) -> Result<()> {
        let Some(netns) = &status.netns_path else { return Ok(()) };
        let pod = PodRef {
            namespace: config.namespace.clone(),
            name: config.name.clone(),
            uid: config.uid.clone(),
        };
        let ips =
            self.inner.network.setup(&pod, id, netns, &config.port_mappings).await.map_err(|e| {
                RuntimeError::Failed(format!("failed to setup network for sandbox {id:?}: {e}"))
            })?;
        lock(&self.inner.addresses).insert(id.to_owned(), ips);
        Ok(())
    }

    fn write_files(&self, id: &str, config: &PodSandboxConfig) -> Result<()> {
        let dir = self.sandbox_dir(id);
        std::fs::create_dir_all(&dir).map_err(errors::file("create", &dir))?;
        let write = |name: &str, text: &str| {
            let path = dir.join(name);
            std::fs::write(&path, text).map_err(errors::file("write", &path))
        };
        if let Some(dns) = &config.dns {
            write("resolv.conf", &resolv_conf(dns))?;
        }
        if !config.host_network {
            write("hostname", &format!("{}\n", config.hostname))?;
        }
        Ok(())
    }

    pub(super) async fn stop_sandbox(&self, id: &str) -> Result<()> {
        // The network is torn down while the namespace exists: a plugin removes devices from it.
        self.inner.network.teardown(id).await.map_err(errors::network)?;
        errors::fine_if_missing(self.inner.runtime.stop_sandbox(id).await)?;
        lock(&self.inner.addresses).remove(id);
        Ok(())
    }

    pub(super) async fn remove_sandbox(&self, id: &str) -> Result<()> {
        self.stop_sandbox(id).await?;
        let containers: Vec<String> = self
            .inner
            .runtime
            .list_containers()
            .into_iter()
            .filter(|c| c.sandbox_id == id)
            .map(|c| c.spec.id.clone())
            .collect();
        errors::fine_if_missing(self.inner.runtime.remove_sandbox(id).await)?;
        for container in containers {
            self.remove_snapshots(&container).await?;
        }
        let dir = self.sandbox_dir(id);
        knarr_runtime::remove_folder(&dir).map_err(errors::file("remove", &dir))?;
        lock(&self.inner.pods).remove(id);
        Ok(())
    }

    pub(super) fn sandboxes(&self) -> Vec<PodSandboxStatus> {
        self.inner.runtime.list_sandboxes().into_iter().map(|s| self.sandbox(s)).collect()
    }

    fn sandbox(&self, status: SandboxStatus) -> PodSandboxStatus {
        let label = |name: &str| status.labels.get(name).cloned().unwrap_or_default();
        PodSandboxStatus {
            namespace: label(labels::POD_NAMESPACE),
            name: label(labels::POD_NAME),
            uid: label(labels::POD_UID),
            attempt: status.annotations.get(ATTEMPT).and_then(|n| n.parse().ok()).unwrap_or(0),
            ips: lock(&self.inner.addresses).get(&status.id).cloned().unwrap_or_default(),
            host_network: status.netns_path.is_none(),
            id: status.id,
            runtime_handler: status.annotations.get(HANDLER).cloned().unwrap_or_default(),
            state: status.state,
            created_at: status.created_at,
            labels: status.labels,
            annotations: status.annotations,
        }
    }

    pub(super) fn status_of(&self, uid: &str) -> PodRuntimeStatus {
        let mut sandboxes: Vec<PodSandboxStatus> =
            self.sandboxes().into_iter().filter(|s| s.uid == uid).collect();
        sandboxes.sort_by(|a, b| b.created_at.cmp(&a.created_at).then(b.attempt.cmp(&a.attempt)));
        let all = self.inner.runtime.list_containers();
        let own = all.iter().filter(|c| c.spec.labels.get(labels::POD_UID).is_some_and(|u| u == uid));
        let mut containers: Vec<ContainerStatus> = own.map(super::containers::status).collect();
        containers.sort_by(|a, b| b.created_at.cmp(&a.created_at).then(b.attempt.cmp(&a.attempt)));
        PodRuntimeStatus { sandboxes, containers, ..PodRuntimeStatus::default() }
    }

    pub(super) fn all_sandbox_stats(&self) -> Vec<SandboxStats> {
        let at = jiff::Timestamp::now();
        let ready = self.sandboxes().into_iter().filter(|s| s.state == SandboxState::Ready);
        let stats = ready.filter_map(|s| {
            let cgroup = s.annotations.get(CGROUP_PARENT)?;
            let usage = self.inner.runtime.cgroups().stats(cgroup);
            Some(SandboxStats { sandbox_id: s.id, pod_uid: s.uid, at, usage })
        });
        stats.collect()
    }

    /// Returns the details of running containers and ready sandboxes.
    pub(super) fn all_details(&self) -> Vec<UsageDetails> {
        let (runtime, cgroups) = (&self.inner.runtime, self.inner.runtime.cgroups());
        let details = |id: &str, path: &str, interfaces| UsageDetails {
            id: id.to_owned(),
            cgroup: format!("/{}", cgroups.full_path(path)),
            figures: cgroups.details(path),
            interfaces,
        };
        let mut all = Vec::new();
        let mut parents: BTreeMap<String, String> = BTreeMap::new();
        for sandbox in runtime.list_sandboxes().into_iter().filter(|s| s.state == SandboxState::Ready) {
            let Some(parent) = sandbox.annotations.get(CGROUP_PARENT) else { continue };
            let own_network = sandbox.netns_path.is_some();
            let interfaces = if own_network { interfaces_of(sandbox.pid) } else { Vec::new() };
            all.push(details(&sandbox.id, parent, interfaces));
            parents.insert(sandbox.id, parent.clone());
        }
        for container in runtime.list_containers() {
            if container.status.state == ContainerState::Running
                && let Some(parent) = parents.get(&container.sandbox_id)
            {
                let id = &container.spec.id;
                all.push(details(id, &format!("{parent}/{id}"), Vec::new()));
            }
        }
        all
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn low_ports_and_ping_are_for_everybody_unless_the_pod_says_otherwise() {
        let asked = |pairs: &[(&str, &str)]| pairs.iter().map(|(n, v)| ((*n).into(), (*v).into())).collect();
        let config = PodSandboxConfig {
            sysctls: asked(&[("net.ipv4.ip_unprivileged_port_start", "80"), ("kernel.shmmax", "1")]),
            ..PodSandboxConfig::default()
        };
        let expected = asked(&[
            ("kernel.shmmax", "1"),
            ("net.ipv4.ip_unprivileged_port_start", "80"),
            ("net.ipv4.ping_group_range", "0 2147483647"),
        ]);
        assert_eq!(sysctls(&config), expected);
        let config = PodSandboxConfig { host_network: true, ..PodSandboxConfig::default() };
        assert_eq!(sysctls(&config), asked(&[]));
    }
}
