//! A container runtime whose operations are counted and timed, with upstream's metric names.
//!
//! Source: `k8s.io/kubernetes/pkg/kubelet/kuberuntime/instrumented_services.go`.

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use knarr_apimachinery::clock::Clock;
use knarr_apimachinery::metric_families;
use knarr_apimachinery::metrics::{Kind, Registry};
use tokio::sync::broadcast;

use crate::runtime::{
    AttachRequest, Connection, ContainerConfig, ContainerRuntime, ContainerStats, ContainerStatus, Disk,
    ExecOutput, ExecRequest, FsInfo, Image, Keyring, PodRuntimeStatus, PodSandboxConfig, PodSandboxStatus,
    PulledImage, Readiness, Resources, Result, RuntimeEvent, RuntimeFeatures, RuntimeVersion, SandboxStats,
    Session, UsageDetails,
};

/// The buckets: from 5 ms, each two and a half times the one before.
const SECONDS: &[f64] = &[
    0.005,
    0.0125,
    0.03125,
    0.078125,
    0.1953125,
    0.48828125,
    1.220703125,
    3.0517578125,
    7.62939453125,
    19.073486328125,
    47.6837158203125,
    119.20928955078125,
    298.0232238769531,
    745.0580596923828,
];

metric_families! {
    Operations, Kind::Counter, "kubelet_runtime_operations_total", ["operation_type"],
        "[ALPHA] Operations that the container runtime was asked for.";
    Errors, Kind::Counter, "kubelet_runtime_operations_errors_total", ["operation_type"],
        "[ALPHA] Operations of the container runtime that failed.";
    Duration, Kind::Histogram(SECONDS), "kubelet_runtime_operations_duration_seconds", ["operation_type"],
        "[ALPHA] How long operations of the container runtime take.";
}

pub struct InstrumentedRuntime {
    runtime: Arc<dyn ContainerRuntime>,
    clock: Arc<dyn Clock>,
    counted: Registry,
}

impl InstrumentedRuntime {
    pub fn new(runtime: Arc<dyn ContainerRuntime>, clock: Arc<dyn Clock>) -> Self {
        Self { runtime, clock, counted: Registry::new(FAMILIES) }
    }

    /// Records one call, with its duration and whether it `failed`.
    async fn measured<T>(
        &self,
        operation: &str,
        call: impl Future<Output = T> + Send,
        failed: impl FnOnce(&T) -> bool + Send,
    ) -> T {
        let mut under_way =
            UnderWay { runtime: self, operation, begun: self.clock.monotonic(), failed: true };
        let answer = call.await;
        under_way.failed = failed(&answer);
        answer
    }
}

/// A call that is recorded when it ends. A cancelled call counts as failed, as upstream's calls do when their
/// context ends.
struct UnderWay<'a> {
    runtime: &'a InstrumentedRuntime,
    operation: &'a str,
    begun: Duration,
    failed: bool,
}

impl Drop for UnderWay<'_> {
    fn drop(&mut self) {
        let InstrumentedRuntime { clock, counted, .. } = self.runtime;
        counted.add(Metric::Operations as usize, &[self.operation], 1.0);
        let took = clock.monotonic().saturating_sub(self.begun);
        counted.record(Metric::Duration as usize, &[self.operation], took.as_secs_f64());
        if self.failed {
            counted.add(Metric::Errors as usize, &[self.operation], 1.0);
        }
    }
}

/// The calls that are all measured in the same way: upstream's name of the operation, and the method.
macro_rules! instrumented {
    ($($operation:literal $call:ident($($name:ident: $type:ty),*) -> $answer:ty;)*) => {
        #[async_trait]
        impl ContainerRuntime for InstrumentedRuntime {
            fn version(&self) -> RuntimeVersion {
                self.runtime.version()
            }

            fn features(&self) -> RuntimeFeatures {
                self.runtime.features()
            }

            fn events(&self) -> broadcast::Receiver<RuntimeEvent> {
                self.runtime.events()
            }

            fn metrics(&self) -> String {
                self.counted.render() + &self.runtime.metrics()
            }

            async fn readiness(&self) -> Readiness {
                self.measured("status", self.runtime.readiness(), |answer| answer.error.is_some()).await
            }

            /// As in upstream, a command that exits with another code than 0 is an error.
            async fn exec_sync(&self, id: &str, command: &[String], timeout_seconds: u64) -> Result<ExecOutput> {
                let call = self.runtime.exec_sync(id, command, timeout_seconds);
                let failed = |answer: &Result<ExecOutput>| !matches!(answer, Ok(output) if output.exit_code == 0);
                self.measured("exec_sync", call, failed).await
            }

            $(async fn $call(&self, $($name: $type),*) -> Result<$answer> {
                self.measured($operation, self.runtime.$call($($name),*), Result::is_err).await
            })*
        }
    };
}

instrumented! {
    "run_podsandbox" run_pod_sandbox(config: &PodSandboxConfig) -> String;
    "stop_podsandbox" stop_pod_sandbox(id: &str) -> ();
    "remove_podsandbox" remove_pod_sandbox(id: &str) -> ();
    "list_podsandbox" list_pod_sandboxes() -> Vec<PodSandboxStatus>;
    "create_container" create_container(
        sandbox_id: &str, config: &ContainerConfig, sandbox: &PodSandboxConfig) -> String;
    "start_container" start_container(id: &str) -> ();
    "stop_container" stop_container(id: &str, grace_seconds: u64) -> ();
    "remove_container" remove_container(id: &str) -> ();
    "list_containers" list_containers() -> Vec<ContainerStatus>;
    "container_status" container_status(id: &str) -> ContainerStatus;
    "podsandbox_status" pod_status(uid: &str) -> PodRuntimeStatus;
    "update_container" update_container_resources(id: &str, resources: &Resources) -> ();
    "container_status" container_limits(id: &str) -> Resources;
    "reopen_container_log" reopen_container_log(id: &str) -> ();
    "exec" exec(id: &str, request: &ExecRequest) -> Session;
    "attach" attach(id: &str, request: &AttachRequest) -> Session;
    "port_forward" port_forward(sandbox_id: &str, port: u16) -> Box<dyn Connection>;
    "container_stats" container_stats(id: &str) -> ContainerStats;
    "list_container_stats" list_container_stats(disk: Disk) -> Vec<ContainerStats>;
    "list_podsandbox_stats" list_sandbox_stats() -> Vec<SandboxStats>;
    "list_podsandbox_metrics" usage_details() -> Vec<UsageDetails>;
    "image_status" image_status(name: &str) -> Option<Image>;
    "list_images" list_images() -> Vec<Image>;
    "pull_image" pull_image(name: &str, keyring: &Keyring) -> PulledImage;
    "remove_image" remove_image(name: &str) -> ();
    "image_fs_info" image_fs_info() -> FsInfo;
}

#[cfg(test)]
mod tests {
    use knarr_client::clock::{SystemClock, TokioClock};

    use super::*;
    use crate::pod_workers::fake_runtime::FakeRuntime;
    use crate::server::fake_runtime::Leaked;

    fn line(family: &str, operation: &str, value: u32) -> String {
        format!("kubelet_runtime_operations_{family}{{operation_type=\"{operation}\"}} {value}\n")
    }

    #[tokio::test]
    async fn operations_are_counted_by_upstreams_names() {
        let runtime = InstrumentedRuntime::new(Arc::new(Leaked::new()), Arc::new(SystemClock));
        assert!(runtime.list_container_stats(Disk::LeftOut).await.is_ok());
        assert!(runtime.pull_image("busybox", &Keyring::default()).await.is_err());
        assert_eq!(runtime.readiness().await, Readiness::default());
        let text = runtime.metrics();
        for (operation, fails) in [("list_container_stats", false), ("pull_image", true), ("status", false)] {
            assert!(text.contains(&line("total", operation, 1)), "{text}");
            assert!(text.contains(&line("duration_seconds_count", operation, 1)), "{text}");
            assert_eq!(text.contains(&line("errors_total", operation, 1)), fails, "{text}");
        }
        assert!(text.contains("operation_type=\"pull_image\",le=\"745.0580596923828\"} 1\n"), "{text}");
    }

    #[tokio::test]
    async fn a_status_that_is_not_answered_is_an_error() {
        let fake = FakeRuntime::new(Arc::new(SystemClock));
        let runtime = InstrumentedRuntime::new(fake.clone(), Arc::new(SystemClock));
        runtime.readiness().await;
        assert!(!runtime.metrics().contains("errors_total{"), "{}", runtime.metrics());
        fake.lock().status_fault = Some("no answer".into());
        runtime.readiness().await;
        let text = runtime.metrics();
        assert!(text.contains(&line("total", "status", 2)), "{text}");
        assert!(text.contains(&line("errors_total", "status", 1)), "{text}");
    }

    /// As in upstream, where calls end with an error when their context does.
    #[tokio::test(start_paused = true)]
    async fn a_call_that_is_cut_off_is_an_error() {
        let clock = Arc::new(TokioClock::starting_at(jiff::Timestamp::UNIX_EPOCH));
        let fake = FakeRuntime::new(clock.clone());
        let runtime = InstrumentedRuntime::new(fake.clone(), clock);
        let config = ContainerConfig { name: "c".into(), ..ContainerConfig::default() };
        let id = runtime.create_container("s", &config, &PodSandboxConfig::default()).await.unwrap();
        runtime.start_container(&id).await.unwrap();
        fake.lock().stubborn.insert("c".into());
        let second = Duration::from_secs(1);
        assert!(tokio::time::timeout(second, runtime.stop_container(&id, 30)).await.is_err());
        let text = runtime.metrics();
        assert!(text.contains(&line("total", "stop_container", 1)), "{text}");
        assert!(text.contains(&line("duration_seconds_count", "stop_container", 1)), "{text}");
        assert!(text.contains("operation_type=\"stop_container\",le=\"1.220703125\"} 1\n"), "{text}");
        assert!(text.contains(&line("errors_total", "stop_container", 1)), "{text}");
        assert!(!text.contains("errors_total{operation_type=\"start_container\"}"), "{text}");
    }

    #[tokio::test]
    async fn a_command_that_ends_badly_is_an_error() {
        let runtime = InstrumentedRuntime::new(Arc::new(Leaked::new()), Arc::new(SystemClock));
        for code in ["0", "1"] {
            assert!(runtime.exec_sync("c1", &["exit".to_owned(), code.to_owned()], 0).await.is_ok());
        }
        assert!(runtime.exec_sync("c1", &["nothing".to_owned()], 0).await.is_err());
        let text = runtime.metrics();
        assert!(text.contains(&line("total", "exec_sync", 3)), "{text}");
        assert!(text.contains(&line("errors_total", "exec_sync", 2)), "{text}");
    }
}
