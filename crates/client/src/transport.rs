//! The boundary between a component and the API server: in-process or over HTTPS, with the component's identity.

use std::pin::Pin;
use std::sync::Arc;

use async_trait::async_trait;
use bytes::Bytes;
use futures_util::Stream;
use knarr_api::kind::ResourceType;
use knarr_api::object::Object;

use crate::error::Result;

/// The query parameters of a list or watch.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ListOptions {
    pub label_selector: Option<String>,
    pub field_selector: Option<String>,
    pub limit: Option<u32>,
    pub continue_token: Option<String>,
    pub resource_version: Option<String>,
    /// `NotOlderThan` or `Exact`.
    pub resource_version_match: Option<&'static str>,
    /// For a watch: requests bookmarks.
    pub allow_bookmarks: bool,
    /// For a watch: how long the server may keep it open.
    pub timeout_seconds: Option<u32>,
}

impl ListOptions {
    /// The query string, without the leading `?`.
    pub fn query(&self, watch: bool) -> String {
        let mut q = Query(String::new());
        if watch {
            q.add("watch", "true");
            if self.allow_bookmarks {
                q.add("allowWatchBookmarks", "true");
            }
        }
        let number = |n: Option<u32>| n.map(|n| n.to_string());
        for (name, value) in [
            ("labelSelector", self.label_selector.clone()),
            ("fieldSelector", self.field_selector.clone()),
            ("limit", number(self.limit)),
            ("continue", self.continue_token.clone()),
            ("resourceVersion", self.resource_version.clone()),
            ("resourceVersionMatch", self.resource_version_match.map(str::to_owned)),
            ("timeoutSeconds", number(self.timeout_seconds)),
        ] {
            if let Some(value) = value {
                q.add(name, &value);
            }
        }
        q.0
    }
}

/// A query string under construction.
#[derive(Debug, Default)]
pub struct Query(pub String);

impl Query {
    /// Appends `name=value`, percent-encoding the value.
    pub fn add(&mut self, name: &str, value: &str) {
        if !self.0.is_empty() {
            self.0.push('&');
        }
        self.0.push_str(name);
        self.0.push('=');
        for b in value.bytes() {
            match b {
                b'A'..=b'Z' | b'a'..=b'z' | b'0'..=b'9' | b'-' | b'_' | b'.' | b'~' => self.0.push(b as char),
                _ => self.0.push_str(&format!("%{b:02X}")),
            }
        }
    }
}

/// The items of a list, and the version from which a watch can continue.
#[derive(Debug, Clone, Default)]
pub struct List {
    pub items: Vec<Arc<Object>>,
    pub resource_version: String,
    pub continue_token: Option<String>,
}

/// A change of a watched collection.
#[derive(Debug, Clone)]
pub enum WatchEvent {
    Added(Arc<Object>),
    Modified(Arc<Object>),
    Deleted(Arc<Object>),
    /// No more changes up to this resourceVersion.
    Bookmark(String),
}

/// The events of a watch; the stream ends with the watch.
pub type WatchStream = Pin<Box<dyn Stream<Item = Result<WatchEvent>> + Send>>;

/// A connection to the API server with one identity.
#[async_trait]
pub trait Transport: Send + Sync + 'static {
    /// Sends a request and returns its whole answer. Failures of the API are returned as [`crate::Error::Status`].
    ///
    /// `uri` is path and query. The body of the answer is JSON.
    async fn send(&self, request: http::Request<Bytes>) -> Result<http::Response<Bytes>>;

    /// Lists a resource. In-process, the items are the API server's own objects.
    async fn list(
        &self,
        resource: &ResourceType,
        namespace: Option<&str>,
        options: &ListOptions,
    ) -> Result<List>;

    /// Watches a resource from `options.resource_version`.
    async fn watch(
        &self,
        resource: &ResourceType,
        namespace: Option<&str>,
        options: &ListOptions,
    ) -> Result<WatchStream>;
}
