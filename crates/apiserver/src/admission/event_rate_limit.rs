//! EventRateLimit: nobody floods the server with Events.

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use knarr_apimachinery::status::StatusError;
use serde_json::Value;

use super::{Attributes, Operation, Plugin};
use crate::server::Inner;

pub struct EventRateLimit;

/// What has a budget of its own.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum LimitType {
    Server,
    Namespace,
    User,
    SourceAndObject,
}

/// One limit, as its configuration has it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EventLimit {
    pub type_: LimitType,
    /// Events a second, in the long run.
    pub qps: u32,
    /// Events at once.
    pub burst: u32,
    /// How many budgets are remembered.
    pub cache_size: usize,
}

const DEFAULT_CACHE: usize = 4096;

/// A budget: what was left, when.
#[derive(Debug, Clone, Copy)]
struct Bucket {
    left: f64,
    at: Duration,
}

impl Bucket {
    /// Takes one if there is one.
    fn take(&mut self, limit: &EventLimit, now: Duration) -> bool {
        let more = now.saturating_sub(self.at).as_secs_f64() * f64::from(limit.qps);
        self.left = (self.left + more).min(f64::from(limit.burst));
        self.at = now;
        let granted = self.left >= 1.0;
        if granted {
            self.left -= 1.0;
        }
        granted
    }
}

/// The budgets of a server.
#[derive(Default)]
pub struct Buckets(Mutex<HashMap<(LimitType, String), Bucket>>);

impl Buckets {
    /// What refuses an event with these keys; all limits are charged, as upstream charges them.
    fn charge(&self, limits: &[EventLimit], key: impl Fn(LimitType) -> String, now: Duration) -> Vec<String> {
        let mut buckets = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let mut refused = Vec::new();
        for limit in limits {
            let name = key(limit.type_);
            let most = if limit.cache_size == 0 { DEFAULT_CACHE } else { limit.cache_size };
            if buckets.keys().filter(|(t, _)| *t == limit.type_).count() >= most
                && !buckets.contains_key(&(limit.type_, name.clone()))
            {
                let oldest = buckets.iter().filter(|((t, _), _)| *t == limit.type_).min_by_key(|(_, b)| b.at);
                if let Some(oldest) = oldest.map(|(k, _)| k.clone()) {
                    buckets.remove(&oldest);
                }
            }
            let full = Bucket { left: f64::from(limit.burst), at: now };
            let bucket = buckets.entry((limit.type_, name.clone())).or_insert(full);
            if !bucket.take(limit, now) {
                refused.push(format!("limit reached on type {:?} for key {name}", limit.type_));
            }
        }
        refused
    }
}

#[async_trait]
impl Plugin for EventRateLimit {
    fn name(&self) -> &'static str {
        "EventRateLimit"
    }

    fn handles(&self, operation: Operation) -> bool {
        matches!(operation, Operation::Create | Operation::Update)
    }

    async fn validate(&self, attributes: &Attributes<'_>, server: &Inner) -> Result<(), StatusError> {
        if attributes.dry_run || attributes.resource.kind != "Event" {
            return Ok(());
        }
        let key = |type_| match type_ {
            LimitType::Server => String::new(),
            LimitType::Namespace => attributes.namespace.to_owned(),
            LimitType::User => attributes.user.name.clone(),
            LimitType::SourceAndObject => source_and_object(&attributes.object),
        };
        let now = server.clock.monotonic();
        let refused = server.admission.events.charge(&server.config.admission.event_limits, key, now);
        match super::limit_ranger::aggregated(refused) {
            Some(why) => Err(StatusError::too_many_requests(why, 0)),
            None => Ok(()),
        }
    }
}

fn source_and_object(event: &Value) -> String {
    let text = |pointer: &str| event.pointer(pointer).and_then(Value::as_str).unwrap_or("");
    let object = if event["regarding"].is_object() { "/regarding" } else { "/involvedObject" };
    let parts = ["kind", "namespace", "name", "uid", "apiVersion"].map(|f| text(&format!("{object}/{f}")));
    [text("/source/component"), text("/source/host")].into_iter().chain(parts).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn budgets() {
        let limit = |type_, cache_size| EventLimit { type_, qps: 1, burst: 2, cache_size };
        let buckets = Buckets::default();
        let limits = [limit(LimitType::Namespace, 1)];
        let at = |seconds, namespace: &str| {
            buckets.charge(&limits, |_| namespace.to_owned(), Duration::from_secs(seconds)).len()
        };
        assert_eq!([at(0, "a"), at(0, "a"), at(0, "a")], [0, 0, 1]);
        assert_eq!([at(1, "a"), at(1, "a")], [0, 1]);
        // Only one namespace is remembered, so the first starts anew.
        assert_eq!([at(1, "b"), at(1, "a"), at(1, "a"), at(1, "a")], [0, 0, 0, 1]);
        let refused = Buckets::default().charge(
            &[EventLimit { burst: 0, ..limit(LimitType::Server, 0) }],
            |_| String::new(),
            Duration::ZERO,
        );
        assert_eq!(refused, ["limit reached on type Server for key "]);
    }
}
