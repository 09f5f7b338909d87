//! The policies with their bindings: read when they change, and compiled once.

use std::collections::{BTreeSet, HashMap};
use std::path::Path;
use std::sync::Arc;

use arc_swap::ArcSwapOption;
use knarr_api::resource::Resource;
use knarr_apimachinery::status::StatusError;
use serde_json::Value;

use super::matching::MatchResources;
use super::params::{ParamKind, ParamRef};
use crate::Context;
use crate::matching::{Concerned, GROUP};
use crate::{lookup, manifests};
use knarr_reload::{Content, Reloaded};
use knarr_wire::request::Request;

/// The compiled expressions of a policy.
pub trait Compiled: Sized + Send + Sync + 'static {
    const POLICIES: &'static Resource;
    const BINDINGS: &'static Resource;

    /// Compiles the policy's `spec`.
    fn compile(spec: &Value) -> Self;
}

/// One policy.
pub struct Policy<C> {
    pub name: String,
    /// The uid and version at which it was compiled.
    identity: (String, String),
    /// Whether `failurePolicy` is `Ignore`.
    pub ignores_failures: bool,
    pub constraints: MatchResources,
    pub param_kind: Option<ParamKind>,
    pub compiled: C,
}

/// One binding of a policy.
pub struct Binding {
    pub name: String,
    pub resources: Option<MatchResources>,
    pub param_ref: Option<ParamRef>,
    /// The validation actions: `Deny`, `Warn`, `Audit`.
    pub actions: Vec<String>,
}

/// A policy with its bindings.
pub struct Bound<C> {
    pub policy: Arc<Policy<C>>,
    pub bindings: Vec<Binding>,
}

/// The policies in their order of evaluation.
type All<C> = Arc<Vec<Arc<Bound<C>>>>;

/// The policies, the cache generations at which they were read, and the policies from files among them.
struct Read<C> {
    generations: (u64, u64),
    of_files: All<C>,
    bound: All<C>,
}

/// All policies of one kind.
pub struct Policies<C> {
    /// The policies that the server's operator keeps in files.
    manifests: Option<Reloaded<Vec<Arc<Bound<C>>>>>,
    read: ArcSwapOption<Read<C>>,
}

impl<C: Compiled> Policies<C> {
    /// Creates the set. `manifests` is a directory of policies and bindings that are not API objects.
    pub fn new(manifests: Option<&Path>) -> Result<Self, String> {
        let open = |folder: &Path| {
            Reloaded::open_folder(folder.to_owned(), manifests::EXTENSIONS, of_manifests)
                .map_err(|why| format!("failed to load static policy manifests from {folder:?}: {why}"))
        };
        Ok(Self { manifests: manifests.map(open).transpose()?, read: ArcSwapOption::empty() })
    }

    /// Returns the bound policies that apply: those from files first, then the others sorted by name.
    pub fn bound(
        &self,
        concerned: Concerned,
        request: &Request,
        context: &Context<'_>,
    ) -> Result<All<C>, StatusError> {
        if concerned == Concerned::None {
            return Ok(Arc::default());
        }
        let of_files =
            self.manifests.as_ref().map(|m| m.get(context.registry.clock.as_ref())).unwrap_or_default();
        if concerned == Concerned::Manifests {
            return Ok(of_files);
        }
        let find = |resource: &Resource| context.registry.table.find(GROUP, "v1", resource.types.plural);
        let (Some(policies), Some(bindings)) = (find(C::POLICIES), find(C::BINDINGS)) else {
            return Ok(of_files);
        };
        lookup::check_readable(request, &policies, None)?;
        lookup::check_readable(request, &bindings, None)?;
        let (policies, bindings) = (policies.cache()?, bindings.cache()?);
        let generations = (policies.generation(), bindings.generation());
        let before = self.read.load_full();
        let same = |r: &&Arc<Read<C>>| {
            let no_files = r.of_files.is_empty() && of_files.is_empty();
            r.generations == generations && (no_files || Arc::ptr_eq(&r.of_files, &of_files))
        };
        if let Some(read) = before.as_ref().filter(same) {
            return Ok(Arc::clone(&read.bound));
        }
        let mut by_policy: HashMap<String, Vec<Binding>> = HashMap::new();
        for object in bindings.list(None) {
            let Ok(value) = serde_json::from_slice::<Value>(&object.json()) else { continue };
            let policy = value["spec"]["policyName"].as_str().unwrap_or("").to_owned();
            by_policy.entry(policy).or_default().push(binding(&value));
        }
        let known = known(before.as_deref());
        let mut bound = of_files.to_vec();
        for object in policies.list(None) {
            let Some(bindings) = by_policy.remove(object.name()) else { continue };
            let Ok(value) = serde_json::from_slice::<Value>(&object.json()) else { continue };
            let identity = identity(&value);
            let policy = known.get(&identity).map_or_else(|| Arc::new(policy(&value, identity)), Arc::clone);
            bound.push(Arc::new(Bound { policy, bindings }));
        }
        let bound = Arc::new(bound);
        self.read.store(Some(Arc::new(Read { generations, of_files, bound: Arc::clone(&bound) })));
        Ok(bound)
    }
}

/// Reads the policies of files, each with its bindings.
fn of_manifests<C: Compiled>(files: &[Content]) -> Result<Vec<Arc<Bound<C>>>, String> {
    let mut found = manifests::read(files, &[C::POLICIES, C::BINDINGS])?.into_iter();
    let (policies, bindings) = (found.next().unwrap_or_default(), found.next().unwrap_or_default());
    manifests::check_policies(&policies, &bindings)?;
    let mut bound = Vec::new();
    for value in &policies {
        let of_policy = bindings.iter().filter(|b| b["spec"]["policyName"] == value["metadata"]["name"]);
        let bindings: Vec<Binding> = of_policy.map(binding).collect();
        if !bindings.is_empty() {
            bound.push(Arc::new(Bound { policy: Arc::new(policy(value, identity(value))), bindings }));
        }
    }
    Ok(bound)
}

fn known<C>(before: Option<&Read<C>>) -> HashMap<(String, String), Arc<Policy<C>>> {
    let all = before.into_iter().flat_map(|r| r.bound.iter());
    all.map(|b| (b.policy.identity.clone(), Arc::clone(&b.policy))).collect()
}

/// Returns the identity of a version. The resourceVersion alone does not suffice, because it also changes with the
/// status.
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
        compiled: C::compile(spec),
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
