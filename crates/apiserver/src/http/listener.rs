//! Answers what comes over the network: whose connection it is, and when a connection takes no further requests.

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use http::{Request, Response, Version};
use hyper::body::Incoming;
use knarr_serving::{CloseConnection, Service};
use rustls::ServerConfig;
use rustls::pki_types::CertificateDer;
use tokio::net::TcpListener;

use super::body::Body;
use crate::authn::x509::{Identity, Refused};
use crate::metrics::Metric;
use crate::pipeline;
use crate::server::Inner;

/// Who a connection's client certificate stands for.
#[derive(Clone, Default)]
pub struct Certificate {
    /// As a client; `None` without a certificate, or without authorities for them.
    pub client: Option<Result<Identity, Arc<Refused>>>,
    /// The common name of a proxy that may speak for its clients.
    pub proxy: Option<String>,
    pub peer: Option<IpAddr>,
}

pub async fn serve(server: Arc<Inner>, listener: TcpListener) {
    let (limits, stop) = (server.config.connection_limits.clone(), server.stop.clone());
    knarr_serving::serve(Arc::new(Network(server)), listener, limits, stop).await;
}

struct Network(Arc<Inner>);

impl Service for Network {
    type Peer = Certificate;
    type Body = Body;

    fn tls(&self) -> Arc<ServerConfig> {
        Arc::clone(&self.0.tls.get(&*self.0.clock).server)
    }

    fn peer(&self, address: SocketAddr, chain: Option<&[CertificateDer<'_>]>) -> Certificate {
        let settings = self.0.tls.get(&*self.0.clock);
        let mut certificate = settings.identify(chain, self.0.clock.now());
        certificate.peer = Some(address.ip());
        certificate
    }

    fn is_certified(&self, certificate: &Certificate) -> bool {
        certificate.proxy.is_some() || certificate.client.as_ref().is_some_and(Result::is_ok)
    }

    async fn answer(&self, peer: Certificate, request: Request<Incoming>) -> Response<Body> {
        let chance = self.0.config.goaway_chance;
        // So that clients of several servers spread anew.
        let leave = chance > 0.0 && request.version() == Version::HTTP_2 && fastrand::f64() < chance;
        let mut response = pipeline::serve(Arc::clone(&self.0), request, peer).await;
        if leave && response.extensions().get::<CloseConnection>().is_none() {
            response.extensions_mut().insert(CloseConnection::WhenDone);
        }
        response
    }

    fn handshake_failed(&self) {
        self.0.metrics.increment(Metric::TlsHandshakeErrors, &[]);
    }
}
