//! The audit log: records who did what and when, as the audit policy demands.
//!
//! Any code that handles a request may add an annotation with `knarr_wire::annotations::annotate`; the pipeline keeps the request's
//! [`Trail`].

mod batch;
mod event;
mod legacy;
mod log;
pub mod options;
mod policy;
mod trail;
mod truncate;
mod webhook;

use std::sync::Arc;

use knarr_apimachinery::clock::Clock;
use knarr_client::Supervisor;
use serde_json::Value;
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;

use batch::Bucket;
use knarr_reload::Reloaded;
pub use knarr_wire::annotations::{Annotations, collect};
use knarr_wire::keypair::ConfigError;
use knarr_wire::metrics::{Metric, Metrics};
use log::Log;
use options::{Audit, Batch, Truncate};
use policy::Policy;
pub use trail::{Source, Trail};
use webhook::Webhook;

/// The audit policy and the backends.
pub struct Auditor {
    policy: Option<Reloaded<Policy>>,
    log: Option<ToLog>,
    webhook: Option<ToWebhook>,
    metrics: Arc<Metrics>,
    clock: Arc<dyn Clock>,
}

struct ToLog {
    log: Arc<Log>,
    /// The queue of the log in batching mode; `None` in blocking mode.
    queue: Option<mpsc::Sender<Value>>,
    strict: bool,
    truncate: Option<Truncate>,
}

struct ToWebhook {
    webhook: Arc<Webhook>,
    /// The queue of the webhook in batching mode; `None` in blocking mode.
    queue: Option<mpsc::Sender<Value>>,
    strict: bool,
    truncate: Option<Truncate>,
}

impl Auditor {
    pub fn new(
        options: &Audit,
        metrics: Arc<Metrics>,
        clock: Arc<dyn Clock>,
        supervisor: &Supervisor,
        stop: CancellationToken,
    ) -> Result<Self, ConfigError> {
        let unusable = |what: &'static str| move |why: String| ConfigError::Unusable { what, why };
        let policy = options.policy_file.iter().map(|path| {
            Reloaded::open(vec![path.clone()], |texts| {
                Policy::parse(texts.first().map(Vec::as_slice).unwrap_or_default())
            })
        });
        let policy = policy.into_iter().next().transpose().map_err(unusable("the audit policy"))?;
        let webhook = options.webhook.as_ref().filter(|_| policy.is_some()).map(|w| {
            let webhook = Webhook::new(w, Arc::clone(&metrics), Arc::clone(&clock), stop.clone())
                .map_err(unusable("the audit webhook"))?;
            let webhook = Arc::new(webhook);
            let queue = w.batch.clone().map(|batch| Arc::clone(&webhook).in_batches(batch, supervisor));
            Ok(ToWebhook { webhook, queue, strict: w.strict, truncate: w.truncate })
        });
        let webhook = webhook.transpose()?;
        let log = options.log.as_ref().map(|o| {
            let log = Arc::new(Log::new(o));
            let queue = o.batch.clone().filter(|_| policy.is_some()).map(|batch| {
                let (sender, events) = mpsc::channel(batch.buffer.max(1));
                let (log, metrics, clock) = (Arc::clone(&log), Arc::clone(&metrics), Arc::clone(&clock));
                let events = Arc::new(tokio::sync::Mutex::new(events));
                let writing =
                    supervisor.run_until_done("audit-log", stop, move |stop| {
                        let (log, batch, events) = (Arc::clone(&log), batch.clone(), Arc::clone(&events));
                        let (metrics, clock) = (Arc::clone(&metrics), Arc::clone(&clock));
                        async move {
                            write_batches(log, batch, &mut *events.lock().await, metrics, clock, stop).await
                        }
                    });
                tokio::spawn(writing);
                sender
            });
            ToLog { log, queue, strict: o.strict, truncate: o.truncate }
        });
        Ok(Self { policy, log, webhook, metrics, clock })
    }

    /// Sends an event to the backends. Returns `false` if a strict backend failed to take it.
    async fn emit(&self, event: Value) -> bool {
        self.metrics.increment(Metric::AuditEvents, &[]);
        match (&self.log, &self.webhook) {
            (Some(log), Some(webhook)) => {
                let logged = self.to_log(log, event.clone());
                self.to_webhook(webhook, event).await && logged
            }
            (Some(log), None) => self.to_log(log, event),
            (None, Some(webhook)) => self.to_webhook(webhook, event).await,
            (None, None) => true,
        }
    }

    fn to_log(&self, to: &ToLog, event: Value) -> bool {
        let Some(event) = self.cut(event, to.truncate) else { return true };
        if let Some(queue) = &to.queue {
            return self.enqueue(queue, event);
        }
        let written = to.log.write(std::slice::from_ref(&event), self.clock.now());
        if let Err(error) = &written {
            self.metrics.increment(Metric::AuditErrors, &["log"]);
            tracing::error!(%error, "cannot write the audit log");
        }
        written.is_ok() || !to.strict
    }

    async fn to_webhook(&self, to: &ToWebhook, event: Value) -> bool {
        let Some(event) = self.cut(event, to.truncate) else { return true };
        match &to.queue {
            Some(queue) => self.enqueue(queue, event),
            None => to.webhook.send(vec![event]).await || !to.strict,
        }
    }

    fn cut(&self, event: Value, limits: Option<Truncate>) -> Option<Value> {
        let cut = truncate::event(event, limits);
        if cut.is_none() {
            self.metrics.increment(Metric::AuditErrors, &["truncate"]);
            tracing::error!("an audit event is too large even without its objects");
        }
        cut
    }

    /// Adds the event to a queue without waiting; drops and counts it if the queue is full.
    fn enqueue(&self, queue: &mpsc::Sender<Value>, event: Value) -> bool {
        if queue.try_send(event).is_err() {
            self.metrics.increment(Metric::AuditErrors, &["buffered"]);
        }
        true
    }
}

/// Writes queued events to the log in batches, up to the last event.
async fn write_batches(
    log: Arc<Log>,
    options: Batch,
    events: &mut mpsc::Receiver<Value>,
    metrics: Arc<Metrics>,
    clock: Arc<dyn Clock>,
    stop: CancellationToken,
) {
    let mut bucket = options.throttle.map(|throttle| Bucket::new(throttle, clock.monotonic()));
    while let Some(batch) = batch::next(events, &options, &*clock, &stop).await {
        if let Some(bucket) = &mut bucket {
            bucket.wait(&*clock, &stop).await;
        }
        let (log, now, count) = (Arc::clone(&log), clock.now(), batch.len());
        let written = tokio::task::spawn_blocking(move || log.write(&batch, now)).await;
        if !matches!(written, Ok(Ok(()))) {
            metrics.add(Metric::AuditErrors, &["log"], count as f64);
            tracing::error!(count, "cannot write the audit log");
        }
    }
}
