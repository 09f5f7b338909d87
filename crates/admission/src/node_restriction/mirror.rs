//! The only pods that a kubelet may create: mirrors of its own static pods, which must not refer to API objects.
//!
//! Source: `podutil.HasAPIObjectReference`.

use serde_json::Value;

use super::{Verdict, missing, no};
use crate::Context;
use crate::service_account::is_mirror;
use crate::{Attributes, lookup};
use knarr_registry::attributes::text;

const NODES: (&str, &str, &str) = ("", "v1", "nodes");
/// Volume types that need no API object.
const PLAIN_VOLUMES: [&str; 22] = [
    "awsElasticBlockStore",
    "azureDisk",
    "cephfs",
    "cinder",
    "downwardAPI",
    "emptyDir",
    "fc",
    "flexVolume",
    "flocker",
    "gcePersistentDisk",
    "gitRepo",
    "hostPath",
    "image",
    "iscsi",
    "nfs",
    "photonPersistentDisk",
    "portworxVolume",
    "quobyte",
    "rbd",
    "scaleIO",
    "storageos",
    "vsphereVolume",
];
/// Volume types, and sources of projected volumes, that need an API object, and the object's name in messages.
const VOLUMES: [(&str, &str); 7] = [
    ("configMap", "configmaps (via configmap volumes)"),
    ("secret", "secrets (via secret volumes)"),
    ("csi", "csidrivers (via CSI volumes)"),
    ("glusterfs", "endpoints (via glusterFS volumes)"),
    ("persistentVolumeClaim", "persistentvolumeclaims"),
    ("ephemeral", "persistentvolumeclaims (via ephemeral volumes)"),
    ("azureFile", "secrets (via azureFile volumes)"),
];
const SOURCES: [(&str, &str); 5] = [
    ("configMap", "configmaps (via projected volumes)"),
    ("secret", "secrets (via projected volumes)"),
    ("serviceAccountToken", "serviceaccounts (via projected volumes)"),
    ("clusterTrustBundle", "clustertrustbundles"),
    ("podCertificate", "podcertificates"),
];
/// The paths at which volumes refer to secrets.
const SECRETS: [&str; 10] = [
    "/secret/secretName",
    "/azureFile/secretName",
    "/cephfs/secretRef/name",
    "/cinder/secretRef/name",
    "/csi/nodePublishSecretRef/name",
    "/flexVolume/secretRef/name",
    "/iscsi/secretRef/name",
    "/rbd/secretRef/name",
    "/scaleIO/secretRef/name",
    "/storageos/secretRef/name",
];

pub async fn check(node: &str, attributes: &Attributes<'_>, context: &Context<'_>) -> Verdict {
    let pod = &attributes.object;
    if !is_mirror(pod) {
        return no(format!(
            "pod does not have \"kubernetes.io/config.mirror\" annotation, node {node:?} can only create mirror pods"
        ));
    }
    if text(pod, "/spec/nodeName") != node {
        return no(format!("node {node:?} can only create pods with spec.nodeName set to itself"));
    }
    let owners = pod["metadata"]["ownerReferences"].as_array().map_or(&[][..], Vec::as_slice);
    let itself = || no(format!("node {node:?} can only create pods with an owner reference set to itself"));
    let owner = match owners {
        [] => return itself(),
        [owner] => owner,
        _ => {
            return no(format!(
                "node {node:?} can only create pods with a single owner reference set to itself"
            ));
        }
    };
    if (text(owner, "/apiVersion"), text(owner, "/kind"), text(owner, "/name")) != ("v1", "Node", node) {
        return itself();
    }
    if owner["controller"] != true {
        return no(format!(
            "node {node:?} can only create pods with a controller owner reference set to itself"
        ));
    }
    if owner["blockOwnerDeletion"] == true {
        return no(format!("node {node:?} must not set blockOwnerDeletion on an owner reference"));
    }
    let found = lookup::find(context, NODES, "", node).await?;
    let found = found.ok_or_else(|| missing(NODES, node))?;
    let uid = text(owner, "/uid");
    if uid != found.uid() {
        return no(format!("node {node} UID mismatch: expected {uid} got {}", found.uid()));
    }
    match referenced(pod) {
        Ok(Some(what)) => no(format!("node {node:?} can not create pods that reference {what}")),
        Ok(None) => Ok(()),
        Err(why) => no(format!("error checking mirror pod for API references: {why}")),
    }
}

/// Returns the kind of API object that the pod needs, if any; fails for a volume of unknown type.
fn referenced(pod: &Value) -> Result<Option<&'static str>, String> {
    let spec = &pod["spec"];
    if !text(spec, "/serviceAccountName").is_empty() {
        return Ok(Some("serviceaccounts"));
    }
    let pull = items(&spec["imagePullSecrets"]).next().is_some();
    let named = |v: &Value| SECRETS.iter().any(|at| !text(v, at).is_empty()) || projects(v, "secret");
    if pull || in_env(spec, "secretKeyRef", "secretRef") || items(&spec["volumes"]).any(named) {
        return Ok(Some("secrets"));
    }
    let named = |v: &Value| !text(v, "/configMap/name").is_empty() || projects(v, "configMap");
    if in_env(spec, "configMapKeyRef", "configMapRef") || items(&spec["volumes"]).any(named) {
        return Ok(Some("configmaps"));
    }
    if items(&spec["resourceClaims"]).next().is_some() {
        return Ok(Some("resourceclaims"));
    }
    for volume in items(&spec["volumes"]) {
        if let Some(what) = needed_by_volume(volume)? {
            return Ok(Some(what));
        }
    }
    Ok(None)
}

fn items(list: &Value) -> impl Iterator<Item = &Value> {
    list.as_array().into_iter().flatten()
}

/// Returns whether an environment variable takes its value from an object by `field`, or all variables by `from`.
fn in_env(spec: &Value, field: &str, from: &str) -> bool {
    let kinds = ["containers", "initContainers", "ephemeralContainers"];
    kinds.iter().flat_map(|kind| items(&spec[*kind])).any(|c| {
        items(&c["env"]).any(|e| e["valueFrom"][field].is_object())
            || items(&c["envFrom"]).any(|e| e[from].is_object())
    })
}

fn projects(volume: &Value, source: &str) -> bool {
    items(&volume["projected"]["sources"]).any(|s| s[source].is_object())
}

fn needed_by_volume(volume: &Value) -> Result<Option<&'static str>, String> {
    let has = |kind: &str| !volume[kind].is_null();
    if PLAIN_VOLUMES.iter().any(|kind| has(kind)) {
        return Ok(None);
    }
    if let Some((_, what)) = VOLUMES.iter().find(|(kind, _)| has(kind)) {
        return Ok(Some(what));
    }
    if !has("projected") {
        return Err(format!("unknown volume type for volume  {:?}", text(volume, "/name")));
    }
    for source in items(&volume["projected"]["sources"]) {
        if let Some((_, what)) = SOURCES.iter().find(|(kind, _)| !source[*kind].is_null()) {
            return Ok(Some(what));
        }
        if source["downwardAPI"].is_null() {
            return Err(format!("unknown source for projected volume {:?}", text(volume, "/name")));
        }
    }
    Ok(None)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn what_pods_refer_to() {
        let volume = |source: Value| {
            let mut volume = source;
            volume["name"] = "v".into();
            json!({"volumes": [volume]})
        };
        let projected = |source: Value| volume(json!({"projected": {"sources": [source]}}));
        for (spec, expected) in [
            (volume(json!({"emptyDir": {}})), Ok(None)),
            (volume(json!({"hostPath": {"path": "/"}})), Ok(None)),
            (projected(json!({"downwardAPI": {}})), Ok(None)),
            (json!({"serviceAccountName": "a"}), Ok(Some("serviceaccounts"))),
            (json!({"imagePullSecrets": [{"name": "a"}]}), Ok(Some("secrets"))),
            (json!({"containers": [{"envFrom": [{"configMapRef": {"name": "a"}}]}]}), Ok(Some("configmaps"))),
            (projected(json!({"secret": {}})), Ok(Some("secrets"))),
            (volume(json!({"cephfs": {"secretRef": {"name": "a"}}})), Ok(Some("secrets"))),
            (volume(json!({"csi": {"driver": "d"}})), Ok(Some("csidrivers (via CSI volumes)"))),
            (volume(json!({"glusterfs": {}})), Ok(Some("endpoints (via glusterFS volumes)"))),
            (volume(json!({"persistentVolumeClaim": {}})), Ok(Some("persistentvolumeclaims"))),
            (volume(json!({"ephemeral": {}})), Ok(Some("persistentvolumeclaims (via ephemeral volumes)"))),
            (
                projected(json!({"serviceAccountToken": {}})),
                Ok(Some("serviceaccounts (via projected volumes)")),
            ),
            (projected(json!({"podCertificate": {}})), Ok(Some("podcertificates"))),
            (projected(json!({"news": {}})), Err("unknown source for projected volume \"v\"".to_owned())),
            (volume(json!({"news": {}})), Err("unknown volume type for volume  \"v\"".to_owned())),
        ] {
            assert_eq!(referenced(&json!({"spec": spec})), expected, "{spec}");
        }
    }
}
