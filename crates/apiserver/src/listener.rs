//! Answers requests from the network: identifies the peer of a connection, and decides when a connection must
//! close.

use std::net::{IpAddr, SocketAddr};
use std::sync::{Arc, Mutex, PoisonError};

use http::{Request, Response, Version};
use hyper::body::Incoming;
use jiff::Timestamp;
use knarr_serving::{CloseConnection, Service};
use rustls::ServerConfig;
use rustls::pki_types::CertificateDer;
use tokio::net::TcpListener;

use crate::pipeline;
use crate::state::State;
use crate::tls::Tls;
use knarr_auth::authn::x509::Certificate;
use knarr_wire::body::Body;
use knarr_wire::metrics::Metric;

/// The peer of a connection.
pub struct Peer {
    address: IpAddr,
    chain: Option<Vec<CertificateDer<'static>>>,
    /// The identity of the certificate, and the TLS settings under which it was verified.
    judged: Mutex<(Arc<Tls>, Certificate)>,
}

impl Peer {
    fn new(
        address: IpAddr,
        chain: Option<&[CertificateDer<'_>]>,
        settings: Arc<Tls>,
        now: Timestamp,
    ) -> Self {
        let certificate = Certificate { peer: Some(address), ..settings.identify(chain, now) };
        let chain = chain.map(|chain| chain.iter().map(|der| der.clone().into_owned()).collect());
        Self { address, chain, judged: Mutex::new((settings, certificate)) }
    }

    /// Returns the identity of the peer's certificate under these settings. It is verified again when they change,
    /// because a CA may have been removed since the previous request.
    fn certificate(&self, settings: &Arc<Tls>, now: Timestamp) -> Certificate {
        let mut judged = self.judged.lock().unwrap_or_else(PoisonError::into_inner);
        if !Arc::ptr_eq(&judged.0, settings) {
            let certificate = settings.identify(self.chain.as_deref(), now);
            *judged = (Arc::clone(settings), Certificate { peer: Some(self.address), ..certificate });
        }
        judged.1.clone()
    }
}

pub async fn serve(server: Arc<State>, listener: TcpListener) {
    let (limits, stop) = (server.config.connection_limits.clone(), server.stop.clone());
    knarr_serving::serve(Arc::new(Network(server)), listener, limits, stop).await;
}

struct Network(Arc<State>);

impl Service for Network {
    type Peer = Arc<Peer>;
    type Body = Body;

    fn tls(&self) -> Arc<ServerConfig> {
        Arc::clone(&self.0.tls.get(&*self.0.clock).server)
    }

    fn peer(&self, address: SocketAddr, chain: Option<&[CertificateDer<'_>]>) -> Arc<Peer> {
        let settings = self.0.tls.get(&*self.0.clock);
        Arc::new(Peer::new(address.ip(), chain, settings, self.0.clock.now()))
    }

    fn is_certified(&self, peer: &Arc<Peer>) -> bool {
        let certificate = peer.certificate(&self.0.tls.get(&*self.0.clock), self.0.clock.now());
        certificate.proxy.is_some() || certificate.client.as_ref().is_some_and(Result::is_ok)
    }

    async fn answer(&self, peer: Arc<Peer>, request: Request<Incoming>) -> Response<Body> {
        let certificate = peer.certificate(&self.0.tls.get(&*self.0.clock), self.0.clock.now());
        let chance = self.0.config.goaway_chance;
        // Clients reconnect and so spread over the servers again.
        let leave = chance > 0.0 && request.version() == Version::HTTP_2 && fastrand::f64() < chance;
        let mut response = pipeline::serve(Arc::clone(&self.0), request, certificate).await;
        if leave && response.extensions().get::<CloseConnection>().is_none() {
            response.extensions_mut().insert(CloseConnection::WhenDone);
        }
        response
    }

    fn handshake_failed(&self) {
        self.0.metrics.increment(Metric::TlsHandshakeErrors, &[]);
    }
}
