//! The signers of kubernetes.io: their names, and the requests that each of them accepts.
//!
//! Source: "Kubernetes signers" in the documentation of certificate signing requests.

use k8s_openapi::api::certificates::v1 as api;

use super::request::CertificateRequest;

pub const KUBE_APISERVER_CLIENT: &str = "kubernetes.io/kube-apiserver-client";
pub const KUBE_APISERVER_CLIENT_KUBELET: &str = "kubernetes.io/kube-apiserver-client-kubelet";
pub const KUBELET_SERVING: &str = "kubernetes.io/kubelet-serving";
pub const LEGACY_UNKNOWN: &str = "kubernetes.io/legacy-unknown";

/// The condition types that decide a request.
pub const APPROVED: &str = "Approved";
pub const DENIED: &str = "Denied";
pub const FAILED: &str = "Failed";
/// False on a request that waits for an administrator; it does not decide the request.
pub const AUTO_APPROVAL: &str = "AutoApproval";

/// The key of `spec.extra` below which the API server records the address from which a request for a kubelet's
/// serving certificate was sent. Clients cannot set it.
pub const SOURCE_ADDRESS: &str = "knarr.dev/source-address";
/// The annotation of a Node with more addresses for its serving certificate, separated by commas. Nodes cannot
/// set
/// it.
pub const SERVING_ADDRESSES: &str = "knarr.dev/serving-addresses";

/// The group of all nodes, and the prefix of their user names.
pub const NODES_GROUP: &str = "system:nodes";
pub const NODE_USER_PREFIX: &str = "system:node:";

pub const DIGITAL_SIGNATURE: &str = "digital signature";
pub const KEY_ENCIPHERMENT: &str = "key encipherment";
pub const SERVER_AUTH: &str = "server auth";
pub const CLIENT_AUTH: &str = "client auth";

/// Returns whether the request has a condition of this type.
pub fn has_condition(csr: &api::CertificateSigningRequest, type_: &str) -> bool {
    let status = csr.status.as_ref();
    status.and_then(|s| s.conditions.as_ref()).into_iter().flatten().any(|c| c.type_ == type_)
}

pub fn is_issued(csr: &api::CertificateSigningRequest) -> bool {
    csr.status.as_ref().and_then(|s| s.certificate.as_ref()).is_some_and(|c| !c.0.is_empty())
}

/// Returns why a request is not valid for a kubelet's client certificate; `None` if it is.
pub fn kubelet_client_problem(request: &CertificateRequest, usages: &[String]) -> Option<String> {
    if request.organizations != [NODES_GROUP] {
        return Some("subject organization is not system:nodes".to_owned());
    }
    for (present, kind) in [
        (!request.dns_names.is_empty(), "DNS"),
        (!request.email_addresses.is_empty(), "Email"),
        (!request.ip_addresses.is_empty(), "IP"),
        (!request.uris.is_empty(), "URI"),
        (request.other_names, "other"),
    ] {
        if present {
            return Some(format!("{kind} subjectAltNames are not allowed"));
        }
    }
    not_a_node(request).or_else(|| other_usages(usages, CLIENT_AUTH))
}

/// Returns why a request is not valid for a kubelet's serving certificate; `None` if it is.
pub fn kubelet_serving_problem(request: &CertificateRequest, usages: &[String]) -> Option<String> {
    if request.organizations != [NODES_GROUP] {
        return Some("subject organization is not system:nodes".to_owned());
    }
    if request.dns_names.is_empty() && request.ip_addresses.is_empty() {
        return Some("DNS or IP subjectAltName is required".to_owned());
    }
    for (present, kind) in [
        (!request.email_addresses.is_empty(), "Email"),
        (!request.uris.is_empty(), "URI"),
        (request.other_names, "other"),
    ] {
        if present {
            return Some(format!("{kind} subjectAltNames are not allowed"));
        }
    }
    other_usages(usages, SERVER_AUTH).or_else(|| not_a_node(request))
}

/// Returns why usages are not valid for a client certificate of the API server; `None` if they are.
pub fn client_usages_problem(usages: &[String]) -> Option<String> {
    let known = [DIGITAL_SIGNATURE, KEY_ENCIPHERMENT, CLIENT_AUTH];
    if let Some(other) = usages.iter().find(|u| !known.contains(&u.as_str())) {
        return Some(format!("invalid usage for client certificate: {other}"));
    }
    let missing = || format!("missing required usage for client certificate: {CLIENT_AUTH}");
    (!usages.iter().any(|u| u == CLIENT_AUTH)).then(missing)
}

/// Returns the name of the node that the subject identifies.
pub fn node_name(request: &CertificateRequest) -> Option<&str> {
    request.common_name()?.strip_prefix(NODE_USER_PREFIX).filter(|name| !name.is_empty())
}

fn not_a_node(request: &CertificateRequest) -> Option<String> {
    let problem = || "subject common name does not begin with system:node:".to_owned();
    node_name(request).is_none().then(problem)
}

/// Requires exactly digital signature and authentication; RSA keys may also have key encipherment.
fn other_usages(usages: &[String], authentication: &str) -> Option<String> {
    let mut given: Vec<&str> = usages.iter().map(String::as_str).filter(|u| *u != KEY_ENCIPHERMENT).collect();
    given.sort_unstable();
    given.dedup();
    let mut wanted = [DIGITAL_SIGNATURE, authentication];
    wanted.sort_unstable();
    let mut shown = [DIGITAL_SIGNATURE, KEY_ENCIPHERMENT, authentication];
    shown.sort_unstable();
    (given != wanted).then(|| format!("usages did not match [{}]", shown.join(" ")))
}

/// Returns whether clients use the host name for API servers, Services or the local host. No node may have it.
pub fn is_reserved(name: &str) -> bool {
    let name = name.trim_end_matches('.').to_ascii_lowercase();
    let labels: Vec<&str> = name.split('.').collect();
    labels.first() == Some(&"kubernetes") || labels.last() == Some(&"localhost") || labels.contains(&"svc")
}

#[cfg(test)]
mod tests {
    use super::super::testing::{JANE, NODE};
    use super::*;

    fn owned(usages: &[&str]) -> Vec<String> {
        usages.iter().map(|u| (*u).to_owned()).collect()
    }

    #[test]
    fn requests_of_kubelets() {
        let node = CertificateRequest::parse(NODE.as_bytes()).unwrap();
        let serving = owned(&[DIGITAL_SIGNATURE, SERVER_AUTH]);
        let client = owned(&[CLIENT_AUTH, KEY_ENCIPHERMENT, DIGITAL_SIGNATURE]);
        assert_eq!(kubelet_serving_problem(&node, &serving), None);
        assert_eq!(node_name(&node), Some("n1"));
        assert_eq!(
            kubelet_serving_problem(&node, &client).as_deref(),
            Some("usages did not match [digital signature key encipherment server auth]")
        );
        assert_eq!(
            kubelet_client_problem(&node, &client).as_deref(),
            Some("DNS subjectAltNames are not allowed")
        );
        let plain = CertificateRequest { dns_names: vec![], ip_addresses: vec![], ..node.clone() };
        assert_eq!(kubelet_client_problem(&plain, &client), None);
        assert_eq!(
            kubelet_serving_problem(&plain, &serving).as_deref(),
            Some("DNS or IP subjectAltName is required")
        );
        let two = CertificateRequest { common_names: owned(&["system:node:a", "system:node:b"]), ..plain };
        assert_eq!(
            kubelet_client_problem(&two, &client).as_deref(),
            Some("subject common name does not begin with system:node:")
        );
        let jane = CertificateRequest::parse(JANE.as_bytes()).unwrap();
        assert_eq!(
            kubelet_client_problem(&jane, &client).as_deref(),
            Some("subject organization is not system:nodes")
        );
        let odd = CertificateRequest { other_names: true, ..node };
        assert!(kubelet_serving_problem(&odd, &serving).is_some());
    }

    #[test]
    fn usages_of_clients() {
        assert_eq!(client_usages_problem(&owned(&[CLIENT_AUTH])), None);
        assert_eq!(
            client_usages_problem(&owned(&[DIGITAL_SIGNATURE])).as_deref(),
            Some("missing required usage for client certificate: client auth")
        );
        assert_eq!(
            client_usages_problem(&owned(&[CLIENT_AUTH, SERVER_AUTH])).as_deref(),
            Some("invalid usage for client certificate: server auth")
        );
    }
}
