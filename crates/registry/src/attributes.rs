//! Admission attributes: the user, the operation and the object that a plugin decides about.

use std::collections::{BTreeMap, BTreeSet};

use knarr_api::kind::ResourceType;
use knarr_apimachinery::gvk::{GroupResource, GroupVersionKind};
use knarr_apimachinery::status::StatusError;
use serde_json::{Value, json};

use super::served::Served;
use knarr_wire::identity::UserInfo;
use knarr_wire::request::Request;

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Operation {
    Create,
    Update,
    Delete,
    /// Exec, attach, port-forward, proxy.
    Connect,
}

impl Operation {
    /// All operations, in the order of their discriminants.
    pub const ALL: [Self; 4] = [Self::Create, Self::Update, Self::Delete, Self::Connect];

    /// Returns the name that webhooks and policies use, such as `CREATE`.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Create => "CREATE",
            Self::Update => "UPDATE",
            Self::Delete => "DELETE",
            Self::Connect => "CONNECT",
        }
    }
}

/// A write that admission must decide about.
pub struct Attributes<'a> {
    pub request: &'a Request,
    pub user: &'a UserInfo,
    pub operation: Operation,
    pub served: &'a Served,
    pub resource: ResourceType,
    pub subresource: &'a str,
    pub namespace: &'a str,
    /// Empty on a create with a generated name.
    pub name: &'a str,
    /// `Null` on a delete.
    pub object: Value,
    pub old: Option<&'a Value>,
    pub dry_run: bool,
    /// `CreateOptions`, `UpdateOptions`, `DeleteOptions`; `Null` on a connect.
    pub options: Value,
    /// Whether the mutating plugins run for the second time (reinvocation).
    pub reinvoking: bool,
    /// Set by a webhook or policy that changed the object: the mutating plugins must run again.
    pub reinvoke: bool,
    /// State that webhooks and policies keep from the first round to the second, by plugin.
    pub reinvocations: BTreeMap<&'static str, Reinvocation>,
}

impl<'a> Attributes<'a> {
    pub fn new(
        request: &'a Request,
        served: &'a Served,
        operation: Operation,
        (namespace, name, subresource): (&'a str, &'a str, &'a str),
        object: Value,
        dry_run: bool,
    ) -> Self {
        Self {
            request,
            user: &request.user,
            operation,
            served,
            resource: served.resource.types,
            subresource,
            namespace,
            name,
            object,
            old: None,
            dry_run,
            options: options(request, operation, dry_run),
            reinvoking: false,
            reinvoke: false,
            reinvocations: BTreeMap::new(),
        }
    }

    /// Returns whether the request addresses this resource itself, not a subresource.
    pub fn is(&self, group: &str, plural: &str) -> bool {
        self.is_part(group, plural, "")
    }

    /// Returns whether the request addresses this subresource; `""` is the resource itself.
    pub fn is_part(&self, group: &str, plural: &str, subresource: &str) -> bool {
        self.subresource == subresource && self.resource.group == group && self.resource.plural == plural
    }

    pub fn group_resource(&self) -> GroupResource {
        self.resource.group_resource()
    }

    /// Returns the kind of `object`. The body of a subresource may have a kind of its own.
    pub fn kind(&self) -> GroupVersionKind {
        let part = self.served.resource.subresource(self.subresource).and_then(|s| s.body);
        match part {
            Some((group, version, kind)) => GroupVersionKind::new(group, version, kind),
            None => self.resource.gvk(),
        }
    }

    /// Returns the namespace of the request; for a Namespace, its own name.
    pub fn in_namespace(&self) -> &str {
        if self.resource.group.is_empty() && self.resource.plural == "namespaces" {
            return self.own_name();
        }
        self.namespace
    }

    /// Returns the object's name, also while it is being created.
    pub fn own_name(&self) -> &str {
        if self.name.is_empty() { text(&self.object, "/metadata/name") } else { self.name }
    }

    /// Adds a `Warning` header to the answer.
    pub fn warn(&self, text: impl Into<String>) {
        self.request.warn(text);
    }

    /// Adds an annotation to the audit event. The first value of a key wins.
    pub fn annotate(&self, key: impl AsRef<str>, value: impl AsRef<str>) {
        knarr_wire::annotations::annotate(key.as_ref(), value.as_ref());
    }

    /// Returns 403 with the message format of an admission refusal.
    pub fn forbidden(&self, why: &str) -> StatusError {
        let own =
            [self.name, text(&self.object, "/metadata/name"), text(&self.object, "/metadata/generateName")];
        let name = own.into_iter().find(|n| !n.is_empty()).unwrap_or("Unknown");
        StatusError::forbidden(&self.group_resource(), name, why)
    }
}

/// Returns the string at a JSON pointer, or the empty string.
pub fn text<'v>(value: &'v Value, pointer: &str) -> &'v str {
    value.pointer(pointer).and_then(Value::as_str).unwrap_or("")
}

/// Returns the options of a write as an API object. For a deletion, the delete handler sets them.
fn options(request: &Request, operation: Operation, dry_run: bool) -> Value {
    let kind = match operation {
        Operation::Create => "CreateOptions",
        Operation::Update => "UpdateOptions",
        Operation::Delete => "DeleteOptions",
        Operation::Connect => return Value::Null,
    };
    let mut options = json!({"kind": kind, "apiVersion": "meta.k8s.io/v1"});
    if dry_run {
        options["dryRun"] = json!(["All"]);
    }
    for field in ["fieldManager", "fieldValidation"] {
        if let Some(value) = request.query.non_empty(field) {
            options[field] = value.into();
        }
    }
    options
}

/// State that the webhooks or the policies keep during a request, so that the second round calls the right ones.
#[derive(Default)]
pub struct Reinvocation {
    last_output: Value,
    invoked: BTreeSet<String>,
    wanted: BTreeSet<String>,
}

impl Reinvocation {
    /// Begins a round. If the object changed since the end of the previous round, the plugins called so far are
    /// required again.
    pub fn begin(&mut self, reinvoking: bool, object: &Value) {
        if reinvoking && self.last_output != *object {
            self.require();
        }
    }

    /// Requires another call of all plugins called so far that have asked for reinvocation, because the object
    /// changed.
    pub fn require(&mut self) {
        self.wanted.append(&mut self.invoked);
    }

    /// Returns whether the second round must call this plugin.
    pub fn is_wanted(&self, uid: &str) -> bool {
        self.wanted.contains(uid)
    }

    /// Records a call of a plugin whose reinvocation policy is `IfNeeded`.
    pub fn note(&mut self, uid: &str) {
        self.invoked.insert(uid.to_owned());
    }

    /// Ends a round and keeps its result for the comparison in [`Self::begin`].
    pub fn end(&mut self, object: &Value) {
        self.last_output.clone_from(object);
    }
}
