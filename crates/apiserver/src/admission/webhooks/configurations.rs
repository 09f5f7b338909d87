//! The webhooks of all configurations, read when they change.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use arc_swap::ArcSwapOption;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::LabelSelector;
use knarr_apimachinery::selector::Selector;
use knarr_apimachinery::status::StatusError;
use knarr_client::kubeconfig::Users;
use serde_json::Value;

use super::GROUP;
use crate::admission::lookup;
use crate::admission::match_conditions::MatchConditions;
use crate::admission::policy::definitions::named;
use crate::registry::Request;
use crate::server::Inner;
use crate::thread_safe::ThreadSafe;
use crate::webhook::Target;

const DEFAULT_TIMEOUT: u64 = 10;

/// What a webhook wants to see.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Rule {
    pub operations: Vec<String>,
    pub groups: Vec<String>,
    pub versions: Vec<String>,
    pub resources: Vec<String>,
    /// `*`, `Namespaced` or `Cluster`.
    pub scope: String,
}

impl Rule {
    pub fn read(rule: &Value) -> Self {
        Self {
            operations: strings(&rule["operations"]),
            groups: strings(&rule["apiGroups"]),
            versions: strings(&rule["apiVersions"]),
            resources: strings(&rule["resources"]),
            scope: rule["scope"].as_str().unwrap_or("*").to_owned(),
        }
    }
}

/// One webhook of one configuration.
pub struct Hook {
    /// Tells it from all others, also of the same name.
    pub uid: String,
    pub configuration: String,
    pub name: String,
    pub target: Result<Target, String>,
    pub rules: Vec<Rule>,
    /// `failurePolicy: Ignore`.
    pub ignores_failures: bool,
    /// `matchPolicy: Exact`.
    pub exact: bool,
    pub namespaces: Result<Selector, String>,
    pub objects: Result<Selector, String>,
    pub side_effects: String,
    pub timeout: Duration,
    /// Versions of AdmissionReview that it understands, the best first.
    pub versions: Vec<String>,
    /// `reinvocationPolicy: IfNeeded`.
    pub reinvoke: bool,
    pub conditions: ThreadSafe<MatchConditions>,
    /// `admit` or `validating`, as metrics tell them apart.
    pub sort: &'static str,
}

/// The hooks as they were read, and at which generation of the cache.
struct Read {
    generation: u64,
    hooks: Arc<Vec<Arc<Hook>>>,
}

/// The webhooks of one kind of configuration.
pub struct Configurations {
    plural: &'static str,
    /// Who the API server is to them.
    users: Option<Arc<Users>>,
    read: ArcSwapOption<Read>,
}

impl Configurations {
    pub fn new(plural: &'static str, users: Option<Arc<Users>>) -> Self {
        Self { plural, users, read: ArcSwapOption::empty() }
    }

    /// All hooks, by the configurations' names.
    ///
    /// They come from the watch cache: a configuration that was written just now may miss the next few requests, as it
    /// may upstream.
    pub fn hooks(&self, request: &Request, server: &Inner) -> Result<Arc<Vec<Arc<Hook>>>, StatusError> {
        let Some(served) = server.table.find(GROUP, "v1", self.plural) else { return Ok(Arc::default()) };
        lookup::check_readable(request, &served, None)?;
        let cache = served.cache()?;
        let generation = cache.generation();
        if let Some(read) = self.read.load().as_ref().filter(|r| r.generation == generation) {
            return Ok(Arc::clone(&read.hooks));
        }
        let objects = cache.list(None);
        let values = objects.iter().filter_map(|o| serde_json::from_slice::<Value>(&o.json()).ok());
        let hooks: Arc<Vec<_>> =
            Arc::new(values.flat_map(|v| hooks_of(&v)).map(|hook| Arc::new(self.identified(hook))).collect());
        self.read.store(Some(Arc::new(Read { generation, hooks: Arc::clone(&hooks) })));
        Ok(hooks)
    }
}

impl Configurations {
    /// The hook with what the API server authenticates itself by at its host.
    fn identified(&self, mut hook: Hook) -> Hook {
        if let (Some(users), Ok(target)) = (&self.users, &mut hook.target) {
            target.identity =
                target.host_and_port().and_then(|(host, port)| users.of_host(&host, port)).cloned();
        }
        hook
    }
}

fn strings(value: &Value) -> Vec<String> {
    value.as_array().into_iter().flatten().filter_map(Value::as_str).map(str::to_owned).collect()
}

/// The webhooks of one configuration.
pub fn hooks_of(configuration: &Value) -> Vec<Hook> {
    let name = configuration["metadata"]["name"].as_str().unwrap_or("");
    let mutating = configuration["kind"] == "MutatingWebhookConfiguration";
    let sort = if mutating { "admit" } else { "validating" };
    let mut seen: BTreeMap<&str, usize> = BTreeMap::new();
    let list = configuration["webhooks"].as_array();
    list.into_iter()
        .flatten()
        .map(|webhook| {
            let count = seen.entry(webhook["name"].as_str().unwrap_or("")).or_default();
            let hook = Hook { sort, ..hook(name, webhook, *count) };
            *count += 1;
            hook
        })
        .collect()
}

fn hook(configuration: &str, webhook: &Value, count: usize) -> Hook {
    let text = |field: &str| webhook[field].as_str().unwrap_or("").to_owned();
    let name = text("name");
    let rules = webhook["rules"].as_array().into_iter().flatten().map(Rule::read);
    let conditions = ThreadSafe::new(MatchConditions::compile(&named(&webhook["matchConditions"])));
    Hook {
        uid: format!("{configuration}/{name}/{count}"),
        configuration: configuration.to_owned(),
        target: Target::from_client_config(&webhook["clientConfig"]).map_err(|e| e.to_string()),
        rules: rules.collect(),
        ignores_failures: webhook["failurePolicy"] == "Ignore",
        exact: webhook["matchPolicy"] == "Exact",
        namespaces: selector(&webhook["namespaceSelector"]),
        objects: selector(&webhook["objectSelector"]),
        side_effects: text("sideEffects"),
        timeout: Duration::from_secs(webhook["timeoutSeconds"].as_u64().unwrap_or(DEFAULT_TIMEOUT)),
        versions: strings(&webhook["admissionReviewVersions"]),
        reinvoke: webhook["reinvocationPolicy"] == "IfNeeded",
        conditions,
        sort: "",
        name,
    }
}

/// None selects everything here.
pub fn selector(value: &Value) -> Result<Selector, String> {
    if value.is_null() {
        return Ok(Selector::everything());
    }
    let typed: LabelSelector = serde_json::from_value(value.clone()).map_err(|e| e.to_string())?;
    Selector::from_label_selector(Some(&typed)).map_err(|e| e.to_string())
}
