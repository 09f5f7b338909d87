//! Conversion of autoscalers between `v2` and `v1`, whose only metric is CPU utilization: annotations carry the
//! rest.

use serde_json::{Map, Value, json};

use super::horizontalpodautoscaler::{
    DEFAULT_CPU_UTILIZATION, OF_OTHER_FORMS, cpu_utilization, drop_other_forms,
};
use crate::prepare;

const METRICS: &str = OF_OTHER_FORMS[0];
const BEHAVIOR: &str = OF_OTHER_FORMS[1];
const CURRENT_METRICS: &str = OF_OTHER_FORMS[4];
const CONDITIONS: &str = OF_OTHER_FORMS[5];

/// A metric type, the name of its field, and its fields in `v1` with their paths in `v2`. Marked fields are written
/// even if they are empty.
struct Source {
    kind: &'static str,
    field: &'static str,
    spec: &'static [(&'static str, &'static str, bool)],
    status: &'static [(&'static str, &'static str, bool)],
}

/// In the order in which they are written.
const SOURCES: &[Source] = &[
    Source {
        kind: "Object",
        field: "object",
        spec: &[
            ("target", "/describedObject", true),
            ("metricName", "/metric/name", true),
            ("targetValue", "/target/value", true),
            ("selector", "/metric/selector", false),
            ("averageValue", "/target/averageValue", false),
        ],
        status: &[
            ("target", "/describedObject", true),
            ("metricName", "/metric/name", true),
            ("currentValue", "/current/value", true),
            ("selector", "/metric/selector", false),
            ("averageValue", "/current/averageValue", false),
        ],
    },
    Source {
        kind: "Pods",
        field: "pods",
        spec: &[
            ("metricName", "/metric/name", true),
            ("targetAverageValue", "/target/averageValue", true),
            ("selector", "/metric/selector", false),
        ],
        status: &[
            ("metricName", "/metric/name", true),
            ("currentAverageValue", "/current/averageValue", true),
            ("selector", "/metric/selector", false),
        ],
    },
    Source {
        kind: "Resource",
        field: "resource",
        spec: &[
            ("name", "/name", true),
            ("targetAverageUtilization", "/target/averageUtilization", false),
            ("targetAverageValue", "/target/averageValue", false),
        ],
        status: &[
            ("name", "/name", true),
            ("currentAverageUtilization", "/current/averageUtilization", false),
            ("currentAverageValue", "/current/averageValue", true),
        ],
    },
    Source {
        kind: "ContainerResource",
        field: "containerResource",
        spec: &[
            ("name", "/name", true),
            ("targetAverageUtilization", "/target/averageUtilization", false),
            ("targetAverageValue", "/target/averageValue", false),
            ("container", "/container", true),
        ],
        status: &[
            ("name", "/name", true),
            ("currentAverageUtilization", "/current/averageUtilization", false),
            ("currentAverageValue", "/current/averageValue", true),
            ("container", "/container", true),
        ],
    },
    Source {
        kind: "External",
        field: "external",
        spec: &[
            ("metricName", "/metric/name", true),
            ("metricSelector", "/metric/selector", false),
            ("targetValue", "/target/value", false),
            ("targetAverageValue", "/target/averageValue", false),
        ],
        status: &[
            ("metricName", "/metric/name", true),
            ("metricSelector", "/metric/selector", false),
            ("currentValue", "/current/value", true),
            ("currentAverageValue", "/current/averageValue", false),
        ],
    },
];

/// Converts a stored autoscaler to the `v1` form.
pub fn from_stored(stored: &Value) -> Value {
    let mut out = stored.clone();
    drop_other_forms(&mut out);
    prepare::object(&mut out).insert("apiVersion".to_owned(), json!("autoscaling/v1"));
    let mut annotations: Vec<(&str, String)> = Vec::new();
    let metrics = list(stored, "/spec/metrics");
    let cpu = metrics.iter().copied().find(|m| utilization(m).is_some());
    let others: Vec<String> =
        metrics.iter().filter(|m| utilization(m).is_none()).map(|m| metric_text(m, false)).collect();
    if !others.is_empty() {
        annotations.push((METRICS, format!("[{}]", others.join(","))));
    }
    let current = list(stored, "/status/currentMetrics");
    if !current.is_empty() {
        let texts: Vec<String> = current.iter().map(|m| metric_text(m, true)).collect();
        annotations.push((CURRENT_METRICS, format!("[{}]", texts.join(","))));
    }
    if let Some(behavior) = stored.pointer("/spec/behavior").filter(|b| b.is_object()) {
        let rules = |field: &str| rules_text(behavior.get(field));
        let text = format!(r#"{{"ScaleUp":{},"ScaleDown":{}}}"#, rules("scaleUp"), rules("scaleDown"));
        annotations.push((BEHAVIOR, text));
    }
    let conditions: Vec<String> =
        list(stored, "/status/conditions").into_iter().map(condition_text).collect();
    if !conditions.is_empty() {
        annotations.push((CONDITIONS, format!("[{}]", conditions.join(","))));
    }
    if !annotations.is_empty() {
        let all = prepare::object(prepare::metadata(&mut out).entry("annotations").or_insert(Value::Null));
        all.extend(annotations.into_iter().map(|(key, text)| (key.to_owned(), json!(text))));
    }
    if let Some(spec) = out.get_mut("spec").and_then(Value::as_object_mut) {
        spec.remove("metrics");
        spec.remove("behavior");
        if let Some(percent) = cpu.and_then(utilization) {
            spec.insert("targetCPUUtilizationPercentage".to_owned(), percent.clone());
        }
    }
    if let Some(status) = out.get_mut("status").and_then(Value::as_object_mut) {
        status.remove("currentMetrics");
        status.remove("conditions");
        let cpu = current.iter().filter(|m| is_cpu(m));
        let percent = cpu.filter_map(|m| m.pointer("/resource/current/averageUtilization")).next_back();
        if let Some(percent) = percent.filter(|p| !p.is_null()) {
            status.insert("currentCPUUtilizationPercentage".to_owned(), percent.clone());
        }
    }
    out
}

fn list<'a>(value: &'a Value, pointer: &str) -> Vec<&'a Value> {
    value.pointer(pointer).and_then(Value::as_array).into_iter().flatten().collect()
}

fn is_cpu(metric: &Value) -> bool {
    metric["type"] == "Resource" && metric.pointer("/resource/name").is_some_and(|n| n == "cpu")
}

/// Returns the target CPU utilization, if that is what this metric measures.
fn utilization(metric: &Value) -> Option<&Value> {
    let percent = metric.pointer("/resource/target/averageUtilization").filter(|p| !p.is_null());
    percent.filter(|_| is_cpu(metric))
}

fn metric_text(metric: &Value, status: bool) -> String {
    let mut parts = vec![format!("\"type\":{}", metric["type"])];
    for source in SOURCES {
        let Some(from) = metric.get(source.field).filter(|f| f.is_object()) else { continue };
        let fields = if status { source.status } else { source.spec };
        let fields = fields.iter().filter_map(|(name, pointer, always)| {
            let text = match from.pointer(pointer).filter(|v| !v.is_null()) {
                Some(reference) if *name == "target" => reference_text(reference),
                Some(value) => value.to_string(),
                None if *always && name.ends_with("Value") => "\"0\"".to_owned(),
                None if *always => "\"\"".to_owned(),
                None => return None,
            };
            Some(format!("{name:?}:{text}"))
        });
        let fields: Vec<String> = fields.collect();
        parts.push(format!("\"{}\":{{{}}}", source.field, fields.join(",")));
    }
    format!("{{{}}}", parts.join(","))
}

fn fields_text(value: &Value, fields: &[&str]) -> String {
    let set = |f: &&&str| value.get(**f).is_some_and(|v| !v.is_null() && v != "");
    let parts: Vec<String> = fields.iter().filter(set).map(|f| format!("{f:?}:{}", value[*f])).collect();
    format!("{{{}}}", parts.join(","))
}

fn reference_text(reference: &Value) -> String {
    fields_text(reference, &["kind", "name", "apiVersion"])
}

fn condition_text(condition: &Value) -> String {
    fields_text(
        condition,
        &["type", "status", "lastTransitionTime", "reason", "message", "observedGeneration"],
    )
}

/// Returns scaling rules in the JSON of upstream's internal type.
fn rules_text(rules: Option<&Value>) -> String {
    let Some(rules) = rules.filter(|r| r.is_object()) else { return "null".to_owned() };
    let policies = rules.get("policies").and_then(Value::as_array).map(|policies| {
        let policy = |p: &Value| {
            format!(
                r#"{{"Type":{},"Value":{},"PeriodSeconds":{}}}"#,
                p["type"], p["value"], p["periodSeconds"]
            )
        };
        policies.iter().map(policy).collect::<Vec<_>>().join(",")
    });
    let policies = policies.map_or("null".to_owned(), |p| format!("[{p}]"));
    format!(
        r#"{{"StabilizationWindowSeconds":{},"SelectPolicy":{},"Policies":{policies},"Tolerance":{}}}"#,
        rules["stabilizationWindowSeconds"], rules["selectPolicy"], rules["tolerance"]
    )
}

/// Converts a `v1` autoscaler to the stored form.
pub fn to_stored(v1: &Value) -> Value {
    let mut out = v1.clone();
    prepare::object(&mut out).insert("apiVersion".to_owned(), json!("autoscaling/v2"));
    let annotation = |key: &str| -> Option<Value> {
        let text = v1.pointer("/metadata/annotations").and_then(|a| a.get(key)).and_then(Value::as_str)?;
        serde_json::from_str(text).ok()
    };
    let of = |status: bool, value: &Value| -> Option<Vec<Value>> {
        Some(value.as_array()?.iter().map(|m| metric_value(m, status)).collect())
    };
    let mut metrics = annotation(METRICS).and_then(|v| of(false, &v)).unwrap_or_default();
    let percent = v1.pointer("/spec/targetCPUUtilizationPercentage").and_then(Value::as_i64);
    metrics.extend(percent.map(cpu_utilization));
    if metrics.is_empty() {
        metrics.push(cpu_utilization(DEFAULT_CPU_UTILIZATION));
    }
    let behavior = annotation(BEHAVIOR).map(|v| lower_case(&v)).filter(|b| {
        let rules = |field: &str| b.get(field).is_some_and(Value::is_object);
        rules("scaleUp") || rules("scaleDown")
    });
    let current = annotation(CURRENT_METRICS).and_then(|v| of(true, &v));
    let conditions = annotation(CONDITIONS).filter(Value::is_array);
    drop_other_forms(&mut out);
    let spec = crate::defaults::child(prepare::object(&mut out), "spec");
    spec.remove("targetCPUUtilizationPercentage");
    spec.insert("metrics".to_owned(), Value::Array(metrics));
    if let Some(behavior) = behavior {
        spec.insert("behavior".to_owned(), behavior);
    }
    let percent = v1.pointer("/status/currentCPUUtilizationPercentage").and_then(Value::as_i64);
    if let Some(status) = out.get_mut("status").and_then(Value::as_object_mut) {
        status.remove("currentCPUUtilizationPercentage");
    }
    let from_percent = percent.map(|p| {
        vec![json!({"type": "Resource", "resource": {"name": "cpu", "current": {"averageUtilization": p}}})]
    });
    if let Some(current) = current.or(from_percent) {
        let status = crate::defaults::child(prepare::object(&mut out), "status");
        status.insert("currentMetrics".to_owned(), Value::Array(current));
    }
    if let Some(conditions) = conditions {
        let status = crate::defaults::child(prepare::object(&mut out), "status");
        status.insert("conditions".to_owned(), conditions);
    }
    out
}

/// Converts a metric of the annotations to the `v2` form.
fn metric_value(metric: &Value, status: bool) -> Value {
    let mut out = Map::new();
    out.insert("type".to_owned(), metric.get("type").cloned().unwrap_or(json!("")));
    for source in SOURCES {
        let Some(from) = metric.get(source.field).filter(|f| f.is_object()) else { continue };
        let fields = if status { source.status } else { source.spec };
        let mut value = json!({});
        for (name, pointer, _) in fields {
            let Some(field) = from.get(*name).filter(|v| !v.is_null()) else { continue };
            // A zero means unset if the metric has an average value.
            let unsaid = *name == "targetValue" && field == "0" && from.get("averageValue").is_some();
            if !unsaid {
                set(&mut value, pointer, field.clone());
            }
        }
        if !status {
            set(&mut value, "/target/type", json!(target_type(source.kind, from)));
        }
        out.insert(source.field.to_owned(), value);
    }
    Value::Object(out)
}

fn target_type(kind: &str, from: &Value) -> &'static str {
    let has = |field: &str| from.get(field).is_some_and(|v| !v.is_null());
    match kind {
        "Object" if !has("averageValue") => "Value",
        "External" if has("targetValue") => "Value",
        "Resource" | "ContainerResource" if has("targetAverageUtilization") => "Utilization",
        _ => "AverageValue",
    }
}

/// Sets the value at `/a/b`; creates `a` if it is missing.
fn set(value: &mut Value, pointer: &str, to: Value) {
    let mut at = value;
    let mut parts = pointer.split('/').skip(1).peekable();
    while let Some(part) = parts.next() {
        let fields = prepare::object(at);
        if parts.peek().is_none() {
            fields.insert(part.to_owned(), to);
            return;
        }
        at = fields.entry(part).or_insert(Value::Null);
    }
}

/// Lowercases the first letter of field names, which are capitalized in the internal types of upstream.
fn lower_case(value: &Value) -> Value {
    match value {
        Value::Object(map) => {
            let lower = |key: &str| {
                let mut chars = key.chars();
                chars.next().map_or(String::new(), |c| c.to_lowercase().chain(chars).collect())
            };
            let set = map.iter().filter(|(_, v)| !v.is_null());
            set.map(|(k, v)| (lower(k), lower_case(v))).collect()
        }
        Value::Array(list) => list.iter().map(lower_case).collect(),
        other => other.clone(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_v1_lacks_is_kept_in_annotations() {
        let stored = json!({
            "apiVersion": "autoscaling/v2", "kind": "HorizontalPodAutoscaler",
            "metadata": {"name": "h", "annotations": {"x": "y"}},
            "spec": {"maxReplicas": 3, "minReplicas": 1,
                "scaleTargetRef": {"kind": "Deployment", "name": "d", "apiVersion": "apps/v1"},
                "metrics": [
                    {"type": "Pods", "pods": {"metric": {"name": "m"},
                        "target": {"type": "AverageValue", "averageValue": "5"}}},
                    cpu_utilization(50),
                ],
                "behavior": {"scaleUp": {"selectPolicy": "Max", "stabilizationWindowSeconds": 0,
                    "policies": [{"type": "Pods", "value": 4, "periodSeconds": 15}]}}},
            "status": {"currentReplicas": 1, "desiredReplicas": 2,
                "currentMetrics": [{"type": "Resource", "resource": {"name": "cpu",
                    "current": {"averageUtilization": 7, "averageValue": "3m"}}}],
                "conditions": [{"type": "AbleToScale", "status": "True", "reason": "R"}]},
        });
        let v1 = from_stored(&stored);
        assert_eq!(
            v1["metadata"]["annotations"],
            json!({
                "x": "y",
                METRICS: r#"[{"type":"Pods","pods":{"metricName":"m","targetAverageValue":"5"}}]"#,
                CURRENT_METRICS: r#"[{"type":"Resource","resource":{"name":"cpu","currentAverageUtilization":7,"currentAverageValue":"3m"}}]"#,
                BEHAVIOR: r#"{"ScaleUp":{"StabilizationWindowSeconds":0,"SelectPolicy":"Max","Policies":[{"Type":"Pods","Value":4,"PeriodSeconds":15}],"Tolerance":null},"ScaleDown":null}"#,
                CONDITIONS: r#"[{"type":"AbleToScale","status":"True","reason":"R"}]"#,
            })
        );
        assert_eq!(v1["spec"]["targetCPUUtilizationPercentage"], 50);
        assert_eq!(v1["status"]["currentCPUUtilizationPercentage"], 7);
        assert_eq!(v1["spec"].get("metrics"), None);
        assert_eq!(to_stored(&v1), stored);
    }

    #[test]
    fn garbage_in_annotations_is_dropped() {
        let v1 = json!({"apiVersion": "autoscaling/v1", "kind": "HorizontalPodAutoscaler",
            "metadata": {"annotations": {METRICS: "{", BEHAVIOR: "[1]", CONDITIONS: "7"}}, "spec": {}});
        let stored = to_stored(&v1);
        assert_eq!(stored["metadata"]["annotations"], json!({}));
        assert_eq!(stored["spec"], json!({"metrics": [cpu_utilization(80)]}));
    }
}
