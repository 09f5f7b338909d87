//! Exec and attach: the streams of a process over WebSocket channels or SPDY streams.
//!
//! Channels: 0 standard input, 1 output, 2 error output, 3 the result, 4 the terminal's size.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::{Request, StatusCode};
use hyper::body::Incoming;
use serde::Deserialize;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::sync::{Notify, mpsc, watch};
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use super::answer::{self, Answer};
use super::channels::{self, Channels, Codec, Input, Output};
use super::exec_result::ExecResult;
use super::handler::Handler;
use super::route::{self, Target};
use super::spdy;
use super::upgrade::{self, STREAMING_IDLE, Wanted};
use crate::pod_lookup::LookupError;
use crate::runtime::{
    AttachRequest, BoxReader, BoxWriter, ContainerRuntime, Control, ExecRequest, RuntimeError, Session,
    TerminalSize,
};

const STDIN: u8 = 0;
const STDOUT: u8 = 1;
const STDERR: u8 = 2;
const ERROR: u8 = 3;
const RESIZE: u8 = 4;

/// How long to wait for more output after the command has ended, while a process that it left behind keeps its
/// output open.
const DRAIN_TIMEOUT: Duration = Duration::from_secs(1);
/// How long a client may take to open its streams, and to close the connection.
const CLIENT_TIMEOUT: Duration = Duration::from_secs(30);
const BUFFER: usize = 32 << 10;

/// A version of the protocol.
#[derive(Debug, Clone, Copy)]
struct Protocol {
    codec: Codec,
    /// Whether the result is sent as a Status, else as text.
    status: bool,
}

const fn protocol(binary: bool, status: bool, closes: bool) -> Protocol {
    Protocol { codec: Codec { binary, closes }, status }
}

const PROTOCOLS: &[(&str, Protocol)] = &[
    ("", protocol(true, false, false)),
    ("channel.k8s.io", protocol(true, false, false)),
    ("base64.channel.k8s.io", protocol(false, false, false)),
    ("v4.channel.k8s.io", protocol(true, true, false)),
    ("v4.base64.channel.k8s.io", protocol(false, true, false)),
    ("v5.channel.k8s.io", protocol(true, true, true)),
];

const SPDY_PROTOCOLS: &[(&str, ())] = &[("v4.channel.k8s.io", ())];

/// The streams that the client asks for.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
struct Streams {
    stdin: bool,
    stdout: bool,
    stderr: bool,
    tty: bool,
}

impl Streams {
    fn parse(query: &[(String, String)]) -> Option<Self> {
        let tty = route::flag(query, "tty");
        let streams = Self {
            stdin: route::flag(query, "input"),
            stdout: route::flag(query, "output"),
            // A terminal has no separate error output.
            stderr: route::flag(query, "error") && !tty,
            tty,
        };
        (streams.stdin || streams.stdout || streams.stderr).then_some(streams)
    }
}

/// What the session carries out.
enum Order {
    Exec(ExecRequest),
    Attach(AttachRequest),
}

impl Order {
    async fn start(self, runtime: &dyn ContainerRuntime, container: &str) -> Result<Session, RuntimeError> {
        match self {
            Self::Exec(request) => runtime.exec(container, &request).await,
            Self::Attach(request) => runtime.attach(container, &request).await,
        }
    }

    fn verb(&self) -> &'static str {
        match self {
            Self::Exec(_) => "executing command in",
            Self::Attach(_) => "attaching to",
        }
    }

    /// Returns whether the process is killed when its client disconnects: a command is, a container is not.
    fn ends_with_client(&self) -> bool {
        matches!(self, Self::Exec(_))
    }
}

pub async fn exec(
    handler: &Handler,
    target: &Target,
    request: Request<Incoming>,
    stop: &CancellationToken,
) -> Answer {
    let query = route::query(request.uri().query().unwrap_or(""));
    let Some(streams) = Streams::parse(&query) else { return no_streams() };
    let command: Vec<String> = query.into_iter().filter(|(n, _)| n == "command").map(|(_, v)| v).collect();
    if command.is_empty() {
        return answer::text(StatusCode::BAD_REQUEST, "you must specify at least one command");
    }
    let container = match running(handler, target).await {
        Ok(container) => container.container_id,
        Err(answer) => return answer,
    };
    let Streams { stdin, stdout, stderr, tty } = streams;
    let order = Order::Exec(ExecRequest { command, stdin, stdout, stderr, tty, size: None });
    start(handler, container, order, streams, request, stop)
}

pub async fn attach(
    handler: &Handler,
    target: &Target,
    request: Request<Incoming>,
    stop: &CancellationToken,
) -> Answer {
    let query = route::query(request.uri().query().unwrap_or(""));
    let Some(mut streams) = Streams::parse(&query) else { return no_streams() };
    let container = match running(handler, target).await {
        Ok(container) => container,
        Err(answer) => return answer,
    };
    // The container decides whether there is a terminal, not the client's query.
    streams.tty = container.tty;
    streams.stderr &= !container.tty;
    streams.stdin &= container.stdin;
    let Streams { stdin, stdout, stderr, tty } = streams;
    let order = Order::Attach(AttachRequest { stdin, stdout, stderr, tty });
    start(handler, container.container_id, order, streams, request, stop)
}

fn no_streams() -> Answer {
    answer::text(StatusCode::BAD_REQUEST, "you must specify at least 1 of stdin, stdout, stderr")
}

async fn running(handler: &Handler, target: &Target) -> Result<crate::pod_lookup::ContainerRef, Answer> {
    let Some(pod) = handler.pod(target) else {
        return Err(answer::text(StatusCode::NOT_FOUND, "pod does not exist"));
    };
    let name = &target.container;
    let gone = || answer::text(StatusCode::INTERNAL_SERVER_ERROR, format!("container not found ({name:?})"));
    match handler.pods.container(&pod, name, false).await {
        Ok(container) if container.running => Ok(container),
        Err(LookupError::Runtime(text)) => Err(answer::text(StatusCode::INTERNAL_SERVER_ERROR, text)),
        Ok(_) | Err(_) => Err(gone()),
    }
}

/// Switches protocols and runs the session on a task of its own.
fn start(
    handler: &Handler,
    container: String,
    order: Order,
    streams: Streams,
    request: Request<Incoming>,
    stop: &CancellationToken,
) -> Answer {
    let wanted = upgrade::wanted(request.headers());
    let task = Task { runtime: Arc::clone(&handler.runtime), container, order, streams, stop: stop.clone() };
    match &wanted {
        Some(Wanted::WebSocket { key, protocols }) => {
            let Some((name, protocol)) = upgrade::negotiate(protocols, PROTOCOLS) else {
                return upgrade::refused(wanted.as_ref());
            };
            let (answer, socket) = upgrade::to_websocket(request, key, name);
            tokio::spawn(async move {
                let Some(socket) = socket.await else { return };
                let (channels, connection) = channels::over_websocket(socket, protocol.codec);
                task.run(channels, protocol.status, connection).await;
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
                let (accepted, connection) = spdy::connection(socket);
                let mut connection = tokio::spawn(connection);
                let expected = expected_streams(streams);
                let gathered = spdy::gather(accepted, &expected);
                match tokio::time::timeout(CLIENT_TIMEOUT, gathered).await {
                    Ok(Some((channels, copies))) => task.run(channels, true, copies).await,
                    _ => tracing::debug!("the client did not open its streams"),
                }
                // The client closes the connection when it has read the result.
                if tokio::time::timeout(CLIENT_TIMEOUT, &mut connection).await.is_err() {
                    connection.abort();
                }
            });
            answer
        }
        None => upgrade::refused(None),
    }
}

/// Returns the names of the streams that a SPDY client opens, with their channels.
fn expected_streams(streams: Streams) -> Vec<(&'static str, u8)> {
    let mut expected = vec![("error", ERROR)];
    for (wanted, name, channel) in [
        (streams.stdin, "stdin", STDIN),
        (streams.stdout, "stdout", STDOUT),
        (streams.stderr, "stderr", STDERR),
        (streams.tty, "resize", RESIZE),
    ] {
        if wanted {
            expected.push((name, channel));
        }
    }
    expected
}

struct Task {
    runtime: Arc<dyn ContainerRuntime>,
    container: String,
    order: Order,
    streams: Streams,
    stop: CancellationToken,
}

impl Task {
    /// Runs the command, sends its result, and closes the connection, which the future `connection` drives.
    async fn run(self, channels: Channels, as_status: bool, connection: impl Future<Output = ()> + Send) {
        let stop = self.stop.clone();
        let session = async move {
            let (verb, ends_with_client) = (self.order.verb(), self.order.ends_with_client());
            let Channels { input, output } = channels;
            greet(&output, self.streams).await;
            let result = match self.order.start(&*self.runtime, &self.container).await {
                Ok(session) => drive(session, input, &output, verb, ends_with_client).await,
                Err(error) => Some(ExecResult::of(verb, Err(error))),
            };
            if let Some(result) = result {
                send_result(&output, &result, as_status).await;
            }
        };
        tokio::select! {
            () = stop.cancelled() => {}
            // Both must end: the connection ends after the session has dropped its output.
            _ = async { tokio::join!(session, connection) } => {}
        }
    }
}

/// Sends an empty message, by which clients see that the connection is established.
async fn greet(output: &mpsc::Sender<Output>, streams: Streams) {
    let channel = match (streams.stdout, streams.stderr) {
        (true, _) => STDOUT,
        (false, true) => STDERR,
        (false, false) => ERROR,
    };
    let _ = output.send(Output { channel, data: Bytes::new() }).await;
}

async fn send_result(output: &mpsc::Sender<Output>, result: &ExecResult, as_status: bool) {
    let text = if as_status { Some(result.status_text()) } else { result.text() };
    if let Some(text) = text {
        let _ = output.send(Output { channel: ERROR, data: text.into() }).await;
    }
}

/// Copies the streams until the process has ended and its output is sent. `None` if the client has disconnected.
async fn drive(
    session: Session,
    input: mpsc::Receiver<Input>,
    output: &mpsc::Sender<Output>,
    verb: &str,
    ends_with_client: bool,
) -> Option<ExecResult> {
    let Session { stdin, stdout, stderr, control, mut exit } = session;
    let (ended_tx, ended) = watch::channel(false);
    let moved = Arc::new(Notify::new());
    let mut copies = JoinSet::new();
    for (reader, channel) in [(stdout, STDOUT), (stderr, STDERR)] {
        if let Some(reader) = reader {
            copies.spawn(copy_output(reader, channel, output.clone(), ended.clone(), Arc::clone(&moved)));
        }
    }
    let mut client = Box::pin(copy_input(stdin, input, control.clone(), Arc::clone(&moved)));
    let mut idle = Box::pin(idle(moved));
    let exited = tokio::select! {
        exited = &mut exit => exited.unwrap_or_else(|_| Err(RuntimeError::Failed("the runtime gave no answer".into()))),
        () = &mut client => {
            if ends_with_client {
                let _ = control.send(Control::Signal(libc::SIGKILL)).await;
            }
            return None;
        }
        () = &mut idle => {
            if ends_with_client {
                let _ = control.send(Control::Signal(libc::SIGKILL)).await;
            }
            return Some(ExecResult::Failed("the session was idle for too long".to_owned()));
        }
    };
    let _ = ended_tx.send(true);
    tokio::select! {
        () = async { while copies.join_next().await.is_some() {} } => {}
        () = &mut client => return None,
    }
    Some(ExecResult::of(verb, exited))
}

/// Ends when nothing was transferred for [`STREAMING_IDLE`].
async fn idle(moved: Arc<Notify>) {
    while tokio::time::timeout(STREAMING_IDLE, moved.notified()).await.is_ok() {}
}

async fn copy_output(
    mut reader: BoxReader,
    channel: u8,
    output: mpsc::Sender<Output>,
    mut ended: watch::Receiver<bool>,
    moved: Arc<Notify>,
) {
    let mut buffer = vec![0; BUFFER];
    loop {
        let over = *ended.borrow();
        let read = tokio::select! {
            read = reader.read(&mut buffer) => read,
            _ = ended.changed(), if !over => continue,
            () = tokio::time::sleep(DRAIN_TIMEOUT), if over => return,
        };
        let Ok(count @ 1..) = read else { return };
        moved.notify_one();
        let data = Bytes::copy_from_slice(&buffer[..count]);
        if output.send(Output { channel, data }).await.is_err() {
            return;
        }
    }
}

/// Copies the client's input to the process; ends when the client disconnects.
async fn copy_input(
    mut stdin: Option<BoxWriter>,
    mut input: mpsc::Receiver<Input>,
    control: mpsc::Sender<Control>,
    moved: Arc<Notify>,
) {
    while let Some(message) = input.recv().await {
        moved.notify_one();
        match message {
            Input::Data(STDIN, data) => {
                if let Some(writer) = &mut stdin
                    && writer.write_all(&data).await.is_err()
                {
                    // The process does not read any more; further input is dropped.
                    stdin = None;
                }
            }
            Input::Closed(STDIN) => {
                if let Some(mut writer) = stdin.take() {
                    let _ = writer.shutdown().await;
                }
            }
            Input::Data(RESIZE, data) => {
                if let Some(size) = terminal_size(&data) {
                    let _ = control.send(Control::Resize(size)).await;
                }
            }
            Input::Data(..) | Input::Closed(_) => {}
        }
    }
}

fn terminal_size(json: &[u8]) -> Option<TerminalSize> {
    #[derive(Deserialize)]
    #[serde(rename_all = "PascalCase")]
    struct Size {
        width: u16,
        height: u16,
    }
    let size: Size = serde_json::from_slice(json).ok()?;
    (size.width > 0 && size.height > 0).then_some(TerminalSize { columns: size.width, rows: size.height })
}

#[cfg(test)]
mod unit_tests {
    use super::*;

    #[test]
    fn wanted_streams() {
        let parse = |text: &str| Streams::parse(&route::query(text));
        let all = Streams { stdin: true, stdout: true, stderr: true, tty: false };
        assert_eq!(parse("input=1&output=1&error=1"), Some(all));
        assert_eq!(
            parse("input=1&output=1&error=1&tty=1"),
            Some(Streams { stderr: false, tty: true, ..all })
        );
        assert_eq!(parse("tty=1&error=1"), None);
        assert_eq!(parse("command=ls"), None);
    }

    #[test]
    fn sizes_of_terminals() {
        let size = TerminalSize { columns: 80, rows: 24 };
        assert_eq!(terminal_size(br#"{"Width":80,"Height":24}"#), Some(size));
        for bad in [&br#"{"Width":0,"Height":24}"#[..], b"{}", b"x", br#"{"Width":70000,"Height":1}"#] {
            assert_eq!(terminal_size(bad), None);
        }
    }
}
