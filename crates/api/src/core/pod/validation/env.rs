//! Validation of environment variables, their sources, and the downward API's field paths.

use k8s_openapi::api::core::v1::{
    EnvFromSource, EnvVar, EnvVarSource, ObjectFieldSelector, PodSpec, ResourceFieldSelector,
};
use knarr_apimachinery::field::{Error, ErrorList, Path};
use knarr_apimachinery::names;
use knarr_apimachinery::quantity::Quantity;

use crate::validate;

const ENV_FIELDS: &[&str] = &[
    "metadata.name",
    "metadata.namespace",
    "metadata.uid",
    "spec.nodeName",
    "spec.serviceAccountName",
    "status.hostIP",
    "status.hostIPs",
    "status.podIP",
    "status.podIPs",
];
/// All fields of the downward API, for variables or for files.
const ALL_FIELDS: &[&str] = &[
    "metadata.annotations",
    "metadata.labels",
    "metadata.name",
    "metadata.namespace",
    "metadata.uid",
    "spec.nodeName",
    "spec.restartPolicy",
    "spec.schedulerName",
    "spec.serviceAccountName",
    "status.hostIP",
    "status.hostIPs",
    "status.phase",
    "status.podIP",
    "status.podIPs",
];
/// The fields of downward API volumes.
pub const FILE_FIELDS: &[&str] =
    &["metadata.annotations", "metadata.labels", "metadata.name", "metadata.namespace", "metadata.uid"];
const RESOURCES: &[&str] = &[
    "limits.cpu",
    "limits.ephemeral-storage",
    "limits.memory",
    "requests.cpu",
    "requests.ephemeral-storage",
    "requests.memory",
];
const BYTE_DIVISORS: &[&str] =
    &["1", "1k", "1M", "1G", "1T", "1P", "1E", "1Ki", "1Mi", "1Gi", "1Ti", "1Pi", "1Ei"];

pub fn variables(errors: &mut ErrorList, path: &Path, variables: &[EnvVar]) {
    for (i, variable) in variables.iter().enumerate() {
        let path = path.index(i);
        if validate::required(errors, &path.child("name"), &variable.name) {
            let found = names::env_var_name(&variable.name);
            validate::problems(errors, &path.child("name"), &variable.name, found);
        }
        if let Some(source) = &variable.value_from {
            let plain = variable.value.as_deref().is_some_and(|v| !v.is_empty());
            value_from(errors, &path.child("valueFrom"), source, plain);
        }
    }
}

fn value_from(errors: &mut ErrorList, path: &Path, source: &EnvVarSource, plain: bool) {
    let mut sources = 0;
    if let Some(field) = &source.field_ref {
        sources += 1;
        field_ref(errors, &path.child("fieldRef"), field, ENV_FIELDS);
    }
    if let Some(field) = &source.resource_field_ref {
        sources += 1;
        resource_field_ref(errors, &path.child("resourceFieldRef"), field, false);
    }
    if let Some(reference) = &source.config_map_key_ref {
        sources += 1;
        key_ref(errors, &path.child("configMapKeyRef"), &reference.name, &reference.key);
    }
    if let Some(reference) = &source.secret_key_ref {
        sources += 1;
        key_ref(errors, &path.child("secretKeyRef"), &reference.name, &reference.key);
    }
    if let Some(file) = &source.file_key_ref {
        sources += 1;
        let path = path.child("fileKeyRef");
        if validate::required(errors, &path.child("key"), &file.key) {
            validate::problems(errors, &path.child("key"), &file.key, names::env_var_name(&file.key));
        }
        if validate::required(errors, &path.child("volumeName"), &file.volume_name) {
            validate::dns_label(errors, &path.child("volumeName"), &file.volume_name);
        }
        if validate::required(errors, &path.child("path"), &file.path) {
            validate::no_backsteps(errors, &path.child("path"), &file.path);
        }
    }
    let problem = match sources {
        0 => {
            "must specify one of: `fieldRef`, `resourceFieldRef`, `configMapKeyRef`, `secretKeyRef` or `fileKeyRef`"
        }
        _ if plain => "may not be specified when `value` is not empty",
        1 => return,
        _ => "may not have more than one field specified at a time",
    };
    errors.push(Error::invalid(path, "", problem));
}

fn key_ref(errors: &mut ErrorList, path: &Path, name: &str, key: &str) {
    validate::dns_subdomain(errors, &path.child("name"), name);
    if validate::required(errors, &path.child("key"), key) {
        validate::problems(errors, &path.child("key"), key, names::config_map_key(key));
    }
}

/// Validates a field reference: one of `fields`, or one label or annotation as `metadata.labels['key']`.
pub fn field_ref(errors: &mut ErrorList, path: &Path, field: &ObjectFieldSelector, fields: &[&str]) {
    let version = field.api_version.as_deref().unwrap_or("");
    if !validate::required(errors, &path.child("apiVersion"), version)
        || !validate::required(errors, &path.child("fieldPath"), &field.field_path)
    {
        return;
    }
    let at = path.child("fieldPath");
    let text = field.field_path.as_str();
    let subscript =
        text.strip_suffix("']").and_then(|rest| rest.split_once("['")).filter(|(base, _)| !base.is_empty());
    let label = if version != "v1" {
        Err(format!("error converting fieldPath: unsupported pod version: {version}"))
    } else {
        match subscript {
            Some(("metadata.annotations" | "metadata.labels", _)) => Ok(()),
            None if ALL_FIELDS.contains(&text) || text == "spec.host" => Ok(()),
            Some(_) => {
                Err(format!("error converting fieldPath: field label does not support subscript: {text}"))
            }
            None => Err(format!("error converting fieldPath: field label not supported: {text}")),
        }
    };
    match (label, subscript) {
        (Err(problem), _) => errors.push(Error::invalid(&at, text, problem)),
        (Ok(()), Some(("metadata.annotations", key))) => {
            validate::label_key(errors, path, &key.to_lowercase());
        }
        (Ok(()), Some((_, key))) => validate::label_key(errors, path, key),
        (Ok(()), None) => {
            let text = if text == "spec.host" { "spec.nodeName" } else { text };
            validate::supported_value(errors, &at, text, fields);
        }
    }
}

/// Validates a reference to a container's request or limit.
pub fn resource_field_ref(
    errors: &mut ErrorList,
    path: &Path,
    field: &ResourceFieldSelector,
    in_volume: bool,
) {
    let resource = field.resource.as_str();
    let huge = resource.starts_with("requests.hugepages-") || resource.starts_with("limits.hugepages-");
    if in_volume && field.container_name.as_deref().unwrap_or("").is_empty() {
        errors.push(Error::required(&path.child("containerName"), ""));
    } else if validate::required(errors, &path.child("resource"), resource) && !huge {
        validate::supported_value(errors, &path.child("resource"), resource, RESOURCES);
    }
    let divisor = field.divisor.as_ref().and_then(|d| Quantity::try_from(d).ok());
    let Some(divisor) = divisor.filter(|d| !d.is_zero()) else { return };
    let (allowed, what): (&[&str], &str) = match resource {
        "limits.cpu" | "requests.cpu" => (&["1m", "1"], "cpu"),
        "limits.memory" | "requests.memory" => (BYTE_DIVISORS, "memory"),
        "limits.ephemeral-storage" | "requests.ephemeral-storage" => {
            (BYTE_DIVISORS, "local ephemeral storage")
        }
        _ if huge => (BYTE_DIVISORS, "hugepages"),
        _ => return,
    };
    if !allowed.contains(&divisor.to_string().as_str()) {
        let list = if what == "cpu" { "1m and 1".to_owned() } else { BYTE_DIVISORS.join(", ") };
        let problem = format!("only divisor's values {list} are supported with the {what} resource");
        errors.push(Error::invalid(&path.child("divisor"), resource, problem));
    }
}

pub fn sources(errors: &mut ErrorList, path: &Path, sources: &[EnvFromSource]) {
    for (i, source) in sources.iter().enumerate() {
        let at = path.index(i);
        let prefix = source.prefix.as_deref().unwrap_or("");
        if !prefix.is_empty() {
            validate::problems(errors, &at.child("prefix"), prefix, names::env_var_name(prefix));
        }
        let config_map = source.config_map_ref.as_ref().map(|r| ("configMapRef", &r.name));
        let secret = source.secret_ref.as_ref().map(|r| ("secretRef", &r.name));
        for (field, name) in config_map.iter().chain(&secret) {
            let at = at.child(field).child("name");
            if validate::required(errors, &at, name) {
                // Upstream checks these as prefixes: a trailing dash is accepted.
                let found = crate::naming::subdomain(name, true);
                validate::problems(errors, &at, name, found);
            }
        }
        let problem = match (config_map, secret) {
            (None, None) => "must specify one of: `configMapRef` or `secretRef`",
            (Some(_), Some(_)) => "may not have more than one field specified at a time",
            _ => continue,
        };
        errors.push(Error::invalid(path, "", problem));
    }
}

/// Requires that files with variables are in emptyDir volumes of the pod.
pub fn file_volumes(errors: &mut ErrorList, path: &Path, spec: &PodSpec) {
    let main = spec.containers.iter().enumerate().map(|(i, c)| ("containers", i, &c.env));
    let init = spec.init_containers.iter().flatten().enumerate().map(|(i, c)| ("initContainers", i, &c.env));
    let ephemeral = spec.ephemeral_containers.iter().flatten().enumerate();
    let ephemeral = ephemeral.map(|(i, c)| ("ephemeralContainers", i, &c.env));
    for (list, i, variables) in init.chain(main).chain(ephemeral) {
        for (j, variable) in variables.iter().flatten().enumerate() {
            let file = variable.value_from.as_ref().and_then(|v| v.file_key_ref.as_ref());
            let Some(name) = file.map(|f| f.volume_name.as_str()) else { continue };
            let path = path.child(list).index(i).child("env").index(j).child("valueFrom");
            let path = path.child("fileKeyRef").child("volumeName");
            match spec.volumes.iter().flatten().find(|v| v.name == name) {
                None => errors.push(Error::not_found(&path, name)),
                Some(volume) if volume.empty_dir.is_none() => {
                    errors.push(Error::invalid(&path, name, "referenced volume must be of type emptyDir"));
                }
                Some(_) => {}
            }
        }
    }
}
