//! Validation of volumes: unique names, exactly one source each, and the fields of each source.

use std::collections::{BTreeMap, BTreeSet};

use k8s_openapi::api::core::v1::{
    ClusterTrustBundleProjection, DownwardAPIVolumeFile, KeyToPath, PodCertificateProjection, PodSpec,
    ProjectedVolumeSource, ServiceAccountTokenProjection, Volume,
};
use knarr_apimachinery::field::{Error, ErrorList, Path};
use knarr_apimachinery::names;
use knarr_apimachinery::quantity::Quantity;
use serde_json::Value;

use super::{Of, env};
use crate::certificates::signer_name;
use crate::core::{claim_spec, volume_sources};
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
        source(&mut found, &path, volume, pod_name);
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

/// The validation of one kind of source.
type Check = fn(&mut ErrorList, &Path, &Volume);

/// Returns every kind of source in upstream's order, with its validation if only pods have it.
fn kinds(volume: &Volume) -> [(&'static str, bool, Option<Check>); 30] {
    let v = volume;
    [
        ("emptyDir", v.empty_dir.is_some(), Some(empty_dir)),
        ("hostPath", v.host_path.is_some(), Some(host_path)),
        ("gitRepo", v.git_repo.is_some(), Some(git_repo)),
        ("gcePersistentDisk", v.gce_persistent_disk.is_some(), None),
        ("awsElasticBlockStore", v.aws_elastic_block_store.is_some(), None),
        ("secret", v.secret.is_some(), Some(secret)),
        ("nfs", v.nfs.is_some(), None),
        ("iscsi", v.iscsi.is_some(), None),
        ("glusterfs", v.glusterfs.is_some(), None),
        ("flocker", v.flocker.is_some(), None),
        ("persistentVolumeClaim", v.persistent_volume_claim.is_some(), Some(claim)),
        ("rbd", v.rbd.is_some(), None),
        ("cinder", v.cinder.is_some(), None),
        ("cephFS", v.cephfs.is_some(), None),
        ("quobyte", v.quobyte.is_some(), None),
        ("downwardAPI", v.downward_api.is_some(), Some(downward_api)),
        ("fc", v.fc.is_some(), None),
        ("flexVolume", v.flex_volume.is_some(), None),
        ("configMap", v.config_map.is_some(), Some(config_map)),
        ("azureFile", v.azure_file.is_some(), None),
        ("vsphereVolume", v.vsphere_volume.is_some(), None),
        ("photonPersistentDisk", v.photon_persistent_disk.is_some(), None),
        ("portworxVolume", v.portworx_volume.is_some(), None),
        ("azureDisk", v.azure_disk.is_some(), None),
        ("storageos", v.storageos.is_some(), None),
        ("projected", v.projected.is_some(), Some(projected)),
        ("scaleIO", v.scale_io.is_some(), None),
        ("csi", v.csi.is_some(), None),
        ("ephemeral", v.ephemeral.is_some(), Some(ephemeral)),
        ("image", v.image.is_some(), Some(image)),
    ]
}

/// Validates the source. If there are several, only the first is validated and the others are refused.
fn source(errors: &mut ErrorList, path: &Path, volume: &Volume, pod_name: &str) {
    let mut sources = 0;
    for (name, _, check) in kinds(volume).into_iter().filter(|(_, set, _)| *set) {
        sources += 1;
        // Upstream's paths spell some fields in more than one way.
        let (at, forbidden) = match name {
            "gcePersistentDisk" => ("persistentDisk", name),
            "cephFS" => ("cephfs", name),
            "downwardAPI" => (name, "downwarAPI"),
            _ => (name, name),
        };
        if sources > 1 {
            errors.push(Error::forbidden(&path.child(forbidden), "may not specify more than 1 volume type"));
            continue;
        }
        match check {
            Some(check) => check(errors, &path.child(at), volume),
            None => {
                let field = if name == "cephFS" { "cephfs" } else { name };
                if let Some(Value::Object(source)) = validate::shown(volume).get(field) {
                    let of = volume_sources::Of::Pod;
                    volume_sources::source(errors, &path.child(at), field, source, of);
                }
            }
        }
        names_together(errors, path, volume, pod_name);
    }
    if sources == 0 {
        errors.push(Error::required(path, "must specify a volume type"));
    }
}

/// Validates names that are composed of the volume's name and another one.
fn names_together(errors: &mut ErrorList, path: &Path, volume: &Volume, pod_name: &str) {
    let name = volume.name.as_str();
    if let Some(iscsi) = volume.iscsi.as_ref().filter(|i| i.initiator_name.is_some())
        && name.len() + 1 + iscsi.target_portal.len() > 64
    {
        let problem = "Total length of <volume name>:<iscsi.targetPortal> must be under 64 characters if iscsi.initiatorName is specified.";
        errors.push(Error::invalid(&path.child("name"), name, problem));
    }
    if volume.ephemeral.is_some() && !pod_name.is_empty() && !name.is_empty() {
        let claim = format!("{pod_name}-{name}");
        for problem in names::dns1123_subdomain(&claim) {
            let problem = format!("PVC name {claim:?}: {problem}");
            errors.push(Error::invalid(&path.child("name"), name, problem));
        }
    }
}

fn git_repo(errors: &mut ErrorList, path: &Path, volume: &Volume) {
    let Some(source) = &volume.git_repo else { return };
    validate::required(errors, &path.child("repository"), &source.repository);
    let directory = source.directory.as_deref().unwrap_or("");
    validate::descending_path(errors, &path.child("directory"), directory);
}

fn image(errors: &mut ErrorList, path: &Path, volume: &Volume) {
    let Some(source) = &volume.image else { return };
    validate::required(errors, &path.child("reference"), source.reference.as_deref().unwrap_or(""));
    let policy = source.pull_policy.as_deref().unwrap_or("");
    let policies = ["Always", "IfNotPresent", "Never"];
    validate::one_of(errors, &path.child("pullPolicy"), policy, &policies);
}

fn ephemeral(errors: &mut ErrorList, path: &Path, volume: &Volume) {
    let path = path.child("volumeClaimTemplate");
    let template = volume.ephemeral.as_ref().and_then(|e| e.volume_claim_template.as_ref());
    let Some(template) = template else {
        errors.push(Error::required(&path, ""));
        return;
    };
    let metadata = template.metadata.clone().unwrap_or_default();
    let at = path.child("metadata");
    validate::annotations(errors, &at.child("annotations"), metadata.annotations.as_ref());
    validate::labels(errors, &at.child("labels"), metadata.labels.as_ref());
    for (field, set) in [
        ("name", metadata.name.is_some()),
        ("generateName", metadata.generate_name.is_some()),
        ("namespace", metadata.namespace.is_some()),
        ("uid", metadata.uid.is_some()),
        ("resourceVersion", metadata.resource_version.is_some()),
        ("generation", metadata.generation.is_some()),
        ("creationTimestamp", metadata.creation_timestamp.is_some()),
        ("deletionTimestamp", metadata.deletion_timestamp.is_some()),
        ("ownerReferences", metadata.owner_references.is_some()),
        ("finalizers", metadata.finalizers.is_some()),
    ] {
        if set {
            errors.push(Error::forbidden(&at.child(field), "cannot be set"));
        }
    }
    claim_spec::validate_claim_spec(errors, &path.child("spec"), &template.spec);
}

fn empty_dir(errors: &mut ErrorList, path: &Path, volume: &Volume) {
    let limit = volume.empty_dir.as_ref().and_then(|e| e.size_limit.as_ref());
    if limit.and_then(|l| Quantity::try_from(l).ok()).is_some_and(|l| l.signum() < 0) {
        let why = "SizeLimit field must be a valid resource quantity";
        errors.push(Error::forbidden(&path.child("sizeLimit"), why));
    }
}

fn host_path(errors: &mut ErrorList, path: &Path, volume: &Volume) {
    if let Some(source) = &volume.host_path {
        host_path_source(errors, path, &source.path, source.type_.as_deref());
    }
}

/// Validates a path of the node, in a pod or a persistent volume.
pub fn host_path_source(errors: &mut ErrorList, path: &Path, host_path: &str, kind: Option<&str>) {
    if validate::required(errors, &path.child("path"), host_path) {
        validate::no_backsteps(errors, &path.child("path"), host_path);
        if let Some(kind) = kind {
            validate::supported_value(errors, &path.child("type"), kind, HOST_PATH_TYPES);
        }
    }
}

fn mode(errors: &mut ErrorList, path: &Path, mode: Option<i32>) {
    if let Some(mode) = mode.filter(|m| !(0..=0o777).contains(m)) {
        errors.push(Error::invalid(path, mode, FILE_MODE));
    }
}

/// Validates a file name inside a volume: relative, not starting with `..`.
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

fn claim(errors: &mut ErrorList, path: &Path, volume: &Volume) {
    let name = volume.persistent_volume_claim.as_ref().map_or("", |c| &c.claim_name);
    validate::required(errors, &path.child("claimName"), name);
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
        if let Some(bundle) = &source.cluster_trust_bundle {
            sources += 1;
            trust_bundle(errors, &at.child("clusterTrustBundle"), bundle);
            if !seen.insert(bundle.path.as_str()) {
                errors.push(Error::invalid(path, bundle.path.as_str(), CONFLICT));
            }
        }
        if let Some(certificate) = &source.pod_certificate {
            sources += 1;
            pod_certificate(errors, &at.child("podCertificate"), certificate);
            for file in certificate_files(certificate).filter(|(_, file)| !file.is_empty()) {
                if !seen.insert(file.1) {
                    errors.push(Error::invalid(path, file.1, CONFLICT));
                }
            }
        }
        if sources > 1 {
            errors.push(Error::forbidden(&at, "may not specify more than 1 volume type per source"));
        }
    }
}

/// Validates a service account token source. Errors about the path name the volume, not the source.
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

fn trust_bundle(errors: &mut ErrorList, path: &Path, bundle: &ClusterTrustBundleProjection) {
    match (bundle.name.as_deref(), bundle.signer_name.as_deref()) {
        (Some(_), Some(_)) => {
            // The message shows upstream's internal Go type.
            let shown = |v: Value| v.to_string();
            let selector = bundle.label_selector.as_ref().map_or("null".to_owned(), validate::selector_text);
            let text = format!(
                r#"{{"Name":{},"SignerName":{},"LabelSelector":{selector},"Optional":{},"Path":{},"User":null}}"#,
                shown(validate::shown(&bundle.name)),
                shown(validate::shown(&bundle.signer_name)),
                shown(validate::shown(&bundle.optional)),
                shown(Value::from(bundle.path.as_str()))
            );
            let problem = "only one of name and signerName may be used";
            errors.push(validate::invalid_text(path, &text, problem));
        }
        (Some(name), None) => {
            let at = path.child("name");
            if name.is_empty() {
                errors.push(Error::required(&at, "must be a valid object name"));
            }
            for problem in names::dns1123_subdomain(name.rsplit(':').next().unwrap_or("")) {
                let problem = format!("not a valid clustertrustbundlename: {problem}");
                errors.push(Error::invalid(&at, name, problem));
            }
            if let Some(selector) = &bundle.label_selector {
                let text = validate::selector_text(selector);
                let problem = "labelSelector must be unset if name is specified";
                errors.push(validate::invalid_text(&path.child("labelSelector"), &text, problem));
            }
        }
        (None, Some(signer)) => {
            let at = path.child("signerName");
            if signer.is_empty() {
                errors.push(Error::required(&at, "must be a valid signer name"));
            }
            signer_name(errors, &at, signer);
            let selector = bundle.label_selector.as_ref();
            validate::label_selector(errors, &path.child("labelSelector"), selector);
        }
        (None, None) => {
            errors.push(Error::required(path, "either name or signerName must be specified"));
        }
    }
    validate::required(errors, &path.child("path"), &bundle.path);
    file_path(errors, &path.child("path"), &bundle.path);
}

fn certificate_files(certificate: &PodCertificateProjection) -> impl Iterator<Item = (&'static str, &str)> {
    [
        ("credentialBundlePath", &certificate.credential_bundle_path),
        ("keyPath", &certificate.key_path),
        ("certificateChainPath", &certificate.certificate_chain_path),
    ]
    .into_iter()
    .map(|(field, file)| (field, file.as_deref().unwrap_or("")))
}

fn pod_certificate(errors: &mut ErrorList, path: &Path, certificate: &PodCertificateProjection) {
    const SECONDS_MAX: i32 = 91 * 24 * 3600;
    const OWN_SECONDS_MAX: i32 = 24 * 3600;
    signer_name(errors, &path.child("signerName"), &certificate.signer_name);
    let types = ["RSA3072", "RSA4096", "ECDSAP256", "ECDSAP384", "ECDSAP521", "ED25519"];
    validate::supported_value(errors, &path.child("keyType"), &certificate.key_type, &types);
    if let Some(seconds) = certificate.max_expiration_seconds {
        let at = path.child("maxExpirationSeconds");
        if seconds < 3600 {
            let problem = "if provided, maxExpirationSeconds must be >= 3600";
            errors.push(Error::invalid(&at, seconds, problem));
        }
        let own = certificate.signer_name.starts_with("kubernetes.io/");
        let most = if own { OWN_SECONDS_MAX } else { SECONDS_MAX };
        if seconds > most {
            let problem = format!("if provided, maxExpirationSeconds must be <= {most}");
            errors.push(Error::invalid(&at, seconds, problem));
        }
    }
    let mut any = false;
    for (field, file) in certificate_files(certificate).filter(|(_, file)| !file.is_empty()) {
        any = true;
        file_path(errors, &path.child(field), file);
    }
    if !any {
        let why = "specify at least one of credentialBundlePath, keyPath, and certificateChainPath";
        errors.push(Error::required(path, why));
    }
}
