//! `/openapi/v2`: one document for all groups, as JSON or protobuf, created on first use.

use std::io::{Read, Write};
use std::sync::{Arc, Mutex, PoisonError};

use bytes::Bytes;
use flate2::Compression;
use flate2::read::GzDecoder;
use flate2::write::GzEncoder;
use http::header::{
    ACCEPT, ACCEPT_ENCODING, CONTENT_ENCODING, CONTENT_TYPE, ETAG, HeaderValue, IF_NONE_MATCH, VARY,
};
use http::{HeaderMap, HeaderName, Response, StatusCode};
use knarr_apimachinery::schema::openapi::{gnostic, hash, v2};

use super::Discovery;
use crate::aggregator;
use knarr_registry::table::Table;
use knarr_wire::body::Body;
use knarr_wire::output::{Answer, raw, to_json};
use knarr_wire::request::Request;

/// The older and the newer media type of the same format.
const PROTOBUF: [&str; 2] = [
    "application/com.github.proto-openapi.spec.v2.v1.0+protobuf",
    "application/com.github.proto-openapi.spec.v2@v1.0+protobuf",
];

/// The document in both formats, compressed because it is large and rarely requested.
#[derive(Default)]
pub struct DocumentV2(Mutex<Option<Arc<Made>>>);

struct Made {
    table: Arc<Table>,
    generation: u64,
    json: Packed,
    protobuf: Packed,
}

struct Packed {
    gzip: Bytes,
    etag: String,
}

impl Packed {
    fn new(plain: &[u8]) -> Self {
        let mut encoder = GzEncoder::new(Vec::new(), Compression::default());
        // Writing to memory cannot fail.
        let gzip = encoder.write_all(plain).and_then(|()| encoder.finish()).unwrap_or_default();
        Self { gzip: gzip.into(), etag: format!("\"{}\"", hash(plain)) }
    }

    fn plain(&self) -> Vec<u8> {
        let mut plain = Vec::new();
        // The data was compressed above, so this cannot fail.
        let _ = GzDecoder::new(self.gzip.as_ref()).read_to_end(&mut plain);
        plain
    }
}

impl DocumentV2 {
    fn made(&self, discovery: &Discovery, table: &Arc<Table>) -> Arc<Made> {
        let generation = discovery.aggregator.generation();
        let mut kept = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(made) = &*kept
            && Arc::ptr_eq(&made.table, table)
            && made.generation == generation
        {
            return Arc::clone(made);
        }
        let all = discovery.openapi.all(table);
        let v3 = all.values().filter_map(|d| serde_json::from_slice(&d.body).ok());
        let document = aggregator::merge_openapi_v2(&discovery.aggregator, v2::document(v3));
        let made = Arc::new(Made {
            table: Arc::clone(table),
            generation,
            json: Packed::new(&to_json(&document)),
            protobuf: Packed::new(&gnostic::encode(&document)),
        });
        *kept = Some(Arc::clone(&made));
        made
    }
}

fn listed(headers: &HeaderMap, name: &HeaderName) -> String {
    let values = headers.get_all(name).iter().filter_map(|v| v.to_str().ok());
    values.collect::<Vec<_>>().join(",").to_lowercase()
}

/// Returns the first format that the client accepts; JSON if it names none.
fn form(accept: &str) -> Option<&'static str> {
    let ranges = accept.split(',').map(|r| r.split(';').next().unwrap_or("").trim());
    let mut any = false;
    for range in ranges.filter(|r| !r.is_empty()) {
        any = true;
        match range {
            "*/*" | "application/*" | "application/json" => return Some("application/json"),
            range => {
                if PROTOBUF.contains(&range) {
                    return Some(PROTOBUF[0]);
                }
            }
        }
    }
    (!any).then_some("application/json")
}

pub fn answer(discovery: &Discovery, table: &Arc<Table>, request: &Request) -> Answer {
    let Some(content_type) = form(&listed(&request.headers, &ACCEPT)) else {
        return Answer::text(406, "");
    };
    let made = discovery.openapi_v2.made(discovery, table);
    let packed = if content_type == PROTOBUF[0] { &made.protobuf } else { &made.json };
    let known = request.headers.get(IF_NONE_MATCH).and_then(|v| v.to_str().ok());
    let gzip = listed(&request.headers, &ACCEPT_ENCODING).split(',').any(|e| e.trim().starts_with("gzip"));
    let mut response = if known == Some(packed.etag.as_str()) {
        let mut response = Response::new(Body::empty());
        *response.status_mut() = StatusCode::NOT_MODIFIED;
        response
    } else if gzip {
        let mut response = raw(200, content_type, packed.gzip.clone());
        response.headers_mut().insert(CONTENT_ENCODING, HeaderValue::from_static("gzip"));
        response
    } else {
        raw(200, content_type, packed.plain().into())
    };
    let headers = response.headers_mut();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static(content_type));
    if let Ok(etag) = HeaderValue::from_str(&packed.etag) {
        headers.insert(ETAG, etag);
    }
    headers.append(VARY, HeaderValue::from_static("Accept-Encoding, Accept"));
    Answer::Raw(response)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn forms() {
        for (accept, wanted) in [
            ("", Some("application/json")),
            ("application/json", Some("application/json")),
            ("*/*", Some("application/json")),
            (PROTOBUF[0], Some(PROTOBUF[0])),
            (PROTOBUF[1], Some(PROTOBUF[0])),
            ("application/json;q=0.5", Some("application/json")),
            ("text/html", None),
        ] {
            assert_eq!(form(accept), wanted, "{accept}");
        }
    }
}
