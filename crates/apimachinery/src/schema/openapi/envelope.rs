//! The parts of a document around paths and schemas.

use serde_json::{Map, Value, json};

/// Returns a document with these paths and schemas.
pub(super) fn with(paths: Map<String, Value>, schemas: Map<String, Value>) -> Value {
    json!({
        "openapi": "3.0.0",
        "info": {"title": "Kubernetes", "version": "1.37"},
        "paths": paths,
        "components": {
            "schemas": schemas,
            "securitySchemes": {"BearerToken": {
                "description": "Bearer Token authentication",
                "in": "header", "name": "authorization", "type": "apiKey",
            }},
        },
    })
}
