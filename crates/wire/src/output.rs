//! Writes responses: JSON, YAML or protobuf; objects whole, as Table or as metadata only; compressed if large.

use std::io::Write;
use std::sync::Arc;

use bytes::Bytes;
use flate2::Compression;
use flate2::write::GzEncoder;
use http::header::{CONTENT_ENCODING, CONTENT_TYPE, HeaderValue, VARY, X_CONTENT_TYPE_OPTIONS};
use http::{Response, StatusCode};
use knarr_api::object::Object;
use knarr_api::resource_ref::ResourceRef;
use knarr_apimachinery::clock::Clock;
use knarr_apimachinery::schema::protobuf::{self, EncodeError, ListEncoder};
use knarr_apimachinery::status::{InOrder, StatusError};
use serde_json::{Map, Value, json};

use super::body::{Body, ListBody};
use super::negotiate::{Form, Format, Negotiated};
use crate::table::{self, IncludeObject, Rows};

/// Bodies below this size, in bytes, are not compressed.
const GZIP_FROM: usize = 128 * 1024;

/// The answer of a handler, before it is serialized.
pub enum Answer {
    Object {
        code: u16,
        resource: ResourceRef,
        object: Arc<Object>,
    },
    List(ListAnswer),
    Watch(Box<dyn Respond>),
    /// Any other JSON value.
    Value {
        code: u16,
        value: Value,
    },
    /// A response that is already serialized.
    Raw(Response<Body>),
}

/// A streaming answer, such as a watch.
pub trait Respond: Send {
    /// Returns the resource of its objects.
    fn resource(&self) -> &ResourceRef;

    /// Starts the response in the negotiated form; `include` selects what table rows contain of their objects.
    fn respond(
        self: Box<Self>,
        negotiated: Negotiated,
        include: IncludeObject,
        clock: Arc<dyn Clock>,
    ) -> Response<Body>;
}

impl Answer {
    /// Returns `{"kind":"Status","status":"Success","code":201}`.
    pub fn created() -> Self {
        let value =
            json!({"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success", "code": 201});
        Self::Value { code: 201, value }
    }

    pub fn text(code: u16, text: impl Into<Bytes>) -> Self {
        Self::Raw(plain(code, text))
    }
}

/// Returns plain text, as Go's `http.Error` writes it.
pub fn plain(code: u16, text: impl Into<Bytes>) -> Response<Body> {
    let mut response = raw(code, "text/plain; charset=utf-8", text.into());
    response.headers_mut().insert(X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
    response
}

pub struct ListAnswer {
    pub resource: ResourceRef,
    pub items: Vec<Arc<Object>>,
    pub resource_version: u64,
    pub continue_token: Option<String>,
    pub remaining: Option<u64>,
}

/// Returns a whole response of this type and code.
pub fn raw(code: u16, content_type: &'static str, body: Bytes) -> Response<Body> {
    let mut response = Response::new(Body::Full(body));
    *response.status_mut() = StatusCode::from_u16(code).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static(content_type));
    response
}

/// Serializes a value as compact JSON.
pub fn to_json(value: &Value) -> Bytes {
    InOrder::of(value).to_json().into()
}

/// Serializes JSON with a final line break, as upstream's serializer does.
fn line(value: &Value) -> Bytes {
    let mut text = InOrder::of(value).to_json();
    text.push(b'\n');
    text.into()
}

pub fn write_error(error: &StatusError, negotiated: Negotiated) -> Response<Body> {
    let mut response = write_value(error.code(), &error.to_value(), negotiated);
    let retry = error.0.details.as_ref().and_then(|d| d.retry_after_seconds);
    if let Some(Ok(value)) = retry.map(|s| HeaderValue::from_str(&s.to_string())) {
        response.headers_mut().insert(http::header::RETRY_AFTER, value);
    }
    response
}

pub fn write_value(code: u16, value: &Value, negotiated: Negotiated) -> Response<Body> {
    match negotiated.format {
        Format::Json if negotiated.pretty => {
            let mut text = serde_json::to_vec_pretty(&InOrder::of(value)).unwrap_or_default();
            text.push(b'\n');
            finish(raw(code, "application/json", text.into()), negotiated)
        }
        Format::Json => finish(raw(code, "application/json", line(value)), negotiated),
        Format::Protobuf => write_encoded(code, protobuf::encode_object(value), value, negotiated),
        Format::Yaml => match serde_saphyr::to_string(value) {
            Ok(text) => finish(raw(code, "application/yaml", text.into()), negotiated),
            Err(error) => {
                let status = StatusError::internal(error).to_value();
                raw(500, "application/json", to_json(&status))
            }
        },
    }
}

/// Writes a protobuf message. A value without one, such as that of `/version`, is written as JSON, which its clients
/// also read.
fn write_encoded(
    code: u16,
    message: Result<Vec<u8>, EncodeError>,
    value: &Value,
    negotiated: Negotiated,
) -> Response<Body> {
    match message {
        Ok(message) => finish(raw(code, protobuf::MEDIA_TYPE, message.into()), negotiated),
        Err(EncodeError::NotMarshalable(_)) => {
            finish(raw(code, "application/json", to_json(value)), negotiated)
        }
        Err(error) => {
            tracing::warn!(%error, kind = %value["kind"], "cannot encode as protobuf");
            finish(raw(code, "application/json", to_json(value)), negotiated)
        }
    }
}

/// Writes an answer in the form that was negotiated for it.
pub fn write(
    answer: Answer,
    negotiated: Negotiated,
    include: IncludeObject,
    clock: &Arc<dyn Clock>,
) -> Response<Body> {
    let now = clock.now();
    let rows = Rows { include, beta: negotiated.beta };
    match answer {
        Answer::Raw(response) => response,
        Answer::Value { code, value } => write_value(code, &value, negotiated),
        Answer::Object { resource, .. } if unmarshalable(&resource, negotiated, "Unstructured").is_some() => {
            let why = unmarshalable(&resource, negotiated, "Unstructured").unwrap_or_default();
            write_error(&StatusError::new(406, "NotAcceptable", why), Negotiated::default())
        }
        Answer::Object { code, resource, object } => match negotiated.form {
            Form::Whole => write_bytes(code, object.json(), negotiated),
            Form::Table => {
                let version = object.resource_version();
                write_value(
                    code,
                    &table::table(&resource, &[object], version, None, None, rows, now),
                    negotiated,
                )
            }
            Form::Metadata => write_bytes(code, table::partial(&object, negotiated.beta), negotiated),
        },
        Answer::List(list) if unmarshalable(&list.resource, negotiated, "UnstructuredList").is_some() => {
            let why = unmarshalable(&list.resource, negotiated, "UnstructuredList").unwrap_or_default();
            write_error(&StatusError::new(406, "NotAcceptable", why), Negotiated::default())
        }
        Answer::List(list) => write_list(list, negotiated, rows, now),
        Answer::Watch(watch) => watch.respond(negotiated, include, Arc::clone(clock)),
    }
}

/// Returns why an answer has no protobuf message: custom resources have none.
fn unmarshalable(resource: &ResourceRef, negotiated: Negotiated, ty: &str) -> Option<String> {
    let wanted = negotiated.format == Format::Protobuf && negotiated.form == Form::Whole;
    (wanted && resource.custom().is_some()).then(|| {
        format!(
            "object *unstructured.{ty} does not implement the protobuf marshalling interface and cannot be encoded \
             to a protobuf message"
        )
    })
}

/// Writes JSON text unchanged, or converted to the negotiated format.
fn write_bytes(code: u16, json: Bytes, negotiated: Negotiated) -> Response<Body> {
    if negotiated.format == Format::Json && !negotiated.pretty {
        let body = Body::List(ListBody::new(json, Vec::new(), Bytes::from_static(b"\n")));
        let mut response = Response::new(body);
        *response.status_mut() = StatusCode::from_u16(code).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
        response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
        return finish(response, negotiated);
    }
    match serde_json::from_slice::<Value>(&json) {
        Ok(value) => write_value(code, &value, negotiated),
        Err(error) => write_error(&StatusError::internal(error), Negotiated::default()),
    }
}

fn list_meta(list: &ListAnswer) -> Value {
    let mut meta = Map::new();
    if list.resource_version > 0 {
        meta.insert("resourceVersion".into(), list.resource_version.to_string().into());
    }
    if let Some(token) = &list.continue_token {
        meta.insert("continue".into(), token.clone().into());
    }
    if let Some(remaining) = list.remaining {
        meta.insert("remainingItemCount".into(), remaining.into());
    }
    Value::Object(meta)
}

fn write_list(list: ListAnswer, negotiated: Negotiated, rows: Rows, now: jiff::Timestamp) -> Response<Body> {
    let meta = list_meta(&list);
    let resource = list.resource.clone();
    match negotiated.form {
        Form::Table => {
            let value = table::table(
                &resource,
                &list.items,
                list.resource_version,
                list.continue_token,
                list.remaining,
                rows,
                now,
            );
            write_value(200, &value, negotiated)
        }
        form => {
            let (kind, api_version, items) = if form == Form::Metadata {
                let partial =
                    |o: &Arc<Object>| Object::new(table::partial(o, negotiated.beta), &[]).ok().map(Arc::new);
                let items = list.items.iter().filter_map(partial).collect();
                ("PartialObjectMetadataList", table::meta_version(negotiated.beta).to_owned(), items)
            } else {
                (resource.list_kind, resource.types.api_version(), list.items)
            };
            if negotiated.format == Format::Protobuf {
                return match list_message(&api_version, kind, &meta, &items) {
                    Ok(message) => finish(raw(200, protobuf::MEDIA_TYPE, message.into()), negotiated),
                    Err(error) => write_error(&StatusError::internal(error), negotiated),
                };
            }
            let head = format!(
                "{{\"kind\":\"{kind}\",\"apiVersion\":\"{api_version}\",\"metadata\":{meta},\"items\":["
            );
            if form == Form::Metadata && items.is_empty() {
                // Upstream's list is a nil slice here, which is serialized as null.
                let none = format!(
                    "{{\"kind\":\"{kind}\",\"apiVersion\":\"{api_version}\",\"metadata\":{meta},\"items\":null}}"
                );
                return write_bytes(200, none.into(), negotiated);
            }
            let tail = Bytes::from_static(b"]}\n");
            let body = Body::List(match form == Form::Whole && resource.custom().is_none() {
                true => ListBody::bare(head.into(), items, tail),
                false => ListBody::new(head.into(), items, tail),
            });
            if negotiated.format == Format::Json && !negotiated.pretty {
                let mut response = Response::new(body);
                response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
                return finish(response, negotiated);
            }
            write_bytes(200, body.collect().unwrap_or_default(), negotiated)
        }
    }
}

/// Encodes a list as one message.
fn list_message(
    api_version: &str,
    kind: &str,
    meta: &Value,
    items: &[Arc<Object>],
) -> Result<Vec<u8>, Box<dyn std::error::Error>> {
    let mut list = ListEncoder::new(api_version, kind, meta)?;
    for item in items {
        list.push(&serde_json::from_slice(&item.json())?)?;
    }
    Ok(list.finish()?)
}

/// Compresses a large body if the client accepts gzip.
fn finish(response: Response<Body>, negotiated: Negotiated) -> Response<Body> {
    if !negotiated.gzip || response.body().length().is_none_or(|n| n < GZIP_FROM) {
        return response;
    }
    compressed(response)
}

/// Returns the response with its whole body compressed.
pub fn compressed(response: Response<Body>) -> Response<Body> {
    let (mut parts, body) = response.into_parts();
    let Ok(plain) = body.collect() else { return Response::from_parts(parts, Body::empty()) };
    let mut encoder = GzEncoder::new(Vec::with_capacity(plain.len() / 4), Compression::fast());
    let packed = encoder.write_all(&plain).and_then(|()| encoder.finish());
    match packed {
        Ok(packed) => {
            parts.headers.insert(CONTENT_ENCODING, HeaderValue::from_static("gzip"));
            parts.headers.append(VARY, HeaderValue::from_static("Accept-Encoding"));
            Response::from_parts(parts, Body::Full(packed.into()))
        }
        Err(_) => Response::from_parts(parts, Body::Full(plain)),
    }
}

#[cfg(test)]
mod tests {
    use knarr_apimachinery::gvk::GroupResource;

    use super::*;

    #[test]
    fn errors_are_written_in_upstreams_order() {
        let error = StatusError::not_found(&GroupResource::new("", "pods"), "web");
        let text = |pretty| {
            let response = write_error(&error, Negotiated { pretty, ..Negotiated::default() });
            let Body::Full(body) = response.into_body() else { panic!("a whole body") };
            String::from_utf8(body.to_vec()).unwrap()
        };
        let expected = "{\"kind\":\"Status\",\"apiVersion\":\"v1\",\"metadata\":{},\"status\":\"Failure\",\
                        \"message\":\"pods \\\"web\\\" not found\",\"reason\":\"NotFound\",\
                        \"details\":{\"name\":\"web\",\"kind\":\"pods\"},\"code\":404}\n";
        assert_eq!(text(false), expected);
        let pretty = text(true);
        let keys: Vec<&str> = pretty.lines().filter(|l| l.starts_with("  \"")).map(|l| &l[3..7]).collect();
        assert_eq!(keys, ["kind", "apiV", "meta", "stat", "mess", "reas", "deta", "code"]);
    }
}
