//! The certificate that the kubelet's server shows, which can be exchanged while it runs.

use std::sync::{Arc, PoisonError, RwLock};

use jiff::Timestamp;
use knarr_api::certificates::request::not_after;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::server::{ClientHello, ResolvesServerCert};
use rustls::sign::CertifiedKey;

use super::ServerError;

/// A certificate with its chain and key. Handshakes after an exchange show the new one.
#[derive(Debug)]
pub struct ServingCertificate(RwLock<Shown>);

#[derive(Debug)]
struct Shown {
    key: Arc<CertifiedKey>,
    not_after: Option<Timestamp>,
}

impl ServingCertificate {
    /// From PEM.
    pub fn new(chain: &str, key: &str) -> Result<Arc<Self>, ServerError> {
        Ok(Arc::new(Self(RwLock::new(Shown::read(chain, key)?))))
    }

    /// From now on shows this one; what cannot be used leaves the old one in place.
    pub fn exchange(&self, chain: &str, key: &str) -> Result<(), ServerError> {
        let next = Shown::read(chain, key)?;
        *self.0.write().unwrap_or_else(PoisonError::into_inner) = next;
        Ok(())
    }

    /// When the certificate ends.
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
