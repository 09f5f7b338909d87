//! What a claim gets from the local-path provisioner, and when a volume's directory is deleted: pure functions.

use std::collections::BTreeMap;
use std::sync::Arc;

use k8s_openapi::api::core::v1::{
    LocalVolumeSource, Node, NodeSelector, NodeSelectorRequirement, NodeSelectorTerm, ObjectReference,
    PersistentVolume, PersistentVolumeClaim, PersistentVolumeSpec, VolumeNodeAffinity,
};
use k8s_openapi::api::storage::v1::StorageClass;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use knarr_api::kind::Kind;

pub const PROVISIONER: &str = "rancher.io/local-path";
pub const SELECTED_NODE: &str = "volume.kubernetes.io/selected-node";
pub const FINALIZER: &str = "external-provisioner.volume.kubernetes.io/finalizer";
const ASKED: &str = "volume.kubernetes.io/storage-provisioner";
const PROVISIONED_BY: &str = "pv.kubernetes.io/provisioned-by";
const HOSTNAME: &str = "kubernetes.io/hostname";
/// The label with the node's name, which may differ from its hostname label.
const NODE: &str = "local-path.storage/node";

/// What to do for a claim.
#[derive(Debug, PartialEq)]
pub enum Wish {
    Nothing,
    /// The claim can never be served in its current form.
    Refuse(String),
    /// The chosen node does not exist: the scheduler must choose again.
    OtherNode,
    Provision {
        node: Arc<Node>,
        class: Box<StorageClass>,
    },
}

/// Decides about a claim; `exists` reports whether there is a volume of a name.
pub fn wish(
    claim: &PersistentVolumeClaim,
    class: Option<&StorageClass>,
    nodes: &[Arc<Node>],
    exists: impl Fn(&str) -> bool,
) -> Wish {
    let annotation =
        |key: &str| claim.metadata.annotations.as_ref().and_then(|a| a.get(key)).map(String::as_str);
    let Some(spec) = &claim.spec else { return Wish::Nothing };
    let bound = spec.volume_name.as_deref().is_some_and(|v| !v.is_empty());
    if bound || claim.metadata.deletion_timestamp.is_some() || annotation(ASKED) != Some(PROVISIONER) {
        return Wish::Nothing;
    }
    let Some(class) = class.filter(|c| c.provisioner == PROVISIONER) else { return Wish::Nothing };
    if exists(&volume_name(claim)) {
        return Wish::Nothing;
    }
    if let Some(why) = unsupported(claim) {
        return Wish::Refuse(why);
    }
    let late = class.volume_binding_mode.as_deref() == Some("WaitForFirstConsumer");
    let node = match annotation(SELECTED_NODE) {
        Some(name) => match nodes.iter().find(|n| n.name() == name) {
            Some(node) => Some(node),
            None => return Wish::OtherNode,
        },
        None if late => return Wish::Nothing,
        None => any(claim, nodes),
    };
    match node {
        Some(node) => Wish::Provision { node: Arc::clone(node), class: Box::new(class.clone()) },
        None => Wish::Refuse("no node is ready to hold the volume".to_owned()),
    }
}

fn unsupported(claim: &PersistentVolumeClaim) -> Option<String> {
    let spec = claim.spec.as_ref()?;
    if spec.selector.is_some() {
        return Some("claim.Spec.Selector is not supported".to_owned());
    }
    if spec.volume_mode.as_deref().is_some_and(|m| m != "Filesystem") {
        return Some("volumeMode Block is not supported".to_owned());
    }
    if spec.data_source.is_some() || spec.data_source_ref.is_some() {
        return Some("volumes are made empty: dataSource and dataSourceRef are not supported".to_owned());
    }
    let modes = spec.access_modes.as_deref().unwrap_or_default();
    let known = |m: &String| matches!(m.as_str(), "ReadWriteOnce" | "ReadWriteOncePod");
    (!modes.iter().all(known))
        .then(|| "NodePath only supports ReadWriteOnce and ReadWriteOncePod (1.22+) access modes".to_owned())
}

/// Returns a node for a claim that does not wait for its pod: ready nodes are chosen by the claim's uid.
fn any<'a>(claim: &PersistentVolumeClaim, nodes: &'a [Arc<Node>]) -> Option<&'a Arc<Node>> {
    let ready = |n: &&Arc<Node>| {
        let conditions = n.status.as_ref().and_then(|s| s.conditions.as_ref());
        let open = n.spec.as_ref().is_none_or(|s| s.unschedulable != Some(true));
        open && conditions.into_iter().flatten().any(|c| c.type_ == "Ready" && c.status == "True")
    };
    let ready: Vec<_> = nodes.iter().filter(ready).collect();
    let turn: usize = claim.uid().bytes().map(usize::from).sum();
    ready.get(turn.checked_rem(ready.len())?).copied()
}

fn volume_name(claim: &PersistentVolumeClaim) -> String {
    format!("pvc-{}", claim.uid())
}

/// Returns the directory's name, which shows the claim it belongs to.
pub fn folder(claim: &PersistentVolumeClaim) -> String {
    let name = format!("{}_{}_{}", volume_name(claim), claim.namespace(), claim.name());
    name.chars().take(255).collect()
}

/// Makes the volume of a claim, with a required affinity for the node.
pub fn volume(
    claim: &PersistentVolumeClaim,
    class: &StorageClass,
    node: &Node,
    path: &str,
) -> PersistentVolume {
    let spec = claim.spec.clone().unwrap_or_default();
    let policy = class.reclaim_policy.clone().unwrap_or_else(|| "Delete".to_owned());
    let labels = node.metadata.labels.as_ref();
    let host = labels.and_then(|l| l.get(HOSTNAME)).map_or(node.name(), String::as_str);
    let here = NodeSelectorRequirement {
        key: HOSTNAME.to_owned(),
        operator: "In".to_owned(),
        values: Some(vec![host.to_owned()]),
    };
    let term = NodeSelectorTerm { match_expressions: Some(vec![here]), match_fields: None };
    let annotations = [(PROVISIONED_BY, PROVISIONER), (NODE, node.name())];
    PersistentVolume {
        metadata: ObjectMeta {
            name: Some(volume_name(claim)),
            annotations: Some(annotations.map(|(k, v)| (k.to_owned(), v.to_owned())).into()),
            finalizers: (policy == "Delete").then(|| vec![FINALIZER.to_owned()]),
            ..ObjectMeta::default()
        },
        spec: Some(PersistentVolumeSpec {
            access_modes: spec.access_modes,
            capacity: spec
                .resources
                .and_then(|r| r.requests)
                .map(|r| r.into_iter().filter(|(what, _)| what == "storage").collect::<BTreeMap<_, _>>()),
            claim_ref: Some(ObjectReference {
                api_version: Some("v1".to_owned()),
                kind: Some("PersistentVolumeClaim".to_owned()),
                namespace: claim.metadata.namespace.clone(),
                name: claim.metadata.name.clone(),
                uid: claim.metadata.uid.clone(),
                resource_version: claim.metadata.resource_version.clone(),
                ..ObjectReference::default()
            }),
            local: Some(LocalVolumeSource { fs_type: None, path: path.to_owned() }),
            node_affinity: Some(VolumeNodeAffinity {
                required: Some(NodeSelector { node_selector_terms: vec![term] }),
            }),
            persistent_volume_reclaim_policy: Some(policy),
            storage_class_name: Some(class.name().to_owned()),
            volume_mode: Some("Filesystem".to_owned()),
            ..PersistentVolumeSpec::default()
        }),
        status: None,
    }
}

/// Returns whether this provisioner made the volume.
pub fn is_ours(volume: &PersistentVolume) -> bool {
    let annotations = volume.metadata.annotations.as_ref();
    annotations.and_then(|a| a.get(PROVISIONED_BY)).is_some_and(|by| by == PROVISIONER)
}

/// What to do with a volume.
#[derive(Debug, PartialEq)]
pub enum Reclaim {
    Keep,
    Remove { node: String, folder: String },
}

/// Decides whether a released volume of this provisioner is deleted with its directory, according to its policy.
pub fn reclaim(volume: &PersistentVolume) -> Reclaim {
    let phase = volume.status.as_ref().and_then(|s| s.phase.as_deref()).unwrap_or("");
    let Some(spec) = volume.spec.as_ref().filter(|_| is_ours(volume)) else { return Reclaim::Keep };
    // An unbound volume that a user deletes has no claim from which it could be released.
    let free = match phase {
        "Released" | "Failed" => true,
        "Available" => volume.metadata.deletion_timestamp.is_some(),
        _ => false,
    };
    if !free || spec.persistent_volume_reclaim_policy.as_deref() != Some("Delete") {
        return Reclaim::Keep;
    }
    let node = volume.metadata.annotations.as_ref().and_then(|a| a.get(NODE));
    let folder = spec.local.as_ref().and_then(|l| l.path.rsplit('/').next()).filter(|f| !f.is_empty());
    match (node, folder) {
        (Some(node), Some(folder)) => Reclaim::Remove { node: node.clone(), folder: folder.to_owned() },
        _ => Reclaim::Keep,
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn of<T: serde::de::DeserializeOwned>(value: Value) -> T {
        serde_json::from_value(value).unwrap()
    }

    fn claim(annotations: Value, spec: Value) -> PersistentVolumeClaim {
        let mut whole = json!({"accessModes": ["ReadWriteOnce"], "storageClassName": "local-path",
            "resources": {"requests": {"storage": "1Gi"}}});
        whole.as_object_mut().unwrap().extend(spec.as_object().unwrap().clone());
        of(json!({"metadata": {"name": "data", "namespace": "ns", "uid": "u1", "annotations": annotations},
            "spec": whole}))
    }

    fn class(mode: &str) -> StorageClass {
        of(json!({"metadata": {"name": "local-path"}, "provisioner": PROVISIONER, "volumeBindingMode": mode}))
    }

    fn node(name: &str, ready: &str) -> Arc<Node> {
        Arc::new(of(json!({"metadata": {"name": name, "labels": {HOSTNAME: format!("host-{name}")}},
            "status": {"conditions": [{"type": "Ready", "status": ready}]}})))
    }

    #[test]
    fn what_a_claim_gets() {
        let nodes = [node("a", "False"), node("b", "True")];
        let asked = json!({ASKED: PROVISIONER});
        let on = |node: &str| json!({ASKED: PROVISIONER, SELECTED_NODE: node});
        let late = "WaitForFirstConsumer";
        for (annotations, spec, mode, want) in [
            (asked.clone(), json!({}), late, "nothing"),
            (on("a"), json!({}), late, "a"),
            (on("gone"), json!({}), late, "other"),
            (asked.clone(), json!({}), "Immediate", "b"),
            (on("a"), json!({}), "Immediate", "a"),
            (json!({}), json!({}), "Immediate", "nothing"),
            (json!({ASKED: "other.io/x"}), json!({}), "Immediate", "nothing"),
            (on("a"), json!({"volumeName": "pv"}), late, "nothing"),
            (on("a"), json!({"accessModes": ["ReadWriteMany"]}), late, "refuse"),
            (on("a"), json!({"volumeMode": "Block"}), late, "refuse"),
            (on("a"), json!({"dataSource": {"kind": "PersistentVolumeClaim", "name": "d"}}), late, "refuse"),
            (
                on("a"),
                json!({"dataSourceRef": {"kind": "PersistentVolumeClaim", "name": "d"}}),
                late,
                "refuse",
            ),
        ] {
            let claim = claim(annotations.clone(), spec);
            let got = match wish(&claim, Some(&class(mode)), &nodes, |_| false) {
                Wish::Nothing => "nothing".to_owned(),
                Wish::Refuse(_) => "refuse".to_owned(),
                Wish::OtherNode => "other".to_owned(),
                Wish::Provision { node, .. } => node.name().to_owned(),
            };
            assert_eq!(got, want, "{annotations} {mode}");
        }
        let wanted = claim(on("a"), json!({}));
        assert_eq!(wish(&wanted, Some(&class(late)), &nodes, |name| name == "pvc-u1"), Wish::Nothing);
        assert_eq!(wish(&wanted, None, &nodes, |_| false), Wish::Nothing);
        let immediate = claim(asked, json!({}));
        assert!(matches!(
            wish(&immediate, Some(&class("Immediate")), &nodes[..1], |_| false),
            Wish::Refuse(_)
        ));
    }

    #[test]
    fn a_volume_names_its_claim_and_its_node() {
        let claim = claim(json!({}), json!({}));
        let made = volume(&claim, &class("Immediate"), &node("a", "True"), "/data/pvc-u1_ns_data");
        let spec = made.spec.clone().unwrap();
        assert_eq!(made.name(), "pvc-u1");
        assert_eq!(folder(&claim), "pvc-u1_ns_data");
        assert_eq!(spec.capacity.unwrap()["storage"].0, "1Gi");
        assert_eq!(spec.claim_ref.unwrap().uid.as_deref(), Some("u1"));
        let terms = spec.node_affinity.unwrap().required.unwrap().node_selector_terms;
        assert_eq!(terms[0].match_expressions.as_ref().unwrap()[0].values, Some(vec!["host-a".to_owned()]));
        let mut at = made.clone();
        for (phase, policy, want) in [
            ("Bound", "Delete", false),
            ("Available", "Delete", false),
            ("Released", "Delete", true),
            ("Released", "Retain", false),
        ] {
            at.status.get_or_insert_default().phase = Some(phase.into());
            at.spec.as_mut().unwrap().persistent_volume_reclaim_policy = Some(policy.into());
            let remove = Reclaim::Remove { node: "a".into(), folder: "pvc-u1_ns_data".into() };
            assert_eq!(reclaim(&at), if want { remove } else { Reclaim::Keep }, "{phase} {policy}");
        }
    }
}
