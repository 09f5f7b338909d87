//! Decides which certificates of servers and clients are accepted, and returns Go's error texts for the others.

mod any_certificate;
mod chain;
mod client_verifier;
mod p521;
mod roots;
mod verifier;
mod words;

pub use any_certificate::AnyCertificate;
pub use client_verifier::client_verifier;
pub use p521::provider;
pub use roots::Roots;
pub use verifier::verifier;
pub use words::{certificate_words, tls_words};

use rustls::client::WantsClientCert;
use rustls::{ClientConfig, ConfigBuilder};

/// Starts a client's configuration that trusts these authorities.
pub fn trusting(roots: Roots) -> Result<ConfigBuilder<ClientConfig, WantsClientCert>, rustls::Error> {
    let builder = ClientConfig::builder_with_provider(provider()).with_safe_default_protocol_versions()?;
    Ok(builder.dangerous().with_custom_certificate_verifier(verifier(roots)?))
}

/// Starts a client's configuration that does not check the server's certificate, for users who have requested
/// that.
pub fn trusting_anybody() -> Result<ConfigBuilder<ClientConfig, WantsClientCert>, rustls::Error> {
    let builder = ClientConfig::builder_with_provider(provider()).with_safe_default_protocol_versions()?;
    Ok(builder.dangerous().with_custom_certificate_verifier(std::sync::Arc::new(AnyCertificate(provider()))))
}
