//! PodTopologySpread: spreads related pods evenly over zones, hosts or other topologies.

mod constraint;
mod default_selector;
mod filter;
mod score;

use crate::framework::plugin_args::{PluginArgs, judge};
use knarr_api::validate::label_key;
use knarr_apimachinery::field::{Error, ErrorList, Path};
use std::collections::BTreeMap;
use std::sync::Arc;

use k8s_openapi::api::core::v1::{Node, Pod, TopologySpreadConstraint};
use serde::Deserialize;

use self::constraint::{Action as Unsatisfiable, Constraint};
use self::default_selector::DefaultSelectors;
use crate::framework::{
    Action, Changed, ClusterEvent, Descriptor, Filter, NodeScore, Parts, Plugin, PodInfo, PreFilter,
    Resource, Scope, Score, Shape,
};
use crate::snapshot::Snapshot;

pub const NAME: &str = "PodTopologySpread";
pub const DESCRIPTOR: Descriptor = Descriptor {
    name: NAME,
    weight: 2,
    args: Some(judge::<Args>),
    build: |build| {
        let args: Args = build.args()?;
        let system = args.is_system();
        let defaults = if system { system_defaults() } else { args.default_constraints };
        let selectors = (!defaults.is_empty()).then(|| DefaultSelectors::new(Arc::clone(build.catalog)));
        let plugin = Arc::new(PodTopologySpread { system, defaults, selectors });
        Ok(Parts { filter: Some(plugin.clone()), score: Some(plugin.clone()), ..Parts::of(plugin) })
    },
};

pub const HOSTNAME: &str = "kubernetes.io/hostname";
const ZONE: &str = "topology.kubernetes.io/zone";

#[derive(Deserialize, Default)]
#[serde(rename_all = "camelCase", default)]
struct Args {
    default_constraints: Vec<TopologySpreadConstraint>,
    defaulting_type: String,
}

impl Args {
    /// Returns whether the default constraints are the built-in ones.
    fn is_system(&self) -> bool {
        matches!(self.defaulting_type.as_str(), "" | "System")
    }
}

impl PluginArgs for Args {
    fn validate(&self, path: &Path) -> ErrorList {
        let mut errors = ErrorList::new();
        let at = path.child("defaultingType");
        if !self.is_system() && self.defaulting_type != "List" {
            errors.push(Error::not_supported(&at, self.defaulting_type.as_str(), &["System", "List"]));
        } else if self.is_system() && !self.default_constraints.is_empty() {
            errors.push(Error::invalid(&at, "System", "when .defaultConstraints are not empty"));
        }
        let path = path.child("defaultConstraints");
        for (i, constraint) in self.default_constraints.iter().enumerate() {
            constraint_problems(constraint, &path.index(i), &mut errors);
            let alike = |c: &TopologySpreadConstraint| {
                c.topology_key == constraint.topology_key
                    && c.when_unsatisfiable == constraint.when_unsatisfiable
            };
            if self.default_constraints[..i].iter().any(alike) {
                let text = format!("{{{}, {}}}", constraint.topology_key, constraint.when_unsatisfiable);
                errors.push(Error::duplicate(&path.index(i), text));
            }
        }
        errors
    }
}

fn constraint_problems(constraint: &TopologySpreadConstraint, path: &Path, errors: &mut ErrorList) {
    const ACTIONS: [&str; 2] = ["DoNotSchedule", "ScheduleAnyway"];
    if constraint.max_skew <= 0 {
        let at = path.child("maxSkew");
        errors.push(Error::invalid(&at, constraint.max_skew, "not in valid range (0, inf)"));
    }
    let (at, key) = (path.child("topologyKey"), constraint.topology_key.as_str());
    if key.is_empty() {
        errors.push(Error::required(&at, "can not be empty"));
    } else {
        label_key(errors, &at, key);
    }
    let (at, action) = (path.child("whenUnsatisfiable"), constraint.when_unsatisfiable.as_str());
    if action.is_empty() {
        errors.push(Error::required(&at, "can not be empty"));
    } else if !ACTIONS.contains(&action) {
        errors.push(Error::not_supported(&at, action, &ACTIONS));
    }
    if constraint.label_selector.is_some() {
        let why = "constraint must not define a selector, as they deduced for each pod";
        errors.push(Error::forbidden(&path.child("labelSelector"), why));
    }
}

fn system_defaults() -> Vec<TopologySpreadConstraint> {
    let soft = |key: &str, max_skew| TopologySpreadConstraint {
        topology_key: key.to_owned(),
        max_skew,
        when_unsatisfiable: "ScheduleAnyway".to_owned(),
        ..TopologySpreadConstraint::default()
    };
    vec![soft(HOSTNAME, 3), soft(ZONE, 5)]
}

struct PodTopologySpread {
    /// Whether the default constraints are the built-in ones: then nodes without a zone still spread over hosts.
    system: bool,
    defaults: Vec<TopologySpreadConstraint>,
    selectors: Option<DefaultSelectors>,
}

impl PodTopologySpread {
    /// The pod's own constraints with this action, or the default ones if it has no constraints at all.
    fn constraints(&self, shape: &Shape, action: Unsatisfiable) -> Vec<Constraint> {
        let labels = &shape.footprint.labels;
        if let Some(own) = own(shape) {
            return Constraint::parse(own, labels, action);
        }
        let mut constraints = Constraint::parse(&self.defaults, labels, action);
        if constraints.is_empty() {
            return constraints;
        }
        match self.selectors.as_ref().and_then(|s| s.selector(shape)) {
            Some(selector) => constraints.iter_mut().for_each(|c| c.selector = selector.clone()),
            None => constraints.clear(),
        }
        constraints
    }

    fn default_version(&self, shape: &Shape) -> u64 {
        match &self.selectors {
            Some(selectors) if own(shape).is_none() => selectors.version(shape),
            _ => 0,
        }
    }
}

fn own(shape: &Shape) -> Option<&[TopologySpreadConstraint]> {
    shape.spec()?.topology_spread_constraints.as_deref().filter(|c| !c.is_empty())
}

impl Plugin for PodTopologySpread {
    fn name(&self) -> &'static str {
        NAME
    }

    fn interests(&self) -> &'static [ClusterEvent] {
        const NODE: Action = Action::ADD.or(Action::DELETE).or(Action::NODE_LABEL).or(Action::NODE_TAINT);
        const {
            &[
                ClusterEvent::new(
                    Resource::AssignedPod,
                    Action::ADD.or(Action::POD_LABEL).or(Action::DELETE),
                ),
                ClusterEvent::new(Resource::TargetPod, Action::POD_TOLERATION.or(Action::POD_LABEL)),
                ClusterEvent::new(Resource::Node, NODE),
            ]
        }
    }

    fn hint(&self, pod: &PodInfo, happened: ClusterEvent, change: &Changed) -> bool {
        let constraints = self.constraints(&pod.shape, Unsatisfiable::DoNotSchedule);
        match happened.resource {
            Resource::Node => node_helps(&constraints, change),
            Resource::TargetPod if happened.actions.intersects(Action::POD_TOLERATION) => {
                constraints.iter().any(|c| c.honors_taints) || labels_help(&constraints, change)
            }
            Resource::AssignedPod if !same_namespace(pod, change) => false,
            _ => labels_help(&constraints, change),
        }
    }
}

fn same_namespace(pod: &PodInfo, change: &Changed) -> bool {
    let namespace = |p: &Pod| p.metadata.namespace.as_deref() == Some(pod.namespace());
    change.old::<Pod>().or(change.new::<Pod>()).is_none_or(namespace)
}

/// Returns whether a pod was added, removed or relabelled so that some constraint counts it differently.
fn labels_help(constraints: &[Constraint], change: &Changed) -> bool {
    let matches = |c: &Constraint, p: &Pod| c.selector.matches_optional(p.metadata.labels.as_ref());
    match (change.old::<Pod>(), change.new::<Pod>()) {
        (Some(old), Some(new)) => constraints.iter().any(|c| matches(c, old) != matches(c, new)),
        (Some(one), None) | (None, Some(one)) => constraints.iter().any(|c| matches(c, one)),
        (None, None) => true,
    }
}

fn node_helps(constraints: &[Constraint], change: &Changed) -> bool {
    let empty = BTreeMap::new();
    let labels = |n: &Node| n.metadata.labels.clone().unwrap_or_default();
    let has_all = |l: &BTreeMap<String, String>| constraints.iter().all(|c| l.contains_key(&*c.key));
    let taints = |n: &Node| n.spec.as_ref().and_then(|s| s.taints.clone());
    let (old, new) = (change.old::<Node>(), change.new::<Node>());
    let (before, after) =
        (old.map(labels).unwrap_or_else(|| empty.clone()), new.map(labels).unwrap_or(empty));
    match (old, new) {
        (Some(old), Some(new)) => {
            let moved = constraints.iter().any(|c| before.get(&*c.key) != after.get(&*c.key));
            has_all(&before) != has_all(&after) || has_all(&after) && (moved || taints(old) != taints(new))
        }
        (None, Some(_)) => has_all(&after),
        (Some(_), None) => has_all(&before),
        (None, None) => true,
    }
}

impl Filter for PodTopologySpread {
    fn scope(&self) -> Scope {
        Scope::Cluster
    }

    fn pre_filter(&self, cluster: &Snapshot, shape: &Shape) -> PreFilter {
        let constraints = self.constraints(shape, Unsatisfiable::DoNotSchedule);
        if constraints.is_empty() {
            return PreFilter::Skip;
        }
        PreFilter::check(filter::Spread::new(cluster, shape, constraints))
    }

    fn version(&self, _: &Snapshot, shape: &Shape) -> u64 {
        self.default_version(shape)
    }
}

impl Score for PodTopologySpread {
    fn scope(&self) -> Scope {
        Scope::Cluster
    }

    fn pre_score(&self, cluster: &Snapshot, shape: &Shape) -> Option<Box<dyn NodeScore>> {
        let constraints = self.constraints(shape, Unsatisfiable::ScheduleAnyway);
        let all_keys = own(shape).is_some() || !self.system;
        (!constraints.is_empty())
            .then(|| Box::new(score::Evenness::new(cluster, shape, constraints, all_keys)) as _)
    }

    fn version(&self, _: &Snapshot, shape: &Shape) -> u64 {
        self.default_version(shape)
    }
}
