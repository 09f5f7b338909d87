//! The HTTPS port of a component that runs alone: health, metrics and configuration, for authorized clients.

mod auth;
mod pages;
mod tls;

use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Result;
use clap::Args;
use http_body_util::Full;
use hyper::body::{Bytes, Incoming};
use hyper::{Request, Response, StatusCode, Version};
use knarr_apimachinery::clock::Clock;
use knarr_client::Supervisor;
use knarr_client::reviews::{CertifiedUser, Lasting, UserInfo};
use knarr_serving::{CloseConnection, KnownSender, Limits, Service};
use rustls::ServerConfig;
use rustls::pki_types::CertificateDer;
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;

use crate::followed_kubeconfig::FollowedKubeconfig;
use crate::{api_flags, open_files, preflight};
use auth::{Delegated, Options as AuthOptions};
pub use pages::{Check, Pages};
use tls::Tls;

/// The most concurrent connections.
const MAX_CONNECTIONS: usize = 500;
/// The most concurrent connections from one address other than this machine's own.
const MAX_PER_ADDRESS: usize = 250;
/// Connections may take this fraction (one in N) of the files that the process may open.
const OPEN_FILES_SHARE: u64 = 8;

#[derive(Args)]
pub struct ServingArgs {
    /// Address of the port for health, metrics and configuration
    #[arg(long, default_value = "0.0.0.0", value_name = "IP")]
    bind_address: IpAddr,
    /// Port for health, metrics and configuration; 0 for none [default: the component's, 10257 or 10259]
    #[arg(long, value_name = "PORT")]
    secure_port: Option<u16>,
    /// Serving certificate [default: self-signed, created at each start]
    #[arg(long, value_name = "FILE", requires = "tls_private_key_file")]
    tls_cert_file: Option<PathBuf>,
    /// Key of the serving certificate
    #[arg(long, value_name = "FILE", requires = "tls_cert_file")]
    tls_private_key_file: Option<PathBuf>,
    /// Authorities of client certificates [default: those that the cluster publishes]
    #[arg(long, value_name = "FILE")]
    client_ca_file: Option<PathBuf>,
    /// Kubeconfig for reviews of tokens; without it, clients with a token are anonymous
    #[arg(long, value_name = "FILE")]
    authentication_kubeconfig: Option<PathBuf>,
    /// Do not read the authorities of client certificates from the cluster
    #[arg(long, num_args = 0..=1, require_equals = true, default_value_t = false, default_missing_value = "true", action = clap::ArgAction::Set)]
    authentication_skip_lookup: bool,
    /// How long to cache reviews of tokens
    #[arg(long, default_value = "10s", value_name = "DURATION", value_parser = api_flags::duration)]
    authentication_token_webhook_cache_ttl: Duration,
    /// Kubeconfig for reviews of access; without it, only system:masters has access
    #[arg(long, value_name = "FILE")]
    authorization_kubeconfig: Option<PathBuf>,
    /// Paths that need no authorization
    #[arg(long, default_value = "/healthz,/readyz,/livez", value_name = "PATH", value_delimiter = ',')]
    authorization_always_allow_paths: Vec<String>,
    /// How long to cache granted access
    #[arg(long, default_value = "10s", value_name = "DURATION", value_parser = api_flags::duration)]
    authorization_webhook_cache_authorized_ttl: Duration,
    /// How long to cache denied access
    #[arg(long, default_value = "10s", value_name = "DURATION", value_parser = api_flags::duration)]
    authorization_webhook_cache_unauthorized_ttl: Duration,
}

/// The bound port, which does not answer yet.
pub struct Bound {
    listener: std::net::TcpListener,
    auth: Arc<Delegated>,
    tls: Arc<Tls>,
    clock: Arc<dyn Clock>,
    kubeconfigs: Vec<FollowedKubeconfig>,
}

impl ServingArgs {
    /// Binds the port, unless it is 0; `default_port` is the component's own.
    pub fn bind(&self, default_port: u16, clock: &Arc<dyn Clock>) -> Result<Option<Bound>> {
        let port = self.secure_port.unwrap_or(default_port);
        if port == 0 {
            return Ok(None);
        }
        let mut kubeconfigs = Vec::new();
        let mut client = |file: &Option<PathBuf>| {
            let Some(file) = file else { return Ok(None) };
            let followed = FollowedKubeconfig::open(file)?;
            let client = followed.client(clock, "knarr");
            kubeconfigs.push(followed);
            anyhow::Ok(Some(client))
        };
        let authentication = client(&self.authentication_kubeconfig)?;
        let lookup = authentication.clone().filter(|_| !self.authentication_skip_lookup);
        let authorization = client(&self.authorization_kubeconfig)?;
        let auth = Delegated::new(AuthOptions {
            authentication,
            authorization,
            always_allow: self.authorization_always_allow_paths.clone(),
            lasting: Lasting {
                token: self.authentication_token_webhook_cache_ttl,
                allowed: self.authorization_webhook_cache_authorized_ttl,
                denied: self.authorization_webhook_cache_unauthorized_ttl,
            },
            clock: Arc::clone(clock),
        });
        let pair = self.tls_cert_file.as_deref().zip(self.tls_private_key_file.as_deref());
        let tls = Tls::open(pair, self.client_ca_file.as_deref(), lookup, self.bind_address)?;
        let listener = preflight::listen(SocketAddr::new(self.bind_address, port), "--secure-port")?;
        let (auth, tls) = (Arc::new(auth), Arc::new(tls));
        Ok(Some(Bound { listener, auth, tls, clock: Arc::clone(clock), kubeconfigs }))
    }
}

impl Bound {
    /// Answers requests until `stop`.
    pub fn serve(self, pages: Pages, supervisor: &Supervisor, stop: CancellationToken) {
        for kubeconfig in self.kubeconfigs {
            let clock = Arc::clone(&self.clock);
            let follow = move |stop| kubeconfig.clone().follow(Arc::clone(&clock), stop);
            supervisor.spawn("delegation-kubeconfig", stop.clone(), follow);
        }
        let tls = Arc::clone(&self.tls);
        let following = supervisor.run_until_done("clients-authority", stop.clone(), move |stop| {
            let tls = Arc::clone(&tls);
            async move { tls.follow(stop).await }
        });
        tokio::spawn(following);
        let component = Arc::new(Component { tls: self.tls, auth: self.auth, pages });
        let bound = self.listener;
        supervisor.spawn("pages", stop, move |stop| {
            let (component, listener) = (Arc::clone(&component), bound.try_clone());
            async move {
                match listener.and_then(TcpListener::from_std) {
                    Ok(listener) => {
                        knarr_serving::serve(component, listener, limits(open_files::limit()), stop).await;
                    }
                    Err(error) => tracing::error!(%error, "the listening socket cannot be used"),
                }
            }
        });
    }
}

/// The service behind the connections.
struct Component {
    tls: Arc<Tls>,
    auth: Arc<Delegated>,
    pages: Pages,
}

impl Service for Component {
    /// The user that the client certificate names.
    type Peer = Option<CertifiedUser>;
    type Body = Full<Bytes>;

    fn tls(&self) -> Arc<ServerConfig> {
        self.tls.config()
    }

    fn peer(&self, _: SocketAddr, chain: Option<&[CertificateDer<'_>]>) -> Option<CertifiedUser> {
        chain.and_then(|chain| chain.first()).and_then(|der| CertifiedUser::read(der))
    }

    fn is_certified(&self, user: &Option<CertifiedUser>) -> bool {
        user.is_some()
    }

    async fn answer(&self, peer: Option<CertifiedUser>, request: Request<Incoming>) -> Response<Full<Bytes>> {
        let user = peer.as_ref().and_then(|peer| peer.user(self.auth.now())).cloned();
        let mut response = answer(&request, user, &self.auth, &self.pages).await;
        if !matches!(response.status(), StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN) {
            response.extensions_mut().insert(KnownSender);
        }
        if request.version() == Version::HTTP_2 && response.status() == StatusCode::UNAUTHORIZED {
            // An unauthenticated client gets one answer, and its connection is closed.
            response.extensions_mut().insert(CloseConnection::Now);
        }
        response
    }
}

/// Returns the limits of the connections, in a process that may open `open_files` files.
fn limits(open_files: u64) -> Limits {
    let limits = Limits { connections: MAX_CONNECTIONS, per_address: MAX_PER_ADDRESS, ..Limits::default() };
    Limits { drain: Duration::ZERO, ..limits }.within_open_files(open_files, OPEN_FILES_SHARE)
}

async fn answer(
    request: &Request<Incoming>,
    certificate: Option<UserInfo>,
    auth: &Delegated,
    pages: &Pages,
) -> Response<Full<Bytes>> {
    let path = request.uri().path();
    let refused = match auth.authenticate(certificate, request.headers()).await {
        Ok(user) => auth.authorize(&user, request.method(), path).await.err(),
        Err(refused) => Some(refused),
    };
    match refused {
        None => pages.answer(path, request.uri().query().unwrap_or(""), request.headers()),
        Some(refused) => pages::refusal(&refused),
    }
}
