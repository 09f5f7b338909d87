//! csrsigning: issues certificates for approved requests to the signers of kubernetes.io.

use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::ByteString;
use k8s_openapi::api::certificates::v1::CertificateSigningRequest;
use knarr_api::certificates::request::CertificateRequest;
use knarr_api::certificates::signers::{self, APPROVED, DENIED, FAILED};
use knarr_api::kind::Kind;
use knarr_client::work_queue::WorkQueue;
use knarr_client::{Error, Lister, Result};

use super::{CertificateSigner, condition, usages_of};
use crate::context::{Context, Descriptor};

pub const DESCRIPTOR: Descriptor = Descriptor {
    name: "certificatesigningrequest-signing-controller",
    run: |cx| Box::pin(async move { run(cx).await }),
};

const WORKERS: usize = 2;
const SHORTEST: Duration = Duration::from_secs(600);

/// What to do with a request.
#[derive(Debug, PartialEq, Eq)]
enum Verdict {
    Sign { der: Vec<u8>, lifetime: Duration },
    Fail(String),
    Leave,
}

async fn run(cx: Arc<Context>) {
    let Some(signer) = cx.options.certificate_signer.clone() else { return };
    let queue: Arc<WorkQueue<String>> = WorkQueue::new(Arc::clone(&cx.clock));
    let requests = cx.informers.informer::<CertificateSigningRequest>();
    let on_request = Arc::clone(&queue);
    requests.add_handler(move |event| {
        if is_due(event.object()) {
            on_request.add(event.object().name().to_owned());
        }
    });
    if !requests.wait_synced().await {
        return;
    }
    let (requests, stop) = (requests.lister(), cx.stop.clone());
    let reconcile = move |name: String| {
        let (cx, requests, signer) = (Arc::clone(&cx), requests.clone(), Arc::clone(&signer));
        async move { reconcile(&cx, &requests, &*signer, &name).await }
    };
    queue.run(DESCRIPTOR.name, WORKERS, stop, reconcile).await;
}

/// Returns whether the request is approved, and neither issued nor failed.
fn is_due(csr: &CertificateSigningRequest) -> bool {
    let has = |type_| signers::has_condition(csr, type_);
    has(APPROVED) && !has(DENIED) && !has(FAILED) && !signers::is_issued(csr)
}

async fn reconcile(
    cx: &Context,
    requests: &Lister<CertificateSigningRequest>,
    signer: &dyn CertificateSigner,
    name: &str,
) -> Result<()> {
    let Some(csr) = requests.get("", name) else { return Ok(()) };
    let mut next = CertificateSigningRequest::clone(&csr);
    let status = next.status.get_or_insert_default();
    match verdict(&csr, cx.settings().certificate_lifetime) {
        Verdict::Leave => return Ok(()),
        Verdict::Fail(message) => {
            let failed = condition(FAILED, "SignerValidationFailure", message, cx.clock.now());
            status.conditions.get_or_insert_default().push(failed);
        }
        Verdict::Sign { der, lifetime } => {
            let signed = signer.sign(&csr.spec.signer_name, &der, usages_of(&csr), lifetime, cx.clock.now());
            let pem = signed.map_err(|e| Error::Protocol(format!("error auto signing csr: {e}")))?;
            status.certificate = Some(ByteString(pem.into_bytes()));
        }
    }
    match cx.client.update_status(&next).await {
        Err(e) if e.is_conflict() || e.is_not_found() => Ok(()),
        other => other.map(drop),
    }
}

fn verdict(csr: &CertificateSigningRequest, longest: Duration) -> Verdict {
    if !is_due(csr) {
        return Verdict::Leave;
    }
    let ours =
        [signers::KUBELET_SERVING, signers::KUBE_APISERVER_CLIENT_KUBELET, signers::KUBE_APISERVER_CLIENT];
    if !ours.contains(&csr.spec.signer_name.as_str()) {
        return Verdict::Leave;
    }
    let request = match CertificateRequest::parse(&csr.spec.request.0) {
        Ok(request) => request,
        Err(error) => return Verdict::Fail(error.to_string()),
    };
    let usages = usages_of(csr);
    let problem = match csr.spec.signer_name.as_str() {
        signers::KUBELET_SERVING => signers::kubelet_serving_problem(&request, usages),
        signers::KUBE_APISERVER_CLIENT_KUBELET => signers::kubelet_client_problem(&request, usages),
        signers::KUBE_APISERVER_CLIENT => signers::client_usages_problem(usages),
        _ => return Verdict::Leave,
    };
    match problem {
        Some(problem) => Verdict::Fail(problem),
        None => Verdict::Sign { der: request.der, lifetime: lifetime(csr.spec.expiration_seconds, longest) },
    }
}

/// Returns the certificate's lifetime; requests that ask for none get `longest`.
fn lifetime(asked_seconds: Option<i32>, longest: Duration) -> Duration {
    let asked = asked_seconds.map(|seconds| Duration::from_secs(u64::try_from(seconds).unwrap_or(0)));
    asked.map_or(longest, |asked| asked.max(SHORTEST).min(longest))
}

#[cfg(test)]
mod tests {
    use super::super::testing::{client_request, csr, decided, serving_request};
    use super::*;

    const LIFETIME: Duration = Duration::from_secs(365 * 86_400);

    fn verdict(csr: &CertificateSigningRequest) -> Verdict {
        super::verdict(csr, LIFETIME)
    }

    #[test]
    fn approved_requests_of_the_known_signers_are_signed() {
        let serving = csr("a", signers::KUBELET_SERVING, serving_request("n1", &["n1"]), "u", &[]);
        assert_eq!(verdict(&serving), Verdict::Leave);
        let approved = decided(serving.clone(), &[APPROVED]);
        assert!(matches!(verdict(&approved), Verdict::Sign { lifetime: LIFETIME, .. }));
        assert_eq!(verdict(&decided(serving.clone(), &[APPROVED, DENIED])), Verdict::Leave);
        assert_eq!(verdict(&decided(serving.clone(), &[APPROVED, FAILED])), Verdict::Leave);
        let mut wrong = approved.clone();
        wrong.spec.signer_name = signers::KUBE_APISERVER_CLIENT.to_owned();
        assert_eq!(
            verdict(&wrong),
            Verdict::Fail("invalid usage for client certificate: server auth".into())
        );
        wrong.spec.signer_name = signers::KUBE_APISERVER_CLIENT_KUBELET.to_owned();
        assert_eq!(verdict(&wrong), Verdict::Fail("DNS subjectAltNames are not allowed".into()));
        wrong.spec.signer_name = "example.com/mine".to_owned();
        assert_eq!(verdict(&wrong), Verdict::Leave);
        let client = csr("a", signers::KUBE_APISERVER_CLIENT_KUBELET, client_request("n1"), "u", &[]);
        assert!(matches!(verdict(&decided(client, &[APPROVED])), Verdict::Sign { .. }));
    }

    #[test]
    fn lifetimes_have_bounds() {
        for (asked, given) in [
            (None, LIFETIME),
            (Some(3600), Duration::from_secs(3600)),
            (Some(1), SHORTEST),
            (Some(-5), SHORTEST),
            (Some(i32::MAX), LIFETIME),
        ] {
            assert_eq!(lifetime(asked, LIFETIME), given, "{asked:?}");
        }
    }
}
