//! The webhook backend: events in batches, to a server named by a kubeconfig.

use std::sync::Arc;
use std::time::Duration;

use knarr_apimachinery::clock::Clock;
use serde_json::{Value, json};
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;

use super::batch::{self, Bucket};
use super::options::WebhookOptions;
use crate::metrics::{Metric, Metrics};
use crate::outbound::Outbound;

const TIMEOUT: Duration = Duration::from_secs(30);
/// A batch that was refused this often is lost.
const TRIES: u32 = 5;

/// Starts to send; events go into the answered channel.
pub fn start(
    options: &WebhookOptions,
    metrics: Arc<Metrics>,
    clock: Arc<dyn Clock>,
    stop: CancellationToken,
) -> Result<mpsc::Sender<Value>, String> {
    let outbound = Outbound::from_kubeconfig(&options.config_file, TIMEOUT).map_err(|e| e.to_string())?;
    let (sender, receiver) = mpsc::channel(options.batch.buffer.max(1));
    tokio::spawn(run(outbound, options.clone(), receiver, metrics, clock, stop));
    Ok(sender)
}

async fn run(
    outbound: Outbound,
    options: WebhookOptions,
    mut events: mpsc::Receiver<Value>,
    metrics: Arc<Metrics>,
    clock: Arc<dyn Clock>,
    stop: CancellationToken,
) {
    let mut bucket = options.batch.throttle.map(|throttle| Bucket::new(throttle, clock.monotonic()));
    while let Some(batch) = batch::next(&mut events, &options.batch, &*clock, &stop).await {
        if let Some(bucket) = &mut bucket {
            bucket.wait(&*clock, &stop).await;
        }
        let count = batch.len();
        if let Err(error) = send(&outbound, batch, &options, &*clock, &stop).await {
            metrics.add(Metric::AuditErrors, &["webhook"], count as f64);
            tracing::error!(error, count, "audit events were lost");
        }
    }
}

async fn send(
    outbound: &Outbound,
    batch: Vec<Value>,
    options: &WebhookOptions,
    clock: &dyn Clock,
    stop: &CancellationToken,
) -> Result<(), String> {
    let list = json!({"kind": "EventList", "apiVersion": "audit.k8s.io/v1", "metadata": {}, "items": batch});
    let body = bytes::Bytes::from(list.to_string());
    let mut backoff = options.initial_backoff;
    let mut last = String::new();
    for _ in 0..TRIES {
        match outbound.post(body.clone(), clock).await {
            Ok(reply) if (200..300).contains(&reply.code) => return Ok(()),
            Ok(reply) if reply.code != 429 && reply.code < 500 => {
                return Err(format!("the webhook answered {}", reply.code));
            }
            Ok(reply) => last = format!("the webhook answered {}", reply.code),
            Err(error) => last = error.to_string(),
        }
        tokio::select! {
            () = clock.sleep(backoff) => backoff += backoff / 2,
            () = stop.cancelled() => return Err(last),
        }
    }
    Err(last)
}
