//! Decodes the JSON of lists and watches into shared objects.

use std::sync::Arc;

use bytes::{Buf, Bytes, BytesMut};
use futures_util::{Stream, StreamExt, stream};
use knarr_api::kind::ResourceType;
use knarr_api::object::Object;
use knarr_apimachinery::status::StatusError;
use serde::Deserialize;
use serde_json::value::RawValue;

use crate::error::{Error, Result};
use crate::transport::{List, WatchEvent, WatchStream};

/// The size limit of a single watch event, in bytes.
const MAX_EVENT_BYTES: usize = 64 << 20;

/// The status in the body of a failure, or one made from the HTTP code if there is none.
pub fn status_of(code: u16, headers: &http::HeaderMap, body: &[u8]) -> StatusError {
    let mut error = match serde_json::from_slice(body) {
        Ok(status) => StatusError(Box::new(status)),
        Err(_) => StatusError::new(code, "", String::from_utf8_lossy(body).trim().to_owned()),
    };
    let seconds = headers.get(http::header::RETRY_AFTER).and_then(|v| v.to_str().ok()?.parse().ok());
    if let Some(seconds) = seconds {
        error.0.details.get_or_insert_default().retry_after_seconds.get_or_insert(seconds);
    }
    error
}

#[derive(Deserialize)]
struct RawList<'a> {
    #[serde(default)]
    metadata: ListMeta,
    #[serde(borrow, default)]
    items: Option<Vec<&'a RawValue>>,
}

#[derive(Deserialize, Default)]
#[serde(rename_all = "camelCase", default)]
struct ListMeta {
    resource_version: String,
    #[serde(rename = "continue")]
    continue_token: Option<String>,
}

/// Decodes the answer to a list.
pub fn parse_list(resource: &ResourceType, body: &[u8]) -> Result<List> {
    let wrong = |e: serde_json::Error| Error::Protocol(format!("list of {}: {e}", resource.plural));
    let list: RawList = serde_json::from_slice(body).map_err(wrong)?;
    let items = list.items.unwrap_or_default().into_iter().map(|raw| {
        // Items of a list have no kind of their own; the typed views do not read it.
        Object::new(Bytes::copy_from_slice(raw.get().as_bytes()), &[]).map(Arc::new)
    });
    Ok(List {
        items: items.collect::<Result<_, _>>().map_err(wrong)?,
        resource_version: list.metadata.resource_version,
        continue_token: list.metadata.continue_token,
    })
}

#[derive(Deserialize)]
struct RawEvent<'a> {
    #[serde(rename = "type")]
    type_: &'a str,
    #[serde(borrow)]
    object: &'a RawValue,
}

/// Decodes one line of a watch.
pub fn parse_event(line: &[u8]) -> Result<WatchEvent> {
    let wrong = |e: serde_json::Error| Error::Protocol(format!("watch event: {e}"));
    let event: RawEvent = serde_json::from_slice(line).map_err(wrong)?;
    let json = event.object.get().as_bytes();
    if event.type_ == "ERROR" {
        return Err(Error::Status(status_of(500, &http::HeaderMap::new(), json)));
    }
    let object = Arc::new(Object::new(Bytes::copy_from_slice(json), &[]).map_err(wrong)?);
    match event.type_ {
        "ADDED" => Ok(WatchEvent::Added(object)),
        "MODIFIED" => Ok(WatchEvent::Modified(object)),
        "DELETED" => Ok(WatchEvent::Deleted(object)),
        "BOOKMARK" => Ok(WatchEvent::Bookmark(object.resource_version().to_string())),
        other => Err(Error::Protocol(format!("watch event of unknown type {other:?}"))),
    }
}

/// The events in the body of a watch, one per line.
pub fn events(chunks: impl Stream<Item = Result<Bytes>> + Send + 'static) -> WatchStream {
    let lines = Lines { chunks: Box::pin(chunks), buffer: BytesMut::new(), searched: 0 };
    Box::pin(stream::try_unfold(lines, |mut lines| async move {
        match lines.next().await? {
            Some(line) => Ok(Some((parse_event(&line)?, lines))),
            None => Ok(None),
        }
    }))
}

/// Splits a body into lines.
struct Lines<S> {
    chunks: std::pin::Pin<Box<S>>,
    buffer: BytesMut,
    searched: usize,
}

impl<S: Stream<Item = Result<Bytes>>> Lines<S> {
    async fn next(&mut self) -> Result<Option<Bytes>> {
        loop {
            if let Some(at) = self.buffer[self.searched..].iter().position(|b| *b == b'\n') {
                let line = self.buffer.split_to(self.searched + at).freeze();
                self.buffer.advance(1);
                self.searched = 0;
                return Ok(Some(line));
            }
            self.searched = self.buffer.len();
            if self.searched > MAX_EVENT_BYTES {
                return Err(Error::Protocol(format!("a watch event of more than {MAX_EVENT_BYTES} bytes")));
            }
            match self.chunks.next().await {
                None => return Ok(None),
                Some(chunk) => self.buffer.extend_from_slice(&chunk?),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn events_parse_and_errors_become_errors() {
        let added =
            parse_event(br#"{"type":"ADDED","object":{"metadata":{"name":"a","resourceVersion":"4"}}}"#);
        assert!(
            matches!(added.unwrap(), WatchEvent::Added(o) if o.name() == "a" && o.resource_version() == 4)
        );
        let gone = parse_event(br#"{"type":"ERROR","object":{"kind":"Status","apiVersion":"v1","metadata":{},"code":410,"reason":"Expired","message":"too old"}}"#);
        assert!(gone.unwrap_err().is_expired());
        assert!(parse_event(b"{}").is_err());
    }

    #[tokio::test]
    async fn events_may_be_cut_anywhere() {
        let line = |n: u32| {
            format!(r#"{{"type":"ADDED","object":{{"metadata":{{"name":"a","resourceVersion":"{n}"}}}}}}"#)
        };
        let body = format!("{}\n{}\n", line(1), line(2));
        let chunks: Vec<Result<Bytes>> =
            body.as_bytes().chunks(7).map(|c| Ok(Bytes::copy_from_slice(c))).collect();
        let found: Vec<u64> = events(stream::iter(chunks))
            .map(|event| match event.unwrap() {
                WatchEvent::Added(o) => o.resource_version(),
                other => panic!("{other:?}"),
            })
            .collect()
            .await;
        assert_eq!(found, [1, 2]);
    }
}
