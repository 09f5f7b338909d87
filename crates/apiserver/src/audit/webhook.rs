//! The webhook backend: events in batches, to a server named by a kubeconfig.

use std::sync::Arc;
use std::time::Duration;

use knarr_apimachinery::clock::Clock;
use serde_json::{Value, json};
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;

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
    let (sender, receiver) = mpsc::channel(options.buffer.max(1));
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
    loop {
        let first = tokio::select! {
            first = events.recv() => first,
            () = stop.cancelled() => events.try_recv().ok(),
        };
        let Some(first) = first else { return };
        let batch = fill(first, &mut events, &options, &*clock, &stop).await;
        let count = batch.len();
        if let Err(error) = send(&outbound, batch, &options, &*clock, &stop).await {
            metrics.add(Metric::AuditErrors, &["webhook"], count as f64);
            tracing::error!(error, count, "audit events were lost");
        }
    }
}

/// Waits for more events until the batch is full or old.
async fn fill(
    first: Value,
    events: &mut mpsc::Receiver<Value>,
    options: &WebhookOptions,
    clock: &dyn Clock,
    stop: &CancellationToken,
) -> Vec<Value> {
    let mut batch = vec![first];
    let mut old = clock.sleep(options.batch_wait);
    while batch.len() < options.batch_size {
        tokio::select! {
            biased;
            event = events.recv() => match event {
                Some(event) => batch.push(event),
                None => break,
            },
            () = &mut old => break,
            () = stop.cancelled() => break,
        }
    }
    batch
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
