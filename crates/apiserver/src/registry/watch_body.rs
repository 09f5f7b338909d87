//! A watch on the wire: one JSON object a line, or frames of it as table or metadata.

use bytes::{BufMut, Bytes, BytesMut};
use futures_util::stream;
use http::Response;
use http::header::{CACHE_CONTROL, CONTENT_TYPE, HeaderValue};
use knarr_api::object::Object;
use knarr_apimachinery::status::StatusError;
use serde_json::json;

use super::watch::{Frame, Session};
use crate::http::body::{Body, BoxError};
use crate::http::negotiate::{Form, Negotiated};
use crate::http::output::status_value;
use crate::table::{self, IncludeObject};

/// Frames that wait are sent together, up to this many bytes.
const BATCH: usize = 64 * 1024;

struct Writer {
    session: Session,
    form: Form,
    include: IncludeObject,
    now: Box<dyn Fn() -> jiff::Timestamp + Send>,
    columns_sent: bool,
    over: bool,
}

/// The streaming answer to a watch.
pub fn respond(
    session: Session,
    negotiated: Negotiated,
    include: IncludeObject,
    now: impl Fn() -> jiff::Timestamp + Send + 'static,
) -> Response<Body> {
    let writer = Writer {
        session,
        form: negotiated.form,
        include,
        now: Box::new(now),
        columns_sent: false,
        over: false,
    };
    let stream = stream::unfold(writer, |mut writer| async move {
        let batch = writer.batch().await?;
        Some((Ok::<_, BoxError>(batch), writer))
    });
    let mut response = Response::new(Body::Stream(Box::pin(stream)));
    let headers = response.headers_mut();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
    headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-cache, private"));
    response
}

impl Writer {
    async fn batch(&mut self) -> Option<Bytes> {
        if self.over {
            return None;
        }
        let mut out = BytesMut::new();
        let mut frame = self.session.next().await;
        loop {
            match frame {
                None => {
                    self.over = true;
                    break;
                }
                Some(Ok(frame)) => self.write(&mut out, &frame),
                Some(Err(error)) => {
                    write_error(&mut out, &error);
                    self.over = true;
                    break;
                }
            }
            if out.len() >= BATCH {
                break;
            }
            frame = match self.session.try_next() {
                Some(frame) => Some(frame),
                None => break,
            };
        }
        (!out.is_empty()).then(|| out.freeze())
    }

    fn write(&mut self, out: &mut BytesMut, frame: &Frame) {
        match frame {
            Frame::Added(o) => self.write_object(out, "ADDED", o),
            Frame::Modified(o) => self.write_object(out, "MODIFIED", o),
            Frame::Deleted(o) => self.write_object(out, "DELETED", o),
            Frame::Bookmark { revision, initial_end } => {
                if let Some(bookmark) = self.bookmark(*revision, *initial_end) {
                    self.write_object(out, "BOOKMARK", &bookmark);
                }
            }
        }
    }

    fn write_object(&mut self, out: &mut BytesMut, kind: &str, object: &Object) {
        out.put_slice(b"{\"type\":\"");
        out.put_slice(kind.as_bytes());
        out.put_slice(b"\",\"object\":");
        match self.form {
            Form::Whole => out.put_slice(object.json()),
            Form::Metadata => out.put_slice(&table::partial(object)),
            Form::Table => {
                let resource = self.session.resource();
                let table =
                    table::event_table(resource, object, !self.columns_sent, self.include, (self.now)());
                self.columns_sent = true;
                out.put_slice(table.to_string().as_bytes());
            }
        }
        out.put_slice(b"}\n");
    }

    fn bookmark(&self, revision: u64, initial_end: bool) -> Option<Object> {
        let types = self.session.resource().types;
        let mut bookmark = json!({
            "kind": types.kind, "apiVersion": types.api_version(),
            "metadata": {"resourceVersion": revision.to_string(), "creationTimestamp": null},
        });
        if initial_end {
            bookmark["metadata"]["annotations"] = json!({"k8s.io/initial-events-end": "true"});
        }
        Object::new(bookmark.to_string().into(), &[]).ok()
    }
}

fn write_error(out: &mut BytesMut, error: &StatusError) {
    let event = json!({"type": "ERROR", "object": status_value(error)});
    out.put_slice(event.to_string().as_bytes());
    out.put_u8(b'\n');
}

/// A watch that fails at once: 200 with one ERROR event, as clients expect of an expired revision.
pub fn respond_error(error: &StatusError) -> Response<Body> {
    let mut out = BytesMut::new();
    write_error(&mut out, error);
    let mut response = Response::new(Body::Full(out.freeze()));
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
    response
}
