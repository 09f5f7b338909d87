//! StorageClass: how volumes are provisioned.

use std::collections::{BTreeMap, BTreeSet};

use k8s_openapi::api::core::v1::TopologySelectorTerm;
use k8s_openapi::api::storage::v1 as api;
use knarr_apimachinery::field::{Error, ErrorList, Path};
use serde_json::Value;

use super::parameters;
use crate::core::pod::warnings::old_node_label;
use crate::defaults::unset;
use crate::kind::Kind;
use crate::naming;
use crate::object::Object;
use crate::prepare;
use crate::resource::{CellContext, Column, Resource};
use crate::strategy::Strategy;
use crate::table::{self, AGE, NAME};
use crate::validate;

pub const RESOURCE: Resource = Resource {
    short_names: &["sc"],
    columns: COLUMNS,
    cells,
    ..Resource::stored(api::StorageClass::RESOURCE, "StorageClassList", "storageclass", &Rules)
};

const COLUMNS: &[Column] = &[
    NAME,
    Column::new("Provisioner", "string", "The provisioner of the volumes."),
    Column::new("ReclaimPolicy", "string", "The reclaim policy of provisioned volumes."),
    Column::new("VolumeBindingMode", "string", "When claims are bound and volumes are provisioned."),
    Column::new("AllowVolumeExpansion", "string", "Whether volumes can be expanded."),
    AGE,
];

fn cells(object: &Object, cx: &CellContext) -> Vec<Value> {
    let o = object.typed::<api::StorageClass>().unwrap_or_default();
    let annotations = o.metadata.annotations.as_ref();
    let default = annotations.and_then(|a| a.get(DEFAULT_CLASS)).is_some_and(|v| v == "true");
    let name = format!("{}{}", object.name(), if default { " (default)" } else { "" });
    vec![
        Value::from(name),
        Value::from(o.provisioner.as_str()),
        Value::from(o.reclaim_policy.as_deref().unwrap_or("Delete")),
        Value::from(o.volume_binding_mode.as_deref().unwrap_or("Immediate")),
        Value::from(o.allow_volume_expansion.unwrap_or(false)),
        table::age(o.metadata.creation_timestamp.as_ref(), cx),
    ]
}

/// The annotation of the class for claims that name none.
pub const DEFAULT_CLASS: &str = "storageclass.kubernetes.io/is-default-class";
/// All annotations that mark a default class, the older one last.
pub const DEFAULT_CLASSES: [&str; 2] = [DEFAULT_CLASS, "storageclass.beta.kubernetes.io/is-default-class"];

struct Rules;

impl Strategy for Rules {
    fn default(&self, object: &mut Value) {
        let fields = prepare::object(object);
        unset(fields, "reclaimPolicy", "Delete");
        unset(fields, "volumeBindingMode", "Immediate");
    }

    fn validate(&self, object: &Object) -> ErrorList {
        object.typed::<api::StorageClass>().map(|o| validate_class(&o)).unwrap_or_default()
    }

    fn validate_update(&self, new: &Object, old: &Object, _: Option<&str>) -> ErrorList {
        let (Ok(new), Ok(old)) = (new.typed::<api::StorageClass>(), old.typed::<api::StorageClass>()) else {
            return ErrorList::new();
        };
        let mut errors = validate_class(&new);
        for (field, changed) in [
            ("parameters", new.parameters != old.parameters),
            ("provisioner", new.provisioner != old.provisioner),
            ("reclaimPolicy", new.reclaim_policy != old.reclaim_policy),
            ("volumeBindingMode", new.volume_binding_mode != old.volume_binding_mode),
        ] {
            if changed {
                errors.push(validate::changed(&Path::new(field)));
            }
        }
        errors
    }

    fn warnings(&self, new: &Object, _: Option<&Object>) -> Vec<String> {
        let Ok(class) = new.typed::<api::StorageClass>() else { return Vec::new() };
        let mut warnings = Vec::new();
        for (i, term) in class.allowed_topologies.iter().flatten().enumerate() {
            let path = Path::new("allowedTopologies").index(i).child("matchLabelExpressions");
            for (j, expression) in term.match_label_expressions.iter().flatten().enumerate() {
                if let Some(message) = old_node_label(&expression.key) {
                    warnings.push(format!("{}: {message}", path.index(j).child("key")));
                }
            }
        }
        warnings
    }

    fn validate_name(&self, name: &str, prefix: bool) -> Vec<String> {
        naming::subdomain(name, prefix)
    }
}

fn validate_class(class: &api::StorageClass) -> ErrorList {
    let mut errors = ErrorList::new();
    parameters::driver(&mut errors, &Path::new("provisioner"), &class.provisioner);
    parameters::parameters(&mut errors, &Path::new("parameters"), class.parameters.as_ref(), false);
    if let Some(policy) = class.reclaim_policy.as_deref().filter(|p| !p.is_empty()) {
        validate::supported_value(&mut errors, &Path::new("reclaimPolicy"), policy, &["Delete", "Retain"]);
    }
    let path = Path::new("volumeBindingMode");
    match class.volume_binding_mode.as_deref() {
        None => errors.push(Error::required(&path, "")),
        Some(mode) => {
            let modes = ["Immediate", "WaitForFirstConsumer"];
            validate::supported_value(&mut errors, &path, mode, &modes);
        }
    }
    let topologies = class.allowed_topologies.as_deref().unwrap_or_default();
    allowed_topologies(&mut errors, &Path::new("allowedTopologies"), topologies);
    errors
}

fn allowed_topologies(errors: &mut ErrorList, path: &Path, terms: &[TopologySelectorTerm]) {
    let mut seen: Vec<BTreeMap<&str, BTreeSet<&str>>> = Vec::new();
    for (i, term) in terms.iter().enumerate() {
        let path = path.index(i).child("matchLabelExpressions");
        let mut expressions: BTreeMap<&str, BTreeSet<&str>> = BTreeMap::new();
        for (j, expression) in term.match_label_expressions.iter().flatten().enumerate() {
            let path = path.index(j);
            let mut values = BTreeSet::new();
            if expression.values.is_empty() {
                errors.push(Error::required(&path.child("values"), ""));
            }
            for (k, value) in expression.values.iter().enumerate() {
                let path = path.child("values").index(k);
                if !values.insert(value.as_str()) {
                    errors.push(Error::duplicate(&path, value.as_str()));
                }
            }
            validate::label_key(errors, &path.child("key"), &expression.key);
            if expressions.insert(&expression.key, values).is_some() {
                errors.push(Error::duplicate(&path.child("key"), expression.key.as_str()));
            }
        }
        // Upstream reports a term without expressions as a duplicate, too.
        if expressions.is_empty() || seen.contains(&expressions) {
            errors.push(Error::duplicate(&path, ""));
        }
        seen.push(expressions);
    }
}
