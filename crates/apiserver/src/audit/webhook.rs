//! The webhook backend: sends batches of events to a server that a kubeconfig describes.

use std::sync::Arc;
use std::time::Duration;

use knarr_apimachinery::clock::Clock;
use knarr_client::Supervisor;
use serde_json::{Value, json};
use tokio::sync::{Mutex, mpsc};
use tokio_util::sync::CancellationToken;

use super::batch::{self, Bucket};
use super::options::{Batch, WebhookOptions};
use super::truncate;
use knarr_outgoing::endpoint::Outbound;
use knarr_wire::metrics::{Metric, Metrics};

const TIMEOUT: Duration = Duration::from_secs(30);
/// How many times a batch is sent before it is dropped.
const TRIES: u32 = 5;

/// The server that receives the events.
pub struct Webhook {
    outbound: Outbound,
    options: WebhookOptions,
    metrics: Arc<Metrics>,
    clock: Arc<dyn Clock>,
    stop: CancellationToken,
}

impl Webhook {
    pub fn new(
        options: &WebhookOptions,
        metrics: Arc<Metrics>,
        clock: Arc<dyn Clock>,
        stop: CancellationToken,
    ) -> Result<Self, String> {
        let outbound = Outbound::from_kubeconfig(&options.config_file, TIMEOUT).map_err(|e| e.to_string())?;
        Ok(Self { outbound, options: options.clone(), metrics, clock, stop })
    }

    /// Starts a task that sends the events of the returned channel in batches. If the task fails, its current batch
    /// is lost.
    pub fn in_batches(self: Arc<Self>, batch: Batch, supervisor: &Supervisor) -> mpsc::Sender<Value> {
        let (sender, receiver) = mpsc::channel(batch.buffer.max(1));
        let (stop, receiver) = (self.stop.clone(), Arc::new(Mutex::new(receiver)));
        tokio::spawn(supervisor.run_until_done("audit-webhook", stop, move |_| {
            let (webhook, batch, events) = (Arc::clone(&self), batch.clone(), Arc::clone(&receiver));
            async move { webhook.run(batch, &mut *events.lock().await).await }
        }));
        sender
    }

    async fn run(&self, options: Batch, events: &mut mpsc::Receiver<Value>) {
        let (clock, stop) = (&*self.clock, &self.stop);
        let mut bucket = options.throttle.map(|throttle| Bucket::new(throttle, clock.monotonic()));
        while let Some(batch) = batch::next(events, &options, clock, stop).await {
            for part in truncate::batches(batch, self.options.truncate) {
                if let Some(bucket) = &mut bucket {
                    bucket.wait(clock, stop).await;
                }
                self.send(part).await;
            }
        }
    }

    /// Sends events, with retries. Returns whether they have been delivered; undelivered events are dropped and
    /// counted.
    pub async fn send(&self, events: Vec<Value>) -> bool {
        let count = events.len();
        let sent = post(&self.outbound, events, &self.options, &*self.clock, &self.stop).await;
        if let Err(error) = &sent {
            self.metrics.add(Metric::AuditErrors, &["webhook"], count as f64);
            tracing::error!(error, count, "audit events were lost");
        }
        sent.is_ok()
    }
}

async fn post(
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
    for attempt in 1..=TRIES {
        match outbound.post(body.clone(), clock).await {
            Ok(reply) if (200..300).contains(&reply.code) => return Ok(()),
            Ok(reply) => last = format!("the webhook answered {}", reply.code),
            Err(error) => last = error.to_string(),
        }
        if attempt == TRIES {
            break;
        }
        tokio::select! {
            () = clock.sleep(backoff) => backoff += backoff / 2,
            () = stop.cancelled() => return Err(last),
        }
    }
    Err(last)
}
