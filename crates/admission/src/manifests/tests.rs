//! Tests of which files are accepted, and why others are refused.

use knarr_api::admissionregistration::{
    validatingadmissionpolicy, validatingadmissionpolicybinding, validatingwebhookconfiguration,
};

use super::*;

const POLICIES: [&Resource; 2] =
    [&validatingadmissionpolicy::RESOURCE, &validatingadmissionpolicybinding::RESOURCE];

fn files(texts: &[&str]) -> Vec<Content> {
    let file = |(at, text): (usize, &&str)| (format!("/m/{at}.yaml").into(), text.as_bytes().to_vec());
    texts.iter().enumerate().map(file).collect()
}

fn names(texts: &[&str]) -> Result<Vec<Vec<String>>, String> {
    let name = |value: &Value| value["metadata"]["name"].as_str().unwrap().to_owned();
    let found = read(&files(texts), &POLICIES)?;
    Ok(found.iter().map(|of_kind| of_kind.iter().map(name).collect()).collect())
}

fn policy(name: &str) -> String {
    format!(
        "apiVersion: admissionregistration.k8s.io/v1\nkind: ValidatingAdmissionPolicy\nmetadata: {{name: {name}}}\n\
         spec:\n  matchConstraints:\n    resourceRules:\n    - {{apiGroups: [''], apiVersions: [v1], \
         operations: ['*'], resources: [pods]}}\n  validations: [{{expression: 'true'}}]\n"
    )
}

fn binding(name: &str, policy: &str) -> String {
    format!(
        "{{\"apiVersion\": \"admissionregistration.k8s.io/v1\", \"kind\": \"ValidatingAdmissionPolicyBinding\", \
         \"metadata\": {{\"name\": {name:?}}}, \"spec\": {{\"policyName\": {policy:?}, \"validationActions\": [\"Deny\"]}}}}"
    )
}

#[test]
fn files_documents_and_lists_are_read() {
    let several = format!(
        "---\n# nothing\n---\n{}--- # next\n\n{}",
        policy("b.static.k8s.io"),
        policy("a.static.k8s.io")
    );
    let list =
        format!("apiVersion: v1\nkind: List\nitems:\n- {}\n", binding("x.static.k8s.io", "a.static.k8s.io"));
    let typed = "apiVersion: admissionregistration.k8s.io/v1\nkind: ValidatingAdmissionPolicyBindingList\nitems:\n\
                 - metadata: {name: y.static.k8s.io}\n  spec: {policyName: b.static.k8s.io, validationActions: [Warn]}\n";
    let found = names(&[&several, &list, typed, ""]).unwrap();
    assert_eq!(found, [["a.static.k8s.io", "b.static.k8s.io"], ["x.static.k8s.io", "y.static.k8s.io"]]);
    let defaulted = read(&files(&[&several]), &POLICIES).unwrap();
    assert_eq!(defaulted[0][0]["spec"]["failurePolicy"], "Fail");
}

#[test]
fn what_cannot_be_followed_is_an_error() {
    let good = policy("a.static.k8s.io");
    for (text, why) in [
        (policy("a"), "\"a\" in file \"/m/0.yaml\" must have a name ending with \".static.k8s.io\""),
        (policy("''"), "resource in file \"/m/0.yaml\" must have a name"),
        (policy("A.static.k8s.io"), "metadata.name: Invalid value: \"A.static.k8s.io\""),
        (format!("{good}---\n{good}"), "duplicate name \"a.static.k8s.io\""),
        (
            good.replace("'true'", "'1 +'"),
            "ValidatingAdmissionPolicy \"a.static.k8s.io\": spec.validations[0].expression",
        ),
        (good.replace("validations:", "validation:"), "unknown field \"spec.validation\""),
        (format!("{good}kind: ValidatingAdmissionPolicy\n"), "already set in map"),
        ("apiVersion: v1\nkind: Pod\n".to_owned(), "unsupported resource type v1, Kind=Pod"),
        ("kind: Pod\n".to_owned(), "Object 'apiVersion' is missing"),
        ("apiVersion: v1\nkind: List\nitems: [{a: b}]\n".to_owned(), "failed to decode list item"),
        ("apiVersion: v1\nkind: List\nitem: []\n".to_owned(), "unknown field \"item\""),
        ("apiVersion: v1\nkind: List\nitems: {}\n".to_owned(), "the items of a list are not a list"),
        (format!("--- {{a: b}}\n---\n{good}"), "invalid Yaml document separator: {a: b}"),
        ("- a\n".to_owned(), "Object 'Kind' is missing"),
        ("{".to_owned(), "error loading /m/0.yaml: yaml:"),
    ] {
        let error = names(&[&text]).unwrap_err();
        assert!(error.contains(why), "{why}: {error}");
    }
}

#[test]
fn parameters_services_and_unknown_policies_are_for_the_api() {
    let values = |texts: &[&str], of: &[&'static Resource]| read(&files(texts), of).unwrap();
    let found =
        values(&[&policy("a.static.k8s.io"), &binding("b.static.k8s.io", "a.static.k8s.io")], &POLICIES);
    assert_eq!(check_policies(&found[0], &found[1]), Ok(()));
    let with = |at: &str, value: Value| {
        let mut found = found.clone();
        let of_policy = at == "paramKind";
        found[usize::from(!of_policy)][0]["spec"][at] = value;
        check_policies(&found[0], &found[1]).unwrap_err()
    };
    assert!(
        with("paramKind", serde_json::json!({"kind": "ConfigMap"}))
            .contains("spec.paramKind is not supported")
    );
    assert!(with("paramRef", serde_json::json!({"name": "x"})).contains("spec.paramRef is not supported"));
    assert!(with("policyName", "a".into()).contains("must end with \".static.k8s.io\""));
    assert!(
        with("policyName", "c.static.k8s.io".into()).contains("does not exist in the manifest directory")
    );

    let webhook = |client: &str| {
        let text = format!(
            "apiVersion: admissionregistration.k8s.io/v1\nkind: ValidatingWebhookConfiguration\n\
             metadata: {{name: a.static.k8s.io}}\nwebhooks:\n- name: a.example.com\n  sideEffects: None\n  \
             admissionReviewVersions: [v1]\n  clientConfig: {client}\n"
        );
        check_webhooks(&values(&[&text], &[&validatingwebhookconfiguration::RESOURCE])[0])
    };
    assert_eq!(webhook("{url: 'https://127.0.0.1/x'}"), Ok(()));
    let why = webhook("{service: {namespace: ns, name: web}}").unwrap_err();
    assert_eq!(
        why,
        "webhook \"a.example.com\" in \"a.static.k8s.io\": clientConfig.service is not supported for static manifests; \
         use clientConfig.url instead"
    );
}
