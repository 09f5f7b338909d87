//! The client side of one HTTP/2 connection: length-prefixed messages, status in the trailers.

use std::path::Path;
use std::time::Duration;

use bytes::Bytes;
use http::{HeaderMap, HeaderName, HeaderValue, Request, Uri};
use http_body::Frame;
use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyExt, Full, StreamBody};
use hyper::body::Incoming as IncomingBody;
use hyper::client::conn::http2::{Builder, SendRequest};
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use prost::Message;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::UnixStream;
use tokio::sync::mpsc;

use crate::error::{CallError, Code};
use crate::message::{Incoming, frame};

type Body = UnsyncBoxBody<Bytes, std::convert::Infallible>;

/// The number of requests of a stream that may wait to be sent.
const REQUESTS: usize = 8;

/// The settings of a connection.
#[derive(Debug, Clone)]
pub struct Options {
    /// The longest message that is accepted from the server, in bytes.
    pub max_message: usize,
    /// Pings a silent server to check that it is still alive.
    pub keep_alive: Option<KeepAlive>,
    /// The flow control windows of a stream and of the connection, in bytes.
    pub windows: (u32, u32),
    /// Headers that are sent with every call.
    pub headers: Vec<(HeaderName, HeaderValue)>,
}

/// How often a silent server is pinged, and how long it may take to answer.
#[derive(Debug, Clone, Copy)]
pub struct KeepAlive {
    pub every: Duration,
    pub timeout: Duration,
}

impl Default for Options {
    /// Suits servers on the same machine; messages up to 16 MiB, which the kubelet accepts from a runtime.
    fn default() -> Self {
        Self { max_message: 16 << 20, keep_alive: None, windows: (1 << 20, 4 << 20), headers: Vec::new() }
    }
}

/// One connection, which clones share.
#[derive(Clone)]
pub struct Connection {
    send: SendRequest<Body>,
    authority: String,
    headers: Vec<(HeaderName, HeaderValue)>,
    max_message: usize,
}

impl Connection {
    /// Performs the HTTP/2 handshake on an established connection.
    pub async fn handshake<I>(io: I, authority: &str, options: Options) -> Result<Self, CallError>
    where
        I: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    {
        let mut builder = Builder::new(TokioExecutor::new());
        builder
            .timer(TokioTimer::new())
            .initial_stream_window_size(options.windows.0)
            .initial_connection_window_size(options.windows.1)
            .max_frame_size(1 << 20);
        if let Some(keep_alive) = options.keep_alive {
            builder.keep_alive_interval(keep_alive.every).keep_alive_timeout(keep_alive.timeout);
        }
        let (send, connection) =
            builder.handshake(TokioIo::new(io)).await.map_err(|e| CallError::NotSent(transport(&e)))?;
        let with = authority.to_owned();
        tokio::spawn(async move {
            if let Err(error) = connection.await {
                tracing::debug!(%error, with, "a gRPC connection ended");
            }
        });
        Ok(Self {
            send,
            authority: authority.to_owned(),
            headers: options.headers,
            max_message: options.max_message,
        })
    }

    /// Connects to a unix socket on this machine.
    pub async fn unix(socket: &Path) -> Result<Self, CallError> {
        Self::unix_with(socket, Options::default()).await
    }

    /// Connects to a unix socket on this machine, with other settings.
    pub async fn unix_with(socket: &Path, options: Options) -> Result<Self, CallError> {
        let stream = UnixStream::connect(socket).await.map_err(|e| {
            CallError::NotSent(format!(
                "transport: Error while dialing: dial unix {}: connect: {}",
                socket.display(),
                system(&e)
            ))
        })?;
        Self::handshake(stream, "localhost", options).await
    }

    /// Returns the same connection with one more header for every call.
    pub fn with_header(mut self, name: HeaderName, value: HeaderValue) -> Self {
        self.headers.push((name, value));
        self
    }

    pub fn is_closed(&self) -> bool {
        self.send.is_closed()
    }

    /// Performs a call with one request and one answer.
    pub async fn unary<A: Message + Default>(
        &self,
        path: &str,
        message: &impl Message,
    ) -> Result<A, CallError> {
        let mut answers = self.call(path, Full::new(frame(message)).boxed_unsync()).await?;
        let answer = answers.next().await?;
        // The trailers after the message contain the status of the call.
        let rest = answers.next::<A>().await?;
        match (answer, rest) {
            (Some(answer), None) => Ok(answer),
            _ => Err(CallError::Broken("the server answered with something else than one message".into())),
        }
    }

    /// Performs a call with one request and a stream of answers.
    pub async fn server_stream(&self, path: &str, message: &impl Message) -> Result<Answers, CallError> {
        self.call(path, Full::new(frame(message)).boxed_unsync()).await
    }

    /// Performs a call with a stream of requests and a stream of answers.
    pub async fn stream(&self, path: &str, first: &impl Message) -> Result<(Requests, Answers), CallError> {
        let (sender, receiver) = mpsc::channel::<Bytes>(REQUESTS);
        let requests = Requests { sender };
        requests.send(first);
        let frames = futures_util::stream::unfold(receiver, |mut receiver| async move {
            receiver.recv().await.map(|bytes| (Ok(Frame::data(bytes)), receiver))
        });
        let answers = self.call(path, StreamBody::new(frames).boxed_unsync()).await?;
        Ok((requests, answers))
    }

    async fn call(&self, path: &str, body: Body) -> Result<Answers, CallError> {
        let uri = Uri::builder().scheme("http").authority(self.authority.as_str()).path_and_query(path);
        let not_sent = |e: http::Error| CallError::NotSent(e.to_string());
        let mut request = Request::post(uri.build().map_err(not_sent)?)
            .header("content-type", "application/grpc")
            .header("te", "trailers");
        for (name, value) in &self.headers {
            request = request.header(name, value);
        }
        let request = request.body(body).map_err(not_sent)?;
        let mut send = self.send.clone();
        let response = send.send_request(request).await.map_err(|e| {
            if e.is_canceled() { CallError::NotSent(transport(&e)) } else { CallError::Broken(transport(&e)) }
        })?;
        let (head, body) = response.into_parts();
        if !head.status.is_success() {
            return Err(CallError::Broken(format!("unexpected HTTP status {}", head.status)));
        }
        if let Some(result) = status_of(&head.headers) {
            result?;
        }
        Ok(Answers { body, received: Incoming::default(), max_message: self.max_message })
    }
}

/// The sending half of a stream. Dropping it ends the requests.
pub struct Requests {
    sender: mpsc::Sender<Bytes>,
}

impl Requests {
    /// Queues a message; returns false if too many are waiting, in which case the caller may try again later.
    pub fn send(&self, message: &impl Message) -> bool {
        self.sender.try_send(frame(message)).is_ok()
    }
}

/// The receiving half of a call.
pub struct Answers {
    body: IncomingBody,
    received: Incoming,
    max_message: usize,
}

impl Answers {
    /// Returns the next message; `None` when the call has ended successfully. Cancel safe.
    pub async fn next<A: Message + Default>(&mut self) -> Result<Option<A>, CallError> {
        loop {
            if let Some(message) = self.received.take(self.max_message).map_err(CallError::Broken)? {
                return A::decode(message)
                    .map(Some)
                    .map_err(|e| CallError::Broken(format!("undecodable answer: {e}")));
            }
            let frame = match self.body.frame().await {
                None => return Err(CallError::Broken("error reading from server: EOF".into())),
                Some(Err(e)) => return Err(CallError::Broken(transport(&e))),
                Some(Ok(frame)) => frame,
            };
            match frame.into_data() {
                Ok(data) => self.received.push(data),
                Err(frame) => {
                    let trailers = frame.into_trailers().unwrap_or_default();
                    let unknown = || CallError::Broken("the call ended without a status".into());
                    return status_of(&trailers).ok_or_else(unknown)?.map(|()| None);
                }
            }
        }
    }
}

/// Returns the status of the call from headers or trailers; `None` if they contain none.
fn status_of(headers: &HeaderMap) -> Option<Result<(), CallError>> {
    let code = headers.get("grpc-status")?.to_str().ok().and_then(|c| c.parse::<u32>().ok());
    let code = code.map_or(Code::UNKNOWN, Code);
    if code == Code::OK {
        return Some(Ok(()));
    }
    let message = headers.get("grpc-message").map(|m| percent_decoded(m.as_bytes())).unwrap_or_default();
    Some(Err(CallError::Status { code, message }))
}

fn percent_decoded(bytes: &[u8]) -> String {
    let mut decoded = Vec::with_capacity(bytes.len());
    let mut rest = bytes;
    while let [first, tail @ ..] = rest {
        let escaped = (*first == b'%')
            .then(|| {
                std::str::from_utf8(tail.get(..2)?).ok().and_then(|hex| u8::from_str_radix(hex, 16).ok())
            })
            .flatten();
        decoded.push(escaped.unwrap_or(*first));
        rest = if escaped.is_some() { &tail[2..] } else { tail };
    }
    String::from_utf8_lossy(&decoded).into_owned()
}

/// Returns a system error in the wording of Go's standard library.
fn system(error: &std::io::Error) -> String {
    match error.kind() {
        std::io::ErrorKind::NotFound => "no such file or directory".to_owned(),
        std::io::ErrorKind::ConnectionRefused => "connection refused".to_owned(),
        std::io::ErrorKind::PermissionDenied => "permission denied".to_owned(),
        _ => error.to_string(),
    }
}

fn transport(error: &hyper::Error) -> String {
    let mut text = error.to_string();
    let mut source = std::error::Error::source(error);
    while let Some(cause) = source {
        text = format!("{text}: {cause}");
        source = cause.source();
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn statuses_are_read_from_trailers() {
        let mut trailers = HeaderMap::new();
        assert!(status_of(&trailers).is_none());
        trailers.insert("grpc-status", HeaderValue::from_static("0"));
        assert!(matches!(status_of(&trailers), Some(Ok(()))));
        trailers.insert("grpc-status", HeaderValue::from_static("11"));
        trailers.insert("grpc-message", HeaderValue::from_static("100%25 gone%2"));
        let Some(Err(CallError::Status { code, message })) = status_of(&trailers) else { panic!("no error") };
        assert_eq!((code, message.as_str()), (Code::OUT_OF_RANGE, "100% gone%2"));
    }
}
