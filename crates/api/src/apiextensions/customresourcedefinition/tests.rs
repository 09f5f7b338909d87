//! Tests of validation: common mistakes in definitions, and the errors they get.

use bytes::Bytes;
use serde_json::{Value, json};

use super::RESOURCE;
use crate::object::Object;

fn definition(change: impl FnOnce(&mut Value)) -> Value {
    let mut object = json!({
        "apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
        "metadata": {"name": "crontabs.stable.example.com"},
        "spec": {
            "group": "stable.example.com", "scope": "Namespaced",
            "names": {"plural": "crontabs", "kind": "CronTab"},
            "versions": [{"name": "v1", "served": true, "storage": true, "schema": {"openAPIV3Schema": {
                "type": "object", "properties": {"spec": {"type": "object", "properties": {
                    "cronSpec": {"type": "string"}, "replicas": {"type": "integer"}}}}}}}],
        },
    });
    change(&mut object);
    RESOURCE.strategy.default(&mut object);
    RESOURCE.strategy.prepare_for_create(&mut object);
    object
}

fn errors(change: impl FnOnce(&mut Value)) -> String {
    let object = definition(change);
    let held = Object::new(Bytes::from(object.to_string()), &[]).unwrap();
    RESOURCE.strategy.validate(&held).to_string()
}

fn schema(object: &mut Value) -> &mut Value {
    object.pointer_mut("/spec/versions/0/schema/openAPIV3Schema").unwrap()
}

#[test]
fn a_plain_definition_is_fine() {
    assert_eq!(errors(|_| {}), "[]");
    let object = definition(|_| {});
    assert_eq!(object["spec"]["names"]["listKind"], "CronTabList");
    assert_eq!(object["spec"]["names"]["singular"], "crontab");
    assert_eq!(object["spec"]["conversion"], json!({"strategy": "None"}));
    assert_eq!(object["status"], json!({"storedVersions": ["v1"]}));
}

/// A change of a valid definition, and the expected error.
type Mistake = (Box<dyn FnOnce(&mut Value)>, &'static str);

#[test]
fn mistakes_are_named_in_upstreams_words() {
    let cases: Vec<Mistake> = vec![
        (
            Box::new(|o| o["metadata"]["name"] = json!("x.stable.example.com")),
            r#"metadata.name: Invalid value: "x.stable.example.com": must be spec.names.plural+"."+spec.group"#,
        ),
        (
            Box::new(|o| {
                o["spec"]["group"] = json!("stable");
                o["metadata"]["name"] = json!("crontabs.stable");
            }),
            r#"spec.group: Invalid value: "stable": should be a domain with at least one dot"#,
        ),
        (
            Box::new(|o| o["spec"]["scope"] = json!("Global")),
            r#"spec.scope: Unsupported value: "Global": supported values: "Cluster", "Namespaced""#,
        ),
        (
            Box::new(|o| {
                o["spec"]["versions"][0].as_object_mut().unwrap().remove("schema");
            }),
            "spec.versions[0].schema.openAPIV3Schema: Required value",
        ),
        (
            Box::new(|o| schema(o)["properties"]["spec"]["properties"]["x"] = json!({})),
            "spec.validation.openAPIV3Schema.properties[spec].properties[x].type: Required value: must not be empty for specified object fields",
        ),
        (
            Box::new(|o| schema(o)["properties"]["l"] = json!({"type": "array"})),
            "spec.validation.openAPIV3Schema.properties[l].items: Required value: must be specified",
        ),
        (
            Box::new(|o| {
                schema(o)["properties"]["l"] =
                    json!({"type": "array", "uniqueItems": true, "items": {"type": "string"}})
            }),
            "spec.validation.openAPIV3Schema.properties[l].uniqueItems: Forbidden: uniqueItems cannot be set to true since the runtime complexity becomes quadratic",
        ),
        (
            Box::new(|o| schema(o)["properties"]["n"] = json!({"type": "integer", "default": "x"})),
            r#"spec.validation.openAPIV3Schema.properties[n].default: Invalid value: "string":  in body must be of type integer: "string""#,
        ),
        (
            Box::new(|o| {
                schema(o)["properties"]["p"] = json!({"type": "string", "anyOf": [{"type": "string"}]})
            }),
            "spec.validation.openAPIV3Schema.properties[p].anyOf[0].type: Forbidden: must be empty to be structural",
        ),
        (
            Box::new(|o| {
                schema(o)["properties"]["metadata"] =
                    json!({"type": "object", "properties": {"labels": {"type": "object"}}})
            }),
            "spec.validation.openAPIV3Schema.properties[metadata]: Forbidden: must not specify anything other than name and generateName, but metadata is implicitly specified",
        ),
        (
            Box::new(|o| o["spec"]["preserveUnknownFields"] = json!(true)),
            "spec.preserveUnknownFields: Invalid value: true: cannot set to true, set x-kubernetes-preserve-unknown-fields to true in spec.versions[*].schema instead",
        ),
        (
            Box::new(|o| {
                o["spec"]["versions"][0]["additionalPrinterColumns"] =
                    json!([{"name": "A", "type": "text", "jsonPath": ".a"}])
            }),
            r#"spec.additionalPrinterColumns[0].type: Invalid value: "text": must be one of boolean,date,integer,number,string"#,
        ),
        (
            Box::new(|o| {
                o["spec"]["versions"][0]["subresources"] =
                    json!({"scale": {"specReplicasPath": ".status.x", "statusReplicasPath": ".status.x"}})
            }),
            r#"spec.subresources.scale.specReplicasPath: Invalid value: ".status.x": should be a json path under .spec"#,
        ),
        (
            Box::new(|o| {
                o["spec"]["versions"][0]["selectableFields"] = json!([{"jsonPath": ".spec.missing"}])
            }),
            r#"spec.selectableFields[0].jsonPath: Invalid value: ".spec.missing": is an invalid path: does not refer to a valid field"#,
        ),
        (
            Box::new(|o| o["spec"]["conversion"] = json!({"strategy": "Webhook"})),
            "[spec.conversion.webhookClientConfig: Required value: required when strategy is set to Webhook, spec.conversion.conversionReviewVersions: Required value]",
        ),
        (
            Box::new(|o| {
                o["spec"]["group"] = json!("x.k8s.io");
                o["metadata"]["name"] = json!("crontabs.x.k8s.io");
            }),
            r#"metadata.annotations[api-approved.kubernetes.io]: Required value: protected groups must have approval annotation "api-approved.kubernetes.io", see https://github.com/kubernetes/enhancements/pull/1111"#,
        ),
    ];
    for (change, expected) in cases {
        assert_eq!(errors(change), expected);
    }
}

#[test]
fn several_versions_are_told_apart() {
    let found = errors(|o| {
        let mut second = o["spec"]["versions"][0].clone();
        second["name"] = json!("v2");
        second["schema"]["openAPIV3Schema"]["properties"]["spec"]["type"] = json!("thing");
        o["spec"]["versions"].as_array_mut().unwrap().push(second);
    });
    assert!(
        found.contains(
            "spec.versions[1].schema.openAPIV3Schema.properties[spec].type: Unsupported value: \"thing\""
        ),
        "{found}"
    );
    assert!(found.contains("must have exactly one version marked as storage version"), "{found}");
}

#[test]
fn names_are_immutable_once_established() {
    let old = definition(|_| {});
    let mut new = old.clone();
    new["spec"]["names"]["kind"] = json!("Other");
    let held = |v: &Value| Object::new(Bytes::from(v.to_string()), &[]).unwrap();
    let errors = |old: &Value| RESOURCE.strategy.validate_update(&held(&new), &held(old), None).to_string();
    assert_eq!(errors(&old), "[]");
    let mut established = old;
    established["status"]["conditions"] = json!([{"type": "Established", "status": "True"}]);
    assert_eq!(errors(&established), "spec.names.kind: Invalid value: \"Other\": field is immutable");
}

#[test]
fn odd_formats_and_sets_are_warned_about() {
    let object = definition(|o| {
        schema(o)["properties"]["a"] = json!({"type": "string", "format": "odd"});
        schema(o)["properties"]["l"] = json!({"type": "array", "x-kubernetes-list-type": "set",
            "items": {"type": "object", "x-kubernetes-map-type": "atomic"}});
    });
    let held = Object::new(Bytes::from(object.to_string()), &[]).unwrap();
    assert_eq!(
        RESOURCE.strategy.warnings(&held, None),
        [
            "unrecognized format \"odd\"",
            "x-kubernetes-list-type: set for items of type \"object\" is not supported by server-side apply or CEL validation rules"
        ]
    );
}

#[test]
fn rules_have_to_compile_and_be_cheap() {
    let with = |rule: Value| {
        errors(move |o| {
            let spec = &mut schema(o)["properties"]["spec"];
            spec["properties"]["names"] = json!({"type": "array", "items": {"type": "string"}});
            spec["x-kubernetes-validations"] = json!([rule]);
        })
    };
    let at = "spec.validation.openAPIV3Schema.properties[spec].x-kubernetes-validations[0]";
    assert_eq!(with(json!({"rule": "self.replicas > 0"})), "[]");
    let unknown = with(json!({"rule": "self.nothing > 0"}));
    assert!(
        unknown.starts_with(&format!(
            "{at}.rule: Invalid value: {{\"Rule\":\"self.nothing \\u003e 0\",\"Message\":\"\",\"MessageExpression\":\"\",\"Reason\":null,\"FieldPath\":\"\",\"OptionalOldSelf\":null}}: compilation failed: ERROR: <input>:1:5: undefined field 'nothing'"
        )),
        "{unknown}"
    );
    let no_bool = with(json!({"rule": "self.replicas"}));
    assert!(no_bool.ends_with("cel expression must evaluate to a bool"), "{no_bool}");
    let dear = with(json!({"rule": "self.names.all(x, self.names.all(y, x == y))"}));
    assert!(
        dear.contains(&format!(
            "{at}.rule: Forbidden: estimated rule cost exceeds budget by factor of more than 100x"
        )),
        "{dear}"
    );
    let optional = with(json!({"rule": "self.replicas > 0", "optionalOldSelf": true}));
    assert_eq!(
        optional,
        format!("{at}.optionalOldSelf: Invalid value: true: may not be set if oldSelf is not used in rule")
    );
    let message = with(json!({"rule": "self.replicas > 0", "messageExpression": "1"}));
    assert!(message.ends_with("messageExpression must evaluate to a string"), "{message}");
}
