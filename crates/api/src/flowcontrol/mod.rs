//! Kinds of API priority and fairness.

pub mod flowschema;
mod mandatory;
pub mod prioritylevelconfiguration;
mod rules;
mod subjects;

use std::collections::BTreeSet;

use knarr_apimachinery::field::{Error, ErrorList, Path};
use serde_json::Value;

use crate::prepare;
use crate::validate;

/// Requires that condition types are set and unique.
fn validate_conditions<'a>(errors: &mut ErrorList, types: impl Iterator<Item = &'a str>) {
    let mut seen = BTreeSet::new();
    for (i, type_) in types.enumerate() {
        let path = Path::new("status").child("conditions").index(i).child("type");
        if !seen.insert(type_) {
            errors.push(Error::duplicate(&path, type_));
        }
        validate::required(errors, &path, type_);
    }
}

/// Restores all metadata on a status update; counts generations on other updates.
fn prepare_for_update(new: &mut Value, old: &Value, subresource: Option<&str>) {
    prepare::update_with_generation(new, old, subresource);
    if subresource == Some("status") {
        prepare::keep_metadata_for_status(new, old);
    }
}
