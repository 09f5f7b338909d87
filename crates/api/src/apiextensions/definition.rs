//! A parsed CustomResourceDefinition: names, versions, schemas, conversion, conditions.

use knarr_apimachinery::structural::Schema;
use serde_json::{Map, Value, json};

use crate::prepare;

/// The finalizer that keeps a definition until its instances are deleted.
pub const CLEANUP_FINALIZER: &str = "customresourcecleanup.apiextensions.k8s.io";

pub const NAMES_ACCEPTED: &str = "NamesAccepted";
pub const ESTABLISHED: &str = "Established";
pub const TERMINATING: &str = "Terminating";
pub const NON_STRUCTURAL: &str = "NonStructuralSchema";
pub const APPROVAL: &str = "KubernetesAPIApprovalPolicyConformant";

/// `spec.names` or `status.acceptedNames`.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Names {
    pub plural: String,
    pub singular: String,
    pub short_names: Vec<String>,
    pub kind: String,
    pub list_kind: String,
    pub categories: Vec<String>,
}

impl Names {
    pub fn parse(value: Option<&Value>) -> Self {
        let text =
            |name: &str| value.and_then(|v| v.get(name)).and_then(Value::as_str).unwrap_or("").to_owned();
        let list = |name: &str| {
            let list = value.and_then(|v| v.get(name)).and_then(Value::as_array);
            list.into_iter().flatten().filter_map(Value::as_str).map(str::to_owned).collect()
        };
        Self {
            plural: text("plural"),
            singular: text("singular"),
            short_names: list("shortNames"),
            kind: text("kind"),
            list_kind: text("listKind"),
            categories: list("categories"),
        }
    }

    pub fn to_value(&self) -> Value {
        let mut map = Map::new();
        map.insert("plural".into(), self.plural.clone().into());
        if !self.singular.is_empty() {
            map.insert("singular".into(), self.singular.clone().into());
        }
        if !self.short_names.is_empty() {
            map.insert("shortNames".into(), json!(self.short_names));
        }
        map.insert("kind".into(), self.kind.clone().into());
        if !self.list_kind.is_empty() {
            map.insert("listKind".into(), self.list_kind.clone().into());
        }
        if !self.categories.is_empty() {
            map.insert("categories".into(), json!(self.categories));
        }
        Value::Object(map)
    }
}

/// A column of `additionalPrinterColumns`.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct PrinterColumn {
    pub name: String,
    pub ty: String,
    pub format: String,
    pub description: String,
    pub priority: i64,
    pub json_path: String,
}

/// `subresources.scale`.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Scale {
    pub spec_replicas_path: String,
    pub status_replicas_path: String,
    pub label_selector_path: Option<String>,
}

/// One of `spec.versions`.
#[derive(Debug, Clone, Default)]
pub struct Version {
    pub name: String,
    pub served: bool,
    pub storage: bool,
    pub deprecated: bool,
    pub deprecation_warning: Option<String>,
    /// `schema.openAPIV3Schema` as written.
    pub schema_json: Option<Value>,
    pub schema: Option<Schema>,
    pub status: bool,
    pub scale: Option<Scale>,
    pub columns: Vec<PrinterColumn>,
    pub selectable_fields: Vec<String>,
}

impl Version {
    fn parse(value: &Value) -> Self {
        let text = |name: &str| value.get(name).and_then(Value::as_str).unwrap_or("").to_owned();
        let flag = |name: &str| value.get(name).and_then(Value::as_bool).unwrap_or(false);
        let items = |name: &str| value.get(name).and_then(Value::as_array).into_iter().flatten();
        let schema_json = value.pointer("/schema/openAPIV3Schema").filter(|v| v.is_object()).cloned();
        let scale = value.pointer("/subresources/scale").filter(|v| v.is_object());
        Self {
            name: text("name"),
            served: flag("served"),
            storage: flag("storage"),
            deprecated: flag("deprecated"),
            deprecation_warning: value.get("deprecationWarning").and_then(Value::as_str).map(str::to_owned),
            schema: schema_json.as_ref().map(Schema::parse),
            schema_json,
            status: value.pointer("/subresources/status").is_some_and(|v| !v.is_null()),
            scale: scale.map(scale_of),
            columns: items("additionalPrinterColumns").map(column).collect(),
            selectable_fields: items("selectableFields")
                .map(|f| f.get("jsonPath").and_then(Value::as_str).unwrap_or("").to_owned())
                .collect(),
        }
    }
}

fn scale_of(value: &Value) -> Scale {
    let text = |name: &str| value.get(name).and_then(Value::as_str).map(str::to_owned);
    Scale {
        spec_replicas_path: text("specReplicasPath").unwrap_or_default(),
        status_replicas_path: text("statusReplicasPath").unwrap_or_default(),
        label_selector_path: text("labelSelectorPath").filter(|p| !p.is_empty()),
    }
}

fn column(value: &Value) -> PrinterColumn {
    let text = |name: &str| value.get(name).and_then(Value::as_str).unwrap_or("").to_owned();
    PrinterColumn {
        name: text("name"),
        ty: text("type"),
        format: text("format"),
        description: text("description"),
        priority: value.get("priority").and_then(Value::as_i64).unwrap_or(0),
        json_path: text("jsonPath"),
    }
}

/// A parsed definition.
#[derive(Debug, Clone, Default)]
pub struct Definition {
    pub name: String,
    pub uid: String,
    pub group: String,
    pub names: Names,
    pub accepted_names: Names,
    pub namespaced: bool,
    pub versions: Vec<Version>,
    pub preserve_unknown_fields: bool,
    /// `spec.conversion` as written.
    pub conversion: Value,
    pub stored_versions: Vec<String>,
    pub deleting: bool,
    pub finalizers: Vec<String>,
    /// `status.conditions` as stored.
    pub conditions: Vec<Value>,
}

impl Definition {
    pub fn parse(object: &Value) -> Self {
        let text = |pointer: &str| object.pointer(pointer).and_then(Value::as_str).unwrap_or("").to_owned();
        let items = |pointer: &str| object.pointer(pointer).and_then(Value::as_array).into_iter().flatten();
        let texts = |pointer: &str| items(pointer).filter_map(Value::as_str).map(str::to_owned).collect();
        Self {
            name: text("/metadata/name"),
            uid: text("/metadata/uid"),
            group: text("/spec/group"),
            names: Names::parse(object.pointer("/spec/names")),
            accepted_names: Names::parse(object.pointer("/status/acceptedNames")),
            namespaced: text("/spec/scope") == "Namespaced",
            versions: items("/spec/versions").map(Version::parse).collect(),
            preserve_unknown_fields: object.pointer("/spec/preserveUnknownFields")
                == Some(&Value::Bool(true)),
            conversion: object.pointer("/spec/conversion").cloned().unwrap_or_default(),
            stored_versions: texts("/status/storedVersions"),
            deleting: object.pointer("/metadata/deletionTimestamp").is_some_and(|v| !v.is_null()),
            finalizers: texts("/metadata/finalizers"),
            conditions: items("/status/conditions").cloned().collect(),
        }
    }

    pub fn storage_version(&self) -> Option<&Version> {
        self.versions.iter().find(|v| v.storage)
    }

    pub fn version(&self, name: &str) -> Option<&Version> {
        self.versions.iter().find(|v| v.name == name)
    }

    pub fn condition(&self, ty: &str) -> Option<&Value> {
        self.conditions.iter().find(|c| c["type"] == ty)
    }

    pub fn is_true(&self, ty: &str) -> bool {
        self.condition(ty).is_some_and(|c| c["status"] == "True")
    }

    pub fn converts_by_webhook(&self) -> bool {
        self.conversion["strategy"] == "Webhook"
    }
}

/// A condition without its times.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Condition {
    pub ty: &'static str,
    pub status: &'static str,
    pub reason: &'static str,
    pub message: String,
}

impl Condition {
    pub fn new(
        ty: &'static str,
        status: &'static str,
        reason: &'static str,
        message: impl Into<String>,
    ) -> Self {
        Self { ty, status, reason, message: message.into() }
    }

    /// Returns whether the object already has this condition.
    pub fn is_in(&self, object: &Value) -> bool {
        conditions(object).iter().any(|c| {
            c["type"] == self.ty
                && c["status"] == self.status
                && c["reason"] == self.reason
                && c["message"] == *self.message
        })
    }

    /// Sets the condition; its transition time changes only with its status.
    pub fn set(&self, object: &mut Value, now: &str) {
        let mut all = conditions(object).to_vec();
        let place = all.iter().position(|c| c["type"] == self.ty);
        let before = place.map(|i| all[i].clone());
        let time = match &before {
            Some(old) if old["status"] == self.status && old["lastTransitionTime"].is_string() => {
                old["lastTransitionTime"].clone()
            }
            _ => now.into(),
        };
        let new = json!({
            "type": self.ty, "status": self.status, "lastTransitionTime": time,
            "reason": self.reason, "message": self.message,
        });
        match place {
            Some(i) => all[i] = new,
            None => all.push(new),
        }
        put(object, all);
    }
}

/// Returns the conditions in an object's status.
pub fn conditions(object: &Value) -> &[Value] {
    object.pointer("/status/conditions").and_then(Value::as_array).map_or(&[], Vec::as_slice)
}

/// Removes a condition.
pub fn remove_condition(object: &mut Value, ty: &str) {
    let left: Vec<Value> = conditions(object).iter().filter(|c| c["type"] != ty).cloned().collect();
    put(object, left);
}

fn put(object: &mut Value, conditions: Vec<Value>) {
    let status = prepare::object(object).entry("status").or_insert(Value::Null);
    prepare::object(status).insert("conditions".into(), conditions.into());
}

/// Compares versions as Kubernetes does: `v2` before `v1` before `v1beta2` before `v1alpha1` before all other
/// names.
pub fn compare_versions(a: &str, b: &str) -> std::cmp::Ordering {
    let rank = |v: &str| {
        let rest = v.strip_prefix('v')?;
        let end = rest.find(|c: char| !c.is_ascii_digit()).unwrap_or(rest.len());
        let major: u64 = rest[..end].parse().ok()?;
        if rest.starts_with('0') {
            return None;
        }
        let tail = &rest[end..];
        if tail.is_empty() {
            return Some((3u8, major, 0u64));
        }
        let (stage, minor) = match (tail.strip_prefix("beta"), tail.strip_prefix("alpha")) {
            (Some(minor), _) => (2, minor),
            (_, Some(minor)) => (1, minor),
            _ => return None,
        };
        if minor.starts_with('0') {
            return None;
        }
        Some((stage, major, minor.parse().ok()?))
    };
    match (rank(a), rank(b)) {
        (Some(x), Some(y)) => y.cmp(&x),
        (Some(_), None) => std::cmp::Ordering::Less,
        (None, Some(_)) => std::cmp::Ordering::Greater,
        (None, None) => a.cmp(b),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_are_ordered_by_maturity() {
        let mut versions = ["foo1", "v1alpha1", "v10", "v2", "v1beta2", "v1beta10", "v1", "bar"];
        versions.sort_by(|a, b| compare_versions(a, b));
        assert_eq!(versions, ["v10", "v2", "v1", "v1beta10", "v1beta2", "v1alpha1", "bar", "foo1"]);
    }

    #[test]
    fn conditions_keep_their_time_with_their_status() {
        let mut object = json!({});
        let accepted = Condition::new(NAMES_ACCEPTED, "True", "NoConflicts", "no conflicts found");
        accepted.set(&mut object, "t1");
        assert!(accepted.is_in(&object));
        let other = Condition { reason: "Other", ..accepted.clone() };
        other.set(&mut object, "t2");
        assert_eq!(conditions(&object)[0]["lastTransitionTime"], "t1");
        Condition { status: "False", ..accepted }.set(&mut object, "t3");
        assert_eq!(conditions(&object)[0]["lastTransitionTime"], "t3");
        remove_condition(&mut object, NAMES_ACCEPTED);
        assert!(conditions(&object).is_empty());
    }
}
