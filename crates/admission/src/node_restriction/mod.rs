//! NodeRestriction: a kubelet may write its own node, the status of its own pods, and little else.
//!
//! Source: `k8s.io/kubernetes/plugin/pkg/admission/noderestriction`.

mod audience;
mod mirror;
mod pod_certificate;

use std::collections::BTreeSet;

use async_trait::async_trait;
use k8s_openapi::ByteString;
use knarr_api::certificates::request::CertificateRequest;
use knarr_api::certificates::signers;
use knarr_api::prepare::same;
use knarr_apimachinery::gvk::GroupResource;
use knarr_apimachinery::status::StatusError;
use serde_json::Value;

use super::{Attributes, Operation, Plugin, lookup, node_claims};
use crate::Context;
use knarr_auth::authz;
use knarr_auth::authz::node::{is_unnamed, node_name};
use knarr_registry::attributes::text;

pub struct NodeRestriction;

const PODS: (&str, &str, &str) = ("", "v1", "pods");
/// The label of the node on which a server runs.
const CONTROL_PLANE: &str = "node-role.kubernetes.io/control-plane";
const RESTRICTION: &str = "node-restriction.kubernetes.io";
/// The labels of Kubernetes' domains that a kubelet may set.
const KUBELET_LABELS: [&str; 11] = [
    "kubernetes.io/hostname",
    "topology.kubernetes.io/zone",
    "topology.kubernetes.io/region",
    "failure-domain.beta.kubernetes.io/zone",
    "failure-domain.beta.kubernetes.io/region",
    "beta.kubernetes.io/instance-type",
    "node.kubernetes.io/instance-type",
    "kubernetes.io/os",
    "kubernetes.io/arch",
    "beta.kubernetes.io/os",
    "beta.kubernetes.io/arch",
];
const KUBELET_DOMAINS: [&str; 2] = ["kubelet.kubernetes.io", "node.kubernetes.io"];

/// A refusal: 403 with a reason, or another Status.
enum Refusal {
    Forbidden(String),
    Status(StatusError),
}

impl From<StatusError> for Refusal {
    fn from(error: StatusError) -> Self {
        Self::Status(error)
    }
}

type Verdict = Result<(), Refusal>;

fn no(why: impl Into<String>) -> Verdict {
    Err(Refusal::Forbidden(why.into()))
}

#[async_trait]
impl Plugin for NodeRestriction {
    fn name(&self) -> &'static str {
        "NodeRestriction"
    }

    fn handles(&self, operation: Operation) -> bool {
        operation != Operation::Connect
    }

    async fn validate(&self, attributes: &Attributes<'_>, context: &Context<'_>) -> Result<(), StatusError> {
        if is_unnamed(attributes.user) {
            let why = format!("could not determine node from user {:?}", attributes.user.name);
            return Err(attributes.forbidden(&why));
        }
        let Some(node) = node_name(attributes.user) else { return Ok(()) };
        match judge(node, attributes, context).await {
            Ok(()) => Ok(()),
            Err(Refusal::Forbidden(why)) => Err(attributes.forbidden(&why)),
            Err(Refusal::Status(error)) => Err(error),
        }
    }
}

async fn judge(node: &str, attributes: &Attributes<'_>, context: &Context<'_>) -> Verdict {
    let types = attributes.resource;
    match (types.group, types.plural, attributes.subresource) {
        ("", "pods", "") => pod(node, attributes, context).await,
        ("", "pods", "status") => pod_status(node, attributes),
        ("", "pods", "eviction") => eviction(node, attributes, context).await,
        ("", "pods", other) => {
            no(format!("unexpected pod subresource {other:?}, only 'status' and 'eviction' are allowed"))
        }
        ("", "nodes", _) => {
            let in_control = context.settings.control_plane_node.as_deref() == Some(node);
            own_node(node, attributes, if in_control { CONTROL_PLANE } else { "" })?;
            claims(node, attributes, context)
        }
        ("", "persistentvolumeclaims", "status") => claim_status(node, attributes),
        ("", "persistentvolumeclaims", _) => no("may only update PVC status"),
        ("", "serviceaccounts", "token") => token(node, attributes, context).await,
        ("coordination.k8s.io", "leases", _) if attributes.namespace != "kube-node-lease" => {
            no("can only access leases in the \"kube-node-lease\" system namespace")
        }
        ("coordination.k8s.io", "leases", _) => same_name(node, attributes, "node lease"),
        ("storage.k8s.io", "csinodes", _) => same_name(node, attributes, "CSINode"),
        ("resource.k8s.io", "resourceslices", _) => resource_slice(node, attributes),
        ("certificates.k8s.io", "podcertificaterequests", _) => {
            pod_certificate::check(node, attributes, context).await
        }
        ("certificates.k8s.io", "certificatesigningrequests", _) => {
            signing_request(node, attributes, context)
        }
        _ => Ok(()),
    }
}

/// Returns whether the node's user is authorized for this in the namespace of the request.
async fn may(
    attributes: &Attributes<'_>,
    context: &Context<'_>,
    verb: &str,
    resource: &str,
    name: &str,
) -> bool {
    let wanted = authz::Attributes {
        verb: verb.to_owned(),
        group: attributes.resource.group.to_owned(),
        version: attributes.resource.version.to_owned(),
        resource: resource.to_owned(),
        namespace: attributes.namespace.to_owned(),
        name: name.to_owned(),
        ..authz::Attributes::default()
    };
    context.authorizer.authorize(attributes.user, &wanted).await.is_allowed()
}

fn missing((group, _, plural): (&str, &str, &str), name: &str) -> StatusError {
    StatusError::not_found(&GroupResource::new(group, plural), name)
}

fn unexpected(operation: Operation) -> Verdict {
    no(format!("unexpected operation {:?}", operation.as_str()))
}

async fn pod(node: &str, attributes: &Attributes<'_>, context: &Context<'_>) -> Verdict {
    match attributes.operation {
        Operation::Create => mirror::check(node, attributes, context).await,
        Operation::Delete => {
            let on = attributes.old.map_or("", |old| text(old, "/spec/nodeName"));
            if on == node {
                return Ok(());
            }
            no(format!("node {node:?} can only delete pods with spec.nodeName set to itself"))
        }
        other => no(format!(
            "unexpected operation {:?}, node {node:?} can only create and delete mirror pods",
            other.as_str()
        )),
    }
}

fn pod_status(node: &str, attributes: &Attributes<'_>) -> Verdict {
    let Some(old) = attributes.old.filter(|_| attributes.operation == Operation::Update) else {
        return unexpected(attributes.operation);
    };
    if text(old, "/spec/nodeName") != node {
        return no(format!(
            "node {node:?} can only update pod status for pods with spec.nodeName set to itself"
        ));
    }
    let differ = |pointer: &str| !same(attributes.object.pointer(pointer), old.pointer(pointer));
    for (pointer, why) in [
        ("/metadata/labels", "cannot update labels through pod status"),
        ("/status/resourceClaimStatuses", "cannot update resource claim statues"),
        ("/status/extendedResourceClaimStatus", "cannot update extended resource claim status"),
        (
            "/status/nodeAllocatableResourceClaimStatuses",
            "cannot update node allocatable resource claim statuses",
        ),
    ] {
        if differ(pointer) {
            return no(format!("node {node:?} {why}"));
        }
    }
    Ok(())
}

async fn eviction(node: &str, attributes: &Attributes<'_>, context: &Context<'_>) -> Verdict {
    if attributes.operation != Operation::Create {
        return no(format!("unexpected operation {}", attributes.operation.as_str()));
    }
    let name = attributes.own_name();
    let pod = lookup::value(context, PODS, attributes.namespace, name).await?;
    let pod = pod.ok_or_else(|| attributes.served.not_found(name))?;
    if text(&pod, "/spec/nodeName") == node {
        return Ok(());
    }
    no(format!("node {node} can only evict pods with spec.nodeName set to itself"))
}

/// Checks a write of the node's own Node. `allowed` is a label that this node may set although kubelets otherwise may
/// not.
fn own_node(node: &str, attributes: &Attributes<'_>, allowed: &str) -> Verdict {
    let named = attributes.own_name();
    if named != node {
        return no(format!("node {node:?} is not allowed to modify node {named:?}"));
    }
    let new = &attributes.object;
    match (attributes.operation, attributes.old) {
        (Operation::Create, _) => {
            if !new["spec"]["configSource"].is_null() {
                return no(format!(
                    "node {node:?} is not allowed to create pods with a non-nil configSource"
                ));
            }
            match forbidden_labels(new, &Value::Null, allowed) {
                labels if labels.is_empty() => Ok(()),
                labels => no(format!("node {node:?} is not allowed to set the following labels: {labels}")),
            }
        }
        (Operation::Update, Some(old)) => {
            let differ = |pointer: &str| !same(new.pointer(pointer), old.pointer(pointer));
            if !new["spec"]["configSource"].is_null() && differ("/spec/configSource") {
                return no(format!(
                    "node {node:?} is not allowed to update configSource to a new non-nil configSource"
                ));
            }
            for (pointer, what) in
                [("/spec/taints", "taints"), ("/metadata/ownerReferences", "ownerReferences")]
            {
                if differ(pointer) {
                    return no(format!("node {node:?} is not allowed to modify {what}"));
                }
            }
            match forbidden_labels(new, old, allowed) {
                labels if labels.is_empty() => Ok(()),
                labels => no(format!("is not allowed to modify labels: {labels}")),
            }
        }
        (Operation::Update, None) => unexpected(attributes.operation),
        (Operation::Delete | Operation::Connect, _) => Ok(()),
    }
}

/// Checks the node's claims about itself that other components would trust.
fn claims(node: &str, attributes: &Attributes<'_>, context: &Context<'_>) -> Verdict {
    if !matches!(attributes.operation, Operation::Create | Operation::Update) {
        return Ok(());
    }
    let (new, old) = (&attributes.object, attributes.old);
    let added = node_claims::added(new, old);
    let others = match added.is_empty() {
        true => Vec::new(),
        false => lookup::list(context, ("", "v1", "nodes"), None)?,
    };
    let problem = node_claims::annotation_problem(new, old)
        .or_else(|| node_claims::pod_cidr_problem(new, old))
        .or_else(|| node_claims::address_problem(node, &added, &others));
    problem.map_or(Ok(()), |why| no(format!("node {node:?} {why}")))
}

/// Returns the changed labels that a kubelet may not change: those that select where trusted workloads run, and unknown
/// ones of Kubernetes' own domains.
fn forbidden_labels(new: &Value, old: &Value, allowed: &str) -> String {
    let labels = |v: &Value| v["metadata"]["labels"].as_object().cloned().unwrap_or_default();
    let (new, old) = (labels(new), labels(old));
    let keys: BTreeSet<&String> = new.keys().chain(old.keys()).collect();
    let changed = keys.into_iter().filter(|k| new.get(*k) != old.get(*k));
    let forbidden: Vec<&str> =
        changed.map(String::as_str).filter(|k| *k != allowed && is_forbidden(k)).collect();
    forbidden.join(", ")
}

fn is_forbidden(label: &str) -> bool {
    let domain = label.split_once('/').map_or("", |(domain, _)| domain);
    let within =
        |parent: &str| domain == parent || domain.strip_suffix(parent).is_some_and(|d| d.ends_with('.'));
    let of_kubernetes = within("kubernetes.io") || within("k8s.io");
    let of_kubelet = KUBELET_LABELS.contains(&label) || KUBELET_DOMAINS.iter().any(|d| within(d));
    within(RESTRICTION) || of_kubernetes && !of_kubelet
}

fn claim_status(node: &str, attributes: &Attributes<'_>) -> Verdict {
    let Some(old) = attributes.old.filter(|_| attributes.operation == Operation::Update) else {
        return unexpected(attributes.operation);
    };
    let rest = |claim: &Value| {
        let mut claim = claim.clone();
        for (part, fields) in [
            ("metadata", &["resourceVersion", "managedFields"][..]),
            ("status", &["capacity", "conditions", "allocatedResources", "allocatedResourceStatuses"]),
        ] {
            if let Some(part) = claim[part].as_object_mut() {
                fields.iter().for_each(|f| drop(part.remove(*f)));
            }
        }
        claim
    };
    if same(Some(&rest(old)), Some(&rest(&attributes.object))) {
        return Ok(());
    }
    no(format!(
        "node {node:?} is not allowed to update fields other than status.quantity and status.conditions"
    ))
}

async fn token(node: &str, attributes: &Attributes<'_>, context: &Context<'_>) -> Verdict {
    if attributes.operation != Operation::Create {
        return Ok(());
    }
    let bound = &attributes.object["spec"]["boundObjectRef"];
    let (name, uid) = (text(bound, "/name"), text(bound, "/uid"));
    if (text(bound, "/apiVersion"), text(bound, "/kind")) != ("v1", "Pod") || name.is_empty() {
        return no("node requested token not bound to a pod");
    }
    if uid.is_empty() {
        return no("node requested token with a pod binding without a uid");
    }
    let pod = lookup::value(context, PODS, attributes.namespace, name).await?;
    let pod = pod.ok_or_else(|| missing(PODS, name))?;
    if uid != text(&pod, "/metadata/uid") {
        return no(format!(
            "the UID in the bound object reference ({uid}) does not match the UID in record. The object might have been deleted and then recreated"
        ));
    }
    if text(&pod, "/spec/nodeName") != node {
        return no("node requested token bound to a pod scheduled on a different node");
    }
    if context.features.is_on("ServiceAccountNodeAudienceRestriction") {
        return audience::check(&pod, attributes, context).await;
    }
    Ok(())
}

/// Checks that a kubelet requests certificates of its own node only.
fn signing_request(node: &str, attributes: &Attributes<'_>, context: &Context<'_>) -> Verdict {
    let insecure = context.features.is_on("AllowInsecureKubeletCertificateSigningRequests");
    let spec = &attributes.object["spec"];
    if insecure
        || attributes.operation != Operation::Create
        || ![signers::KUBELET_SERVING, signers::KUBE_APISERVER_CLIENT_KUBELET]
            .contains(&text(spec, "/signerName"))
    {
        return Ok(());
    }
    let unreadable = |why: String| Refusal::Forbidden(format!("unable to parse csr: {why}"));
    let request: ByteString =
        serde_json::from_value(spec["request"].clone()).map_err(|e| unreadable(e.to_string()))?;
    let request = CertificateRequest::parse(&request.0).map_err(|e| unreadable(e.to_string()))?;
    let wanted = format!("system:node:{node}");
    if request.common_name() == Some(&wanted) {
        return Ok(());
    }
    no(format!("can only create a node CSR with CN={wanted}"))
}

fn same_name(node: &str, attributes: &Attributes<'_>, what: &str) -> Verdict {
    if attributes.own_name() == node {
        return Ok(());
    }
    no(format!("can only access {what} with the same name as the requesting node"))
}

fn resource_slice(node: &str, attributes: &Attributes<'_>) -> Verdict {
    let (slice, verb) = match attributes.operation {
        Operation::Create => (Some(&attributes.object), "create"),
        Operation::Delete => (attributes.old, "delete"),
        _ => return Ok(()),
    };
    if slice.is_some_and(|s| text(s, "/spec/nodeName") == node) {
        return Ok(());
    }
    no(format!("can only {verb} ResourceSlice with the same NodeName as the requesting node"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn labels() {
        for (label, forbidden) in [
            ("kubernetes.io/hostname", false),
            ("example.com/a", false),
            ("a", false),
            ("node.kubernetes.io/x", false),
            ("a.kubelet.kubernetes.io/x", false),
            ("node-role.kubernetes.io/control-plane", true),
            ("foo.k8s.io/x", true),
            ("node-restriction.kubernetes.io/x", true),
            ("example.com.node-restriction.kubernetes.io/x", true),
            ("notkubernetes.io/x", false),
        ] {
            assert_eq!(is_forbidden(label), forbidden, "{label}");
        }
        let node = |labels: Value| json!({"metadata": {"labels": labels}});
        let (old, new) = (node(json!({"a.k8s.io/b": "1"})), node(json!({"c.k8s.io/d": "1"})));
        assert_eq!(forbidden_labels(&new, &old, ""), "a.k8s.io/b, c.k8s.io/d");
        assert_eq!(forbidden_labels(&new, &old, "c.k8s.io/d"), "a.k8s.io/b");
        assert_eq!(forbidden_labels(&old, &old, ""), "");
    }
}
