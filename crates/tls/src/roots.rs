//! The certificate authorities that a client trusts.

use rustls::RootCertStore;
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::{self, PemObject};

/// Trusted certificates: those of authorities, and servers' own.
#[derive(Debug, Clone)]
pub struct Roots {
    pub(crate) store: RootCertStore,
    pub(crate) certificates: Vec<CertificateDer<'static>>,
}

/// Why a bundle of certificates cannot be used.
#[derive(Debug)]
pub enum RootsError {
    Pem(pem::Error),
    Certificate(rustls::Error),
}

impl Roots {
    pub fn empty() -> Self {
        Self { store: RootCertStore::empty(), certificates: Vec::new() }
    }

    /// Parses the certificates of a PEM text.
    pub fn from_pem(text: &[u8]) -> Result<Self, RootsError> {
        let mut roots = Self::empty();
        for certificate in CertificateDer::pem_slice_iter(text) {
            roots.add(certificate.map_err(RootsError::Pem)?).map_err(RootsError::Certificate)?;
        }
        Ok(roots)
    }

    /// Returns the machine's roots, as far as they can be read.
    pub fn of_the_machine() -> Self {
        let mut roots = Self::empty();
        for certificate in rustls_native_certs::load_native_certs().certs {
            // A machine's bundle may contain certificates that cannot be used.
            let _ = roots.add(certificate);
        }
        roots
    }

    /// Adds a trusted certificate.
    pub fn add(&mut self, certificate: CertificateDer<'static>) -> Result<(), rustls::Error> {
        self.store.add(certificate.clone())?;
        self.certificates.push(certificate);
        Ok(())
    }

    pub fn is_empty(&self) -> bool {
        self.certificates.is_empty()
    }
}

impl std::fmt::Display for RootsError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Pem(error) => error.fmt(f),
            Self::Certificate(error) => error.fmt(f),
        }
    }
}

impl std::error::Error for RootsError {}
