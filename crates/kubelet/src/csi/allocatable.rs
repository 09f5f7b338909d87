//! Reads the volume limit of drivers again, as often as their CSIDriver objects ask for.
//!
//! Source: KEP-4876.

use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::api::storage::v1::CSIDriver;
use knarr_api::kind::Kind;
use knarr_client::work_queue::WorkQueue;
use knarr_client::{Informer, Lister};
use tokio::sync::broadcast::error::RecvError;
use tokio_util::sync::CancellationToken;

use super::{Drivers, NodeInfo};

const NAME: &str = "csi-allocatable";

/// Returns the interval of a driver; `None` for never.
fn period(driver: Option<&CSIDriver>) -> Option<Duration> {
    let seconds = driver?.spec.node_allocatable_update_period_seconds?;
    u64::try_from(seconds).ok().filter(|seconds| *seconds > 0).map(Duration::from_secs)
}

/// Runs until `stop` is cancelled.
pub async fn keep(
    drivers: Arc<Drivers>,
    node_info: Arc<NodeInfo>,
    objects: Informer<CSIDriver>,
    stop: CancellationToken,
) {
    let queue: Arc<WorkQueue<String>> = WorkQueue::new(Arc::clone(node_info.clock()));
    let lister = objects.lister();
    let on_object = Arc::clone(&queue);
    objects.add_handler(move |event| on_object.add(event.object().name().to_owned()));
    let mut registered = drivers.registrations();
    let on_registration = Arc::clone(&queue);
    let listen = async {
        loop {
            match registered.recv().await {
                Ok(driver) => on_registration.add(driver),
                Err(RecvError::Lagged(_)) => {}
                Err(RecvError::Closed) => return,
            }
        }
    };
    let again = Arc::clone(&queue);
    let reconcile = move |driver: String| {
        let (drivers, node_info) = (Arc::clone(&drivers), Arc::clone(&node_info));
        let (lister, queue) = (lister.clone(), Arc::clone(&again));
        async move { ask(&drivers, &node_info, &lister, &queue, driver).await }
    };
    let until = stop.clone();
    tokio::select! {
        () = stop.cancelled() => {}
        () = listen => {}
        () = queue.run(NAME, 1, until, reconcile) => {}
    }
}

async fn ask(
    drivers: &Drivers,
    node_info: &NodeInfo,
    lister: &Lister<CSIDriver>,
    queue: &WorkQueue<String>,
    driver: String,
) -> Result<(), String> {
    let Some(period) = period(lister.get("", &driver).as_deref()) else { return Ok(()) };
    // A driver that is not registered is asked when it registers.
    let Ok(client) = drivers.client(&driver) else { return Ok(()) };
    let info = client.info().await.map_err(|e| e.to_string())?;
    if drivers.get(&driver).is_some() {
        node_info.install(&driver, info.into()).await?;
    }
    queue.add_after(driver, period);
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn only_drivers_that_say_so_are_asked() {
        let driver = |seconds: serde_json::Value| -> CSIDriver {
            let spec = json!({"nodeAllocatableUpdatePeriodSeconds": seconds});
            serde_json::from_value(json!({"metadata": {"name": "d"}, "spec": spec})).unwrap()
        };
        assert_eq!(period(None), None);
        assert_eq!(period(Some(&driver(json!(null)))), None);
        assert_eq!(period(Some(&driver(json!(0)))), None);
        assert_eq!(period(Some(&driver(json!(60)))), Some(Duration::from_secs(60)));
    }
}
