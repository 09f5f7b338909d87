//! Access reviews: whether a user is authorized for an action, and the rules of the current user.

use knarr_api::validate::{self, invalid_text};
use knarr_apimachinery::field::{Error, ErrorList, Path};
use knarr_apimachinery::names;
use knarr_apimachinery::status::StatusError;
use serde_json::{Value, json};

use crate::state::State;
use knarr_auth::authn::UserInfo;
use knarr_auth::authz::{Attributes, Decision, node};
use knarr_registry::options::WriteParams;
use knarr_registry::served::Served;
use knarr_registry::subresources::body_of;
use knarr_registry::{managed, metadata};
use knarr_wire::output::Answer;
use knarr_wire::request::Request;

const GROUP: &str = "authorization.k8s.io";

pub async fn answer(
    server: &State,
    request: &Request,
    served: &Served,
    kind: &str,
) -> Result<Answer, StatusError> {
    let params = WriteParams::parse(request, "CreateOptions")?;
    let mut review = body_of(request, GROUP, "v1", kind, &params)?;
    metadata::match_namespace(served, &mut review, &request.info.namespace)?;
    if kind == "SelfSubjectRulesReview" {
        let review = server.registry.admit_review(request, served, review, &params).await?;
        return self_rules(server, request, review);
    }
    let spec = &review["spec"];
    let mut errors = validate_spec(spec, kind, &request.info.namespace);
    errors.extend(validate_metadata(&review, kind));
    if !errors.is_empty() {
        return Err(StatusError::invalid(GROUP, kind, "", &errors));
    }
    review = server.registry.admit_review(request, served, review, &params).await?;
    let spec = review["spec"].clone();
    managed::created(served, &params, &mut review, server.clock.now());
    let user = if kind == "SelfSubjectAccessReview" { request.user.clone() } else { user_of(&spec) };
    let decision = server.authorizer.authorize(&user, &attributes(&spec)).await;
    let mut status = json!({"allowed": decision.is_allowed()});
    if !decision.reason().is_empty() {
        status["reason"] = decision.reason().into();
    }
    if let Decision::Allowed { reason } = &decision
        && reason.is_empty()
    {
        status.as_object_mut().map(|s| s.remove("reason"));
    }
    if matches!(decision, Decision::Denied { .. }) {
        status["denied"] = true.into();
    }
    review["status"] = status;
    if !review["metadata"].is_object() {
        review["metadata"] = json!({});
    }
    Ok(Answer::Value { code: 201, value: review })
}

/// Checks that a review has no metadata, except for the namespace of a local review.
fn validate_metadata(review: &Value, kind: &str) -> ErrorList {
    let mut errors = ErrorList::new();
    let mut metadata = review["metadata"].clone();
    if let Value::Object(fields) = &mut metadata {
        fields.remove("managedFields");
        fields.retain(|_, v| !v.is_null());
        let local = kind == "LocalSubjectAccessReview";
        if fields.keys().any(|field| !local || field != "namespace") {
            let why = match kind {
                "LocalSubjectAccessReview" => "must be empty except for namespace",
                _ => "must be empty",
            };
            errors.push(Error::invalid(&Path::new("metadata"), metadata, why));
        }
    }
    errors
}

fn validate_spec(spec: &Value, kind: &str, namespace: &str) -> ErrorList {
    let mut errors = ErrorList::new();
    let path = Path::new("spec");
    let (resource, other) = (&spec["resourceAttributes"], &spec["nonResourceAttributes"]);
    if resource.is_object() == other.is_object() {
        let why = "exactly one of nonResourceAttributes or resourceAttributes must be specified";
        errors.push(match path_text(other) {
            None => Error::invalid(&path, Value::Null, why),
            Some(text) => invalid_text(&path, &text, why),
        });
    }
    if kind != "SelfSubjectAccessReview" {
        let nobody = spec["user"].as_str().unwrap_or("").is_empty()
            && spec["groups"].as_array().is_none_or(Vec::is_empty);
        if nobody {
            let why = "at least one of user or group must be specified";
            errors.push(Error::invalid(&path.child("user"), "", why));
        }
    }
    for (field, fields) in [("fieldSelector", true), ("labelSelector", false)] {
        let at = path.child("resourceAttributes").child(field);
        validate_selector(&mut errors, &at, &resource[field], fields);
    }
    if kind == "LocalSubjectAccessReview" {
        let own = resource["namespace"].as_str().unwrap_or("");
        if resource.is_object() && own != namespace {
            let at = path.child("resourceAttributes").child("namespace");
            errors.push(Error::invalid(&at, own, "must match metadata.namespace"));
        }
        if let Some(text) = path_text(other) {
            let at = path.child("nonResourceAttributes");
            errors.push(invalid_text(&at, &text, "disallowed on this kind of request"));
        }
    }
    errors
}

/// Formats the path of the attributes for error messages.
fn path_text(attributes: &Value) -> Option<String> {
    let text = |field: &str| Value::from(attributes[field].as_str().unwrap_or(""));
    attributes.is_object().then(|| format!(r#"{{"Path":{},"Verb":{}}}"#, text("path"), text("verb")))
}

/// Validates a selector, which is given as text or as a list of requirements. Unknown operators are accepted.
fn validate_selector(errors: &mut ErrorList, path: &Path, selector: &Value, fields: bool) {
    if !selector.is_object() {
        return;
    }
    let raw = selector["rawSelector"].as_str().unwrap_or("");
    let none = Vec::new();
    let requirements = selector["requirements"].as_array().unwrap_or(&none);
    let at = path.child("requirements");
    if !raw.is_empty() && !requirements.is_empty() {
        let why = "may not specified at the same time as requirements";
        errors.push(Error::invalid(&path.child("rawSelector"), raw, why));
    }
    if raw.is_empty() && requirements.is_empty() {
        let why = format!("when {path} is specified, requirements or rawSelector is required");
        errors.push(Error::required(&at, why));
    }
    for (i, requirement) in requirements.iter().enumerate() {
        let at = at.index(i);
        let values: Vec<&str> =
            requirement["values"].as_array().into_iter().flatten().filter_map(Value::as_str).collect();
        match requirement["operator"].as_str().unwrap_or("") {
            "In" | "NotIn" if values.is_empty() => {
                let why = "must be specified when `operator` is 'In' or 'NotIn'";
                errors.push(Error::required(&at.child("values"), why));
            }
            "Exists" | "DoesNotExist" if !values.is_empty() => {
                let why = "may not be specified when `operator` is 'Exists' or 'DoesNotExist'";
                errors.push(Error::forbidden(&at.child("values"), why));
            }
            _ => {}
        }
        let key = requirement["key"].as_str().unwrap_or("");
        if !fields {
            validate::label_key(errors, &at.child("key"), key);
            for (j, value) in values.iter().enumerate() {
                let problems = names::label_value(value);
                validate::problems(errors, &at.child("values").index(j), value, problems);
            }
        } else if key.is_empty() {
            errors.push(Error::required(&at.child("key"), "must be specified"));
        }
    }
}

fn user_of(spec: &Value) -> UserInfo {
    UserInfo {
        name: spec["user"].as_str().unwrap_or("").to_owned(),
        uid: spec["uid"].as_str().unwrap_or("").to_owned(),
        groups: serde_json::from_value(spec["groups"].clone()).unwrap_or_default(),
        extra: serde_json::from_value(spec["extra"].clone()).unwrap_or_default(),
    }
}

fn attributes(spec: &Value) -> Attributes {
    let other = &spec["nonResourceAttributes"];
    let text = |v: &Value, field: &str| v[field].as_str().unwrap_or("").to_owned();
    if other.is_object() {
        return Attributes { verb: text(other, "verb"), path: text(other, "path"), ..Attributes::default() };
    }
    let wanted = &spec["resourceAttributes"];
    Attributes {
        verb: text(wanted, "verb"),
        group: text(wanted, "group"),
        version: text(wanted, "version"),
        resource: text(wanted, "resource"),
        subresource: text(wanted, "subresource"),
        namespace: text(wanted, "namespace"),
        name: text(wanted, "name"),
        path: String::new(),
        field_selector: selector(&wanted["fieldSelector"], true),
        label_selector: selector(&wanted["labelSelector"], false),
    }
}

/// Returns a selector as text, whether it was given as text or as a list of requirements. Requirements that cannot be
/// expressed are left out; the decision is then the one for the wider request, as upstream decides.
fn selector(given: &Value, fields: bool) -> String {
    if let Some(raw) = given["rawSelector"].as_str().filter(|r| !r.is_empty()) {
        return raw.to_owned();
    }
    let term = |requirement: &Value| -> Option<String> {
        let key = requirement["key"].as_str()?;
        let values: Vec<&str> =
            requirement["values"].as_array().into_iter().flatten().filter_map(Value::as_str).collect();
        match (requirement["operator"].as_str()?, values.as_slice()) {
            ("In", [one]) => Some(format!("{key}={one}")),
            ("NotIn", [one]) => Some(format!("{key}!={one}")),
            ("In", all) if !fields => Some(format!("{key} in ({})", all.join(","))),
            ("NotIn", all) if !fields => Some(format!("{key} notin ({})", all.join(","))),
            ("Exists", []) if !fields => Some(key.to_owned()),
            ("DoesNotExist", []) if !fields => Some(format!("!{key}")),
            _ => None,
        }
    };
    let terms: Vec<String> =
        given["requirements"].as_array().into_iter().flatten().filter_map(term).collect();
    terms.join(",")
}

fn self_rules(server: &State, request: &Request, mut review: Value) -> Result<Answer, StatusError> {
    let namespace = review["spec"]["namespace"].as_str().unwrap_or("").to_owned();
    if namespace.is_empty() {
        return Err(StatusError::bad_request("no namespace on request"));
    }
    // The exemption of system:masters does not appear in the rules.
    let (rules, mut errors) = server.authorizer.rbac.rules_for(&request.user, &namespace);
    let is_node = node::node_name(&request.user).is_some();
    if is_node {
        errors.push("node authorizer does not support user rule resolution".into());
    }
    let (mut resource_rules, mut url_rules) = (Vec::new(), Vec::new());
    for rule in &rules {
        if let Some(urls) = rule.non_resource_urls.as_ref().filter(|u| !u.is_empty()) {
            url_rules.push(json!({"verbs": rule.verbs, "nonResourceURLs": urls}));
            continue;
        }
        let mut shown =
            json!({"verbs": rule.verbs, "apiGroups": rule.api_groups, "resources": rule.resources});
        if let Some(names) = rule.resource_names.as_ref().filter(|n| !n.is_empty()) {
            shown["resourceNames"] = json!(names);
        }
        resource_rules.push(shown);
    }
    let mut status = json!({
        "incomplete": !errors.is_empty(), "resourceRules": resource_rules, "nonResourceRules": url_rules,
    });
    if !errors.is_empty() {
        status["evaluationError"] = errors.join(", ").into();
    }
    review["status"] = status;
    if !review["metadata"].is_object() {
        review["metadata"] = json!({});
    }
    // The answer does not repeat the request's spec.
    review["spec"] = json!({});
    Ok(Answer::Value { code: 201, value: review })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn questions_are_checked() {
        let one = "exactly one of nonResourceAttributes or resourceAttributes must be specified";
        for (spec, kind, want) in [
            (json!({"resourceAttributes": {}}), "SelfSubjectAccessReview", String::from("[]")),
            (json!({}), "SelfSubjectAccessReview", format!("spec: Invalid value: null: {one}")),
            (
                json!({"resourceAttributes": {}, "nonResourceAttributes": {"path": "/"}}),
                "SelfSubjectAccessReview",
                format!(r#"spec: Invalid value: {{"Path":"/","Verb":""}}: {one}"#),
            ),
            (
                json!({"user": "a", "resourceAttributes": {"namespace": "b"}}),
                "LocalSubjectAccessReview",
                r#"spec.resourceAttributes.namespace: Invalid value: "b": must match metadata.namespace"#
                    .into(),
            ),
            (
                json!({"resourceAttributes": {"fieldSelector": {}}}),
                "SelfSubjectAccessReview",
                "spec.resourceAttributes.fieldSelector.requirements: Required value: when \
                 spec.resourceAttributes.fieldSelector is specified, requirements or rawSelector is required"
                    .into(),
            ),
        ] {
            assert_eq!(validate_spec(&spec, kind, "a").to_string(), want, "{spec}");
        }
    }
}
