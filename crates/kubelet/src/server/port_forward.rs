//! Port-forward: TCP connections into a pod's network namespace.
//!
//! There are two protocols: WebSocket channels, with one pair for each requested port; or SPDY, directly or inside
//! a WebSocket, with a pair of streams for each connection.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures_util::{SinkExt, StreamExt};
use http::{Request, StatusCode};
use hyper::body::Incoming;
use knarr_api::kind::Kind;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::sync::mpsc;
use tokio::task::JoinSet;
use tokio_tungstenite::tungstenite::Message;
use tokio_util::sync::CancellationToken;

use super::answer::{self, Answer};
use super::channels::{self, Channels, Codec, Input, Output};
use super::handler::Handler;
use super::route::{self, Target};
use super::spdy::{self, Outgoing, Stream};
use super::upgrade::{self, STREAMING_IDLE, Wanted, WebSocket};
use crate::runtime::{Connection, ContainerRuntime, RuntimeError};

const BUFFER: usize = 32 << 10;
/// The size of the buffer between a WebSocket and the SPDY connection inside it, in bytes.
const TUNNEL_BUFFER: usize = 64 << 10;
const MAX_PORTS: usize = 64;
/// A stream is dropped if the other stream of its pair is not opened within this time; upstream's stream creation
/// timeout.
const PAIR_TIMEOUT: Duration = Duration::from_secs(30);
/// The maximum of concurrent connections over one client connection.
const MAX_CONNECTIONS: usize = 500;

#[derive(Debug, Clone, Copy)]
enum Protocol {
    Channels(Codec),
    /// SPDY inside the WebSocket.
    Tunnel,
}

const PROTOCOLS: &[(&str, Protocol)] = &[
    ("", Protocol::Channels(Codec { binary: true, closes: false })),
    ("v4.channel.k8s.io", Protocol::Channels(Codec { binary: true, closes: false })),
    ("v4.base64.channel.k8s.io", Protocol::Channels(Codec { binary: false, closes: false })),
    ("SPDY/3.1+portforward.k8s.io", Protocol::Tunnel),
];

const SPDY_PROTOCOLS: &[(&str, ())] = &[("portforward.k8s.io", ())];

pub async fn port_forward(
    handler: &Handler,
    target: &Target,
    request: Request<Incoming>,
    stop: &CancellationToken,
) -> Answer {
    let Some(pod) = handler.pod(target) else {
        return answer::text(StatusCode::NOT_FOUND, "pod does not exist");
    };
    let sandbox = match handler.pods.sandbox_id(&pod).await {
        Ok(sandbox) => sandbox,
        Err(error) => return answer::text(StatusCode::INTERNAL_SERVER_ERROR, error.to_string()),
    };
    let forwarder = Arc::new(Forwarder {
        runtime: Arc::clone(&handler.runtime),
        sandbox,
        pod: format!("{}_{}", pod.name(), pod.namespace()),
        uid: pod.uid().to_owned(),
    });
    let wanted = upgrade::wanted(request.headers());
    let stop = stop.clone();
    match &wanted {
        Some(Wanted::WebSocket { key, protocols }) => {
            let Some((name, protocol)) = upgrade::negotiate(protocols, PROTOCOLS) else {
                return upgrade::refused(wanted.as_ref());
            };
            let ports = ports(&route::query(request.uri().query().unwrap_or("")));
            let ports = match (protocol, ports) {
                (Protocol::Channels(_), Err(text)) => return answer::text(StatusCode::BAD_REQUEST, text),
                (_, ports) => ports.unwrap_or_default(),
            };
            let (answer, socket) = upgrade::to_websocket(request, key, name);
            tokio::spawn(async move {
                let Some(socket) = socket.await else { return };
                let idle = socket.get_ref().idle_for(STREAMING_IDLE);
                let session = async {
                    match protocol {
                        Protocol::Channels(codec) => over_channels(forwarder, socket, codec, &ports).await,
                        Protocol::Tunnel => over_spdy(forwarder, tunnel(socket)).await,
                    }
                };
                tokio::select! {
                    () = stop.cancelled() => {}
                    () = session => {}
                    () = idle => tracing::debug!("port-forward ended: idle for too long"),
                }
            });
            answer
        }
        Some(Wanted::Spdy { protocols }) => {
            let Some((name, ())) = upgrade::negotiate(protocols, SPDY_PROTOCOLS) else {
                return upgrade::refused(wanted.as_ref());
            };
            let (answer, socket) = upgrade::to_spdy(request, name);
            tokio::spawn(async move {
                let Some(socket) = socket.await else { return };
                let idle = socket.idle_for(STREAMING_IDLE);
                tokio::select! {
                    () = stop.cancelled() => {}
                    () = idle => tracing::debug!("port-forward ended: idle for too long"),
                    () = over_spdy(forwarder, socket) => {}
                }
            });
            answer
        }
        None => upgrade::refused(None),
    }
}

/// Returns the ports that a WebSocket client requests.
fn ports(query: &[(String, String)]) -> Result<Vec<u16>, String> {
    let values: Vec<&str> =
        query.iter().filter(|(name, _)| name == "port").map(|(_, v)| v.as_str()).collect();
    if values.is_empty() {
        return Err("query parameter \"port\" is required".to_owned());
    }
    let mut ports = Vec::new();
    for value in values {
        if value.is_empty() {
            return Err("query parameter \"port\" cannot be empty".to_owned());
        }
        for part in value.split(',') {
            match part.parse::<u16>() {
                Ok(0) => return Err(format!("port {value:?} must be > 0")),
                Ok(port) => ports.push(port),
                Err(error) => return Err(format!("unable to parse {value:?} as a port: {error}")),
            }
        }
    }
    if ports.len() > MAX_PORTS {
        return Err(format!("at most {MAX_PORTS} ports can be forwarded"));
    }
    Ok(ports)
}

/// Opens connections into one pod.
struct Forwarder {
    runtime: Arc<dyn ContainerRuntime>,
    sandbox: String,
    pod: String,
    uid: String,
}

impl Forwarder {
    async fn connect(&self, port: u16) -> Result<Box<dyn Connection>, String> {
        self.runtime.port_forward(&self.sandbox, port).await.map_err(|error| self.fault(port, &error))
    }

    fn fault(&self, port: u16, error: &RuntimeError) -> String {
        format!("error forwarding port {port} to pod {}, uid {}: {error}", self.pod, self.uid)
    }
}

/// Forwards over a pair of channels for each port: 2n carries data, 2n + 1 errors; both begin with the port.
async fn over_channels(forwarder: Arc<Forwarder>, socket: WebSocket, codec: Codec, ports: &[u16]) {
    let (Channels { mut input, output }, connection) = channels::over_websocket(socket, codec);
    let mut pairs = JoinSet::new();
    let mut feeds = Vec::new();
    for (n, port) in ports.iter().enumerate() {
        // With at most MAX_PORTS pairs the numbers fit.
        let channel = (n * 2) as u8;
        let (feed, incoming) = mpsc::channel(1);
        feeds.push(feed);
        pairs.spawn(channel_pair(Arc::clone(&forwarder), *port, channel, incoming, output.clone()));
    }
    drop(output);
    let route = async move {
        while let Some(message) = input.recv().await {
            if let Input::Data(channel, data) = message
                && channel % 2 == 0
                && let Some(feed) = feeds.get(usize::from(channel / 2))
            {
                // If the connection has ended, the data is dropped.
                let _ = feed.send(data).await;
            }
        }
    };
    let work = async move {
        let mut route = Box::pin(route);
        tokio::select! {
            () = &mut route => {}
            () = async { while pairs.join_next().await.is_some() {} } => {}
        }
    };
    // The connection ends once every pair has dropped its output.
    tokio::join!(work, connection);
}

async fn channel_pair(
    forwarder: Arc<Forwarder>,
    port: u16,
    channel: u8,
    incoming: mpsc::Receiver<Bytes>,
    output: mpsc::Sender<Output>,
) {
    for channel in [channel, channel + 1] {
        let number = Bytes::copy_from_slice(&port.to_le_bytes());
        if output.send(Output { channel, data: number }).await.is_err() {
            return;
        }
    }
    match forwarder.connect(port).await {
        Ok(connection) => {
            let send = |data| {
                let output = output.clone();
                async move { output.send(Output { channel, data }).await.is_ok() }
            };
            if let Some(text) = carry(connection, incoming, send).await {
                let _ = output.send(Output { channel: channel + 1, data: text.into() }).await;
            }
        }
        Err(text) => {
            let _ = output.send(Output { channel: channel + 1, data: text.into() }).await;
        }
    }
}

/// Copies both ways until the pod's side has ended. Returns the error of a runtime that connects only when data is
/// transferred and could not.
async fn carry<F: Future<Output = bool>>(
    connection: Box<dyn Connection>,
    mut incoming: mpsc::Receiver<Bytes>,
    send: impl Fn(Bytes) -> F,
) -> Option<String> {
    let (mut reader, mut writer) = tokio::io::split(connection);
    let from_pod = async {
        let mut buffer = vec![0; BUFFER];
        loop {
            match reader.read(&mut buffer).await {
                Ok(count @ 1..) if send(Bytes::copy_from_slice(&buffer[..count])).await => {}
                Ok(_) => return None,
                Err(error) if error.kind() == std::io::ErrorKind::Other => return Some(error.to_string()),
                Err(_) => return None,
            }
        }
    };
    let to_pod = async {
        while let Some(data) = incoming.recv().await {
            if writer.write_all(&data).await.is_err() {
                break;
            }
        }
        let _ = writer.shutdown().await;
        // The pod may still send data.
        std::future::pending::<()>().await;
    };
    tokio::select! {
        error = from_pod => error,
        () = to_pod => None,
    }
}

/// Returns the payload of a WebSocket's messages as a byte stream.
fn tunnel(socket: WebSocket) -> impl AsyncRead + AsyncWrite + Unpin + Send + 'static {
    let (near, far) = tokio::io::duplex(TUNNEL_BUFFER);
    let (mut sink, mut stream) = socket.split();
    let (mut reader, mut writer) = tokio::io::split(far);
    let inward = async move {
        while let Some(Ok(message)) = stream.next().await {
            let written = match message {
                Message::Binary(bytes) => writer.write_all(&bytes).await.is_ok(),
                other => !other.is_close(),
            };
            if !written {
                return;
            }
        }
    };
    let outward = async move {
        let mut buffer = vec![0; BUFFER];
        while let Ok(count @ 1..) = reader.read(&mut buffer).await {
            let message = Message::Binary(Bytes::copy_from_slice(&buffer[..count]));
            if sink.send(message).await.is_err() {
                return;
            }
        }
        let _ = sink.close().await;
    };
    tokio::spawn(async move {
        tokio::select! {
            () = inward => {}
            () = outward => {}
        }
    });
    near
}

/// A data stream and its error stream.
#[derive(Default)]
struct Pair {
    data: Option<Stream>,
    error: Option<Stream>,
}

async fn over_spdy<S>(forwarder: Arc<Forwarder>, io: S)
where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let (mut accepted, connection) = spdy::connection(io);
    let serve = async move {
        let mut waiting: BTreeMap<String, (Pair, tokio::time::Instant)> = BTreeMap::new();
        let mut running = JoinSet::new();
        while let Some(stream) = accepted.recv().await {
            while running.try_join_next().is_some() {}
            waiting.retain(|_, (_, since)| since.elapsed() < PAIR_TIMEOUT);
            let Some((key, is_error)) = pair_key(&stream) else {
                stream.outgoing.finish().await;
                continue;
            };
            let (pair, _) =
                waiting.entry(key.clone()).or_insert_with(|| (Pair::default(), tokio::time::Instant::now()));
            if is_error {
                pair.error = Some(stream);
            } else {
                pair.data = Some(stream);
            }
            if pair.data.is_none() || pair.error.is_none() {
                continue;
            }
            if let Some((Pair { data: Some(data), error: Some(error) }, _)) = waiting.remove(&key) {
                if running.len() >= MAX_CONNECTIONS {
                    running.join_next().await;
                }
                running.spawn(spdy_pair(Arc::clone(&forwarder), data, error.outgoing));
            }
        }
    };
    tokio::join!(serve, connection);
}

/// Returns the key of the pair to which a stream belongs, and whether it is the error stream.
fn pair_key(stream: &Stream) -> Option<(String, bool)> {
    let is_error = match stream.headers.get("streamtype").map(String::as_str) {
        Some("error") => true,
        Some("data") => false,
        _ => return None,
    };
    let key = stream.headers.get("requestid").cloned().unwrap_or_else(|| {
        // Old clients open the error stream first, and the data stream right after it.
        format!("#{}", if is_error { stream.id } else { stream.id.wrapping_sub(2) })
    });
    Some((key, is_error))
}

async fn spdy_pair(forwarder: Arc<Forwarder>, data: Stream, errors: Outgoing) {
    let text = data.headers.get("port").map(String::as_str).unwrap_or("");
    let connected = match text.parse::<u16>() {
        Ok(port @ 1..) => forwarder.connect(port).await,
        _ => Err(format!("unable to parse {text:?} as a port")),
    };
    match connected {
        Ok(connection) => {
            let outgoing = &data.outgoing;
            if let Some(text) = carry(connection, data.incoming, |bytes| outgoing.data(bytes)).await {
                errors.data(text.into()).await;
            }
        }
        Err(text) => {
            errors.data(text.into()).await;
        }
    }
    data.outgoing.finish().await;
    errors.finish().await;
}

#[cfg(test)]
mod unit_tests {
    use super::*;

    #[test]
    fn ports_of_a_query() {
        let parse = |text: &str| ports(&route::query(text));
        assert_eq!(parse("port=80&port=443,8080"), Ok(vec![80, 443, 8080]));
        assert_eq!(parse("x=1"), Err("query parameter \"port\" is required".into()));
        for bad in ["port=", "port=0", "port=70000", "port=a"] {
            assert!(parse(bad).is_err(), "{bad}");
        }
    }
}
