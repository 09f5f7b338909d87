//! Secret: confidential data.

use base64::Engine;
use base64::engine::general_purpose::STANDARD as BASE64;
use k8s_openapi::api::core::v1 as api;
use knarr_apimachinery::field::{Error, ErrorList, Path};
use knarr_apimachinery::names;
use serde_json::Value;

use crate::core::configmap::MAX_BYTES;
use crate::defaults::{blank, child};
use crate::kind::Kind;
use crate::naming;
use crate::object::Object;
use crate::prepare;
use crate::resource::{CellContext, Column, Resource};
use crate::strategy::Strategy;
use crate::table::{self, AGE, NAME};
use crate::validate;

pub const RESOURCE: Resource = Resource {
    selectable: &["type"],
    columns: COLUMNS,
    cells,
    ..Resource::stored(api::Secret::RESOURCE, "SecretList", "secret", &Rules)
};

const COLUMNS: &[Column] = &[
    NAME,
    Column::new("Type", "string", "The type of the secret."),
    Column::new("Data", "string", "The number of data entries."),
    AGE,
];

fn cells(object: &Object, cx: &CellContext) -> Vec<Value> {
    let o = object.typed::<api::Secret>().unwrap_or_default();
    let entries = o.data.as_ref().map_or(0, |d| d.len());
    vec![
        Value::from(object.name()),
        Value::from(o.type_.as_deref().unwrap_or("")),
        Value::from(entries),
        table::age(o.metadata.creation_timestamp.as_ref(), cx),
    ]
}

struct Rules;

impl Strategy for Rules {
    fn default(&self, object: &mut Value) {
        let fields = prepare::object(object);
        blank(fields, "type", "Opaque");
        let Some(Value::Object(plain)) = fields.remove("stringData") else { return };
        if !plain.is_empty() {
            let data = child(fields, "data");
            for (key, text) in plain {
                let encoded = BASE64.encode(text.as_str().unwrap_or(""));
                data.insert(key, Value::from(encoded));
            }
        }
    }

    fn prepare_for_update(&self, new: &mut Value, old: &Value, _: Option<&str>) {
        if let Some(before) = old.get("type").cloned() {
            blank(prepare::object(new), "type", before);
        }
    }

    fn validate(&self, object: &Object) -> ErrorList {
        object.typed::<api::Secret>().map(|o| validate_data(&o)).unwrap_or_default()
    }

    fn validate_update(&self, new: &Object, old: &Object, _: Option<&str>) -> ErrorList {
        let (Ok(new), Ok(old)) = (new.typed::<api::Secret>(), old.typed::<api::Secret>()) else {
            return ErrorList::new();
        };
        let mut errors = ErrorList::new();
        validate::immutable(&mut errors, &Path::new("type"), &new.type_, &old.type_);
        if old.immutable == Some(true) {
            for (field, changed) in
                [("immutable", new.immutable != Some(true)), ("data", new.data != old.data)]
            {
                if changed {
                    let why = "field is immutable when `immutable` is set";
                    errors.push(Error::forbidden(&Path::new(field), why));
                }
            }
        }
        errors.extend(validate_data(&new));
        errors
    }

    fn validate_name(&self, name: &str, prefix: bool) -> Vec<String> {
        naming::subdomain(name, prefix)
    }
}

fn validate_data(secret: &api::Secret) -> ErrorList {
    let mut errors = ErrorList::new();
    let path = Path::new("data");
    let mut size = 0;
    for (key, value) in secret.data.iter().flatten() {
        validate::problems(&mut errors, &path.key(key), key, names::config_map_key(key));
        size += value.0.len();
    }
    if size > MAX_BYTES {
        errors.push(Error::too_long(&path, MAX_BYTES));
    }
    let entry = |key: &str| secret.data.as_ref().and_then(|d| d.get(key));
    let mut needs = |keys: &[&str]| {
        for key in keys {
            errors.push(Error::required(&path.key(key), ""));
        }
    };
    match secret.type_.as_deref().unwrap_or("") {
        "kubernetes.io/service-account-token" => {
            let key = "kubernetes.io/service-account.name";
            let account = secret.metadata.annotations.as_ref().and_then(|a| a.get(key));
            if account.is_none_or(String::is_empty) {
                errors.push(Error::required(&Path::new("metadata").child("annotations").key(key), ""));
            }
        }
        "kubernetes.io/dockercfg" => docker_config(&mut errors, &path, secret, ".dockercfg"),
        "kubernetes.io/dockerconfigjson" => {
            docker_config(&mut errors, &path, secret, ".dockerconfigjson");
        }
        "kubernetes.io/basic-auth" if entry("username").is_none() && entry("password").is_none() => {
            needs(&["username", "password"]);
        }
        "kubernetes.io/ssh-auth" if entry("ssh-privatekey").is_none_or(|k| k.0.is_empty()) => {
            needs(&["ssh-privatekey"]);
        }
        "kubernetes.io/tls" => {
            let missing: Vec<&str> =
                ["tls.crt", "tls.key"].into_iter().filter(|key| entry(key).is_none()).collect();
            needs(&missing);
        }
        _ => {}
    }
    errors
}

fn docker_config(errors: &mut ErrorList, path: &Path, secret: &api::Secret, key: &str) {
    match secret.data.as_ref().and_then(|d| d.get(key)) {
        None => errors.push(Error::required(&path.key(key), "")),
        Some(content) => {
            let parsed = serde_json::from_slice::<serde_json::Map<String, Value>>(&content.0);
            if let Err(problem) = parsed {
                let redacted = "<secret contents redacted>";
                errors.push(Error::invalid(&path.key(key), redacted, problem.to_string()));
            }
        }
    }
}
