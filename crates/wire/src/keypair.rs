//! Certificate chains with their keys: given as PEM, or read from files that are followed.

use std::path::PathBuf;

use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};

use knarr_reload::Reloaded;

/// A certificate chain and its private key (PKCS#8), both in PEM.
#[derive(Clone, Default, PartialEq, Eq, Hash)]
pub struct Keypair {
    pub certificate_pem: String,
    pub key_pem: String,
}

/// A configuration error.
#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    #[error("{what} is not valid PEM")]
    Pem {
        what: &'static str,
        #[source]
        source: Box<dyn std::error::Error + Send + Sync>,
    },
    #[error("{what} holds nothing usable: {why}")]
    Unusable { what: &'static str, why: String },
}

impl ConfigError {
    /// Returns the message with that of its cause.
    pub fn in_full(&self) -> String {
        match std::error::Error::source(self) {
            Some(source) => format!("{self}: {source}"),
            None => self.to_string(),
        }
    }
}

/// Parses the certificates in a PEM text.
pub fn certificates(pem: &str, what: &'static str) -> Result<Vec<CertificateDer<'static>>, ConfigError> {
    CertificateDer::pem_slice_iter(pem.as_bytes())
        .collect::<Result<Vec<_>, _>>()
        .map_err(|source| ConfigError::Pem { what, source: Box::new(source) })
}

/// Parses a certificate chain and its key.
pub fn keypair(
    pair: &Keypair,
    what: &'static str,
) -> Result<(Vec<CertificateDer<'static>>, PrivateKeyDer<'static>), ConfigError> {
    let chain = certificates(&pair.certificate_pem, what)?;
    let key = PrivateKeyDer::from_pem_slice(pair.key_pem.as_bytes())
        .map_err(|source| ConfigError::Pem { what, source: Box::new(source) })?;
    Ok((chain, key))
}

/// Returns the value that `make` creates from the pair in the files, which are then followed, or else from the given
/// pair; `None` without either.
pub fn follow<T: Send + Sync>(
    given: Option<&Keypair>,
    files: Option<&(PathBuf, PathBuf)>,
    what: &'static str,
    make: impl Fn(&Keypair) -> Result<T, ConfigError> + Send + Sync + 'static,
) -> Result<Option<Reloaded<T>>, ConfigError> {
    if let Some((certificate, key)) = files {
        let parse = move |texts: &[Vec<u8>]| {
            let text = |at: usize| knarr_reload::text(texts.get(at).map(Vec::as_slice).unwrap_or_default());
            let pair = Keypair { certificate_pem: text(0)?.to_owned(), key_pem: text(1)?.to_owned() };
            make(&pair).map_err(|e| e.in_full())
        };
        let opened = Reloaded::open(vec![certificate.clone(), key.clone()], parse);
        return opened.map(Some).map_err(|why| ConfigError::Unusable { what, why });
    }
    given.map(|pair| make(pair).map(Reloaded::fixed)).transpose()
}
