//! Authorization by a webhook: sends SubjectAccessReviews to the server of a kubeconfig, and caches its decisions.

use std::collections::HashMap;
use std::path::Path;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use knarr_apimachinery::clock::Clock;
use knarr_apimachinery::selector::{FieldSelector, Operator, Selector};
use serde_json::{Map, Value, json};

use super::conditions::Conditions;
use super::{Attributes, Decision};
use crate::authn::UserInfo;
use knarr_outgoing::endpoint::Outbound;

/// The maximum number of cached decisions.
const MAX_KEPT: usize = 16_384;
/// The maximum length of a cache key; requests with longer keys are not cached.
const MAX_KEY: usize = 10_000;

/// The settings of one webhook.
#[derive(Debug, Clone)]
pub struct Settings {
    pub name: String,
    pub version: String,
    pub authorized_ttl: Duration,
    pub unauthorized_ttl: Duration,
    pub timeout: Duration,
    /// Whether a failed call denies the request.
    pub denies_on_failure: bool,
}

pub struct Webhook {
    pub settings: Settings,
    outbound: Outbound,
    conditions: Conditions,
    kept: Mutex<HashMap<String, (Duration, Decision)>>,
}

impl Webhook {
    pub fn new(kubeconfig: &Path, settings: Settings, conditions: Conditions) -> Result<Self, String> {
        if !matches!(settings.version.as_str(), "v1" | "v1beta1") {
            return Err(format!("unsupported webhook authorizer version {:?}", settings.version));
        }
        let outbound = Outbound::from_kubeconfig(kubeconfig, settings.timeout).map_err(|e| e.to_string())?;
        Ok(Self { settings, outbound, conditions, kept: Mutex::default() })
    }

    pub async fn authorize(&self, user: &UserInfo, wanted: &Attributes, clock: &dyn Clock) -> Decision {
        let spec = spec(user, wanted);
        match self.conditions.hold(&spec) {
            Ok(true) => {}
            Ok(false) => return Decision::NoOpinion { reason: String::new() },
            Err(error) => {
                tracing::warn!(webhook = self.settings.name, error, "conditions cannot be evaluated");
                return self.failed(String::new());
            }
        }
        let key = spec.to_string();
        let now = clock.monotonic();
        {
            let kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner);
            if let Some((_, decision)) = kept.get(&key).filter(|(until, _)| *until > now) {
                return decision.clone();
            }
        }
        let answer = self.ask(spec, clock).await;
        let decision = match answer {
            Ok(status) => read(&status),
            Err(error) => {
                tracing::warn!(webhook = self.settings.name, error, "an authorization webhook failed");
                let reason = format!("webhook {:?}: {error}", self.settings.name);
                return self.failed(reason);
            }
        };
        let ttl =
            if decision.is_allowed() { self.settings.authorized_ttl } else { self.settings.unauthorized_ttl };
        if !ttl.is_zero() && key.len() < MAX_KEY {
            let mut kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner);
            if kept.len() >= MAX_KEPT {
                kept.retain(|_, (until, _)| *until > now);
            }
            if kept.len() < MAX_KEPT {
                kept.insert(key, (now + ttl, decision.clone()));
            }
        }
        decision
    }

    /// Returns the decision for a failed call.
    fn failed(&self, reason: String) -> Decision {
        if self.settings.denies_on_failure {
            Decision::Denied { reason }
        } else {
            Decision::NoOpinion { reason: String::new() }
        }
    }

    async fn ask(&self, spec: Value, clock: &dyn Clock) -> Result<Value, String> {
        let review = json!({
            "apiVersion": format!("authorization.k8s.io/{}", self.settings.version),
            "kind": "SubjectAccessReview", "metadata": {"creationTimestamp": null},
            "spec": spec, "status": {"allowed": false},
        });
        let reply =
            self.outbound.post(Bytes::from(review.to_string()), clock).await.map_err(|e| e.to_string())?;
        if !(200..300).contains(&reply.code) {
            return Err(format!("it answered {}", reply.code));
        }
        let mut answer: Value = serde_json::from_slice(&reply.body).map_err(|e| e.to_string())?;
        Ok(answer["status"].take())
    }
}

fn read(status: &Value) -> Decision {
    let reason = status["reason"].as_str().unwrap_or("").to_owned();
    match (status["allowed"] == true, status["denied"] == true) {
        (true, false) => Decision::Allowed { reason },
        (_, true) => Decision::Denied { reason },
        (false, false) => Decision::NoOpinion { reason },
    }
}

/// Returns the request as the `spec` of a SubjectAccessReview.
fn spec(user: &UserInfo, wanted: &Attributes) -> Value {
    let mut spec = Map::new();
    if wanted.is_resource() {
        let mut attributes = Map::new();
        for (name, value) in [
            ("namespace", &wanted.namespace),
            ("verb", &wanted.verb),
            ("group", &wanted.group),
            ("version", &wanted.version),
            ("resource", &wanted.resource),
            ("subresource", &wanted.subresource),
            ("name", &wanted.name),
        ] {
            if !value.is_empty() {
                attributes.insert(name.into(), value.clone().into());
            }
        }
        let fields = field_requirements(&wanted.field_selector);
        if !fields.is_empty() {
            attributes.insert("fieldSelector".into(), json!({"requirements": fields}));
        }
        let labels = label_requirements(&wanted.label_selector);
        if !labels.is_empty() {
            attributes.insert("labelSelector".into(), json!({"requirements": labels}));
        }
        spec.insert("resourceAttributes".into(), attributes.into());
    } else {
        spec.insert("nonResourceAttributes".into(), json!({"path": wanted.path, "verb": wanted.verb}));
    }
    spec.insert("user".into(), user.name.clone().into());
    if !user.groups.is_empty() {
        spec.insert("groups".into(), json!(user.groups));
    }
    if !user.extra.is_empty() {
        spec.insert("extra".into(), json!(user.extra));
    }
    if !user.uid.is_empty() {
        spec.insert("uid".into(), user.uid.clone().into());
    }
    spec.into()
}

fn field_requirements(selector: &str) -> Vec<Value> {
    let selector = FieldSelector::parse(selector).unwrap_or_default();
    let one = |t: &knarr_apimachinery::selector::FieldTerm| json!({"key": t.field, "operator": if t.negated { "NotIn" } else { "In" }, "values": [t.value]});
    selector.terms().iter().map(one).collect()
}

fn label_requirements(selector: &str) -> Vec<Value> {
    let Ok(selector) = Selector::parse(selector) else { return Vec::new() };
    let one = |r: &knarr_apimachinery::selector::Requirement| {
        let operator = match r.operator() {
            Operator::In | Operator::Equals | Operator::DoubleEquals => "In",
            Operator::NotIn | Operator::NotEquals => "NotIn",
            Operator::Exists => "Exists",
            Operator::DoesNotExist => "DoesNotExist",
            Operator::GreaterThan | Operator::LessThan => return None,
        };
        let mut requirement = json!({"key": r.key(), "operator": operator});
        if !r.values().is_empty() {
            requirement["values"] = json!(r.values());
        }
        Some(requirement)
    };
    selector.requirements().iter().filter_map(one).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn questions_and_answers() {
        let wanted = Attributes {
            verb: "list".into(),
            version: "v1".into(),
            resource: "pods".into(),
            namespace: "a".into(),
            field_selector: "spec.nodeName=n".into(),
            label_selector: "a in (b,c),!d".into(),
            ..Attributes::default()
        };
        assert_eq!(
            spec(&UserInfo::new("ann", &[]), &wanted),
            json!({
                "user": "ann", "groups": ["system:authenticated"],
                "resourceAttributes": {
                    "verb": "list", "version": "v1", "resource": "pods", "namespace": "a",
                    "fieldSelector": {"requirements": [{"key": "spec.nodeName", "operator": "In", "values": ["n"]}]},
                    "labelSelector": {"requirements": [
                        {"key": "a", "operator": "In", "values": ["b", "c"]}, {"key": "d", "operator": "DoesNotExist"}]},
                },
            })
        );
        let path = Attributes { verb: "get".into(), path: "/metrics".into(), ..Attributes::default() };
        assert_eq!(
            spec(&UserInfo { name: "ann".into(), ..UserInfo::default() }, &path),
            json!({"user": "ann", "nonResourceAttributes": {"path": "/metrics", "verb": "get"}})
        );
        let reason = || "r".to_owned();
        for (status, decision) in [
            (json!({"allowed": true, "reason": "r"}), Decision::Allowed { reason: reason() }),
            (json!({"allowed": false, "denied": true, "reason": "r"}), Decision::Denied { reason: reason() }),
            (json!({"allowed": false, "reason": "r"}), Decision::NoOpinion { reason: reason() }),
        ] {
            assert_eq!(read(&status), decision);
        }
    }
}
