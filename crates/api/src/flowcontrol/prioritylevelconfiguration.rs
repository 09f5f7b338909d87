//! PriorityLevelConfiguration: the concurrency of a priority level, and whether more requests are queued or
//! rejected.

use k8s_openapi::api::flowcontrol::v1 as api;
use knarr_apimachinery::field::{Error, ErrorList, Path};
use serde_json::Value;

use super::{mandatory, validate_conditions};
use crate::defaults::{blank, child, existing, unset};
use crate::kind::Kind;
use crate::naming;
use crate::object::Object;
use crate::prepare;
use crate::resource::{self, CellContext, Column, Resource};
use crate::strategy::Strategy;
use crate::table::{self, AGE, NAME};
use crate::validate;

pub const RESOURCE: Resource = Resource {
    subresources: &[resource::STATUS],
    columns: COLUMNS,
    cells,
    ..Resource::stored(
        api::PriorityLevelConfiguration::RESOURCE,
        "PriorityLevelConfigurationList",
        "prioritylevelconfiguration",
        &Rules,
    )
};

const COLUMNS: &[Column] = &[
    NAME,
    Column::new("Type", "string", "The type of the level: Limited or Exempt."),
    Column::new("NominalConcurrencyShares", "string", "The level's share of the server's concurrency limit."),
    Column::new("Queues", "string", "The number of queues."),
    Column::new("HandSize", "string", "The number of queues that a flow is shuffled over."),
    Column::new("QueueLengthLimit", "string", "The maximum number of requests waiting in a queue."),
    AGE,
];

fn cells(object: &Object, cx: &CellContext) -> Vec<Value> {
    let o = object.typed::<api::PriorityLevelConfiguration>().unwrap_or_default();
    let spec = &o.spec;
    let limited = spec.limited.as_ref();
    let queuing = limited.and_then(|l| l.limit_response.queuing.as_ref());
    let cell = |there: bool, n: Option<i32>| match there {
        true => table::count(n),
        false => Value::from("<none>"),
    };
    vec![
        Value::from(object.name()),
        Value::from(spec.type_.as_str()),
        cell(limited.is_some(), limited.and_then(|l| l.nominal_concurrency_shares)),
        cell(queuing.is_some(), queuing.and_then(|q| q.queues)),
        cell(queuing.is_some(), queuing.and_then(|q| q.hand_size)),
        cell(queuing.is_some(), queuing.and_then(|q| q.queue_length_limit)),
        table::age(o.metadata.creation_timestamp.as_ref(), cx),
    ]
}

struct Rules;

impl Strategy for Rules {
    fn default(&self, object: &mut Value) {
        let spec = child(prepare::object(object), "spec");
        if let Some(exempt) = existing(spec, "exempt") {
            unset(exempt, "nominalConcurrencyShares", 0);
            unset(exempt, "lendablePercent", 0);
        }
        if let Some(limited) = existing(spec, "limited") {
            unset(limited, "nominalConcurrencyShares", 30);
            unset(limited, "lendablePercent", 0);
            if let Some(queuing) = existing(limited, "limitResponse").and_then(|r| existing(r, "queuing")) {
                blank(queuing, "handSize", 8);
                blank(queuing, "queues", 64);
                blank(queuing, "queueLengthLimit", 50);
            }
        }
    }

    fn prepare_for_create(&self, object: &mut Value) {
        prepare::create_with_status(object);
    }

    fn prepare_for_update(&self, new: &mut Value, old: &Value, subresource: Option<&str>) {
        super::prepare_for_update(new, old, subresource);
    }

    fn validate(&self, object: &Object) -> ErrorList {
        object.typed::<api::PriorityLevelConfiguration>().map(|o| validate_own(&o)).unwrap_or_default()
    }

    fn validate_update(&self, new: &Object, _: &Object, subresource: Option<&str>) -> ErrorList {
        let Ok(new) = new.typed::<api::PriorityLevelConfiguration>() else { return ErrorList::new() };
        match subresource {
            Some("status") => {
                let mut errors = ErrorList::new();
                validate_status(&mut errors, &new);
                errors
            }
            _ => validate_own(&new),
        }
    }

    fn validate_name(&self, name: &str, prefix: bool) -> Vec<String> {
        naming::subdomain(name, prefix)
    }
}

/// An annotation of older versions, which stored objects may not have.
const ZERO_SHARES: &str = "flowcontrol.k8s.io/concurrency-shares-defaults-to-zero";

fn validate_own(level: &api::PriorityLevelConfiguration) -> ErrorList {
    let mut errors = ErrorList::new();
    let name = level.metadata.name.as_deref().unwrap_or("");
    if level.metadata.annotations.as_ref().is_some_and(|a| a.contains_key(ZERO_SHARES)) {
        let path = Path::new("metadata").child("annotations");
        errors.push(Error::forbidden(&path, format!("annotation '{ZERO_SHARES}' is forbidden")));
    }
    let (path, spec) = (Path::new("spec"), &level.spec);
    validate_spec(&mut errors, &path, name, spec);
    fixed(&mut errors, &path, name, spec);
    validate_status(&mut errors, level);
    errors
}

fn validate_spec(
    errors: &mut ErrorList,
    path: &Path,
    name: &str,
    spec: &api::PriorityLevelConfigurationSpec,
) {
    let type_ = spec.type_.as_str();
    if (name == "exempt") != (type_ == "Exempt") {
        let problem = "must be 'Exempt' if and only if `name` is 'exempt'";
        errors.push(Error::invalid(&path.child("type"), type_, problem));
    }
    validate::one_of(errors, &path.child("type"), type_, &["Exempt", "Limited"]);
    let at = path.child("exempt");
    match &spec.exempt {
        Some(_) if type_ != "Exempt" => errors.push(Error::forbidden(&at, "")),
        Some(exempt) => {
            shares(errors, &at, exempt.nominal_concurrency_shares);
            lendable(errors, &at, exempt.lendable_percent);
        }
        None => {}
    }
    let at = path.child("limited");
    match &spec.limited {
        Some(_) if type_ != "Limited" => errors.push(Error::forbidden(&at, "")),
        Some(limited) => validate_limited(errors, &at, limited),
        None if type_ == "Limited" => errors.push(Error::required(&at, "")),
        None => {}
    }
}

fn shares(errors: &mut ErrorList, path: &Path, shares: Option<i32>) {
    if let Some(shares) = shares.filter(|s| *s < 0) {
        let path = path.child("nominalConcurrencyShares");
        errors.push(Error::invalid(&path, shares, "must be a non-negative integer"));
    }
}

fn lendable(errors: &mut ErrorList, path: &Path, percent: Option<i32>) {
    if let Some(percent) = percent.filter(|p| !(0..=100).contains(p)) {
        let path = path.child("lendablePercent");
        errors.push(Error::invalid(&path, percent, "must be between 0 and 100, inclusive"));
    }
}

fn validate_limited(errors: &mut ErrorList, path: &Path, limited: &api::LimitedPriorityLevelConfiguration) {
    shares(errors, path, limited.nominal_concurrency_shares);
    validate_response(errors, &path.child("limitResponse"), &limited.limit_response);
    lendable(errors, path, limited.lendable_percent);
    if let Some(percent) = limited.borrowing_limit_percent.filter(|p| *p < 0) {
        let problem = "if specified, must be a non-negative integer";
        errors.push(Error::invalid(&path.child("borrowingLimitPercent"), percent, problem));
    }
}

fn validate_response(errors: &mut ErrorList, path: &Path, response: &api::LimitResponse) {
    let type_ = response.type_.as_str();
    validate::one_of(errors, &path.child("type"), type_, &["Queue", "Reject"]);
    let at = path.child("queuing");
    match &response.queuing {
        Some(_) if type_ != "Queue" => errors.push(Error::forbidden(&at, "")),
        Some(queuing) => validate_queuing(errors, &at, queuing),
        None if type_ == "Queue" => errors.push(Error::required(&at, "")),
        None => {}
    }
}

const MOST_QUEUES: i32 = 10_000_000;
/// Bits of the hash by which queues are dealt to flows (shuffle sharding).
const HASH_BITS: i64 = 60;

fn validate_queuing(errors: &mut ErrorList, path: &Path, queuing: &api::QueuingConfiguration) {
    let count = |n: Option<i32>| n.unwrap_or(0);
    let (limit, queues, hand) =
        (count(queuing.queue_length_limit), count(queuing.queues), count(queuing.hand_size));
    if limit <= 0 {
        errors.push(Error::invalid(&path.child("queueLengthLimit"), limit, "must be positive"));
    }
    let at = path.child("queues");
    if queues <= 0 {
        errors.push(Error::invalid(&at, queues, "must be positive"));
    } else if queues > MOST_QUEUES {
        errors.push(Error::invalid(&at, queues, format!("must not be greater than {MOST_QUEUES}")));
    }
    let at = path.child("handSize");
    if hand <= 0 {
        errors.push(Error::invalid(&at, hand, "must be positive"));
    } else if hand > queues {
        errors.push(Error::invalid(&at, hand, format!("should not be greater than queues ({queues})")));
    } else if entropy_bits(queues, hand) > HASH_BITS {
        let problem = format!(
            "required entropy bits of deckSize {queues} and handSize {hand} should not be greater than {HASH_BITS}"
        );
        errors.push(Error::invalid(&at, hand, problem));
    }
}

/// Returns the bits of entropy needed to deal a hand from a deck.
fn entropy_bits(deck: i32, hand: i32) -> i64 {
    (f64::from(deck).log2() * f64::from(hand)).ceil() as i64
}

/// Requires the fixed spec of a mandatory priority level; only `exempt` has a field that may change.
fn fixed(errors: &mut ErrorList, path: &Path, name: &str, spec: &api::PriorityLevelConfigurationSpec) {
    let Some(fixed) = mandatory::priority_level(name) else { return };
    let mut own = validate::shown(spec);
    let mut but = "";
    if name == "exempt" {
        but = " except the 'spec.exempt' field";
        prepare::keep(&mut own, &fixed, "exempt");
    }
    if !prepare::same(Some(&own), Some(&fixed)) {
        let problem = format!("spec of '{name}'{but} must equal the fixed value");
        errors.push(Error::invalid(path, validate::shown(spec), problem));
    }
}

fn validate_status(errors: &mut ErrorList, level: &api::PriorityLevelConfiguration) {
    let conditions = level.status.iter().flat_map(|s| s.conditions.iter().flatten());
    validate_conditions(errors, conditions.map(|c| c.type_.as_str()));
}
