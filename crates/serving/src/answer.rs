//! Outgoing answers: each counts as a running request until it is sent, and has no body for HEAD.

use std::pin::Pin;
use std::task::{Context, Poll};

use bytes::Bytes;
use http::header::{CONTENT_LENGTH, HeaderValue};
use http::{Method, Response, StatusCode};
use http_body::{Body, Frame, SizeHint};

use crate::activity::Running;

/// An extension of an answer: the connection accepts no further requests.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CloseConnection {
    /// Running requests, including this one, are finished first.
    WhenDone,
    /// Like `WhenDone`, but the server does not wait until the peer has read this answer.
    Now,
}

/// An extension of an answer: the service knows the sender. When the server is full, connections of unknown
/// senders are closed first.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct KnownSender;

/// The body of an answer; the request counts as running until it is dropped.
#[derive(Debug)]
pub struct Answered<B> {
    body: Option<B>,
    _running: Option<Running>,
}

/// Prepares an answer. RFC 9110, section 9.3.2: an answer to HEAD has the headers of the answer to GET and no
/// content.
pub(crate) fn prepare<B: Body>(
    response: Response<B>,
    method: &Method,
    running: Option<Running>,
) -> Response<Answered<B>> {
    let (mut parts, body) = response.into_parts();
    if *method != Method::HEAD || parts.status == StatusCode::SWITCHING_PROTOCOLS {
        return Response::from_parts(parts, Answered { body: Some(body), _running: running });
    }
    let length = body.size_hint().exact().filter(|length| *length > 0);
    if let (Some(length), false) = (length, parts.headers.contains_key(CONTENT_LENGTH)) {
        parts.headers.insert(CONTENT_LENGTH, HeaderValue::from(length));
    }
    Response::from_parts(parts, Answered { body: None, _running: running })
}

impl<B: Body<Data = Bytes> + Unpin> Body for Answered<B> {
    type Data = Bytes;
    type Error = B::Error;

    fn poll_frame(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, B::Error>>> {
        match &mut self.get_mut().body {
            Some(body) => Pin::new(body).poll_frame(cx),
            None => Poll::Ready(None),
        }
    }

    fn is_end_stream(&self) -> bool {
        self.body.as_ref().is_none_or(Body::is_end_stream)
    }

    fn size_hint(&self) -> SizeHint {
        self.body.as_ref().map_or_else(|| SizeHint::with_exact(0), Body::size_hint)
    }
}
