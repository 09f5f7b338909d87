//! csrapproving: approves kubelets' certificate requests for their own names and addresses.

use std::sync::Arc;

use k8s_openapi::api::authorization::v1::{ResourceAttributes, SubjectAccessReview, SubjectAccessReviewSpec};
use k8s_openapi::api::certificates::v1::CertificateSigningRequest;
use k8s_openapi::api::core::v1::{Node, NodeAddress};
use k8s_openapi::api::discovery::v1::EndpointSlice;
use knarr_api::certificates::request::CertificateRequest;
use knarr_api::certificates::signers::{self, APPROVED, AUTO_APPROVAL, DENIED, SERVING_ADDRESSES};
use knarr_api::kind::Kind;
use knarr_client::events::EventType;
use knarr_client::work_queue::WorkQueue;
use knarr_client::{Error, Event, Lister, Result};

use super::serving::{self, Known};
use super::{condition, usages_of};
use crate::context::{Context, Descriptor};

pub const DESCRIPTOR: Descriptor = Descriptor {
    name: "certificatesigningrequest-approving-controller",
    run: |cx| Box::pin(async move { run(cx).await }),
};

const WORKERS: usize = 2;
const MASTERS: &str = "system:masters";

/// What to do with a request.
#[derive(Debug, PartialEq, Eq)]
enum Verdict {
    /// Approve it, with this message.
    Approve(&'static str),
    /// Approve it if the requestor may create `certificatesigningrequests/SUBRESOURCE`; the entries are tried in
    /// order.
    Ask(&'static [(&'static str, &'static str)]),
    /// Leave it to an administrator for this reason, until the known facts about the node change.
    Refer(String),
    /// Ignore it.
    Leave,
}

const NODE_CLIENT: (&str, &str) =
    ("nodeclient", "Auto approving kubelet client certificate after SubjectAccessReview.");
const SELF_NODE_CLIENT: (&str, &str) =
    ("selfnodeclient", "Auto approving self kubelet client certificate after SubjectAccessReview.");
const SERVING: &str = "Auto approving kubelet serving certificate for the node's own name and addresses.";
const NOT_VOUCHED_FOR: &str = "NotVouchedFor";

async fn run(cx: Arc<Context>) {
    let queue: Arc<WorkQueue<String>> = WorkQueue::new(Arc::clone(&cx.clock));
    let requests = cx.informers.informer::<CertificateSigningRequest>();
    let nodes = cx.informers.informer::<Node>();
    let slices = cx.informers.informer::<EndpointSlice>();
    let on_request = Arc::clone(&queue);
    requests.add_handler(move |event| {
        if is_open(event.object()) {
            on_request.add(event.object().name().to_owned());
        }
    });
    let (on_node, waiting) = (Arc::clone(&queue), requests.lister());
    nodes.add_handler(move |event| {
        // Another node may have given up an address, or an administrator may have listed one in the annotation.
        let changed = match event {
            Event::Added(_) | Event::Deleted(_) => true,
            Event::Updated { old, new } => addresses(old) != addresses(new) || listed(old) != listed(new),
        };
        if changed {
            let open = waiting.list().into_iter().filter(|csr| is_open(csr));
            let serving = open.filter(|csr| csr.spec.signer_name == signers::KUBELET_SERVING);
            serving.for_each(|csr| on_node.add(csr.name().to_owned()));
        }
    });
    if !(requests.wait_synced().await && nodes.wait_synced().await && slices.wait_synced().await) {
        return;
    }
    let (requests, stop) = (requests.lister(), cx.stop.clone());
    let sources = (nodes.lister(), slices.lister());
    let reconcile = move |name: String| {
        let (cx, requests, sources) = (Arc::clone(&cx), requests.clone(), sources.clone());
        async move { reconcile(&cx, &requests, &sources, &name).await }
    };
    queue.run(DESCRIPTOR.name, WORKERS, stop, reconcile).await;
}

/// Returns whether the request is neither decided nor issued.
fn is_open(csr: &CertificateSigningRequest) -> bool {
    !signers::is_issued(csr) && !signers::has_condition(csr, APPROVED) && !signers::has_condition(csr, DENIED)
}

async fn reconcile(
    cx: &Context,
    requests: &Lister<CertificateSigningRequest>,
    (nodes, slices): &(Lister<Node>, Lister<EndpointSlice>),
    name: &str,
) -> Result<()> {
    let Some(csr) = requests.get("", name).filter(|csr| is_open(csr)) else { return Ok(()) };
    // The API server refuses a request that does not parse. Should one exist all the same, it is never approved.
    let Ok(request) = CertificateRequest::parse(&csr.spec.request.0) else { return Ok(()) };
    let known = || {
        let ranges = [Some(cx.options.cluster_cidr.as_str()), cx.options.service_cidr.as_deref()];
        let ranges: Vec<&str> = ranges.into_iter().flatten().collect();
        Known::new(nodes.list(), &slices.list(), &ranges)
    };
    match verdict(&csr, &request, &known) {
        Verdict::Leave => Ok(()),
        Verdict::Refer(why) => refer(cx, &csr, &why).await,
        Verdict::Approve(message) => approve(cx, &csr, message).await,
        Verdict::Ask(permissions) => {
            for (subresource, message) in permissions {
                if is_allowed(cx, &csr, subresource).await? {
                    return approve(cx, &csr, message).await;
                }
            }
            // The requestor may be granted the permission later, so the key is retried.
            Err(Error::Protocol(format!("the requestor of {name} is not authorized for automatic approval")))
        }
    }
}

fn verdict(
    csr: &CertificateSigningRequest,
    request: &CertificateRequest,
    known: &dyn Fn() -> Known,
) -> Verdict {
    match csr.spec.signer_name.as_str() {
        signers::KUBE_APISERVER_CLIENT_KUBELET => {
            if signers::kubelet_client_problem(request, usages_of(csr)).is_some() {
                return Verdict::Leave;
            }
            let by_itself = csr.spec.username.as_deref() == request.common_name();
            Verdict::Ask(if by_itself { &[SELF_NODE_CLIENT, NODE_CLIENT] } else { &[NODE_CLIENT] })
        }
        signers::KUBELET_SERVING => {
            if signers::kubelet_serving_problem(request, usages_of(csr)).is_some()
                || !may_ask_for_serving(csr, request)
            {
                return Verdict::Leave;
            }
            serving::objection(csr, request, &known()).map_or(Verdict::Approve(SERVING), Verdict::Refer)
        }
        _ => Verdict::Leave,
    }
}

/// Returns whether the requestor is the node itself or an administrator who sets it up.
fn may_ask_for_serving(csr: &CertificateSigningRequest, request: &CertificateRequest) -> bool {
    let in_group = |group: &str| csr.spec.groups.iter().flatten().any(|g| g == group);
    let by_itself = csr.spec.username.as_deref() == request.common_name() && in_group(signers::NODES_GROUP);
    by_itself || in_group(MASTERS)
}

fn addresses(node: &Node) -> &[NodeAddress] {
    node.status.as_ref().and_then(|s| s.addresses.as_deref()).unwrap_or_default()
}

fn listed(node: &Node) -> Option<&String> {
    node.metadata.annotations.as_ref()?.get(SERVING_ADDRESSES)
}

async fn is_allowed(cx: &Context, csr: &CertificateSigningRequest, subresource: &str) -> Result<bool> {
    let spec = SubjectAccessReviewSpec {
        user: csr.spec.username.clone(),
        uid: csr.spec.uid.clone(),
        groups: csr.spec.groups.clone(),
        extra: csr.spec.extra.clone(),
        resource_attributes: Some(ResourceAttributes {
            group: Some("certificates.k8s.io".to_owned()),
            resource: Some("certificatesigningrequests".to_owned()),
            verb: Some("create".to_owned()),
            subresource: Some(subresource.to_owned()),
            version: Some("*".to_owned()),
            ..ResourceAttributes::default()
        }),
        ..SubjectAccessReviewSpec::default()
    };
    let review = cx.client.create(&SubjectAccessReview { spec, ..SubjectAccessReview::default() }).await?;
    Ok(review.status.is_some_and(|s| s.allowed))
}

/// Records in a condition of the request, and in an event, why it waits for an administrator.
async fn refer(cx: &Context, csr: &CertificateSigningRequest, why: &str) -> Result<()> {
    let message = format!("Not approved automatically: {why}.");
    let mut referred = csr.clone();
    let conditions = referred.status.get_or_insert_default().conditions.get_or_insert_default();
    if conditions.iter().any(|c| c.type_ == AUTO_APPROVAL && c.message.as_deref() == Some(&message)) {
        return Ok(());
    }
    conditions.retain(|c| c.type_ != AUTO_APPROVAL);
    let mut refused = condition(AUTO_APPROVAL, NOT_VOUCHED_FOR, message.clone(), cx.clock.now());
    refused.status = "False".to_owned();
    conditions.push(refused);
    match cx.client.update_subresource(&referred, "approval").await {
        Err(e) if e.is_conflict() || e.is_not_found() => Ok(()),
        Err(error) => Err(error),
        Ok(_) => {
            cx.recorder.event(csr, EventType::Warning, NOT_VOUCHED_FOR, message);
            Ok(())
        }
    }
}

async fn approve(cx: &Context, csr: &CertificateSigningRequest, message: &str) -> Result<()> {
    let mut approved = csr.clone();
    let conditions = approved.status.get_or_insert_default().conditions.get_or_insert_default();
    conditions.push(condition(APPROVED, "AutoApproved", message.to_owned(), cx.clock.now()));
    match cx.client.update_subresource(&approved, "approval").await {
        // Another client changed the request first; that change requeues the key.
        Err(e) if e.is_conflict() || e.is_not_found() => Ok(()),
        other => other.map(drop),
    }
}

#[cfg(test)]
mod tests {
    use super::super::testing::{client_request, csr, from, node, serving_request};
    use super::*;

    fn judged(csr: &CertificateSigningRequest, node: Option<&Node>) -> Verdict {
        let request = CertificateRequest::parse(&csr.spec.request.0).unwrap();
        let nodes: Vec<_> = node.into_iter().cloned().map(Arc::new).collect();
        verdict(csr, &request, &|| Known::new(nodes.clone(), &[], &[]))
    }

    #[test]
    fn serving_certificates_are_for_the_nodes_own_names() {
        let registered = node("n1", &[("InternalIP", "10.0.0.1"), ("Hostname", "n1.example")]);
        let by = |user: &str, groups: &[&str], names: &[&str]| {
            let csr = csr("a", signers::KUBELET_SERVING, serving_request("n1", names), user, groups);
            from(csr, "10.0.0.2")
        };
        let (own, nodes) = ("system:node:n1", &["system:nodes"][..]);
        for (csr, node, wanted) in [
            (by(own, nodes, &["n1"]), None, "approve"),
            (by(own, nodes, &["n1", "10.0.0.1"]), None, "refer"),
            (by(own, nodes, &["n1", "10.0.0.1", "n1.example"]), Some(&registered), "refer"),
            (by(own, nodes, &["n1", "10.0.0.2"]), Some(&registered), "approve"),
            (by(own, nodes, &["kubernetes"]), Some(&registered), "refer"),
            (by("system:node:n2", nodes, &["n1"]), Some(&registered), "leave"),
            (by(own, &["others"], &["n1"]), Some(&registered), "leave"),
            (by("admin", &["system:masters"], &["n1"]), None, "approve"),
            (by("admin", &["system:masters"], &["n2"]), None, "refer"),
        ] {
            let verdict = match judged(&csr, node) {
                Verdict::Approve(SERVING) => "approve",
                Verdict::Refer(_) => "refer",
                Verdict::Leave => "leave",
                other => panic!("{other:?}"),
            };
            assert_eq!(verdict, wanted, "{csr:?}");
        }
    }

    #[test]
    fn client_certificates_are_asked_about() {
        let by = |user: &str| {
            let signer = signers::KUBE_APISERVER_CLIENT_KUBELET;
            csr("a", signer, client_request("n1"), user, &[])
        };
        assert_eq!(judged(&by("system:node:n1"), None), Verdict::Ask(&[SELF_NODE_CLIENT, NODE_CLIENT]));
        assert_eq!(judged(&by("admin"), None), Verdict::Ask(&[NODE_CLIENT]));
        let mut wrong = by("admin");
        wrong.spec.usages = Some(vec![signers::SERVER_AUTH.to_owned()]);
        assert_eq!(judged(&wrong, None), Verdict::Leave);
        let other = csr("a", "example.com/signer", client_request("n1"), "admin", &["system:masters"]);
        assert_eq!(judged(&other, None), Verdict::Leave);
    }
}
