//! Validation of volume sources that pods and persistent volumes share.

use knarr_apimachinery::field::{Error, ErrorList, Path};
use knarr_apimachinery::names;
use serde_json::Value;

use crate::defaults::{Fields, text};
use crate::storage::parameters::csi_driver;
use crate::validate;

/// The owner of a volume: the two forms of a source differ a little.
#[derive(Clone, Copy)]
pub enum Of<'a> {
    Pod,
    /// The volume's name, which is empty for an inline volume.
    PersistentVolume(&'a str),
}

impl Of<'_> {
    fn is_persistent(self) -> bool {
        matches!(self, Self::PersistentVolume(_))
    }
}

/// Validates the source in the field `field` of the volume, at this path.
pub fn source(errors: &mut ErrorList, path: &Path, field: &str, source: &Fields, of: Of<'_>) {
    let need = |errors: &mut ErrorList, fields: &[&str]| {
        for field in fields {
            validate::required(errors, &path.child(field), text(source, field));
        }
    };
    match field {
        "nfs" => {
            need(errors, &["server", "path"]);
            let at = text(source, "path");
            if !at.starts_with('/') {
                errors.push(Error::invalid(&path.child("path"), at, "must be an absolute path"));
            }
        }
        "iscsi" => iscsi(errors, path, source, of),
        "fc" => fibre_channel(errors, path, source),
        "gcePersistentDisk" => disk(errors, path, source, "pdName"),
        "awsElasticBlockStore" => disk(errors, path, source, "volumeID"),
        "glusterfs" => {
            need(errors, &["endpoints", "path"]);
            glusterfs_namespace(errors, path, source, of);
        }
        "flocker" => flocker(errors, path, source),
        "quobyte" => quobyte(errors, path, source),
        "rbd" => {
            monitors(errors, path, source);
            need(errors, &["image"]);
        }
        "cephfs" => monitors(errors, path, source),
        "cinder" => {
            need(errors, &["volumeID"]);
            secret(errors, &path.child("secretRef"), source.get("secretRef"), of);
        }
        "flexVolume" => flex_volume(errors, path, source),
        "azureFile" => {
            need(errors, &["secretName", "shareName"]);
            if of.is_persistent() && source.get("secretNamespace").is_some_and(|n| n == "") {
                errors.push(Error::required(&path.child("secretNamespace"), ""));
            }
        }
        "azureDisk" => azure_disk(errors, path, source),
        "vsphereVolume" => need(errors, &["volumePath"]),
        "photonPersistentDisk" => need(errors, &["pdID"]),
        "portworxVolume" => need(errors, &["volumeID"]),
        "scaleIO" => need(errors, &["gateway", "system", "volumeName"]),
        "storageos" => storage_os(errors, path, source, of),
        "local" => {
            need(errors, &["path"]);
            validate::no_backsteps(errors, &path.child("path"), text(source, "path"));
        }
        "csi" => csi(errors, path, source, of),
        _ => {}
    }
}

fn number(source: &Fields, field: &str) -> i64 {
    source.get(field).and_then(Value::as_i64).unwrap_or(0)
}

fn list<'a>(source: &'a Fields, field: &str) -> &'a [Value] {
    source.get(field).and_then(Value::as_array).map_or(&[], Vec::as_slice)
}

fn lun(errors: &mut ErrorList, path: &Path, lun: i64) {
    validate::number_problems(errors, &path.child("lun"), lun, names::in_range(lun, 0, 255));
}

/// Validates a secret reference: by name in pods, by name and namespace in persistent volumes.
fn secret(errors: &mut ErrorList, path: &Path, reference: Option<&Value>, of: Of<'_>) {
    let Some(reference) = reference.and_then(Value::as_object) else { return };
    let fields: &[&str] = if of.is_persistent() { &["name", "namespace"] } else { &["name"] };
    for field in fields {
        validate::required(errors, &path.child(field), text(reference, field));
    }
}

/// Validates a CSI secret reference: name and namespace are required and well-formed.
fn full_secret(errors: &mut ErrorList, path: &Path, reference: &Fields) {
    let (name, namespace) = (text(reference, "name"), text(reference, "namespace"));
    if validate::required(errors, &path.child("name"), name) {
        validate::dns_subdomain(errors, &path.child("name"), name);
    }
    if validate::required(errors, &path.child("namespace"), namespace) {
        validate::dns_label(errors, &path.child("namespace"), namespace);
    }
}

fn iscsi(errors: &mut ErrorList, path: &Path, source: &Fields, of: Of<'_>) {
    const FORMAT: &str = "must be valid format";
    let wrong_start = if of.is_persistent() {
        FORMAT.to_owned()
    } else {
        format!("{FORMAT} starting with iqn, eui, or naa")
    };
    let portal = text(source, "targetPortal");
    validate::required(errors, &path.child("targetPortal"), portal);
    let initiator = source.get("initiatorName").and_then(Value::as_str);
    if let (Of::PersistentVolume(name), Some(_)) = (of, initiator)
        && name.len() + 1 + portal.len() > 64
    {
        let problem = "Total length of <volume name>:<iscsi.targetPortal> must be under 64 characters if iscsi.initiatorName is specified.";
        errors.push(Error::invalid(&path.child("targetportal"), portal, problem));
    }
    let qualified = |errors: &mut ErrorList, field: &str, name: &str| {
        let problem = match name.get(..3) {
            Some("iqn" | "eui" | "naa") if is_iscsi_name(name) => return,
            Some("iqn" | "eui" | "naa") => FORMAT,
            _ => &wrong_start,
        };
        errors.push(Error::invalid(&path.child(field), name, problem));
    };
    let iqn = text(source, "iqn");
    if validate::required(errors, &path.child("iqn"), iqn) {
        qualified(errors, "iqn", iqn);
    }
    lun(errors, path, number(source, "lun"));
    let on = |field: &str| source.get(field) == Some(&Value::Bool(true));
    let reference = source.get("secretRef").filter(|r| !r.is_null());
    if (on("chapAuthDiscovery") || on("chapAuthSession")) && reference.is_none() {
        errors.push(Error::required(&path.child("secretRef"), ""));
    }
    if of.is_persistent() {
        secret(errors, &path.child("secretRef"), reference, Of::Pod);
    }
    if let Some(name) = initiator {
        qualified(errors, "initiatorname", name);
    }
}

/// Returns whether this is `iqn.2001-04.com.example:x`, or `eui.` with 16, `naa.` with 32 letters and digits.
fn is_iscsi_name(name: &str) -> bool {
    let alphanumeric = |s: &str| s.chars().all(|c| c.is_ascii_alphanumeric());
    let (kind, rest) = name.split_at_checked(4).unwrap_or((name, ""));
    match kind.get(..3) {
        Some("eui") => rest.len() == 16 && alphanumeric(rest),
        Some("naa") => rest.len() == 32 && alphanumeric(rest),
        Some("iqn") if kind.ends_with('.') => {
            let Some((date, rest)) = rest.split_once('.') else { return false };
            let digits = |s: &str, n: usize| s.len() == n && s.bytes().all(|b| b.is_ascii_digit());
            let dated = date.split_once('-').is_some_and(|(y, m)| digits(y, 4) && digits(m, 2));
            let Some((authority, unique)) = rest.split_once(':') else { return false };
            let word = |c: char| c.is_ascii_alphanumeric() || c == '-' || c == '.';
            let plain = |c: char| !",;*&$|".contains(c) && !c.is_whitespace();
            dated
                && !authority.is_empty()
                && authority.chars().all(word)
                && !unique.is_empty()
                && unique.chars().all(plain)
        }
        _ => false,
    }
}

fn fibre_channel(errors: &mut ErrorList, path: &Path, source: &Fields) {
    let (names, ids) = (list(source, "targetWWNs"), list(source, "wwids"));
    let at = path.child("targetWWNs");
    match (names.is_empty(), ids.is_empty()) {
        (true, true) => {
            errors.push(Error::required(&at, "must specify either targetWWNs or wwids, but not both"));
        }
        (false, false) => {
            let problem = "targetWWNs and wwids can not be specified simultaneously";
            errors.push(Error::invalid(&at, Value::from(names.to_vec()), problem));
        }
        _ => {}
    }
    if !names.is_empty() {
        match source.get("lun").and_then(Value::as_i64) {
            None => {
                let why = "lun is required if targetWWNs is specified";
                errors.push(Error::required(&path.child("lun"), why));
            }
            Some(number) => lun(errors, path, number),
        }
    }
}

fn disk(errors: &mut ErrorList, path: &Path, source: &Fields, name: &str) {
    validate::required(errors, &path.child(name), text(source, name));
    let partition = number(source, "partition");
    if !(0..=255).contains(&partition) {
        let problem = names::inclusive_range_problem(1, 255);
        errors.push(Error::invalid(&path.child("partition"), partition, problem));
    }
}

fn glusterfs_namespace(errors: &mut ErrorList, path: &Path, source: &Fields, of: Of<'_>) {
    let namespace = source.get("endpointsNamespace").and_then(Value::as_str);
    let Some(namespace) = namespace.filter(|_| of.is_persistent()) else { return };
    let path = path.child("endpointsNamespace");
    if namespace.is_empty() {
        let problem = "if the endpointnamespace is set, it must be a valid namespace name";
        errors.push(Error::invalid(&path, "", problem));
    } else {
        validate::dns_label(errors, &path, namespace);
    }
}

fn flocker(errors: &mut ErrorList, path: &Path, source: &Fields) {
    let (name, id) = (text(source, "datasetName"), text(source, "datasetUUID"));
    match (name.is_empty(), id.is_empty()) {
        (true, true) => {
            errors.push(Error::required(path, "one of datasetName and datasetUUID is required"));
        }
        (false, false) => {
            let problem = "datasetName and datasetUUID can not be specified simultaneously";
            errors.push(Error::invalid(path, "resource", problem));
        }
        _ => {}
    }
    if name.contains('/') {
        errors.push(Error::invalid(&path.child("datasetName"), name, "must not contain '/'"));
    }
}

fn quobyte(errors: &mut ErrorList, path: &Path, source: &Fields) {
    const PAIRS: &str = "must be a host:port pair or multiple pairs separated by commas";
    let registry = text(source, "registry");
    if registry.is_empty() {
        errors.push(Error::required(&path.child("registry"), PAIRS));
    } else if text(source, "tenant").len() > 64 {
        let why = "must be a UUID and may not exceed a length of 64 characters";
        errors.push(Error::required(&path.child("tenant"), why));
    } else {
        for _ in registry.split(',').filter(|pair| !is_host_port(pair)) {
            errors.push(Error::invalid(&path.child("registry"), registry, PAIRS));
        }
    }
    validate::required(errors, &path.child("volume"), text(source, "volume"));
}

/// Returns whether this is `host:port` or `[v6]:port`, of any length.
fn is_host_port(text: &str) -> bool {
    match text.strip_prefix('[') {
        Some(rest) => rest
            .split_once("]:")
            .is_some_and(|(host, port)| !host.contains(['[', ']']) && !port.contains([':', '[', ']'])),
        None => text.matches(':').count() == 1 && !text.contains(['[', ']']),
    }
}

fn monitors(errors: &mut ErrorList, path: &Path, source: &Fields) {
    if list(source, "monitors").is_empty() {
        errors.push(Error::required(&path.child("monitors"), ""));
    }
}

fn flex_volume(errors: &mut ErrorList, path: &Path, source: &Fields) {
    validate::required(errors, &path.child("driver"), text(source, "driver"));
    let options = source.get("options").and_then(Value::as_object);
    for key in options.into_iter().flatten().map(|(key, _)| key) {
        let namespace = key.split_once('/').map_or(key.as_str(), |(namespace, _)| namespace);
        let normalized = format!(".{}", namespace.to_lowercase());
        if normalized.ends_with(".kubernetes.io") || normalized.ends_with(".k8s.io") {
            let problem = "kubernetes.io and k8s.io namespaces are reserved";
            errors.push(Error::invalid(&path.child("options").key(key), key.as_str(), problem));
        }
    }
}

fn azure_disk(errors: &mut ErrorList, path: &Path, source: &Fields) {
    for field in ["diskName", "diskURI"] {
        validate::required(errors, &path.child(field), text(source, field));
    }
    let modes = ["None", "ReadOnly", "ReadWrite"];
    if let Some(mode) = source.get("cachingMode").and_then(Value::as_str) {
        validate::supported_value(errors, &path.child("cachingMode"), mode, &modes);
    }
    let Some(kind) = source.get("kind").and_then(Value::as_str) else { return };
    let kinds = ["Dedicated", "Managed", "Shared"];
    validate::supported_value(errors, &path.child("kind"), kind, &kinds);
    let (start, form) = if kind == "Managed" {
        (
            "/subscriptions/",
            "/subscriptions/{sub-id}/resourcegroups/{group-name}/providers/microsoft.compute/disks/{disk-id}",
        )
    } else {
        ("https://", "https://{account-name}.blob.core.windows.net/{container-name}/{disk-name}.vhd")
    };
    let uri = text(source, "diskURI");
    if !uri.starts_with(start) {
        errors.push(validate::not_supported(&path.child("diskURI"), uri, &[form]));
    }
}

fn storage_os(errors: &mut ErrorList, path: &Path, source: &Fields, of: Of<'_>) {
    let (name, namespace) = (text(source, "volumeName"), text(source, "volumeNamespace"));
    if validate::required(errors, &path.child("volumeName"), name) {
        validate::dns_label(errors, &path.child("volumeName"), name);
    }
    if !namespace.is_empty() {
        validate::dns_label(errors, &path.child("volumeNamespace"), namespace);
    }
    secret(errors, &path.child("secretRef"), source.get("secretRef"), of);
}

fn csi(errors: &mut ErrorList, path: &Path, source: &Fields, of: Of<'_>) {
    csi_driver(errors, &path.child("driver"), text(source, "driver"));
    if of.is_persistent() {
        let at = path.child("volumeHandle");
        validate::required(errors, &at, text(source, "volumeHandle"));
        for field in [
            "controllerPublishSecretRef",
            "controllerExpandSecretRef",
            "nodePublishSecretRef",
            "nodeExpandSecretRef",
        ] {
            if let Some(reference) = source.get(field).and_then(Value::as_object) {
                full_secret(errors, &path.child(field), reference);
            }
        }
    } else if let Some(reference) = source.get("nodePublishSecretRef").and_then(Value::as_object) {
        let name = text(reference, "name");
        if validate::required(errors, &path.child("nodePublishSecretRef").child("name"), name) {
            validate::dns_subdomain(errors, &path.child("name"), name);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn iscsi_names() {
        for (name, fine) in [
            ("iqn.2001-04.com.example:storage.disk1", true),
            ("iqn.2001-04.com.example", false),
            ("iqn.201-04.com.example:x", false),
            ("iqn.2001-04.com.example:x y", false),
            ("eui.0123456789abcdef", true),
            ("eui.0123", false),
            ("naa.0123456789abcdef0123456789abcdef", true),
            ("foo", false),
            ("", false),
            ("é", false),
        ] {
            assert_eq!(is_iscsi_name(name), fine, "{name}");
        }
    }
}
