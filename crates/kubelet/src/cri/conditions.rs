//! The runtime's readiness, with the texts of the node's Ready condition, and the node's pod CIDR for the runtime.
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
/// A runtime that has not answered for this long counts as down.
const SYNC_THRESHOLD: Duration = Duration::from_secs(30);
/// The time limit of a status call: its callers must not wait for long.
const STATUS_TIMEOUT: Duration = Duration::from_secs(10);

/// The last known status of the runtime.
#[derive(Default)]
pub struct Health {
    answered: Option<Instant>,
    /// Whether the lack of an answer has been logged.
    missed: bool,
    /// The conditions of the last answer that were not fulfilled.
    why_not: Vec<String>,
}

/// Returns what keeps pods from running, by the runtime's own conditions.
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
            None => problems.push(format!("{what}: {kind} is not reported")),
        }
    }
    problems
}

/// Source: `statusV1` of `k8s.io/cri-client`, for which such an answer is an error.
fn incomplete(status: &cri::RuntimeStatus) -> Option<String> {
    (status.conditions.len() < 2).then(|| "RuntimeReady or NetworkReady condition are not set".to_owned())
}

/// Returns the features of the runtime that matter to the kubelet.
fn features(answer: &cri::StatusResponse) -> RuntimeFeatures {
    let handler = |handler: &cri::RuntimeHandler| RuntimeHandler {
        name: handler.name.clone(),
        recursive_read_only_mounts: handler.features.as_ref().is_some_and(|f| f.recursive_read_only_mounts),
        // The sandbox configuration for CRI contains no `userns_options`: even if the runtime supports them, pods
        // would run in the host's user namespace.
        user_namespaces: false,
    };
    RuntimeFeatures {
        handlers: answer.runtime_handlers.iter().map(handler).collect(),
        supplemental_groups_policy: answer.features.as_ref().is_some_and(|f| f.supplemental_groups_policy),
        // CRI does not report these features: the runtime gets what the pod asks for, and refuses what it does not
        // support.
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
                    tracing::debug!(%error, "cannot read the runtime's version");
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

    /// Sends the address ranges of this node's pods to the runtime; `cidrs` are `Node.spec.podCIDRs` joined by
    /// commas.
    pub async fn set_pod_cidr(&self, cidrs: &str) -> Result<()> {
        let network_config = Some(cri::NetworkConfig { pod_cidr: cidrs.to_owned() });
        let request =
            cri::UpdateRuntimeConfigRequest { runtime_config: Some(cri::RuntimeConfig { network_config }) };
        let done: Result<cri::Done, _> = self.inner.runtime.call(UPDATE, &request).await;
        done.map(drop).map_err(client::error)
    }

    /// Checks the runtime's cgroup driver. The kubelet creates the pods' cgroups by path; a runtime that uses
    /// systemd would not find them.
    pub(super) async fn check_cgroup_driver(&self) -> Result<(), String> {
        let asked = self.inner.runtime.call(CONFIG, &cri::RuntimeConfigRequest {}).await;
        match asked.map(|answer: cri::RuntimeConfigResponse| answer.linux) {
            Ok(Some(linux)) if linux.cgroup_driver == i32::from(cri::CgroupDriver::Systemd) => {
                Err("the container runtime uses the cgroup driver systemd: configure it for cgroupfs \
                     (containerd: SystemdCgroup = false)"
                    .to_owned())
            }
            Ok(_) => Ok(()),
            // Runtimes without that call are assumed to use their default driver, cgroupfs.
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
