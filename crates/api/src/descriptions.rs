//! Upstream's descriptions of the API's types and fields, for `kubectl explain`; the build script packs them.

use std::collections::BTreeMap;

use flate2::read::GzDecoder;
use serde_json::Value;

const PACKED: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/descriptions.json.gz"));

/// Returns the descriptions by definition name (`io.k8s.api.core.v1.Pod`): `description`, and `properties` with a
/// `description` each. Each call unpacks them again: they are large and needed once.
pub fn definitions() -> BTreeMap<String, Value> {
    // The build script packed this, so that unpacking succeeds; a test checks it.
    serde_json::from_reader(GzDecoder::new(PACKED)).unwrap_or_default()
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
