//! Answers on their way out: counted until they are sent.

use std::pin::Pin;
use std::task::{Context, Poll};

use bytes::Bytes;
use http::Response;
use http_body::{Body, Frame, SizeHint};

use crate::activity::Running;

/// Put into an answer's extensions: the connection takes no further requests.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CloseConnection {
    /// Requests under way, this one among them, are finished first.
    WhenDone,
    /// As before, but nobody waits for the peer to take this answer.
    Now,
}

/// The body of an answer; holds the place of its request.
#[derive(Debug)]
pub struct Answered<B> {
    body: B,
    _running: Option<Running>,
}

pub(crate) fn prepare<B: Body>(response: Response<B>, running: Option<Running>) -> Response<Answered<B>> {
    let (parts, body) = response.into_parts();
    Response::from_parts(parts, Answered { body, _running: running })
}

impl<B: Body<Data = Bytes> + Unpin> Body for Answered<B> {
    type Data = Bytes;
    type Error = B::Error;

    fn poll_frame(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, B::Error>>> {
        Pin::new(&mut self.get_mut().body).poll_frame(cx)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}
