//! The typed client: one method per verb, over any [`Transport`].

use std::sync::Arc;

use bytes::Bytes;
use http::Method;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::DeleteOptions;
use knarr_api::kind::{Kind, ResourceType};
use knarr_apimachinery::clock::Clock;

use crate::error::{Error, Result};
use crate::leadership::{Fenced, Leadership, Term};
use crate::supervisor::Supervisor;
use crate::transport::{ListOptions, Query, Transport};

/// How often a request is retried when the server answers with `Retry-After`. Source: client-go.
const RETRIES: u32 = 10;

/// A component's access to the API.
#[derive(Clone)]
pub struct Client {
    transport: Arc<dyn Transport>,
    clock: Arc<dyn Clock>,
    field_manager: Arc<str>,
    agent: Arc<str>,
    supervisor: Supervisor,
    /// The term that the client's writes belong to, and the transport without that restriction.
    led: Option<(Arc<Term>, Arc<dyn Transport>)>,
}

/// A patch with its format.
#[derive(Debug, Clone)]
pub enum Patch {
    Json(serde_json::Value),
    Merge(serde_json::Value),
    Strategic(serde_json::Value),
    /// Server-side apply.
    Apply {
        object: serde_json::Value,
        force: bool,
    },
}

impl Patch {
    fn parts(&self) -> (&'static str, &serde_json::Value) {
        match self {
            Self::Json(v) => ("application/json-patch+json", v),
            Self::Merge(v) => ("application/merge-patch+json", v),
            Self::Strategic(v) => ("application/strategic-merge-patch+json", v),
            Self::Apply { object, .. } => ("application/apply-patch+yaml", object),
        }
    }
}

impl Client {
    /// Creates a client. `field_manager` is the name under which this component's writes are recorded.
    pub fn new(transport: Arc<dyn Transport>, clock: Arc<dyn Clock>, field_manager: &str) -> Self {
        let (agent, supervisor) = (agent(field_manager).into(), Supervisor::new(Arc::clone(&clock)));
        Self { transport, clock, field_manager: field_manager.into(), agent, supervisor, led: None }
    }

    /// Runs the background tasks of this client, such as its informers, under this supervisor. By default they have a
    /// supervisor of their own, whose health is shown nowhere.
    pub fn supervised_by(mut self, supervisor: &Supervisor) -> Self {
        self.supervisor = supervisor.clone();
        self
    }

    /// Returns a client for the work of a leader: its writes are sent only while the lease is held.
    pub fn under(mut self, leadership: &Leadership) -> Self {
        if let Some(term) = leadership.term() {
            let open = self.led.take().map_or(self.transport, |(_, open)| open);
            self.transport = Arc::new(Fenced::new(Arc::clone(&open), Arc::clone(term)));
            self.led = Some((Arc::clone(term), open));
        }
        self
    }

    /// Undoes [`Client::under`], for writes that are allowed after the lease has ended.
    pub fn under_no_lease(mut self) -> Self {
        if let Some((_, open)) = self.led.take() {
            self.transport = open;
        }
        self
    }

    /// Returns whether the lease that the client's writes need is held now; true if they need none.
    pub fn holds_lease(&self) -> bool {
        self.led.as_ref().is_none_or(|(term, _)| term.is_held())
    }

    /// The supervisor of this client's background tasks.
    pub fn supervisor(&self) -> &Supervisor {
        &self.supervisor
    }

    /// Adds the user to the user agent of the requests, as upstream's controllers do.
    pub fn on_behalf_of(mut self, user: &str) -> Self {
        self.agent = format!("{}/{user}", self.agent).into();
        self
    }

    /// The transport, which refuses writes without the lease if the client is [`under`](Client::under) a leadership.
    pub fn transport(&self) -> &Arc<dyn Transport> {
        &self.transport
    }

    /// The clock that this client's component goes by.
    pub fn clock(&self) -> &Arc<dyn Clock> {
        &self.clock
    }

    /// Reads an object; `namespace` is ignored for cluster-scoped kinds.
    pub async fn get<K: Kind>(&self, namespace: &str, name: &str) -> Result<K> {
        let path = K::RESOURCE.path(Some(namespace), Some(name));
        decode(&self.call(Method::GET, path, None, Bytes::new()).await?)
    }

    /// Returns all items, each as a shared decoded view, and the resourceVersion of the list.
    pub async fn list<K: Kind>(
        &self,
        namespace: Option<&str>,
        options: &ListOptions,
    ) -> Result<(Vec<Arc<K>>, String)> {
        let list = self.transport.list(&K::RESOURCE, namespace, options).await?;
        let items = list.items.iter().map(|o| o.typed::<K>()).collect::<Result<Vec<_>, _>>()?;
        Ok((items, list.resource_version))
    }

    /// Creates an object in the namespace of its metadata.
    pub async fn create<K: Kind>(&self, object: &K) -> Result<K> {
        let path = K::RESOURCE.path(Some(object.namespace()), None);
        decode(&self.write(Method::POST, path, "application/json", object.encode().into(), false).await?)
    }

    /// Sends a POST to a subresource, such as `binding`, `eviction` or `token`. The answer is decoded as `A`.
    pub async fn create_subresource<B: Kind, A: Kind>(
        &self,
        parent: &ResourceType,
        namespace: &str,
        name: &str,
        subresource: &str,
        body: &B,
    ) -> Result<A> {
        let path = format!("{}/{subresource}", parent.path(Some(namespace), Some(name)));
        decode(&self.write(Method::POST, path, "application/json", body.encode().into(), false).await?)
    }

    /// Sends a POST with any JSON to a subresource and returns the raw answer. For kinds that have no typed codec here.
    pub async fn post_raw(&self, path: String, body: Vec<u8>) -> Result<Bytes> {
        self.write(Method::POST, path, "application/json", body.into(), false).await
    }

    /// Replaces an object. The server answers with a conflict if its resourceVersion is not the current one.
    pub async fn update<K: Kind>(&self, object: &K) -> Result<K> {
        let path = K::RESOURCE.path(Some(object.namespace()), Some(object.name()));
        decode(&self.write(Method::PUT, path, "application/json", object.encode().into(), false).await?)
    }

    /// Sends a PUT to the `status` subresource.
    pub async fn update_status<K: Kind>(&self, object: &K) -> Result<K> {
        self.update_subresource(object, "status").await
    }

    /// Sends a PUT to a subresource that takes the whole object, such as `status` or `approval`.
    pub async fn update_subresource<K: Kind>(&self, object: &K, subresource: &str) -> Result<K> {
        let path = K::RESOURCE.path(Some(object.namespace()), Some(object.name()));
        let path = format!("{path}/{subresource}");
        decode(&self.write(Method::PUT, path, "application/json", object.encode().into(), false).await?)
    }

    /// Sends a PATCH to the object, or to a subresource such as `status`.
    pub async fn patch<K: Kind>(
        &self,
        namespace: &str,
        name: &str,
        subresource: Option<&str>,
        patch: &Patch,
    ) -> Result<K> {
        let mut path = K::RESOURCE.path(Some(namespace), Some(name));
        if let Some(sub) = subresource {
            path.push('/');
            path.push_str(sub);
        }
        decode(&self.patch_path(path, patch).await?)
    }

    /// Sends a PATCH to any object by its path and returns the raw answer.
    pub async fn patch_path(&self, path: String, patch: &Patch) -> Result<Bytes> {
        let (content_type, value) = patch.parts();
        let force = matches!(patch, Patch::Apply { force: true, .. });
        let body = Bytes::from(value.to_string());
        self.write(Method::PATCH, path, content_type, body, force).await
    }

    /// Deletes an object.
    pub async fn delete<K: Kind>(&self, namespace: &str, name: &str, options: &DeleteOptions) -> Result<()> {
        self.delete_path(K::RESOURCE.path(Some(namespace), Some(name)), options).await
    }

    /// Sends a DELETE to any object by its path.
    pub async fn delete_path(&self, path: String, options: &DeleteOptions) -> Result<()> {
        let body = serde_json::to_vec(options).map_err(|e| Error::Protocol(e.to_string()))?;
        self.call(Method::DELETE, path, Some("application/json"), body.into()).await?;
        Ok(())
    }

    async fn write(
        &self,
        method: Method,
        path: String,
        content_type: &'static str,
        body: Bytes,
        force: bool,
    ) -> Result<Bytes> {
        let mut query = Query::default();
        query.add("fieldManager", &self.field_manager);
        if force {
            query.add("force", "true");
        }
        self.call(method, format!("{path}?{}", query.0), Some(content_type), body).await
    }

    /// Sends a GET to any path, with this `Accept` header.
    pub async fn get_as(&self, path: String, accept: &'static str) -> Result<Bytes> {
        self.exchange(Method::GET, path, None, accept, Bytes::new()).await
    }

    /// Sends any request; `uri` is path and query.
    pub async fn call(
        &self,
        method: Method,
        uri: String,
        content_type: Option<&'static str>,
        body: Bytes,
    ) -> Result<Bytes> {
        self.exchange(method, uri, content_type, "application/json", body).await
    }

    async fn exchange(
        &self,
        method: Method,
        uri: String,
        content_type: Option<&'static str>,
        accept: &'static str,
        body: Bytes,
    ) -> Result<Bytes> {
        let mut again = 0;
        loop {
            let mut request = http::Request::builder().method(method.clone()).uri(uri.as_str());
            if let Some(content_type) = content_type {
                request = request.header(http::header::CONTENT_TYPE, content_type);
            }
            let request = request
                .header(http::header::ACCEPT, accept)
                .header(http::header::USER_AGENT, &*self.agent)
                .body(body.clone())
                .map_err(|e| Error::Protocol(e.to_string()))?;
            match self.transport.send(request).await {
                Ok(answer) => return Ok(answer.into_body()),
                Err(error) => match error.retry_after() {
                    Some(wait) if again < RETRIES => self.clock.sleep(wait).await,
                    _ => return Err(error),
                },
            }
            again += 1;
        }
    }
}

/// The user agent in the form of Kubernetes' components; its first word names the component.
fn agent(component: &str) -> String {
    let (version, os) = (env!("CARGO_PKG_VERSION"), std::env::consts::OS);
    let arch = match std::env::consts::ARCH {
        "x86_64" => "amd64",
        "aarch64" => "arm64",
        other => other,
    };
    format!("{component}/v{version} ({os}/{arch}) knarr")
}

fn decode<K: Kind>(body: &Bytes) -> Result<K> {
    Ok(K::decode(body)?)
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU32, Ordering};

    use async_trait::async_trait;
    use knarr_apimachinery::status::StatusError;

    use super::*;
    use crate::clock::SystemClock;
    use crate::transport::{List, WatchStream};

    /// Refuses the first requests like an overloaded server.
    struct Overloaded {
        refusals: AtomicU32,
        retry_after_seconds: i32,
        asked: AtomicU32,
    }

    #[async_trait]
    impl Transport for Overloaded {
        async fn send(&self, request: http::Request<Bytes>) -> Result<http::Response<Bytes>> {
            self.asked.fetch_add(1, Ordering::Relaxed);
            if self.refusals.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |n| n.checked_sub(1)).is_ok()
            {
                return Err(StatusError::too_many_requests("later", self.retry_after_seconds).into());
            }
            Ok(http::Response::new(request.into_body()))
        }

        async fn list(&self, _: &ResourceType, _: Option<&str>, _: &ListOptions) -> Result<List> {
            Err(Error::Protocol("not asked".into()))
        }

        async fn watch(&self, _: &ResourceType, _: Option<&str>, _: &ListOptions) -> Result<WatchStream> {
            Err(Error::Protocol("not asked".into()))
        }
    }

    async fn ask(refusals: u32, retry_after_seconds: i32) -> (Result<Bytes>, u32, std::time::Duration) {
        let server = Arc::new(Overloaded {
            refusals: AtomicU32::new(refusals),
            retry_after_seconds,
            asked: AtomicU32::new(0),
        });
        let client = Client::new(server.clone(), Arc::new(SystemClock), "test");
        let begun = tokio::time::Instant::now();
        let answer = client.post_raw("/api/v1/pods".into(), b"{}".to_vec()).await;
        (answer, server.asked.load(Ordering::Relaxed), begun.elapsed())
    }

    #[tokio::test(start_paused = true)]
    async fn a_server_that_says_when_to_come_back_is_asked_again() {
        let (answer, asked, took) = ask(3, 2).await;
        assert_eq!(answer.unwrap(), "{}");
        assert_eq!((asked, took.as_secs()), (4, 6));
        let (answer, asked, _) = ask(100, 1).await;
        assert_eq!(answer.unwrap_err().status().unwrap().code(), 429);
        assert_eq!(asked, 1 + RETRIES);
        // An answer without Retry-After is not retried, for example when a disruption budget allows no eviction.
        let (answer, asked, _) = ask(1, 0).await;
        assert!(answer.is_err());
        assert_eq!(asked, 1);
    }
}
