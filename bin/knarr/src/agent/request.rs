//! Certificates from the cluster: creates a request, has it approved, and waits for the certificate.

use std::net::IpAddr;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use k8s_openapi::ByteString;
use k8s_openapi::api::certificates::v1::{
    CertificateSigningRequest, CertificateSigningRequestCondition, CertificateSigningRequestSpec,
};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use knarr_api::certificates::signers::{
    APPROVED, AUTO_APPROVAL, CLIENT_AUTH, DENIED, DIGITAL_SIGNATURE, FAILED, KUBELET_SERVING,
    NODE_USER_PREFIX, NODES_GROUP, SERVER_AUTH,
};
use knarr_api::kind::Kind;
use knarr_client::{Client, Error, Event, Informers, ListOptions};
use rcgen::{CertificateParams, DistinguishedName, DnType, KeyPair, SanType};
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use crate::pki::Credentials;

/// After this time the terminal shows what the agent waits for.
const PATIENCE: Duration = Duration::from_secs(5);
/// How often the approval is retried after a conflict.
const ATTEMPTS: usize = 5;

/// A certificate request.
pub struct Request<'a> {
    pub node: &'a str,
    pub signer: &'static str,
    pub names: &'a [String],
    pub addresses: &'a [IpAddr],
}

/// How the request is approved.
pub enum Approval<'a> {
    /// A controller of the cluster or a person approves it.
    ByOthers,
    /// A controller of the cluster approves it; a request that it leaves to a person is given up.
    ByController,
    /// The agent approves it itself with an administrator's access.
    With(&'a Client),
}

/// The result of a request.
pub enum Obtained {
    Issued(Credentials),
    /// A person would have to approve it, for this reason.
    Referred(String),
}

impl Request<'_> {
    /// Generates a key, requests a certificate for it, and waits for the certificate.
    pub async fn obtain(&self, client: &Client, approval: Approval<'_>) -> Result<Obtained> {
        let key = KeyPair::generate()?;
        let made = client.create(&self.object(&key)?).await.map_err(|error| {
            let advice = match error.status().map(knarr_apimachinery::status::StatusError::code) {
                Some(403) => {
                    ": `knarr kubeconfig --node NAME` on the server writes an access that needs none"
                }
                _ => "",
            };
            let what =
                format!("cannot request a certificate of {} for node {}{advice}", self.signer, self.node);
            anyhow::Error::new(error).context(what)
        })?;
        if let Approval::With(admin) = approval {
            approve(admin, made.name()).await?;
        }
        let waits = !matches!(approval, Approval::ByController);
        Ok(match issued(client, made.name(), waits).await? {
            Ok(certificate) => Obtained::Issued(Credentials { certificate, key: key.serialize_pem() }),
            Err(why) => Obtained::Referred(why),
        })
    }

    pub(super) fn object(&self, key: &KeyPair) -> Result<CertificateSigningRequest> {
        let mut params = CertificateParams::new(self.names)?;
        params.subject_alt_names.extend(self.addresses.iter().map(|ip| SanType::IpAddress(*ip)));
        params.distinguished_name = DistinguishedName::new();
        params.distinguished_name.push(DnType::OrganizationName, NODES_GROUP);
        params.distinguished_name.push(DnType::CommonName, format!("{NODE_USER_PREFIX}{}", self.node));
        let pem = params.serialize_request(key)?.pem()?;
        let authentication = if self.signer == KUBELET_SERVING { SERVER_AUTH } else { CLIENT_AUTH };
        Ok(CertificateSigningRequest {
            metadata: ObjectMeta { generate_name: Some("csr-".to_owned()), ..ObjectMeta::default() },
            spec: CertificateSigningRequestSpec {
                request: ByteString(pem.into_bytes()),
                signer_name: self.signer.to_owned(),
                usages: Some(vec![DIGITAL_SIGNATURE.to_owned(), authentication.to_owned()]),
                ..CertificateSigningRequestSpec::default()
            },
            status: None,
        })
    }
}

async fn approve(admin: &Client, name: &str) -> Result<()> {
    for _ in 0..ATTEMPTS {
        let mut csr = admin.get::<CertificateSigningRequest>("", name).await?;
        let conditions = csr.status.get_or_insert_default().conditions.get_or_insert_default();
        if conditions.iter().any(|c| [APPROVED, DENIED].contains(&c.type_.as_str())) {
            return Ok(());
        }
        conditions.push(CertificateSigningRequestCondition {
            type_: APPROVED.to_owned(),
            status: "True".to_owned(),
            reason: Some("KnarrAgent".to_owned()),
            message: Some("Approved with the access that the node's agent was started with.".to_owned()),
            ..CertificateSigningRequestCondition::default()
        });
        match admin.update_subresource(&csr, "approval").await {
            Err(e) if e.is_conflict() => {}
            // Without the right to approve, another approver is needed.
            Err(Error::Status(status)) if status.code() == 403 => return Ok(()),
            other => return other.map(drop).with_context(|| format!("cannot approve the request {name}")),
        }
    }
    // The writers that caused the conflicts may have approved it too.
    Ok(())
}

/// The state of a request.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Outcome {
    Pending,
    /// Left for a person to approve.
    Referred(String),
    Approved,
    Issued(String),
    Refused(String),
}

fn outcome(csr: &CertificateSigningRequest) -> Outcome {
    let status = csr.status.clone().unwrap_or_default();
    let conditions = status.conditions.unwrap_or_default();
    let of_type = |type_: &str| conditions.iter().find(|c| c.type_ == type_);
    for (type_, word) in [(DENIED, "denied"), (FAILED, "refused by its signer")] {
        if let Some(condition) = of_type(type_) {
            let why =
                condition.message.as_deref().or(condition.reason.as_deref()).unwrap_or("no reason was given");
            return Outcome::Refused(format!("was {word}: {why}"));
        }
    }
    match status.certificate.map(|c| String::from_utf8_lossy(&c.0).into_owned()).filter(|c| !c.is_empty()) {
        Some(certificate) => Outcome::Issued(certificate),
        None if of_type(APPROVED).is_some() => Outcome::Approved,
        None => match of_type(AUTO_APPROVAL).filter(|c| c.status == "False") {
            Some(condition) => Outcome::Referred(condition.message.clone().unwrap_or_default()),
            None => Outcome::Pending,
        },
    }
}

/// Waits for the certificate. If `waits`, also waits for a person's approval; otherwise returns the reason
/// why a person must approve it.
async fn issued(client: &Client, name: &str, waits: bool) -> Result<Result<String, String>> {
    let stop = CancellationToken::new();
    let _stopped_at_the_end = stop.clone().drop_guard();
    let informers = Informers::new(client.clone(), stop);
    let only =
        ListOptions { field_selector: Some(format!("metadata.name={name}")), ..ListOptions::default() };
    let (sender, mut state) = watch::channel(Outcome::Pending);
    informers.selected::<CertificateSigningRequest>(only).add_handler(move |event| {
        let now = match event {
            Event::Deleted(_) => Outcome::Refused("was deleted".to_owned()),
            _ => outcome(event.object()),
        };
        // Without a receiver, the task that waited has ended.
        let _ = sender.send(now);
    });
    let mut hinted = false;
    loop {
        match &*state.borrow_and_update() {
            Outcome::Issued(certificate) => return Ok(Ok(certificate.clone())),
            Outcome::Refused(how) => bail!("the certificate request {name} {how}"),
            Outcome::Referred(why) if !waits => return Ok(Err(why.clone())),
            Outcome::Referred(_) | Outcome::Pending | Outcome::Approved => {}
        }
        tokio::select! {
            changed = state.changed() => changed.context("the watch of the request ended")?,
            () = client.clock().sleep(PATIENCE), if !hinted => {
                hinted = true;
                let hint = match *state.borrow() {
                    Outcome::Approved => "it is approved; its signer must issue it".to_owned(),
                    Outcome::Referred(ref why) => {
                        format!("{why} Approve it with `kubectl certificate approve {name}`")
                    }
                    _ => format!("approve it with `kubectl certificate approve {name}`"),
                };
                println!("  waiting for the certificate request {name}: {hint}");
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use k8s_openapi::api::certificates::v1::CertificateSigningRequestStatus;
    use knarr_api::certificates::request::CertificateRequest;
    use knarr_api::certificates::signers;

    #[test]
    fn requests_are_such_as_their_signers_take() {
        let names = ["n1".to_owned()];
        let request = Request {
            node: "n1",
            signer: KUBELET_SERVING,
            names: &names,
            addresses: &["10.0.0.1".parse().unwrap()],
        };
        let object = request.object(&KeyPair::generate().unwrap()).unwrap();
        let parsed = CertificateRequest::parse(&object.spec.request.0).unwrap();
        let usages = object.spec.usages.unwrap();
        assert_eq!(signers::kubelet_serving_problem(&parsed, &usages), None);
        let signer = signers::KUBE_APISERVER_CLIENT_KUBELET;
        let request = Request { node: "n1", signer, names: &[], addresses: &[] };
        let object = request.object(&KeyPair::generate().unwrap()).unwrap();
        let parsed = CertificateRequest::parse(&object.spec.request.0).unwrap();
        assert_eq!(signers::kubelet_client_problem(&parsed, &object.spec.usages.unwrap()), None);
        assert_eq!(signers::node_name(&parsed), Some("n1"));
    }

    #[test]
    fn outcomes() {
        let csr = |types: &[&str], certificate: &str| {
            let condition = |t: &&str| CertificateSigningRequestCondition {
                type_: (*t).to_owned(),
                message: Some("m".to_owned()),
                ..CertificateSigningRequestCondition::default()
            };
            CertificateSigningRequest {
                status: Some(CertificateSigningRequestStatus {
                    certificate: Some(ByteString(certificate.as_bytes().to_vec())),
                    conditions: Some(types.iter().map(condition).collect()),
                }),
                ..CertificateSigningRequest::default()
            }
        };
        assert_eq!(outcome(&csr(&[], "")), Outcome::Pending);
        assert_eq!(outcome(&csr(&[APPROVED], "")), Outcome::Approved);
        assert_eq!(outcome(&csr(&[APPROVED], "pem")), Outcome::Issued("pem".into()));
        assert_eq!(
            outcome(&csr(&[APPROVED, FAILED], "")),
            Outcome::Refused("was refused by its signer: m".into())
        );
        assert_eq!(outcome(&csr(&[DENIED], "")), Outcome::Refused("was denied: m".into()));
        let mut referred = csr(&[AUTO_APPROVAL], "");
        for condition in referred.status.iter_mut().flat_map(|s| s.conditions.iter_mut().flatten()) {
            condition.status = "False".to_owned();
        }
        assert_eq!(outcome(&referred), Outcome::Referred("m".into()));
        assert_eq!(outcome(&csr(&[AUTO_APPROVAL, APPROVED], "")), Outcome::Approved);
    }
}
