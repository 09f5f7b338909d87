//! ServiceAccount: an identity for pods.

use k8s_openapi::api::core::v1 as api;
use serde_json::Value;

use crate::kind::Kind;
use crate::naming;
use crate::object::Object;
use crate::resource::{CREATE_ONLY, CellContext, Column, Resource, Subresource};
use crate::strategy::Strategy;
use crate::table::{self, AGE, NAME};

const TOKEN: Subresource = Subresource {
    name: "token",
    body: Some(("authentication.k8s.io", "v1", "TokenRequest")),
    verbs: CREATE_ONLY,
};

/// Removes everything but the names from references to secrets.
fn keep_secret_names_only(object: &mut Value) {
    for secret in object.get_mut("secrets").and_then(Value::as_array_mut).into_iter().flatten() {
        if let Some(map) = secret.as_object_mut() {
            map.retain(|field, _| field == "name");
        }
    }
}

pub const RESOURCE: Resource = Resource {
    short_names: &["sa"],
    subresources: &[TOKEN],
    columns: COLUMNS,
    cells,
    ..Resource::stored(api::ServiceAccount::RESOURCE, "ServiceAccountList", "serviceaccount", &Rules)
};

const COLUMNS: &[Column] = &[NAME, AGE];

fn cells(object: &Object, cx: &CellContext) -> Vec<Value> {
    let o = object.typed::<api::ServiceAccount>().unwrap_or_default();
    vec![Value::from(object.name()), table::age(o.metadata.creation_timestamp.as_ref(), cx)]
}

struct Rules;

impl Strategy for Rules {
    fn prepare_for_create(&self, object: &mut Value) {
        keep_secret_names_only(object);
    }

    fn prepare_for_update(&self, new: &mut Value, _: &Value, _: Option<&str>) {
        keep_secret_names_only(new);
    }

    fn warnings(&self, new: &Object, old: Option<&Object>) -> Vec<String> {
        const KEY: &str = "kubernetes.io/enforce-mountable-secrets";
        let has = |object: &Object| {
            let account = object.typed::<api::ServiceAccount>().unwrap_or_default();
            account.metadata.annotations.as_ref().is_some_and(|a| a.contains_key(KEY))
        };
        if !has(new) || old.is_some_and(has) {
            return Vec::new();
        }
        vec![format!(
            "metadata.annotations[{KEY}]: deprecated in v1.32+; \
             prefer separate namespaces to isolate access to mounted secrets"
        )]
    }

    fn validate_name(&self, name: &str, prefix: bool) -> Vec<String> {
        naming::subdomain(name, prefix)
    }
}
