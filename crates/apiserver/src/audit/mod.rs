//! The audit log: who did what when, as the policy asks for it.
//!
//! Anything on a request's way may leave a note with [`annotate`]; the pipeline keeps the request's [`Trail`].

mod annotations;
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
use log::Log;
use options::Audit;
use policy::Policy;
pub use trail::{Source, Trail};

/// The policy and where events go.
pub struct Auditor {
    policy: Option<Reloaded<Policy>>,
    log: Option<Log>,
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
            webhook::start(w, Arc::clone(&metrics), Arc::clone(&clock), stop)
                .map_err(unusable("the audit webhook"))
        });
        Ok(Self {
            policy,
            log: options.log.as_ref().map(Log::new),
            strict: options.log.as_ref().is_some_and(|l| l.strict),
            webhook: webhook.transpose()?,
            metrics,
            clock,
        })
    }

    /// Hands an event to the backends; whether the log has it.
    fn emit(&self, event: Value) -> bool {
        self.metrics.increment(Metric::AuditEvents, &[]);
        let mut written = true;
        if let Some(log) = &self.log
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
