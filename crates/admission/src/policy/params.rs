//! The parameters that a binding passes to its policy.

use std::sync::Arc;

use knarr_apimachinery::selector::Selector;
use serde_json::Value;

use crate::Context;
use crate::matching::selector;
use crate::{Attributes, lookup};
use knarr_registry::served::Served;

/// The parsed `paramKind`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ParamKind {
    pub api_version: String,
    pub kind: String,
}

/// The parsed `paramRef`.
#[derive(Debug)]
pub struct ParamRef {
    name: String,
    namespace: String,
    selector: Option<Result<Selector, String>>,
    /// Whether `parameterNotFoundAction` is `Deny`.
    deny: bool,
}

impl ParamKind {
    pub fn read(value: &Value) -> Option<Self> {
        let text = |field: &str| value[field].as_str().unwrap_or("").to_owned();
        value.is_object().then(|| Self { api_version: text("apiVersion"), kind: text("kind") })
    }

    /// Returns the resource of the parameter objects; fails if it is not served.
    pub fn resource(&self, context: &Context<'_>) -> Result<Arc<Served>, String> {
        let (group, version) = self.api_version.split_once('/').unwrap_or(("", &self.api_version));
        let table = context.registry.table.snapshot();
        let fits = |s: &&Arc<Served>| {
            let types = s.resource.types;
            (types.group, types.version, types.kind) == (group, version, self.kind.as_str())
                && s.resource.is_stored()
        };
        table.iter().find(fits).cloned().ok_or_else(|| {
            let kind = &self.kind;
            format!("failed to find resource referenced by paramKind: '{group}/{version}, Kind={kind}'")
        })
    }
}

impl ParamRef {
    pub fn read(value: &Value) -> Option<Self> {
        let text = |field: &str| value[field].as_str().unwrap_or("").to_owned();
        value.is_object().then(|| Self {
            name: text("name"),
            namespace: text("namespace"),
            selector: value["selector"].is_object().then(|| selector(&value["selector"])),
            deny: value["parameterNotFoundAction"] == "Deny",
        })
    }
}

/// Returns the parameter objects with which to evaluate a policy, one after the other: one `Null` if the policy has
/// no parameters. An empty result means that the policy does not apply.
pub async fn collect(
    kind: Option<&Served>,
    reference: Option<&ParamRef>,
    attributes: &Attributes<'_>,
    context: &Context<'_>,
) -> Result<Vec<Value>, String> {
    let (Some(served), Some(reference)) = (kind, reference) else { return Ok(vec![Value::Null]) };
    let types = served.resource.types;
    let mut namespace = "";
    if types.namespaced {
        namespace =
            if reference.namespace.is_empty() { attributes.in_namespace() } else { &reference.namespace };
        if namespace.is_empty() {
            return Err(
                "cannot use namespaced paramRef in policy binding that matches cluster-scoped resources"
                    .to_owned(),
            );
        }
    } else if !reference.namespace.is_empty() {
        return Err("paramRef.namespace must not be provided for a cluster-scoped `paramKind`".to_owned());
    }
    let found = match (&reference.selector, reference.name.as_str()) {
        (Some(_), name) if !name.is_empty() => {
            return Err("paramRef.name and paramRef.selector are mutually exclusive".to_owned());
        }
        (None, "") => return Err("one of name or selector must be provided".to_owned()),
        (None, name) => {
            let found = lookup::in_version(context, served, namespace, name).await;
            found.map_err(|e| e.message().to_owned())?.into_iter().collect()
        }
        (Some(selector), _) => {
            let selector = selector.as_ref().map_err(Clone::clone)?;
            let within = types.namespaced.then_some(namespace);
            let selected = lookup::selected(attributes.request, served, within, selector).await;
            selected.map_err(|e| e.message().to_owned())?
        }
    };
    if found.is_empty() && reference.deny {
        return Err("no params found for policy binding with `Deny` parameterNotFoundAction".to_owned());
    }
    Ok(found)
}
