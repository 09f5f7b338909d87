//! The policies with their bindings, read when they change and compiled once.

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;

use arc_swap::ArcSwapOption;
use knarr_apimachinery::status::StatusError;
use serde_json::Value;

use super::matching::MatchResources;
use super::params::{ParamKind, ParamRef};
use crate::admission::lookup;
use crate::admission::webhooks::GROUP;
use crate::registry::Request;
use crate::server::Inner;
use crate::thread_safe::ThreadSafe;

/// What a policy's expressions are compiled to.
pub trait Compiled: Sized + Send + Sync {
    const POLICIES: &'static str;
    const BINDINGS: &'static str;

    /// From the policy's `spec`.
    fn compile(spec: &Value) -> Self;
}

/// One policy.
pub struct Policy<C> {
    pub name: String,
    /// The uid and version that it was compiled at.
    identity: (String, String),
    /// `failurePolicy: Ignore`.
    pub ignores_failures: bool,
    pub constraints: MatchResources,
    pub param_kind: Option<ParamKind>,
    pub compiled: ThreadSafe<C>,
}

/// One binding of a policy.
pub struct Binding {
    pub name: String,
    pub resources: Option<MatchResources>,
    pub param_ref: Option<ParamRef>,
    /// `Deny`, `Warn`, `Audit`.
    pub actions: Vec<String>,
}

/// A policy with what binds it.
pub struct Bound<C> {
    pub policy: Arc<Policy<C>>,
    pub bindings: Vec<Binding>,
}

struct Read<C> {
    generations: (u64, u64),
    bound: Arc<Vec<Bound<C>>>,
}

/// All policies of one sort.
pub struct Policies<C> {
    read: ArcSwapOption<Read<C>>,
}

impl<C> Default for Policies<C> {
    fn default() -> Self {
        Self { read: ArcSwapOption::empty() }
    }
}

impl<C: Compiled> Policies<C> {
    /// All policies that are bound, by their names.
    pub fn bound(&self, request: &Request, server: &Inner) -> Result<Arc<Vec<Bound<C>>>, StatusError> {
        let (policies, bindings) =
            (server.table.find(GROUP, "v1", C::POLICIES), server.table.find(GROUP, "v1", C::BINDINGS));
        let (Some(policies), Some(bindings)) = (policies, bindings) else { return Ok(Arc::default()) };
        lookup::check_readable(request, &policies, None)?;
        lookup::check_readable(request, &bindings, None)?;
        let (policies, bindings) = (policies.cache()?, bindings.cache()?);
        let generations = (policies.generation(), bindings.generation());
        let before = self.read.load_full();
        if let Some(read) = before.as_ref().filter(|r| r.generations == generations) {
            return Ok(Arc::clone(&read.bound));
        }
        let mut by_policy: HashMap<String, Vec<Binding>> = HashMap::new();
        for object in bindings.list(None) {
            let Ok(value) = serde_json::from_slice::<Value>(&object.json()) else { continue };
            let policy = value["spec"]["policyName"].as_str().unwrap_or("").to_owned();
            by_policy.entry(policy).or_default().push(binding(&value));
        }
        let known = known(before.as_deref());
        let mut bound = Vec::new();
        for object in policies.list(None) {
            let Some(bindings) = by_policy.remove(object.name()) else { continue };
            let Ok(value) = serde_json::from_slice::<Value>(&object.json()) else { continue };
            let identity = identity(&value);
            let policy = known.get(&identity).map_or_else(|| Arc::new(policy(&value, identity)), Arc::clone);
            bound.push(Bound { policy, bindings });
        }
        let bound = Arc::new(bound);
        self.read.store(Some(Arc::new(Read { generations, bound: Arc::clone(&bound) })));
        Ok(bound)
    }
}

fn known<C>(before: Option<&Read<C>>) -> HashMap<(String, String), Arc<Policy<C>>> {
    let all = before.into_iter().flat_map(|r| r.bound.iter());
    all.map(|b| (b.policy.identity.clone(), Arc::clone(&b.policy))).collect()
}

/// The resource version alone would not do: it also changes with the status.
fn identity(value: &Value) -> (String, String) {
    let text = |field: &str| value["metadata"][field].to_string();
    (text("uid"), text("generation"))
}

fn policy<C: Compiled>(value: &Value, identity: (String, String)) -> Policy<C> {
    let spec = &value["spec"];
    Policy {
        name: value["metadata"]["name"].as_str().unwrap_or("").to_owned(),
        identity,
        ignores_failures: spec["failurePolicy"] == "Ignore",
        constraints: MatchResources::read(&spec["matchConstraints"]),
        param_kind: ParamKind::read(&spec["paramKind"]),
        compiled: ThreadSafe::new(C::compile(spec)),
    }
}

fn binding(value: &Value) -> Binding {
    let spec = &value["spec"];
    let resources = &spec["matchResources"];
    let actions: BTreeSet<String> = spec["validationActions"]
        .as_array()
        .into_iter()
        .flatten()
        .filter_map(Value::as_str)
        .map(str::to_owned)
        .collect();
    Binding {
        name: value["metadata"]["name"].as_str().unwrap_or("").to_owned(),
        resources: resources.is_object().then(|| MatchResources::read(resources)),
        param_ref: ParamRef::read(&spec["paramRef"]),
        actions: actions.into_iter().collect(),
    }
}

/// Names and expressions of `matchConditions` or `variables`.
pub fn named(list: &Value) -> Vec<(String, String)> {
    let part = |v: &Value, field: &str| v[field].as_str().unwrap_or("").to_owned();
    list.as_array().into_iter().flatten().map(|v| (part(v, "name"), part(v, "expression"))).collect()
}
