//! Serializes one audit event as JSON in the form of `audit.k8s.io/v1`.

use std::collections::BTreeMap;

use jiff::Timestamp;
use serde_json::{Map, Value, json};

use super::policy::{Level, Stage, Wanted};
use knarr_auth::authn::UserInfo;
use knarr_wire::request_info::RequestInfo;

/// What is known of a request so far; later stages add fields.
#[derive(Debug, Clone)]
pub struct Record {
    pub id: String,
    pub uri: String,
    pub verb: String,
    pub user: UserInfo,
    pub impersonated: Option<UserInfo>,
    /// The verb that authorized the impersonation.
    pub constraint: String,
    pub source_ips: Vec<String>,
    pub user_agent: String,
    pub info: RequestInfo,
    pub received: Timestamp,
    pub request_object: Option<Value>,
    pub response_object: Option<Value>,
    /// The status code, and the Status object of a failure.
    pub response: Option<(u16, Option<Value>)>,
}

/// Formats a time in microseconds, always with six digits.
fn micros(time: Timestamp) -> String {
    let micros = time.as_microsecond();
    let seconds = Timestamp::from_second(micros.div_euclid(1_000_000)).unwrap_or(time);
    let text = seconds.to_string();
    format!("{}.{:06}Z", text.trim_end_matches('Z'), micros.rem_euclid(1_000_000))
}

impl Record {
    pub fn event(
        &self,
        stage: Stage,
        wanted: &Wanted,
        annotations: &BTreeMap<String, String>,
        now: Timestamp,
    ) -> Value {
        let mut event = Map::new();
        let mut set = |key: &str, value: Value| event.insert(key.to_owned(), value);
        set("kind", "Event".into());
        set("apiVersion", "audit.k8s.io/v1".into());
        set("level", wanted.level.name().into());
        set("auditID", self.id.clone().into());
        set("stage", stage.name().into());
        set("requestURI", self.uri.clone().into());
        set("verb", self.verb.clone().into());
        set("user", self.user.to_value());
        if let Some(impersonated) = &self.impersonated {
            set("impersonatedUser", impersonated.to_value());
        }
        if !self.constraint.is_empty() {
            set("authenticationMetadata", json!({"impersonationConstraint": self.constraint}));
        }
        if !self.source_ips.is_empty() {
            set("sourceIPs", json!(self.source_ips));
        }
        if !self.user_agent.is_empty() {
            set("userAgent", self.user_agent.clone().into());
        }
        if self.info.is_resource {
            set("objectRef", self.reference());
        }
        if let Some((code, failure)) = &self.response {
            let mut status = json!({"metadata": {}, "code": code});
            for key in ["status", "message", "reason", "details"] {
                if let Some(value) = failure.as_ref().and_then(|f| f.get(key)) {
                    status[key] = value.clone();
                }
            }
            set("responseStatus", status);
        }
        let shown = |object: &Option<Value>, from: Level| {
            let object = object.as_ref().filter(|_| wanted.level >= from)?;
            Some(if wanted.omit_managed_fields {
                without_managed_fields(object.clone())
            } else {
                object.clone()
            })
        };
        if let Some(object) = shown(&self.request_object, Level::Request) {
            set("requestObject", object);
        }
        if let Some(object) = shown(&self.response_object, Level::RequestResponse) {
            set("responseObject", object);
        }
        set("requestReceivedTimestamp", micros(self.received).into());
        set("stageTimestamp", micros(now).into());
        if !annotations.is_empty() {
            set("annotations", json!(annotations));
        }
        Value::Object(event)
    }

    fn reference(&self) -> Value {
        let info = &self.info;
        let mut reference = Map::new();
        let mut set = |key: &str, value: &str| {
            if !value.is_empty() {
                reference.insert(key.to_owned(), value.into());
            }
        };
        set("resource", &info.resource);
        set("namespace", &info.namespace);
        let own = |key: &str| {
            let object = self.request_object.as_ref().and_then(|o| o["metadata"][key].as_str());
            object.unwrap_or("").to_owned()
        };
        let name = if info.name.is_empty() { own("name") } else { info.name.clone() };
        set("name", &name);
        if matches!(info.verb.as_str(), "create" | "update") {
            set("uid", &own("uid"));
            set("resourceVersion", &own("resourceVersion"));
        }
        set("apiGroup", &info.group);
        set("apiVersion", &info.version);
        set("subresource", &info.subresource);
        Value::Object(reference)
    }
}

fn without_managed_fields(mut object: Value) -> Value {
    let strip = |object: &mut Value| {
        if let Some(metadata) = object.get_mut("metadata").and_then(Value::as_object_mut) {
            metadata.remove("managedFields");
        }
    };
    strip(&mut object);
    for item in object.get_mut("items").and_then(Value::as_array_mut).into_iter().flatten() {
        strip(item);
    }
    object
}

#[cfg(test)]
mod tests {
    use super::*;
    use http::Method;
    use knarr_wire::query::Query;

    #[test]
    fn events_show_what_their_level_allows() {
        let uri = "/api/v1/namespaces/a/configmaps";
        let mut record = Record {
            id: "i".into(),
            uri: uri.into(),
            verb: "create".into(),
            user: UserInfo::new("ann", &[]),
            impersonated: None,
            constraint: String::new(),
            source_ips: vec!["10.0.0.1".into()],
            user_agent: "test".into(),
            info: RequestInfo::parse(&Method::POST, uri, &Query::default()),
            received: "2026-01-01T00:00:00.0000015Z".parse().unwrap(),
            request_object: Some(json!({"metadata": {"name": "m", "managedFields": [1]}})),
            response_object: Some(json!({"items": [{"metadata": {"managedFields": [1]}}]})),
            response: Some((201, None)),
        };
        let mut wanted = Wanted { level: Level::Metadata, ..Wanted::default() };
        let notes = BTreeMap::from([("k".to_owned(), "v".to_owned())]);
        let now = "2026-01-01T00:00:01Z".parse().unwrap();
        let event = record.event(Stage::ResponseComplete, &wanted, &notes, now);
        assert_eq!(
            event,
            json!({
                "kind": "Event", "apiVersion": "audit.k8s.io/v1", "level": "Metadata", "auditID": "i",
                "stage": "ResponseComplete", "requestURI": uri, "verb": "create",
                "user": {"username": "ann", "groups": ["system:authenticated"]},
                "sourceIPs": ["10.0.0.1"], "userAgent": "test",
                "objectRef": {"resource": "configmaps", "namespace": "a", "name": "m", "apiVersion": "v1"},
                "responseStatus": {"metadata": {}, "code": 201},
                "requestReceivedTimestamp": "2026-01-01T00:00:00.000001Z",
                "stageTimestamp": "2026-01-01T00:00:01.000000Z",
                "annotations": {"k": "v"},
            })
        );
        wanted.level = Level::RequestResponse;
        wanted.omit_managed_fields = true;
        record.response = Some((403, Some(json!({"status": "Failure", "reason": "Forbidden", "code": 403}))));
        let event = record.event(Stage::ResponseComplete, &wanted, &BTreeMap::new(), now);
        assert_eq!(event["requestObject"], json!({"metadata": {"name": "m"}}));
        assert_eq!(event["responseObject"], json!({"items": [{"metadata": {}}]}));
        assert_eq!(
            event["responseStatus"],
            json!({"metadata": {}, "code": 403, "status": "Failure", "reason": "Forbidden"})
        );
    }
}
