//! The approval that definitions in Kubernetes' own API groups need (`api-approved.kubernetes.io`).

use serde_json::Value;

/// The annotation with the URL of the approval, or with `unapproved` and a reason.
pub const ANNOTATION: &str = "api-approved.kubernetes.io";

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Approval {
    Missing,
    Bypassed,
    Approved,
    Invalid,
}

/// Returns whether the API group is one of Kubernetes' own.
pub fn is_protected(group: &str) -> bool {
    ["k8s.io", "kubernetes.io"]
        .iter()
        .any(|own| group == *own || group.strip_suffix(own).is_some_and(|rest| rest.ends_with('.')))
}

/// Returns the state of a definition's approval, and the reason.
pub fn of(object: &Value) -> (Approval, String) {
    let annotations = object.pointer("/metadata/annotations");
    let text = annotations.and_then(|a| a.get(ANNOTATION)).and_then(Value::as_str).unwrap_or("");
    let pull = "see https://github.com/kubernetes/enhancements/pull/1111";
    if text.is_empty() {
        let why = format!("protected groups must have approval annotation \"{ANNOTATION}\", {pull}");
        return (Approval::Missing, why);
    }
    if text.starts_with("unapproved") {
        return (Approval::Bypassed, format!("not approved: {}", Value::from(text)));
    }
    let host = text.split_once("://").filter(|(scheme, _)| !scheme.is_empty()).map(|(_, rest)| rest);
    if host.is_some_and(|h| !h.is_empty() && !h.starts_with('/')) {
        return (Approval::Approved, format!("approved in {text}"));
    }
    let why = format!(
        "protected groups must have approval annotation \"{ANNOTATION}\" with either a URL or a reason starting with \
         \"unapproved\", {pull}"
    );
    (Approval::Invalid, why)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn approvals() {
        for (text, expected) in [
            ("", Approval::Missing),
            ("unapproved, experimental", Approval::Bypassed),
            ("https://github.com/kubernetes/enhancements/pull/1111", Approval::Approved),
            ("yes", Approval::Invalid),
        ] {
            let object = json!({"metadata": {"annotations": {ANNOTATION: text}}});
            assert_eq!(of(&object).0, expected, "{text}");
        }
        assert!(is_protected("apps.k8s.io") && is_protected("k8s.io") && !is_protected("myk8s.io"));
    }
}
