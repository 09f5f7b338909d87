//! A request in the form for handlers: parsed, authenticated and authorized.

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
    /// The original path, with its escapes.
    pub raw_path: String,
    /// The original query, for backends to which the request is forwarded.
    pub raw_query: Option<String>,
    /// The address of the client; `None` for the server's own requests.
    pub peer: Option<IpAddr>,
    pub method: Method,
    pub headers: HeaderMap,
    pub body: Bytes,
    pub user: UserInfo,
    /// The Warning headers of the response.
    pub warnings: Mutex<Vec<String>>,
    /// The connection, if the client asks to switch to another protocol.
    pub upgrade: Mutex<Option<OnUpgrade>>,
}

impl Request {
    /// Creates a request of the server itself.
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

    /// Returns whether the server itself made the request, for example to write the bootstrap objects.
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

    /// Returns the default field manager of this client: the product name of its User-Agent.
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
