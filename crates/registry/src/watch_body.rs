//! The body of a watch response: one JSON object per line or one protobuf message per frame; objects whole, as Table
//! or as metadata only.

use std::sync::Arc;

use bytes::{BufMut, Bytes, BytesMut};
use futures_util::stream;
use http::Response;
use http::header::{CACHE_CONTROL, CONTENT_TYPE, HeaderValue};
use knarr_api::object::Object;
use knarr_api::resource_ref::ResourceRef;
use knarr_apimachinery::clock::Clock;
use knarr_apimachinery::schema::protobuf::{self, EncodeError};
use knarr_apimachinery::status::{InOrder, StatusError};
use serde_json::{Value, json};

use super::watch::{Frame, Session};
use crate::cache::{Kind, Wire};
use knarr_wire::body::{Body, BoxError};
use knarr_wire::negotiate::{Form, Format, Negotiated};
use knarr_wire::output::Respond;
use knarr_wire::table::{self, IncludeObject, Rows};

/// Pending frames are sent together, up to this many bytes.
const BATCH: usize = 64 * 1024;

struct Writer {
    session: Session,
    format: Format,
    form: Form,
    rows: Rows,
    clock: Arc<dyn Clock>,
    columns_sent: bool,
    over: bool,
}

impl Respond for Session {
    fn resource(&self) -> &ResourceRef {
        Session::resource(self)
    }

    fn respond(
        self: Box<Self>,
        negotiated: Negotiated,
        include: IncludeObject,
        clock: Arc<dyn Clock>,
    ) -> Response<Body> {
        let writer = Writer {
            session: *self,
            format: negotiated.format,
            form: negotiated.form,
            rows: Rows { include, beta: negotiated.beta },
            clock,
            columns_sent: false,
            over: false,
        };
        let stream = stream::unfold(writer, |mut writer| async move {
            let batch = writer.batch().await?;
            Some((Ok::<_, BoxError>(batch), writer))
        });
        let mut response = Response::new(Body::Stream(Box::pin(stream)));
        let headers = response.headers_mut();
        headers.insert(CONTENT_TYPE, content_type(negotiated.format));
        headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-cache, private"));
        response
    }
}

fn content_type(format: Format) -> HeaderValue {
    HeaderValue::from_static(match format {
        Format::Protobuf => "application/vnd.kubernetes.protobuf;stream=watch",
        Format::Json | Format::Yaml => "application/json",
    })
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
                Some(Ok(frame)) => {
                    if let Err(error) = self.write(&mut out, &frame) {
                        // A watch must not skip an event: the client must list and watch again.
                        tracing::warn!(%error, "an object cannot be encoded as protobuf");
                        write_error(&mut out, &StatusError::internal(error), self.format);
                        self.over = true;
                        break;
                    }
                }
                Some(Err(error)) => {
                    write_error(&mut out, &error, self.format);
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

    fn write(&mut self, out: &mut BytesMut, frame: &Frame) -> Result<(), EncodeError> {
        match frame {
            Frame::Change(change) => {
                let kind = match change.kind {
                    Kind::Added => "ADDED",
                    Kind::Modified => "MODIFIED",
                    Kind::Deleted => "DELETED",
                };
                self.write_object(out, kind, &change.object, change.wire.as_deref())
            }
            Frame::Bookmark { revision, initial_end } => match self.bookmark(*revision, *initial_end) {
                Some(bookmark) => self.write_object(out, "BOOKMARK", &bookmark, None),
                None => Ok(()),
            },
        }
    }

    fn write_object(
        &mut self,
        out: &mut BytesMut,
        kind: &str,
        object: &Object,
        wire: Option<&Wire>,
    ) -> Result<(), EncodeError> {
        self.session.note_sent(object.json_len());
        if self.format == Format::Protobuf {
            if let (Some(wire), Form::Whole) = (wire, self.form) {
                return write_message(out, kind, shared_message(wire, object)?);
            }
            let json = if self.form == Form::Metadata {
                table::partial(object, self.rows.beta)
            } else {
                object.json()
            };
            // Held objects are JSON.
            let value = serde_json::from_slice(&json).unwrap_or_default();
            return write_frame(out, kind, &value);
        }
        out.put_slice(b"{\"type\":\"");
        out.put_slice(kind.as_bytes());
        out.put_slice(b"\",\"object\":");
        match self.form {
            Form::Whole => object.put_json(out),
            Form::Metadata => out.put_slice(&table::partial(object, self.rows.beta)),
            Form::Table => {
                let resource = self.session.resource();
                let table =
                    table::event_table(resource, object, !self.columns_sent, self.rows, self.clock.now());
                self.columns_sent = true;
                out.put_slice(table.to_string().as_bytes());
            }
        }
        out.put_slice(b"}\n");
        Ok(())
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

/// Returns the object's message. The first watcher that needs it encodes it; later ones share it.
fn shared_message<'w>(wire: &'w Wire, object: &Object) -> Result<&'w Bytes, EncodeError> {
    if let Some(message) = wire.protobuf.get() {
        return Ok(message);
    }
    // Held objects are JSON.
    let value: Value = serde_json::from_slice(&object.json()).unwrap_or_default();
    let message = protobuf::encode_object(&value)?;
    Ok(wire.protobuf.get_or_init(|| message.into()))
}

/// Writes one event as a length and a message.
fn write_frame(out: &mut BytesMut, kind: &str, object: &Value) -> Result<(), EncodeError> {
    write_message(out, kind, &protobuf::encode_object(object)?)
}

fn write_message(out: &mut BytesMut, kind: &str, object: &[u8]) -> Result<(), EncodeError> {
    let mut frame = Vec::new();
    protobuf::watch_frame(kind, object, &mut frame)?;
    out.put_slice(&frame);
    Ok(())
}

fn write_error(out: &mut BytesMut, error: &StatusError, format: Format) {
    if format == Format::Protobuf {
        // A Status has a protobuf message, so this cannot fail.
        let _ = write_frame(out, "ERROR", &error.to_value());
        return;
    }
    let event = json!({"type": "ERROR", "object": error.to_value()});
    out.put_slice(&InOrder::watch_error(&event).to_json());
    out.put_u8(b'\n');
}

/// Answers a watch that fails at once: 200 with one ERROR event, as clients expect for an expired revision.
pub fn respond_error(error: &StatusError, format: Format) -> Response<Body> {
    let mut out = BytesMut::new();
    write_error(&mut out, error, format);
    let mut response = Response::new(Body::Full(out.freeze()));
    response.headers_mut().insert(CONTENT_TYPE, content_type(format));
    response
}
