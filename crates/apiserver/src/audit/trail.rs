//! The audit trail of one request on its way through the server.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use http::HeaderMap;
use http::header::USER_AGENT;
use http::request::Parts;
use serde_json::Value;

use super::event::Record;
use super::policy::{Level, Stage, Wanted};
use super::{Annotations, Auditor};
use knarr_auth::authn::UserInfo;
use knarr_wire::metrics::Metric;
use knarr_wire::request_info::RequestInfo;

/// The maximum length of a recorded user agent, in bytes; longer ones are truncated as upstream does.
const MAX_AGENT: usize = 1024;

/// The origin of a request.
pub struct Source<'a> {
    pub id: &'a str,
    pub peer: Option<std::net::IpAddr>,
    pub parts: &'a Parts,
    pub info: &'a RequestInfo,
}

pub struct Trail {
    auditor: Arc<Auditor>,
    wanted: Wanted,
    record: Mutex<Record>,
    notes: Annotations,
}

impl Trail {
    /// Starts a trail; `None` if the policy does not audit the request.
    pub fn begin(
        auditor: &Arc<Auditor>,
        source: &Source<'_>,
        user: UserInfo,
        notes: &Annotations,
    ) -> Option<Arc<Self>> {
        let policy = auditor.policy.as_ref()?.get(&*auditor.clock);
        let wanted = policy.evaluate(&user, source.info);
        auditor.metrics.increment(Metric::AuditLevels, &[wanted.level.name()]);
        if wanted.level == Level::None {
            return None;
        }
        let agent = source.parts.headers.get(USER_AGENT).and_then(|v| v.to_str().ok()).unwrap_or("");
        let user_agent = if agent.len() > MAX_AGENT {
            format!("{}...TRUNCATED", agent.get(..MAX_AGENT).unwrap_or(""))
        } else {
            agent.to_owned()
        };
        let record = Record {
            id: source.id.to_owned(),
            uri: source.parts.uri.path_and_query().map_or("", |p| p.as_str()).to_owned(),
            verb: source.info.verb.clone(),
            user,
            impersonated: None,
            constraint: String::new(),
            source_ips: addresses(&source.parts.headers, source.peer),
            user_agent,
            info: source.info.clone(),
            received: auditor.clock.now(),
            request_object: None,
            response_object: None,
            response: None,
        };
        Some(Arc::new(Self {
            auditor: Arc::clone(auditor),
            wanted,
            record: Mutex::new(record),
            notes: Arc::clone(notes),
        }))
    }

    fn record(&self) -> MutexGuard<'_, Record> {
        self.record.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Records the RequestReceived stage. Returns `false` if a strict backend failed: the request must be refused.
    pub async fn received(&self) -> bool {
        let stored = self.stage(Stage::RequestReceived).await;
        if !stored {
            self.auditor.metrics.increment(Metric::AuditRejected, &[]);
        }
        stored
    }

    pub fn impersonated(&self, user: &UserInfo, constraint: &str) {
        let mut record = self.record();
        record.impersonated = Some(user.clone());
        record.constraint = constraint.to_owned();
    }

    pub fn wants_request(&self) -> bool {
        self.wanted.level >= Level::Request
    }

    pub fn wants_response(&self) -> bool {
        self.wanted.level >= Level::RequestResponse
    }

    /// Records the body as the client sent it.
    pub fn request_object(&self, object: Option<Value>) {
        self.record().request_object = object;
    }

    pub fn response_object(&self, object: Value) {
        self.record().response_object = Some(object);
    }

    /// Records the status code, and the Status object of a failure.
    pub fn answered(&self, code: u16, status: Option<Value>) {
        self.record().response = Some((code, status));
    }

    pub async fn started(&self) {
        self.stage(Stage::ResponseStarted).await;
    }

    pub async fn complete(&self) {
        self.stage(Stage::ResponseComplete).await;
    }

    pub async fn panicked(&self) {
        self.stage(Stage::Panic).await;
    }

    async fn stage(&self, stage: Stage) -> bool {
        if self.wanted.omit_stages.contains(&stage) {
            return true;
        }
        let notes = self.notes.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let event = self.record().event(stage, &self.wanted, &notes, self.auditor.clock.now());
        self.auditor.emit(event).await
    }
}

/// Returns the source addresses: those that proxies report, nearest last, then the peer's address.
fn addresses(headers: &HeaderMap, peer: Option<std::net::IpAddr>) -> Vec<String> {
    let header = |name: &str| headers.get(name).and_then(|v| v.to_str().ok()).unwrap_or("").to_owned();
    let mut all: Vec<String> = header("x-forwarded-for")
        .split(',')
        .map(str::trim)
        .filter(|a| a.parse::<std::net::IpAddr>().is_ok())
        .map(str::to_owned)
        .collect();
    let real = header("x-real-ip");
    if real.parse::<std::net::IpAddr>().is_ok() && !all.contains(&real) {
        all.push(real);
    }
    if let Some(peer) = peer.map(|p| p.to_canonical().to_string())
        && all.last() != Some(&peer)
    {
        all.push(peer);
    }
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_end_with_the_peer() {
        let mut headers = HeaderMap::new();
        headers.insert("x-forwarded-for", "10.0.0.1, nonsense, 10.0.0.2".parse().unwrap());
        let peer = Some("10.0.0.3".parse().unwrap());
        assert_eq!(addresses(&headers, peer), ["10.0.0.1", "10.0.0.2", "10.0.0.3"]);
        assert_eq!(addresses(&HeaderMap::new(), None), Vec::<String>::new());
    }
}
