//! Exec, attach and port-forward over the runtime's streaming server, which speaks SPDY/3.1.
//!
//! Source: `k8s.io/cri-streaming/pkg/streaming` (remotecommand and portforward).

use std::io;
use std::time::Duration;

use bytes::Bytes;
use http::{Request, StatusCode, Uri, header};
use http_body_util::{BodyExt, Empty, Limited};
use hyper::upgrade::Upgraded;
use hyper_util::rt::TokioIo;
use serde::Deserialize;
use tokio::io::AsyncReadExt;
use tokio::net::TcpStream;
use tokio::sync::{mpsc, oneshot};
use tokio_util::io::StreamReader;
use tokio_util::sync::{CancellationToken, DropGuard};

use crate::runtime::{
    BoxReader, BoxWriter, Connection, Control, Result, RuntimeError, Session, TerminalSize,
};
use crate::server::spdy::{self, Outgoing, Stream};

const EXEC_PROTOCOL: &str = "v4.channel.k8s.io";
const FORWARD_PROTOCOL: &str = "portforward.k8s.io";
const STREAM_PROTOCOL: &str = "x-stream-protocol-version";
/// The time limit for connecting to the streaming server, which runs on this machine.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);
/// The maximal length of the text of a refusal, and of an error stream, in bytes.
const MAX_TEXT: usize = 64 << 10;
/// The number of control messages that may be queued for a session; terminals change their size in bursts.
const CONTROLS: usize = 16;
const BUFFER: usize = 32 << 10;
/// How long a server may take to close the connection of an ended command.
const DRAIN: Duration = Duration::from_secs(30);

/// The requested streams of an exec or attach.
#[derive(Debug, Clone, Copy, Default)]
pub struct Wanted {
    pub stdin: bool,
    pub stdout: bool,
    pub stderr: bool,
    pub tty: bool,
    pub size: Option<TerminalSize>,
}

fn failed(error: impl std::fmt::Display) -> RuntimeError {
    RuntimeError::Failed(format!("error dialing the container runtime's streaming server: {error}"))
}

/// Connects to the address that the runtime has returned, and upgrades to SPDY/3.1.
async fn upgraded(url: &str, protocol: &'static str) -> Result<TokioIo<Upgraded>> {
    let uri: Uri = url.parse().map_err(failed)?;
    let authority = uri.authority().ok_or_else(|| failed(format!("no host in {url:?}")))?;
    if uri.scheme_str() != Some("http") {
        return Err(failed(format!("{url:?} is not a plain HTTP address")));
    }
    let host = authority.host().trim_start_matches('[').trim_end_matches(']');
    let connect = TcpStream::connect((host, authority.port_u16().unwrap_or(80)));
    let stream = tokio::time::timeout(CONNECT_TIMEOUT, connect).await.map_err(failed)?.map_err(failed)?;
    let (mut send, connection) =
        hyper::client::conn::http1::handshake(TokioIo::new(stream)).await.map_err(failed)?;
    tokio::spawn(connection.with_upgrades());
    let request = Request::post(uri.path_and_query().map_or("/", |path| path.as_str()))
        .header(header::HOST, authority.as_str())
        .header(header::CONNECTION, "Upgrade")
        .header(header::UPGRADE, "SPDY/3.1")
        .header(STREAM_PROTOCOL, protocol)
        .body(Empty::<Bytes>::new())
        .map_err(failed)?;
    let response = tokio::time::timeout(CONNECT_TIMEOUT, send.send_request(request));
    let response = response.await.map_err(failed)?.map_err(failed)?;
    let status = response.status();
    if status != StatusCode::SWITCHING_PROTOCOLS {
        let body = Limited::new(response.into_body(), MAX_TEXT).collect().await;
        let text = body.map(|body| body.to_bytes()).unwrap_or_default();
        return Err(failed(format!("{status}: {}", String::from_utf8_lossy(&text).trim())));
    }
    Ok(TokioIo::new(hyper::upgrade::on(response).await.map_err(failed)?))
}

/// Parses the command's result from the error stream of the protocol's fourth version.
fn outcome(text: &[u8]) -> Result<i32> {
    #[derive(Deserialize, Default)]
    #[serde(default)]
    struct Status {
        status: String,
        reason: String,
        message: String,
        details: Details,
    }
    #[derive(Deserialize, Default)]
    #[serde(default)]
    struct Details {
        causes: Vec<Cause>,
    }
    #[derive(Deserialize, Default)]
    #[serde(default)]
    struct Cause {
        reason: String,
        message: String,
    }
    if text.is_empty() {
        return Ok(0);
    }
    let status: Status = serde_json::from_slice(text).map_err(|error| {
        RuntimeError::Failed(format!(
            "error stream protocol error: {error} in {:?}",
            String::from_utf8_lossy(text)
        ))
    })?;
    match (status.status.as_str(), status.reason.as_str()) {
        ("Success", _) => Ok(0),
        ("Failure", "NonZeroExitCode") => {
            let code = status.details.causes.iter().find(|cause| cause.reason == "ExitCode");
            let code = code.and_then(|cause| cause.message.parse().ok());
            code.ok_or(RuntimeError::Failed(status.message))
        }
        // The error text is passed on to the kubelet's client.
        _ => {
            let text = status.message.as_str();
            let text = text.strip_prefix("Internal error occurred: ").unwrap_or(text);
            let verbs = ["error executing command in container: ", "error attaching to container: "];
            let text = verbs.iter().find_map(|verb| text.strip_prefix(verb)).unwrap_or(text);
            Err(RuntimeError::Failed(text.to_owned()))
        }
    }
}

async fn whole(incoming: &mut mpsc::Receiver<Bytes>) -> Vec<u8> {
    let mut text = Vec::new();
    while let Some(data) = incoming.recv().await {
        text.extend_from_slice(&data[..data.len().min(MAX_TEXT.saturating_sub(text.len()))]);
    }
    text
}

fn reader(stream: Stream) -> BoxReader {
    let stream = futures_util::stream::unfold(stream.incoming, |mut incoming| async move {
        incoming.recv().await.map(|data| (Ok::<_, io::Error>(data), incoming))
    });
    Box::new(StreamReader::new(Box::pin(stream)))
}

/// Returns a writer to the stream; closing it closes the stream.
fn writer(outgoing: Outgoing) -> BoxWriter {
    let (near, mut far) = tokio::io::duplex(BUFFER);
    tokio::spawn(async move {
        let mut buffer = vec![0; BUFFER];
        while let Ok(count @ 1..) = far.read(&mut buffer).await {
            if !outgoing.data(Bytes::copy_from_slice(&buffer[..count])).await {
                return;
            }
        }
        outgoing.finish().await;
    });
    Box::new(near)
}

fn size_text(size: TerminalSize) -> Bytes {
    serde_json::json!({"Width": size.columns, "Height": size.rows}).to_string().into()
}

/// Opens an exec or attach at the address that the runtime has returned.
pub async fn session(url: &str, wanted: Wanted) -> Result<Session> {
    let io = upgraded(url, EXEC_PROTOCOL).await?;
    let kinds: Vec<&str> = [
        ("error", true),
        ("stdin", wanted.stdin),
        ("stdout", wanted.stdout),
        ("stderr", wanted.stderr && !wanted.tty),
        ("resize", wanted.tty),
    ]
    .into_iter()
    .filter_map(|(kind, wanted)| wanted.then_some(kind))
    .collect();
    let headers: Vec<[(&str, &str); 1]> = kinds.iter().map(|kind| [("streamtype", *kind)]).collect();
    let headers: Vec<&[(&str, &str)]> = headers.iter().map(|one| one.as_slice()).collect();
    let (streams, connection) = spdy::client::open(io, &headers);
    let mut streams: std::collections::BTreeMap<&str, Stream> = kinds.into_iter().zip(streams).collect();
    let error = streams.remove("error").ok_or_else(|| failed("no error stream"))?;
    let resize = streams.remove("resize").map(|stream| stream.outgoing);
    if let (Some(resize), Some(size)) = (&resize, wanted.size) {
        resize.data(size_text(size)).await;
    }
    let (control, orders) = mpsc::channel(CONTROLS);
    let (exit_sender, exit) = oneshot::channel();
    let session = Session {
        stdin: streams.remove("stdin").map(|stream| writer(stream.outgoing)),
        stdout: streams.remove("stdout").map(reader),
        stderr: streams.remove("stderr").map(reader),
        control,
        exit,
    };
    tokio::spawn(run(connection, error, resize, orders, exit_sender));
    Ok(session)
}

/// Drives the connection until the command has ended and its output is sent, or the session was dropped.
async fn run(
    connection: impl Future<Output = ()> + Send,
    mut error: Stream,
    resize: Option<Outgoing>,
    mut orders: mpsc::Receiver<Control>,
    exit: oneshot::Sender<Result<i32>>,
) {
    let mut connection = Box::pin(connection);
    // This side sends nothing on the error stream.
    let mut exit = Some(exit);
    let mut text = Box::pin(async {
        error.outgoing.finish().await;
        whole(&mut error.incoming).await
    });
    let mut listening = true;
    let gone = async {
        match exit.as_mut() {
            Some(exit) => exit.closed().await,
            None => std::future::pending().await,
        }
    };
    let mut gone = Box::pin(gone);
    let (ended, lives) = loop {
        tokio::select! {
            // A connection that has ended has closed its streams: the text of the error stream is complete.
            () = &mut connection => break ((&mut text).await, false),
            ended = &mut text => break (ended, true),
            () = &mut gone => return,
            order = orders.recv(), if listening => match order {
                Some(Control::Resize(size)) => if let Some(resize) = &resize {
                    resize.data(size_text(size)).await;
                },
                // The runtime kills a command whose connection is closed, if it kills commands at all.
                Some(Control::Signal(_)) => return,
                None => listening = false,
            },
        }
    };
    drop(gone);
    if let Some(exit) = exit.take() {
        let lost = || RuntimeError::Failed("the container runtime closed the connection".to_owned());
        let _ = exit.send(if lives || !ended.is_empty() { outcome(&ended) } else { Err(lost()) });
    }
    if lives {
        // A slow reader may not have received all output yet.
        let _ = tokio::time::timeout(DRAIN, connection).await;
    }
}

/// The read side of a forwarded connection: its data, then the error that ended it, if any.
struct Forwarded {
    data: Stream,
    error: Stream,
    _connection: DropGuard,
}

impl Forwarded {
    async fn next(mut self) -> Option<(io::Result<Bytes>, Option<Self>)> {
        if let Some(data) = self.data.incoming.recv().await {
            return Some((Ok(data), Some(self)));
        }
        let text = whole(&mut self.error.incoming).await;
        let text = String::from_utf8_lossy(&text).trim().to_owned();
        (!text.is_empty()).then(|| (Err(io::Error::other(text)), None))
    }
}

/// Connects to a port of the sandbox at the address that the runtime has returned.
pub async fn forward(url: &str, port: u16) -> Result<Box<dyn Connection>> {
    let io = upgraded(url, FORWARD_PROTOCOL).await?;
    let port = port.to_string();
    let of = |kind| [("streamtype", kind), ("port", port.as_str()), ("requestid", "0")];
    let (error, data) = (of("error"), of("data"));
    let (streams, connection) = spdy::client::open(io, &[error.as_slice(), data.as_slice()]);
    let Ok([error, data]) = <[Stream; 2]>::try_from(streams) else {
        return Err(failed("the streams cannot be opened"));
    };
    let over = CancellationToken::new();
    let dropped = over.clone();
    tokio::spawn(async move {
        tokio::select! {
            () = connection => {}
            () = dropped.cancelled() => {}
        }
    });
    error.outgoing.finish().await;
    let writer = writer(data.outgoing.clone());
    let forwarded = Forwarded { data, error, _connection: over.drop_guard() };
    let stream = futures_util::stream::unfold(Some(forwarded), |state| async move { state?.next().await });
    Ok(Box::new(tokio::io::join(StreamReader::new(Box::pin(stream)), writer)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn outcomes() {
        let exited = r#"{"metadata":{},"status":"Failure","message":"m","reason":"NonZeroExitCode",
            "details":{"causes":[{"reason":"ExitCode","message":"3"}]}}"#;
        let failure = r#"{"status":"Failure","message":"Internal error occurred: error executing command in container: no such file","reason":"InternalError"}"#;
        for (text, expected) in [
            ("", Ok(0)),
            (r#"{"metadata":{},"status":"Success"}"#, Ok(0)),
            (exited, Ok(3)),
            (failure, Err("no such file")),
        ] {
            let found = outcome(text.as_bytes()).map_err(|error| error.to_string());
            assert_eq!(found, expected.map_err(str::to_owned), "{text}");
        }
        assert!(outcome(b"nonsense").is_err());
    }

    #[tokio::test]
    async fn addresses_that_are_none() {
        for url in ["", "http://", "https://127.0.0.1:1/x", "unix:///x", "http://127.0.0.1:1/x"] {
            assert!(upgraded(url, EXEC_PROTOCOL).await.is_err(), "{url}");
        }
    }
}
