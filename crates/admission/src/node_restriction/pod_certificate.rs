//! Checks that a kubelet requests certificates only for the pods that it runs, and for their service accounts.

use knarr_apimachinery::status::StatusError;
use serde_json::Value;

use super::{PODS, Refusal, Verdict, may, missing, no};
use crate::Context;
use crate::service_account::is_mirror;
use crate::{Attributes, Operation, lookup};
use knarr_registry::attributes::text;

const NODES: (&str, &str, &str) = ("", "v1", "nodes");
const ACCOUNTS: (&str, &str, &str) = ("", "v1", "serviceaccounts");

pub async fn check(node: &str, attributes: &Attributes<'_>, context: &Context<'_>) -> Verdict {
    if !context.features.is_on("PodCertificateRequest") {
        return no("PodCertificateRequest feature gate is disabled");
    }
    if attributes.operation != Operation::Create {
        return no(format!("unexpected operation {}", attributes.operation.as_str()));
    }
    if !attributes.subresource.is_empty() {
        return no(format!("unexpected subresource {}", attributes.subresource));
    }
    let spec = &attributes.object["spec"];
    own_node(node, attributes.namespace, spec, context).await?;
    let pod = own_pod(node, attributes.namespace, spec, context).await?;
    own_account(attributes.namespace, spec, &pod, context).await?;
    let (signer, account) = (text(spec, "/signerName"), text(spec, "/serviceAccountName"));
    if mounts(&pod, signer) {
        return Ok(());
    }
    // Resource names in rules cannot contain a slash.
    let resource = signer.replace('/', ":");
    if may(attributes, context, "request-serviceaccounts-podcertificate-signer", &resource, account).await {
        return Ok(());
    }
    let shown = shown(attributes.namespace, spec);
    no(format!("pod {shown:?} does not mount a podCertificate projected volume for signer {signer:?}"))
}

/// Returns an error for a failure that a stale cache may have caused. A retry may succeed, so it is not a 403.
fn later<T>(why: String) -> Result<T, Refusal> {
    Err(Refusal::Status(StatusError::new(500, "", why)))
}

fn shown(namespace: &str, spec: &Value) -> String {
    format!("{namespace}/{}", text(spec, "/podName"))
}

/// Returns an object that the request names, or 500 if it does not exist.
async fn named(
    context: &Context<'_>,
    resource: (&str, &str, &str),
    (namespace, name): (&str, &str),
    what: &str,
) -> Result<Value, Refusal> {
    let retrieving = |why: &str| format!("while retrieving {what} named in the PodCertificateRequest: {why}");
    match lookup::value(context, resource, namespace, name).await {
        Ok(Some(found)) => Ok(found),
        Ok(None) => later(retrieving(missing(resource, name).message())),
        Err(error) => Err(Refusal::Forbidden(retrieving(error.message()))),
    }
}

async fn own_node(node: &str, namespace: &str, spec: &Value, context: &Context<'_>) -> Verdict {
    let (name, uid) = (text(spec, "/nodeName"), text(spec, "/nodeUID"));
    if name != node {
        return no(format!(
            "PodCertificateRequest.Spec.NodeName={name:?}, which is not the requesting node {node:?}"
        ));
    }
    let found = named(context, NODES, ("", name), &format!("node {name:?}")).await?;
    let running = text(&found, "/metadata/uid");
    if running == uid {
        return Ok(());
    }
    let shown = shown(namespace, spec);
    later(format!(
        "PodCertificateRequest for pod {shown:?} names node UID {uid:?}, inconsistent with the running node ({running:?})"
    ))
}

async fn own_pod(node: &str, namespace: &str, spec: &Value, context: &Context<'_>) -> Result<Value, Refusal> {
    let (shown, uid) = (shown(namespace, spec), text(spec, "/podUID"));
    let what = format!("pod {shown:?}");
    let pod = named(context, PODS, (namespace, text(spec, "/podName")), &what).await?;
    let running = text(&pod, "/metadata/uid");
    if running != uid {
        return later(format!(
            "PodCertificateRequest for pod {shown:?} contains pod UID ({uid:?}) which differs from running pod {running:?}"
        ));
    }
    let refusal = if text(&pod, "/spec/nodeName") != node {
        format!("pod {shown:?} is not running on node {node:?} named in the PodCertificateRequest")
    } else if is_mirror(&pod) {
        format!("pod {shown:?} is a mirror pod")
    } else {
        return Ok(pod);
    };
    Err(Refusal::Forbidden(refusal))
}

async fn own_account(namespace: &str, spec: &Value, pod: &Value, context: &Context<'_>) -> Verdict {
    let (shown, name) = (shown(namespace, spec), text(spec, "/serviceAccountName"));
    let running = text(pod, "/spec/serviceAccountName");
    if name != running {
        return no(format!(
            "PodCertificateRequest for pod {shown:?} contains serviceAccountName ({name:?}) that differs from running pod ({running:?})"
        ));
    }
    let what = format!("service account \"{namespace}/{name}\"");
    let account = named(context, ACCOUNTS, (namespace, name), &what).await?;
    let (uid, running) = (text(spec, "/serviceAccountUID"), text(&account, "/metadata/uid"));
    if uid == running {
        return Ok(());
    }
    later(format!(
        "PodCertificateRequest for pod {shown:?} names service account UID {uid:?}, which differs from the running service account ({running:?})"
    ))
}

/// Returns whether a volume of the pod projects a certificate of this signer.
fn mounts(pod: &Value, signer: &str) -> bool {
    let volumes = pod["spec"]["volumes"].as_array().into_iter().flatten();
    let mut sources = volumes.flat_map(|v| v["projected"]["sources"].as_array().into_iter().flatten());
    sources.any(|s| s["podCertificate"].is_object() && text(s, "/podCertificate/signerName") == signer)
}
