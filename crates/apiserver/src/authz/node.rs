//! The Node authorizer: a kubelet may read what its own pods need, and nothing of others.

use std::sync::Arc;

use k8s_openapi::api::core::v1::{Pod, Volume};
use k8s_openapi::api::rbac::v1::PolicyRule;
use knarr_apimachinery::selector::FieldSelector;

use super::{Attributes, Decision, rules};
use crate::authn::UserInfo;
use crate::cache::Cache;

const NODES_GROUP: &str = "system:nodes";
const NODE_PREFIX: &str = "system:node:";

/// The node that a user is, if it is one.
pub fn node_name(user: &UserInfo) -> Option<&str> {
    let name = user.name.strip_prefix(NODE_PREFIX)?;
    (user.in_group(NODES_GROUP) && !name.is_empty()).then_some(name)
}

pub struct NodeAuthorizer {
    pods: Arc<Cache>,
    /// What any node may do: the rules of the `system:node` role.
    rules: Vec<PolicyRule>,
}

impl NodeAuthorizer {
    pub fn new(pods: Arc<Cache>) -> Self {
        let role = super::policy::defaults()
            .into_iter()
            .find(|d| d.resource == "clusterroles" && d.object["metadata"]["name"] == "system:node");
        let rules = role.and_then(|mut r| serde_json::from_value(r.object["rules"].take()).ok());
        Self { pods, rules: rules.unwrap_or_default() }
    }

    pub fn authorize(&self, user: &UserInfo, wanted: &Attributes) -> Decision {
        let Some(node) = node_name(user) else { return no("") };
        let main = wanted.subresource.is_empty();
        let verb = wanted.verb.as_str();
        match (wanted.group.as_str(), wanted.resource.as_str()) {
            _ if !wanted.is_resource() => self.by_rules(wanted),
            ("", resource @ ("secrets" | "configmaps")) => {
                if !matches!(verb, "get" | "list" | "watch") {
                    return no("can only read resources of this type");
                }
                if !main {
                    return no("cannot read subresource");
                }
                if wanted.namespace.is_empty() {
                    return no("can only read namespaced object of this type");
                }
                self.related(node, wanted, |pod| refers_to(pod, resource, &wanted.name))
            }
            ("", "persistentvolumeclaims") if verb == "get" || wanted.subresource == "status" => {
                self.related(node, wanted, |pod| refers_to(pod, "persistentvolumeclaims", &wanted.name))
            }
            ("", "serviceaccounts") if verb == "get" && main => self.uses_account(node, wanted),
            ("", "serviceaccounts") if verb == "create" && wanted.subresource == "token" => {
                self.uses_account(node, wanted)
            }
            ("", "serviceaccounts") => no("can only create tokens for individual service accounts"),
            ("coordination.k8s.io", "leases") => lease(node, wanted),
            ("", "nodes") => own_node(node, wanted),
            ("", "pods") => self.pod(node, wanted),
            _ => self.by_rules(wanted),
        }
    }

    fn by_rules(&self, wanted: &Attributes) -> Decision {
        if self.rules.iter().any(|r| rules::allows(r, wanted)) { yes() } else { no("") }
    }

    fn pod(&self, node: &str, wanted: &Attributes) -> Decision {
        match (wanted.subresource.as_str(), wanted.verb.as_str()) {
            ("", "list" | "watch") => {
                let selector = FieldSelector::parse(&wanted.field_selector).unwrap_or_default();
                if selector.requires_exact("spec.nodeName") == Some(node) {
                    return yes();
                }
                if wanted.name.is_empty() {
                    return no("can only list/watch pods with spec.nodeName field selector");
                }
                self.own_pod(node, wanted)
            }
            ("", "get") => self.own_pod(node, wanted),
            ("", "create" | "delete") | ("status", "update" | "patch") | ("eviction", "create") => yes(),
            _ => no(""),
        }
    }

    fn own_pod(&self, node: &str, wanted: &Attributes) -> Decision {
        let pod = self.pods.get(&format!("{}/{}", wanted.namespace, wanted.name));
        if pod.is_some_and(|p| p.header().field("spec.nodeName") == Some(node)) {
            return yes();
        }
        unrelated(node)
    }

    fn uses_account(&self, node: &str, wanted: &Attributes) -> Decision {
        self.related(node, wanted, |pod| {
            pod.spec.as_ref().and_then(|s| s.service_account_name.as_deref()) == Some(wanted.name.as_str())
        })
    }

    /// Whether a pod of this node and of the wanted namespace needs the object.
    fn related(&self, node: &str, wanted: &Attributes, needs: impl Fn(&Pod) -> bool) -> Decision {
        if wanted.name.is_empty() {
            return no("No Object name found");
        }
        let found = self
            .pods
            .list(Some(&wanted.namespace))
            .iter()
            .filter(|p| p.header().field("spec.nodeName") == Some(node))
            .filter_map(|p| p.typed::<Pod>().ok())
            .any(|p| needs(&p));
        if found { yes() } else { unrelated(node) }
    }
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

/// Whether the pod names the secret, config map or claim anywhere.
fn refers_to(pod: &Pod, resource: &str, name: &str) -> bool {
    let Some(spec) = &pod.spec else { return false };
    let pull = spec.image_pull_secrets.iter().flatten().map(|r| r.name.as_str());
    if resource == "secrets" && pull.into_iter().any(|n| n == name) {
        return true;
    }
    let containers = spec.init_containers.iter().flatten().chain(&spec.containers);
    for container in containers {
        for from in container.env_from.iter().flatten() {
            let found = match resource {
                "secrets" => from.secret_ref.as_ref().map(|r| &r.name),
                _ => from.config_map_ref.as_ref().map(|r| &r.name),
            };
            if found.is_some_and(|n| n == name) {
                return true;
            }
        }
        for source in container.env.iter().flatten().filter_map(|e| e.value_from.as_ref()) {
            let found = match resource {
                "secrets" => source.secret_key_ref.as_ref().map(|r| &r.name),
                _ => source.config_map_key_ref.as_ref().map(|r| &r.name),
            };
            if found.is_some_and(|n| n == name) {
                return true;
            }
        }
    }
    spec.volumes.iter().flatten().any(|v| volume_refers_to(v, resource, name))
}

fn volume_refers_to(volume: &Volume, resource: &str, name: &str) -> bool {
    let projected = || volume.projected.iter().flat_map(|p| p.sources.iter().flatten());
    match resource {
        "secrets" => {
            volume.secret.as_ref().and_then(|s| s.secret_name.as_deref()) == Some(name)
                || projected().any(|s| s.secret.as_ref().is_some_and(|s| s.name == name))
        }
        "configmaps" => {
            volume.config_map.as_ref().is_some_and(|c| c.name == name)
                || projected().any(|s| s.config_map.as_ref().is_some_and(|c| c.name == name))
        }
        _ => volume.persistent_volume_claim.as_ref().is_some_and(|c| c.claim_name == name),
    }
}
