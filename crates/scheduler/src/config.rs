//! The configuration file: `KubeSchedulerConfiguration` of `kubescheduler.config.k8s.io/v1`, and the profiles it makes.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use serde::Deserialize;
use serde_json::Value;
use thiserror::Error;

use crate::extender::config::{ExtenderConfig, ignored, validate};
use crate::framework::points::Parts;
use crate::framework::{Build, Catalog, Descriptor, Points, Profile, Profiles};
use crate::health::Awareness;
use crate::plugins::{self, node_resources_fit};
use crate::queue::Backoff;

const API_VERSION: &str = "kubescheduler.config.k8s.io/v1";
const KIND: &str = "KubeSchedulerConfiguration";
const DEFAULT_SCHEDULER: &str = "default-scheduler";
const ALL: &str = "*";

/// What is wrong with a configuration, with the path to it.
#[derive(Debug, Error, PartialEq, Eq)]
pub enum ConfigError {
    #[error("strict decoding error: {0}")]
    Decode(String),
    #[error("no kind {kind:?} is registered for version {version:?}")]
    Kind { kind: String, version: String },
    #[error("{path}: Invalid value: {value}: {why}")]
    Invalid { path: String, value: String, why: String },
    #[error("{path}: Required value")]
    Required { path: String },
    #[error("{path}: Duplicate value: {value:?}")]
    Duplicate { path: String, value: String },
    #[error("initializing profiles: creating profile for scheduler name {scheduler}: {why}")]
    Profile { scheduler: String, why: String },
}

/// The whole file. What is of no use here (clients, leases, debugging) is read and left alone.
#[derive(Debug, Clone, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Configuration {
    pub api_version: String,
    pub kind: String,
    pub percentage_of_nodes_to_score: Option<i64>,
    pub pod_initial_backoff_seconds: i64,
    pub pod_max_backoff_seconds: i64,
    pub profiles: Vec<ProfileConfig>,
    pub extenders: Vec<ExtenderConfig>,
    /// Not upstream's.
    pub node_failure_awareness: Awareness,
    /// The feature gate GenericWorkload, which is no part of the file: pod groups are scheduled as such.
    #[serde(skip)]
    pub generic_workload: bool,
}

impl Default for Configuration {
    fn default() -> Self {
        Self {
            api_version: API_VERSION.to_owned(),
            kind: KIND.to_owned(),
            percentage_of_nodes_to_score: None,
            pod_initial_backoff_seconds: 1,
            pod_max_backoff_seconds: 10,
            profiles: Vec::new(),
            extenders: Vec::new(),
            node_failure_awareness: Awareness::default(),
            generic_workload: false,
        }
    }
}

#[derive(Debug, Clone, Default, Deserialize)]
#[serde(rename_all = "camelCase", default, deny_unknown_fields)]
pub struct ProfileConfig {
    pub scheduler_name: Option<String>,
    pub percentage_of_nodes_to_score: Option<i64>,
    pub plugins: Plugins,
    pub plugin_config: Vec<PluginConfig>,
}

#[derive(Debug, Clone, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct PluginConfig {
    pub name: String,
    #[serde(default)]
    pub args: Value,
}

#[derive(Debug, Clone, Default, Deserialize)]
#[serde(rename_all = "camelCase", default, deny_unknown_fields)]
pub struct Plugins {
    pub pre_enqueue: PluginSet,
    pub queue_sort: PluginSet,
    pub pre_filter: PluginSet,
    pub filter: PluginSet,
    pub post_filter: PluginSet,
    pub pre_score: PluginSet,
    pub score: PluginSet,
    pub reserve: PluginSet,
    pub permit: PluginSet,
    pub pre_bind: PluginSet,
    pub bind: PluginSet,
    pub post_bind: PluginSet,
    pub multi_point: PluginSet,
    pub placement_generate: PluginSet,
    pub placement_score: PluginSet,
    pub pod_group_post_filter: PluginSet,
}

#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct PluginSet {
    pub enabled: Vec<Enabled>,
    pub disabled: Vec<Enabled>,
}

#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
pub struct Enabled {
    pub name: String,
    #[serde(default)]
    pub weight: i64,
}

impl PluginSet {
    fn disables(&self, name: &str) -> bool {
        self.disabled.iter().any(|d| d.name == name || d.name == ALL)
    }
}

/// A point with upstream's name of its plugins, and whether a plugin takes part in it.
type Point<'a> = (&'a PluginSet, &'static str, fn(&Parts) -> bool);

impl Plugins {
    /// In upstream's order.
    fn by_point(&self) -> [Point<'_>; 14] {
        [
            (&self.pre_filter, "PreFilterPlugin", |p| p.filter.is_some()),
            (&self.filter, "FilterPlugin", |p| p.filter.is_some()),
            (&self.post_filter, "PostFilterPlugin", |p| p.post_filter.is_some()),
            (&self.reserve, "ReservePlugin", |p| p.reserve.is_some()),
            (&self.pre_score, "PreScorePlugin", |p| p.score.is_some()),
            (&self.score, "ScorePlugin", |p| p.score.is_some()),
            (&self.pre_bind, "PreBindPlugin", |p| p.pre_bind.is_some()),
            (&self.bind, "BindPlugin", |p| p.bind.is_some()),
            (&self.post_bind, "PostBindPlugin", |p| p.post_bind.is_some()),
            (&self.permit, "PermitPlugin", |p| p.permit.is_some()),
            (&self.pre_enqueue, "PreEnqueuePlugin", |p| p.pre_enqueue.is_some()),
            (&self.queue_sort, "QueueSortPlugin", |p| p.queue_sort.is_some()),
            (&self.pod_group_post_filter, "PodGroupPostFilterPlugin", |p| p.pod_group_post_filter.is_some()),
            (&self.multi_point, "PreFilterPlugin", |_| true),
        ]
    }

    /// Every plugin that is named exists.
    fn exist(&self) -> Result<(), String> {
        for (set, kind, _) in self.by_point() {
            let missing = set.enabled.iter().find(|e| known().all(|d| d.name != e.name));
            if let Some(missing) = missing {
                return Err(format!("{kind} {:?} does not exist", missing.name));
            }
        }
        Ok(())
    }

    /// Every plugin takes part in the points that it is named for.
    fn extend(&self, made: &BTreeMap<&str, Parts>) -> Result<(), String> {
        for (set, kind, takes_part) in self.by_point() {
            let wrong =
                set.enabled.iter().find(|e| made.get(e.name.as_str()).is_some_and(|p| !takes_part(p)));
            if let Some(wrong) = wrong {
                return Err(format!("plugin {:?} does not extend {kind} plugin", wrong.name));
            }
        }
        Ok(())
    }
}

impl Configuration {
    /// From the file's text, YAML or JSON.
    pub fn from_yaml(text: &str) -> Result<Self, ConfigError> {
        let content = serde_saphyr::from_str(text).map_err(|error| ConfigError::Decode(error.to_string()))?;
        Self::parse(content)
    }

    /// From the file's content.
    pub fn parse(content: Value) -> Result<Self, ConfigError> {
        let own: Self =
            serde_json::from_value(content).map_err(|error| ConfigError::Decode(error.to_string()))?;
        if own.api_version != API_VERSION || own.kind != KIND {
            return Err(ConfigError::Kind { kind: own.kind, version: own.api_version });
        }
        own.validate()?;
        Ok(own)
    }

    fn validate(&self) -> Result<(), ConfigError> {
        let invalid = |path: &str, value: i64, why: &str| {
            Err(ConfigError::Invalid { path: path.to_owned(), value: value.to_string(), why: why.to_owned() })
        };
        const RANGE: &str = "not in valid range [0-100]";
        let outside = |percent: Option<i64>| percent.filter(|p| !(0..=100).contains(p));
        if let Some(percent) = outside(self.percentage_of_nodes_to_score) {
            return invalid("percentageOfNodesToScore", percent, RANGE);
        }
        if self.pod_initial_backoff_seconds <= 0 {
            return invalid(
                "podInitialBackoffSeconds",
                self.pod_initial_backoff_seconds,
                "must be greater than 0",
            );
        }
        if self.pod_max_backoff_seconds < self.pod_initial_backoff_seconds {
            let why = "must be greater than or equal to PodInitialBackoffSeconds";
            return invalid("podMaxBackoffSeconds", self.pod_max_backoff_seconds, why);
        }
        validate(&self.extenders)?;
        let mut names = BTreeSet::new();
        for (at, profile) in self.profiles.iter().enumerate() {
            let path = format!("profiles[{at}].schedulerName");
            let name = profile.scheduler_name.as_deref().unwrap_or(DEFAULT_SCHEDULER);
            if name.is_empty() {
                return Err(ConfigError::Required { path });
            }
            if !names.insert(name) {
                return Err(ConfigError::Duplicate { path, value: name.to_owned() });
            }
            let mut configured = BTreeSet::new();
            for (n, plugin) in profile.plugin_config.iter().enumerate() {
                if !configured.insert(plugin.name.as_str()) {
                    let path = format!("profiles[{at}].pluginConfig[{n}]");
                    return Err(ConfigError::Duplicate { path, value: plugin.name.clone() });
                }
            }
            if let Some(percent) = outside(profile.percentage_of_nodes_to_score) {
                return invalid(&format!("profiles[{at}].percentageOfNodesToScore"), percent, RANGE);
            }
        }
        Ok(())
    }

    pub(crate) fn backoff(&self) -> Backoff {
        let seconds = |n: i64| Duration::from_secs(u64::try_from(n).unwrap_or(1));
        Backoff {
            initial: seconds(self.pod_initial_backoff_seconds),
            max: seconds(self.pod_max_backoff_seconds),
        }
    }

    /// The profiles; the default one where the file has none.
    pub fn profiles(&self, catalog: &Arc<Catalog>) -> Result<Profiles, ConfigError> {
        let default = [ProfileConfig::default()];
        let given = if self.profiles.is_empty() { &default } else { self.profiles.as_slice() };
        let shared = self.percentage_of_nodes_to_score;
        let made = given.iter().map(|profile| {
            let name = profile.scheduler_name.as_deref().unwrap_or(DEFAULT_SCHEDULER);
            let percent = profile.percentage_of_nodes_to_score.or(shared).unwrap_or(0);
            let failed = |why| ConfigError::Profile { scheduler: name.to_owned(), why };
            let defaults = defaults(self.generic_workload);
            let points = profile.points(catalog, &defaults, &ignored(&self.extenders)).map_err(failed)?;
            if points.queue_sort.is_none() {
                return Err(failed(format!(
                    "only one queue sort plugin required for profile with scheduler name {name:?}, but got 0"
                )));
            }
            if points.bind.is_empty() {
                return Err(failed(format!(
                    "at least one bind plugin is needed for profile with scheduler name {name:?}"
                )));
            }
            Ok(Profile::new(name, points, usize::try_from(percent).unwrap_or(0)))
        });
        made.collect::<Result<Vec<_>, _>>().map(Profiles::new)
    }
}

impl ProfileConfig {
    /// The plugin's arguments; the resources that extenders look after are none of NodeResourcesFit's business.
    fn args(&self, plugin: &str, left_out: &[String]) -> Value {
        let given = self.plugin_config.iter().find(|c| c.name == plugin);
        let mut args = given.map_or(Value::Null, |c| c.args.clone());
        if plugin == node_resources_fit::NAME && !left_out.is_empty() {
            if args.is_null() {
                args = Value::Object(serde_json::Map::new());
            }
            let mut list = args["ignoredResources"].as_array().cloned().unwrap_or_default();
            list.extend(left_out.iter().map(|name| Value::from(name.as_str())));
            if let Some(map) = args.as_object_mut() {
                map.insert("ignoredResources".to_owned(), list.into());
            }
        }
        args
    }

    /// The default plugins with this profile's changes, point by point.
    fn points(
        &self,
        catalog: &Arc<Catalog>,
        defaults: &[&Descriptor],
        left_out: &[String],
    ) -> Result<Points, String> {
        let sets = &self.plugins;
        sets.exist()?;
        let multi_point = merge(defaults, &sets.multi_point);
        let mut parts: BTreeMap<&str, Parts> = BTreeMap::new();
        let mut points = Points::default();
        let each = [
            &sets.pre_enqueue,
            &sets.queue_sort,
            &sets.filter,
            &sets.post_filter,
            &sets.score,
            &sets.reserve,
            &sets.permit,
            &sets.pre_bind,
            &sets.bind,
            &sets.post_bind,
        ];
        let named = each.into_iter().flat_map(|set| &set.enabled).chain(&multi_point);
        for plugin in named {
            if parts.contains_key(plugin.name.as_str()) {
                continue;
            }
            let descriptor = known().find(|d| d.name == plugin.name);
            let Some(descriptor) = descriptor else {
                return Err(format!("plugin {:?} does not exist", plugin.name));
            };
            let args = self.args(&plugin.name, left_out);
            let made = (descriptor.build)(&Build { args: &args, catalog });
            parts.insert(
                &plugin.name,
                made.map_err(|why| format!("initializing plugin {:?}: {why}", plugin.name))?,
            );
        }
        sets.extend(&parts)?;
        let order = |set: &PluginSet| expand(set, &multi_point);
        let of = |name: &str| parts.get(name);
        macro_rules! fill {
            ($point:ident) => {
                points.$point =
                    order(&sets.$point).iter().filter_map(|e| of(&e.name)?.$point.clone()).collect()
            };
        }
        fill!(pre_enqueue);
        fill!(filter);
        fill!(post_filter);
        fill!(reserve);
        fill!(permit);
        fill!(pre_bind);
        fill!(bind);
        fill!(post_bind);
        fill!(pod_group_post_filter);
        points.placement_feasible =
            multi_point.iter().filter_map(|e| of(&e.name)?.placement_feasible.clone()).collect();
        points.queue_sort = order(&sets.queue_sort).iter().find_map(|e| of(&e.name)?.queue_sort.clone());
        let scores = order(&sets.score).into_iter();
        points.score = scores.filter_map(|e| Some((of(&e.name)?.score.clone()?, weight(&e)))).collect();
        // In the order of the first mention, each once.
        let mut seen = BTreeSet::new();
        let mentioned = multi_point.iter().chain(each.into_iter().flat_map(|set| &set.enabled));
        points.all = mentioned
            .filter(|e| seen.insert(e.name.as_str()))
            .filter_map(|e| Some(Arc::clone(&of(&e.name)?.plugin)))
            .collect();
        Ok(points)
    }
}

/// Every plugin there is.
fn known() -> impl Iterator<Item = &'static Descriptor> {
    plugins::ALL.iter().chain(plugins::OF_GENERIC_WORKLOAD)
}

/// The default plugins.
fn defaults(generic_workload: bool) -> Vec<&'static Descriptor> {
    let more = if generic_workload { plugins::OF_GENERIC_WORKLOAD } else { &[] };
    plugins::ALL.iter().chain(more).collect()
}

/// The weight given, or the plugin's own.
fn weight(enabled: &Enabled) -> i64 {
    let own = || known().find(|d| d.name == enabled.name).map_or(1, |d| d.weight);
    if enabled.weight > 0 { enabled.weight } else { own().max(1) }
}

/// The default plugins with those of the file: a plugin named again keeps its place, others follow.
fn merge(defaults: &[&Descriptor], custom: &PluginSet) -> Vec<Enabled> {
    let mut merged: Vec<Enabled> = Vec::new();
    for descriptor in defaults.iter().filter(|d| !custom.disables(d.name)) {
        let own = custom.enabled.iter().find(|e| e.name == descriptor.name).cloned();
        merged.push(own.unwrap_or_else(|| Enabled { name: descriptor.name.to_owned(), weight: 0 }));
    }
    for enabled in &custom.enabled {
        if !merged.iter().any(|m| m.name == enabled.name) {
            merged.push(enabled.clone());
        }
    }
    merged
}

/// The plugins of one point: first those that the point names again, then the others of multiPoint, then the point's own.
fn expand(point: &PluginSet, multi_point: &[Enabled]) -> Vec<Enabled> {
    let everywhere = |name: &str| multi_point.iter().any(|m| m.name == name);
    let again = point.enabled.iter().filter(|e| everywhere(&e.name));
    let named = |name: &str| point.enabled.iter().any(|e| e.name == name);
    let rest = multi_point.iter().filter(|m| !named(&m.name) && !point.disables(&m.name));
    let own = point.enabled.iter().filter(|e| !everywhere(&e.name));
    again.chain(rest).chain(own).cloned().collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn config(more: Value) -> Result<Configuration, ConfigError> {
        let mut whole = json!({"apiVersion": API_VERSION, "kind": KIND});
        whole.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        Configuration::parse(whole)
    }

    fn profile(plugins: Value, plugin_config: Value) -> Result<Profiles, ConfigError> {
        let profile = json!({"schedulerName": "x", "plugins": plugins, "pluginConfig": plugin_config});
        config(json!({"profiles": [profile]})).unwrap().profiles(&Arc::default())
    }

    fn names(profiles: &Profiles) -> (Vec<&'static str>, Vec<(&'static str, i64)>) {
        let points = &profiles.iter().next().unwrap().points;
        let filters = points.filter.iter().map(|p| p.name()).collect();
        (filters, points.score.iter().map(|(p, weight)| (p.name(), *weight)).collect())
    }

    #[test]
    fn without_a_file_the_defaults_hold() {
        let profiles = Configuration::default().profiles(&Arc::default()).unwrap();
        let (filters, scores) = names(&profiles);
        assert_eq!(filters[..4], ["NodeName", "NodeUnschedulable", "TaintToleration", "NodeAffinity"]);
        assert!(scores.contains(&("TaintToleration", 3)) && scores.contains(&("PodTopologySpread", 2)));
        assert!(profiles.find("default-scheduler").is_some());
    }

    #[test]
    fn plugins_are_switched_off_on_and_weighed_point_by_point() {
        let plugins = json!({
            "multiPoint": {"disabled": [{"name": "ImageLocality"}, {"name": "NodeName"}]},
            "score": {"disabled": [{"name": "*"}], "enabled": [{"name": "NodeResourcesFit", "weight": 7}]},
        });
        let (filters, scores) = names(&profile(plugins, json!([])).unwrap());
        assert!(!filters.contains(&"NodeName") && filters.contains(&"TaintToleration"));
        assert_eq!(scores, [("NodeResourcesFit", 7)]);
        let none = json!({"multiPoint": {"disabled": [{"name": "*"}],
            "enabled": [{"name": "PrioritySort"}, {"name": "DefaultBinder"}, {"name": "NodeName"}]}});
        assert_eq!(names(&profile(none, json!([])).unwrap()), (vec!["NodeName"], vec![]));
    }

    #[test]
    fn mistakes_are_told() {
        let wrong = |more: Value| config(more).unwrap_err().to_string();
        assert_eq!(
            wrong(json!({"percentageOfNodesToScore": 101})),
            "percentageOfNodesToScore: Invalid value: 101: not in valid range [0-100]"
        );
        assert_eq!(
            wrong(json!({"podInitialBackoffSeconds": 5, "podMaxBackoffSeconds": 2})),
            "podMaxBackoffSeconds: Invalid value: 2: must be greater than or equal to PodInitialBackoffSeconds"
        );
        let twice = json!({"profiles": [{"schedulerName": "a"}, {"schedulerName": "a"}]});
        assert_eq!(wrong(twice), "profiles[1].schedulerName: Duplicate value: \"a\"");
        assert!(wrong(json!({"profiles": [{"plugin": {}}]})).contains("unknown field"));
        assert!(wrong(json!({"nodeFailureAwareness": {"enable": false}})).contains("unknown field"));
        assert!(matches!(Configuration::parse(json!({"kind": "Pod"})), Err(ConfigError::Kind { .. })));
        let unknown = profile(json!({"filter": {"enabled": [{"name": "Nope"}]}}), json!([]));
        assert!(unknown.is_err_and(|e| e.to_string().ends_with(": FilterPlugin \"Nope\" does not exist")));
        let args = json!([{"name": "InterPodAffinity", "args": {"hardPodAffinityWeight": 101}}]);
        assert!(
            profile(json!({}), args).is_err_and(|e| e.to_string().contains("not in valid range [0, 100]"))
        );
    }

    #[test]
    fn mistakes_in_profiles_are_told_in_upstreams_words() {
        let none = json!([{"name": "*"}]);
        let table = [
            (
                json!({"score": {"enabled": [{"name": "Nope"}]}}),
                json!([]),
                "ScorePlugin \"Nope\" does not exist",
            ),
            (
                json!({"multiPoint": {"enabled": [{"name": "Nope"}]}}),
                json!([]),
                "PreFilterPlugin \"Nope\" does not exist",
            ),
            (
                json!({"score": {"enabled": [{"name": "NodeName"}]}}),
                json!([]),
                "plugin \"NodeName\" does not extend ScorePlugin plugin",
            ),
            (
                json!({"queueSort": {"disabled": none}}),
                json!([]),
                "only one queue sort plugin required for profile with scheduler name \"x\", but got 0",
            ),
            (
                json!({"bind": {"disabled": none}}),
                json!([]),
                "at least one bind plugin is needed for profile with scheduler name \"x\"",
            ),
            (
                json!({}),
                json!([{"name": "DefaultPreemption", "args": {"minCandidateNodesPercentage": 0, "minCandidateNodesAbsolute": 0}}]),
                "initializing plugin \"DefaultPreemption\": minCandidateNodesPercentage: Invalid value: 0: \
                 cannot be zero at the same time as minCandidateNodesAbsolute",
            ),
            (
                json!({}),
                json!([{"name": "NodeResourcesFit", "args": {"scoringStrategy": 7}}]),
                "initializing plugin \"NodeResourcesFit\": invalid type: integer `7`",
            ),
        ];
        for (plugins, args, expected) in table {
            let error = profile(plugins, args).map(drop).unwrap_err().to_string();
            let path = "initializing profiles: creating profile for scheduler name x: ";
            assert!(
                error.strip_prefix(path).is_some_and(|e| e.starts_with(expected)),
                "{error}, not {expected}"
            );
        }
        let twice =
            json!({"profiles": [{"pluginConfig": [{"name": "NodeAffinity"}, {"name": "NodeAffinity"}]}]});
        let error = config(twice).unwrap_err().to_string();
        assert_eq!(error, "profiles[0].pluginConfig[1]: Duplicate value: \"NodeAffinity\"");
    }
}
