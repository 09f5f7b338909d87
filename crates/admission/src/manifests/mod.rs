//! Policies and webhooks that the server's operator keeps in files. They apply from the first request on, cannot be
//! changed or removed by the API, and also apply to the policies and webhooks of the API.
//!
//! Source: KEP-5793 (ManifestBasedAdmissionControlConfig); `k8s.io/apiserver/pkg/admission/plugin/manifest` and the
//! loaders of policies and webhooks: which files are read, what is refused, with which messages.

use std::collections::BTreeMap;
use std::path::Path;

use knarr_api::object::Object;
use knarr_api::resource::Resource;
use knarr_apimachinery::gvk::GroupVersionKind;
use knarr_apimachinery::schema::validate::decode_request;
use serde_json::Value;

use knarr_reload::Content;
use knarr_wire::yaml::Yaml;

/// The extensions of the files that are read.
pub const EXTENSIONS: &[&str] = &["json", "yaml", "yml"];
/// The suffix of the names of all objects from files.
const SUFFIX: &str = ".static.k8s.io";

/// Reads the objects of the files, sorted by name, one list for each of `resources`. Objects of other kinds are an
/// error, as are all that the API would refuse.
pub fn read(files: &[Content], resources: &[&'static Resource]) -> Result<Vec<Vec<Value>>, String> {
    let mut found: Vec<BTreeMap<String, Value>> = resources.iter().map(|_| BTreeMap::new()).collect();
    for (path, bytes) in files {
        let wrong = |why: String| format!("error loading {}: {why}", path.display());
        for document in documents(knarr_reload::text(bytes).map_err(wrong)?) {
            let document = document.map_err(wrong)?;
            for (at, object) in objects(document, resources).map_err(wrong)? {
                let name = named(&object, path).map_err(wrong)?;
                let Some(of_kind) = found.get_mut(at) else { continue };
                if of_kind.insert(name.clone(), object).is_some() {
                    return Err(wrong(format!("duplicate name {name:?} found in file {path:?}")));
                }
            }
        }
    }
    Ok(found.into_iter().map(|objects| objects.into_values().collect()).collect())
}

/// Splits a YAML text into documents; empty ones are left out.
fn documents(text: &str) -> impl Iterator<Item = Result<&str, String>> {
    let mut rest = Some(text);
    std::iter::from_fn(move || {
        let text = rest?;
        let mut begun = 0;
        for line in text.split_inclusive('\n') {
            // The text may start with a separator.
            if let Some(behind) = line.strip_prefix("---") {
                if !is_empty(behind) {
                    rest = None;
                    return Some(Err(format!("invalid Yaml document separator: {}", behind.trim())));
                }
                let (document, after) = text.split_at(begun);
                rest = after.get(line.len()..);
                return Some(Ok(document));
            }
            begun += line.len();
        }
        rest = None;
        Some(Ok(text))
    })
    .filter(|document| document.as_ref().map_or(true, |text| !text.lines().all(is_empty)))
}

fn is_empty(line: &str) -> bool {
    line.trim().is_empty() || line.trim_start().starts_with('#')
}

/// Parses the objects of a document, with defaults and validation, each with the index of its resource. A list yields
/// its items.
fn objects(document: &str, resources: &[&'static Resource]) -> Result<Vec<(usize, Value)>, String> {
    let yaml = Yaml::read(document.as_bytes())?;
    if let Some(error) = yaml.strict_error() {
        return Err(error);
    }
    let mut objects = Vec::new();
    for (kind, value) in items(yaml.value, resources)? {
        let at = resources.iter().position(|r| is(r, &kind));
        let (Some(at), Some(resource)) = (at, resources.iter().find(|r| is(r, &kind))) else {
            return Err(format!("unsupported resource type {}, Kind={}", kind.api_version(), kind.kind));
        };
        objects.push((at, object(resource, value)?));
    }
    Ok(objects)
}

fn is(resource: &Resource, kind: &GroupVersionKind) -> bool {
    resource.types.gvk() == *kind
}

fn kind_of(value: &Value) -> Result<GroupVersionKind, String> {
    let text = |field: &str| value[field].as_str().filter(|text| !text.is_empty());
    let kind = text("kind").ok_or("Object 'Kind' is missing")?;
    let version = text("apiVersion").ok_or("Object 'apiVersion' is missing")?;
    Ok(GroupVersionKind::from_api_version(version, kind))
}

fn items(
    mut value: Value,
    resources: &[&'static Resource],
) -> Result<Vec<(GroupVersionKind, Value)>, String> {
    let kind = kind_of(&value)?;
    let of_list = resources.iter().find(|r| {
        let types = r.types.gvk();
        r.list_kind == kind.kind && types.api_version() == kind.api_version()
    });
    let is_list = of_list.is_some() || kind == GroupVersionKind::from_api_version("v1", "List");
    if !is_list {
        return Ok(vec![(kind, value)]);
    }
    let fields = ["apiVersion", "items", "kind", "metadata"];
    let unknown = value.as_object().and_then(|list| list.keys().find(|key| !fields.contains(&key.as_str())));
    if let Some(field) = unknown {
        return Err(format!("strict decoding error: unknown field {field:?}"));
    }
    let items = match value.get_mut("items").map(Value::take) {
        None | Some(Value::Null) => Vec::new(),
        Some(Value::Array(items)) => items,
        Some(_) => return Err("the items of a list are not a list".to_owned()),
    };
    items
        .into_iter()
        .map(|mut item| {
            // The items of a typed list have the kind that the list implies.
            if let (Some(resource), Value::Object(fields)) = (of_list, &mut item) {
                let types = resource.types.gvk();
                fields.entry("kind").or_insert_with(|| types.kind.clone().into());
                fields.entry("apiVersion").or_insert_with(|| types.api_version().into());
            }
            kind_of(&item).map(|kind| (kind, item)).map_err(|e| format!("failed to decode list item: {e}"))
        })
        .collect()
}

/// Validates one object as the API would, except for its name.
fn object(resource: &Resource, value: Value) -> Result<Value, String> {
    let kind = resource.types.gvk();
    let decoded =
        decode_request(value.to_string().as_bytes(), &kind, true).map_err(|e| e.message().to_owned())?;
    let mut object = decoded.value;
    resource.strategy.default(&mut object);
    if let Some(dropped) = knarr_api::dropped::drop_fields(resource.types, &mut object).first() {
        return Err(dropped.clone());
    }
    let name = object["metadata"]["name"].as_str().unwrap_or("").to_owned();
    let failed = |why: String| format!("{} {name:?}: {why}", kind.kind);
    if let Some(why) = resource.strategy.validate_name(&name, false).first().filter(|_| !name.is_empty()) {
        return Err(failed(format!("metadata.name: Invalid value: {name:?}: {why}")));
    }
    // Names with this suffix are refused for API objects only.
    let mut checked = object.clone();
    checked["metadata"]["name"] = name.strip_suffix(SUFFIX).unwrap_or(&name).into();
    let checked = Object::new(checked.to_string().into(), &[]).map_err(|e| failed(e.to_string()))?;
    let errors = resource.strategy.validate(&checked);
    if !errors.is_empty() {
        return Err(failed(errors.to_string()));
    }
    Ok(object)
}

fn named(object: &Value, path: &Path) -> Result<String, String> {
    match object["metadata"]["name"].as_str().unwrap_or("") {
        "" => Err(format!("resource in file {path:?} must have a name")),
        name if name.ends_with(SUFFIX) => Ok(name.to_owned()),
        name => Err(format!("{name:?} in file {path:?} must have a name ending with {SUFFIX:?}")),
    }
}

/// Refuses parameters, which are API objects and so only available to policies of the API.
pub fn check_policies(policies: &[Value], bindings: &[Value]) -> Result<(), String> {
    let text = |value: &Value| value.as_str().unwrap_or("").to_owned();
    let known: Vec<String> = policies.iter().map(|policy| text(&policy["metadata"]["name"])).collect();
    if let Some(policy) = policies.iter().find(|policy| policy["spec"]["paramKind"].is_object()) {
        let (kind, name) = (text(&policy["kind"]), text(&policy["metadata"]["name"]));
        return Err(format!("{kind} {name:?}: spec.paramKind is not supported for static manifests"));
    }
    for binding in bindings {
        let (name, policy) = (text(&binding["metadata"]["name"]), text(&binding["spec"]["policyName"]));
        if binding["spec"]["paramRef"].is_object() {
            return Err(format!("binding {name:?}: spec.paramRef is not supported for static manifests"));
        }
        if !policy.ends_with(SUFFIX) {
            return Err(format!("binding {name:?}: spec.policyName {policy:?} must end with {SUFFIX:?}"));
        }
        if !known.contains(&policy) {
            return Err(format!(
                "binding {name:?} references policy {policy:?} which does not exist in the manifest directory"
            ));
        }
    }
    Ok(())
}

/// Refuses Services, which are API objects and so only available to webhooks of the API.
pub fn check_webhooks(configurations: &[Value]) -> Result<(), String> {
    for configuration in configurations {
        let name = configuration["metadata"]["name"].as_str().unwrap_or("");
        for webhook in configuration["webhooks"].as_array().into_iter().flatten() {
            let (own, client) = (webhook["name"].as_str().unwrap_or(""), &webhook["clientConfig"]);
            let wrong = |why: &str| Err(format!("webhook {own:?} in {name:?}: {why}"));
            if client["service"].is_object() {
                return wrong(
                    "clientConfig.service is not supported for static manifests; use clientConfig.url instead",
                );
            }
            if client["url"].as_str().is_none_or(str::is_empty) {
                return wrong("clientConfig.url is required for static manifests");
            }
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests;
