//! Tests of the parsing of webhooks' responses.

use serde_json::json;

use super::configurations::hooks_of;
use super::review::{Version, denied, verdict};

#[test]
fn versions_are_chosen() {
    let owned = |list: &[&str]| list.iter().map(|v| (*v).to_owned()).collect::<Vec<_>>();
    for (accepted, expected) in [
        (&["v1", "v1beta1"][..], Some(Version::V1)),
        (&["v2", "v1beta1", "v1"], Some(Version::V1Beta1)),
        (&["v2"], None),
        (&[], None),
    ] {
        assert_eq!(Version::choose(&owned(accepted)), expected);
    }
}

#[test]
fn answers_must_make_sense() {
    let v1 = |response: serde_json::Value| json!({"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "response": response});
    for (mutating, review, expected) in [
        (true, json!({}), Some("webhook response was absent")),
        (true, v1(json!({"uid": "x"})), Some("expected response.uid=\"u\", got \"x\"")),
        (
            true,
            json!({"apiVersion": "admission.k8s.io/v1beta1", "kind": "AdmissionReview", "response": {"uid": "u"}}),
            Some(
                "expected webhook response of admission.k8s.io/v1, Kind=AdmissionReview, got admission.k8s.io/v1beta1, Kind=AdmissionReview",
            ),
        ),
        (
            true,
            v1(json!({"uid": "u", "patch": "W10="})),
            Some("webhook returned response.patch but not response.patchType"),
        ),
        (
            true,
            v1(json!({"uid": "u", "patchType": "JSONPatch"})),
            Some("webhook returned response.patchType but not response.patch"),
        ),
        (
            false,
            v1(json!({"uid": "u", "patch": "W10="})),
            Some("validating webhook may not return response.patch"),
        ),
        (
            false,
            v1(json!({"uid": "u", "patchType": "JSONPatch"})),
            Some("validating webhook may not return response.patchType"),
        ),
        (true, v1(json!({"uid": "u", "allowed": true, "patch": "W10=", "patchType": "JSONPatch"})), None),
        (false, v1(json!({"uid": "u"})), None),
    ] {
        let found = verdict(Version::V1, "u", mutating, &review).err();
        assert_eq!(found.as_deref(), expected, "{review}");
    }
    let old = verdict(Version::V1Beta1, "u", true, &json!({"response": {"patch": "W10="}}));
    assert_eq!(old.map(|v| v.patch_type), Ok("JSONPatch".to_owned()));
}

#[test]
fn refusals_are_explained() {
    let status = |value: serde_json::Value| serde_json::from_value(value).ok();
    for (result, code, message) in [
        (None, 400, "admission webhook \"w\" denied the request without explanation"),
        (
            status(json!({"message": "no", "code": 200})),
            400,
            "admission webhook \"w\" denied the request: no",
        ),
        (
            status(json!({"reason": "Why", "code": 403})),
            403,
            "admission webhook \"w\" denied the request: Why",
        ),
    ] {
        let error = denied("w", result);
        assert_eq!((error.code(), error.message()), (code, message));
        assert_eq!(error.0.status.as_deref(), Some("Failure"));
    }
}

#[test]
fn hooks_of_one_name_are_told_apart() {
    let hooks = hooks_of(
        &json!({"metadata": {"name": "c"}, "webhooks": [{"name": "a"}, {"name": "a"}, {"name": "b"}]}),
    );
    let uids: Vec<_> = hooks.iter().map(|h| h.uid.as_str()).collect();
    assert_eq!(uids, ["c/a/0", "c/a/1", "c/b/0"]);
    assert_eq!(hooks[0].timeout.as_secs(), 10);
}
