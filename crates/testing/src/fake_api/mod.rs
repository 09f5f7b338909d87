//! An API server in memory, small enough to reason about, for tests of code that uses the client.
//!
//! It implements resourceVersions, uids, finalizers, graceful deletion of pods, subresources, patches and
//! preconditions as the real server does. It has no validation, defaulting, admission or authorization.

mod store;
mod target;

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use async_trait::async_trait;
use bytes::Bytes;
use futures_util::stream;
use http::Method;
use jiff::Timestamp;
use knarr_api::kind::{Kind, ObjectKey, ResourceType};
use knarr_api::object::Object;
use knarr_apimachinery::clock::Clock;
use knarr_apimachinery::status::StatusError;
use knarr_client::transport::{List, ListOptions, Transport, WatchEvent, WatchStream};
use knarr_client::{Client, Error, Result};
use serde_json::{Value, json};
use tokio::sync::Notify;

pub use store::Change;
use store::Store;
use target::Target;

/// A request that the server received.
#[derive(Debug, Clone)]
pub struct Request {
    pub method: Method,
    /// The path, without the query.
    pub path: String,
    pub body: Value,
    /// The field manager of the client that sent it.
    pub by: Arc<str>,
    /// When it arrived, by the server's clock.
    pub at: Timestamp,
}

/// Finds an object by its uid.
pub type Lookup<'a> = &'a dyn Fn(&str) -> Option<Value>;

/// Decides on a request before it is carried out: `Some` refuses it.
pub type Guard = Box<dyn Fn(&Request, Lookup<'_>) -> Option<StatusError> + Send>;

/// The server, shared by `Arc`; it is the [`Transport`] of its clients.
pub struct FakeApi {
    clock: Arc<dyn Clock>,
    state: Mutex<State>,
    changed: Notify,
}

struct State {
    resources: Vec<ResourceType>,
    /// The number of lists of each resource.
    lists: Vec<(ResourceType, usize)>,
    store: Store,
    requests: Vec<Request>,
    guard: Option<Guard>,
    /// Counts how often all watches were ended.
    epoch: u64,
}

impl FakeApi {
    /// Returns an empty server of these resources.
    pub fn new(clock: Arc<dyn Clock>, resources: &[ResourceType]) -> Arc<Self> {
        Arc::new_cyclic(|myself| {
            let state = State {
                resources: resources.to_vec(),
                lists: Vec::new(),
                store: Store::of(myself.clone()),
                requests: Vec::new(),
                guard: None,
                epoch: 0,
            };
            Self { clock, state: Mutex::new(state), changed: Notify::new() }
        })
    }

    /// Serves only these resources from now on; objects of other resources stay stored, but cannot be
    /// reached.
    pub fn serve_resources(&self, resources: &[ResourceType]) {
        self.lock().resources = resources.to_vec();
        self.changed.notify_waiters();
    }

    /// Returns how often clients listed the resource through [`Transport::list`].
    pub fn lists_of(&self, resource: &ResourceType) -> usize {
        self.lock().lists.iter().filter(|(r, _)| r == resource).map(|(_, n)| n).sum()
    }

    pub fn client(self: &Arc<Self>) -> Client {
        Client::new(Arc::clone(self) as Arc<dyn Transport>, Arc::clone(&self.clock), "test")
    }

    /// Stores an object unchanged, except for a missing uid and creation time; returns its uid.
    pub fn add<K: Kind>(&self, object: &K) -> String {
        let value = serde_json::from_slice(&object.encode()).expect("kinds encode as JSON");
        let uid = self.lock().store.insert(K::RESOURCE, value, self.clock.now());
        self.changed.notify_waiters();
        uid
    }

    /// Changes an object without any of the API's rules; does nothing if it does not exist.
    pub fn edit<K: Kind>(&self, namespace: &str, name: &str, change: impl FnOnce(&mut K)) {
        let key = ObjectKey::new(namespace, name);
        let mut state = self.lock();
        let Some(value) = state.store.get(&K::RESOURCE, &key) else { return };
        let mut object = K::decode(value.to_string().as_bytes()).expect("stored objects decode");
        change(&mut object);
        let value = serde_json::from_slice(&object.encode()).expect("kinds encode as JSON");
        state.store.replace(K::RESOURCE, key, value);
        drop(state);
        self.changed.notify_waiters();
    }

    /// Removes an object at once, whatever finalizers it has.
    pub fn remove<K: Kind>(&self, namespace: &str, name: &str) {
        self.lock().store.remove(K::RESOURCE, &ObjectKey::new(namespace, name));
        self.changed.notify_waiters();
    }

    /// Removes an object of any resource like [`FakeApi::remove`].
    pub fn remove_untyped(&self, resource: &ResourceType, namespace: &str, name: &str) {
        self.lock().store.remove(*resource, &ObjectKey::new(namespace, name));
        self.changed.notify_waiters();
    }

    pub fn get<K: Kind>(&self, namespace: &str, name: &str) -> Option<K> {
        let state = self.lock();
        let held = state.store.held(&K::RESOURCE, &ObjectKey::new(namespace, name))?;
        Some(K::clone(&held.typed::<K>().expect("stored objects decode")))
    }

    /// Returns all objects of a type, in key order.
    pub fn all<K: Kind>(&self) -> Vec<K> {
        self.every::<K>().iter().map(|o| K::clone(o)).collect()
    }

    /// Returns all objects like [`FakeApi::all`], but shared, for frequent callers.
    pub fn every<K: Kind>(&self) -> Vec<Arc<K>> {
        let state = self.lock();
        let all = state.store.list_held(&K::RESOURCE, "");
        all.map(|o| o.typed::<K>().expect("stored objects decode")).collect()
    }

    /// Drops all objects and their history. This breaks the reference cycle of informers that keep their
    /// server alive.
    pub fn clear(&self) {
        let mut state = self.lock();
        state.requests = Vec::new();
        state.guard = None;
        state.store.clear();
    }

    /// Returns the plurals and names of all objects in a namespace.
    pub fn objects_in(&self, namespace: &str) -> Vec<(&'static str, String)> {
        self.lock().store.keys_in(namespace).map(|(r, key)| (r.plural, key.name.to_string())).collect()
    }

    /// Returns all changes after this revision, of all resources, in order.
    pub fn changes_after(&self, revision: u64) -> Vec<Change> {
        self.lock().store.changes_after(revision).to_vec()
    }

    /// Ends every watch, as a server that restarts does.
    pub fn disconnect(&self) {
        self.lock().epoch += 1;
        self.changed.notify_waiters();
    }

    /// Returns the writes so far.
    pub fn writes(&self) -> Vec<Request> {
        self.lock().requests.iter().filter(|r| r.method != Method::GET).cloned().collect()
    }

    /// Returns all requests so far, except lists and watches of informers.
    pub fn requests(&self) -> Vec<Request> {
        self.lock().requests.clone()
    }

    /// Lets `guard` refuse requests from now on. It is called with the server locked: it must not call back.
    pub fn guard(&self, guard: impl Fn(&Request, Lookup<'_>) -> Option<StatusError> + Send + 'static) {
        self.lock().guard = Some(Box::new(guard));
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn serve(&self, request: Request, content_type: &str) -> Result<Value, StatusError> {
        let mut state = self.lock();
        state.requests.push(request.clone());
        let lookup = |uid: &str| state.store.by_uid(uid).cloned();
        if let Some(error) = state.guard.as_ref().and_then(|guard| guard(&request, &lookup)) {
            return Err(error);
        }
        if let Some(document) = target::discovery(&request.path, &state.resources) {
            return Ok(document);
        }
        let target =
            Target::parse(&request.path, &state.resources).ok_or_else(StatusError::path_not_found)?;
        let now = self.clock.now();
        let store = &mut state.store;
        store.author = request.by;
        let answer = match (request.method, target.name.is_some()) {
            (Method::GET, true) => store.read(&target),
            (Method::GET, false) => {
                let items: Vec<Value> = store.list(&target.resource, &target.namespace).cloned().collect();
                Ok(json!({"kind": "List", "apiVersion": "v1", "items": items,
                    "metadata": {"resourceVersion": store.revision().to_string()}}))
            }
            (Method::POST, false) => store.create(&target, request.body, now),
            (Method::POST, true) if target.subresource.as_deref() == Some("binding") => {
                store.bind(&target, &request.body, now)
            }
            (Method::PUT, true) => store.update(&target, request.body),
            (Method::PATCH, true) => store.patch(&target, request.body, content_type),
            (Method::DELETE, true) => store.delete(&target, &request.body, now),
            (Method::DELETE, false) => store.delete_all(&target, &request.body, now),
            (method, _) => {
                Err(StatusError::method_not_allowed(&target.resource.group_resource(), method.as_str()))
            }
        };
        store.author = Arc::default();
        answer
    }
}

#[async_trait]
impl Transport for FakeApi {
    async fn send(&self, request: http::Request<Bytes>) -> Result<http::Response<Bytes>> {
        let content_type = request.headers().get(http::header::CONTENT_TYPE);
        let content_type = content_type.and_then(|v| v.to_str().ok()).unwrap_or("").to_owned();
        let agent =
            request.headers().get(http::header::USER_AGENT).and_then(|v| v.to_str().ok()).unwrap_or("");
        let asked = Request {
            method: request.method().clone(),
            path: request.uri().path().to_owned(),
            body: serde_json::from_slice(request.body()).unwrap_or(Value::Null),
            by: agent.strip_prefix("knarr/").unwrap_or(agent).into(),
            at: self.clock.now(),
        };
        let reads = asked.method == Method::GET;
        let answer = self.serve(asked, &content_type);
        if !reads {
            self.changed.notify_waiters();
        }
        let body = answer.map_err(Error::Status)?.to_string();
        Ok(http::Response::new(Bytes::from(body)))
    }

    async fn list(
        &self,
        resource: &ResourceType,
        namespace: Option<&str>,
        options: &ListOptions,
    ) -> Result<List> {
        let mut state = self.lock();
        match state.lists.iter_mut().find(|(r, _)| r == resource) {
            Some((_, count)) => *count += 1,
            None => state.lists.push((*resource, 1)),
        }
        if !state.resources.contains(resource) {
            return Err(Error::Status(StatusError::path_not_found()));
        }
        let objects = state.store.list_held(resource, namespace.unwrap_or("")).map(Arc::clone);
        let items = objects.filter(|o| selected(o, options)).collect();
        Ok(List { items, resource_version: state.store.revision().to_string(), continue_token: None })
    }

    async fn watch(
        &self,
        resource: &ResourceType,
        namespace: Option<&str>,
        options: &ListOptions,
    ) -> Result<WatchStream> {
        let from = options.resource_version.as_deref().and_then(|v| v.parse().ok()).unwrap_or(0u64);
        let Some(server) = self.lock().store.myself.upgrade() else {
            return Err(Error::Protocol("the server is not shared".into()));
        };
        let epoch = server.lock().epoch;
        let watch = Watch {
            server,
            epoch,
            resource: *resource,
            namespace: namespace.unwrap_or("").to_owned(),
            options: options.clone(),
            seen: from,
        };
        Ok(Box::pin(stream::unfold(watch, |mut watch| async move {
            let event = watch.next().await?;
            Some((Ok(event), watch))
        })))
    }
}

struct Watch {
    server: Arc<FakeApi>,
    epoch: u64,
    resource: ResourceType,
    namespace: String,
    options: ListOptions,
    seen: u64,
}

impl Watch {
    /// Returns `None` once the resource is no longer served, or all watches were ended.
    async fn next(&mut self) -> Option<WatchEvent> {
        let server = Arc::clone(&self.server);
        loop {
            let changed = server.changed.notified();
            {
                let state = server.lock();
                if state.epoch != self.epoch {
                    return None;
                }
                for (revision, event) in state.store.events_after(&self.resource, self.seen) {
                    self.seen = revision;
                    let (WatchEvent::Added(o) | WatchEvent::Modified(o) | WatchEvent::Deleted(o)) = event
                    else {
                        continue;
                    };
                    let in_scope = self.namespace.is_empty() || o.namespace() == self.namespace;
                    if in_scope && selected(o, &self.options) {
                        return Some(event.clone());
                    }
                }
                // Changes that were skipped need not be checked again.
                self.seen = self.seen.max(state.store.revision());
                if !state.resources.contains(&self.resource) {
                    return None;
                }
            }
            changed.await;
        }
    }
}

fn held(value: &Value) -> Arc<Object> {
    Arc::new(Object::new(Bytes::from(value.to_string()), &[]).expect("stored objects have a header"))
}

/// Evaluates field selectors on name and namespace; other selectors select all objects.
fn selected(object: &Object, options: &ListOptions) -> bool {
    let terms = options.field_selector.iter().flat_map(|s| s.split(','));
    terms.filter_map(|term| term.split_once('=')).all(|(path, value)| match path {
        "metadata.name" => object.name() == value,
        "metadata.namespace" => object.namespace() == value,
        _ => true,
    })
}
