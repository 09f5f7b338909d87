//! The generic handlers: one implementation of every verb over the table of resources.

pub mod codec;
pub mod create;
pub mod delete;
pub mod dispatch;
pub mod event_leases;
pub mod history;
pub mod list;
pub mod managed;
pub mod metadata;
pub mod options;
pub mod patch;
pub mod served;
pub mod store;
pub mod subresources;
pub mod table;
pub mod unsupported;
pub mod update;
pub mod watch;
pub mod watch_body;

use std::net::IpAddr;
use std::sync::{Mutex, PoisonError};

use bytes::Bytes;
use http::header::USER_AGENT;
use http::{HeaderMap, Method};
use hyper::upgrade::OnUpgrade;

use crate::authn::UserInfo;
use crate::http::query::Query;
use crate::http::request_info::RequestInfo;
use crate::thread_safe::ThreadSafe;

/// One authenticated, authorized request.
pub struct RequestParts {
    pub info: RequestInfo,
    pub query: Query,
    /// The path as it came, with its escapes.
    pub raw_path: String,
    /// The query as it came, for those it is passed on to.
    pub raw_query: Option<String>,
    /// Where it came from; nowhere for what the server asks of itself.
    pub peer: Option<IpAddr>,
    pub method: Method,
    pub headers: HeaderMap,
    pub body: Bytes,
    pub user: UserInfo,
    /// What the answer's Warning headers will say.
    pub warnings: Mutex<Vec<String>>,
    /// The connection, where the client wants it switched to another protocol.
    pub upgrade: Mutex<Option<OnUpgrade>>,
}

/// A request as the registry takes it.
pub type Request = ThreadSafe<RequestParts>;

impl Request {
    /// Whether no client sent it: the server writes what every cluster starts with.
    pub fn is_own(&self) -> bool {
        self.raw_path.is_empty()
    }

    pub fn warn(&self, text: impl Into<String>) {
        let text = text.into();
        let mut warnings = self.warnings.lock().unwrap_or_else(PoisonError::into_inner);
        if !warnings.contains(&text) {
            warnings.push(text);
        }
    }

    /// The name under which this client's changes are recorded: the product name of its User-Agent.
    pub fn user_agent_manager(&self) -> String {
        let agent = self.headers.get(USER_AGENT).and_then(|v| v.to_str().ok()).unwrap_or("");
        let product = agent.split('/').next().unwrap_or("");
        let printable: String = product.chars().filter(|c| !c.is_control()).collect();
        let end = printable.char_indices().map(|(i, c)| i + c.len_utf8()).take_while(|e| *e <= 128).last();
        match end {
            Some(end) => printable[..end].to_owned(),
            None => "unknown".to_owned(),
        }
    }
}

/// Adds the empty values that upstream writes, so that objects look the same.
pub fn fill(served: &served::Served, object: &mut serde_json::Value) {
    if let Some(schema) = served.schema {
        knarr_apimachinery::schema::validate::fill(object, schema);
    }
}
