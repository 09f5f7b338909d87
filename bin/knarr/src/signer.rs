//! Keys that controllers sign with: certificates of approved requests, and tokens of service accounts.

use std::error::Error;
use std::fmt;
use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result};
use knarr_api::certificates::signers;
use rcgen::KeyPair;

use crate::certificate::{self, Authority, Usages, Validity};
use crate::private_files::read;

/// An authority's certificate and key.
pub struct SigningKey {
    certificate_pem: String,
    key: KeyPair,
}

impl SigningKey {
    pub fn open(certificate: &Path, key: &Path) -> Result<Self> {
        let certificate_pem = read(certificate)?;
        let of_key = || format!("{} is no private key", key.display());
        let key = KeyPair::from_pem(&read(key)?).with_context(of_key)?;
        certificate::check_pair(&certificate_pem, &key).with_context(|| certificate.display().to_string())?;
        Ok(Self { certificate_pem, key })
    }
}

/// The authorities, by the certificates that they sign.
pub struct CertificateKeys {
    pub clients: SigningKey,
    /// Signs kubelets' serving certificates; without it the authority of client certificates signs them too.
    pub kubelet_serving: Option<SigningKey>,
}

impl fmt::Debug for CertificateKeys {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CertificateKeys").finish_non_exhaustive()
    }
}

impl knarr_controllers::CertificateSigner for CertificateKeys {
    fn sign(
        &self,
        signer: &str,
        csr_der: &[u8],
        usages: &[String],
        lifetime: Duration,
        now: jiff::Timestamp,
    ) -> Result<String, Box<dyn Error + Send + Sync>> {
        let has = |usage: &str| usages.iter().any(|u| u == usage);
        let usages = Usages {
            key_encipherment: has(signers::KEY_ENCIPHERMENT),
            server: has(signers::SERVER_AUTH),
            client: has(signers::CLIENT_AUTH),
        };
        let own = self.kubelet_serving.as_ref().filter(|_| signer == signers::KUBELET_SERVING);
        let SigningKey { certificate_pem, key } = own.unwrap_or(&self.clients);
        let authority = Authority { certificate_pem, key };
        Ok(certificate::for_request(&authority, csr_der, usages, Validity { from: now, lifetime })?)
    }
}

/// The key that signs service account tokens.
pub struct TokenKey(knarr_apiserver::TokenSigner);

impl TokenKey {
    pub fn open(file: &Path) -> Result<Self> {
        Self::new(&read(file)?).with_context(|| file.display().to_string())
    }

    /// Reads a private key in PEM form.
    pub fn new(pem: &str) -> Result<Self> {
        Ok(Self(knarr_apiserver::TokenSigner::from_pem(pem)?))
    }
}

impl fmt::Debug for TokenKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TokenKey").finish_non_exhaustive()
    }
}

impl knarr_controllers::TokenSigner for TokenKey {
    fn sign(&self, claims: &serde_json::Value) -> Option<String> {
        self.0.sign(claims)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use knarr_controllers::CertificateSigner;
    use rcgen::CertificateParams;
    use rustls::RootCertStore;
    use rustls::client::WebPkiServerVerifier;
    use rustls::client::danger::ServerCertVerifier;
    use rustls::pki_types::pem::PemObject;
    use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
    use rustls::server::WebPkiClientVerifier;

    use super::*;
    use crate::pki::Pki;

    fn roots(pem: &str) -> Arc<RootCertStore> {
        let mut roots = RootCertStore::empty();
        for root in CertificateDer::pem_slice_iter(pem.as_bytes()) {
            roots.add(root.unwrap()).unwrap();
        }
        Arc::new(roots)
    }

    #[test]
    fn clients_take_no_kubelet_for_the_api_server() {
        let folder = std::env::temp_dir().join(format!("knarr-signer-{}", std::process::id()));
        let pki = Pki::open(folder.clone()).unwrap();
        let keys = pki.certificate_signer().unwrap();
        let name = "kubernetes.default.svc";
        let csr = CertificateParams::new(vec![name.to_owned()]).unwrap();
        let csr = csr.serialize_request(&KeyPair::generate().unwrap()).unwrap();
        let issue = |signer: &str, usage: &str| {
            let hour = Duration::from_secs(3600);
            let pem =
                keys.sign(signer, csr.der(), &[usage.to_owned()], hour, jiff::Timestamp::now()).unwrap();
            CertificateDer::from_pem_slice(pem.as_bytes()).unwrap()
        };
        let provider = || Arc::new(rustls::crypto::ring::default_provider());
        let serving = issue(signers::KUBELET_SERVING, signers::SERVER_AUTH);
        let serves = |trust: &str| {
            let verifier =
                WebPkiServerVerifier::builder_with_provider(roots(trust), provider()).build().unwrap();
            let name = ServerName::try_from(name).unwrap();
            verifier.verify_server_cert(&serving, &[], &name, &[], UnixTime::now()).is_ok()
        };
        assert!(!serves(pki.ca_pem()), "kubeconfigs and pods trust this authority");
        assert!(serves(&pki.kubelet_trust().unwrap()));
        let client = issue(signers::KUBE_APISERVER_CLIENT_KUBELET, signers::CLIENT_AUTH);
        let verifier =
            WebPkiClientVerifier::builder_with_provider(roots(pki.ca_pem()), provider()).build().unwrap();
        verifier.verify_client_cert(&client, &[], UnixTime::now()).unwrap();
        std::fs::remove_dir_all(&folder).unwrap();
    }
}
