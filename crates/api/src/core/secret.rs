//! Secret: data that is shown to few.

use k8s_openapi::api::core::v1 as api;
use serde_json::Value;

use crate::kind::Kind;
use crate::naming;
use crate::prepare;
use crate::resource::Resource;
use crate::strategy::Strategy;

pub const RESOURCE: Resource = Resource {
    selectable: &["type"],
    ..Resource::stored(api::Secret::RESOURCE, "SecretList", "secret", &Rules)
};

struct Rules;

impl Strategy for Rules {
    fn default(&self, object: &mut Value) {
        let map = prepare::object(object);
        if map.get("type").and_then(Value::as_str).unwrap_or("").is_empty() {
            map.insert("type".to_owned(), Value::from("Opaque"));
        }
    }

    fn validate_name(&self, name: &str, prefix: bool) -> Vec<String> {
        naming::subdomain(name, prefix)
    }
}
