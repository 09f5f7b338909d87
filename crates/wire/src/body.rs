//! Response bodies: bytes, a list concatenated from held objects, or a stream.

use std::collections::VecDeque;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use bytes::{BufMut, Bytes, BytesMut};
use futures_util::Stream;
use http_body::{Frame, SizeHint};
use knarr_api::object::Object;

use super::bare_items::TypeMembers;

pub type BoxError = Box<dyn std::error::Error + Send + Sync>;
pub type ByteStream = Pin<Box<dyn Stream<Item = Result<Bytes, BoxError>> + Send>>;

/// The size of the chunks of a list, in bytes.
const CHUNK: usize = 64 * 1024;

/// The body of a response.
pub enum Body {
    Full(Bytes),
    List(ListBody),
    Stream(ByteStream),
}

/// A list: `head`, the items separated by commas, `tail`. The items' bytes are only copied while the body is read.
pub struct ListBody {
    head: Bytes,
    items: VecDeque<(Arc<Object>, TypeMembers)>,
    tail: Bytes,
    first: bool,
    left: usize,
}

impl ListBody {
    pub fn new(head: Bytes, items: Vec<Arc<Object>>, tail: Bytes) -> Self {
        Self::of(head, items.into_iter().map(|item| (item, TypeMembers::default())).collect(), tail)
    }

    /// Creates a list whose items omit apiVersion and kind.
    pub fn bare(head: Bytes, items: Vec<Arc<Object>>, tail: Bytes) -> Self {
        let members = |item: Arc<Object>| {
            let members = TypeMembers::of(item.text());
            (item, members)
        };
        Self::of(head, items.into_iter().map(members).collect(), tail)
    }

    fn of(head: Bytes, items: VecDeque<(Arc<Object>, TypeMembers)>, tail: Bytes) -> Self {
        let commas = items.len().saturating_sub(1);
        let written = items.iter().map(|(item, left_out)| item.json_len() - left_out.bytes());
        let left = head.len() + tail.len() + commas + written.sum::<usize>();
        Self { head, items, tail, first: true, left }
    }

    fn next_chunk(&mut self) -> Bytes {
        let mut out = BytesMut::with_capacity(self.left.min(CHUNK + 8 * 1024));
        out.put(std::mem::take(&mut self.head));
        while out.len() < CHUNK {
            let Some((item, left_out)) = self.items.pop_front() else {
                out.put(std::mem::take(&mut self.tail));
                break;
            };
            if !self.first {
                out.put_u8(b',');
            }
            self.first = false;
            for part in left_out.around(item.text().len()) {
                item.put_part(part, &mut out);
            }
        }
        self.left -= out.len();
        out.freeze()
    }
}

impl Body {
    pub fn empty() -> Self {
        Self::Full(Bytes::new())
    }

    /// Returns the whole body; `Err` is a stream, which may be endless.
    pub fn collect(self) -> Result<Bytes, ByteStream> {
        match self {
            Self::Full(bytes) => Ok(bytes),
            Self::List(mut list) => {
                let mut out = BytesMut::with_capacity(list.left);
                while list.left > 0 {
                    out.put(list.next_chunk());
                }
                Ok(out.freeze())
            }
            Self::Stream(stream) => Err(stream),
        }
    }

    /// Returns the same body, which keeps `held` alive until it is dropped.
    pub fn holding<T: Send + 'static>(self, held: T) -> Self {
        match self {
            Self::Stream(stream) => Self::Stream(Box::pin(Holding { stream, _held: Unmoved(held) })),
            // A complete body involves no further work.
            whole => whole,
        }
    }

    /// Returns the length in bytes, if it is known.
    pub fn length(&self) -> Option<usize> {
        match self {
            Self::Full(bytes) => Some(bytes.len()),
            Self::List(list) => Some(list.left),
            Self::Stream(_) => None,
        }
    }
}

struct Holding<T> {
    stream: ByteStream,
    _held: Unmoved<T>,
}

/// A value that is only kept alive need not be pinned.
struct Unmoved<T>(#[allow(dead_code, reason = "kept for its drop")] T);

impl<T> Unpin for Unmoved<T> {}

impl<T> Stream for Holding<T> {
    type Item = Result<Bytes, BoxError>;

    fn poll_next(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        self.get_mut().stream.as_mut().poll_next(cx)
    }
}

impl http_body::Body for Body {
    type Data = Bytes;
    type Error = BoxError;

    fn poll_frame(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
        match self.get_mut() {
            Self::Full(bytes) if bytes.is_empty() => Poll::Ready(None),
            Self::Full(bytes) => Poll::Ready(Some(Ok(Frame::data(std::mem::take(bytes))))),
            Self::List(list) if list.left == 0 => Poll::Ready(None),
            Self::List(list) => Poll::Ready(Some(Ok(Frame::data(list.next_chunk())))),
            Self::Stream(stream) => {
                stream.as_mut().poll_next(cx).map(|next| next.map(|r| r.map(Frame::data)))
            }
        }
    }

    fn is_end_stream(&self) -> bool {
        self.length() == Some(0)
    }

    fn size_hint(&self) -> SizeHint {
        self.length().map_or_else(SizeHint::default, |n| SizeHint::with_exact(n as u64))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_list_is_its_items_with_commas() {
        let object = |name: &str| {
            let json = format!("{{\"metadata\":{{\"name\":\"{name}\"}}}}");
            Arc::new(Object::new(json.into(), &[]).unwrap())
        };
        for names in [vec![], vec!["a"], vec!["a", "b", "c"]] {
            let items = names.iter().map(|n| object(n)).collect();
            let body = Body::List(ListBody::new("[".into(), items, "]".into()));
            let length = body.length();
            let whole = body.collect().ok().unwrap();
            assert_eq!(Some(whole.len()), length);
            let expected: Vec<String> =
                names.iter().map(|n| format!("{{\"metadata\":{{\"name\":\"{n}\"}}}}")).collect();
            assert_eq!(whole, format!("[{}]", expected.join(",")));
        }
    }
}
