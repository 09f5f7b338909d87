//! Requests in the form that nodes send them, for the tests of these controllers.

use jiff::Timestamp;
use k8s_openapi::ByteString;
use k8s_openapi::api::certificates::v1::{CertificateSigningRequest, CertificateSigningRequestSpec};
use k8s_openapi::api::core::v1::{Node, NodeAddress, NodeStatus};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use knarr_api::certificates::signers;
use rcgen::{CertificateParams, DnType, KeyPair};

fn request(node: &str, names: &[&str]) -> String {
    let names: Vec<String> = names.iter().map(|n| (*n).to_owned()).collect();
    let mut params = CertificateParams::new(names).unwrap();
    params.distinguished_name = rcgen::DistinguishedName::new();
    params.distinguished_name.push(DnType::OrganizationName, signers::NODES_GROUP);
    params.distinguished_name.push(DnType::CommonName, format!("{}{node}", signers::NODE_USER_PREFIX));
    params.serialize_request(&KeyPair::generate().unwrap()).unwrap().pem().unwrap()
}

pub fn client_request(node: &str) -> String {
    request(node, &[])
}

/// Makes a PEM request for a serving certificate; `names` are host names and addresses.
pub fn serving_request(node: &str, names: &[&str]) -> String {
    request(node, names)
}

/// Makes a request that was created at the epoch, with the usages of its signer.
pub fn csr(name: &str, signer: &str, pem: String, user: &str, groups: &[&str]) -> CertificateSigningRequest {
    let authentication =
        if signer == signers::KUBELET_SERVING { signers::SERVER_AUTH } else { signers::CLIENT_AUTH };
    let mut csr = CertificateSigningRequest {
        spec: CertificateSigningRequestSpec {
            request: ByteString(pem.into_bytes()),
            signer_name: signer.to_owned(),
            usages: Some(vec![signers::DIGITAL_SIGNATURE.to_owned(), authentication.to_owned()]),
            username: Some(user.to_owned()),
            groups: Some(groups.iter().map(|g| (*g).to_owned()).collect()),
            ..CertificateSigningRequestSpec::default()
        },
        ..CertificateSigningRequest::default()
    };
    csr.metadata.name = Some(name.to_owned());
    csr.metadata.creation_timestamp = Some(Time(Timestamp::UNIX_EPOCH));
    csr
}

/// Sets the source address as the API server records it; an empty one stands for a request within its own process.
pub fn from(mut csr: CertificateSigningRequest, source: &str) -> CertificateSigningRequest {
    if !source.is_empty() {
        let extra = csr.spec.extra.get_or_insert_default();
        extra.insert(signers::SOURCE_ADDRESS.to_owned(), vec![source.to_owned()]);
    }
    csr
}

/// Adds conditions of these types, set at the epoch.
pub fn decided(mut csr: CertificateSigningRequest, types: &[&str]) -> CertificateSigningRequest {
    let now = Timestamp::UNIX_EPOCH;
    let conditions = types.iter().map(|t| super::condition(t, "R", String::new(), now)).collect();
    csr.status.get_or_insert_default().conditions = Some(conditions);
    csr
}

/// Makes a node with these addresses, by type.
pub fn node(name: &str, addresses: &[(&str, &str)]) -> Node {
    let address = |(type_, address): &(&str, &str)| NodeAddress {
        type_: (*type_).to_owned(),
        address: (*address).to_owned(),
    };
    let mut node = Node::default();
    node.metadata.name = Some(name.to_owned());
    node.status = Some(NodeStatus {
        addresses: Some(addresses.iter().map(address).collect()),
        ..NodeStatus::default()
    });
    node
}
