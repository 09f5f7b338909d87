//! The name server: UDP and TCP, with answers from the records or from other resolvers.

use std::net::{IpAddr, SocketAddr};
use std::panic::resume_unwind;
use std::path::PathBuf;
use std::sync::{Arc, PoisonError, RwLock};
use std::time::Instant;

use hickory_proto::ProtoError;
use hickory_proto::op::{Message, Query, ResponseCode};
use hickory_proto::rr::Name;
use nix::sys::socket::{
    AddressFamily, Backlog, SockFlag, SockType, SockaddrStorage, bind, listen, setsockopt, socket, sockopt,
};
use thiserror::Error;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream, UdpSocket};
use tokio::sync::Semaphore;
use tokio::time::{Duration, timeout};
use tokio_util::sync::CancellationToken;

use super::answer::{Lookup, lookup};
use super::forward::Forwarder;
use super::metrics::{self, By, Counts, Proto};
use super::question::Question;
use super::records::Records;

const LARGEST_QUESTION: usize = 4096;
/// The highest number of UDP questions that wait for other resolvers; further ones are dropped, and clients
/// retry.
const MOST_WAITING: usize = 1024;
const MOST_CONNECTIONS: usize = 128;
const CONNECTION_IDLE: Duration = Duration::from_secs(8);
/// How many ports the system may choose until one is free for both protocols.
const PORT_CHOICES: u32 = 16;
/// The highest number of aliases that are followed for one answer.
const MOST_ALIASES: usize = 8;
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);

/// Why the name server could not start.
#[derive(Debug, Error)]
pub enum DnsError {
    #[error("{zone:?} is not a valid zone")]
    Zone { zone: String, source: ProtoError },
    #[error("listening for DNS on {address}")]
    Listen { address: SocketAddr, source: std::io::Error },
}

/// Settings of the name server; `new` fills in the defaults.
#[derive(Clone, Debug)]
pub struct DnsConfig {
    pub zone: String,
    /// The addresses to listen on; port 0 picks any port, for tests. The address need not exist on a device
    /// yet.
    pub listen: Vec<SocketAddr>,
    /// The file with the resolvers for names outside of the cluster.
    pub resolv_conf: PathBuf,
}

impl DnsConfig {
    /// Returns the default settings for these addresses.
    pub fn new(listen: Vec<SocketAddr>) -> Self {
        Self { zone: "cluster.local".to_owned(), listen, resolv_conf: PathBuf::from("/etc/resolv.conf") }
    }
}

/// The name server of a node. It answers from `records`, which another task keeps up to date.
pub struct DnsServer {
    state: Arc<State>,
    bound: Vec<Bound>,
}

/// The sockets and counts of one address.
#[derive(Clone)]
struct Bound {
    udp: Arc<UdpSocket>,
    tcp: Arc<TcpListener>,
    counts: Arc<Counts>,
}

struct State {
    records: Arc<RwLock<Records>>,
    forwarder: Forwarder,
}

impl DnsServer {
    /// Binds the addresses, in the network namespace of the calling thread; `serve` starts to answer.
    pub fn bind(config: &DnsConfig) -> Result<Self, DnsError> {
        let own: Vec<IpAddr> = config.listen.iter().map(SocketAddr::ip).collect();
        let forwarder = Forwarder::from_file(config.resolv_conf.clone(), own);
        Self::with_forwarder(config, forwarder)
    }

    /// Like `bind`, with other resolvers.
    pub fn with_forwarder(config: &DnsConfig, forwarder: Forwarder) -> Result<Self, DnsError> {
        let own: Vec<IpAddr> = config.listen.iter().map(SocketAddr::ip).collect();
        let records = Records::new(&config.zone, own)
            .map_err(|source| DnsError::Zone { zone: config.zone.clone(), source })?;
        let bind = |address: &SocketAddr| {
            let (udp, tcp) = bind_both(*address)?;
            let counts = Arc::new(Counts::of(udp.local_addr()?));
            Ok(Bound { udp: Arc::new(udp), tcp: Arc::new(tcp), counts })
        };
        let listen = |address: &SocketAddr| {
            bind(address).map_err(|source| DnsError::Listen { address: *address, source })
        };
        let bound = config.listen.iter().map(listen).collect::<Result<_, _>>()?;
        Ok(Self { state: Arc::new(State { records: Arc::new(RwLock::new(records)), forwarder }), bound })
    }

    /// Returns the records that the server answers from.
    pub fn records(&self) -> Arc<RwLock<Records>> {
        self.state.records.clone()
    }

    /// Returns the bound addresses, with the chosen ports.
    pub fn local_addrs(&self) -> Vec<SocketAddr> {
        self.bound.iter().filter_map(|bound| bound.udp.local_addr().ok()).collect()
    }

    /// Returns the counts of questions and answers in Prometheus' text format.
    pub fn metrics(&self) -> String {
        metrics::render(self.bound.iter().map(|bound| &*bound.counts))
    }

    /// Answers until `stop`. A panic in one socket's task ends all tasks and is propagated; after it `serve`
    /// may be called again.
    pub async fn serve(&self, stop: CancellationToken) {
        let mut tasks = tokio::task::JoinSet::new();
        for bound in &self.bound {
            let (state, bound, until) = (self.state.clone(), bound.clone(), stop.clone());
            tasks.spawn(async move { until.run_until_cancelled(serve_udp(state, bound)).await });
        }
        for bound in &self.bound {
            let (state, bound, until) = (self.state.clone(), bound.clone(), stop.clone());
            tasks.spawn(async move { until.run_until_cancelled(serve_tcp(state, bound)).await });
        }
        while let Some(ended) = tasks.join_next().await {
            if let Err(error) = ended
                && error.is_panic()
            {
                resume_unwind(error.into_panic());
            }
        }
    }
}

/// Binds both protocols on one port. With port 0 the system chooses one for UDP; if TCP finds it taken, another
/// is tried.
fn bind_both(address: SocketAddr) -> std::io::Result<(UdpSocket, TcpListener)> {
    let mut choices = if address.port() == 0 { PORT_CHOICES } else { 1 };
    loop {
        let udp = bind_udp(address)?;
        choices -= 1;
        match bind_tcp(udp.local_addr()?) {
            Err(error) if choices > 0 && error.kind() == std::io::ErrorKind::AddrInUse => {}
            tcp => return Ok((udp, tcp?)),
        }
    }
}

fn bind_udp(address: SocketAddr) -> std::io::Result<UdpSocket> {
    let socket = bound_socket(address, SockType::Datagram)?;
    UdpSocket::from_std(socket.into())
}

fn bind_tcp(address: SocketAddr) -> std::io::Result<TcpListener> {
    let socket = bound_socket(address, SockType::Stream)?;
    listen(&socket, Backlog::new(128)?)?;
    TcpListener::from_std(socket.into())
}

/// Binds a socket even if no device has the address yet, because its bridge may be created later.
fn bound_socket(address: SocketAddr, kind: SockType) -> std::io::Result<std::os::fd::OwnedFd> {
    let family = if address.is_ipv4() { AddressFamily::Inet } else { AddressFamily::Inet6 };
    let socket = socket(family, kind, SockFlag::SOCK_CLOEXEC | SockFlag::SOCK_NONBLOCK, None)?;
    setsockopt(&socket, sockopt::IpFreebind, &true)?;
    if kind == SockType::Stream {
        setsockopt(&socket, sockopt::ReuseAddr, &true)?;
    }
    bind(std::os::fd::AsRawFd::as_raw_fd(&socket), &SockaddrStorage::from(address))?;
    Ok(socket)
}

async fn serve_udp(state: Arc<State>, Bound { udp: socket, counts, .. }: Bound) {
    let waiting = Arc::new(Semaphore::new(MOST_WAITING));
    let mut buffer = [0; LARGEST_QUESTION];
    loop {
        let Ok((length, client)) = socket.recv_from(&mut buffer).await else {
            // An ICMP error for an earlier answer, or memory pressure.
            tokio::time::sleep(Duration::from_millis(1)).await;
            continue;
        };
        let Some(question) = Question::read(&buffer[..length]) else { continue };
        let (limit, begun) = (question.udp_limit(), Instant::now());
        counts.asked(&question.message, Proto::Udp);
        match state.answer_at_once(&question) {
            Some((answer, by)) => {
                counts.answered(answer.metadata.response_code, by, begun.elapsed());
                let _ = socket.send_to(&encode(&answer, limit), client).await;
            }
            None => {
                let Ok(permit) = waiting.clone().try_acquire_owned() else { continue };
                let (state, socket, counts) = (state.clone(), socket.clone(), counts.clone());
                tokio::spawn(async move {
                    let (answer, by) = state.answer(&question).await;
                    counts.answered(answer.metadata.response_code, by, begun.elapsed());
                    let _ = socket.send_to(&encode(&answer, limit), client).await;
                    drop(permit);
                });
            }
        }
    }
}

async fn serve_tcp(state: Arc<State>, Bound { tcp: listener, counts, .. }: Bound) {
    let connections = Arc::new(Semaphore::new(MOST_CONNECTIONS));
    loop {
        // The semaphore is never closed; if it were, the task could not do anything any more.
        let Ok(permit) = connections.clone().acquire_owned().await else { return };
        match listener.accept().await {
            Ok((stream, _)) => {
                let (state, counts) = (state.clone(), counts.clone());
                tokio::spawn(async move {
                    let _ = serve_connection(&state, &counts, stream).await;
                    drop(permit);
                });
            }
            Err(_) => tokio::time::sleep(ACCEPT_PAUSE).await,
        }
    }
}

async fn serve_connection(state: &State, counts: &Counts, mut stream: TcpStream) -> std::io::Result<()> {
    loop {
        let bytes = timeout(CONNECTION_IDLE, async {
            let length = stream.read_u16().await?;
            let mut bytes = vec![0; usize::from(length)];
            stream.read_exact(&mut bytes).await?;
            Ok::<_, std::io::Error>(bytes)
        })
        .await??;
        let Some(question) = Question::read(&bytes) else { return Ok(()) };
        let begun = Instant::now();
        counts.asked(&question.message, Proto::Tcp);
        let (answer, by) = state.answer(&question).await;
        counts.answered(answer.metadata.response_code, by, begun.elapsed());
        let bytes = encode(&answer, u16::MAX);
        let length = bytes.len() as u16;
        timeout(CONNECTION_IDLE, stream.write_all(&[&length.to_be_bytes()[..], &bytes].concat())).await??;
    }
}

impl State {
    fn lookup(&self, name: &Name, query: &Query) -> Lookup {
        let records = self.records.read().unwrap_or_else(PoisonError::into_inner);
        lookup(&records, name, query.query_type())
    }

    /// Returns the answer if it does not need another resolver, which is the usual case.
    fn answer_at_once(&self, question: &Question) -> Option<(Message, By)> {
        let query = match question.query() {
            Ok(query) => query,
            Err(code) => return Some((question.reply(code), By::Server)),
        };
        match self.lookup(query.name(), query) {
            Lookup::Answer(answer) if answer.chase.is_none() => {
                Some((question.with_answer(answer), By::Cluster))
            }
            _ => None,
        }
    }

    async fn answer(&self, question: &Question) -> (Message, By) {
        let query = match question.query() {
            Ok(query) => query,
            Err(code) => return (question.reply(code), By::Server),
        };
        match self.lookup(query.name(), query) {
            Lookup::Answer(mut answer) => {
                let chase = answer.chase.take();
                let mut reply = question.with_answer(answer);
                self.follow(&mut reply, chase, query, question.dnssec_ok()).await;
                (reply, By::Cluster)
            }
            Lookup::Elsewhere => match self.forwarder.remembered(query, question.dnssec_ok()) {
                Some(found) => (question.with_found(found), By::Memory),
                None => (self.ask_elsewhere(question, query).await, By::Elsewhere),
            },
        }
    }

    async fn ask_elsewhere(&self, question: &Question, query: &Query) -> Message {
        match self.forwarder.resolve(query, question.dnssec_ok()).await {
            Ok(found) => question.with_found(found),
            Err(error) => {
                tracing::debug!(%error, name = %query.name(), "cannot forward a question");
                question.reply(ResponseCode::ServFail)
            }
        }
    }

    /// Adds the records of an alias' target, and of its target's target: stub resolvers do not follow aliases.
    async fn follow(&self, reply: &mut Message, mut chase: Option<Name>, query: &Query, dnssec_ok: bool) {
        for _ in 0..MOST_ALIASES {
            let Some(target) = chase.take() else { return };
            match self.lookup(&target, query) {
                Lookup::Answer(answer) => {
                    reply.answers.extend(answer.answers);
                    chase = answer.chase;
                }
                Lookup::Elsewhere => {
                    let further = Query::query(target, query.query_type());
                    match self.forwarder.resolve(&further, dnssec_ok).await {
                        Ok(found) => reply.answers.extend(found.answers),
                        // Clients would take an answer with only the alias as final.
                        Err(_) => reply.metadata.response_code = ResponseCode::ServFail,
                    }
                    return;
                }
            }
        }
    }
}

/// Serializes the message within `limit` bytes. If it is longer, keeps as many answers as fit and sets the
/// truncation flag.
fn encode(message: &Message, limit: u16) -> Vec<u8> {
    let limit = usize::from(limit);
    let mut bytes = message.to_vec().unwrap_or_default();
    if bytes.len() <= limit && !bytes.is_empty() {
        return bytes;
    }
    let mut shorter = message.clone();
    // Additional records are optional: omitting them is not a truncation.
    shorter.additionals.clear();
    bytes = shorter.to_vec().unwrap_or_default();
    while bytes.len() > limit && !(shorter.answers.is_empty() && shorter.authorities.is_empty()) {
        shorter.metadata.truncation = true;
        shorter.authorities.clear();
        let keep = shorter.answers.len() * limit / bytes.len();
        shorter.answers.truncate(keep.min(shorter.answers.len().saturating_sub(1)));
        bytes = shorter.to_vec().unwrap_or_default();
    }
    bytes
}
