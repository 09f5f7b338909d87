//! Connections to kubelets and pods.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http_body_util::Full;
use hyper::client::conn::http1::{SendRequest, handshake};
use hyper_util::rt::TokioIo;
use knarr_apimachinery::clock::Clock;
use knarr_tls::{Roots, tls_words};
use rustls::ClientConfig;
use rustls::client::Resumption;
use rustls::client::danger::ServerCertVerifier;
use rustls::pki_types::ServerName;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;

use super::Backend;
use super::node_identity::NodeIdentity;
use crate::config::Config;
use knarr_outgoing::dial::dial;
use knarr_reload::Reloaded;
use knarr_wire::keypair::{self, ConfigError, Keypair};

const WHAT: &str = "the kubelet client certificate";
/// The timeouts of upstream's transport. Source: client-go, transport/cache.go.
const CONNECT_WITHIN: Duration = Duration::from_secs(30);
const TLS_WITHIN: Duration = Duration::from_secs(10);

/// The TLS settings for calls of kubelets: our client certificate, and a verifier. A kubelet's certificate must be
/// signed by the cluster's CA and name the node.
pub struct Kubelets {
    client: ClientConfig,
    verifier: Arc<dyn ServerCertVerifier>,
}

impl Kubelets {
    /// Loads the client certificate and follows its file, if it comes from one.
    pub fn open(config: &Config) -> Result<Option<Reloaded<Self>>, ConfigError> {
        let ca = config.kubelet_ca_pem.clone();
        let (given, files) = (config.kubelet_client.as_ref(), config.kubelet_client_files.as_ref());
        keypair::follow(given, files, WHAT, move |pair| Self::new(pair, &ca))
    }

    fn new(pair: &Keypair, ca: &str) -> Result<Self, ConfigError> {
        let (chain, key) = keypair::keypair(pair, WHAT)?;
        let unusable = |e: &dyn std::fmt::Display| ConfigError::Unusable { what: WHAT, why: e.to_string() };
        let roots = || Roots::from_pem(ca.as_bytes()).map_err(|e| unusable(&e));
        let verifier = knarr_tls::verifier(roots()?).map_err(|e| unusable(&e))?;
        let mut client = knarr_tls::trusting(roots()?)
            .map_err(|e| unusable(&e))?
            .with_client_auth_cert(chain, key)
            .map_err(|e| unusable(&e))?;
        // A resumed session would skip the check that the certificate belongs to the node.
        client.resumption = Resumption::disabled();
        Ok(Self { client, verifier })
    }

    async fn connect(
        &self,
        node: &str,
        address: &str,
        stream: TcpStream,
    ) -> io::Result<TlsStream<TcpStream>> {
        let verifier = NodeIdentity::new(Arc::clone(&self.verifier), node, address);
        let mut client = self.client.clone();
        client.dangerous().set_certificate_verifier(Arc::new(verifier));
        let name = ServerName::try_from(address.to_owned()).map_err(io::Error::other)?;
        TlsConnector::from(Arc::new(client)).connect(name, stream).await
    }
}

/// Go's error for a TLS handshake that exceeds its timeout.
const TLS_TOO_LONG: &str = "net/http: TLS handshake timeout";

/// Opens connections to backends.
pub struct Dialer {
    pub clock: Arc<dyn Clock>,
    /// `None` without a client certificate for kubelets.
    pub kubelets: Option<Reloaded<Kubelets>>,
}

impl Dialer {
    /// Returns the result of the step, or an error if it exceeds its timeout.
    async fn within<T>(
        &self,
        limit: Duration,
        too_long: impl FnOnce() -> String,
        step: impl Future<Output = Result<T, String>>,
    ) -> Result<T, String> {
        tokio::select! {
            done = step => done,
            () = self.clock.sleep(limit) => Err(too_long()),
        }
    }

    /// Returns a connection ready for one request, and the authority for its Host header. Error texts are those of
    /// Go's dialer.
    pub async fn connect(&self, backend: &Backend) -> Result<(SendRequest<Full<Bytes>>, String), String> {
        let (Backend::Kubelet { address, port, .. }
        | Backend::Plain { address, port }
        | Backend::Tls { address, port, .. }) = backend;
        let authority = backend.authority();
        let too_long = || format!("dial tcp {authority}: i/o timeout");
        let stream = self.within(CONNECT_WITHIN, too_long, dial(address, *port)).await?;
        let _ = stream.set_nodelay(true);
        match backend {
            Backend::Plain { .. } => Ok((speak(stream).await?, authority)),
            Backend::Tls { server_name, tls, .. } => {
                let name = ServerName::try_from(server_name.clone()).map_err(|e| e.to_string())?;
                let connected = async {
                    let stream = TlsConnector::from(Arc::clone(tls)).connect(name, stream).await;
                    stream.map_err(|e| tls_words(&e, server_name))
                };
                let stream = self.within(TLS_WITHIN, || TLS_TOO_LONG.to_owned(), connected).await?;
                Ok((speak(stream).await?, authority))
            }
            Backend::Kubelet { node, .. } => {
                let kubelets = self.kubelets.as_ref().ok_or("no kubelet client certificate is configured")?;
                let kubelets = kubelets.get(&*self.clock);
                let connected = async {
                    let stream = kubelets.connect(node, address, stream).await;
                    stream.map_err(|e| tls_words(&e, address))
                };
                let stream = self.within(TLS_WITHIN, || TLS_TOO_LONG.to_owned(), connected).await?;
                Ok((speak(stream).await?, authority))
            }
        }
    }
}

async fn speak<S>(stream: S) -> Result<SendRequest<Full<Bytes>>, String>
where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let (sender, connection) = handshake(TokioIo::new(stream)).await.map_err(|e| e.to_string())?;
    tokio::spawn(async move {
        // A connection error also appears in the response that is read from it.
        let _ = connection.with_upgrades().await;
    });
    Ok(sender)
}
