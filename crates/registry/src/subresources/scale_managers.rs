//! Converts the field managers of a workload's replicas to the managedFields of its Scale, and back after an apply to
//! the Scale.
//!
//! Source: `k8s.io/apimachinery/pkg/util/managedfields.ScaleHandler`.

use serde_json::{Value, json};

const REPLICAS: &str = "/fieldsV1/f:spec/f:replicas";

fn entries(workload: &Value) -> impl Iterator<Item = &Value> {
    workload["metadata"]["managedFields"].as_array().into_iter().flatten()
}

fn owns(entry: &Value) -> bool {
    entry.pointer(REPLICAS).is_some()
}

fn is_same_manager(a: &Value, b: &Value) -> bool {
    ["manager", "operation", "subresource"].iter().all(|field| a.get(field) == b.get(field))
}

/// Returns the managedFields that the Scale has.
pub fn of_scale(workload: &Value) -> Vec<Value> {
    let shown = |entry: &Value| {
        let mut entry = entry.clone();
        entry["apiVersion"] = "autoscaling/v1".into();
        entry["fieldsV1"] = json!({"f:spec": {"f:replicas": {}}});
        entry
    };
    entries(workload).filter(|e| owns(e)).map(shown).collect()
}

/// Returns the workload's managedFields for the Scale's managedFields `scale`.
pub fn of_workload(workload: &Value, scale: &[Value]) -> Vec<Value> {
    let mut new: Vec<&Value> = scale.iter().collect();
    let mut all = Vec::new();
    for entry in entries(workload) {
        let mut entry = entry.clone();
        if owns(&entry) {
            match new.iter().position(|e| is_same_manager(e, &entry)) {
                Some(kept) => {
                    new.remove(kept);
                }
                None => disown(&mut entry),
            }
        }
        if entry["fieldsV1"].as_object().is_some_and(|fields| !fields.is_empty()) {
            all.push(entry);
        }
    }
    for owner in new {
        let mut entry = json!({
            "apiVersion": workload["apiVersion"], "fieldsType": "FieldsV1",
            "fieldsV1": {"f:spec": {"f:replicas": {}}},
        });
        for field in ["manager", "operation", "subresource"] {
            if let Some(value) = owner.get(field) {
                entry[field] = value.clone();
            }
        }
        let same = |e: &Value| e["operation"] == entry["operation"];
        let at =
            all.iter().position(same).unwrap_or(if entry["operation"] == "Apply" { 0 } else { all.len() });
        all.insert(at, entry);
    }
    all
}

fn disown(entry: &mut Value) {
    let Some(fields) = entry.get_mut("fieldsV1").and_then(Value::as_object_mut) else { return };
    let Some(spec) = fields.get_mut("f:spec").and_then(Value::as_object_mut) else { return };
    spec.remove("f:replicas");
    if spec.keys().all(|key| key == ".") {
        fields.remove("f:spec");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ownership_moves_between_workload_and_scale() {
        let workload = json!({"apiVersion": "apps/v1", "metadata": {"managedFields": [
            {"manager": "app", "operation": "Apply", "apiVersion": "apps/v1", "time": "t",
                "fieldsV1": {"f:spec": {"f:replicas": {}, "f:template": {}}}},
            {"manager": "only", "operation": "Update", "apiVersion": "apps/v1", "subresource": "scale",
                "fieldsV1": {"f:spec": {"f:replicas": {}}}},
        ]}});
        let scale = of_scale(&workload);
        assert_eq!(scale.len(), 2);
        assert_eq!(scale[0]["fieldsV1"], json!({"f:spec": {"f:replicas": {}}}));
        assert_eq!(scale[0]["apiVersion"], "autoscaling/v1");
        assert_eq!(
            of_workload(&workload, &scale),
            workload["metadata"]["managedFields"].as_array().unwrap().clone()
        );

        let taken = [json!({"manager": "hpa", "operation": "Apply", "subresource": "scale", "time": "u"})];
        let all = of_workload(&workload, &taken);
        assert_eq!(all.len(), 2);
        assert_eq!((all[0]["manager"].as_str(), all[0].get("time")), (Some("hpa"), None));
        assert_eq!(all[0]["apiVersion"], "apps/v1");
        assert_eq!(all[1]["fieldsV1"], json!({"f:spec": {"f:template": {}}}));
    }
}
