//! The objects of the fake API server, their history, and the rules of writes.

use std::collections::BTreeMap;
use std::sync::{Arc, Weak};

use jiff::{SignedDuration, Timestamp};
use knarr_api::kind::{ObjectKey, ResourceType};
use knarr_api::object::Object;
use knarr_apimachinery::patch::{json_patch, merge_patch, strategic};
use knarr_apimachinery::schema;
use knarr_apimachinery::status::StatusError;
use knarr_client::WatchEvent;
use serde_json::{Value, json};

use super::FakeApi;
use super::target::Target;

type Result<T = Value> = std::result::Result<T, StatusError>;

/// An object as JSON, and in the form that watchers and informers share.
struct Stored {
    value: Value,
    held: Arc<Object>,
}

/// A change that the server carried out.
#[derive(Debug, Clone)]
pub struct Change {
    pub revision: u64,
    pub resource: ResourceType,
    pub event: WatchEvent,
    /// The field manager of the client that made it; empty if the test itself changed the server.
    pub by: Arc<str>,
}

/// Groups whose objects have a generation that counts changes of their spec.
const COUNTED: [&str; 4] = ["apps", "autoscaling", "batch", "policy"];

#[derive(Default)]
pub struct Store {
    revision: u64,
    objects: BTreeMap<(ResourceType, ObjectKey), Stored>,
    log: Vec<Change>,
    made: u64,
    /// The field manager of the next changes.
    pub author: Arc<str>,
    /// The server that this store belongs to; watches outlive the call that starts them.
    pub myself: Weak<FakeApi>,
}

impl Store {
    pub fn of(server: Weak<FakeApi>) -> Self {
        Self { myself: server, ..Self::default() }
    }

    pub fn revision(&self) -> u64 {
        self.revision
    }

    pub fn get(&self, resource: &ResourceType, key: &ObjectKey) -> Option<&Value> {
        self.objects.get(&(*resource, key.clone())).map(|o| &o.value)
    }

    pub fn held(&self, resource: &ResourceType, key: &ObjectKey) -> Option<&Arc<Object>> {
        self.objects.get(&(*resource, key.clone())).map(|o| &o.held)
    }

    pub fn clear(&mut self) {
        self.objects.clear();
        self.log = Vec::new();
    }

    pub fn keys_in(&self, namespace: &str) -> impl Iterator<Item = &(ResourceType, ObjectKey)> {
        self.objects.keys().filter(move |(r, key)| r.namespaced && *key.namespace == *namespace)
    }

    pub fn by_uid(&self, uid: &str) -> Option<&Value> {
        self.objects.values().map(|o| &o.value).find(|o| o["metadata"]["uid"] == uid)
    }

    /// Returns the objects of a type, in one namespace if it is not empty.
    pub fn list(&self, resource: &ResourceType, namespace: &str) -> impl Iterator<Item = &Value> {
        self.range(resource, namespace).map(|o| &o.value)
    }

    /// Returns the objects like [`Store::list`], in the shared form.
    pub fn list_held(&self, resource: &ResourceType, namespace: &str) -> impl Iterator<Item = &Arc<Object>> {
        self.range(resource, namespace).map(|o| &o.held)
    }

    fn range(&self, resource: &ResourceType, namespace: &str) -> impl Iterator<Item = &Stored> {
        let from = (*resource, ObjectKey::new(namespace, ""));
        let all = self.objects.range(from..).take_while(move |((r, k), _)| {
            r == resource && (namespace.is_empty() || &*k.namespace == namespace)
        });
        all.map(|(_, o)| o)
    }

    /// Returns all changes after this revision, in order.
    pub fn changes_after(&self, revision: u64) -> &[Change] {
        &self.log[self.log.partition_point(|c| c.revision <= revision)..]
    }

    pub fn events_after(
        &self,
        resource: &ResourceType,
        revision: u64,
    ) -> impl Iterator<Item = (u64, &WatchEvent)> {
        let changes = self.changes_after(revision).iter();
        // Every watcher skips the changes of other kinds, which are most, so the kind is compared first.
        let concerned = move |c: &&Change| c.resource.kind == resource.kind && c.resource == *resource;
        changes.filter(concerned).map(|c| (c.revision, &c.event))
    }

    /// Stores a new object under its own key.
    pub fn insert(&mut self, resource: ResourceType, mut object: Value, now: Timestamp) -> String {
        self.made += 1;
        let made = self.made;
        let meta = &mut object["metadata"];
        if meta["name"].is_null() {
            meta["name"] = json!(format!("{}{made:05}", meta["generateName"].as_str().unwrap_or("")));
        }
        if meta["uid"].is_null() {
            meta["uid"] = json!(format!("uid-{made}"));
        }
        if meta["creationTimestamp"].is_null() {
            meta["creationTimestamp"] = json!(now.to_string());
        }
        let uid = text(meta, "uid");
        let key = ObjectKey::new(&text(meta, "namespace"), &text(meta, "name"));
        self.replace(resource, key, object);
        uid
    }

    /// Stores the next state of an object, new or not.
    pub fn replace(&mut self, resource: ResourceType, key: ObjectKey, mut object: Value) -> Value {
        self.revision += 1;
        object["metadata"]["resourceVersion"] = json!(self.revision.to_string());
        let held = super::held(&object);
        let stored = Stored { value: object.clone(), held: Arc::clone(&held) };
        let known = self.objects.insert((resource, key), stored).is_some();
        let event = if known { WatchEvent::Modified(held) } else { WatchEvent::Added(held) };
        self.tell(resource, event);
        object
    }

    pub fn remove(&mut self, resource: ResourceType, key: &ObjectKey) -> Option<Value> {
        let mut object = self.objects.remove(&(resource, key.clone()))?.value;
        self.revision += 1;
        object["metadata"]["resourceVersion"] = json!(self.revision.to_string());
        self.tell(resource, WatchEvent::Deleted(super::held(&object)));
        Some(object)
    }

    fn tell(&mut self, resource: ResourceType, event: WatchEvent) {
        let by = Arc::clone(&self.author);
        self.log.push(Change { revision: self.revision, resource, event, by });
    }

    pub fn read(&self, target: &Target) -> Result {
        self.get(&target.resource, &target.key()).cloned().ok_or_else(|| not_found(target))
    }

    pub fn create(&mut self, target: &Target, mut object: Value, now: Timestamp) -> Result {
        if target.resource.namespaced {
            object["metadata"]["namespace"] = json!(target.namespace);
        }
        let name = text(&object["metadata"], "name");
        if !name.is_empty() && self.get(&target.resource, &ObjectKey::new(&target.namespace, &name)).is_some()
        {
            return Err(StatusError::already_exists(&target.resource.group_resource(), &name));
        }
        let meta =
            object["metadata"].as_object_mut().ok_or_else(|| StatusError::bad_request("no metadata"))?;
        meta.remove("uid");
        meta.remove("creationTimestamp");
        if COUNTED.contains(&target.resource.group) {
            meta.insert("generation".to_owned(), json!(1));
        }
        self.insert(target.resource, object, now);
        Ok(self.last())
    }

    fn last(&self) -> Value {
        match self.log.last().map(|c| &c.event) {
            Some(WatchEvent::Added(o) | WatchEvent::Modified(o)) => {
                serde_json::from_slice(&o.json()).unwrap_or_default()
            }
            _ => Value::Null,
        }
    }

    pub fn update(&mut self, target: &Target, new: Value) -> Result {
        let old = self.read(target)?;
        check(target, &old, &new["metadata"])?;
        self.write(target, &old, new)
    }

    pub fn patch(&mut self, target: &Target, patch: Value, content_type: &str) -> Result {
        let old = self.read(target)?;
        check(target, &old, &patch["metadata"])?;
        let mut new = old.clone();
        match content_type {
            "application/json-patch+json" => new = json_patch::apply(&old, &patch)?,
            "application/merge-patch+json" => merge_patch::apply(&mut new, patch)?,
            _ => {
                let schema = schema::for_kind(&target.resource.gvk())
                    .ok_or_else(|| StatusError::unsupported_media_type(&["application/merge-patch+json"]))?;
                strategic::apply(&mut new, patch, schema)?;
            }
        }
        self.write(target, &old, new)
    }

    /// Binds the pod to its node, once.
    pub fn bind(&mut self, target: &Target, binding: &Value, now: Timestamp) -> Result {
        let old = self.read(target)?;
        check(target, &old, &binding["metadata"])?;
        let node = &binding["target"]["name"];
        if !old["spec"]["nodeName"].is_null() {
            let why =
                format!("pod {} is already assigned to node {}", target.key().name, old["spec"]["nodeName"]);
            let name = target.name.as_deref().unwrap_or("");
            return Err(StatusError::conflict(&target.resource.group_resource(), name, &why));
        }
        let mut new = old;
        new["spec"]["nodeName"] = node.clone();
        let scheduled =
            json!({"type": "PodScheduled", "status": "True", "lastTransitionTime": now.to_string()});
        let mut conditions = new["status"]["conditions"].as_array().cloned().unwrap_or_default();
        conditions.retain(|c| c["type"] != "PodScheduled");
        conditions.push(scheduled);
        new["status"]["conditions"] = json!(conditions);
        self.replace(target.resource, target.key(), new);
        Ok(json!({"kind": "Status", "apiVersion": "v1", "status": "Success"}))
    }

    fn write(&mut self, target: &Target, old: &Value, new: Value) -> Result {
        let mut next = match target.subresource.as_deref() {
            // A Deployment has its revision in an annotation, which the controller writes with the status.
            Some("status") if target.resource.plural == "deployments" => {
                let mut next = with(old, &new, "status");
                next["metadata"]["annotations"] = new["metadata"]["annotations"].clone();
                next
            }
            Some("status" | "approval") => with(old, &new, "status"),
            Some("finalize") => with(old, &new, "spec"),
            _ if old.get("status").is_some() => with(&new, old, "status"),
            _ => new,
        };
        for field in ["uid", "creationTimestamp", "deletionTimestamp", "deletionGracePeriodSeconds"] {
            next["metadata"][field] = old["metadata"][field].clone();
        }
        next["metadata"]["resourceVersion"] = old["metadata"]["resourceVersion"].clone();
        if without_nulls(&next) == without_nulls(old) {
            return Ok(old.clone());
        }
        if COUNTED.contains(&target.resource.group)
            && without_nulls(&next["spec"]) != without_nulls(&old["spec"])
        {
            next["metadata"]["generation"] = json!(old["metadata"]["generation"].as_i64().unwrap_or(0) + 1);
        }
        let stored = self.replace(target.resource, target.key(), without_nulls(&next));
        if may_go(&stored) {
            self.remove(target.resource, &target.key());
        }
        Ok(stored)
    }

    pub fn delete(&mut self, target: &Target, options: &Value, now: Timestamp) -> Result {
        let mut object = self.read(target)?;
        check(target, &object, &options["preconditions"])?;
        let finalizer = match options["propagationPolicy"].as_str() {
            Some("Foreground") => Some("foregroundDeletion"),
            Some("Orphan") => Some("orphan"),
            _ => None,
        };
        let meta = &mut object["metadata"];
        if let Some(finalizer) = finalizer {
            let mut all = meta["finalizers"].as_array().cloned().unwrap_or_default();
            if !all.iter().any(|f| f == finalizer) {
                all.push(json!(finalizer));
            }
            meta["finalizers"] = json!(all);
        }
        let grace = grace_of(&object, target.resource.kind, options);
        let meta = &mut object["metadata"];
        let known = meta["deletionGracePeriodSeconds"].as_i64();
        if meta["deletionTimestamp"].is_null() || known.is_some_and(|known| grace < known) {
            let at = now + SignedDuration::from_secs(grace);
            meta["deletionTimestamp"] = json!(at.to_string());
            meta["deletionGracePeriodSeconds"] = json!(grace);
        }
        if target.resource.kind == "Namespace" {
            object["status"]["phase"] = json!("Terminating");
        }
        let before = self.read(target)?;
        if without_nulls(&object) != before {
            object = self.replace(target.resource, target.key(), without_nulls(&object));
        }
        if may_go(&object) {
            self.remove(target.resource, &target.key());
        }
        Ok(json!({"kind": "Status", "apiVersion": "v1", "status": "Success"}))
    }

    pub fn delete_all(&mut self, target: &Target, options: &Value, now: Timestamp) -> Result {
        let all = self.list(&target.resource, &target.namespace);
        let names: Vec<String> = all.map(|o| text(&o["metadata"], "name")).collect();
        for name in names {
            self.delete(&Target { name: Some(name), ..target.clone() }, options, now)?;
        }
        Ok(json!({"kind": "Status", "apiVersion": "v1", "status": "Success"}))
    }
}

fn text(of: &Value, field: &str) -> String {
    of[field].as_str().unwrap_or("").to_owned()
}

fn not_found(target: &Target) -> StatusError {
    StatusError::not_found(&target.resource.group_resource(), target.name.as_deref().unwrap_or(""))
}

/// Checks the preconditions: `uid` and `resourceVersion`, if given, must be those of the object.
fn check(target: &Target, object: &Value, wanted: &Value) -> Result<()> {
    for field in ["uid", "resourceVersion"] {
        if !wanted[field].is_null() && wanted[field] != object["metadata"][field] {
            let name = target.name.as_deref().unwrap_or("");
            return Err(StatusError::modified(&target.resource.group_resource(), name));
        }
    }
    Ok(())
}

/// Returns `base` with one field of `other`.
fn with(base: &Value, other: &Value, field: &str) -> Value {
    let mut out = base.clone();
    out[field] = other[field].clone();
    out
}

/// Removes null fields and empty lists, with which a client may express "not set".
fn without_nulls(value: &Value) -> Value {
    match value {
        Value::Object(map) => {
            let kept = map.iter().filter(|(_, v)| !v.is_null() && !v.as_array().is_some_and(Vec::is_empty));
            Value::Object(kept.map(|(k, v)| (k.clone(), without_nulls(v))).collect())
        }
        Value::Array(items) => Value::Array(items.iter().map(without_nulls).collect()),
        other => other.clone(),
    }
}

fn grace_of(object: &Value, kind: &str, options: &Value) -> i64 {
    let ended = matches!(object["status"]["phase"].as_str(), Some("Succeeded" | "Failed"));
    if kind != "Pod" || object["spec"]["nodeName"].is_null() || ended {
        return 0;
    }
    let own = &object["spec"]["terminationGracePeriodSeconds"];
    options["gracePeriodSeconds"].as_i64().or(own.as_i64()).unwrap_or(30)
}

/// Returns whether an object that is being deleted can be removed: it has no finalizers and no grace period
/// left.
fn may_go(object: &Value) -> bool {
    let meta = &object["metadata"];
    let none = |list: &Value| list.as_array().is_none_or(Vec::is_empty);
    !meta["deletionTimestamp"].is_null()
        && none(&meta["finalizers"])
        && meta["deletionGracePeriodSeconds"].as_i64().unwrap_or(0) == 0
        && (object["kind"] != "Namespace" || none(&object["spec"]["finalizers"]))
}
