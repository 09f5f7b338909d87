//! The webhooks of all configurations, read when they change.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use arc_swap::ArcSwapOption;
use knarr_api::resource::Resource;
use knarr_apimachinery::selector::Selector;
use knarr_apimachinery::status::StatusError;
use knarr_client::kubeconfig::Users;
use serde_json::Value;

use crate::Context;
use crate::match_conditions::MatchConditions;
use crate::matching::{Concerned, GROUP, Rule, selector, strings};
use crate::policy::expression::named;
use crate::{lookup, manifests};
use knarr_outgoing::webhook::Target;
use knarr_reload::{Content, Reloaded};
use knarr_wire::request::Request;

const DEFAULT_TIMEOUT: u64 = 10;

/// One webhook of one configuration.
pub struct Hook {
    /// The unique id. Names are not unique, even within a configuration.
    pub uid: String,
    pub configuration: String,
    pub name: String,
    pub target: Result<Target, String>,
    pub rules: Vec<Rule>,
    /// Whether `failurePolicy` is `Ignore`.
    pub ignores_failures: bool,
    /// Whether `matchPolicy` is `Exact`.
    pub exact: bool,
    pub namespaces: Result<Selector, String>,
    pub objects: Result<Selector, String>,
    pub side_effects: String,
    pub timeout: Duration,
    /// The versions of AdmissionReview that it accepts, the preferred one first.
    pub versions: Vec<String>,
    /// Whether `reinvocationPolicy` is `IfNeeded`.
    pub reinvoke: bool,
    pub conditions: MatchConditions,
    /// The metrics label: `admit` or `validating`.
    pub sort: &'static str,
}

type Hooks = Arc<Vec<Arc<Hook>>>;

/// The hooks, the cache generation at which they were read, and the hooks from files among them.
struct Read {
    generation: u64,
    of_files: Hooks,
    hooks: Arc<Vec<Arc<Hook>>>,
}

/// The webhooks of one kind of configuration.
pub struct Configurations {
    plural: &'static str,
    /// The API server's credentials for webhooks.
    users: Option<Arc<Users>>,
    /// The webhooks that the server's operator keeps in files.
    manifests: Option<Reloaded<Vec<Arc<Hook>>>>,
    read: ArcSwapOption<Read>,
}

impl Configurations {
    /// Creates the set. `manifests` is a directory of webhooks that are not API objects.
    pub fn new(
        resource: &'static Resource,
        users: Option<Arc<Users>>,
        manifests: Option<&Path>,
    ) -> Result<Self, String> {
        let of_manifests = users.clone();
        let parse = move |files: &[Content]| {
            let configurations =
                manifests::read(files, &[resource])?.into_iter().flatten().collect::<Vec<_>>();
            manifests::check_webhooks(&configurations)?;
            let identify = |hook| Arc::new(identified(hook, of_manifests.as_deref()));
            Ok(configurations.iter().flat_map(hooks_of).map(identify).collect())
        };
        let open = |folder: &Path| {
            Reloaded::open_folder(folder.to_owned(), manifests::EXTENSIONS, parse)
                .map_err(|why| format!("failed to load static webhook manifests from {folder:?}: {why}"))
        };
        let manifests = manifests.map(open).transpose()?;
        Ok(Self { plural: resource.types.plural, users, manifests, read: ArcSwapOption::empty() })
    }

    /// Returns the hooks that apply: those from files first, then the others sorted by their configurations' names.
    ///
    /// They are read from the watch cache: the next few requests after a configuration was written may not use it
    /// yet, as upstream.
    pub fn hooks(
        &self,
        concerned: Concerned,
        request: &Request,
        context: &Context<'_>,
    ) -> Result<Hooks, StatusError> {
        if concerned == Concerned::None {
            return Ok(Arc::default());
        }
        let of_files =
            self.manifests.as_ref().map(|m| m.get(context.registry.clock.as_ref())).unwrap_or_default();
        let served = context.registry.table.find(GROUP, "v1", self.plural);
        let Some(served) = served.filter(|_| concerned == Concerned::All) else { return Ok(of_files) };
        lookup::check_readable(request, &served, None)?;
        let cache = served.cache()?;
        let generation = cache.generation();
        let same = |r: &&Arc<Read>| r.generation == generation && is_same(&r.of_files, &of_files);
        if let Some(read) = self.read.load().as_ref().filter(same) {
            return Ok(Arc::clone(&read.hooks));
        }
        let objects = cache.list(None);
        let values = objects.iter().filter_map(|o| serde_json::from_slice::<Value>(&o.json()).ok());
        let of_api =
            values.flat_map(|v| hooks_of(&v)).map(|hook| Arc::new(identified(hook, self.users.as_deref())));
        let hooks: Hooks = Arc::new(of_files.iter().cloned().chain(of_api).collect());
        self.read.store(Some(Arc::new(Read { generation, of_files, hooks: Arc::clone(&hooks) })));
        Ok(hooks)
    }
}

/// Returns whether the files have not changed; without files it returns false.
fn is_same(a: &Hooks, b: &Hooks) -> bool {
    Arc::ptr_eq(a, b) || a.is_empty() && b.is_empty()
}

/// Returns the hook with the API server's credentials for its host.
fn identified(mut hook: Hook, users: Option<&Users>) -> Hook {
    if let (Some(users), Ok(target)) = (users, &mut hook.target) {
        target.identity = target.host_and_port().and_then(|(host, port)| users.of_host(&host, port)).cloned();
    }
    hook
}

/// Returns the webhooks of one configuration.
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
    let conditions = MatchConditions::compile(&named(&webhook["matchConditions"]));
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
