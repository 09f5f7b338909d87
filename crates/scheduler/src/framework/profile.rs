//! A profile: a scheduler name and its plugins.

use std::collections::BTreeMap;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use serde_json::Value;

use super::catalog::Catalog;
use super::events::ClusterEvent;
use super::plugin_args::{self, Judge, PluginArgs};
use super::points::{Parts, Plugin, Points};
use super::status::Code;
use crate::metrics::Metrics;

/// The input for building a plugin.
pub struct Build<'a> {
    /// The plugin's arguments from the configuration file; null if it has none.
    pub args: &'a Value,
    /// The objects besides nodes and pods.
    pub catalog: &'a Arc<Catalog>,
}

impl Build<'_> {
    /// Decodes the arguments; the default if there are none.
    pub fn args<T: PluginArgs>(&self) -> Result<T, String> {
        plugin_args::read(self.args)
    }
}

/// How a plugin is built and configured.
pub struct Descriptor {
    pub name: &'static str,
    /// The default weight of its score, if it has one.
    pub weight: i64,
    /// Validates the arguments, for plugins that take some.
    pub args: Option<Judge>,
    /// Builds the plugin. The error message is meant for the author of the arguments.
    pub build: fn(&Build) -> Result<Parts, String>,
}

/// A scheduler name with its plugins.
pub struct Profile {
    pub scheduler_name: String,
    pub points: Points,
    /// `percentageOfNodesToScore`; 0 means adaptive.
    pub percentage: usize,
    plugins: BTreeMap<&'static str, Arc<dyn Plugin>>,
    /// The metrics that durations are recorded in, if any.
    metrics: OnceLock<Arc<Metrics>>,
}

impl Profile {
    /// Creates a profile; `percentage` is the number for `percentageOfNodesToScore`.
    pub fn new(scheduler_name: &str, points: Points, percentage: usize) -> Self {
        let plugins = points.all.iter().map(|p| (p.name(), Arc::clone(p))).collect();
        Self {
            scheduler_name: scheduler_name.to_owned(),
            points,
            percentage,
            plugins,
            metrics: OnceLock::new(),
        }
    }

    /// Runs a plugin at an extension point that is not part of every cycle, and records its duration.
    pub fn timed<T>(&self, point: &str, plugin: &str, run: impl FnOnce() -> (T, Code)) -> T {
        let Some(metrics) = self.metrics.get() else { return run().0 };
        let begun = metrics.now();
        let (done, code) = run();
        metrics.plugin_since(point, plugin, code, begun);
        done
    }

    /// The monotonic time where durations are recorded, zero otherwise.
    pub fn now(&self) -> Duration {
        self.metrics.get().map_or(Duration::ZERO, |metrics| metrics.now())
    }

    /// Returns the plugin with this name.
    pub fn plugin(&self, name: &str) -> Option<&Arc<dyn Plugin>> {
        self.plugins.get(name)
    }

    /// Returns whether any plugin is interested in this event.
    pub fn listens_to(&self, happened: ClusterEvent) -> bool {
        self.plugins.values().any(|p| p.interests().iter().any(|i| i.covers(happened)))
    }
}

/// The profiles of one scheduler, one for each scheduler name.
pub struct Profiles(Vec<Profile>);

impl Profiles {
    /// Creates the set of profiles. Their order determines their indexes.
    pub fn new(profiles: Vec<Profile>) -> Self {
        Self(profiles)
    }

    /// Returns the profile of this scheduler name, with its index.
    pub fn find(&self, scheduler_name: &str) -> Option<(usize, &Profile)> {
        self.0.iter().enumerate().find(|(_, p)| p.scheduler_name == scheduler_name)
    }

    /// Starts recording the durations of plugins.
    pub fn measure(&self, metrics: &Arc<Metrics>) {
        for profile in &self.0 {
            profile.metrics.get_or_init(|| Arc::clone(metrics));
        }
    }

    /// The profiles in the order of their indexes.
    pub fn iter(&self) -> impl Iterator<Item = &Profile> {
        self.0.iter()
    }

    /// Returns whether any plugin of any profile is interested in this event.
    pub fn listen_to(&self, happened: ClusterEvent) -> bool {
        self.0.iter().any(|p| p.listens_to(happened))
    }
}

impl Points {
    /// Appends a plugin to each extension point that it implements.
    pub fn add(&mut self, parts: Parts, weight: i64) {
        self.all.push(parts.plugin);
        self.queue_sort = parts.queue_sort.or(self.queue_sort.take());
        self.pre_enqueue.extend(parts.pre_enqueue);
        self.filter.extend(parts.filter);
        self.post_filter.extend(parts.post_filter);
        self.score.extend(parts.score.map(|score| (score, weight.max(1))));
        self.reserve.extend(parts.reserve);
        self.permit.extend(parts.permit);
        self.pre_bind.extend(parts.pre_bind);
        self.bind.extend(parts.bind);
        self.post_bind.extend(parts.post_bind);
        self.placement_feasible.extend(parts.placement_feasible);
        self.pod_group_post_filter.extend(parts.pod_group_post_filter);
    }
}
