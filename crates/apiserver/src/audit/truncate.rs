//! Truncates events and batches to the limits of a backend.

use serde_json::{Value, json};

use super::options::Truncate;

/// Removes the objects of an event that is too large; `None` if it is still too large without them.
pub fn event(mut event: Value, limits: Option<Truncate>) -> Option<Value> {
    let Some(limits) = limits else { return Some(event) };
    if event.to_string().len() <= limits.event {
        return Some(event);
    }
    if !matches!(event["level"].as_str(), Some("Request" | "RequestResponse")) {
        return None;
    }
    let fields = event.as_object_mut()?;
    fields.remove("requestObject");
    fields.remove("responseObject");
    let notes = fields.entry("annotations").or_insert_with(|| json!({}));
    notes["audit.k8s.io/truncated"] = "true".into();
    (event.to_string().len() <= limits.event).then_some(event)
}

/// Splits a batch into parts that do not exceed the limit.
pub fn batches(events: Vec<Value>, limits: Option<Truncate>) -> Vec<Vec<Value>> {
    let Some(limits) = limits else { return vec![events] };
    let mut all: Vec<Vec<Value>> = Vec::new();
    let mut size = 0;
    for event in events {
        let own = event.to_string().len();
        match all.last_mut() {
            Some(batch) if size + own <= limits.batch => batch.push(event),
            _ => {
                all.push(vec![event]);
                size = 0;
            }
        }
        size += own;
    }
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn objects_go_first_and_then_the_event() {
        let limits = Some(Truncate { event: 200, batch: 1000 });
        let small = json!({"level": "RequestResponse", "requestObject": {"a": 1}});
        assert_eq!(event(small.clone(), limits), Some(small));
        let large = json!({"level": "Request", "auditID": "i", "requestObject": "x".repeat(300)});
        let cut =
            json!({"level": "Request", "auditID": "i", "annotations": {"audit.k8s.io/truncated": "true"}});
        assert_eq!(event(large.clone(), limits), Some(cut));
        assert_eq!(event(large.clone(), None), Some(large));
        let metadata = json!({"level": "Metadata", "requestURI": "x".repeat(300)});
        assert_eq!(event(metadata, limits), None);
        let uri = json!({"level": "Request", "requestURI": "x".repeat(300), "requestObject": 1});
        assert_eq!(event(uri, limits), None);
    }

    #[test]
    fn batches_are_split() {
        let events: Vec<Value> = (0..5).map(|_| json!("x".repeat(98))).collect();
        let sizes = |limit| {
            let parts = batches(events.clone(), Some(Truncate { event: 100, batch: limit }));
            parts.iter().map(Vec::len).collect::<Vec<_>>()
        };
        assert_eq!(sizes(250), [2, 2, 1]);
        assert_eq!(sizes(50), [1, 1, 1, 1, 1]);
        assert_eq!(sizes(1000), [5]);
        assert_eq!(batches(events.clone(), None).len(), 1);
    }
}
