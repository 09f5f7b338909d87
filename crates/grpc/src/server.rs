//! The server side: calls with one request and one answer, on a unix socket.

use std::convert::Infallible;
use std::future::Future;
use std::sync::Arc;

use bytes::Bytes;
use http::{HeaderMap, HeaderValue, Request, Response};
use http_body::Frame;
use http_body_util::{BodyExt, Limited, StreamBody};
use hyper::body::Incoming as IncomingBody;
use hyper::server::conn::http2::Builder;
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo};
use prost::Message;
use tokio::net::UnixListener;

use crate::error::{CallError, Code};
use crate::message::{Incoming, frame};

/// The longest request, in bytes.
const MAX_REQUEST: usize = 4 << 20;

/// An encoded answer, or the status that explains why there is none.
pub struct Answer(Result<Bytes, CallError>);

impl Answer {
    pub fn new<A: Message>(answer: Result<A, CallError>) -> Self {
        Self(answer.map(|a| frame(&a)))
    }
}

/// Answers calls until the future is dropped. `call` gets the path (`/csi.v1.Identity/Probe`) and the encoded
/// message.
pub async fn serve<F>(listener: UnixListener, call: impl Fn(String, Bytes) -> F + Send + Sync + 'static)
where
    F: Future<Output = Answer> + Send,
{
    let call = Arc::new(call);
    let mut connections = tokio::task::JoinSet::new();
    loop {
        let stream = tokio::select! {
            accepted = listener.accept() => match accepted {
                Ok((stream, _)) => stream,
                Err(error) => {
                    tracing::warn!(%error, "a gRPC socket cannot accept any more connections");
                    return;
                }
            },
            Some(_) = connections.join_next() => continue,
        };
        let call = Arc::clone(&call);
        connections.spawn(async move {
            let service = service_fn(move |request| {
                let call = Arc::clone(&call);
                async move { Ok::<_, Infallible>(answer(request, &*call).await) }
            });
            let served = Builder::new(TokioExecutor::new()).serve_connection(TokioIo::new(stream), service);
            if let Err(error) = served.await {
                tracing::debug!(%error, "a gRPC connection ended");
            }
        });
    }
}

type Body = StreamBody<futures_util::stream::Iter<std::vec::IntoIter<Result<Frame<Bytes>, Infallible>>>>;

async fn answer<F: Future<Output = Answer>>(
    request: Request<IncomingBody>,
    call: &impl Fn(String, Bytes) -> F,
) -> Response<Body> {
    let path = request.uri().path().to_owned();
    let result = match message(request).await {
        Ok(message) => call(path, message).await.0,
        Err(why) => Err(CallError::Status { code: Code::RESOURCE_EXHAUSTED, message: why }),
    };
    let mut trailers = HeaderMap::new();
    let code = result.as_ref().err().map_or(Code::OK, CallError::code);
    trailers.insert("grpc-status", HeaderValue::from(code.0));
    if let Err(CallError::Status { message, .. } | CallError::Broken(message)) = &result
        && let Ok(value) = HeaderValue::try_from(percent_encoded(message))
    {
        trailers.insert("grpc-message", value);
    }
    let mut frames = Vec::with_capacity(2);
    frames.extend(result.ok().map(|bytes| Ok(Frame::data(bytes))));
    frames.push(Ok(Frame::trailers(trailers)));
    let mut response = Response::new(StreamBody::new(futures_util::stream::iter(frames)));
    response.headers_mut().insert("content-type", HeaderValue::from_static("application/grpc"));
    response
}

async fn message(request: Request<IncomingBody>) -> Result<Bytes, String> {
    let body = Limited::new(request.into_body(), MAX_REQUEST).collect().await.map_err(|e| e.to_string())?;
    let mut received = Incoming::default();
    received.push(body.to_bytes());
    received.take(MAX_REQUEST)?.ok_or_else(|| "a request without a message".to_owned())
}

fn percent_encoded(text: &str) -> String {
    let mut encoded = String::with_capacity(text.len());
    for byte in text.bytes() {
        match byte {
            b' '..=b'~' if byte != b'%' => encoded.push(char::from(byte)),
            _ => encoded.push_str(&format!("%{byte:02X}")),
        }
    }
    encoded
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Connection;

    async fn double(path: String, message: Bytes) -> Answer {
        let text = String::decode(message).unwrap();
        Answer::new(match path.as_str() {
            "/t.Test/Double" => Ok(format!("{text}{text}")),
            _ => Err(CallError::Status {
                code: Code::UNIMPLEMENTED,
                message: format!("100% unknown: ä {path}"),
            }),
        })
    }

    #[tokio::test]
    async fn calls_and_refusals() {
        let socket = std::env::temp_dir().join(format!("knarr-grpc-{}.sock", std::process::id()));
        let error = Connection::unix(&socket).await.err().unwrap();
        assert_eq!(
            error.to_string(),
            format!(
                "rpc error: code = Unavailable desc = connection error: desc = \"transport: Error while dialing: dial unix {}: \
                 connect: no such file or directory\"",
                socket.display()
            )
        );
        let serving = tokio::spawn(serve(UnixListener::bind(&socket).unwrap(), double));
        let connection = Connection::unix(&socket).await.unwrap();
        let long = "knarr".repeat(100_000);
        let answer: String = connection.unary("/t.Test/Double", &long).await.unwrap();
        assert_eq!(answer.len(), 2 * long.len());
        let error = connection.unary::<String>("/t.Test/Half", &long).await.unwrap_err();
        assert_eq!(error.to_string(), "rpc error: code = Unimplemented desc = 100% unknown: ä /t.Test/Half");
        let too_long = "knarr".repeat(1_000_000);
        let error = connection.unary::<String>("/t.Test/Double", &too_long).await.unwrap_err();
        assert_eq!(error.code(), Code::RESOURCE_EXHAUSTED, "{error}");
        serving.abort();
        let _ = serving.await;
        assert!(connection.unary::<String>("/t.Test/Double", &long).await.is_err());
        std::fs::remove_file(&socket).unwrap();
    }
}
