//! New connections to webhooks, with Go's error texts.

use std::sync::{Arc, OnceLock};

use bytes::Bytes;
use http_body_util::Full;
use hyper::client::conn::http1::{SendRequest, handshake};
use hyper_util::rt::TokioIo;
use knarr_tls::{Roots, tls_words};
use rustls::ClientConfig;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio_rustls::TlsConnector;

use super::error::Failure;
use super::pool::Connection;
use super::target::{Place, Target};
use crate::dial::dial;

/// Opens a connection. It uses HTTP/1.1, so that concurrent calls reach different backends.
pub async fn connect(
    tls: &Option<Arc<ClientConfig>>,
    place: &Place,
    host: &str,
    port: u16,
) -> Result<Connection, Failure> {
    let stream = dial(host, port).await.map_err(Failure::Connect)?;
    let _ = stream.set_nodelay(true);
    let sender = match tls {
        None => start(stream).await?,
        Some(tls) => {
            let name = ServerName::try_from(place.server_name.clone())
                .map_err(|e| Failure::Connect(format!("invalid server name: {e}")))?;
            let stream = TlsConnector::from(Arc::clone(tls)).connect(name, stream).await;
            let stream = stream.map_err(|e| Failure::Connect(tls_words(&e, &place.server_name)))?;
            start(stream).await?
        }
    };
    Ok(Connection { sender })
}

async fn start<S>(stream: S) -> Result<SendRequest<Full<Bytes>>, Failure>
where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let (sender, connection) = handshake(TokioIo::new(stream)).await.map_err(|e| Failure::broken(&e))?;
    tokio::spawn(async move {
        // A connection error also appears in the response that is read from it.
        let _ = connection.await;
    });
    Ok(sender)
}

/// Returns the TLS configuration with the CAs and credentials of a target.
pub fn tls_config(target: &Target) -> Result<ClientConfig, Failure> {
    let builder = match target.insecure {
        true => knarr_tls::trusting_anybody(),
        false => knarr_tls::trusting(authorities(&target.ca_pem)?),
    };
    let wrong = |e: &dyn std::fmt::Display| Failure::Connect(e.to_string());
    let builder = builder.map_err(|e| wrong(&e))?;
    let own = target.identity.as_ref().map(|identity| (&identity.client_certificate, &identity.client_key));
    let mut config = match own {
        Some((Some(certificate), Some(key))) => {
            let chain = CertificateDer::pem_slice_iter(certificate).collect::<Result<_, _>>();
            let key = PrivateKeyDer::from_pem_slice(key).map_err(|e| wrong(&e))?;
            builder.with_client_auth_cert(chain.map_err(|e| wrong(&e))?, key).map_err(|e| wrong(&e))?
        }
        _ => builder.with_no_client_auth(),
    };
    config.alpn_protocols = vec![b"http/1.1".to_vec()];
    Ok(config)
}

fn authorities(pem: &[u8]) -> Result<Roots, Failure> {
    if pem.is_empty() {
        // The system's CAs are read once: they do not change with the cluster's configuration.
        static SYSTEM: OnceLock<Roots> = OnceLock::new();
        return Ok(SYSTEM.get_or_init(Roots::of_the_machine).clone());
    }
    let unusable =
        || Failure::Connect("unable to load root certificates: unable to parse bytes as PEM block".into());
    let roots = Roots::from_pem(pem).map_err(|_| unusable())?;
    if roots.is_empty() { Err(unusable()) } else { Ok(roots) }
}
