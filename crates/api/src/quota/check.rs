//! Decides whether a namespace's quotas allow a write, and calculates their new usage.

use std::collections::{BTreeMap, BTreeSet};

use jiff::Timestamp;
use serde_json::Value;

use super::amounts::{self, Amounts, add, at_most, list, mask, subtract, without_zeros};
use super::scopes::{self, Requirement, requirements};
use super::{Evaluator, Operation};

/// A resource that may only be used if a quota covers it.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Limited {
    pub group: String,
    pub resource: String,
    /// If the name of a consumed resource contains one of these, a quota must cover it.
    pub match_contains: Vec<String>,
    /// Objects in one of these scopes must be covered by a quota of the scope.
    pub match_scopes: Vec<Requirement>,
}

/// A write to charge against the quotas.
pub struct Charge<'a> {
    pub evaluator: &'a Evaluator,
    pub group: &'a str,
    pub resource: &'a str,
    pub operation: Operation,
    pub subresource: &'a str,
    pub new: &'a Value,
    pub old: Option<&'a Value>,
    pub now: Timestamp,
}

/// Why a write is refused, with upstream's error text.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Refusal {
    /// The object is forbidden (403).
    Forbidden(String),
    /// Another failure; the message is the whole answer.
    Other(String),
}

struct Quota<'a> {
    name: &'a str,
    hard: Amounts,
    used: Amounts,
    scopes: Vec<Requirement>,
}

impl<'a> Quota<'a> {
    fn of(quota: &'a Value) -> Self {
        Self {
            name: quota["metadata"]["name"].as_str().unwrap_or(""),
            hard: list(&quota["status"]["hard"]),
            used: list(&quota["status"]["used"]),
            scopes: requirements(&quota["spec"]),
        }
    }
}

/// Returns the new `status.used` of each quota that the write changes, by index in `quotas`.
///
/// `quotas` are the complete ResourceQuota objects of the namespace.
pub fn check(
    quotas: &[&Value],
    charge: &Charge<'_>,
    limited: &[Limited],
) -> Result<BTreeMap<usize, Amounts>, Refusal> {
    let Charge { evaluator, new, now, .. } = *charge;
    if !evaluator.handles(charge.operation, charge.subresource, new, charge.old) {
        return Ok(BTreeMap::new());
    }
    let forbidden = |why: String| Err(Refusal::Forbidden(why));
    let quotas: Vec<Quota<'_>> = quotas.iter().map(|q| Quota::of(q)).collect();
    let usage = evaluator.usage(new, now);
    let (mut interesting, mut covered, mut covered_scopes) = (Vec::new(), BTreeSet::new(), Vec::new());
    for (index, quota) in quotas.iter().enumerate() {
        covered_scopes.extend(quota.scopes.iter().filter(|s| evaluator.in_scope(s, new)).cloned());
        if !evaluator.matches(&quota.hard, &quota.scopes, new) {
            continue;
        }
        let names: BTreeSet<String> = quota.hard.keys().filter(|n| evaluator.tracks(n)).cloned().collect();
        if let Err(why) = evaluator.constraints(&names, new) {
            return forbidden(format!("failed quota: {}: {why}", quota.name));
        }
        if !names.iter().all(|n| quota.used.contains_key(n)) {
            let names: Vec<&str> = names.iter().map(String::as_str).collect();
            return forbidden(format!(
                "status unknown for quota: {}, resources: {}",
                quota.name,
                names.join(",")
            ));
        }
        interesting.push(index);
        covered.extend(names);
    }
    let negative: Vec<&str> = usage.iter().filter(|(_, a)| a.signum() < 0).map(|(n, _)| n.as_str()).collect();
    if !negative.is_empty() {
        return forbidden(format!("quota usage is negative for resource(s): {}", negative.join(",")));
    }
    let deltas = deltas(charge, &quotas, &interesting, &usage);
    if deltas.is_empty() {
        return Ok(BTreeMap::new());
    }
    uncovered(charge, limited, &usage, &covered, &covered_scopes)?;
    let mut changed = BTreeMap::new();
    for (index, delta) in deltas {
        let Some(quota) = index.and_then(|i| quotas.get(i)) else { continue };
        let used = charged(quota, &delta, charge.subresource)?;
        changed.insert(index.unwrap_or_default(), used);
    }
    Ok(changed)
}

/// Returns the increase of usage by quota index; under `None` if no quota matches.
fn deltas(
    charge: &Charge<'_>,
    quotas: &[Quota<'_>],
    interesting: &[usize],
    usage: &Amounts,
) -> BTreeMap<Option<usize>, Amounts> {
    // If the object of an update does not exist yet, all of its usage is an increase.
    let existing = charge
        .old
        .filter(|_| charge.operation == Operation::Update)
        .filter(|old| old["metadata"]["resourceVersion"].as_str().is_some_and(|v| !v.is_empty()));
    let delta = match existing {
        Some(old) => subtract(usage, &charge.evaluator.usage(old, charge.now)),
        None => usage.clone(),
    };
    let mut all = BTreeMap::new();
    if interesting.is_empty() {
        all.insert(None, delta.clone());
    }
    for index in interesting {
        let quota = &quotas[*index];
        let counted = existing.is_some_and(|old| charge.evaluator.matches(&quota.hard, &quota.scopes, old));
        all.insert(Some(*index), if counted { delta.clone() } else { usage.clone() });
    }
    all.into_iter().map(|(i, d)| (i, without_zeros(&d))).filter(|(_, d)| !d.is_empty()).collect()
}

/// Refuses resources and scopes that need a quota and that no quota covers.
fn uncovered(
    charge: &Charge<'_>,
    limited: &[Limited],
    usage: &Amounts,
    covered: &BTreeSet<String>,
    covered_scopes: &[Requirement],
) -> Result<(), Refusal> {
    let of_this = limited.iter().filter(|l| l.group == charge.group && l.resource == charge.resource);
    let mut names: BTreeSet<&str> = BTreeSet::new();
    for one in of_this {
        let matches = |name: &&String| one.match_contains.iter().any(|part| name.contains(part.as_str()));
        names.extend(usage.iter().filter(|(n, a)| a.signum() > 0 && matches(n)).map(|(n, _)| n.as_str()));
    }
    let missing: Vec<&str> = names.into_iter().filter(|n| !covered.contains(*n)).collect();
    if !missing.is_empty() {
        return Err(Refusal::Forbidden(format!("insufficient quota to consume: {}", missing.join(","))));
    }
    let needed = limited.iter().flat_map(|l| &l.match_scopes);
    let missing: Vec<Requirement> = needed
        .filter(|s| charge.evaluator.in_scope(s, charge.new))
        .filter(|s| !covered_scopes.iter().any(|c| c.scope == s.scope))
        .cloned()
        .collect();
    if missing.is_empty() {
        return Ok(());
    }
    let shown = scopes::shown(&missing);
    Err(Refusal::Other(format!("insufficient quota to match these scopes: {shown}")))
}

/// Returns the usage of a quota after the write; refuses a write that exceeds its limits.
fn charged(quota: &Quota<'_>, delta: &Amounts, subresource: &str) -> Result<Amounts, Refusal> {
    let names: BTreeSet<String> = quota.hard.keys().cloned().collect();
    let requested = mask(delta, &names);
    let mut used = quota.used.clone();
    add(&mut used, &requested);
    if subresource == "status" {
        return Ok(used);
    }
    let asked: BTreeSet<String> = requested.keys().cloned().collect();
    let exceeded = at_most(&mask(&used, &asked), &quota.hard);
    if exceeded.is_empty() {
        return Ok(used);
    }
    let shown = |all: &Amounts| amounts::shown(&mask(all, &exceeded));
    Err(Refusal::Forbidden(format!(
        "exceeded quota: {}, requested: {}, used: {}, limited: {}",
        quota.name,
        shown(&requested),
        shown(&quota.used),
        shown(&quota.hard)
    )))
}
