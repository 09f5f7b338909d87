//! The Node authorizer: a kubelet may read what its own pods refer to, and no other node's objects.

use std::sync::Arc;

use k8s_openapi::api::core::v1::{PersistentVolume, Pod};
use k8s_openapi::api::rbac::v1::PolicyRule;
use knarr_apimachinery::selector::FieldSelector;
use serde_json::Value;

use super::pod_references::{Kind, refers_to};
use super::volume_secrets::VolumeSecrets;
use super::{Attributes, Decision, rules};
use crate::authn::UserInfo;
use knarr_api::features::Features;
use knarr_registry::cache::Caches;

const NODES_GROUP: &str = "system:nodes";
const NODE_PREFIX: &str = "system:node:";

/// Returns the name of the node that the user is, if it is one.
pub fn node_name(user: &UserInfo) -> Option<&str> {
    let name = user.name.strip_prefix(NODE_PREFIX)?;
    (user.in_group(NODES_GROUP) && !name.is_empty()).then_some(name)
}

/// Returns whether a user has the group and prefix of nodes but no node name. Such a user is never authorized as
/// another kind of user.
pub fn is_unnamed(user: &UserInfo) -> bool {
    user.name == NODE_PREFIX && user.in_group(NODES_GROUP)
}

/// Follows the references from pods to other objects in the caches.
pub struct NodeAuthorizer {
    caches: Arc<Caches>,
    /// The permissions of every node: the rules of the `system:node` role.
    rules: Vec<PolicyRule>,
    /// Whether the gate PodCertificateRequest is on.
    pod_certificates: bool,
    volume_secrets: VolumeSecrets,
}

impl NodeAuthorizer {
    pub fn new(caches: Arc<Caches>, features: &Features) -> Self {
        let role = super::policy::defaults(features)
            .into_iter()
            .find(|d| d.resource == "clusterroles" && d.object["metadata"]["name"] == "system:node");
        let rules = role.and_then(|mut r| serde_json::from_value(r.object["rules"].take()).ok());
        let pod_certificates = features.is_on("PodCertificateRequest");
        let rules = rules.unwrap_or_default();
        Self { caches, rules, pod_certificates, volume_secrets: VolumeSecrets::default() }
    }

    pub fn authorize(&self, user: &UserInfo, wanted: &Attributes) -> Decision {
        if is_unnamed(user) {
            return no(&format!("unknown node for user {:?}", user.name));
        }
        let Some(node) = node_name(user) else { return no("") };
        if !wanted.is_resource() {
            return self.by_rules(wanted);
        }
        match (wanted.group.as_str(), wanted.resource.as_str()) {
            ("", "secrets") => self.readable(node, wanted, Kind::Secret),
            ("", "configmaps") => self.readable(node, wanted, Kind::ConfigMap),
            ("", "persistentvolumeclaims") if wanted.subresource == "status" => {
                if !matches!(wanted.verb.as_str(), "update" | "patch") {
                    return no("can only get/update/patch this type");
                }
                self.related(node, wanted, Kind::Claim)
            }
            ("", "persistentvolumeclaims") => {
                self.gettable(node, wanted, |s, w| s.needed(node, w, Kind::Claim))
            }
            ("", "persistentvolumes") => {
                self.gettable(node, wanted, |s, w| w.namespace.is_empty() && s.volume_needed(node, &w.name))
            }
            ("resource.k8s.io", "resourceclaims") => {
                self.gettable(node, wanted, |s, w| s.needed(node, w, Kind::ResourceClaim))
            }
            ("storage.k8s.io", "volumeattachments") => {
                self.gettable(node, wanted, |s, w| s.is_on(node, "storage.k8s.io/volumeattachments", &key(w)))
            }
            ("", "serviceaccounts") => self.service_account(node, wanted),
            ("coordination.k8s.io", "leases") => lease(node, wanted),
            ("storage.k8s.io", "csinodes") => csi_node(node, wanted),
            ("resource.k8s.io", "resourceslices") => self.resource_slice(node, wanted),
            ("certificates.k8s.io", "podcertificaterequests") if !self.pod_certificates => no(""),
            ("certificates.k8s.io", "podcertificaterequests") => self.pod_certificate(node, wanted),
            ("", "nodes") => own_node(node, wanted),
            ("", "pods") => self.pod(node, wanted),
            _ => self.by_rules(wanted),
        }
    }

    fn by_rules(&self, wanted: &Attributes) -> Decision {
        if self.rules.iter().any(|r| rules::allows(r, wanted)) { yes() } else { no("") }
    }

    fn readable(&self, node: &str, wanted: &Attributes, kind: Kind) -> Decision {
        if !matches!(wanted.verb.as_str(), "get" | "list" | "watch") {
            return no("can only read resources of this type");
        }
        if !wanted.subresource.is_empty() {
            return no("cannot read subresource");
        }
        if wanted.namespace.is_empty() {
            return no("can only read namespaced object of this type");
        }
        self.related(node, wanted, kind)
    }

    fn gettable(
        &self,
        node: &str,
        wanted: &Attributes,
        needed: impl Fn(&Self, &Attributes) -> bool,
    ) -> Decision {
        if wanted.verb != "get" {
            return no("can only get individual resources of this type");
        }
        if !wanted.subresource.is_empty() {
            return no("cannot get subresource");
        }
        if wanted.name.is_empty() {
            return no("No Object name found");
        }
        if needed(self, wanted) { yes() } else { unrelated(node) }
    }

    fn service_account(&self, node: &str, wanted: &Attributes) -> Decision {
        if wanted.verb == "get" && wanted.subresource.is_empty() {
            if !self.pod_certificates {
                return no("not allowed to get service accounts");
            }
            return self.readable(node, wanted, Kind::ServiceAccount);
        }
        if wanted.verb != "create" || wanted.name.is_empty() {
            return no("can only create tokens for individual service accounts");
        }
        if wanted.subresource != "token" {
            return no("can only create token subresource of serviceaccount");
        }
        self.related(node, wanted, Kind::ServiceAccount)
    }

    fn resource_slice(&self, node: &str, wanted: &Attributes) -> Decision {
        if !wanted.subresource.is_empty() {
            return no("cannot authorize ResourceSlice subresources");
        }
        match wanted.verb.as_str() {
            "create" => yes(),
            "get" | "update" | "patch" | "delete" => {
                if wanted.name.is_empty() {
                    return no("No Object name found");
                }
                let own = self.is_on(node, "resource.k8s.io/resourceslices", &key(wanted));
                if own { yes() } else { unrelated(node) }
            }
            "watch" | "list" | "deletecollection" if selects(wanted, "spec.nodeName", node) => yes(),
            "watch" | "list" | "deletecollection" => {
                no("can only list/watch/deletecollection resourceslices with nodeName field selector")
            }
            _ => no(
                "only the following verbs are allowed for a ResourceSlice: get, watch, list, create, update, patch, delete, deletecollection",
            ),
        }
    }

    fn pod_certificate(&self, node: &str, wanted: &Attributes) -> Decision {
        if !wanted.subresource.is_empty() {
            return no("nodes may not access the status subresource of PodCertificateRequests");
        }
        match wanted.verb.as_str() {
            "create" => yes(),
            "get" if self.is_on(node, "certificates.k8s.io/podcertificaterequests", &key(wanted)) => yes(),
            "get" => unrelated(node),
            "list" | "watch" if selects(wanted, "spec.nodeName", node) => yes(),
            "list" | "watch" => no("can only list/watch podcertificaterequests with nodeName field selector"),
            verb => no(&format!("nodes may not {verb} podcertificaterequests")),
        }
    }

    fn pod(&self, node: &str, wanted: &Attributes) -> Decision {
        match (wanted.subresource.as_str(), wanted.verb.as_str()) {
            ("", "list" | "watch") => {
                if selects(wanted, "spec.nodeName", node) {
                    return yes();
                }
                if wanted.name.is_empty() {
                    return no("can only list/watch pods with spec.nodeName field selector");
                }
                self.own_pod(node, wanted)
            }
            ("", "get") if wanted.name.is_empty() => no("No Object name found"),
            ("", "get") => self.own_pod(node, wanted),
            ("", "create" | "delete") | ("status", "update" | "patch") | ("eviction", "create") => yes(),
            _ => no(""),
        }
    }

    fn own_pod(&self, node: &str, wanted: &Attributes) -> Decision {
        let pod = self.caches.get("core/pods").and_then(|pods| pods.get(&key(wanted)));
        if pod.is_some_and(|p| p.header().field("spec.nodeName") == Some(node)) {
            return yes();
        }
        unrelated(node)
    }

    fn related(&self, node: &str, wanted: &Attributes, kind: Kind) -> Decision {
        if wanted.name.is_empty() {
            return no("No Object name found");
        }
        let needed = self.needed(node, wanted, kind)
            || kind == Kind::Secret && self.needed_by_volume(node, &wanted.namespace, &wanted.name);
        if needed { yes() } else { unrelated(node) }
    }

    /// Returns whether a pod of this node and of the requested namespace refers to the object.
    fn needed(&self, node: &str, wanted: &Attributes, kind: Kind) -> bool {
        self.pod_refers(node, &wanted.namespace, kind, &wanted.name)
    }

    fn pod_refers(&self, node: &str, namespace: &str, kind: Kind, name: &str) -> bool {
        let Some(pods) = self.caches.get("core/pods") else { return false };
        pods.list(Some(namespace))
            .iter()
            .filter(|p| p.header().field("spec.nodeName") == Some(node))
            .filter_map(|p| p.typed::<Pod>().ok())
            .any(|p| refers_to(&p, kind, name))
    }

    /// Returns whether a pod of this node claims the volume.
    fn volume_needed(&self, node: &str, name: &str) -> bool {
        let volume = self.caches.get("core/persistentvolumes").and_then(|all| all.get(name));
        volume.and_then(|o| o.typed::<PersistentVolume>().ok()).is_some_and(|v| self.claimed(node, &v))
    }

    fn claimed(&self, node: &str, volume: &PersistentVolume) -> bool {
        let claim = volume.spec.as_ref().and_then(|s| s.claim_ref.as_ref());
        let text = |value: &Option<String>| value.clone().unwrap_or_default();
        claim.is_some_and(|c| self.pod_refers(node, &text(&c.namespace), Kind::Claim, &text(&c.name)))
    }

    /// Returns whether a volume that a pod of this node claims refers to the secret.
    fn needed_by_volume(&self, node: &str, namespace: &str, name: &str) -> bool {
        let Some(volumes) = self.caches.get("core/persistentvolumes") else { return false };
        self.volume_secrets.volumes(&volumes, namespace, name).iter().any(|v| self.volume_needed(node, v))
    }

    /// Returns whether the object has this node in `spec.nodeName`.
    fn is_on(&self, node: &str, cache: &str, key: &str) -> bool {
        let object = self.caches.get(cache).and_then(|all| all.get(key));
        let value = object.and_then(|o| serde_json::from_slice::<Value>(&o.json()).ok());
        value.is_some_and(|v| v["spec"]["nodeName"] == node)
    }
}

/// Returns the cache key of the requested object. A request for a cluster-scoped object with a namespace is for
/// another object, which does not exist.
fn key(wanted: &Attributes) -> String {
    match wanted.namespace.as_str() {
        "" => wanted.name.clone(),
        namespace => format!("{namespace}/{}", wanted.name),
    }
}

/// Returns whether one of the selector's terms requires this value; further terms only select less.
fn selects(wanted: &Attributes, field: &str, value: &str) -> bool {
    let selector = FieldSelector::parse(&wanted.field_selector).unwrap_or_default();
    selector.terms().iter().any(|term| term.field == field && !term.negated && term.value == value)
}

fn csi_node(node: &str, wanted: &Attributes) -> Decision {
    match wanted.subresource.as_str() {
        "" => {}
        "status" => return no("CSINode status access requires CSIVolumeHealth feature"),
        _ => return no("cannot authorize CSINode subresources"),
    }
    if !matches!(wanted.verb.as_str(), "get" | "create" | "update" | "patch" | "delete") {
        return no("can only get, create, update, patch, or delete a CSINode");
    }
    if wanted.verb != "create" && wanted.name != node {
        return no("can only access CSINode with the same name as the requesting node");
    }
    yes()
}

fn yes() -> Decision {
    Decision::Allowed { reason: String::new() }
}

fn no(reason: &str) -> Decision {
    Decision::NoOpinion { reason: reason.to_owned() }
}

fn unrelated(node: &str) -> Decision {
    no(&format!("no relationship found between node '{node}' and this object"))
}

fn lease(node: &str, wanted: &Attributes) -> Decision {
    if !matches!(wanted.verb.as_str(), "get" | "create" | "update" | "patch" | "delete") {
        return no("can only get, create, update, patch, or delete a node lease");
    }
    if wanted.namespace != "kube-node-lease" {
        return no("can only access leases in the \"kube-node-lease\" system namespace");
    }
    if wanted.verb != "create" && wanted.name != node {
        return no("can only access node lease with the same name as the requesting node");
    }
    yes()
}

fn own_node(node: &str, wanted: &Attributes) -> Decision {
    match (wanted.subresource.as_str(), wanted.verb.as_str()) {
        ("", "create" | "update" | "patch") | ("status", "update" | "patch") => yes(),
        ("", "get" | "list" | "watch") if wanted.name == node => yes(),
        ("", "get" | "list" | "watch") if wanted.name.is_empty() => {
            no(&format!("node '{node}' cannot read all nodes, only its own Node object"))
        }
        ("", "get" | "list" | "watch") => {
            no(&format!("node '{node}' cannot read '{}', only its own Node object", wanted.name))
        }
        _ => no(""),
    }
}
