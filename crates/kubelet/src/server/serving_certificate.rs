//! The certificate of the kubelet's server, which can be replaced while the server runs.

use std::sync::{Arc, PoisonError, RwLock};

use jiff::Timestamp;
use knarr_api::certificates::request::not_after;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::server::{ClientHello, ResolvesServerCert};
use rustls::sign::CertifiedKey;

use super::ServerError;

/// A certificate with its chain and key. Handshakes after a replacement use the new one.
#[derive(Debug)]
pub struct ServingCertificate(RwLock<Shown>);

#[derive(Debug)]
struct Shown {
    key: Arc<CertifiedKey>,
    not_after: Option<Timestamp>,
}

impl ServingCertificate {
    /// Reads the chain and the key from PEM.
    pub fn new(chain: &str, key: &str) -> Result<Arc<Self>, ServerError> {
        Ok(Arc::new(Self(RwLock::new(Shown::read(chain, key)?))))
    }

    /// Replaces the certificate. If the new one cannot be used, the old one stays.
    pub fn exchange(&self, chain: &str, key: &str) -> Result<(), ServerError> {
        let next = Shown::read(chain, key)?;
        *self.0.write().unwrap_or_else(PoisonError::into_inner) = next;
        Ok(())
    }

    /// Returns when the certificate expires.
    pub fn not_after(&self) -> Option<Timestamp> {
        self.0.read().unwrap_or_else(PoisonError::into_inner).not_after
    }
}

impl Shown {
    fn read(chain: &str, key: &str) -> Result<Self, ServerError> {
        Ok(Self { key: certified(chain, key)?, not_after: not_after(chain.as_bytes()) })
    }
}

fn certified(chain: &str, key: &str) -> Result<Arc<CertifiedKey>, ServerError> {
    let chain: Vec<CertificateDer<'static>> =
        CertificateDer::pem_slice_iter(chain.as_bytes()).collect::<Result<_, _>>()?;
    let key = PrivateKeyDer::from_pem_slice(key.as_bytes())?;
    Ok(Arc::new(CertifiedKey::from_der(chain, key, &rustls::crypto::ring::default_provider())?))
}

impl ResolvesServerCert for ServingCertificate {
    fn resolve(&self, _: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        Some(Arc::clone(&self.0.read().unwrap_or_else(PoisonError::into_inner).key))
    }
}
