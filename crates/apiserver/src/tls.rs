//! TLS: the serving certificate, and client certificates if client CAs are configured.

use std::path::PathBuf;
use std::sync::Arc;

use knarr_tls::Roots;
use rustls::ServerConfig;
use rustls::pki_types::CertificateDer;

use crate::config::Config;
use knarr_auth::authn::x509::Certificate;
use knarr_auth::authn::x509::Verifier;
use knarr_reload::Reloaded;
use knarr_wire::keypair::{ConfigError, Keypair, certificates, keypair};

/// Parses a pool of CA certificates.
fn roots(pem: &str, what: &'static str) -> Result<Roots, ConfigError> {
    let mut roots = Roots::empty();
    for certificate in certificates(pem, what)? {
        roots.add(certificate).map_err(|e| ConfigError::Unusable { what, why: e.to_string() })?;
    }
    Ok(roots)
}

/// The TLS settings of handshakes and client certificates; rebuilt when a file changes.
pub struct Tls {
    pub server: Arc<ServerConfig>,
    /// Verifies client certificates.
    pub clients: Option<Verifier>,
    /// Verifies the certificates of authenticating proxies (front-proxy).
    pub proxies: Option<Verifier>,
}

impl Tls {
    /// Returns whom the certificate identifies, as a client and as a proxy.
    pub fn identify(&self, chain: Option<&[CertificateDer<'_>]>, now: jiff::Timestamp) -> Certificate {
        let Some(chain) = chain else { return Certificate::default() };
        let proxy = self.proxies.as_ref().and_then(|v| v.identify(chain, now).ok());
        let client = self.clients.as_ref().map(|v| v.identify(chain, now).map_err(Arc::new));
        Certificate { client, proxy, peer: None }
    }
}

/// Opens the files of the serving certificate, the client CA and the front-proxy CA, and follows their changes.
pub fn open(config: &Config) -> Result<Reloaded<Tls>, ConfigError> {
    let optional = |path: &Option<PathBuf>| path.iter().cloned().collect::<Vec<_>>();
    let serving: Vec<PathBuf> =
        config.serving_files.iter().flat_map(|(c, k)| [c.clone(), k.clone()]).collect();
    let clients = optional(&config.client_ca_file);
    let proxies = optional(&config.authentication.request_header.client_ca_file);
    let files = [serving.clone(), clients.clone(), proxies.clone()].concat();
    let given = config.clone();
    let make = move |texts: &[Vec<u8>]| {
        let mut texts = texts.iter();
        let mut next = |files: &[PathBuf], given: &str| -> Result<String, String> {
            if files.is_empty() {
                return Ok(given.to_owned());
            }
            Ok(knarr_reload::text(texts.next().map(Vec::as_slice).unwrap_or_default())?.to_owned())
        };
        let pair = Keypair {
            certificate_pem: next(&serving, &given.serving.certificate_pem)?,
            key_pem: next(&serving, &given.serving.key_pem)?,
        };
        // The CAs from the file are added to the cluster's own CA.
        let mut client_ca = next(&clients, "")?;
        client_ca.push('\n');
        client_ca.push_str(&given.client_ca_pem);
        let clients = verifier(client_ca.trim(), "the client CA")?;
        let proxy_ca = next(&proxies, &given.authentication.request_header.client_ca_pem)?;
        let proxies = verifier(&proxy_ca, "the request header CA")?;
        let server = server_config(&pair, clients.as_ref().or(proxies.as_ref())).map_err(|e| e.in_full())?;
        Ok(Tls { server, clients, proxies })
    };
    if files.is_empty() && config.serving.certificate_pem.is_empty() {
        // The server is used in-process only.
        let server = Arc::new(none().map_err(|e| unusable("TLS", e))?);
        return Ok(Reloaded::fixed(Tls { server, clients: None, proxies: None }));
    }
    if files.is_empty() {
        return make(&[]).map(Reloaded::fixed).map_err(|why| ConfigError::Unusable { what: "TLS", why });
    }
    Reloaded::open(files, make).map_err(|why| ConfigError::Unusable { what: "TLS", why })
}

fn unusable(what: &'static str, error: rustls::Error) -> ConfigError {
    ConfigError::Unusable { what, why: error.to_string() }
}

/// Creates a certificate verifier; `None` without CAs.
fn verifier(pem: &str, what: &'static str) -> Result<Option<Verifier>, String> {
    if pem.is_empty() {
        return Ok(None);
    }
    let roots = roots(pem, what).map_err(|e| e.in_full())?;
    Verifier::new(roots).map(Some).map_err(|e| format!("{what}: {e}"))
}

/// Returns a TLS configuration without a certificate.
fn none() -> Result<ServerConfig, rustls::Error> {
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let builder = ServerConfig::builder_with_provider(provider).with_safe_default_protocol_versions()?;
    Ok(builder
        .with_no_client_auth()
        .with_cert_resolver(Arc::new(rustls::server::ResolvesServerCertUsingSni::new())))
}

/// Returns the TLS configuration of the listener: HTTP/2 or HTTP/1.1 by ALPN.
fn server_config(serving: &Keypair, clients: Option<&Verifier>) -> Result<Arc<ServerConfig>, ConfigError> {
    const WHAT: &str = "the serving certificate";
    let (chain, key) = keypair(serving, WHAT)?;
    let unusable = |e: rustls::Error| unusable(WHAT, e);
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
