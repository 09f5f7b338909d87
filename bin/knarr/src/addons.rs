//! What every cluster starts with beside the API server's own objects: the Service of the cluster DNS.

use std::net::Ipv4Addr;

use k8s_openapi::api::core::v1::{Service, ServicePort, ServiceSpec};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;
use knarr_api::kind::Kind;
use knarr_client::{Client, Result};

/// Tells every service proxy, ours and foreign ones, to leave the Service alone: each node's name server answers on
/// the address itself.
const PROXY_NAME: &str = "service.kubernetes.io/service-proxy-name";

/// Makes the `kube-dns` Service unless it is there.
pub async fn ensure_dns_service(client: &Client, address: Ipv4Addr) -> Result<()> {
    let service = dns_service(address);
    match client.create(&service).await {
        Err(e) if !e.is_already_exists() && !is_taken_by_it(client, &e, &service).await => Err(e),
        _ => Ok(()),
    }
}

/// An existing Service keeps its address allocated, which a server may find before it finds the name taken.
async fn is_taken_by_it(client: &Client, error: &knarr_client::Error, service: &Service) -> bool {
    let invalid = error.status().is_some_and(|s| s.reason() == "Invalid");
    invalid && client.get::<Service>(service.namespace(), service.name()).await.is_ok()
}

fn dns_service(address: Ipv4Addr) -> Service {
    let port = |name: &str, protocol: &str| ServicePort {
        name: Some(name.to_owned()),
        protocol: Some(protocol.to_owned()),
        port: 53,
        target_port: Some(IntOrString::Int(53)),
        ..ServicePort::default()
    };
    let labels = [
        ("k8s-app", "kube-dns"),
        ("kubernetes.io/cluster-service", "true"),
        ("kubernetes.io/name", "KubeDNS"),
        (PROXY_NAME, "knarr"),
    ];
    Service {
        metadata: ObjectMeta {
            name: Some("kube-dns".to_owned()),
            namespace: Some("kube-system".to_owned()),
            labels: Some(labels.iter().map(|(k, v)| ((*k).to_owned(), (*v).to_owned())).collect()),
            ..ObjectMeta::default()
        },
        spec: Some(ServiceSpec {
            cluster_ip: Some(address.to_string()),
            ports: Some(vec![port("dns", "UDP"), port("dns-tcp", "TCP")]),
            ..ServiceSpec::default()
        }),
        status: None,
    }
}
