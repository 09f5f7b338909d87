//! Volumes: unique names, exactly one source each, and what each source needs.

use std::collections::{BTreeMap, BTreeSet};

use k8s_openapi::api::core::v1::{
    DownwardAPIVolumeFile, KeyToPath, PodSpec, ProjectedVolumeSource, ServiceAccountTokenProjection, Volume,
};
use knarr_apimachinery::field::{Error, ErrorList, Path};
use knarr_apimachinery::quantity::Quantity;

use super::{Of, env};
use crate::validate;

/// The valid volumes by name.
pub type Volumes<'a> = BTreeMap<&'a str, &'a Volume>;

const FILE_MODE: &str = "must be a number between 0 and 0777 (octal), both inclusive";
const HOST_PATH_TYPES: &[&str] =
    &["", "BlockDevice", "CharDevice", "Directory", "DirectoryOrCreate", "File", "FileOrCreate", "Socket"];

pub fn volumes<'a>(errors: &mut ErrorList, path: &Path, spec: &'a PodSpec, of: Of<'_>) -> Volumes<'a> {
    let mut valid = Volumes::new();
    let volumes = spec.volumes.as_deref().unwrap_or_default();
    let pod_name = match of {
        Of::Pod(metadata) => metadata.name.as_deref().unwrap_or(""),
        Of::Template => "",
    };
    let ephemeral = volumes.iter().filter(|v| v.ephemeral.is_some() && !pod_name.is_empty());
    let made: BTreeSet<String> = ephemeral.map(|v| format!("{pod_name}-{}", v.name)).collect();
    for (i, volume) in volumes.iter().enumerate() {
        let path = path.index(i);
        let mut found = ErrorList::new();
        source(&mut found, &path, volume);
        if validate::required(&mut found, &path.child("name"), &volume.name) {
            validate::dns_label(&mut found, &path.child("name"), &volume.name);
        }
        if valid.contains_key(volume.name.as_str()) {
            found.push(Error::duplicate(&path.child("name"), volume.name.as_str()));
        }
        if found.is_empty() {
            valid.insert(&volume.name, volume);
        }
        errors.extend(found);
        if let Some(claim) = volume.persistent_volume_claim.as_ref().filter(|c| made.contains(&c.claim_name))
        {
            let path = path.child("persistentVolumeClaim").child("claimName");
            let problem = "must not reference a PVC that gets created for an ephemeral volume";
            errors.push(Error::invalid(&path, claim.claim_name.as_str(), problem));
        }
    }
    valid
}

/// Looks at one kind of source.
type Check = fn(&mut ErrorList, &Path, &Volume);

/// Of several sources, only the first is looked at; the others are one too many.
fn source(errors: &mut ErrorList, path: &Path, volume: &Volume) {
    let checks: &[(&str, bool, Check)] = &[
        ("emptyDir", volume.empty_dir.is_some(), empty_dir),
        ("hostPath", volume.host_path.is_some(), host_path),
        ("gitRepo", volume.git_repo.is_some(), |_, _, _| {}),
        ("gcePersistentDisk", volume.gce_persistent_disk.is_some(), |_, _, _| {}),
        ("awsElasticBlockStore", volume.aws_elastic_block_store.is_some(), |_, _, _| {}),
        ("secret", volume.secret.is_some(), secret),
        ("nfs", volume.nfs.is_some(), nfs),
        ("iscsi", volume.iscsi.is_some(), |_, _, _| {}),
        ("glusterfs", volume.glusterfs.is_some(), |_, _, _| {}),
        ("flocker", volume.flocker.is_some(), |_, _, _| {}),
        ("persistentVolumeClaim", volume.persistent_volume_claim.is_some(), claim),
        ("rbd", volume.rbd.is_some(), |_, _, _| {}),
        ("cinder", volume.cinder.is_some(), |_, _, _| {}),
        ("cephFS", volume.cephfs.is_some(), |_, _, _| {}),
        ("quobyte", volume.quobyte.is_some(), |_, _, _| {}),
        ("downwardAPI", volume.downward_api.is_some(), downward_api),
        ("fc", volume.fc.is_some(), |_, _, _| {}),
        ("flexVolume", volume.flex_volume.is_some(), |_, _, _| {}),
        ("configMap", volume.config_map.is_some(), config_map),
        ("azureFile", volume.azure_file.is_some(), |_, _, _| {}),
        ("vsphereVolume", volume.vsphere_volume.is_some(), |_, _, _| {}),
        ("photonPersistentDisk", volume.photon_persistent_disk.is_some(), |_, _, _| {}),
        ("portworxVolume", volume.portworx_volume.is_some(), |_, _, _| {}),
        ("azureDisk", volume.azure_disk.is_some(), |_, _, _| {}),
        ("storageos", volume.storageos.is_some(), |_, _, _| {}),
        ("projected", volume.projected.is_some(), projected),
        ("scaleIO", volume.scale_io.is_some(), |_, _, _| {}),
        ("csi", volume.csi.is_some(), csi),
        ("ephemeral", volume.ephemeral.is_some(), |_, _, _| {}),
        ("image", volume.image.is_some(), |_, _, _| {}),
    ];
    let mut sources = 0;
    for (name, _, check) in checks.iter().filter(|(_, set, _)| *set) {
        sources += 1;
        if sources == 1 {
            check(errors, &path.child(name), volume);
        } else {
            errors.push(Error::forbidden(&path.child(name), "may not specify more than 1 volume type"));
        }
    }
    if sources == 0 {
        errors.push(Error::required(path, "must specify a volume type"));
    }
}

fn empty_dir(errors: &mut ErrorList, path: &Path, volume: &Volume) {
    let limit = volume.empty_dir.as_ref().and_then(|e| e.size_limit.as_ref());
    if limit.and_then(|l| Quantity::try_from(l).ok()).is_some_and(|l| l.signum() < 0) {
        let why = "SizeLimit field must be a valid resource quantity";
        errors.push(Error::forbidden(&path.child("sizeLimit"), why));
    }
}

fn host_path(errors: &mut ErrorList, path: &Path, volume: &Volume) {
    let Some(source) = &volume.host_path else { return };
    if validate::required(errors, &path.child("path"), &source.path) {
        validate::no_backsteps(errors, &path.child("path"), &source.path);
        if let Some(kind) = &source.type_ {
            validate::supported_value(errors, &path.child("type"), kind, HOST_PATH_TYPES);
        }
    }
}

fn mode(errors: &mut ErrorList, path: &Path, mode: Option<i32>) {
    if let Some(mode) = mode.filter(|m| !(0..=0o777).contains(m)) {
        errors.push(Error::invalid(path, mode, FILE_MODE));
    }
}

/// A file name inside a volume: relative, without `..` at its start.
fn file_path(errors: &mut ErrorList, path: &Path, value: &str) {
    validate::descending_path(errors, path, value);
    if value.starts_with("..") && !value.starts_with("../") {
        errors.push(Error::invalid(path, value, "must not start with '..'"));
    }
}

fn items(errors: &mut ErrorList, path: &Path, items: Option<&Vec<KeyToPath>>) {
    for (i, item) in items.into_iter().flatten().enumerate() {
        let path = path.child("items").index(i);
        validate::required(errors, &path.child("key"), &item.key);
        validate::required(errors, &path.child("path"), &item.path);
        file_path(errors, &path.child("path"), &item.path);
        mode(errors, &path.child("mode"), item.mode);
    }
}

fn secret(errors: &mut ErrorList, path: &Path, volume: &Volume) {
    let Some(source) = &volume.secret else { return };
    validate::required(errors, &path.child("secretName"), source.secret_name.as_deref().unwrap_or(""));
    mode(errors, &path.child("defaultMode"), source.default_mode);
    items(errors, path, source.items.as_ref());
}

fn config_map(errors: &mut ErrorList, path: &Path, volume: &Volume) {
    let Some(source) = &volume.config_map else { return };
    validate::required(errors, &path.child("name"), &source.name);
    mode(errors, &path.child("defaultMode"), source.default_mode);
    items(errors, path, source.items.as_ref());
}

fn nfs(errors: &mut ErrorList, path: &Path, volume: &Volume) {
    let Some(source) = &volume.nfs else { return };
    validate::required(errors, &path.child("server"), &source.server);
    validate::required(errors, &path.child("path"), &source.path);
    if !source.path.starts_with('/') {
        let problem = "must be an absolute path";
        errors.push(Error::invalid(&path.child("path"), source.path.as_str(), problem));
    }
}

fn claim(errors: &mut ErrorList, path: &Path, volume: &Volume) {
    let name = volume.persistent_volume_claim.as_ref().map_or("", |c| &c.claim_name);
    validate::required(errors, &path.child("claimName"), name);
}

fn csi(errors: &mut ErrorList, path: &Path, volume: &Volume) {
    let driver = volume.csi.as_ref().map_or("", |c| &c.driver);
    validate::required(errors, &path.child("driver"), driver);
}

fn downward_api(errors: &mut ErrorList, path: &Path, volume: &Volume) {
    let Some(source) = &volume.downward_api else { return };
    mode(errors, &path.child("defaultMode"), source.default_mode);
    for file in source.items.iter().flatten() {
        downward_file(errors, path, file);
    }
}

fn downward_file(errors: &mut ErrorList, path: &Path, file: &DownwardAPIVolumeFile) {
    validate::required(errors, &path.child("path"), &file.path);
    file_path(errors, &path.child("path"), &file.path);
    match (&file.field_ref, &file.resource_field_ref) {
        (Some(field), resource) => {
            env::field_ref(errors, &path.child("fieldRef"), field, env::FILE_FIELDS);
            if resource.is_some() {
                let problem = "fieldRef and resourceFieldRef can not be specified simultaneously";
                errors.push(Error::invalid(path, "resource", problem));
            }
        }
        (None, Some(resource)) => {
            env::resource_field_ref(errors, &path.child("resourceFieldRef"), resource, true);
        }
        (None, None) => {
            errors.push(Error::required(path, "one of fieldRef and resourceFieldRef is required"));
        }
    }
    mode(errors, &path.child("mode"), file.mode);
}

fn projected(errors: &mut ErrorList, path: &Path, volume: &Volume) {
    let Some(projected) = &volume.projected else { return };
    mode(errors, &path.child("defaultMode"), projected.default_mode);
    projected_sources(errors, path, projected);
}

fn projected_sources(errors: &mut ErrorList, path: &Path, projected: &ProjectedVolumeSource) {
    const CONFLICT: &str = "conflicting duplicate paths";
    let mut seen = BTreeSet::new();
    for (i, source) in projected.sources.iter().flatten().enumerate() {
        let at = path.child("sources").index(i);
        let mut sources = 0;
        let secret = source.secret.as_ref().map(|s| ("secret", &s.name, s.items.as_ref()));
        let config_map = source.config_map.as_ref().map(|c| ("configMap", &c.name, c.items.as_ref()));
        for (field, name, list) in secret.into_iter().chain(config_map) {
            sources += 1;
            validate::required(errors, &at.child(field).child("name"), name);
            items(errors, &at.child(field), list);
            for item in list.into_iter().flatten().filter(|item| !item.path.is_empty()) {
                if !seen.insert(item.path.as_str()) {
                    errors.push(Error::invalid(path, name.as_str(), CONFLICT));
                }
            }
        }
        if let Some(downward) = &source.downward_api {
            sources += 1;
            for file in downward.items.iter().flatten() {
                downward_file(errors, &at.child("downwardAPI"), file);
                if !file.path.is_empty() && !seen.insert(file.path.as_str()) {
                    errors.push(Error::invalid(path, file.path.as_str(), CONFLICT));
                }
            }
        }
        if let Some(token) = &source.service_account_token {
            sources += 1;
            token_source(errors, path, &at.child("serviceAccountToken"), token);
        }
        sources += usize::from(source.cluster_trust_bundle.is_some());
        sources += usize::from(source.pod_certificate.is_some());
        if sources > 1 {
            errors.push(Error::forbidden(&at, "may not specify more than 1 volume type per source"));
        }
    }
}

/// Errors about the path name the volume, not the source.
fn token_source(errors: &mut ErrorList, volume: &Path, path: &Path, token: &ServiceAccountTokenProjection) {
    let at = path.child("expirationSeconds");
    match token.expiration_seconds {
        None => errors.push(Error::required(&at, "")),
        Some(seconds) if seconds < 600 => {
            let problem = "may not specify a duration less than 10 minutes";
            errors.push(Error::invalid(&at, seconds, problem));
        }
        Some(seconds) if seconds > 1 << 32 => {
            let problem = "may not specify a duration larger than 2^32 seconds";
            errors.push(Error::invalid(&at, seconds, problem));
        }
        Some(_) => {}
    }
    if validate::required(errors, &volume.child("path"), &token.path) {
        file_path(errors, &volume.child("path"), &token.path);
    }
}
