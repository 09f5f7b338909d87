//! The passes of a pod that is being stopped, and of one that has stopped.

use std::pin::pin;
use std::sync::Arc;

use k8s_openapi::api::core::v1::Pod;
use knarr_api::kind::Kind;
use tokio::sync::Notify;

use super::{PodMemory, PodSyncer, blocking, lock};
use crate::runtime::{ContainerState, PodRuntimeStatus};

impl PodSyncer {
    /// Stops the pod's containers and sandbox; returns when nothing runs any more. The future may be dropped, and
    /// the pass begun anew with a shorter grace period. Meanwhile each notification of `news` updates the status:
    /// a pod that fails its readiness probe gets no more traffic.
    pub async fn sync_terminating_pod(
        &self,
        pod: &Arc<Pod>,
        memory: &mut PodMemory,
        grace_seconds: i64,
        news: &Notify,
    ) -> Result<(), String> {
        lock(&self.allocations).withdraw(pod.uid());
        let runtime = self.runtime.pod_status(pod.uid()).await.map_err(|e| e.to_string())?;
        self.publish(pod, memory, &runtime, false, true).await;
        self.probes.stop_liveness_and_startup(pod.uid());
        let pod_ip = self.pod_ips(pod, &runtime).into_iter().next().unwrap_or_default();
        {
            let mut killing = pin!(self.kill_pod(pod, &pod_ip, &runtime, Some(grace_seconds)));
            loop {
                tokio::select! {
                    killed = &mut killing => break killed?,
                    () = news.notified() => {}
                }
                let now = self.runtime.pod_status(pod.uid()).await.map_err(|e| e.to_string())?;
                self.publish(pod, memory, &now, false, true).await;
            }
        }
        self.probes.remove_pod(pod.uid());
        let runtime = self.runtime.pod_status(pod.uid()).await.map_err(|e| e.to_string())?;
        let running: Vec<&str> = runtime
            .containers
            .iter()
            .filter(|c| c.state == ContainerState::Running)
            .map(|c| c.id.as_str())
            .collect();
        if !running.is_empty() {
            return Err(format!("containers still run although they were stopped: {running:?}"));
        }
        self.free(pod);
        self.publish(pod, memory, &runtime, true, false).await;
        Ok(())
    }

    /// Releases the resources that the pod was allocated. No container of it runs any more; once the API shows
    /// that, the scheduler may place another pod on them.
    fn free(&self, pod: &Pod) {
        lock(&self.allocations).end(pod.uid());
        lock(&self.taken).remove(pod.uid());
        self.weigh();
        self.decide_resizes();
    }

    /// Stops the pod's containers and sandboxes.
    pub(super) async fn kill_pod(
        &self,
        pod: &Pod,
        pod_ip: &str,
        runtime: &PodRuntimeStatus,
        grace_seconds: Option<i64>,
    ) -> Result<(), String> {
        let warn = |error: crate::runtime::RuntimeError| {
            self.events.warning(pod, "FailedKillPod", format!("error killing pod: {error}"));
            error.to_string()
        };
        self.terminator.kill_containers(pod, pod_ip, runtime, grace_seconds).await.map_err(warn)?;
        // A sandbox without processes may still hold addresses and ports.
        for sandbox in &runtime.sandboxes {
            self.runtime.stop_pod_sandbox(&sandbox.id).await.map_err(warn)?;
        }
        Ok(())
    }

    /// Releases the pod's resources, volumes and cgroup; its containers, logs and folder stay until the API has
    /// removed it.
    pub async fn sync_terminated_pod(&self, pod: &Arc<Pod>, memory: &mut PodMemory) -> Result<(), String> {
        self.free(pod);
        let runtime = self.runtime.pod_status(pod.uid()).await.map_err(|e| e.to_string())?;
        self.publish(pod, memory, &runtime, true, false).await;
        self.volumes.unmount(pod.uid()).await.map_err(|e| e.message)?;
        let (cgroups, uid) = (self.cgroups.clone(), pod.uid().to_owned());
        blocking(move || cgroups.remove(&uid)).await??;
        self.status.terminate(pod);
        Ok(())
    }
}
