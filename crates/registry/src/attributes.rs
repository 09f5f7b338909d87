//! What admission is asked about: who does what to which object.

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
    /// In the order of their discriminants.
    pub const ALL: [Self; 4] = [Self::Create, Self::Update, Self::Delete, Self::Connect];

    /// `CREATE`, as webhooks and policies see it.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Create => "CREATE",
            Self::Update => "UPDATE",
            Self::Delete => "DELETE",
            Self::Connect => "CONNECT",
        }
    }
}

/// The write that is to be admitted.
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
    /// Whether mutating plugins run for the second time.
    pub reinvoking: bool,
    /// Set by a webhook or policy that changed the object: others may have to look again.
    pub reinvoke: bool,
    /// What webhooks and policies remember from the first round, by plugin.
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

    /// Whether it is about this resource itself.
    pub fn is(&self, group: &str, plural: &str) -> bool {
        self.is_part(group, plural, "")
    }

    /// Whether it is about this subresource; `""` is the resource itself.
    pub fn is_part(&self, group: &str, plural: &str, subresource: &str) -> bool {
        self.subresource == subresource && self.resource.group == group && self.resource.plural == plural
    }

    pub fn group_resource(&self) -> GroupResource {
        self.resource.group_resource()
    }

    /// The kind of `object`: a subresource may have one of its own.
    pub fn kind(&self) -> GroupVersionKind {
        let part = self.served.resource.subresource(self.subresource).and_then(|s| s.body);
        match part {
            Some((group, version, kind)) => GroupVersionKind::new(group, version, kind),
            None => self.resource.gvk(),
        }
    }

    /// The namespace that it takes place in; of a Namespace its own.
    pub fn in_namespace(&self) -> &str {
        if self.resource.group.is_empty() && self.resource.plural == "namespaces" {
            return self.own_name();
        }
        self.namespace
    }

    /// The name, also of an object that is being created.
    pub fn own_name(&self) -> &str {
        if self.name.is_empty() { text(&self.object, "/metadata/name") } else { self.name }
    }

    /// A Warning header of the answer.
    pub fn warn(&self, text: impl Into<String>) {
        self.request.warn(text);
    }

    /// An annotation of the audit event; the first of a key stays.
    pub fn annotate(&self, key: impl AsRef<str>, value: impl AsRef<str>) {
        knarr_wire::annotations::annotate(key.as_ref(), value.as_ref());
    }

    /// 403 in the words of a refusal by admission.
    pub fn forbidden(&self, why: &str) -> StatusError {
        let own =
            [self.name, text(&self.object, "/metadata/name"), text(&self.object, "/metadata/generateName")];
        let name = own.into_iter().find(|n| !n.is_empty()).unwrap_or("Unknown");
        StatusError::forbidden(&self.group_resource(), name, why)
    }
}

/// The string at a JSON pointer, or the empty string.
pub fn text<'v>(value: &'v Value, pointer: &str) -> &'v str {
    value.pointer(pointer).and_then(Value::as_str).unwrap_or("")
}

/// The options of a write as an object of the API; those of a deletion are set by it.
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

/// What the webhooks or the policies of a request remember, so that a second round calls the right ones.
#[derive(Default)]
pub struct Reinvocation {
    last_output: Value,
    invoked: BTreeSet<String>,
    wanted: BTreeSet<String>,
}

impl Reinvocation {
    /// Begins a round: whoever saw another object than this one is to be called again.
    pub fn begin(&mut self, reinvoking: bool, object: &Value) {
        if reinvoking && self.last_output != *object {
            self.require();
        }
    }

    /// Somebody changed the object: all that were called so far and asked for it are to be called again.
    pub fn require(&mut self) {
        self.wanted.append(&mut self.invoked);
    }

    /// Whether this one is to be called in the second round.
    pub fn is_wanted(&self, uid: &str) -> bool {
        self.wanted.contains(uid)
    }

    /// Called, and it asked to be called again if need be.
    pub fn note(&mut self, uid: &str) {
        self.invoked.insert(uid.to_owned());
    }

    pub fn end(&mut self, object: &Value) {
        self.last_output.clone_from(object);
    }
}
