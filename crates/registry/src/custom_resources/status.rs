//! The status of a CustomResourceDefinition: accepted names, and the conditions that follow from them.

use std::collections::BTreeSet;

use knarr_api::apiextensions::approval::{self, Approval};
use knarr_api::apiextensions::customresourcedefinition::structural;
use knarr_api::apiextensions::definition::{
    APPROVAL, Condition, Definition, ESTABLISHED, NAMES_ACCEPTED, NON_STRUCTURAL, Names, remove_condition,
};
use knarr_api::prepare;
use knarr_apimachinery::field::{Error, ErrorList, Path};
use serde_json::Value;

/// Accepts the names that no other definition of the group uses, and sets the condition.
pub fn names(object: &mut Value, others: &[Value], now: &str) {
    let definition = Definition::parse(object);
    let (mut resources, mut kinds) = (BTreeSet::new(), BTreeSet::new());
    for other in others {
        let accepted = Names::parse(other.pointer("/status/acceptedNames"));
        resources.extend([accepted.plural, accepted.singular]);
        resources.extend(accepted.short_names);
        kinds.extend([accepted.kind, accepted.list_kind]);
    }
    let (requested, before) = (&definition.names, &definition.accepted_names);
    let mut accepted = before.clone();
    let mut problem: Option<(&'static str, String)> = None;
    let mut take = |wanted: &str, had: &str, used: &BTreeSet<String>, reason: &'static str| {
        if wanted == had || !used.contains(wanted) {
            return true;
        }
        problem = Some((reason, format!("\"{wanted}\" is already in use")));
        false
    };
    if take(&requested.plural, &before.plural, &resources, "PluralConflict") {
        accepted.plural.clone_from(&requested.plural);
    }
    if take(&requested.singular, &before.singular, &resources, "SingularConflict") {
        accepted.singular.clone_from(&requested.singular);
    }
    let fresh = |name: &&String| !before.short_names.contains(name);
    let taken: Vec<String> = requested
        .short_names
        .iter()
        .filter(fresh)
        .filter(|name| !take(name, "", &resources, "ShortNamesConflict"))
        .map(|name| format!("\"{name}\" is already in use"))
        .collect();
    if taken.is_empty() {
        accepted.short_names.clone_from(&requested.short_names);
    }
    if take(&requested.kind, &before.kind, &kinds, "KindConflict") {
        accepted.kind.clone_from(&requested.kind);
    }
    if take(&requested.list_kind, &before.list_kind, &kinds, "ListKindConflict") {
        accepted.list_kind.clone_from(&requested.list_kind);
    }
    if let (Some((reason @ "ShortNamesConflict", message)), true) = (&mut problem, taken.len() > 1) {
        (*reason, *message) = ("ShortNamesConflict", format!("[{}]", taken.join(", ")));
    }
    accepted.categories.clone_from(&requested.categories);
    let condition = match problem {
        Some((reason, message)) => Condition::new(NAMES_ACCEPTED, "False", reason, message),
        None => Condition::new(NAMES_ACCEPTED, "True", "NoConflicts", "no conflicts found"),
    };
    let status = prepare::object(object).entry("status").or_insert(Value::Null);
    prepare::object(status).insert("acceptedNames".into(), accepted.to_value());
    condition.set(object, now);
    if definition.condition(ESTABLISHED).is_none() {
        let why = "not all names are accepted";
        Condition::new(ESTABLISHED, "False", "NotAccepted", why).set(object, now);
    }
}

/// Sets the conditions that tell whether the schemas are structural and whether a protected group is approved.
pub fn policies(object: &mut Value, now: &str) {
    let definition = Definition::parse(object);
    match non_structural(&definition) {
        Some(condition) => condition.set(object, now),
        None if definition.condition(NON_STRUCTURAL).is_some() => remove_condition(object, NON_STRUCTURAL),
        None => {}
    }
    if !approval::is_protected(&definition.group) {
        return;
    }
    let (state, message) = approval::of(object);
    let (status, reason) = match state {
        Approval::Approved => ("True", "ApprovedAnnotation"),
        Approval::Bypassed => ("False", "UnapprovedAnnotation"),
        Approval::Missing => ("False", "MissingAnnotation"),
        Approval::Invalid => ("False", "InvalidAnnotation"),
    };
    Condition::new(APPROVAL, status, reason, message).set(object, now);
}

fn non_structural(definition: &Definition) -> Option<Condition> {
    let mut errors = ErrorList::new();
    let spec = Path::new("spec");
    if definition.preserve_unknown_fields {
        errors.push(Error::invalid(&spec.child("preserveUnknownFields"), true, "must be false"));
    }
    for (i, version) in definition.versions.iter().enumerate() {
        let Some(schema) = &version.schema else { continue };
        if let Some(why) = structural::unreadable(schema) {
            let message = format!("failed to check validation schema for version {}: {why}", version.name);
            return Some(Condition::new(NON_STRUCTURAL, "Unknown", "StructuralError", message));
        }
        let path = spec.child("versions").index(i).child("schema").child("openAPIV3Schema");
        errors.extend(structural::validate(schema, &path));
    }
    let violated = !errors.is_empty();
    violated.then(|| Condition::new(NON_STRUCTURAL, "True", "Violations", errors.to_string()))
}

/// Returns whether the definition may be served: its names are accepted, or it was established before. It then stays
/// established even if new names are not accepted.
pub fn may_be_served(definition: &Definition) -> bool {
    definition.is_true(NAMES_ACCEPTED) || definition.is_true(ESTABLISHED)
}

/// Sets the Established condition.
pub fn establish(object: &mut Value, now: &str) {
    let why = "the initial names have been accepted";
    Condition::new(ESTABLISHED, "True", "InitialNamesAccepted", why).set(object, now);
}

/// Copies only the names and conditions that this module sets.
pub fn copy(from: &Value, to: &mut Value) {
    let names = from.pointer("/status/acceptedNames").cloned();
    let status = prepare::object(to).entry("status").or_insert(Value::Null);
    prepare::object(status).insert("acceptedNames".into(), names.unwrap_or_default());
    for ty in [NAMES_ACCEPTED, ESTABLISHED, NON_STRUCTURAL, APPROVAL] {
        let of_type = |c: &&Value| c["type"] == ty;
        let wanted = Definition::parse(from).conditions.into_iter().find(|c| of_type(&c));
        let mut all = Definition::parse(to).conditions;
        let place = all.iter().position(|c| of_type(&c));
        match (wanted, place) {
            (Some(condition), Some(i)) => all[i] = condition,
            (Some(condition), None) => all.push(condition),
            (None, Some(i)) => {
                all.remove(i);
            }
            (None, None) => {}
        }
        if let Some(status) = to.get_mut("status").and_then(Value::as_object_mut) {
            status.insert("conditions".into(), all.into());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn definition(plural: &str, kind: &str, short: &[&str]) -> Value {
        json!({
            "metadata": {"name": format!("{plural}.example.com")},
            "spec": {"group": "example.com", "names": {"plural": plural, "singular": kind.to_lowercase(), "kind": kind,
                "listKind": format!("{kind}List"), "shortNames": short}, "versions": []},
        })
    }

    fn condition<'a>(object: &'a Value, ty: &str) -> &'a Value {
        object["status"]["conditions"].as_array().unwrap().iter().find(|c| c["type"] == ty).unwrap()
    }

    #[test]
    fn free_names_are_accepted() {
        let mut first = definition("foos", "Foo", &["f"]);
        names(&mut first, &[], "t");
        assert_eq!(first["status"]["acceptedNames"], first["spec"]["names"]);
        assert_eq!(condition(&first, NAMES_ACCEPTED)["reason"], "NoConflicts");
        assert_eq!(condition(&first, ESTABLISHED)["reason"], "NotAccepted");
        establish(&mut first, "t");
        assert_eq!(condition(&first, ESTABLISHED)["status"], "True");
        let again = first.clone();
        names(&mut first, &[], "later");
        assert_eq!(first, again);
    }

    #[test]
    fn taken_names_are_not() {
        let mut first = definition("foos", "Foo", &["f"]);
        names(&mut first, &[], "t");
        let mut second = definition("bars", "Foo", &["f"]);
        second["spec"]["names"]["singular"] = json!("bar");
        names(&mut second, &[first], "t");
        assert_eq!(condition(&second, NAMES_ACCEPTED)["reason"], "ListKindConflict");
        assert_eq!(condition(&second, NAMES_ACCEPTED)["message"], "\"FooList\" is already in use");
        assert_eq!(
            second["status"]["acceptedNames"],
            json!({"plural": "bars", "singular": "bar", "kind": ""})
        );
        assert!(!may_be_served(&Definition::parse(&second)));
    }

    #[test]
    fn copying_leaves_other_conditions_alone() {
        let mut wanted = definition("foos", "Foo", &[]);
        names(&mut wanted, &[], "t");
        let mut current = definition("foos", "Foo", &[]);
        current["status"] =
            json!({"storedVersions": ["v1"], "conditions": [{"type": "Terminating", "status": "True"}]});
        copy(&wanted, &mut current);
        assert_eq!(current["status"]["storedVersions"], json!(["v1"]));
        assert_eq!(condition(&current, "Terminating")["status"], "True");
        assert_eq!(condition(&current, NAMES_ACCEPTED)["status"], "True");
    }
}
