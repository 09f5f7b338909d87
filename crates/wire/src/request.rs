//! A request as handlers get it: read, authenticated and authorized.

use std::net::IpAddr;
use std::sync::{Mutex, PoisonError};

use bytes::Bytes;
use http::header::USER_AGENT;
use http::{HeaderMap, Method};
use hyper::upgrade::OnUpgrade;

use super::identity::{MASTERS, UserInfo};
use super::query::Query;
use super::request_info::RequestInfo;

/// One authenticated, authorized request.
pub struct Request {
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

impl Request {
    /// A request of the server to itself, not of a client.
    pub fn own() -> Self {
        Self {
            info: RequestInfo::default(),
            query: Query::default(),
            raw_path: String::new(),
            raw_query: None,
            peer: None,
            method: Method::POST,
            headers: HeaderMap::new(),
            body: Bytes::new(),
            user: UserInfo::new("system:apiserver", &[MASTERS]),
            warnings: Mutex::default(),
            upgrade: Mutex::default(),
        }
    }

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
