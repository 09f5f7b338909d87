//! `/livez`, `/readyz`, `/healthz`: run all checks, or one by name.
//!
//! The names, order, texts and endpoints of the checks are upstream's. Source: `k8s.io/apiserver/pkg/server/healthz`
//! and the checks that kube-apiserver 1.37 adds; for the hooks see [`crate::steps`]. Two checks are left out:
//! `loopback-serving-certificate` (the server reaches itself without a connection) and `etcd-override-…` (all
//! resources are in one store).
//!
//! Additional checks are `storage-space`, and one for each supervised task:
//! - The server's own tasks count: in `readyz` while a task is down, in `livez` and `healthz` once restarts of the
//!   task have not helped for some time, so that a restart of the process is worth trying.
//! - Tasks of other components in the process (scheduler, controllers, node) are listed in `readyz` and do not count.

mod log_check;
mod pace;
mod report;
mod tasks;

use std::borrow::Cow;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use knarr_client::Supervisor;
use knarr_storage::NoSpace;
use tokio_util::sync::CancellationToken;

pub use log_check::LogCheck;
pub use pace::Pace;

use crate::aggregator::{self, Aggregator};
use crate::steps::{AUTOREGISTER, Steps};
use knarr_registry::Registry;
use knarr_registry::encryption::KeyServices;
use knarr_wire::metrics::Metric;
use knarr_wire::output::Answer;
use knarr_wire::request::Request;

/// A store that does not answer within this time is unhealthy. Source: `--etcd-healthcheck-timeout`,
/// `--etcd-readycheck-timeout`.
const STORE_WITHIN: Duration = Duration::from_secs(2);

/// The state that the checks read.
pub struct Health {
    pub registry: Arc<Registry>,
    pub aggregator: Arc<Aggregator>,
    /// The finished steps of the start.
    pub steps: Arc<Steps>,
    pub log_check: LogCheck,
    pub pace: Pace,
    /// The key services of the store's encryption, if their health is checked.
    pub key_services: Option<KeyServices>,
    /// The supervisor of the server's own loops.
    pub supervisor: Supervisor,
    /// The supervisors of other components of the process.
    pub others: Mutex<Vec<Supervisor>>,
    /// Cancelled when the server is about to stop: it is no longer ready.
    pub leaving: CancellationToken,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Endpoint {
    Healthz,
    Livez,
    Readyz,
}

impl Endpoint {
    fn of(path: Option<&&str>) -> Self {
        match path.copied() {
            Some("livez") => Self::Livez,
            Some("readyz") => Self::Readyz,
            _ => Self::Healthz,
        }
    }

    fn name(self) -> &'static str {
        match self {
            Self::Healthz => "healthz",
            Self::Livez => "livez",
            Self::Readyz => "readyz",
        }
    }
}

/// A named check; `Err` has the reason of the failure.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Check {
    name: Cow<'static, str>,
    /// Whether the check is informational: it is listed, and fails when requested by name, but does not affect the
    /// overall result. A restart does not free space, and clients must still reach the server to delete objects.
    informs: bool,
    result: Result<(), String>,
}

fn check(name: impl Into<Cow<'static, str>>, result: Result<(), String>) -> Check {
    Check { name: name.into(), informs: false, result }
}

async fn checks(health: &Health, endpoint: Endpoint) -> Vec<Check> {
    let (store, space) = tokio::select! {
        status = health.registry.store.status() => match status {
            Ok(status) => (status.failure.map_or(Ok(()), Err), space(status.no_space)),
            Err(error) => (Err(error.to_string()), Ok(())),
        },
        () = health.registry.clock.sleep(STORE_WITHIN) => (Err("context deadline exceeded".to_owned()), Ok(())),
    };
    // `ping` only shows that the server answers.
    let mut all = vec![check("ping", Ok(())), check("log", health.log_check.check(&*health.registry.clock))];
    all.push(check("etcd", store.clone()));
    let ready = endpoint == Endpoint::Readyz;
    if let Some(services) = health.key_services.as_ref().filter(|_| endpoint != Endpoint::Livez) {
        all.push(check("kms-providers", services.check().await));
    }
    if ready {
        all.push(check("etcd-readiness", store));
        all.push(check("informer-sync", synced(&health.registry.caches.incomplete())));
    }
    all.push(Check { informs: true, ..check("storage-space", space) });
    for (name, done) in health.steps.all() {
        all.push(match (name, done) {
            (AUTOREGISTER, true) => check(AUTOREGISTER, Ok(())),
            (AUTOREGISTER, false) => check(AUTOREGISTER, registered(health)),
            (_, true) => check(format!("poststarthook/{name}"), Ok(())),
            (_, false) => check(format!("poststarthook/{name}"), Err("not finished".to_owned())),
        });
    }
    all.extend(tasks::checks(health, endpoint));
    if ready {
        let leaving = health.leaving.is_cancelled();
        let stopping = if leaving { Err("process is shutting down".to_owned()) } else { Ok(()) };
        all.push(check("shutdown", stopping));
    }
    all
}

/// Fails if the store is full and therefore accepts deletions only.
fn space(no_space: Option<NoSpace>) -> Result<(), String> {
    let place = match no_space {
        None => return Ok(()),
        Some(NoSpace::Disk) => "the disk is full",
        Some(NoSpace::Quota) => "the quota (--quota-backend-bytes) is used up",
        Some(NoSpace::Backend) => "etcd has raised its alarm",
    };
    Err(format!("database space exceeded: {place}; delete objects, or make room"))
}

fn synced(incomplete: &[String]) -> Result<(), String> {
    match incomplete {
        [] => Ok(()),
        names => Err(format!("{} informers not started yet: [{}]", names.len(), names.join(" "))),
    }
}

/// Checks that all APIServices of built-in groups have been available once. Other checks report their later state.
fn registered(health: &Health) -> Result<(), String> {
    let missing = aggregator::unregistered(&health.aggregator);
    if !missing.is_empty() {
        return Err(format!("missing APIService: [{}]", missing.join(" ")));
    }
    health.steps.finish(&[AUTOREGISTER]);
    Ok(())
}

/// Answers a health endpoint. `parts` is the path: the endpoint, then optionally one check.
pub async fn answer(health: &Health, request: &Request, parts: &[&str]) -> Answer {
    let endpoint = Endpoint::of(parts.first());
    let all = checks(health, endpoint).await;
    let one = parts.get(1..).unwrap_or_default().join("/");
    if !one.is_empty() {
        return match all.into_iter().find(|c| c.name == one).map(|c| c.result) {
            None => Answer::text(404, "404 page not found\n"),
            Some(Ok(())) => Answer::text(200, "ok"),
            Some(Err(why)) => Answer::text(500, format!("internal server error: {why}\n")),
        };
    }
    let excluded: Vec<&str> = request.query.all("exclude").collect();
    for check in all.iter().filter(|check| !excluded.contains(&&*check.name)) {
        let (fine, word) = if check.result.is_ok() { (1.0, "success") } else { (0.0, "error") };
        health.registry.metrics.set(Metric::HealthCheck, &[&check.name, endpoint.name()], fine);
        health.registry.metrics.increment(Metric::HealthChecks, &[&check.name, word, endpoint.name()]);
    }
    let report = report::of(endpoint.name(), &all, &excluded, request.query.get("verbose").is_some());
    if !report.log.is_empty() && health.pace.is_due(endpoint.name(), health.registry.clock.monotonic()) {
        // A client only learns that a check failed; the log has the reason.
        tracing::info!(endpoint = endpoint.name(), failed = report.log, "health checks failed");
    }
    Answer::text(report.code, report.text)
}
