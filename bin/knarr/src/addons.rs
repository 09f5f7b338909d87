//! Objects that every cluster starts with besides those of the API server: the Service of the cluster DNS and
//! the storage class of the built-in provisioner.

use std::net::Ipv4Addr;
use std::sync::Arc;

use k8s_openapi::api::core::v1::{Service, ServicePort, ServiceSpec};
use k8s_openapi::api::storage::v1::StorageClass;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;
use knarr_api::kind::Kind;
use knarr_api::storage::storageclass::DEFAULT_CLASS;
use knarr_client::transport::ListOptions;
use knarr_client::{Client, Result};

/// This label makes every service proxy, ours and others, ignore the Service: the name server of each node
/// answers on the address itself.
const PROXY_NAME: &str = "service.kubernetes.io/service-proxy-name";

/// Creates the `kube-dns` Service if it is missing.
pub async fn ensure_dns_service(client: &Client, address: Ipv4Addr) -> Result<()> {
    let service = dns_service(address);
    match client.create(&service).await {
        Err(e) if !e.is_already_exists() && !is_taken_by_it(client, &e, &service).await => Err(e),
        _ => Ok(()),
    }
}

/// Returns whether the address is allocated to the existing Service: a server may find that conflict before
/// it finds that the name is taken.
async fn is_taken_by_it(client: &Client, error: &knarr_client::Error, service: &Service) -> bool {
    let invalid = error.status().is_some_and(|s| s.reason() == "Invalid");
    invalid && client.get::<Service>(service.namespace(), service.name()).await.is_ok()
}

/// Creates the storage class `local-path` if it is missing. It is the default class if no other class is.
pub async fn ensure_storage_class(client: &Client) -> Result<()> {
    let (known, _) = client.list::<StorageClass>(None, &ListOptions::default()).await?;
    let is_default = |c: &Arc<StorageClass>| {
        let annotations = c.metadata.annotations.as_ref();
        annotations.and_then(|a| a.get(DEFAULT_CLASS)).is_some_and(|v| v == "true")
    };
    match client.create(&storage_class(!known.iter().any(is_default))).await {
        Err(e) if !e.is_already_exists() => Err(e),
        _ => Ok(()),
    }
}

fn storage_class(default: bool) -> StorageClass {
    StorageClass {
        metadata: ObjectMeta {
            name: Some("local-path".to_owned()),
            annotations: default.then(|| [(DEFAULT_CLASS.to_owned(), "true".to_owned())].into()),
            ..ObjectMeta::default()
        },
        provisioner: "rancher.io/local-path".to_owned(),
        reclaim_policy: Some("Delete".to_owned()),
        volume_binding_mode: Some("WaitForFirstConsumer".to_owned()),
        ..StorageClass::default()
    }
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
