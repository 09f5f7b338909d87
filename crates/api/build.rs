//! Extracts upstream's descriptions of types and fields from the schemas of `k8s-openapi` and packs them: as code
//! they would add megabytes to the program and minutes to its build.

use std::collections::BTreeMap;
use std::error::Error;
use std::fs::File;
use std::path::PathBuf;

use flate2::Compression;
use flate2::write::GzEncoder;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{
    APIGroupList, APIResourceList, APIVersions, DeleteOptions, Status,
};
use k8s_openapi::apimachinery::pkg::version::Info;
use k8s_openapi::schemars::SchemaGenerator;
use serde_json::Value;

macro_rules! kinds {
    ($($ty:ty, $namespaced:literal;)*) => {
        /// Makes the generator describe every kind and the types it contains.
        fn describe_all(generator: &mut SchemaGenerator) {
            $( let _ = generator.subschema_for::<$ty>(); )*
        }
    };
}

include!("src/kinds.in");

fn main() -> Result<(), Box<dyn Error>> {
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::rerun-if-changed=src/kinds.in");
    let mut generator = SchemaGenerator::default();
    describe_all(&mut generator);
    let _ = generator.subschema_for::<DeleteOptions>();
    let _ = generator.subschema_for::<Status>();
    let _ = generator.subschema_for::<APIGroupList>();
    let _ = generator.subschema_for::<APIResourceList>();
    let _ = generator.subschema_for::<APIVersions>();
    let _ = generator.subschema_for::<Info>();
    let definitions: BTreeMap<String, Value> = generator
        .take_definitions(true)
        .into_iter()
        .map(|(name, schema)| (name, described(&schema)))
        .collect();
    let path = PathBuf::from(std::env::var("OUT_DIR")?).join("descriptions.json.gz");
    let mut packed = GzEncoder::new(File::create(path)?, Compression::best());
    serde_json::to_writer(&mut packed, &definitions)?;
    packed.finish()?;
    Ok(())
}

/// Returns the descriptions of a schema and of its fields.
fn described(schema: &Value) -> Value {
    let text = |schema: &Value| {
        // The description of a reference is beside `$ref`, or in `allOf`.
        schema.get("description").or_else(|| schema.pointer("/allOf/0/description")).cloned()
    };
    let mut descriptions = serde_json::Map::new();
    descriptions.extend(text(schema).map(|t| ("description".to_owned(), t)));
    let fields = schema.get("properties").and_then(Value::as_object).into_iter().flatten();
    let fields: serde_json::Map<String, Value> = fields
        .filter_map(|(name, field)| Some((name.clone(), serde_json::json!({"description": text(field)?}))))
        .collect();
    if !fields.is_empty() {
        descriptions.insert("properties".to_owned(), fields.into());
    }
    descriptions.into()
}
