//! What the API's types and fields mean, in upstream's words, for `kubectl explain`.

use std::collections::BTreeMap;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{DeleteOptions, Status};
use k8s_openapi::schemars::SchemaGenerator;
use serde_json::Value;

use crate::codec;

/// Schemas with descriptions by definition name (`io.k8s.api.core.v1.Pod`), made anew at each call: they are large,
/// and wanted once.
pub fn definitions() -> BTreeMap<String, Value> {
    let mut generator = SchemaGenerator::default();
    codec::describe_all(&mut generator);
    let _ = generator.subschema_for::<DeleteOptions>();
    let _ = generator.subschema_for::<Status>();
    generator.take_definitions(true).into_iter().collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nested_types_and_their_fields_are_described() {
        let all = definitions();
        let container = &all["io.k8s.api.core.v1.Container"];
        assert!(
            container["description"].as_str().is_some_and(|d| d.contains("single application container"))
        );
        assert!(container["properties"]["image"]["description"].is_string());
    }
}
