//! Errors at the start of the kubelet's server.

use std::net::SocketAddr;

#[derive(Debug, thiserror::Error)]
pub enum ServerError {
    #[error("cannot listen on {address}")]
    Bind { address: SocketAddr, source: std::io::Error },
    #[error("the kubelet's certificate, key or client CA cannot be read")]
    Pem(#[from] rustls::pki_types::pem::Error),
    #[error("the kubelet's certificate, key or client CA cannot be used")]
    Tls(#[from] rustls::Error),
}
