//! gRPC over one HTTP/2 connection: length-prefixed messages, status in the trailers.
//!
//! Source: PROTOCOL-HTTP2.md of gRPC.

use std::time::Duration;

use bytes::{Buf, BufMut, Bytes, BytesMut};
use http::{HeaderMap, HeaderValue, Request, Uri};
use http_body::Frame;
use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyExt, Full, StreamBody};
use hyper::body::Incoming;
use hyper::client::conn::http2::{Builder, SendRequest};
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use prost::Message;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::sync::mpsc;

use super::error::CallError;

type Body = UnsyncBoxBody<Bytes, std::convert::Infallible>;

/// The longest message taken from a member.
const MAX_MESSAGE: usize = 1 << 30;
const PREFIX: usize = 5;
/// Large enough that a page of a range needs no round trip within.
const STREAM_WINDOW: u32 = 4 << 20;
const CONNECTION_WINDOW: u32 = 64 << 20;
/// A member that is silent for this long is asked whether it is there. etcd refuses more than one ping in 5 s.
const PING_EVERY: Duration = Duration::from_secs(10);
const PING_TIMEOUT: Duration = Duration::from_secs(5);
/// Requests of a stream that wait to be sent.
const REQUESTS: usize = 8;

/// One connection. Clones share it.
#[derive(Clone)]
pub struct Connection {
    send: SendRequest<Body>,
    authority: String,
    token: Option<HeaderValue>,
}

impl Connection {
    /// Speaks HTTP/2 on what was connected.
    pub async fn handshake<I>(io: I, authority: &str) -> Result<Self, CallError>
    where
        I: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    {
        let (send, connection) = Builder::new(TokioExecutor::new())
            .timer(TokioTimer::new())
            .initial_stream_window_size(STREAM_WINDOW)
            .initial_connection_window_size(CONNECTION_WINDOW)
            .max_frame_size(1 << 20)
            .keep_alive_interval(PING_EVERY)
            .keep_alive_timeout(PING_TIMEOUT)
            .handshake(TokioIo::new(io))
            .await
            .map_err(|e| CallError::NotSent(transport(&e)))?;
        tokio::spawn(async move {
            if let Err(error) = connection.await {
                tracing::debug!(%error, "connection to etcd ended");
            }
        });
        Ok(Self { send, authority: authority.to_owned(), token: None })
    }

    pub fn with_token(mut self, token: Option<HeaderValue>) -> Self {
        self.token = token;
        self
    }

    pub fn is_closed(&self) -> bool {
        self.send.is_closed()
    }

    /// One request, one answer.
    pub async fn unary<A: Message + Default>(
        &self,
        path: &'static str,
        message: &impl Message,
    ) -> Result<A, CallError> {
        let mut answers = self.call(path, Full::new(frame(message)).boxed_unsync()).await?;
        let answer = answers.next().await?;
        // What follows the message says whether it counts.
        let rest = answers.next::<A>().await?;
        match (answer, rest) {
            (Some(answer), None) => Ok(answer),
            _ => Err(CallError::Broken("etcd answered with something else than one message".into())),
        }
    }

    /// Requests and answers as they come.
    pub async fn stream(
        &self,
        path: &'static str,
        first: &impl Message,
    ) -> Result<(Requests, Answers), CallError> {
        let (sender, receiver) = mpsc::channel::<Bytes>(REQUESTS);
        let requests = Requests { sender };
        requests.send(first);
        let frames = futures_util::stream::unfold(receiver, |mut receiver| async move {
            receiver.recv().await.map(|bytes| (Ok(Frame::data(bytes)), receiver))
        });
        let answers = self.call(path, StreamBody::new(frames).boxed_unsync()).await?;
        Ok((requests, answers))
    }

    async fn call(&self, path: &'static str, body: Body) -> Result<Answers, CallError> {
        let uri = Uri::builder().scheme("http").authority(self.authority.as_str()).path_and_query(path);
        let not_sent = |e: http::Error| CallError::NotSent(e.to_string());
        let mut request = Request::post(uri.build().map_err(not_sent)?)
            .header("content-type", "application/grpc")
            .header("te", "trailers")
            // A member cut off from the others must say so instead of going silent.
            .header("hasleader", "true");
        if let Some(token) = &self.token {
            request = request.header("token", token);
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
        Ok(Answers { body, buffer: BytesMut::new() })
    }
}

/// The sending half of a stream. Dropping it ends the stream's requests.
pub struct Requests {
    sender: mpsc::Sender<Bytes>,
}

impl Requests {
    /// Sends a message, unless too many wait already: asking again later is up to the caller.
    pub fn send(&self, message: &impl Message) -> bool {
        self.sender.try_send(frame(message)).is_ok()
    }
}

/// The receiving half of a call.
pub struct Answers {
    body: Incoming,
    buffer: BytesMut,
}

impl Answers {
    /// The next message; `None` when the call ended well. Cancel safe.
    pub async fn next<A: Message + Default>(&mut self) -> Result<Option<A>, CallError> {
        loop {
            if let Some(message) = self.take()? {
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
                Ok(data) => self.buffer.put(data),
                Err(frame) => {
                    let trailers = frame.into_trailers().unwrap_or_default();
                    let unknown = || CallError::Broken("the call ended without a status".into());
                    return status_of(&trailers).ok_or_else(unknown)?.map(|()| None);
                }
            }
        }
    }

    /// A whole message, if the buffer holds one.
    fn take(&mut self) -> Result<Option<Bytes>, CallError> {
        let Some(prefix) = self.buffer.first_chunk::<PREFIX>() else { return Ok(None) };
        let [compressed, length @ ..] = *prefix;
        let length = u32::from_be_bytes(length) as usize;
        if compressed != 0 || length > MAX_MESSAGE {
            return Err(CallError::Broken("etcd sent a message that cannot be read".into()));
        }
        if self.buffer.len() < PREFIX + length {
            self.buffer.reserve(PREFIX + length - self.buffer.len());
            return Ok(None);
        }
        self.buffer.advance(PREFIX);
        Ok(Some(self.buffer.split_to(length).freeze()))
    }
}

fn frame(message: &impl Message) -> Bytes {
    let length = message.encoded_len();
    let mut framed = BytesMut::with_capacity(PREFIX + length);
    framed.put_u8(0);
    framed.put_u32(u32::try_from(length).unwrap_or(u32::MAX));
    // The buffer grows as it must: encoding into it cannot fail.
    let _ = message.encode(&mut framed);
    framed.freeze()
}

/// What headers or trailers say of the call; `None` if they say nothing.
fn status_of(headers: &HeaderMap) -> Option<Result<(), CallError>> {
    let code = headers.get("grpc-status")?.to_str().ok().and_then(|c| c.parse::<u32>().ok()).unwrap_or(2);
    if code == 0 {
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
        assert_eq!((code, message.as_str()), (11, "100% gone%2"));
    }
}
