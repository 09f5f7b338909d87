//! Whether the runtime can run pods, in the words of the node's Ready condition; and what it is told of the node.
//!
//! Source: `k8s.io/kubernetes/pkg/kubelet` (runtime.go and updateRuntimeUp).

use std::time::Duration;

use knarr_grpc::Code;
use tokio::time::Instant;

use super::messages as cri;
use super::{Cri, client, lock};
use crate::runtime::{Readiness, Result, RuntimeFeatures, RuntimeHandler};

const STATUS: &str = "/runtime.v1.RuntimeService/Status";
const UPDATE: &str = "/runtime.v1.RuntimeService/UpdateRuntimeConfig";
const CONFIG: &str = "/runtime.v1.RuntimeService/RuntimeConfig";
/// A runtime that has not answered for so long counts as down.
const SYNC_THRESHOLD: Duration = Duration::from_secs(30);
/// Whoever asks for the status has other things to do.
const STATUS_TIMEOUT: Duration = Duration::from_secs(10);

/// What was last heard of the runtime.
#[derive(Default)]
pub struct Health {
    answered: Option<Instant>,
    /// Its silence is in the log.
    missed: bool,
    /// What it said then.
    why_not: Vec<String>,
}

/// What keeps pods from running, by the runtime's own conditions.
fn problems(status: &cri::RuntimeStatus) -> Vec<String> {
    let mut problems = Vec::new();
    for (kind, what) in [
        ("RuntimeReady", "container runtime not ready"),
        ("NetworkReady", "container runtime network not ready"),
    ] {
        match status.conditions.iter().find(|condition| condition.kind == kind) {
            Some(condition) if condition.status => {}
            Some(cri::RuntimeCondition { reason, message, .. }) => {
                problems.push(format!("{what}: {kind}=false reason:{reason} message:{message}"));
            }
            None => problems.push(format!("{what}: {kind} is not told")),
        }
    }
    problems
}

/// Source: `statusV1` of `k8s.io/cri-client`, for which such an answer is an error.
fn incomplete(status: &cri::RuntimeStatus) -> Option<String> {
    (status.conditions.len() < 2).then(|| "RuntimeReady or NetworkReady condition are not set".to_owned())
}

/// What the runtime can do, as far as the kubelet asks for it.
fn features(answer: &cri::StatusResponse) -> RuntimeFeatures {
    let handler = |handler: &cri::RuntimeHandler| RuntimeHandler {
        name: handler.name.clone(),
        recursive_read_only_mounts: handler.features.as_ref().is_some_and(|f| f.recursive_read_only_mounts),
        // The kubelet hands out no ranges of ids and sends no `userns_options`: whatever the runtime can do, pods
        // would run in the host's user namespace.
        user_namespaces: false,
    };
    RuntimeFeatures {
        handlers: answer.runtime_handlers.iter().map(handler).collect(),
        supplemental_groups_policy: answer.features.as_ref().is_some_and(|f| f.supplemental_groups_policy),
        // It says nothing of these: it gets what the pod asks for, and refuses what it cannot do.
        app_armor: true,
        se_linux: true,
    }
}

impl Cri {
    pub(super) async fn ask_readiness(&self) -> Readiness {
        let asked = self.inner.runtime.call_within::<cri::StatusResponse>(
            STATUS,
            &cri::StatusRequest {},
            Some(STATUS_TIMEOUT),
        );
        match asked.await {
            Ok(answer) => {
                if let Err(error) = self.ask_version().await {
                    tracing::debug!(%error, "the runtime's version is not known");
                }
                *lock(&self.inner.features) = features(&answer);
                let status = answer.status.unwrap_or_default();
                let why_not = problems(&status);
                *lock(&self.inner.health) =
                    Health { answered: Some(Instant::now()), missed: false, why_not: why_not.clone() };
                Readiness { not_ready: why_not, error: incomplete(&status) }
            }
            Err(error) => {
                let mut health = lock(&self.inner.health);
                if !std::mem::replace(&mut health.missed, true) {
                    tracing::warn!(%error, "the container runtime does not answer");
                }
                let not_ready = match health.answered {
                    None => vec!["container runtime status check may not have completed yet".to_owned()],
                    Some(at) if at.elapsed() >= SYNC_THRESHOLD => {
                        vec!["container runtime is down".to_owned()]
                    }
                    Some(_) => health.why_not.clone(),
                };
                Readiness { not_ready, error: Some(error.to_string()) }
            }
        }
    }

    /// Tells the runtime which addresses this node's pods have; `cidrs` as `Node.spec.podCIDRs` joined by commas.
    pub async fn set_pod_cidr(&self, cidrs: &str) -> Result<()> {
        let network_config = Some(cri::NetworkConfig { pod_cidr: cidrs.to_owned() });
        let request =
            cri::UpdateRuntimeConfigRequest { runtime_config: Some(cri::RuntimeConfig { network_config }) };
        let done: Result<cri::Done, _> = self.inner.runtime.call(UPDATE, &request).await;
        done.map(drop).map_err(client::error)
    }

    /// The pods' cgroups are made here, by path; a runtime that hands them to systemd would not find them.
    pub(super) async fn check_cgroup_driver(&self) -> Result<(), String> {
        let asked = self.inner.runtime.call(CONFIG, &cri::RuntimeConfigRequest {}).await;
        match asked.map(|answer: cri::RuntimeConfigResponse| answer.linux) {
            Ok(Some(linux)) if linux.cgroup_driver == i32::from(cri::CgroupDriver::Systemd) => {
                Err("the container runtime uses the cgroup driver systemd: configure it for cgroupfs \
                     (containerd: SystemdCgroup = false)"
                    .to_owned())
            }
            Ok(_) => Ok(()),
            // Runtimes from before that call are taken for what they are by default.
            Err(error) if error.code() == Code::UNIMPLEMENTED => Ok(()),
            Err(error) => Err(error.to_string()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn user_namespaces_are_not_asked_of_a_runtime_that_has_them() {
        let all = cri::RuntimeHandlerFeatures { recursive_read_only_mounts: true, user_namespaces: true };
        let handler = |name: &str, features| cri::RuntimeHandler { name: name.into(), features };
        let found = features(&cri::StatusResponse {
            status: None,
            runtime_handlers: vec![handler("", None), handler("runc", Some(all))],
            features: Some(cri::RuntimeFeatures { supplemental_groups_policy: true }),
        });
        let handlers: Vec<_> = found
            .handlers
            .iter()
            .map(|h| (h.name.as_str(), h.recursive_read_only_mounts, h.user_namespaces))
            .collect();
        assert_eq!(handlers, [("", false, false), ("runc", true, false)]);
        assert!(found.supplemental_groups_policy);
        assert!(features(&cri::StatusResponse::default()).handlers.is_empty());
    }

    #[test]
    fn conditions_are_told_in_upstreams_words() {
        let condition = |kind: &str, status| cri::RuntimeCondition {
            kind: kind.into(),
            status,
            reason: "NetworkPluginNotReady".into(),
            message: "cni plugin not initialized".into(),
        };
        let of = |conditions| problems(&cri::RuntimeStatus { conditions });
        assert!(of(vec![condition("RuntimeReady", true), condition("NetworkReady", true)]).is_empty());
        assert_eq!(
            of(vec![condition("RuntimeReady", true), condition("NetworkReady", false)]),
            ["container runtime network not ready: NetworkReady=false reason:NetworkPluginNotReady \
                 message:cni plugin not initialized"]
        );
        assert_eq!(of(Vec::new()).len(), 2);
    }
}
