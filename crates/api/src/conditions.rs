//! Checks of `metav1.Condition` lists in the status of newer kinds.

use std::collections::BTreeSet;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use knarr_apimachinery::field::{Error, ErrorList, Path};
use knarr_apimachinery::names;

use crate::validate;

const STATUSES: [&str; 3] = ["False", "True", "Unknown"];
const REASON_MAX_BYTES: usize = 1024;
const MESSAGE_MAX_BYTES: usize = 32 * 1024;

pub fn validate(errors: &mut ErrorList, path: &Path, conditions: &[Condition]) {
    let mut seen = BTreeSet::new();
    for (i, condition) in conditions.iter().enumerate() {
        let path = path.index(i);
        if !seen.insert(&condition.type_) {
            errors.push(Error::duplicate(&path, condition.type_.as_str()));
        }
        validate_one(errors, &path, condition);
    }
}

fn validate_one(errors: &mut ErrorList, path: &Path, condition: &Condition) {
    if condition.type_.is_empty() {
        errors.push(Error::required(&path.child("type"), "is required"));
    } else {
        validate::label_key(errors, &path.child("type"), &condition.type_);
    }
    validate::one_of(errors, &path.child("status"), &condition.status, &STATUSES);
    if let Some(generation) = condition.observed_generation.filter(|g| *g < 0) {
        let problem = "must be greater than or equal to zero";
        errors.push(Error::invalid(&path.child("observedGeneration"), generation, problem));
    }
    // A missing time decodes as the Unix epoch.
    if condition.last_transition_time.0 == jiff::Timestamp::UNIX_EPOCH {
        errors.push(Error::required(&path.child("lastTransitionTime"), ""));
    }
    let at = path.child("reason");
    if validate::required(errors, &at, &condition.reason) {
        let reason = condition.reason.as_str();
        validate::problems(errors, &at, reason, names::condition_reason(reason));
        if reason.len() > REASON_MAX_BYTES {
            errors.push(Error::too_long(&at, REASON_MAX_BYTES));
        }
    }
    if condition.message.len() > MESSAGE_MAX_BYTES {
        errors.push(Error::too_long(&path.child("message"), MESSAGE_MAX_BYTES));
    }
}
