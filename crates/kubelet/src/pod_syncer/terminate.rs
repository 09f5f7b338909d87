//! The passes of a pod that is to stop, and of one that has stopped.

use std::pin::pin;
use std::sync::Arc;

use k8s_openapi::api::core::v1::Pod;
use knarr_api::kind::Kind;
use tokio::sync::Notify;

use super::{PodMemory, PodSyncer, blocking, lock};
use crate::runtime::{ContainerState, PodRuntimeStatus};

impl PodSyncer {
    /// Stops containers and sandbox; returns when nothing runs any more. May be dropped and begun anew with less
    /// time. The status follows each notification of `news` meanwhile: a pod that stops answering its readiness probe
    /// gets no more traffic.
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

    /// Counts what the pod used as free. Nothing of it runs; once the API shows that, the scheduler may send another pod
    /// to it.
    fn free(&self, pod: &Pod) {
        lock(&self.allocations).end(pod.uid());
        lock(&self.taken).remove(pod.uid());
        self.weigh();
        self.decide_resizes();
    }

    /// Stops all that runs of the pod, sandbox included.
    pub(super) async fn kill_pod(
        &self,
        pod: &Pod,
        pod_ip: &str,
        runtime: &PodRuntimeStatus,
        grace_seconds: Option<i64>,
    ) -> Result<(), String> {
        let told = |error: crate::runtime::RuntimeError| {
            self.events.warning(pod, "FailedKillPod", format!("error killing pod: {error}"));
            error.to_string()
        };
        self.terminator.kill_containers(pod, pod_ip, runtime, grace_seconds).await.map_err(told)?;
        // One whose processes are gone may still hold addresses and ports.
        for sandbox in &runtime.sandboxes {
            self.runtime.stop_pod_sandbox(&sandbox.id).await.map_err(told)?;
        }
        Ok(())
    }

    /// Gives back what the pod held; its records stay until the API has removed it.
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
