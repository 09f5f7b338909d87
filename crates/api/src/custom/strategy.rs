//! The strategy of custom resources: defaults, validation and preparation by their schema.

use knarr_apimachinery::field::{Error, ErrorList, ErrorType, Path};
use knarr_apimachinery::names;
use knarr_apimachinery::structural;
use serde_json::Value;

use super::{CustomResource, scale};
use crate::naming;
use crate::object::Object;
use crate::prepare;
use crate::strategy::Strategy;

impl Strategy for CustomResource {
    fn default(&self, object: &mut Value) {
        structural::apply_defaults(object, &self.schema);
    }

    fn prepare_for_create(&self, object: &mut Value) {
        if self.status {
            prepare::clear(object, "status");
        }
        prepare::set_generation(object, 1);
    }

    fn prepare_for_update(&self, new: &mut Value, old: &Value, subresource: Option<&str>) {
        if subresource == Some("status") {
            return only_status(new, old);
        }
        if self.status {
            match old.get("status") {
                Some(status) => {
                    prepare::object(new).insert("status".into(), status.clone());
                }
                None => prepare::clear(new, "status"),
            }
        }
        let before = prepare::generation(old);
        let changed = !same_but_metadata(new, old);
        prepare::set_generation(new, if changed { before + 1 } else { before });
    }

    fn validate(&self, object: &Object) -> ErrorList {
        let value = value_of(object);
        let root = Path::default();
        let mut errors = structural::validate(&value, &self.schema, &root);
        if let Some(scale) = &self.scale {
            errors.extend(scale::validate_spec(&value, scale));
            errors.extend(scale::validate_status(&value, scale));
        }
        errors.extend(structural::validate_embedded(&value, &self.schema, &root));
        errors.extend(structural::validate_list_types(&value, &self.schema, &root));
        self.check_rules(&value, None, &mut errors);
        errors
    }

    fn validate_update(&self, new: &Object, old: &Object, subresource: Option<&str>) -> ErrorList {
        let (new, old) = (value_of(new), value_of(old));
        let root = Path::default();
        let mut errors = if subresource == Some("status") {
            self.validate_status(&new, &old)
        } else {
            let mut errors = structural::validate_update(&new, Some(&old), &self.schema, &root);
            if let Some(scale) = &self.scale {
                errors.extend(scale::validate_spec(&new, scale));
                errors.extend(scale::validate_status(&new, scale));
            }
            errors.extend(structural::validate_embedded(&new, &self.schema, &root));
            errors
        };
        // Duplicates in a list are tolerated if the old object has some.
        let doubles = structural::validate_list_types(&new, &self.schema, &root);
        if !doubles.is_empty() && structural::validate_list_types(&old, &self.schema, &root).is_empty() {
            errors.extend(doubles);
        }
        self.check_rules(&new, Some(&old), &mut errors);
        errors
    }

    fn validate_name(&self, name: &str, prefix: bool) -> Vec<String> {
        naming::subdomain(name, prefix)
    }

    fn warnings(&self, new: &Object, old: Option<&Object>) -> Vec<String> {
        let before = old.map(finalizers).unwrap_or_default();
        let mut added = finalizers(new);
        added.retain(|f| !before.contains(f));
        added.sort();
        added.dedup();
        added.iter().flat_map(|f| finalizer_warnings(f)).collect()
    }

    fn allow_unconditional_update(&self) -> bool {
        false
    }
}

impl CustomResource {
    fn validate_status(&self, new: &Value, old: &Value) -> ErrorList {
        let mut errors = ErrorList::new();
        if let (Some(status), Some(schema)) = (new.get("status"), self.status_schema()) {
            let path = Path::new("status");
            errors.extend(structural::validate_update(status, old.get("status"), schema, &path));
        }
        if let Some(scale) = &self.scale {
            errors.extend(scale::validate_status(new, scale));
        }
        errors
    }

    /// Runs the rules of `x-kubernetes-validations`, unless other errors prevent that.
    fn check_rules(&self, new: &Value, old: Option<&Value>, errors: &mut ErrorList) {
        let Some(rules) = &self.rules else { return };
        if errors.0.iter().any(blocks_rules) {
            let why = "some validation rules were not checked because the object was invalid; correct the \
                       existing errors to complete validation";
            return errors.push(Error::invalid(&Path::default(), Value::Null, why));
        }
        errors.extend(rules.check(new, old, &self.schema, &Path::default()));
    }
}

fn blocks_rules(error: &Error) -> bool {
    matches!(
        error.kind,
        ErrorType::NotSupported
            | ErrorType::Required
            | ErrorType::TooLong
            | ErrorType::TooMany
            | ErrorType::TypeInvalid
    )
}

fn value_of(object: &Object) -> Value {
    serde_json::from_slice(&object.json()).unwrap_or_default()
}

/// Restores everything but the status and managedFields, for an update of the status.
fn only_status(new: &mut Value, old: &Value) {
    let status = new.get("status").cloned();
    let managed = new.pointer("/metadata/managedFields").cloned();
    *new = old.clone();
    match status {
        Some(status) => {
            prepare::object(new).insert("status".into(), status);
        }
        None => prepare::clear(new, "status"),
    }
    match managed {
        Some(managed) => {
            prepare::metadata(new).insert("managedFields".into(), managed);
        }
        None => {
            prepare::metadata(new).remove("managedFields");
        }
    }
}

fn same_but_metadata(a: &Value, b: &Value) -> bool {
    let part = |v: &Value| -> Vec<(String, Value)> {
        let map = v.as_object().into_iter().flatten();
        map.filter(|(k, _)| *k != "metadata").map(|(k, v)| (k.clone(), v.clone())).collect()
    };
    let (mut a, mut b) = (part(a), part(b));
    a.sort_by(|x, y| x.0.cmp(&y.0));
    b.sort_by(|x, y| x.0.cmp(&y.0));
    a == b
}

fn finalizers(object: &Object) -> Vec<String> {
    object.metadata().ok().and_then(|m| m.finalizers).unwrap_or_default()
}

const STANDARD_FINALIZERS: [&str; 3] = ["orphan", "foregroundDeletion", "kubernetes"];

fn finalizer_warnings(finalizer: &str) -> Vec<String> {
    let path = "metadata.finalizers";
    let quoted = Value::from(finalizer);
    let mut warnings: Vec<String> =
        names::label_key(finalizer).iter().map(|problem| format!("{path}: {quoted}: {problem}")).collect();
    if !finalizer.contains('/') && !STANDARD_FINALIZERS.contains(&finalizer) {
        let including = if finalizer.contains('.') { " including a path (/)" } else { "" };
        warnings.push(format!(
            "{path}: {quoted}: prefer a domain-qualified finalizer name{including} to avoid accidental conflicts with \
             other finalizer writers"
        ));
    }
    warnings
}
