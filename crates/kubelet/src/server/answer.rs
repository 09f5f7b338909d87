//! Bodies of responses, and simple responses.

use bytes::Bytes;
use http::{Response, StatusCode, header};
use http_body::Frame;
use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyExt, Full, StreamBody};
use serde_json::Value;
use tokio::sync::mpsc;

pub type Body = UnsyncBoxBody<Bytes, std::io::Error>;
pub type Answer = Response<Body>;

pub fn body(bytes: impl Into<Bytes>) -> Body {
    Full::new(bytes.into()).map_err(|never| match never {}).boxed_unsync()
}

fn answer(status: StatusCode, content_type: &'static str, bytes: impl Into<Bytes>) -> Answer {
    let mut response = Response::new(body(bytes));
    *response.status_mut() = status;
    let value = http::HeaderValue::from_static(content_type);
    response.headers_mut().insert(header::CONTENT_TYPE, value);
    response
}

/// Returns an error as upstream's kubelet does: plain text.
pub fn text(status: StatusCode, message: impl Into<String>) -> Answer {
    answer(status, "text/plain; charset=utf-8", message.into())
}

pub fn html(text: String) -> Answer {
    answer(StatusCode::OK, "text/html; charset=utf-8", text)
}

pub fn json(value: &Value) -> Answer {
    answer(StatusCode::OK, "application/json", value.to_string())
}

pub fn prometheus(metrics: String) -> Answer {
    answer(StatusCode::OK, "text/plain; version=0.0.4; charset=utf-8", metrics)
}

/// Returns a response whose body is sent chunk by chunk.
pub fn streamed(chunks: mpsc::Receiver<Bytes>) -> Answer {
    let stream = futures_util::stream::unfold(chunks, |mut chunks| async move {
        let chunk = chunks.recv().await?;
        Some((Ok::<_, std::io::Error>(Frame::data(chunk)), chunks))
    });
    let body = StreamBody::new(stream).boxed_unsync();
    let mut response = Response::new(body);
    let value = http::HeaderValue::from_static("text/plain; charset=utf-8");
    response.headers_mut().insert(header::CONTENT_TYPE, value);
    response
}
