//! Forwards questions about names outside of the cluster to the machine's resolvers.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::path::PathBuf;
use std::sync::{Mutex, PoisonError};

use hickory_proto::op::{Edns, Message, MessageType, Query, ResponseCode};
use thiserror::Error;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpStream, UdpSocket};
use tokio::sync::Semaphore;
use tokio::time::{Duration, Instant, timeout};

use super::cache::Cache;
use super::resolv_conf::ResolvConf;

/// The highest number of concurrent questions; further ones are refused at once and not queued.
const MOST_FORWARDS: usize = 512;
const ATTEMPT_TIMEOUT: Duration = Duration::from_secs(2);
/// Datagrams that do not match the question are skipped, up to this many.
const MOST_STRAY: usize = 8;
/// A size that passes any usual path without fragmentation.
pub const UDP_PAYLOAD: u16 = 1232;

/// Why no resolver answered.
#[derive(Debug, Error)]
pub enum ForwardError {
    #[error("no nameserver in resolv.conf")]
    NoUpstream,
    #[error("too many concurrent questions")]
    Busy,
    #[error("no nameserver answered")]
    Unanswered,
    #[error("asking a nameserver")]
    Io(#[from] std::io::Error),
    #[error("reading or writing a DNS message: {0}")]
    Message(String),
}

/// Asks the resolvers of a resolv.conf, in their order.
pub struct Forwarder {
    upstreams: Mutex<Upstreams>,
    cache: Mutex<Cache>,
    permits: Semaphore,
}

enum Upstreams {
    File(ResolvConf),
    Fixed(Vec<SocketAddr>),
}

impl Forwarder {
    /// Uses the resolvers of a file, except the addresses in `own`, which are this server's.
    pub fn from_file(path: PathBuf, own: Vec<IpAddr>) -> Self {
        Self::new(Upstreams::File(ResolvConf::new(path, own)))
    }

    /// Uses fixed resolvers.
    pub fn to(upstreams: Vec<SocketAddr>) -> Self {
        Self::new(Upstreams::Fixed(upstreams))
    }

    fn new(upstreams: Upstreams) -> Self {
        Self {
            upstreams: Mutex::new(upstreams),
            cache: Mutex::new(Cache::default()),
            permits: Semaphore::new(MOST_FORWARDS),
        }
    }

    /// Like [`Self::resolve`], but only from the cache.
    pub fn remembered(&self, query: &Query, dnssec_ok: bool) -> Option<Message> {
        self.cache().get(query, dnssec_ok, Instant::now())
    }

    /// Resolves a question. The code and the records of the result are valid; its id and flags belong to the
    /// exchange with the resolver.
    pub async fn resolve(&self, query: &Query, dnssec_ok: bool) -> Result<Message, ForwardError> {
        if let Some(kept) = self.remembered(query, dnssec_ok) {
            return Ok(kept);
        }
        let _permit = self.permits.try_acquire().map_err(|_| ForwardError::Busy)?;
        let mut last = Err(ForwardError::NoUpstream);
        for upstream in self.nameservers() {
            last = ask(upstream, query, dnssec_ok).await;
            match &last {
                Ok(message)
                    if !matches!(
                        message.metadata.response_code,
                        ResponseCode::ServFail | ResponseCode::Refused
                    ) =>
                {
                    self.cache().insert(query, dnssec_ok, message, Instant::now());
                    return last;
                }
                Ok(_) => {}
                Err(error) => tracing::debug!(%upstream, %error, "a nameserver did not answer"),
            }
        }
        last
    }

    fn cache(&self) -> std::sync::MutexGuard<'_, Cache> {
        self.cache.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn nameservers(&self) -> Vec<SocketAddr> {
        match &mut *self.upstreams.lock().unwrap_or_else(PoisonError::into_inner) {
            Upstreams::File(file) => file.nameservers(),
            Upstreams::Fixed(addresses) => addresses.clone(),
        }
    }
}

async fn ask(upstream: SocketAddr, query: &Query, dnssec_ok: bool) -> Result<Message, ForwardError> {
    let mut question = Message::query();
    question.metadata.recursion_desired = true;
    question.queries.push(query.clone());
    let mut edns = Edns::new();
    edns.set_max_payload(UDP_PAYLOAD).set_dnssec_ok(dnssec_ok);
    question.edns = Some(edns);
    let bytes = question.to_vec().map_err(|e| ForwardError::Message(e.to_string()))?;
    let by_udp = timeout(ATTEMPT_TIMEOUT, ask_udp(upstream, &question, &bytes));
    let answer = by_udp.await.map_err(|_| ForwardError::Unanswered)??;
    if !answer.metadata.truncation {
        return Ok(answer);
    }
    let by_tcp = timeout(ATTEMPT_TIMEOUT, ask_tcp(upstream, &question, &bytes));
    by_tcp.await.map_err(|_| ForwardError::Unanswered)?
}

/// Asks over UDP with a new socket for each question, because its random port protects against forged answers.
async fn ask_udp(upstream: SocketAddr, question: &Message, bytes: &[u8]) -> Result<Message, ForwardError> {
    let any: IpAddr = match upstream {
        SocketAddr::V4(_) => Ipv4Addr::UNSPECIFIED.into(),
        SocketAddr::V6(_) => Ipv6Addr::UNSPECIFIED.into(),
    };
    let socket = UdpSocket::bind((any, 0)).await?;
    socket.connect(upstream).await?;
    socket.send(bytes).await?;
    let mut buffer = [0; 4096];
    for _ in 0..MOST_STRAY {
        let length = socket.recv(&mut buffer).await?;
        if let Ok(answer) = Message::from_vec(&buffer[..length])
            && fits(question, &answer)
        {
            return Ok(answer);
        }
    }
    Err(ForwardError::Unanswered)
}

async fn ask_tcp(upstream: SocketAddr, question: &Message, bytes: &[u8]) -> Result<Message, ForwardError> {
    let mut stream = TcpStream::connect(upstream).await?;
    let length = u16::try_from(bytes.len()).map_err(|e| ForwardError::Message(e.to_string()))?;
    stream.write_all(&[&length.to_be_bytes()[..], bytes].concat()).await?;
    let length = stream.read_u16().await?;
    let mut answer = vec![0; usize::from(length)];
    stream.read_exact(&mut answer).await?;
    let answer = Message::from_vec(&answer).map_err(|e| ForwardError::Message(e.to_string()))?;
    if fits(question, &answer) { Ok(answer) } else { Err(ForwardError::Unanswered) }
}

fn fits(question: &Message, answer: &Message) -> bool {
    answer.metadata.message_type == MessageType::Response
        && answer.metadata.id == question.metadata.id
        && answer.queries == question.queries
}
