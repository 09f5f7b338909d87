//! Hand-written HTTP/1.1, so that paths and headers are sent exactly as given.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, ServerName};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;

const PATIENCE: Duration = Duration::from_secs(60);
/// The maximum length of a response; the connection of a longer one is closed.
const LONGEST: usize = 1 << 16;

/// The address of a server, and the CA of its certificate.
#[derive(Clone)]
pub struct Place {
    address: SocketAddr,
    tls: TlsConnector,
}

/// The parts of a response that are compared: its code, and its body if its length is known and short.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Answer {
    pub code: u16,
    pub body: String,
}

/// One connection to a server, reopened after a response that is not read completely.
pub struct Line {
    place: Place,
    open: Option<TlsStream<TcpStream>>,
}

impl Place {
    pub fn new(address: SocketAddr, authority_pem: &str) -> Self {
        let mut roots = rustls::RootCertStore::empty();
        roots.add(CertificateDer::from_pem_slice(authority_pem.as_bytes()).unwrap()).unwrap();
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let mut tls = rustls::ClientConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_root_certificates(roots)
            .with_no_client_auth();
        tls.alpn_protocols = vec![b"http/1.1".to_vec()];
        Self { address, tls: TlsConnector::from(Arc::new(tls)) }
    }

    pub fn line(&self) -> Line {
        Line { place: self.clone(), open: None }
    }

    async fn connect(&self) -> std::io::Result<TlsStream<TcpStream>> {
        let stream = TcpStream::connect(self.address).await?;
        stream.set_nodelay(true)?;
        self.tls.connect(ServerName::try_from("127.0.0.1").unwrap(), stream).await
    }
}

impl Line {
    /// Sends one request as it is. If the server does not answer, it is sent once more on a new connection.
    pub async fn ask(&mut self, request: &[u8]) -> Answer {
        let without_content = request.starts_with(b"HEAD ");
        let kept = self.open.is_some();
        match self.exchange(request, without_content).await {
            Ok(answer) => answer,
            Err(_) if kept => self.exchange(request, without_content).await.unwrap(),
            Err(error) => panic!("{error}: {}", String::from_utf8_lossy(request)),
        }
    }

    async fn exchange(&mut self, request: &[u8], without_content: bool) -> std::io::Result<Answer> {
        let mut stream = match self.open.take() {
            Some(stream) => stream,
            None => self.place.connect().await?,
        };
        let asking = async {
            stream.write_all(request).await?;
            stream.flush().await?;
            read(&mut stream, without_content).await
        };
        let (answer, whole) = tokio::time::timeout(PATIENCE, asking).await??;
        if whole {
            self.open = Some(stream);
        }
        Ok(answer)
    }
}

/// Reads the response. The flag is whether the connection accepts another request.
async fn read(stream: &mut TlsStream<TcpStream>, without_content: bool) -> std::io::Result<(Answer, bool)> {
    let mut bytes = Vec::new();
    let end = loop {
        if let Some(at) = bytes.windows(4).position(|w| w == b"\r\n\r\n") {
            break at + 4;
        }
        if stream.read_buf(&mut bytes).await? == 0 {
            return Err(std::io::ErrorKind::UnexpectedEof.into());
        }
    };
    let head = String::from_utf8_lossy(&bytes[..end]).to_ascii_lowercase();
    let code = head.split(' ').nth(1).and_then(|c| c.parse().ok()).unwrap_or(0);
    let header = |name: &str| head.lines().find_map(|l| l.strip_prefix(name)?.strip_prefix(": "));
    let stays = header("connection").is_none_or(|v| v != "close") && code != 101;
    if without_content {
        return Ok((Answer { code, body: String::new() }, stays));
    }
    let length = header("content-length").and_then(|l| l.parse::<usize>().ok());
    let Some(length) = length.filter(|l| *l <= LONGEST) else {
        return Ok((Answer { code, body: String::new() }, false));
    };
    while bytes.len() < end + length {
        if stream.read_buf(&mut bytes).await? == 0 {
            return Err(std::io::ErrorKind::UnexpectedEof.into());
        }
    }
    Ok((Answer { code, body: String::from_utf8_lossy(&bytes[end..]).into_owned() }, stays))
}
