//! LeaseCandidate: a candidate for a Lease whose holder is elected by a strategy, not by who is first.

use k8s_openapi::api::coordination::v1beta1 as api;
use knarr_apimachinery::field::{Error, ErrorList, Path};
use knarr_apimachinery::names;
use serde_json::Value;

use crate::kind::Kind;
use crate::object::Object;
use crate::resource::{CellContext, Column, Resource};
use crate::strategy::Strategy;
use crate::table::{self, AGE, NAME};
use crate::validate;

pub const RESOURCE: Resource = Resource {
    selectable: &["spec.leaseName"],
    columns: COLUMNS,
    cells,
    ..Resource::stored(api::LeaseCandidate::RESOURCE, "LeaseCandidateList", "leasecandidate", &Rules)
};

const COLUMNS: &[Column] = &[
    NAME,
    Column::new("LeaseName", "string", "The name of the lease."),
    Column::new("BinaryVersion", "string", "The binary version of the candidate."),
    Column::new("EmulationVersion", "string", "The emulation version of the candidate."),
    AGE,
];

fn cells(object: &Object, cx: &CellContext) -> Vec<Value> {
    let o = object.typed::<api::LeaseCandidate>().unwrap_or_default();
    let spec = &o.spec;
    vec![
        Value::from(object.name()),
        Value::from(spec.lease_name.as_str()),
        Value::from(spec.binary_version.as_str()),
        Value::from(spec.emulation_version.as_deref().unwrap_or("")),
        table::age(o.metadata.creation_timestamp.as_ref(), cx),
    ]
}

struct Rules;

impl Strategy for Rules {
    fn validate(&self, object: &Object) -> ErrorList {
        object.typed::<api::LeaseCandidate>().map(|o| validate_spec(&o.spec)).unwrap_or_default()
    }

    fn validate_update(&self, new: &Object, old: &Object, _: Option<&str>) -> ErrorList {
        let kind = (new.typed::<api::LeaseCandidate>(), old.typed::<api::LeaseCandidate>());
        let (Ok(new), Ok(old)) = kind else { return ErrorList::new() };
        let mut errors = validate_spec(&new.spec);
        let path = Path::new("spec").child("leaseName");
        validate::immutable(&mut errors, &path, &new.spec.lease_name, &old.spec.lease_name);
        errors
    }

    fn validate_name(&self, name: &str, _: bool) -> Vec<String> {
        names::config_map_key(name)
    }

    fn allow_create_on_update(&self) -> bool {
        true
    }

    fn allow_unconditional_update(&self) -> bool {
        false
    }
}

/// Parses major, minor and patch of a semantic version; ignores the rest.
fn version(text: &str) -> Option<[u64; 3]> {
    let core = text.split(['-', '+']).next()?;
    let mut parts = core.split('.').map(|p| p.parse().ok());
    let version = [parts.next()??, parts.next()??, parts.next()??];
    parts.next().is_none().then_some(version)
}

fn validate_spec(spec: &api::LeaseCandidateSpec) -> ErrorList {
    let mut errors = ErrorList::new();
    let path = Path::new("spec");
    validate::required(&mut errors, &path.child("leaseName"), &spec.lease_name);
    let bad = "must be a valid semantic version";
    let emulation = spec.emulation_version.as_deref().unwrap_or("");
    let (emulated, binary) = (version(emulation), version(&spec.binary_version));
    if !emulation.is_empty() && emulated.is_none() {
        errors.push(Error::invalid(&path.child("emulationVersion"), emulation, bad));
    }
    let at = path.child("binaryVersion");
    if validate::required(&mut errors, &at, &spec.binary_version) {
        if binary.is_none() {
            errors.push(Error::invalid(&at, spec.binary_version.as_str(), bad));
        }
        if !emulation.is_empty() && binary.unwrap_or_default() < emulated.unwrap_or_default() {
            let problem = "must be greater than or equal to `emulationVersion`";
            errors.push(Error::invalid(&at, spec.binary_version.as_str(), problem));
        }
    }
    validate_strategy(&mut errors, &path, &spec.strategy, emulated.unwrap_or_default());
    errors
}

/// The strategy that prefers the candidate with the oldest emulation version.
pub const OLDEST_EMULATION_VERSION: &str = "OldestEmulationVersion";

fn validate_strategy(errors: &mut ErrorList, path: &Path, strategy: &str, emulated: [u64; 3]) {
    let at = path.child("strategy");
    if !validate::required(errors, &at, strategy) {
        return;
    }
    if strategy == OLDEST_EMULATION_VERSION && emulated == [0; 3] {
        let problem = "must be specified when `strategy` is 'OldestEmulationVersion'";
        errors.push(Error::required(&path.child("emulationVersion"), problem));
    }
    // Upstream's path has the field twice.
    let at = at.child("strategy");
    if strategy.contains('/') {
        validate::label_key(errors, &at, strategy);
    } else {
        validate::supported_value(errors, &at, strategy, &[OLDEST_EMULATION_VERSION]);
    }
}
