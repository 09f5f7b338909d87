//! The documents of discovery: groups and their resources, OpenAPI, the version.

mod aggregated;
mod custom_openapi;
pub mod legacy;
mod openapi;
mod openapi_v2;

use std::sync::{Arc, Mutex, PoisonError};

use bytes::Bytes;
use http::header::{CACHE_CONTROL, ETAG, HeaderValue, IF_NONE_MATCH, VARY};
use http::{Response, StatusCode};
use knarr_apimachinery::schema::openapi::hash;
use knarr_apimachinery::schema::protobuf;
use knarr_apimachinery::status::StatusError;
use serde_json::{Value, json};

use crate::aggregator::{self, Aggregator};
use crate::config::Config;
use knarr_registry::table::Table;
use knarr_wire::body::Body;
use knarr_wire::metrics::{Metric, Metrics};
use knarr_wire::negotiate::Format;
use knarr_wire::output::{Answer, raw, to_json};
use knarr_wire::request::Request;

/// The discovery documents, created once for each state of the resource table.
pub struct Discovery {
    aggregator: Arc<Aggregator>,
    metrics: Arc<Metrics>,
    aggregated: Mutex<Option<Arc<Aggregated>>>,
    /// The document of `/version`.
    pub version: Value,
    openapi: openapi::Documents,
    openapi_v2: openapi_v2::DocumentV2,
}

/// The two documents of aggregated discovery, and the table from which they were created.
struct Aggregated {
    table: Arc<Table>,
    /// The generation of the aggregated servers' documents.
    generation: u64,
    core: Document,
    groups: Document,
}

/// A body with its ETag.
pub struct Document {
    body: Bytes,
    etag: String,
}

impl Document {
    fn new(value: &Value) -> Self {
        let body = to_json(value);
        let etag = format!("\"{}\"", hash(&body));
        Self { body, etag }
    }

    /// Answers aggregated discovery in this format. Clients may cache it and revalidate it by its ETag.
    fn aggregated(&self, request: &Request, format: Format) -> Result<Answer, StatusError> {
        let value = || serde_json::from_slice::<Value>(&self.body).map_err(StatusError::internal);
        let (content_type, body) = match format {
            Format::Json => ("application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList", None),
            Format::Yaml => {
                let text = serde_saphyr::to_string(&value()?).map_err(StatusError::internal)?;
                ("application/yaml;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList", Some(text.into()))
            }
            Format::Protobuf => {
                let message = protobuf::encode_object(&value()?).map_err(StatusError::internal)?;
                let media =
                    "application/vnd.kubernetes.protobuf;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList";
                (media, Some(message.into()))
            }
        };
        let mut response = self.answer(request, content_type);
        if let Some(body) = body.filter(|_| response.status() == StatusCode::OK) {
            *response.body_mut() = Body::Full(body);
        }
        response.headers_mut().insert(CACHE_CONTROL, HeaderValue::from_static("public"));
        Ok(Answer::Raw(response))
    }

    /// Answers the document, or 304 if the client has it.
    fn answer(&self, request: &Request, content_type: &'static str) -> Response<Body> {
        let known = request.headers.get(IF_NONE_MATCH).and_then(|v| v.to_str().ok());
        let mut response = if known == Some(self.etag.as_str()) {
            let mut response = Response::new(Body::empty());
            *response.status_mut() = StatusCode::NOT_MODIFIED;
            response
        } else {
            raw(200, content_type, self.body.clone())
        };
        if let Ok(etag) = HeaderValue::from_str(&self.etag) {
            response.headers_mut().insert(ETAG, etag);
        }
        response.headers_mut().append(VARY, HeaderValue::from_static("Accept"));
        response
    }
}

impl Discovery {
    pub fn new(config: &Config, aggregator: Arc<Aggregator>, metrics: Arc<Metrics>) -> Self {
        Self {
            aggregator,
            metrics,
            aggregated: Mutex::default(),
            version: version(config),
            openapi: openapi::Documents::default(),
            openapi_v2: openapi_v2::DocumentV2::default(),
        }
    }

    fn documents(&self, table: &Arc<Table>) -> Arc<Aggregated> {
        let generation = self.aggregator.generation();
        let mut made = self.aggregated.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(made) = &*made
            && Arc::ptr_eq(&made.table, table)
            && made.generation == generation
        {
            return Arc::clone(made);
        }
        self.metrics.increment(Metric::DiscoveryAggregations, &[]);
        let fresh = Arc::new(Aggregated {
            table: Arc::clone(table),
            generation,
            core: Document::new(&aggregated::list(table, true)),
            groups: Document::new(&aggregator::merge_discovery(
                &self.aggregator,
                aggregated::list(table, false),
            )),
        });
        *made = Some(Arc::clone(&fresh));
        fresh
    }

    /// Answers aggregated discovery of the core group, or of all other groups.
    pub fn aggregated(
        &self,
        table: &Arc<Table>,
        core: bool,
        request: &Request,
        format: Format,
    ) -> Result<Answer, StatusError> {
        let documents = self.documents(table);
        let document = if core { &documents.core } else { &documents.groups };
        document.aggregated(request, format)
    }

    /// Returns the document of `/apis`.
    pub fn groups(&self, table: &Table) -> Value {
        aggregator::merge_groups(&self.aggregator, legacy::groups(table))
    }

    /// Answers `/openapi/v3/…`: the document of one group version.
    pub fn openapi(&self, table: &Table, request: &Request, path: &str) -> Answer {
        openapi::document(&self.openapi, table, request, path)
    }

    /// Answers `/openapi/v2`.
    pub fn openapi_v2(&self, table: &Arc<Table>, request: &Request) -> Answer {
        openapi_v2::answer(self, table, request)
    }

    /// Returns the document of `/openapi/v3`.
    pub fn openapi_index(&self, table: &Arc<Table>) -> Value {
        aggregator::merge_openapi_index(&self.aggregator, self.openapi.index(table))
    }
}

fn version(config: &Config) -> Value {
    let version = &config.version;
    let (major, minor) = version
        .git_version
        .trim_start_matches('v')
        .split_once('.')
        .map(|(major, rest)| (major, rest.split('.').next().unwrap_or("")))
        .unwrap_or(("1", ""));
    let before = minor.parse().unwrap_or(1u32).saturating_sub(1).to_string();
    let arch = match std::env::consts::ARCH {
        "x86_64" => "amd64",
        "aarch64" => "arm64",
        other => other,
    };
    json!({
        "major": major, "minor": minor, "emulationMajor": major, "emulationMinor": minor,
        "minCompatibilityMajor": major, "minCompatibilityMinor": before, "gitVersion": version.git_version, "gitCommit": version.git_commit,
        "gitTreeState": "clean", "buildDate": version.build_date, "goVersion": "none", "compiler": "rustc",
        "platform": format!("{}/{arch}", std::env::consts::OS),
    })
}
