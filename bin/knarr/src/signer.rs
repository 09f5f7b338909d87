//! Keys that controllers sign with: certificates that were asked for, and tokens of service accounts.

use std::error::Error;
use std::fmt;
use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result};
use knarr_api::certificates::signers;
use rcgen::KeyPair;

use crate::certificate::{self, Authority, Usages, Validity};
use crate::pki::read;

/// An authority and its key.
pub struct CertificateKeys {
    certificate_pem: String,
    key: KeyPair,
}

impl CertificateKeys {
    pub fn open(certificate: &Path, key: &Path) -> Result<Self> {
        let certificate_pem = read(certificate)?;
        let of_key = || format!("{} is no private key", key.display());
        let key = KeyPair::from_pem(&read(key)?).with_context(of_key)?;
        certificate::check_pair(&certificate_pem, &key).with_context(|| certificate.display().to_string())?;
        Ok(Self { certificate_pem, key })
    }
}

impl fmt::Debug for CertificateKeys {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CertificateKeys").finish_non_exhaustive()
    }
}

impl knarr_controllers::CertificateSigner for CertificateKeys {
    fn sign(
        &self,
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
        let authority = Authority { certificate_pem: &self.certificate_pem, key: &self.key };
        Ok(certificate::for_request(&authority, csr_der, usages, Validity { from: now, lifetime })?)
    }
}

/// The key of service accounts' tokens.
pub struct TokenKey(knarr_apiserver::TokenSigner);

impl TokenKey {
    pub fn open(file: &Path) -> Result<Self> {
        Self::new(&read(file)?).with_context(|| file.display().to_string())
    }

    /// From a private key, PEM.
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
