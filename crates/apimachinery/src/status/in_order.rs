//! Writes the JSON of a `Status` with the field order of upstream, for clients that compare it as text.

use serde::ser::{Serialize, SerializeMap, Serializer};
use serde_json::Value;

/// The order of an object's fields, and the orders of nested objects.
struct Order {
    fields: &'static [&'static str],
    below: &'static [(&'static str, &'static Order)],
}

/// Keeps the order of the value.
static AS_THEY_ARE: Order = Order { fields: &[], below: &[] };
static STATUS: Order = Order {
    fields: &["kind", "apiVersion", "metadata", "status", "message", "reason", "details", "code"],
    below: &[("metadata", &LIST_META), ("details", &DETAILS)],
};
static LIST_META: Order =
    Order { fields: &["selfLink", "resourceVersion", "continue", "remainingItemCount"], below: &[] };
static DETAILS: Order = Order {
    fields: &["name", "group", "kind", "uid", "causes", "retryAfterSeconds"],
    below: &[("causes", &CAUSE)],
};
static CAUSE: Order = Order { fields: &["reason", "message", "field"], below: &[] };
static WATCH_EVENT: Order = Order { fields: &["type", "object"], below: &[("object", &STATUS)] };

/// A value to serialize. Fields that are not in the order follow those that are.
pub struct InOrder<'a> {
    value: &'a Value,
    order: &'static Order,
}

impl<'a> InOrder<'a> {
    /// Wraps any value; a value of the kind `Status` is written in that order.
    pub fn of(value: &'a Value) -> Self {
        let is_status = value["kind"] == "Status" && value["apiVersion"] == "v1";
        Self { value, order: if is_status { &STATUS } else { &AS_THEY_ARE } }
    }

    /// Wraps a `Status`, even if it has no kind.
    pub fn status(value: &'a Value) -> Self {
        Self { value, order: &STATUS }
    }

    /// Wraps a watch event whose object is a `Status`.
    pub fn watch_error(value: &'a Value) -> Self {
        Self { value, order: &WATCH_EVENT }
    }

    /// Returns compact JSON; serializing a `Value` into memory cannot fail.
    pub fn to_json(&self) -> Vec<u8> {
        serde_json::to_vec(self).unwrap_or_default()
    }
}

impl Serialize for InOrder<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let order = self.order;
        match self.value {
            Value::Object(fields) if !order.fields.is_empty() => {
                let known = order.fields.iter().filter_map(|name| Some((*name, fields.get(*name)?)));
                let others = fields.iter().map(|(name, value)| (name.as_str(), value));
                let others = others.filter(|(name, _)| !order.fields.contains(name));
                let mut map = serializer.serialize_map(Some(fields.len()))?;
                for (name, value) in known.chain(others) {
                    let below = order.below.iter().find(|(of, _)| *of == name);
                    let order = below.map_or(&AS_THEY_ARE, |(_, order)| *order);
                    map.serialize_entry(name, &Self { value, order })?;
                }
                map.end()
            }
            Value::Array(items) => serializer.collect_seq(items.iter().map(|value| Self { value, order })),
            other => other.serialize(serializer),
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn text(value: InOrder<'_>) -> String {
        String::from_utf8(value.to_json()).unwrap()
    }

    #[test]
    fn fields_are_written_as_upstream_writes_them() {
        let status = json!({
            "apiVersion": "v1", "code": 422, "kind": "Status", "message": "no", "metadata": {}, "reason": "Invalid",
            "status": "Failure", "details": {
                "causes": [{"field": "spec.x", "message": "m", "reason": "FieldValueInvalid"}],
                "group": "apps", "kind": "Deployment", "name": "web", "retryAfterSeconds": 1, "uid": "u",
            },
        });
        let details = "{\"name\":\"web\",\"group\":\"apps\",\"kind\":\"Deployment\",\"uid\":\"u\",\"causes\":[\
                       {\"reason\":\"FieldValueInvalid\",\"message\":\"m\",\"field\":\"spec.x\"}],\
                       \"retryAfterSeconds\":1}";
        let expected = format!(
            "{{\"kind\":\"Status\",\"apiVersion\":\"v1\",\"metadata\":{{}},\"status\":\"Failure\",\"message\":\"no\",\
             \"reason\":\"Invalid\",\"details\":{details},\"code\":422}}"
        );
        assert_eq!(text(InOrder::of(&status)), expected);
        assert_eq!(text(InOrder::status(&status)), expected);
        let event = json!({"object": status, "type": "ERROR"});
        let expected = format!("{{\"type\":\"ERROR\",\"object\":{expected}}}");
        assert_eq!(text(InOrder::watch_error(&event)), expected);
    }

    #[test]
    fn nothing_is_lost_and_other_kinds_are_left_as_they_are() {
        let status = json!({"kind": "Status", "apiVersion": "v1", "code": 500, "extra": {"b": 1, "a": [2]}});
        assert_eq!(
            text(InOrder::of(&status)),
            "{\"kind\":\"Status\",\"apiVersion\":\"v1\",\"code\":500,\"extra\":{\"a\":[2],\"b\":1}}"
        );
        for other in [json!({"kind": "Pod", "apiVersion": "v1", "status": {}}), json!([1]), json!(null)] {
            assert_eq!(text(InOrder::of(&other)), other.to_string());
        }
    }
}
