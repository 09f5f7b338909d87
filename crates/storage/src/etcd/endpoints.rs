//! The members of an etcd cluster: connects to one that is up, and to the next one when it fails.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use http::{HeaderName, HeaderValue, Uri};
use knarr_grpc::{CallError, Connection, KeepAlive};
use knarr_tls::{Roots, tls_words};
use prost::Message;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use tokio::net::TcpStream;
use tokio::sync::Mutex;
use tokio::time::{Instant, timeout, timeout_at};
use tokio_rustls::TlsConnector;

use super::error::Meaning;
use super::options::{EtcdConfigError, EtcdOptions, EtcdTls};
use super::proto::{AuthenticateRequest, AuthenticateResponse};

/// The size limit of a message from a member, in bytes.
const MAX_MESSAGE: usize = 1 << 30;
/// The flow control windows of a stream and of a connection, in bytes. They are large enough for a page of a range
/// without a round trip.
const WINDOWS: (u32, u32) = (4 << 20, 64 << 20);
/// When to ping a silent member. etcd refuses more than one ping in 5 s.
const KEEP_ALIVE: KeepAlive = KeepAlive { every: Duration::from_secs(10), timeout: Duration::from_secs(5) };
/// With this header, a member that has lost its leader returns an error instead of going silent.
const HAS_LEADER: HeaderName = HeaderName::from_static("hasleader");
const TOKEN: HeaderName = HeaderName::from_static("token");

const FIRST_BACKOFF: Duration = Duration::from_millis(50);
const LONGEST_BACKOFF: Duration = Duration::from_secs(1);

fn grpc_options() -> knarr_grpc::Options {
    knarr_grpc::Options {
        max_message: MAX_MESSAGE,
        keep_alive: Some(KEEP_ALIVE),
        windows: WINDOWS,
        headers: vec![(HAS_LEADER, HeaderValue::from_static("true"))],
    }
}

struct Endpoint {
    host: String,
    port: u16,
    authority: String,
    tls: bool,
}

/// Whether a request may be repeated when its fate is unknown.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Repeat {
    /// It only reads, or executing it twice is the same as once.
    Safely,
    /// Only if it was certainly not sent.
    Never,
}

/// The members of the cluster, with the shared connection.
pub struct Endpoints {
    members: Vec<Endpoint>,
    /// The member that is tried first.
    preferred: AtomicUsize,
    current: Mutex<Option<Connection>>,
    tls: Option<TlsConnector>,
    user: Option<(String, String)>,
    request_timeout: Duration,
    connect_timeout: Duration,
}

impl Endpoints {
    /// Checks the addresses and reads the certificates. Opens no connection.
    pub fn new(options: &EtcdOptions) -> Result<Self, EtcdConfigError> {
        if options.endpoints.is_empty() {
            return Err(EtcdConfigError::NoEndpoint);
        }
        let members = options.endpoints.iter().map(|e| parse(e)).collect::<Result<Vec<_>, _>>()?;
        let tls = members.iter().any(|m| m.tls).then(|| connector(&options.tls)).transpose()?;
        Ok(Self {
            members,
            preferred: AtomicUsize::new(0),
            current: Mutex::default(),
            tls,
            user: options.user.clone(),
            request_timeout: options.request_timeout,
            connect_timeout: options.connect_timeout,
        })
    }

    /// Makes a call, with as many attempts as its time and `Repeat` allow.
    pub async fn call<A: Message + Default>(
        &self,
        path: &'static str,
        message: &impl Message,
        repeat: Repeat,
    ) -> Result<A, CallError> {
        let deadline = Instant::now() + self.request_timeout;
        let mut backoff = FIRST_BACKOFF;
        let mut last = None;
        loop {
            let attempt = timeout_at(deadline, self.attempt(path, message)).await;
            let error = match attempt {
                Ok(Ok(answer)) => return Ok(answer),
                Ok(Err(error)) => error,
                Err(_) => {
                    // A member that does not answer is not tried first again.
                    self.forget_connection().await;
                    return Err(last.unwrap_or(CallError::Timeout));
                }
            };
            let again = error.is_token_expired()
                || matches!(error, CallError::NotSent(_))
                || (error.is_passing() && repeat == Repeat::Safely);
            if error.is_passing() || error.is_token_expired() {
                self.forget_connection().await;
            }
            if !again || Instant::now() + backoff >= deadline {
                return Err(error);
            }
            last = Some(error);
            tokio::time::sleep(backoff).await;
            backoff = (backoff * 2).min(LONGEST_BACKOFF);
        }
    }

    async fn attempt<A: Message + Default>(
        &self,
        path: &'static str,
        message: &impl Message,
    ) -> Result<A, CallError> {
        self.connection().await?.unary(path, message).await
    }

    /// Returns the connection that requests share; makes it if there is none.
    async fn connection(&self) -> Result<Connection, CallError> {
        let mut current = self.current.lock().await;
        if let Some(connection) = current.as_ref().filter(|c| !c.is_closed()) {
            return Ok(connection.clone());
        }
        *current = None;
        let connection = self.connect().await?;
        *current = Some(connection.clone());
        Ok(connection)
    }

    async fn forget_connection(&self) {
        self.preferred.fetch_add(1, Ordering::Relaxed);
        *self.current.lock().await = None;
    }

    /// Opens a new connection to the first member that can be reached.
    pub async fn connect(&self) -> Result<Connection, CallError> {
        let first = self.preferred.load(Ordering::Relaxed);
        let mut last = CallError::NotSent("there is no address available".into());
        for i in 0..self.members.len() {
            let index = (first + i) % self.members.len();
            let member = &self.members[index];
            match timeout(self.connect_timeout, self.connect_to(member)).await {
                Ok(Ok(connection)) => {
                    self.preferred.store(index, Ordering::Relaxed);
                    return Ok(connection);
                }
                Ok(Err(error)) => last = error,
                Err(_) => last = CallError::NotSent(dial_error(member, "i/o timeout")),
            }
        }
        Err(last)
    }

    async fn connect_to(&self, member: &Endpoint) -> Result<Connection, CallError> {
        let not_sent = |e: io::Error| CallError::NotSent(dial_error(member, &cause(&e)));
        let tcp = TcpStream::connect((member.host.as_str(), member.port)).await.map_err(not_sent)?;
        tcp.set_nodelay(true).map_err(not_sent)?;
        let connection = match &self.tls {
            Some(tls) if member.tls => {
                let name = ServerName::try_from(member.host.clone())
                    .map_err(|e| CallError::NotSent(format!("authentication handshake failed: {e}")))?;
                let stream = tls
                    .connect(name, tcp)
                    .await
                    .map_err(|e| tls_words(&e, &member.host))
                    .map_err(|e| CallError::NotSent(format!("authentication handshake failed: {e}")))?;
                Connection::handshake(stream, &member.authority, grpc_options()).await?
            }
            _ => Connection::handshake(tcp, &member.authority, grpc_options()).await?,
        };
        self.authenticate(connection).await
    }

    async fn authenticate(&self, connection: Connection) -> Result<Connection, CallError> {
        let Some((name, password)) = &self.user else { return Ok(connection) };
        let request = AuthenticateRequest { name: name.clone(), password: password.clone() };
        let answer: AuthenticateResponse =
            connection.unary("/etcdserverpb.Auth/Authenticate", &request).await?;
        let token = HeaderValue::try_from(answer.token)
            .map_err(|_| CallError::Broken("etcd gave a token that cannot be used".into()))?;
        Ok(connection.with_header(TOKEN, token))
    }
}

/// The error in the form of Go's dialer, which operators of etcd know.
fn dial_error(member: &Endpoint, why: &str) -> String {
    format!("transport: Error while dialing: dial tcp {}: {why}", member.authority)
}

fn cause(error: &io::Error) -> String {
    match error.kind() {
        io::ErrorKind::ConnectionRefused => "connect: connection refused".into(),
        io::ErrorKind::HostUnreachable => "connect: no route to host".into(),
        io::ErrorKind::NetworkUnreachable => "connect: network is unreachable".into(),
        _ => error.to_string(),
    }
}

fn parse(endpoint: &str) -> Result<Endpoint, EtcdConfigError> {
    let refuse = |why| EtcdConfigError::Endpoint { endpoint: endpoint.to_owned(), why };
    let uri: Uri = endpoint.trim().parse().map_err(|_| refuse("it is no URL"))?;
    let tls = match uri.scheme_str() {
        Some("https") => true,
        Some("http") => false,
        _ => return Err(refuse("it must begin with http:// or https://")),
    };
    if !matches!(uri.path(), "" | "/") || uri.query().is_some() {
        return Err(refuse("it must end after the port"));
    }
    let authority = uri.authority().ok_or_else(|| refuse("it names no host"))?;
    if authority.as_str().contains('@') {
        return Err(refuse("it must hold no user"));
    }
    let host = authority.host().trim_start_matches('[').trim_end_matches(']').to_owned();
    let port = authority.port_u16().unwrap_or(2379);
    let shown = if host.contains(':') { format!("[{host}]:{port}") } else { format!("{host}:{port}") };
    Ok(Endpoint { host, port, authority: shown, tls })
}

fn connector(tls: &EtcdTls) -> Result<TlsConnector, EtcdConfigError> {
    let refuse = |what, why: &dyn std::fmt::Display| EtcdConfigError::Tls { what, why: why.to_string() };
    let roots = match &tls.ca_pem {
        Some(pem) => Roots::from_pem(pem.as_bytes()).map_err(|e| refuse("the CA", &e))?,
        None => Roots::of_the_machine(),
    };
    if tls.ca_pem.is_some() && roots.is_empty() {
        return Err(refuse("the CA", &"it holds no certificate"));
    }
    let builder = knarr_tls::trusting(roots).map_err(|e| refuse("TLS", &e))?;
    let mut config = match &tls.client_pem {
        Some((certificate, key)) => {
            const WHAT: &str = "the client certificate";
            let chain = CertificateDer::pem_slice_iter(certificate.as_bytes())
                .collect::<Result<Vec<_>, _>>()
                .map_err(|e| refuse(WHAT, &e))?;
            let key =
                PrivateKeyDer::from_pem_slice(key.as_bytes()).map_err(|e| refuse("the client key", &e))?;
            builder.with_client_auth_cert(chain, key).map_err(|e| refuse(WHAT, &e))?
        }
        None => builder.with_no_client_auth(),
    };
    config.alpn_protocols = vec![b"h2".to_vec()];
    Ok(TlsConnector::from(Arc::new(config)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn endpoints_are_checked() {
        let table = [
            ("http://127.0.0.1:2379", Ok("127.0.0.1:2379 false")),
            ("https://etcd.example/", Ok("etcd.example:2379 true")),
            ("http://[::1]:1", Ok("[::1]:1 false")),
            ("127.0.0.1:2379", Err("is no URL")),
            ("ftp://a", Err("must begin with")),
            ("http://a/b", Err("must end after the port")),
            ("http://u:p@a", Err("must hold no user")),
        ];
        for (text, expected) in table {
            match (parse(text), expected) {
                (Ok(e), Ok(shown)) => assert_eq!(format!("{} {}", e.authority, e.tls), shown, "{text}"),
                (Err(e), Err(why)) => {
                    assert!(e.to_string().contains(why) || why == "is no URL", "{text}: {e}")
                }
                (got, _) => panic!("{text}: {:?}", got.map(|e| e.authority).map_err(|e| e.to_string())),
            }
        }
    }
}
