//! Decides which names and addresses of a kubelet's serving certificate are approved without an administrator.
//!
//! A node writes its own Node object, so that object's status proves no address. What does is the source address of
//! the connection that made the request, as the API server saw it, or an annotation that nodes may not write.

use std::net::IpAddr;
use std::sync::Arc;

use k8s_openapi::api::certificates::v1::CertificateSigningRequest;
use k8s_openapi::api::core::v1::Node;
use k8s_openapi::api::discovery::v1::EndpointSlice;
use knarr_api::addresses::Network;
use knarr_api::certificates::request::CertificateRequest;
use knarr_api::certificates::signers::{self, SERVING_ADDRESSES, SOURCE_ADDRESS};
use knarr_api::kind::Kind;

const SERVICE: &str = "kubernetes.io/service-name";

/// What the control plane knows besides the request.
#[derive(Debug, Clone, Default)]
pub struct Known {
    pub nodes: Vec<Arc<Node>>,
    /// The addresses of the API servers.
    pub api_servers: Vec<IpAddr>,
    /// The addresses of pods and Services.
    pub ranges: Vec<Network>,
}

impl Known {
    pub fn new(nodes: Vec<Arc<Node>>, slices: &[Arc<EndpointSlice>], ranges: &[&str]) -> Self {
        Self {
            nodes,
            api_servers: slices
                .iter()
                .filter(|s| is_of_api_servers(s))
                .flat_map(|s| addresses_of(s))
                .collect(),
            ranges: ranges.iter().filter_map(|range| Network::parse(range)).collect(),
        }
    }

    fn node(&self, name: &str) -> Option<&Node> {
        self.nodes.iter().find(|n| n.name() == name).map(|n| &**n)
    }

    fn other_holder(&self, node: &str, address: IpAddr) -> Option<&str> {
        self.nodes.iter().map(|n| &**n).find(|n| n.name() != node && holds(n, address)).map(Kind::name)
    }
}

/// Returns why the request is not approved automatically; `None` if it is.
pub fn objection(
    csr: &CertificateSigningRequest,
    request: &CertificateRequest,
    known: &Known,
) -> Option<String> {
    let Some(node) = signers::node_name(request) else { return Some("it names no node".to_owned()) };
    let bad_name = request.dns_names.iter().find_map(|name| match name == node {
        false => Some(format!("the name {name} is not the node's own")),
        true if signers::is_reserved(name) => Some(format!("the name {name} belongs to the cluster")),
        true => None,
    });
    bad_name.or_else(|| {
        request.ip_addresses.iter().find_map(|ip| of_address(csr, node, ip.to_canonical(), known))
    })
}

fn of_address(csr: &CertificateSigningRequest, node: &str, ip: IpAddr, known: &Known) -> Option<String> {
    if is_special(ip) {
        return Some(format!("the address {ip} is no node's"));
    }
    if known.ranges.iter().any(|range| range.contains(&single(ip))) {
        return Some(format!("the address {ip} is one of pods or Services"));
    }
    if let Some(other) = known.other_holder(node, ip) {
        return Some(format!("the address {ip} is also that of node {other}"));
    }
    if known.node(node).is_some_and(|n| listed(n).contains(&ip)) {
        return None;
    }
    if known.api_servers.contains(&ip) {
        return Some(format!("the address {ip} is an API server's"));
    }
    (source(csr) != Some(ip)).then(|| {
        format!(
            "nobody vouches for the address {ip}: the request did not come from it, and the annotation \
             {SERVING_ADDRESSES} of node {node} does not list it"
        )
    })
}

fn is_special(ip: IpAddr) -> bool {
    let link_local = match ip {
        IpAddr::V4(v4) => v4.is_link_local() || v4.is_broadcast(),
        IpAddr::V6(v6) => v6.is_unicast_link_local(),
    };
    link_local || ip.is_loopback() || ip.is_multicast() || ip.is_unspecified()
}

fn single(address: IpAddr) -> Network {
    Network { address, bits: if address.is_ipv4() { 32 } else { 128 } }
}

fn parsed(text: &str) -> Option<IpAddr> {
    text.trim().parse::<IpAddr>().ok().map(|ip| ip.to_canonical())
}

/// Returns the source address of the request, which the API server's admission of requests records in `extra`.
fn source(csr: &CertificateSigningRequest) -> Option<IpAddr> {
    let values = csr.spec.extra.as_ref()?.get(SOURCE_ADDRESS)?;
    parsed(values.first()?)
}

fn holds(node: &Node, address: IpAddr) -> bool {
    let claimed = node.status.iter().flat_map(|s| s.addresses.iter().flatten());
    // As in the check of what a node may claim: other types are not checked there, and give no right to an address.
    let claimed = claimed.filter(|a| matches!(a.type_.as_str(), "InternalIP" | "ExternalIP"));
    claimed.filter_map(|a| parsed(&a.address)).any(|ip| ip == address) || listed(node).contains(&address)
}

/// Returns the addresses that an administrator listed in the annotation.
fn listed(node: &Node) -> Vec<IpAddr> {
    let annotation = node.metadata.annotations.iter().find_map(|a| a.get(SERVING_ADDRESSES));
    annotation.iter().flat_map(|list| list.split(',')).filter_map(parsed).collect()
}

fn is_of_api_servers(slice: &EndpointSlice) -> bool {
    let service = slice.metadata.labels.iter().find_map(|l| l.get(SERVICE));
    slice.metadata.namespace.as_deref() == Some("default") && service.is_some_and(|s| s == "kubernetes")
}

fn addresses_of(slice: &EndpointSlice) -> impl Iterator<Item = IpAddr> {
    slice.endpoints.iter().flatten().flat_map(|e| &e.addresses).filter_map(|a| parsed(a))
}

#[cfg(test)]
mod tests {
    use super::super::testing::{csr, from, node, serving_request};
    use super::*;

    fn known() -> Known {
        let slice: EndpointSlice = serde_json::from_value(serde_json::json!({
            "metadata": {"namespace": "default", "name": "kubernetes",
                "labels": {"kubernetes.io/service-name": "kubernetes"}},
            "addressType": "IPv4", "endpoints": [{"addresses": ["192.0.2.1"]}],
        }))
        .unwrap();
        let other = node("n2", &[("InternalIP", "192.0.2.3"), ("Hostname", "n2")]);
        // The addresses that the node itself claims do not count.
        let claims =
            ["10.43.0.1", "192.0.2.1", "192.0.2.3", "192.0.2.4", "127.0.0.1"].map(|ip| ("InternalIP", ip));
        let mut own = node("n1", &claims);
        own.status.as_mut().unwrap().addresses.as_mut().unwrap().extend(
            node("x", &[("InternalDNS", "kubernetes.default.svc"), ("Hostname", "n1.example")])
                .status
                .unwrap()
                .addresses
                .unwrap(),
        );
        let annotations = [(SERVING_ADDRESSES.to_owned(), "192.0.2.50, 2001:db8::5,192.0.2.3".to_owned())];
        own.metadata.annotations = Some(annotations.into());
        Known::new(
            vec![Arc::new(own), Arc::new(other)],
            &[Arc::new(slice)],
            &["10.42.0.0/16", "10.43.0.0/16"],
        )
    }

    fn objects(node: &str, names: &[&str], source: &str) -> bool {
        let csr = csr("a", signers::KUBELET_SERVING, serving_request(node, names), "u", &[]);
        let csr = from(csr, source);
        let request = CertificateRequest::parse(&csr.spec.request.0).unwrap();
        objection(&csr, &request, &known()).is_some()
    }

    #[test]
    fn a_nodes_own_word_vouches_for_nothing() {
        for (node, names, source, refused) in [
            ("n1", &["n1"][..], "", false),
            ("n1", &["n1", "192.0.2.2"], "192.0.2.2", false),
            ("n1", &["n1", "192.0.2.2"], "::ffff:192.0.2.2", false),
            ("n1", &["n1", "192.0.2.2"], "192.0.2.9", true),
            ("n1", &["n1", "192.0.2.4"], "", true),
            // A name that is an address is checked as an address.
            ("192.0.2.7", &["192.0.2.7"], "192.0.2.7", false),
            ("192.0.2.7", &["192.0.2.7"], "", true),
            ("192.0.2.1", &["192.0.2.1"], "192.0.2.1", true),
            // Names of others, including those in the Node's status.
            ("n1", &["n1.example"], "", true),
            ("n1", &["n1", "kubernetes.default.svc"], "", true),
            ("n1", &["n2"], "", true),
            ("kubernetes", &["kubernetes"], "", true),
            ("kubernetes.default", &["kubernetes.default"], "", true),
            ("a.b.svc.cluster.local", &["a.b.svc.cluster.local"], "", true),
            ("localhost", &["localhost"], "", true),
            // Addresses that cannot be a node's, wherever the request came from.
            ("n1", &["n1", "10.43.0.1"], "10.43.0.1", true),
            ("n1", &["n1", "10.42.3.4"], "10.42.3.4", true),
            ("n1", &["n1", "127.0.0.1"], "127.0.0.1", true),
            ("n1", &["n1", "169.254.169.254"], "169.254.169.254", true),
            ("n1", &["n1", "224.0.0.1"], "224.0.0.1", true),
            ("n1", &["n1", "0.0.0.0"], "0.0.0.0", true),
            ("n1", &["n1", "fe80::1"], "fe80::1", true),
            // The API server's address and another node's.
            ("n1", &["n1", "192.0.2.1"], "192.0.2.1", true),
            ("n1", &["n1", "192.0.2.3"], "192.0.2.3", true),
            // Addresses that an administrator listed.
            ("n1", &["n1", "192.0.2.50"], "203.0.113.1", false),
            ("n1", &["n1", "2001:db8::5"], "", false),
            ("n2", &["n2", "192.0.2.50"], "192.0.2.50", true),
        ] {
            assert_eq!(objects(node, names, source), refused, "{node} {names:?} from {source}");
        }
    }
}
