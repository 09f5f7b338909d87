//! The life of a request with all three controllers, in simulated time.

use std::error::Error;
use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::api::authorization::v1::SubjectAccessReview;
use k8s_openapi::api::certificates::v1::CertificateSigningRequest;
use k8s_openapi::api::core::v1::{Event, Node};
use k8s_openapi::api::discovery::v1::EndpointSlice;
use knarr_api::certificates::signers::{self, AUTO_APPROVAL, SERVING_ADDRESSES};
use knarr_api::kind::Kind;

use super::testing::{csr, node, serving_request};
use super::{CertificateSigner, approver, cleaner, signer};
use crate::testing::World;

#[derive(Debug)]
struct Stamp;

impl CertificateSigner for Stamp {
    fn sign(
        &self,
        _: &str,
        _: &[u8],
        usages: &[String],
        lifetime: Duration,
        _: Timestamp,
    ) -> Result<String, Box<dyn Error + Send + Sync>> {
        Ok(format!("{} for {} days", usages.join(", "), lifetime.as_secs() / 86_400))
    }
}

fn world() -> World {
    let resources = [
        CertificateSigningRequest::RESOURCE,
        Node::RESOURCE,
        SubjectAccessReview::RESOURCE,
        EndpointSlice::RESOURCE,
        Event::RESOURCE,
    ];
    let mut world = World::new(&resources);
    world.certificate_signer = Some(Arc::new(Stamp));
    for descriptor in [&approver::DESCRIPTOR, &signer::DESCRIPTOR, &cleaner::DESCRIPTOR] {
        world.start(descriptor);
    }
    world
}

fn request(world: &World, name: &str, names: &[&str]) {
    let pem = serving_request("n1", names);
    let mut csr = csr(name, signers::KUBELET_SERVING, pem, "system:node:n1", &["system:nodes"]);
    csr.metadata.creation_timestamp = None;
    world.api.add(&csr);
}

fn certificate(world: &World, name: &str) -> Option<String> {
    let csr = world.api.get::<CertificateSigningRequest>("", name)?;
    Some(String::from_utf8(csr.status?.certificate?.0).unwrap())
}

#[tokio::test(start_paused = true)]
async fn a_nodes_request_is_approved_signed_and_forgotten() {
    let world = world();
    request(&world, "a", &["n1"]);
    world.pass(1.0).await;
    assert_eq!(certificate(&world, "a").as_deref(), Some("digital signature, server auth for 365 days"));
    let csr = world.api.get::<CertificateSigningRequest>("", "a").unwrap();
    let conditions = csr.status.unwrap().conditions.unwrap();
    assert_eq!(conditions.len(), 1);
    assert_eq!(
        (conditions[0].type_.as_str(), conditions[0].reason.as_deref()),
        ("Approved", Some("AutoApproved"))
    );
    world.pass(3590.0).await;
    assert!(world.api.get::<CertificateSigningRequest>("", "a").is_some());
    world.pass(20.0).await;
    assert!(world.api.get::<CertificateSigningRequest>("", "a").is_none());
}

#[tokio::test(start_paused = true)]
async fn a_request_for_an_address_waits_until_the_address_is_verified() {
    let world = world();
    request(&world, "a", &["n1", "10.0.0.1"]);
    // The addresses in the node's own status are not enough.
    world.api.add(&node("n1", &[("InternalIP", "10.0.0.1")]));
    world.pass(5.0).await;
    assert_eq!(certificate(&world, "a"), None);
    let csr = world.api.get::<CertificateSigningRequest>("", "a").unwrap();
    let conditions = csr.status.unwrap().conditions.unwrap();
    let [condition] = &conditions[..] else { panic!("{conditions:?}") };
    assert_eq!((condition.type_.as_str(), condition.status.as_str()), (AUTO_APPROVAL, "False"));
    let message = condition.message.as_deref().unwrap();
    assert!(message.contains("nobody vouches for the address 10.0.0.1"), "{message}");
    assert_eq!(world.events(), [format!("a NotVouchedFor {message}")]);
    world.api.edit::<Node>("", "n1", |n| {
        let annotations = n.metadata.annotations.get_or_insert_default();
        annotations.insert(SERVING_ADDRESSES.to_owned(), "10.0.0.1".to_owned());
    });
    world.pass(1.0).await;
    let csr = world.api.get::<CertificateSigningRequest>("", "a").unwrap();
    assert!(certificate(&world, "a").is_some(), "{:?}", csr.status);
}

#[tokio::test(start_paused = true)]
async fn undecided_requests_are_deleted_after_a_day() {
    let world = world();
    request(&world, "a", &["somebody-else"]);
    world.pass(86_390.0).await;
    assert!(world.api.get::<CertificateSigningRequest>("", "a").is_some());
    world.pass(20.0).await;
    assert!(world.api.get::<CertificateSigningRequest>("", "a").is_none());
}
