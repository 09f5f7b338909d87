//! EventRateLimit: limits the rate at which Events are written.

use std::collections::{BTreeMap, HashMap};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use knarr_apimachinery::status::StatusError;
use serde_json::Value;

use super::{Attributes, Operation, Plugin};
use crate::Context;
use crate::config::{EventLimit, LimitType};

#[derive(Default)]
pub struct EventRateLimit {
    buckets: Buckets,
}

const DEFAULT_CACHE: usize = 4096;

/// A token bucket: the tokens left at a time.
#[derive(Debug, Clone, Copy)]
struct Bucket {
    left: f64,
    at: Duration,
}

impl Bucket {
    /// Takes a token; returns false if none is left.
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

/// The token buckets of a server, separate for each limit.
#[derive(Default)]
struct Buckets(Mutex<Vec<Recent>>);

/// The token buckets of one limit; a new one replaces the least recently used one.
#[derive(Default)]
struct Recent {
    buckets: HashMap<String, (Bucket, u64)>,
    by_use: BTreeMap<u64, String>,
    uses: u64,
}

impl Recent {
    fn take(&mut self, limit: &EventLimit, name: String, now: Duration) -> bool {
        let most = if limit.cache_size == 0 { DEFAULT_CACHE } else { limit.cache_size };
        self.uses += 1;
        let full = Bucket { left: f64::from(limit.burst), at: now };
        let (bucket, used) = self.buckets.entry(name.clone()).or_insert((full, self.uses));
        let granted = bucket.take(limit, now);
        self.by_use.remove(&std::mem::replace(used, self.uses));
        self.by_use.insert(self.uses, name);
        if self.by_use.len() > most
            && let Some((_, oldest)) = self.by_use.pop_first()
        {
            self.buckets.remove(&oldest);
        }
        granted
    }
}

impl Buckets {
    /// Returns the limits that refuse an event with these keys. All limits are charged, as upstream does.
    fn charge(&self, limits: &[EventLimit], key: impl Fn(LimitType) -> String, now: Duration) -> Vec<String> {
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        all.resize_with(limits.len(), Recent::default);
        let mut refused = Vec::new();
        for (limit, recent) in limits.iter().zip(all.iter_mut()) {
            let name = key(limit.type_);
            if !recent.take(limit, name.clone(), now) {
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

    async fn validate(&self, attributes: &Attributes<'_>, context: &Context<'_>) -> Result<(), StatusError> {
        if attributes.dry_run || attributes.resource.kind != "Event" {
            return Ok(());
        }
        let key = |type_| match type_ {
            LimitType::Server => String::new(),
            LimitType::Namespace => attributes.namespace.to_owned(),
            LimitType::User => attributes.user.name.clone(),
            LimitType::SourceAndObject => source_and_object(&attributes.object),
        };
        let now = context.registry.clock.monotonic();
        let refused = self.buckets.charge(&context.settings.event_limits, key, now);
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
    fn limits_of_one_type_have_budgets_of_their_own() {
        let limit = |qps, burst| EventLimit { type_: LimitType::User, qps, burst, cache_size: 0 };
        let (buckets, limits) = (Buckets::default(), [limit(1, 3), limit(5, 3)]);
        let at = |seconds| buckets.charge(&limits, |_| "a".to_owned(), Duration::from_secs(seconds)).len();
        assert_eq!([at(0), at(0), at(0), at(0)], [0, 0, 0, 2]);
        // After one second, the first limit has one token, the other one three.
        assert_eq!([at(1), at(1), at(1), at(1)], [0, 1, 1, 2]);
    }

    #[test]
    fn the_least_recently_used_budget_is_forgotten() {
        let limits = [EventLimit { type_: LimitType::Namespace, qps: 1, burst: 1, cache_size: 2 }];
        let buckets = Buckets::default();
        let charge = |name: &str| buckets.charge(&limits, |_| name.to_owned(), Duration::ZERO).len();
        assert_eq!([charge("a"), charge("b"), charge("a")], [0, 0, 1]);
        assert_eq!(charge("c"), 0, "in place of b");
        assert_eq!([charge("a"), charge("b")], [1, 0]);
        let all = buckets.0.lock().unwrap();
        assert_eq!((all[0].buckets.len(), all[0].by_use.len()), (2, 2));
    }

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
        // Only one namespace's bucket is kept, so the first namespace starts with a full one.
        assert_eq!([at(1, "b"), at(1, "a"), at(1, "a"), at(1, "a")], [0, 0, 0, 1]);
        let refused = Buckets::default().charge(
            &[EventLimit { burst: 0, ..limit(LimitType::Server, 0) }],
            |_| String::new(),
            Duration::ZERO,
        );
        assert_eq!(refused, ["limit reached on type Server for key "]);
    }
}
