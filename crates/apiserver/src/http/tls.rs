//! TLS: the serving certificate, and client certificates where there are authorities for them.

use std::sync::Arc;

use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::{RootCertStore, ServerConfig};

use crate::authn::x509::Verifier;
use crate::config::{Config, ConfigError, Keypair};

/// The certificates in a PEM text.
pub fn certificates(pem: &str, what: &'static str) -> Result<Vec<CertificateDer<'static>>, ConfigError> {
    CertificateDer::pem_slice_iter(pem.as_bytes())
        .collect::<Result<Vec<_>, _>>()
        .map_err(|source| ConfigError::Pem { what, source: Box::new(source) })
}

/// A pool of authorities.
pub fn roots(pem: &str, what: &'static str) -> Result<RootCertStore, ConfigError> {
    let mut roots = RootCertStore::empty();
    for certificate in certificates(pem, what)? {
        roots.add(certificate).map_err(|e| ConfigError::Unusable { what, why: e.to_string() })?;
    }
    Ok(roots)
}

/// A certificate chain and its key.
pub fn keypair(
    pair: &Keypair,
    what: &'static str,
) -> Result<(Vec<CertificateDer<'static>>, PrivateKeyDer<'static>), ConfigError> {
    let chain = certificates(&pair.certificate_pem, what)?;
    let key = PrivateKeyDer::from_pem_slice(pair.key_pem.as_bytes())
        .map_err(|source| ConfigError::Pem { what, source: Box::new(source) })?;
    Ok((chain, key))
}

/// Checks client certificates; `None` without authorities.
pub fn client_verifier(config: &Config) -> Result<Option<Verifier>, ConfigError> {
    const WHAT: &str = "the client CA";
    if config.client_ca_pem.is_empty() {
        return Ok(None);
    }
    let roots = roots(&config.client_ca_pem, WHAT)?;
    Verifier::new(roots).map(Some).map_err(|e| ConfigError::Unusable { what: WHAT, why: e.to_string() })
}

/// For the listener: HTTP/2 or HTTP/1.1 by ALPN.
pub fn server_config(config: &Config, clients: Option<&Verifier>) -> Result<Arc<ServerConfig>, ConfigError> {
    const WHAT: &str = "the serving certificate";
    let (chain, key) = keypair(&config.serving, WHAT)?;
    let unusable = |e: rustls::Error| ConfigError::Unusable { what: WHAT, why: e.to_string() };
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let builder = ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .map_err(unusable)?;
    let builder = match clients {
        Some(verifier) => builder.with_client_cert_verifier(verifier.for_handshake()),
        None => builder.with_no_client_auth(),
    };
    let mut tls = builder.with_single_cert(chain, key).map_err(unusable)?;
    tls.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
    Ok(Arc::new(tls))
}
