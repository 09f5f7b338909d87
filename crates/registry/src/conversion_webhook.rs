//! Conversion by a webhook: sends one ConversionReview for all objects, and checks the response.

use std::time::Duration;

use async_trait::async_trait;
use knarr_api::apiextensions::definition::Definition;
use knarr_apimachinery::names;
use knarr_apimachinery::status::StatusError;
use serde_json::{Map, Value, json};

use crate::Registry;
use crate::conversion::Converter;
use knarr_outgoing::webhook::{Call, Target};

const TIMEOUT: Duration = Duration::from_secs(30);

#[async_trait]
impl Converter for Registry {
    async fn convert(
        &self,
        definition: &Definition,
        objects: Vec<Value>,
        wanted: &str,
    ) -> Result<Vec<Value>, StatusError> {
        convert(self, definition, objects, wanted).await
    }
}

async fn convert(
    registry: &Registry,
    definition: &Definition,
    objects: Vec<Value>,
    wanted: &str,
) -> Result<Vec<Value>, StatusError> {
    let of = objects.first().map(kind_text).unwrap_or_default();
    let failed = |why: String| StatusError::internal(format!("conversion webhook for {of} failed: {why}"));
    let config = &definition.conversion["webhook"];
    let versions = config["conversionReviewVersions"].as_array().map_or(&[][..], Vec::as_slice);
    let version = versions
        .iter()
        .filter_map(Value::as_str)
        .find(|v| matches!(*v, "v1" | "v1beta1"))
        .ok_or_else(|| StatusError::internal("no supported conversion review versions"))?;
    let target = Target::from_client_config(&config["clientConfig"]).map_err(|e| failed(e.to_string()))?;
    let uid = uuid::Uuid::new_v4().to_string();
    let review = json!({
        "kind": "ConversionReview", "apiVersion": format!("apiextensions.k8s.io/{version}"),
        "request": {"uid": uid, "desiredAPIVersion": wanted, "objects": objects},
    });
    let body = serde_json::to_vec(&review).map_err(StatusError::internal)?;
    let call = Call::new(body.into(), TIMEOUT);
    let answer = registry.webhooks.post(registry, &target, &call).await.map_err(|e| failed(e.to_string()))?;
    let answer: Value = serde_json::from_slice(&answer).map_err(|e| failed(e.to_string()))?;
    let converted = accepted(answer, version, &uid).map_err(failed)?;
    if converted.len() != objects.len() {
        return Err(StatusError::internal(format!(
            "conversion webhook for {of} returned {} objects, expected {}",
            converted.len(),
            objects.len()
        )));
    }
    let pairs = objects.iter().zip(converted).enumerate();
    pairs
        .map(|(i, (original, converted))| {
            checked(original, converted, wanted).map_err(|why| {
                StatusError::internal(format!(
                    "conversion webhook for {of} returned invalid converted object at index {i}: {why}"
                ))
            })
        })
        .collect()
}

/// Formats a kind as upstream does: `example.com/v1, Kind=Foo`.
fn kind_text(object: &Value) -> String {
    let text = |name: &str| object.get(name).and_then(Value::as_str).unwrap_or("").to_owned();
    format!("{}, Kind={}", text("apiVersion"), text("kind"))
}

/// Returns the objects in a response, if it is a valid response to the request.
fn accepted(mut answer: Value, version: &str, uid: &str) -> Result<Vec<Value>, String> {
    let expected = format!("apiextensions.k8s.io/{version}, Kind=ConversionReview");
    if version == "v1" && kind_text(&answer) != expected {
        return Err(format!("expected webhook response of {expected}, got {}", kind_text(&answer)));
    }
    let response = answer["response"].take();
    if response.is_null() {
        return Err("no response provided".to_owned());
    }
    let given = response["uid"].as_str().unwrap_or("");
    if version == "v1" && given != uid {
        return Err(format!("expected response.uid={uid:?}, got {given:?}"));
    }
    let status = response["result"]["status"].as_str().unwrap_or("");
    if status != "Success" {
        return Err(match response["result"]["message"].as_str() {
            Some(message) if !message.is_empty() => message.to_owned(),
            _ => format!("response.result.status was '{status}', not 'Success'"),
        });
    }
    Ok(response["convertedObjects"].as_array().cloned().unwrap_or_default())
}

/// Returns the converted object with the metadata that a conversion must not change.
fn checked(original: &Value, mut converted: Value, wanted: &str) -> Result<Value, String> {
    let text = |v: &Value, name: &str| v.get(name).and_then(Value::as_str).unwrap_or("").to_owned();
    let version = text(&converted, "apiVersion");
    if version != wanted {
        return Err(format!("invalid groupVersion (expected {wanted}, received {version})"));
    }
    let (kind, expected) = (text(&converted, "kind"), text(original, "kind"));
    if kind != expected {
        return Err(format!("invalid kind (expected {expected}, received {kind})"));
    }
    let (before, after) = (&original["metadata"], &converted["metadata"]);
    for (field, shown) in [("name", "name"), ("namespace", "namespace"), ("uid", "UID")] {
        let (before, after) = (text(before, field), text(after, field));
        if before != after {
            return Err(format!("must have the same {shown}: {before} != {after}"));
        }
    }
    let Some(given) = after.as_object() else {
        return Err("missing metadata in converted object".to_owned());
    };
    let mut metadata = before.as_object().cloned().unwrap_or_default();
    for field in ["labels", "annotations"] {
        match given.get(field) {
            None | Some(Value::Null) => {
                metadata.remove(field);
            }
            Some(Value::Object(entries)) => {
                if metadata.get(field).and_then(Value::as_object) != Some(entries) {
                    check_entries(field, entries)?;
                }
                metadata.insert(field.to_owned(), Value::Object(entries.clone()));
            }
            Some(_) => return Err(format!("invalid metadata.{field} in converted object")),
        }
    }
    converted["metadata"] = Value::Object(metadata);
    Ok(converted)
}

fn check_entries(field: &str, entries: &Map<String, Value>) -> Result<(), String> {
    for (key, value) in entries {
        let Some(text) = value.as_str() else {
            return Err(format!("metadata.{field}[{key}] must be a string in converted object"));
        };
        let problems = match field {
            "labels" => [names::label_key(key), names::label_value(text)].concat(),
            _ => names::label_key(&key.to_ascii_lowercase()),
        };
        if let Some(problem) = problems.first() {
            return Err(format!("metadata.{field}: Invalid value: {}: {problem}", Value::from(key.as_str())));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn answers_have_to_fit_the_question() {
        let review = |response: Value| json!({"kind": "ConversionReview", "apiVersion": "apiextensions.k8s.io/v1", "response": response});
        for (answer, expected) in [
            (review(json!({"uid": "u", "result": {"status": "Success"}, "convertedObjects": [1]})), Ok(1)),
            (review(Value::Null), Err("no response provided")),
            (
                review(json!({"uid": "x", "result": {"status": "Success"}})),
                Err("expected response.uid=\"u\", got \"x\""),
            ),
            (review(json!({"uid": "u", "result": {"status": "Failure", "message": "no"}})), Err("no")),
            (
                review(json!({"uid": "u", "result": {"status": "Failure"}})),
                Err("response.result.status was 'Failure', not 'Success'"),
            ),
        ] {
            let found = accepted(answer.clone(), "v1", "u");
            assert_eq!(found.as_ref().map(Vec::len).map_err(String::as_str), expected, "{answer}");
        }
    }

    #[test]
    fn conversions_touch_only_labels_and_annotations_of_the_metadata() {
        let original = json!({"apiVersion": "g/v1", "kind": "K", "metadata": {"name": "a", "uid": "u",
            "labels": {"a": "1"}, "resourceVersion": "7"}, "spec": {"host": "x"}});
        let converted = json!({"apiVersion": "g/v2", "kind": "K", "metadata": {"name": "a", "uid": "u",
            "labels": {"b": "2"}, "resourceVersion": "9"}, "spec": {"hosts": ["x"]}});
        assert_eq!(
            checked(&original, converted.clone(), "g/v2").unwrap(),
            json!({"apiVersion": "g/v2", "kind": "K", "metadata": {"name": "a", "uid": "u", "labels": {"b": "2"},
                "resourceVersion": "7"}, "spec": {"hosts": ["x"]}})
        );
        let mut renamed = converted.clone();
        renamed["metadata"]["name"] = json!("b");
        assert_eq!(checked(&original, renamed, "g/v2").unwrap_err(), "must have the same name: a != b");
        assert_eq!(
            checked(&original, converted, "g/v3").unwrap_err(),
            "invalid groupVersion (expected g/v3, received g/v2)"
        );
    }
}
