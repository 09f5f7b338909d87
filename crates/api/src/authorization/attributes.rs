//! The question of an access review: about a resource or about a path, never both.

use knarr_apimachinery::field::{Error, ErrorList, Path};
use serde::Serialize;
use serde_json::Value;

use crate::validate::shown;

/// Requires exactly one of the two kinds of question.
pub fn validate_question<T: Serialize>(errors: &mut ErrorList, about_resource: bool, about_path: Option<&T>) {
    if about_resource == about_path.is_some() {
        let problem = "exactly one of nonResourceAttributes or resourceAttributes must be specified";
        let value = about_path.map_or(Value::Null, shown);
        errors.push(Error::invalid(&Path::new("spec"), value, problem));
    }
}

/// Requires a user or a group.
pub fn validate_subject(errors: &mut ErrorList, user: Option<&str>, groups: Option<&Vec<String>>) {
    if user.unwrap_or("").is_empty() && groups.is_none_or(Vec::is_empty) {
        let problem = "at least one of user or group must be specified";
        errors.push(Error::invalid(&Path::new("spec").child("user"), "", problem));
    }
}
