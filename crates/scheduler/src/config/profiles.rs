//! Builds the profiles of a configuration: the plugins of each extension point, with their order and weights.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use serde_json::Value;

use super::{ConfigError, Configuration, DEFAULT_SCHEDULER, Enabled, PluginSet, Plugins, ProfileConfig};
use crate::extender::config::ignored;
use crate::framework::points::Parts;
use crate::framework::{Build, Catalog, Descriptor, MAX_NODE_SCORE, Points, Profile, Profiles};
use crate::plugins::{self, node_resources_fit};

const ALL: &str = "*";

impl PluginSet {
    fn disables(&self, name: &str) -> bool {
        self.disabled.iter().any(|d| d.name == name || d.name == ALL)
    }
}

/// An extension point of a profile, upstream's name for its plugins, and whether a plugin implements it.
type Point<'a> = (&'a PluginSet, &'static str, fn(&Parts) -> bool);

impl Plugins {
    /// The extension points in upstream's order.
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

    /// The extension points by their names in the file, without multiPoint.
    pub(super) fn by_name(&self) -> [(&'static str, &PluginSet); 13] {
        [
            ("preEnqueue", &self.pre_enqueue),
            ("queueSort", &self.queue_sort),
            ("preFilter", &self.pre_filter),
            ("filter", &self.filter),
            ("postFilter", &self.post_filter),
            ("preScore", &self.pre_score),
            ("score", &self.score),
            ("reserve", &self.reserve),
            ("permit", &self.permit),
            ("preBind", &self.pre_bind),
            ("bind", &self.bind),
            ("postBind", &self.post_bind),
            ("podGroupPostFilter", &self.pod_group_post_filter),
        ]
    }

    /// Checks that every plugin in the profile exists.
    fn exist(&self) -> Result<(), String> {
        for (set, kind, _) in self.by_point() {
            let missing = set.enabled.iter().find(|e| known().all(|d| d.name != e.name));
            if let Some(missing) = missing {
                return Err(format!("{kind} {:?} does not exist", missing.name));
            }
        }
        Ok(())
    }

    /// Checks that every plugin implements the extension points it is listed for, and is listed once in each.
    fn extend(&self, made: &BTreeMap<&str, Parts>) -> Result<(), String> {
        for (set, kind, takes_part) in self.by_point() {
            let mut seen = BTreeSet::new();
            if let Some(twice) = set.enabled.iter().find(|e| !seen.insert(&e.name)) {
                return Err(format!("plugin {:?} already registered as {kind:?}", twice.name));
            }
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
    /// Builds the profiles; the default profile if the file has none.
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
    /// Returns the plugin's arguments. For NodeResourcesFit they also ignore the resources that extenders manage.
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

    /// Applies this profile's changes to the default plugins, extension point by extension point.
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
        let scores: Vec<Enabled> = order(&sets.score)
            .into_iter()
            .filter(|e| of(&e.name).is_some_and(|p| p.score.is_some()))
            .collect();
        let plugins = scores.iter().filter_map(|e| of(&e.name)?.score.clone());
        points.score = plugins.zip(weights(&scores)?).collect();
        // Each plugin once, in the order of its first mention.
        let mut seen = BTreeSet::new();
        let mentioned = multi_point.iter().chain(each.into_iter().flat_map(|set| &set.enabled));
        points.all = mentioned
            .filter(|e| seen.insert(e.name.as_str()))
            .filter_map(|e| Some(Arc::clone(&of(&e.name)?.plugin)))
            .collect();
        Ok(points)
    }
}

/// All plugins that exist.
pub(super) fn known() -> impl Iterator<Item = &'static Descriptor> {
    plugins::ALL.iter().chain(plugins::OF_GENERIC_WORKLOAD)
}

/// The default plugins.
fn defaults(generic_workload: bool) -> Vec<&'static Descriptor> {
    let more = if generic_workload { plugins::OF_GENERIC_WORKLOAD } else { &[] };
    plugins::ALL.iter().chain(more).collect()
}

/// Returns the weights of the score plugins in their order; a plugin without a weight in the file has weight 1.
fn weights(plugins: &[Enabled]) -> Result<Vec<i64>, String> {
    let mut total = 0i64;
    let weights = plugins.iter().map(|plugin| {
        let weight = if plugin.weight == 0 { 1 } else { plugin.weight };
        let most = weight.checked_mul(MAX_NODE_SCORE).filter(|most| *most <= i64::MAX.wrapping_sub(total));
        total = total.wrapping_add(most.ok_or("score plugins: total score of Score plugins could overflow")?);
        Ok(weight)
    });
    weights.collect()
}

/// Merges the file's plugins into the defaults: a default plugin named again keeps its place, others follow.
fn merge(defaults: &[&Descriptor], custom: &PluginSet) -> Vec<Enabled> {
    let mut merged: Vec<Enabled> = Vec::new();
    for descriptor in defaults.iter().filter(|d| !custom.disables(d.name)) {
        let own = custom.enabled.iter().find(|e| e.name == descriptor.name).cloned();
        merged.push(
            own.unwrap_or_else(|| Enabled { name: descriptor.name.to_owned(), weight: descriptor.weight }),
        );
    }
    for enabled in &custom.enabled {
        if !merged.iter().any(|m| m.name == enabled.name) {
            merged.push(enabled.clone());
        }
    }
    merged
}

/// Returns the plugins of one extension point: first those of multiPoint that the point lists as well, then the rest of
/// multiPoint, then the others of the point.
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
    use crate::config::{API_VERSION, KIND};
    use serde_json::json;

    fn config(more: Value) -> Result<Configuration, ConfigError> {
        let mut whole = json!({"apiVersion": API_VERSION, "kind": KIND});
        whole.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        Configuration::parse(whole)
    }

    fn profile(plugins: Value, plugin_config: Value) -> Result<Profiles, ConfigError> {
        let profile = json!({"schedulerName": "x", "plugins": plugins, "pluginConfig": plugin_config});
        config(json!({"profiles": [profile]}))?.profiles(&Arc::default())
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
                json!({"score": {"enabled": [{"name": "NodeResourcesFit"}, {"name": "NodeResourcesFit"}]}}),
                json!([]),
                "plugin \"NodeResourcesFit\" already registered as \"ScorePlugin\"",
            ),
            (
                json!({"score": {"enabled": [{"name": "NodeResourcesFit", "weight": -1}]}}),
                json!([]),
                "score plugins: total score of Score plugins could overflow",
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
        const FIT: &str = "initializing plugin \"NodeResourcesFit\": ";
        let strategies = [
            (
                json!({"ignoredResources": ["a b"]}),
                "ignoredResources[0]: Invalid value: \"a b\": name part must",
            ),
            (
                json!({"ignoredResourceGroups": ["a/b"]}),
                "ignoredResourceGroups[0]: Invalid value: \"a/b\": resource group name can't contain '/'",
            ),
            (
                json!({"scoringStrategy": {"type": "Foo"}}),
                "scoringStrategy.type: Unsupported value: \"Foo\": supported values: \"LeastAllocated\", \
                 \"MostAllocated\", \"RequestedToCapacityRatio\"",
            ),
            (
                json!({"scoringStrategy": {"type": "LeastAllocated", "resources": [{"name": "cpu", "weight": 101}]}}),
                "scoringStrategy.resources[0].weight: Invalid value: 101: resource weight of cpu not in valid \
                 range (0, 100]",
            ),
            (
                json!({"scoringStrategy": {"type": "RequestedToCapacityRatio"}}),
                "scoringStrategy.requestedToCapacityRatio: Required value: must be specified when type is \
                 RequestedToCapacityRatio",
            ),
            (
                json!({"scoringStrategy": {"type": "MostAllocated", "requestedToCapacityRatio": {}}}),
                "scoringStrategy.requestedToCapacityRatio: Forbidden: must be nil when type is not \
                 RequestedToCapacityRatio",
            ),
        ];
        let args = |args: &Value| json!([{"name": "NodeResourcesFit", "args": args}]);
        let said = |given: &Value| profile(json!({}), args(given)).map(drop).unwrap_err().to_string();
        for (given, expected) in strategies {
            let error = said(&given);
            assert!(error.contains(&format!("{FIT}{expected}")), "{error}, not {expected}");
        }
        let shapes = [
            (json!([]), "shape: Required value: at least one point must be specified"),
            (
                json!([{"utilization": 50}, {"utilization": 20, "score": 10}]),
                "shape[1].utilization: Invalid value: 20: values must be sorted in increasing order",
            ),
            (
                json!([{"utilization": 101}]),
                "shape[0].utilization: Invalid value: 101: not in valid range [0, 100]",
            ),
            (json!([{"score": 11}]), "shape[0].score: Invalid value: 11: not in valid range [0, 10]"),
        ];
        for (shape, expected) in shapes {
            let strategy =
                json!({"type": "RequestedToCapacityRatio", "requestedToCapacityRatio": {"shape": shape}});
            let error = said(&json!({"scoringStrategy": strategy}));
            let path = "scoringStrategy.requestedToCapacityRatio.";
            assert!(error.ends_with(&format!("{FIT}{path}{expected}")), "{error}, not {expected}");
        }
    }

    #[test]
    fn a_plugin_that_is_named_without_a_weight_counts_once() {
        let plugins = json!({"score": {"enabled": [{"name": "TaintToleration"}]},
            "multiPoint": {"enabled": [{"name": "NodeAffinity"}]}});
        let (_, scores) = names(&profile(plugins, json!([])).unwrap());
        let weight = |name: &str| scores.iter().find(|(n, _)| *n == name).map(|(_, weight)| *weight);
        assert_eq!(weight("TaintToleration"), Some(1));
        assert_eq!(weight("NodeAffinity"), Some(1));
        assert_eq!(weight("PodTopologySpread"), Some(2));
    }
}
