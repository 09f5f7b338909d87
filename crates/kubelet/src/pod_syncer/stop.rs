//! Stops single containers of a pod that continues to run.

use std::sync::Arc;

use jiff::Timestamp;
use k8s_openapi::api::core::v1::Pod;

use super::{PodMemory, PodSyncer};
use crate::compute_actions::{KillReason, PodActions};
use crate::runtime::ContainerState;
use crate::termination::Kill;

impl PodSyncer {
    /// Stops the containers that the actions name, one after another; returns when the next pass is due. A
    /// container that is replaced for a resize is recorded right before it is asked to stop. Two kinds are left
    /// alone, and the actions start no replacement: containers that have ended of themselves by now, and
    /// containers that are stopped for a resize alone and cannot be recorded.
    pub(super) async fn stop_containers(
        &self,
        pod: &Arc<Pod>,
        memory: &mut PodMemory,
        pod_ip: &str,
        actions: &mut PodActions,
    ) -> Result<Option<Timestamp>, String> {
        let mut look_again = None;
        for kill in std::mem::take(&mut actions.containers_to_kill) {
            if kill.replaced {
                if !self.still_runs(&kill.id).await? {
                    actions.leave_out(pod, &kill.name);
                    look_again = Some(self.clock.now());
                    continue;
                }
                if let Err(error) = self.record_replacement(pod, &kill.id).await {
                    self.cannot_resize(pod, memory, &error);
                    if kill.reason == KillReason::Resize {
                        actions.leave_out(pod, &kill.name);
                        continue;
                    }
                }
            }
            let kill = Kill {
                id: &kill.id,
                name: &kill.name,
                message: &kill.message,
                reason: kill.reason,
                grace_seconds: None,
            };
            self.terminator.kill_container(pod, pod_ip, &kill).await.map_err(|e| e.to_string())?;
        }
        Ok(look_again)
    }

    async fn still_runs(&self, id: &str) -> Result<bool, String> {
        match self.runtime.container_status(id).await {
            Ok(status) => Ok(status.state == ContainerState::Running),
            Err(error) if error.is_not_found() => Ok(false),
            Err(error) => Err(error.to_string()),
        }
    }
}
