//! Certificates for the servers of tests.

use std::sync::Arc;

use rcgen::{CertificateParams, DnType, IsCa, Issuer, KeyPair};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::server::WebPkiClientVerifier;
use rustls::{RootCertStore, ServerConfig};

type Error = Box<dyn std::error::Error + Send + Sync>;

/// Returns a server's TLS configuration with a certificate for these names, and the authority that signed it,
/// PEM. With `client_ca_pem`, clients may show certificates of that authority.
pub fn server(names: &[&str], client_ca_pem: Option<&str>) -> Result<(ServerConfig, String), Error> {
    let ca_key = KeyPair::generate()?;
    let mut ca = CertificateParams::new(Vec::new())?;
    ca.is_ca = IsCa::Ca(rcgen::BasicConstraints::Unconstrained);
    ca.distinguished_name.push(DnType::CommonName, "hook-ca");
    let ca_pem = ca.self_signed(&ca_key)?.pem();
    let key = KeyPair::generate()?;
    let names: Vec<String> = names.iter().map(|n| (*n).to_owned()).collect();
    let leaf = CertificateParams::new(names)?.signed_by(&key, &Issuer::new(ca, ca_key))?;
    let key = PrivateKeyDer::try_from(key.serialize_der())?;
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let builder =
        ServerConfig::builder_with_provider(Arc::clone(&provider)).with_safe_default_protocol_versions()?;
    let builder = match client_ca_pem {
        None => builder.with_no_client_auth(),
        Some(pem) => {
            let mut roots = RootCertStore::empty();
            roots.add(CertificateDer::from_pem_slice(pem.as_bytes())?)?;
            let clients = WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider);
            builder.with_client_cert_verifier(clients.allow_unauthenticated().build()?)
        }
    };
    Ok((builder.with_single_cert(vec![leaf.der().clone()], key)?, ca_pem))
}

/// Returns a server's TLS configuration with a certificate that is its own authority, like those of `openssl
/// req -x509`, and that certificate, PEM.
pub fn own_authority(names: &[&str]) -> Result<(ServerConfig, String), Error> {
    let key = KeyPair::generate()?;
    let names: Vec<String> = names.iter().map(|n| (*n).to_owned()).collect();
    let mut params = CertificateParams::new(names)?;
    params.is_ca = IsCa::Ca(rcgen::BasicConstraints::Unconstrained);
    let certificate = params.self_signed(&key)?;
    let key = PrivateKeyDer::try_from(key.serialize_der())?;
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let builder = ServerConfig::builder_with_provider(provider).with_safe_default_protocol_versions()?;
    let config = builder.with_no_client_auth().with_single_cert(vec![certificate.der().clone()], key)?;
    Ok((config, certificate.pem()))
}
