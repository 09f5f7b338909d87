//! Merges the apply configuration of a mutating policy into an object: without ownership, and without atomic values.

use serde_json::Value;

use super::merge::merge;
use super::node::{Node, Shape};
use super::validate::validate;
use crate::schema::Struct;
use crate::structural::Schema;

/// The maximum nesting of values.
const DEEPEST: usize = 200;

/// Returns the object with the configuration merged into it, or the error. The schemas are those of
/// [`super::Manager`].
/// [`super::Manager`].
pub fn mutate(
    schema: Option<&'static Struct>,
    custom: Option<&Schema>,
    object: &Value,
    configuration: &Value,
) -> Result<Value, String> {
    let root = Node::root(schema, custom);
    validate(root, configuration)
        .map_err(|why| format!("failed to convert patch object to typed object: {why}"))?;
    let mut atomic = Vec::new();
    find_atomic(root, configuration, "", 0, &mut atomic);
    if !atomic.is_empty() {
        let list = atomic.join(", ");
        return Err(format!(
            "invalid ApplyConfiguration: may not mutate atomic arrays, maps or structs: {list}"
        ));
    }
    Ok(merge(root, object, configuration))
}

/// Collects the paths of atomic lists and maps in the configuration. Ignores everything below names that the schema
/// does not have.
fn find_atomic(node: Node<'_>, value: &Value, path: &str, depth: usize, found: &mut Vec<String>) {
    let whole = node.shape(Some(value)) == Shape::Leaf;
    if depth > DEEPEST {
        return;
    }
    match value {
        Value::Object(members) => {
            if whole {
                found.push(path.to_owned());
            }
            for (name, member) in members.iter().filter(|(name, _)| node.names(name)) {
                find_atomic(node.member(name), member, &format!("{path}.{name}"), depth + 1, found);
            }
        }
        Value::Array(items) => {
            if whole {
                found.push(path.to_owned());
            }
            for (index, item) in items.iter().enumerate() {
                find_atomic(node.element(), item, &format!("{path}[{index}]"), depth + 1, found);
            }
        }
        _ => {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::gvk::GroupVersionKind;
    use crate::schema;
    use serde_json::json;

    #[test]
    fn deployments() {
        let schema = schema::for_kind(&GroupVersionKind::new("apps", "v1", "Deployment"));
        let object = json!({"apiVersion": "apps/v1", "kind": "Deployment", "spec": {"replicas": 1, "template": {
            "spec": {"containers": [{"name": "a", "image": "x"}], "tolerations": []}}}});
        let apply = |spec: Value| {
            let configuration = json!({"apiVersion": "apps/v1", "kind": "Deployment", "spec": spec});
            mutate(schema, None, &object, &configuration)
        };
        let spec = json!({"replicas": 3, "template": {"spec": {"containers": [{"name": "b"}]}}});
        let merged = apply(spec).unwrap();
        assert_eq!(merged["spec"]["replicas"], 3);
        let names = [&merged["spec"]["template"]["spec"]["containers"][0]["name"], &json!("b")];
        assert_eq!(names, [&json!("a"), &json!("b")]);
        for (spec, problem) in [
            (
                json!({"template": {"spec": {"tolerations": [{"key": "a"}]}}, "selector": {"matchLabels": {}}}),
                "invalid ApplyConfiguration: may not mutate atomic arrays, maps or structs: .spec.selector, \
                 .spec.template.spec.tolerations",
            ),
            (
                json!({"nope": 1}),
                "failed to convert patch object to typed object: .spec.nope: field not declared in schema",
            ),
        ] {
            assert_eq!(apply(spec).unwrap_err(), problem);
        }
    }
}
