//! Tables of resource metrics: one column for each measured resource.

use std::collections::BTreeMap;

use knarr_apimachinery::quantity::Quantity;
use serde_json::{Value, json};

/// Returns the usage of one object: of a node itself, or the sum of a pod's containers.
fn usage(item: &Value) -> BTreeMap<String, Quantity> {
    let mut sums: BTreeMap<String, Quantity> = BTreeMap::new();
    let containers = item["containers"].as_array().into_iter().flatten();
    for measured in containers.chain([item]).filter_map(|part| part["usage"].as_object()) {
        for (name, quantity) in measured {
            let Some(quantity) = quantity.as_str().and_then(|text| Quantity::parse(text).ok()) else {
                continue;
            };
            match sums.get_mut(name) {
                Some(sum) => sum.add(&quantity),
                None => {
                    sums.insert(name.clone(), quantity);
                }
            }
        }
    }
    sums
}

/// Returns the table of these items. The columns are the resources of the first item.
pub fn table(items: &[Value]) -> Value {
    let names: Vec<String> = items.first().map(usage).unwrap_or_default().into_keys().collect();
    let column = |name: &str, format: &str| json!({"name": name, "type": "string", "format": format, "description": "", "priority": 0});
    let mut columns = Vec::new();
    if !items.is_empty() {
        columns.push(column("Name", "name"));
        columns.extend(names.iter().map(|name| column(name, "quantity")));
        columns.push(column("Window", "duration"));
    }
    let row = |item: &Value| {
        let usage = usage(item);
        let mut cells = vec![item["metadata"]["name"].clone()];
        cells.extend(names.iter().map(|n| usage.get(n).map_or("0".to_owned(), Quantity::to_string).into()));
        cells.push(item["window"].clone());
        json!({"cells": cells, "object": item})
    };
    let rows: Vec<Value> = items.iter().map(row).collect();
    json!({
        "kind": "Table", "apiVersion": "meta.k8s.io/v1", "metadata": {},
        "columnDefinitions": columns, "rows": rows,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pods_use_what_their_containers_use() {
        let pod = json!({"metadata": {"name": "p"}, "window": "10s", "containers": [
            {"name": "a", "usage": {"cpu": "250m", "memory": "8Ki"}},
            {"name": "b", "usage": {"cpu": "50m", "memory": "4Ki"}},
        ]});
        let shown = table(&[pod]);
        let names: Vec<&str> = shown["columnDefinitions"]
            .as_array()
            .unwrap()
            .iter()
            .filter_map(|c| c["name"].as_str())
            .collect();
        assert_eq!(names, ["Name", "cpu", "memory", "Window"]);
        assert_eq!(shown["rows"][0]["cells"], json!(["p", "300m", "12Ki", "10s"]));
        let node =
            json!({"metadata": {"name": "n"}, "window": "9.5s", "usage": {"cpu": "1", "memory": "1Mi"}});
        assert_eq!(table(&[node])["rows"][0]["cells"], json!(["n", "1", "1Mi", "9.5s"]));
        assert_eq!(table(&[])["columnDefinitions"], json!([]));
    }
}
