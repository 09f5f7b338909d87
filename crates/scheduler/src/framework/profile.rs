//! A profile: a scheduler name and the plugins that serve it, made from the list of descriptors.

use std::collections::BTreeMap;

use super::events::{ClusterEvent, Interest};
use super::points::Points;
use crate::plugins;

/// How a plugin enters a profile.
pub struct Descriptor {
    pub name: &'static str,
    /// Of its score, where it has one.
    pub weight: i64,
    /// Adds the plugin to its extension points.
    pub register: fn(&mut Points, weight: i64),
}

/// One scheduler name with its plugins.
pub struct Profile {
    pub scheduler_name: String,
    pub points: Points,
    interests: BTreeMap<&'static str, &'static [Interest]>,
}

impl Profile {
    /// The plugins of the default configuration.
    pub fn default_profile(scheduler_name: &str) -> Self {
        let mut points = Points::default();
        for descriptor in plugins::ALL {
            (descriptor.register)(&mut points, descriptor.weight);
        }
        let interests = points.all.iter().map(|p| (p.name(), p.interests())).collect();
        Self { scheduler_name: scheduler_name.to_owned(), points, interests }
    }

    /// What this plugin wants to hear of.
    pub fn interests_of(&self, plugin: &str) -> &'static [Interest] {
        self.interests.get(plugin).copied().unwrap_or_default()
    }

    /// Whether any plugin looks at this event at all.
    pub fn listens_to(&self, event: ClusterEvent) -> bool {
        self.interests.values().any(|list| list.iter().any(|i| i.event == event))
    }
}
