//! A profile: a scheduler name and the plugins that serve it.

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

/// What a plugin is made with.
pub struct Build<'a> {
    /// Its arguments as the configuration file has them; null without any.
    pub args: &'a Value,
    /// The other objects of the cluster.
    pub catalog: &'a Arc<Catalog>,
}

impl Build<'_> {
    /// The arguments as a type of the plugin's own; its default without any.
    pub fn args<T: PluginArgs>(&self) -> Result<T, String> {
        plugin_args::read(self.args)
    }
}

/// How a plugin enters a profile.
pub struct Descriptor {
    pub name: &'static str,
    /// Of its score, where it has one.
    pub weight: i64,
    /// Reads the arguments of a plugin that takes some.
    pub args: Option<Judge>,
    /// Makes the plugin; the error is for whoever wrote the arguments.
    pub build: fn(&Build) -> Result<Parts, String>,
}

/// One scheduler name with its plugins.
pub struct Profile {
    pub scheduler_name: String,
    pub points: Points,
    /// `percentageOfNodesToScore`; 0 is adaptive.
    pub percentage: usize,
    plugins: BTreeMap<&'static str, Arc<dyn Plugin>>,
    /// Where times are recorded, if they are.
    metrics: OnceLock<Arc<Metrics>>,
}

impl Profile {
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

    /// Runs a plugin at a point that is not part of every cycle, and records how long it took.
    pub fn timed<T>(&self, point: &str, plugin: &str, run: impl FnOnce() -> (T, Code)) -> T {
        let Some(metrics) = self.metrics.get() else { return run().0 };
        let begun = metrics.now();
        let (done, code) = run();
        metrics.plugin_since(point, plugin, code, begun);
        done
    }

    /// The time, where times are recorded.
    pub fn now(&self) -> Duration {
        self.metrics.get().map_or(Duration::ZERO, |metrics| metrics.now())
    }

    pub fn plugin(&self, name: &str) -> Option<&Arc<dyn Plugin>> {
        self.plugins.get(name)
    }

    /// Whether any plugin looks at this event at all.
    pub fn listens_to(&self, happened: ClusterEvent) -> bool {
        self.plugins.values().any(|p| p.interests().iter().any(|i| i.covers(happened)))
    }
}

/// The profiles that one scheduler serves, by its name for each.
pub struct Profiles(Vec<Profile>);

impl Profiles {
    pub fn new(profiles: Vec<Profile>) -> Self {
        Self(profiles)
    }

    /// The profile of this scheduler name, with its place.
    pub fn find(&self, scheduler_name: &str) -> Option<(usize, &Profile)> {
        self.0.iter().enumerate().find(|(_, p)| p.scheduler_name == scheduler_name)
    }

    /// Records the times of plugins from now on.
    pub fn measure(&self, metrics: &Arc<Metrics>) {
        for profile in &self.0 {
            profile.metrics.get_or_init(|| Arc::clone(metrics));
        }
    }

    pub fn iter(&self) -> impl Iterator<Item = &Profile> {
        self.0.iter()
    }

    /// Whether any plugin of any profile looks at this event.
    pub fn listen_to(&self, happened: ClusterEvent) -> bool {
        self.0.iter().any(|p| p.listens_to(happened))
    }
}

impl Points {
    /// Adds a plugin to all the extension points it takes part in, behind the ones already there.
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
