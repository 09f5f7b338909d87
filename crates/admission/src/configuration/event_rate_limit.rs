//! EventRateLimit's Configuration: how many Events may be written per server, namespace, user or source.

use knarr_apimachinery::field::{Error, ErrorList, Path};
use serde::Deserialize;
use serde_json::{Value, json};

use super::strict::{self, Shape};
use crate::AdmissionConfig;
use crate::config::{EventLimit, LimitType};

const KINDS: &[(&str, &str)] = &[("eventratelimit.admission.k8s.io/v1alpha1", "Configuration")];
const SHAPE: Shape = Shape::Object(&[(
    "limits",
    Shape::List(&Shape::Object(&[
        ("type", Shape::Any),
        ("qps", Shape::Any),
        ("burst", Shape::Any),
        ("cacheSize", Shape::Any),
    ])),
)]);

const TYPES: [(&str, LimitType); 4] = [
    ("Server", LimitType::Server),
    ("Namespace", LimitType::Namespace),
    ("User", LimitType::User),
    ("SourceAndObject", LimitType::SourceAndObject),
];

#[derive(Deserialize)]
struct File {
    #[serde(default)]
    limits: Option<Vec<LimitFile>>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct LimitFile {
    #[serde(default, rename = "type")]
    type_: String,
    #[serde(default)]
    qps: i32,
    #[serde(default)]
    burst: i32,
    #[serde(default)]
    cache_size: i32,
}

pub fn load(value: Option<&Value>, settings: &mut AdmissionConfig) -> Result<(), String> {
    let Some(value) = value else {
        if settings.event_limits.is_empty() {
            return Err(none(Value::Null).to_string());
        }
        return Ok(());
    };
    let file: File = strict::decode(value, KINDS, &SHAPE)?;
    let limits = file.limits.unwrap_or_default();
    if limits.is_empty() {
        return Err(none(value["limits"].clone()).to_string());
    }
    let mut errors = ErrorList::new();
    settings.event_limits =
        limits.iter().enumerate().filter_map(|(index, limit)| limit.read(index, &mut errors)).collect();
    if errors.is_empty() { Ok(()) } else { Err(errors.to_string()) }
}

fn none(limits: Value) -> Error {
    let limits = if limits.is_null() { Value::Null } else { json!([]) };
    Error::invalid(&Path::new("limits"), limits, "must not be empty")
}

impl LimitFile {
    fn read(&self, index: usize, errors: &mut ErrorList) -> Option<EventLimit> {
        let path = Path::new("limits").index(index);
        let type_ = TYPES.iter().find(|(name, _)| *name == self.type_).map(|(_, type_)| *type_);
        if type_.is_none() {
            let names = TYPES.map(|(name, _)| name);
            errors.push(Error::not_supported(&path.child("type"), self.type_.as_str(), &names));
        }
        let mut positive = |field: &str, value: i32| {
            let number = u32::try_from(value).ok().filter(|v| *v > 0);
            if number.is_none() {
                errors.push(Error::invalid(&path.child(field), value, "must be positive"));
            }
            number
        };
        let (burst, qps) = (positive("burst", self.burst), positive("qps", self.qps));
        let is_server = type_ == Some(LimitType::Server);
        let cache_size = usize::try_from(self.cache_size).ok().or(is_server.then_some(0));
        if cache_size.is_none() {
            let why = "must not be negative";
            errors.push(Error::invalid(&path.child("cacheSize"), self.cache_size, why));
        }
        Some(EventLimit { type_: type_?, qps: qps?, burst: burst?, cache_size: cache_size? })
    }
}
