//! Durations of volume operations, by plugin and operation, under upstream's metric names.
//!
//! Source: `k8s.io/kubernetes/pkg/volume/util/metrics.go`.

use std::future::Future;
use std::sync::Arc;

use k8s_openapi::api::core::v1::Volume;
use knarr_apimachinery::clock::Clock;
use knarr_apimachinery::metric_families;
use knarr_apimachinery::metrics::{Kind, Registry};

use super::error::{Error, Result};

const SECONDS: &[f64] = &[0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 15.0, 25.0, 50.0, 120.0, 300.0, 600.0];

metric_families! {
    Took, Kind::Histogram(SECONDS), "storage_operation_duration_seconds",
        ["volume_plugin", "operation_name", "status", "migrated"],
        "[BETA] How long an operation on a volume takes.";
}

/// An operation, with upstream's name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Operation {
    Mount,
    Unmount,
    UnmountDevice,
}

impl Operation {
    fn name(self) -> &'static str {
        match self {
            Self::Mount => "volume_mount",
            Self::Unmount => "volume_unmount",
            Self::UnmountDevice => "unmount_device",
        }
    }
}

/// Measures operations.
pub struct Operations {
    counted: Registry,
    clock: Arc<dyn Clock>,
}

impl Operations {
    pub fn new(clock: Arc<dyn Clock>) -> Self {
        Self { counted: Registry::new(FAMILIES), clock }
    }

    /// Records the duration of the work, unless it ends with [`Error::Waiting`].
    pub async fn measured<T>(
        &self,
        plugin: &str,
        operation: Operation,
        work: impl Future<Output = Result<T>>,
    ) -> Result<T> {
        let begun = self.clock.monotonic();
        let done = work.await;
        let took = self.clock.monotonic().saturating_sub(begun);
        let status = match &done {
            Ok(_) => "success",
            Err(Error::Waiting(_)) => return done,
            Err(_) => "fail-unknown",
        };
        let labels = [plugin, operation.name(), status, "false"];
        self.counted.record(Metric::Took as usize, &labels, took.as_secs_f64());
        done
    }

    pub fn render(&self) -> String {
        self.counted.render()
    }
}

/// Returns upstream's plugin name of a CSI driver.
pub fn csi_plugin(driver: &str) -> String {
    format!("kubernetes.io/csi:{driver}")
}

/// Returns upstream's plugin name of a volume. `None` for a claim: the volume behind it has the name. Drivers that
/// are not registered share one name, as pods may name any driver, and each name is a series of the metric.
pub fn plugin_of(name: &str, volume: &Volume, is_registered: impl Fn(&str) -> bool) -> Option<String> {
    match &volume.csi {
        Some(source) if is_registered(&source.driver) => Some(csi_plugin(&source.driver)),
        Some(_) => Some("kubernetes.io/csi".to_owned()),
        None if volume.persistent_volume_claim.is_some() || volume.ephemeral.is_some() => None,
        None => Some(format!("kubernetes.io/{name}")),
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use jiff::Timestamp;
    use knarr_client::clock::TokioClock;
    use serde_json::json;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn operations_are_counted_by_their_end() {
        let operations = Operations::new(Arc::new(TokioClock::starting_at(Timestamp::UNIX_EPOCH)));
        let takes_200_ms = || tokio::time::sleep(Duration::from_millis(200));
        let mounted = operations.measured("kubernetes.io/secret", Operation::Mount, async {
            takes_200_ms().await;
            Ok(7)
        });
        assert!(matches!(mounted.await, Ok(7)));
        let plugin = csi_plugin("d.example");
        for error in [Error::failed("no"), Error::Waiting("not yet".into())] {
            let failing = async {
                takes_200_ms().await;
                Err::<(), Error>(error)
            };
            assert!(operations.measured(&plugin, Operation::Unmount, failing).await.is_err());
        }
        let text = operations.render();
        let labels = |plugin, operation, status| {
            format!(
                "volume_plugin=\"{plugin}\",operation_name=\"{operation}\",status=\"{status}\",migrated=\"false\""
            )
        };
        let mount = labels("kubernetes.io/secret", "volume_mount", "success");
        let unmount = labels("kubernetes.io/csi:d.example", "volume_unmount", "fail-unknown");
        let family = "storage_operation_duration_seconds";
        for line in [
            format!("{family}_bucket{{{mount},le=\"0.1\"}} 0\n"),
            format!("{family}_bucket{{{mount},le=\"0.25\"}} 1\n"),
            format!("{family}_sum{{{mount}}} 0.2\n"),
            format!("{family}_count{{{unmount}}} 1\n"),
        ] {
            assert!(text.contains(&line), "{line}\n{text}");
        }
        assert_eq!(text.matches("_count").count(), 2, "what waits is not counted: {text}");
    }

    #[test]
    fn plugins_have_upstreams_names() {
        for (volume, name, expected) in [
            (json!({"name": "v", "configMap": {"name": "c"}}), "configmap", Some("kubernetes.io/configmap")),
            (json!({"name": "v", "csi": {"driver": "d"}}), "csi", Some("kubernetes.io/csi:d")),
            (json!({"name": "v", "csi": {"driver": "made-up"}}), "csi", Some("kubernetes.io/csi")),
            (json!({"name": "v", "persistentVolumeClaim": {"claimName": "c"}}), "x", None),
            (json!({"name": "v", "ephemeral": {}}), "x", None),
        ] {
            let volume: Volume = serde_json::from_value(volume).unwrap();
            assert_eq!(plugin_of(name, &volume, |driver| driver == "d").as_deref(), expected);
        }
    }
}
