//! A blocking HTTP/1.1 client over TLS, as thin as possible, so that benches measure the server.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use base64::Engine;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::{ClientConfig, ClientConnection, RootCertStore, StreamOwned};
use serde_json::Value;

/// Requests time out after this, unless [`Access::with_timeout`] sets another limit.
const TIMEOUT: Duration = Duration::from_secs(60);

pub const JSON: &str = "application/json";
pub const MERGE_PATCH: &str = "application/merge-patch+json";

/// The contents of a kubeconfig with inline credentials.
#[derive(Clone)]
pub struct Access {
    config: Arc<ClientConfig>,
    /// `host:port`.
    address: String,
    timeout: Duration,
}

impl Access {
    pub fn from_kubeconfig(path: &Path) -> Result<Self> {
        let text =
            std::fs::read_to_string(path).with_context(|| format!("cannot read {}", path.display()))?;
        // Long values may be in a block on the line after `>-`.
        let field = |name: &str| {
            let mark = format!("{name}: ");
            let mut lines = text.lines().map(str::trim).skip_while(|l| !l.starts_with(&mark));
            let first = lines.next().map(|l| l[mark.len()..].trim_matches('"'));
            let value = if first.is_some_and(|v| v.starts_with(['>', '|'])) { lines.next() } else { first };
            value.with_context(|| format!("the kubeconfig has no {name}"))
        };
        let pem = |name: &str| anyhow::Ok(base64::engine::general_purpose::STANDARD.decode(field(name)?)?);
        let mut roots = RootCertStore::empty();
        roots.add(CertificateDer::from_pem_slice(&pem("certificate-authority-data")?)?)?;
        let chain = CertificateDer::pem_slice_iter(&pem("client-certificate-data")?)
            .collect::<Result<Vec<_>, _>>()?;
        let key = PrivateKeyDer::from_pem_slice(&pem("client-key-data")?)?;
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let config = ClientConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()?
            .with_root_certificates(roots)
            .with_client_auth_cert(chain, key)?;
        let address = field("server")?.trim_start_matches("https://").to_owned();
        Ok(Self { config: Arc::new(config), address, timeout: TIMEOUT })
    }

    /// Returns these settings with another timeout for connecting and for each read and write.
    pub fn with_timeout(mut self, timeout: Duration) -> Self {
        self.timeout = timeout;
        self
    }

    pub fn connect(&self) -> Result<Connection> {
        let unreachable = || format!("cannot reach {}", self.address);
        let tcp = match self.address.parse::<SocketAddr>() {
            Ok(address) => TcpStream::connect_timeout(&address, self.timeout).with_context(unreachable)?,
            Err(_) => TcpStream::connect(&self.address).with_context(unreachable)?,
        };
        tcp.set_nodelay(true)?;
        tcp.set_read_timeout(Some(self.timeout))?;
        tcp.set_write_timeout(Some(self.timeout))?;
        let host = self.address.rsplit_once(':').map_or(self.address.as_str(), |(host, _)| host).to_owned();
        let tls = ClientConnection::new(Arc::clone(&self.config), ServerName::try_from(host)?)?;
        Ok(Connection { stream: BufReader::with_capacity(256 << 10, StreamOwned::new(tls, tcp)) })
    }
}

/// A connection that is reused.
pub struct Connection {
    stream: BufReader<StreamOwned<ClientConnection, TcpStream>>,
}

/// The length of the answer's body.
enum Body {
    Length(usize),
    Chunked,
}

struct Head {
    code: u16,
    body: Body,
}

pub struct Answer {
    pub code: u16,
    pub body: Vec<u8>,
}

/// A watch that was answered with another code than 200.
#[derive(Debug)]
pub struct Refused {
    pub code: u16,
    pub text: String,
}

impl std::fmt::Display for Refused {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "the watch was answered with {}: {}", self.code, self.text)
    }
}

impl std::error::Error for Refused {}

impl Connection {
    /// Sends one request; fails unless the answer's code is 2xx.
    pub fn send(&mut self, method: &str, path: &str, body: Option<&[u8]>) -> Result<Vec<u8>> {
        let answer = self.request(method, path, JSON, body)?;
        if !(200..300).contains(&answer.code) {
            bail!("{method} {path}: {} {}", answer.code, String::from_utf8_lossy(&answer.body));
        }
        Ok(answer.body)
    }

    /// Sends one request, whatever the answer's code; fails without a complete answer.
    pub fn request(
        &mut self,
        method: &str,
        path: &str,
        content_type: &str,
        body: Option<&[u8]>,
    ) -> Result<Answer> {
        let head = self.start(method, path, [JSON, content_type], body)?;
        Ok(Answer { code: head.code, body: self.whole(&head.body)? })
    }

    fn whole(&mut self, body: &Body) -> Result<Vec<u8>> {
        let mut bytes = Vec::new();
        match *body {
            Body::Length(length) => {
                bytes.resize(length, 0);
                self.stream.read_exact(&mut bytes)?;
            }
            Body::Chunked => while self.chunk(&mut bytes)? {},
        }
        Ok(bytes)
    }

    pub fn json(&mut self, method: &str, path: &str, body: Option<&Value>) -> Result<Value> {
        let body = body.map(Value::to_string);
        Ok(serde_json::from_slice(&self.send(method, path, body.as_deref().map(str::as_bytes))?)?)
    }

    /// Starts a watch; the connection is used for it alone from now on.
    pub fn watch(self, path: &str) -> Result<Watch> {
        self.watch_as(path, JSON)
    }

    /// Starts a watch like [`Self::watch`], with another content type.
    pub fn watch_as(mut self, path: &str, accept: &str) -> Result<Watch> {
        let head = self.start("GET", path, [accept, JSON], None)?;
        if head.code != 200 {
            let text = self.whole(&head.body)?;
            return Err(Refused { code: head.code, text: String::from_utf8_lossy(&text).into_owned() }.into());
        }
        match head.body {
            Body::Chunked => Ok(Watch { connection: self, pending: Vec::new() }),
            Body::Length(_) => bail!("the answer to a watch has an end"),
        }
    }

    /// Sends a request and reads the head of the answer; `types` are the content types of the answer and of
    /// the body.
    fn start(&mut self, method: &str, path: &str, types: [&str; 2], body: Option<&[u8]>) -> Result<Head> {
        let body = body.unwrap_or_default();
        let mut request = format!(
            "{method} {path} HTTP/1.1\r\nHost: xtask\r\nAccept: {}\r\n\
             Content-Type: {}\r\nContent-Length: {}\r\n\r\n",
            types[0],
            types[1],
            body.len()
        )
        .into_bytes();
        request.extend_from_slice(body);
        let stream = self.stream.get_mut();
        stream.write_all(&request)?;
        stream.flush()?;
        let status = self.line()?;
        let code = status.split(' ').nth(1).and_then(|c| c.parse().ok());
        let code = code.with_context(|| format!("not a status line: {status}"))?;
        let mut length = Body::Length(0);
        loop {
            let line = self.line()?.to_ascii_lowercase();
            if line.is_empty() {
                break;
            }
            if let Some(value) = line.strip_prefix("content-length:") {
                length = Body::Length(value.trim().parse()?);
            } else if line.starts_with("transfer-encoding:") && line.ends_with("chunked") {
                length = Body::Chunked;
            }
        }
        Ok(Head { code, body: length })
    }

    fn line(&mut self) -> Result<String> {
        let mut line = String::new();
        if self.stream.read_line(&mut line)? == 0 {
            bail!("the server closed the connection");
        }
        Ok(line.trim_end().to_owned())
    }

    /// Appends the next chunk; returns false at the end.
    fn chunk(&mut self, bytes: &mut Vec<u8>) -> Result<bool> {
        let length = usize::from_str_radix(self.line()?.split(';').next().unwrap_or_default(), 16)?;
        let begin = bytes.len();
        bytes.resize(begin + length, 0);
        self.stream.read_exact(&mut bytes[begin..])?;
        self.line()?;
        Ok(length > 0)
    }
}

/// The events of a watch, one after the other.
pub struct Watch {
    connection: Connection,
    pending: Vec<u8>,
}

impl Watch {
    pub fn next(&mut self) -> Result<Value> {
        Ok(serde_json::from_slice(&self.next_line()?)?)
    }

    /// Returns the next event as it was received.
    pub fn next_line(&mut self) -> Result<Vec<u8>> {
        loop {
            if let Some(end) = self.pending.iter().position(|b| *b == b'\n') {
                return Ok(self.pending.drain(..=end).collect());
            }
            if !self.connection.chunk(&mut self.pending)? {
                bail!("the watch ended");
            }
        }
    }
}
