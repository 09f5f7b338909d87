//! Reads the definitions of the published OpenAPI v3 documents.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use anyhow::{Context, Result, ensure};
use serde_json::Value;

/// The OpenAPI facts of one definition.
#[derive(Default)]
pub struct Definition {
    pub properties: BTreeMap<String, Property>,
    pub atomic: bool,
    /// Group, version, kind.
    pub kinds: BTreeSet<(String, String, String)>,
}

/// The OpenAPI facts of one field.
#[derive(Default, Clone, PartialEq, Debug)]
pub struct Property {
    pub required: bool,
    pub default: Option<String>,
    pub list_type: String,
    pub list_map_keys: Vec<String>,
    pub map_type: String,
    pub patch_strategy: String,
    pub patch_merge_key: String,
}

/// Reads all definitions by name, the union of the documents of all group versions.
pub fn read(server: &Path) -> Result<BTreeMap<String, Definition>> {
    let folder = server.join("api/openapi-spec/v3");
    let mut files: Vec<_> =
        std::fs::read_dir(&folder)?.map(|e| e.map(|e| e.path())).collect::<Result<_, _>>()?;
    files.sort();
    let mut all: BTreeMap<String, Definition> = BTreeMap::new();
    for file in files {
        let document: Value = serde_json::from_slice(&std::fs::read(&file)?)
            .with_context(|| format!("parsing {}", file.display()))?;
        let Some(schemas) = document.pointer("/components/schemas").and_then(Value::as_object) else {
            continue;
        };
        for (name, schema) in schemas {
            let definition = definition(schema);
            match all.get_mut(name) {
                None => {
                    all.insert(name.clone(), definition);
                }
                Some(known) => {
                    ensure!(known.properties == definition.properties, "{name} differs between documents");
                    known.kinds.extend(definition.kinds);
                }
            }
        }
    }
    ensure!(all.len() > 500, "only {} definitions in {}", all.len(), folder.display());
    Ok(all)
}

fn definition(schema: &Value) -> Definition {
    let required: BTreeSet<&str> = array(schema, "required").iter().filter_map(Value::as_str).collect();
    let properties = schema
        .get("properties")
        .and_then(Value::as_object)
        .into_iter()
        .flatten()
        .map(|(name, p)| (name.clone(), property(p, required.contains(name.as_str()))))
        .collect();
    let kinds = array(schema, "x-kubernetes-group-version-kind")
        .iter()
        .map(|k| (text(k, "group"), text(k, "version"), text(k, "kind")))
        .collect();
    Definition { properties, atomic: text(schema, "x-kubernetes-map-type") == "atomic", kinds }
}

fn property(p: &Value, required: bool) -> Property {
    Property {
        required,
        default: p.get("default").map(Value::to_string),
        list_type: text(p, "x-kubernetes-list-type"),
        list_map_keys: array(p, "x-kubernetes-list-map-keys")
            .iter()
            .filter_map(|k| k.as_str().map(str::to_owned))
            .collect(),
        map_type: text(p, "x-kubernetes-map-type"),
        patch_strategy: text(p, "x-kubernetes-patch-strategy"),
        patch_merge_key: text(p, "x-kubernetes-patch-merge-key"),
    }
}

fn text(v: &Value, key: &str) -> String {
    v.get(key).and_then(Value::as_str).unwrap_or_default().to_owned()
}

fn array<'a>(v: &'a Value, key: &str) -> &'a [Value] {
    v.get(key).and_then(Value::as_array).map_or(&[], Vec::as_slice)
}
