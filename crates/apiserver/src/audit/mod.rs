//! The audit log: who did what when, as the policy asks for it.
//!
//! Anything on a request's way may leave a note with [`annotate`]; the pipeline keeps the request's [`Trail`].

mod annotations;
mod batch;
mod event;
mod log;
pub mod options;
mod policy;
mod trail;
mod webhook;

use std::sync::Arc;

use knarr_apimachinery::clock::Clock;
use serde_json::Value;
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;

use crate::config::ConfigError;
use crate::metrics::{Metric, Metrics};
use crate::reload::Reloaded;
pub use annotations::{Annotations, annotate, collect};
use batch::Bucket;
use log::Log;
use options::{Audit, Batch};
use policy::Policy;
pub use trail::{Source, Trail};

/// The policy and where events go.
pub struct Auditor {
    policy: Option<Reloaded<Policy>>,
    log: Option<Arc<Log>>,
    /// To the log, where requests do not wait for it.
    queue: Option<mpsc::Sender<Value>>,
    strict: bool,
    webhook: Option<mpsc::Sender<Value>>,
    metrics: Arc<Metrics>,
    clock: Arc<dyn Clock>,
}

impl Auditor {
    pub fn new(
        options: &Audit,
        metrics: Arc<Metrics>,
        clock: Arc<dyn Clock>,
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
            webhook::start(w, Arc::clone(&metrics), Arc::clone(&clock), stop.clone())
                .map_err(unusable("the audit webhook"))
        });
        let webhook = webhook.transpose()?;
        let log = options.log.as_ref().map(|log| Arc::new(Log::new(log)));
        let batch = options.log.as_ref().and_then(|log| log.batch.clone()).filter(|_| policy.is_some());
        let queue = log.as_ref().zip(batch).map(|(log, batch)| {
            let (sender, events) = mpsc::channel(batch.buffer.max(1));
            let (log, metrics, clock) = (Arc::clone(log), Arc::clone(&metrics), Arc::clone(&clock));
            tokio::spawn(write_batches(log, batch, events, metrics, clock, stop));
            sender
        });
        Ok(Self {
            policy,
            log,
            queue,
            strict: options.log.as_ref().is_some_and(|l| l.strict),
            webhook,
            metrics,
            clock,
        })
    }

    /// Hands an event to the backends; whether the log has it.
    fn emit(&self, event: Value) -> bool {
        self.metrics.increment(Metric::AuditEvents, &[]);
        let mut written = true;
        if let Some(queue) = &self.queue {
            if queue.try_send(event.clone()).is_err() {
                self.metrics.increment(Metric::AuditErrors, &["buffered"]);
            }
        } else if let Some(log) = &self.log
            && let Err(error) = log.write(std::slice::from_ref(&event), self.clock.now())
        {
            self.metrics.increment(Metric::AuditErrors, &["log"]);
            tracing::error!(%error, "cannot write the audit log");
            written = false;
        }
        if let Some(webhook) = &self.webhook
            && webhook.try_send(event).is_err()
        {
            self.metrics.increment(Metric::AuditErrors, &["buffered"]);
        }
        written
    }
}

/// Writes what waits for the log, to the last event.
async fn write_batches(
    log: Arc<Log>,
    options: Batch,
    mut events: mpsc::Receiver<Value>,
    metrics: Arc<Metrics>,
    clock: Arc<dyn Clock>,
    stop: CancellationToken,
) {
    let mut bucket = options.throttle.map(|throttle| Bucket::new(throttle, clock.monotonic()));
    while let Some(batch) = batch::next(&mut events, &options, &*clock, &stop).await {
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
