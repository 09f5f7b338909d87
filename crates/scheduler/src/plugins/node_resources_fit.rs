//! NodeResourcesFit: the node must have the requested resources; scores by the resources that would be free or in use.

use super::scoring_strategy::shape_problems;
use crate::framework::Remedy;
use crate::framework::plugin_args::{PluginArgs, judge};
use knarr_api::validate::label_key;
use knarr_apimachinery::field::{Error, ErrorList, Path};
use std::borrow::Cow;
use std::collections::BTreeSet;
use std::sync::Arc;

use k8s_openapi::api::core::v1::Node;
use k8s_openapi::api::resource::v1::DeviceClass;
use knarr_api::kind::Kind;
use serde::Deserialize;

use super::dynamic_resources::extended::{IMPLICIT, ResourceClasses, may_be_devices};
use super::scoring_strategy::{ResourceWeight, ShapePoint, Strategy, cpu_and_memory, requests, uses};
use crate::framework::points::NodeView;
use crate::framework::resources::Resources;
use crate::framework::{
    Action, Catalog, Changed, ClusterEvent, Code, Descriptor, Filter, NodeFilter, NodeScore, Parts, Plugin,
    PodInfo, PreFilter, Resource, Scope, Score, Shape, Status,
};
use crate::snapshot::{NodeRow, Snapshot};

pub const NAME: &str = "NodeResourcesFit";
const RATIO: &str = "RequestedToCapacityRatio";
pub const DESCRIPTOR: Descriptor = Descriptor {
    name: NAME,
    weight: 1,
    args: Some(judge::<Args>),
    build: |build| {
        build.catalog.watch::<DeviceClass>();
        let plugin = Arc::new(NodeResourcesFit::new(build.args()?, build.catalog));
        Ok(Parts { filter: Some(plugin.clone()), score: Some(plugin.clone()), ..Parts::of(plugin) })
    },
};

#[derive(Deserialize, Default)]
#[serde(rename_all = "camelCase", default)]
struct Args {
    ignored_resources: Vec<String>,
    ignored_resource_groups: Vec<String>,
    scoring_strategy: Option<ScoringStrategy>,
}

#[derive(Deserialize, Default)]
#[serde(rename_all = "camelCase", default)]
struct ScoringStrategy {
    #[serde(rename = "type")]
    type_: String,
    resources: Vec<ResourceWeight>,
    requested_to_capacity_ratio: Option<RatioShape>,
}

#[derive(Deserialize, Default)]
#[serde(default)]
struct RatioShape {
    shape: Vec<ShapePoint>,
}

impl PluginArgs for Args {
    const JUDGED_WHEN_MADE: bool = true;

    fn validate(&self, path: &Path) -> ErrorList {
        let mut errors = ErrorList::new();
        for (i, name) in self.ignored_resources.iter().enumerate() {
            label_key(&mut errors, &path.child("ignoredResources").index(i), name);
        }
        for (i, group) in self.ignored_resource_groups.iter().enumerate() {
            let path = path.child("ignoredResourceGroups").index(i);
            if group.contains('/') {
                let why = "resource group name can't contain '/'";
                errors.push(Error::invalid(&path, group.as_str(), why));
            }
            label_key(&mut errors, &path, group);
        }
        if let Some(strategy) = &self.scoring_strategy {
            strategy.validate(&path.child("scoringStrategy"), &mut errors);
        }
        errors
    }
}

impl ScoringStrategy {
    fn validate(&self, path: &Path, errors: &mut ErrorList) {
        const TYPES: [&str; 3] = ["LeastAllocated", "MostAllocated", RATIO];
        if !TYPES.contains(&self.type_.as_str()) {
            errors.push(Error::not_supported(&path.child("type"), self.type_.as_str(), &TYPES));
        }
        for (i, resource) in self.resources.iter().enumerate() {
            if !(1..=100).contains(&resource.weight) {
                let path = path.child("resources").index(i).child("weight");
                let why = format!("resource weight of {} not in valid range (0, 100]", resource.name);
                errors.push(Error::invalid(&path, resource.weight, why));
            }
        }
        let path = path.child("requestedToCapacityRatio");
        match (&self.requested_to_capacity_ratio, self.type_ == RATIO) {
            (Some(ratio), true) => errors.extend(shape_problems(&ratio.shape, &path.child("shape"))),
            (None, true) => {
                errors.push(Error::required(&path, format!("must be specified when type is {RATIO}")));
            }
            (Some(_), false) => {
                errors.push(Error::forbidden(&path, format!("must be nil when type is not {RATIO}")));
            }
            (None, false) => {}
        }
    }
}

struct NodeResourcesFit {
    ignored: Arc<Ignored>,
    strategy: Arc<(Strategy, Vec<ResourceWeight>)>,
    catalog: Arc<Catalog>,
    classes: Arc<ResourceClasses>,
}

/// Extended resources that are managed elsewhere.
#[derive(Debug, Default)]
struct Ignored {
    resources: BTreeSet<String>,
    groups: BTreeSet<String>,
}

#[derive(Clone)]
struct Fits {
    wanted: Resources,
    ignored: Arc<Ignored>,
    devices: Arc<BTreeSet<String>>,
}

struct Allocation {
    requests: Vec<i64>,
    strategy: Arc<(Strategy, Vec<ResourceWeight>)>,
}

impl NodeResourcesFit {
    fn new(args: Args, catalog: &Arc<Catalog>) -> Self {
        let given = args.scoring_strategy.unwrap_or_default();
        let strategy = match (given.type_.as_str(), given.requested_to_capacity_ratio) {
            ("MostAllocated", _) => Strategy::MostAllocated,
            (RATIO, Some(ratio)) => Strategy::RequestedToCapacityRatio(ratio.shape),
            _ => Strategy::LeastAllocated,
        };
        let resources = if given.resources.is_empty() { cpu_and_memory() } else { given.resources };
        let ignored = Ignored {
            resources: args.ignored_resources.into_iter().collect(),
            groups: args.ignored_resource_groups.into_iter().collect(),
        };
        Self {
            ignored: Arc::new(ignored),
            strategy: Arc::new((strategy, resources)),
            catalog: Arc::clone(catalog),
            classes: catalog.shared::<ResourceClasses>(),
        }
    }

    /// The requested resources that DynamicResources provides on nodes that do not have them as extended resources.
    fn devices(&self, wanted: &Resources) -> BTreeSet<String> {
        let named = wanted.scalar.keys().filter(|name| may_be_devices(name));
        named.filter(|name| self.classes.class_of(&self.catalog, name).is_some()).cloned().collect()
    }
}

impl Ignored {
    fn covers(&self, name: &str) -> bool {
        let group = name.split_once('/').map(|(group, _)| group);
        self.resources.contains(name) || group.is_some_and(|group| self.groups.contains(group))
    }
}

impl Plugin for NodeResourcesFit {
    fn name(&self) -> &'static str {
        NAME
    }

    fn interests(&self) -> &'static [ClusterEvent] {
        const {
            &[
                ClusterEvent::new(Resource::AssignedPod, Action::DELETE.or(Action::POD_SCALE_DOWN)),
                ClusterEvent::new(Resource::TargetPod, Action::POD_SCALE_DOWN),
                ClusterEvent::new(Resource::Node, Action::ADD.or(Action::NODE_ALLOCATABLE)),
                ClusterEvent::new(Resource::DeviceClass, Action::ADD.or(Action::UPDATE)),
            ]
        }
    }

    fn hint(&self, pod: &PodInfo, happened: ClusterEvent, change: &Changed) -> bool {
        if happened.resource == Resource::DeviceClass {
            return class_helps(&pod.footprint().requests, change);
        }
        if happened.resource != Resource::Node {
            return true;
        }
        let Some(new) = change.new::<Node>() else { return true };
        let allocatable =
            |n: &Node| Resources::from_list(n.status.as_ref().and_then(|s| s.allocatable.as_ref()));
        let wanted = &pod.footprint().requests;
        let (empty, new) =
            (NodeRow { allocatable: allocatable(new), ..NodeRow::default() }, allocatable(new));
        let devices = self.devices(wanted);
        let fits = insufficient(wanted, &Ignored::default(), &devices, &empty).0.is_empty();
        let from_devices = devices.iter().any(|name| new.scalar.get(name).is_none_or(|n| *n == 0));
        fits && (from_devices || change.old::<Node>().is_none_or(|old| grew(wanted, &allocatable(old), &new)))
    }
}

/// Returns whether a DeviceClass has started to provide a resource that the pod requests.
fn class_helps(wanted: &Resources, change: &Changed) -> bool {
    let (old, new) = (change.old::<DeviceClass>(), change.new::<DeviceClass>());
    let Some(new) = new else { return true };
    let explicit = |class: &DeviceClass| class.spec.as_ref().and_then(|s| s.extended_resource_name.clone());
    let implicit = || wanted.scalar.contains_key(&format!("{IMPLICIT}{}", new.name()));
    match old {
        Some(old) if explicit(old) == explicit(new) => false,
        None if implicit() => true,
        _ => explicit(new).is_some_and(|name| wanted.scalar.contains_key(&name)),
    }
}

/// Returns whether the allocatable amount of a requested resource, or the number of pods, has grown.
fn grew(wanted: &Resources, old: &Resources, new: &Resources) -> bool {
    let amount = |r: &Resources, name: &str| r.scalar.get(name).copied().unwrap_or(0);
    new.pods > old.pods
        || wanted.milli_cpu > 0 && new.milli_cpu > old.milli_cpu
        || wanted.memory > 0 && new.memory > old.memory
        || wanted.ephemeral_storage > 0 && new.ephemeral_storage > old.ephemeral_storage
        || wanted.scalar.iter().any(|(name, n)| *n > 0 && amount(new, name) > amount(old, name))
}

/// Returns the missing resources. The flag says that even the empty node would not be enough.
fn insufficient(
    wanted: &Resources,
    ignored: &Ignored,
    devices: &BTreeSet<String>,
    node: &NodeRow,
) -> (Vec<Cow<'static, str>>, bool) {
    let (mut reasons, mut never) = (Vec::new(), false);
    if node.pods.len() as i64 + 1 > node.allocatable.pods {
        reasons.push(Cow::Borrowed("Too many pods"));
    }
    let mut check = |wanted: i64, used: i64, total: i64, reason: &dyn Fn() -> Cow<'static, str>| {
        if wanted > 0 && wanted > total - used {
            reasons.push(reason());
            never |= wanted > total;
        }
    };
    let (used, total) = (&node.requested, &node.allocatable);
    check(wanted.milli_cpu, used.milli_cpu, total.milli_cpu, &|| "Insufficient cpu".into());
    check(wanted.memory, used.memory, total.memory, &|| "Insufficient memory".into());
    check(wanted.ephemeral_storage, used.ephemeral_storage, total.ephemeral_storage, &|| {
        "Insufficient ephemeral-storage".into()
    });
    let amount = |r: &Resources, name: &str| r.scalar.get(name).copied().unwrap_or(0);
    for (name, wanted) in wanted.scalar.iter().filter(|(name, _)| !ignored.covers(name)) {
        if devices.contains(name) && amount(total, name) == 0 {
            continue;
        }
        check(*wanted, amount(used, name), amount(total, name), &|| format!("Insufficient {name}").into());
    }
    (reasons, never)
}

/// Formats an amount as in manifests; bytes are rounded up to a readable unit.
fn shown(name: &str, amount: i64) -> String {
    const MI: i64 = 1 << 20;
    match name {
        "cpu" if amount % 1000 == 0 => (amount / 1000).to_string(),
        "cpu" => format!("{amount}m"),
        "memory" | "ephemeral-storage" if amount % (MI << 10) == 0 && amount > 0 => {
            format!("{}Gi", amount / (MI << 10))
        }
        "memory" | "ephemeral-storage" if amount >= MI => {
            format!("{}Mi", amount / MI + i64::from(amount % MI > 0))
        }
        _ => amount.to_string(),
    }
}

impl Filter for NodeResourcesFit {
    fn scope(&self) -> Scope {
        Scope::Row
    }

    fn version(&self, _: &Snapshot, shape: &Shape) -> u64 {
        let mut named = shape.footprint.requests.scalar.keys();
        if named.any(|name| may_be_devices(name)) { self.catalog.version::<DeviceClass>() } else { 0 }
    }

    fn pre_filter(&self, _: &Snapshot, shape: &Shape) -> PreFilter {
        PreFilter::check(Fits {
            wanted: shape.footprint.requests.clone(),
            ignored: Arc::clone(&self.ignored),
            devices: Arc::new(self.devices(&shape.footprint.requests)),
        })
    }
}

impl NodeFilter for Fits {
    fn check(&self, node: &NodeView) -> Status {
        let (reasons, never) = insufficient(&self.wanted, &self.ignored, &self.devices, node.row);
        match (reasons.is_empty(), never) {
            (true, _) => Status::SUCCESS,
            (false, false) => Status { code: Code::Unschedulable, reasons },
            (false, true) => Status { code: Code::UnschedulableAndUnresolvable, reasons },
        }
    }

    fn remedies(&self, _: &PodInfo, node: &NodeView) -> Vec<Remedy> {
        let (used, total) = (&node.row.requested, &node.row.allocatable);
        let mut remedies = Vec::new();
        let pods = node.row.pods.len() as i64;
        if pods + 1 > total.pods {
            remedies.push(format!("pods: one less; {pods} are there, {} may be", total.pods).into());
        }
        let mut lacks = |name: &str, wanted: i64, used: i64, total: i64| {
            let free = (total - used).max(0);
            if wanted > 0 && wanted > free {
                let show = |amount: i64| shown(name, amount);
                let (lack, wanted_text) = (show(wanted - free), show(wanted));
                let (free_text, total_text) = (show(free), show(total));
                let text =
                    format!("{name}: {lack} more; {wanted_text} asked for, {free_text} of {total_text} free");
                let missing = u64::try_from(i128::from(wanted - free) * 1000 / i128::from(wanted));
                remedies.push(Remedy { text, missing: missing.unwrap_or(0) });
            }
        };
        let wanted = &self.wanted;
        lacks("cpu", wanted.milli_cpu, used.milli_cpu, total.milli_cpu);
        lacks("memory", wanted.memory, used.memory, total.memory);
        lacks("ephemeral-storage", wanted.ephemeral_storage, used.ephemeral_storage, total.ephemeral_storage);
        let amount = |r: &Resources, name: &str| r.scalar.get(name).copied().unwrap_or(0);
        for (name, wanted) in wanted.scalar.iter().filter(|(name, _)| !self.ignored.covers(name)) {
            if !self.devices.contains(name) || amount(total, name) > 0 {
                lacks(name, *wanted, amount(used, name), amount(total, name));
            }
        }
        remedies
    }

    fn boxed(&self) -> Box<dyn NodeFilter> {
        Box::new(self.clone())
    }
}

impl Score for NodeResourcesFit {
    fn scope(&self) -> Scope {
        Scope::Row
    }

    fn pre_score(&self, _: &Snapshot, shape: &Shape) -> Option<Box<dyn NodeScore>> {
        let requests = requests(&self.strategy.1, &shape.footprint.non_zero);
        Some(Box::new(Allocation { requests, strategy: Arc::clone(&self.strategy) }))
    }
}

impl NodeScore for Allocation {
    fn score(&self, node: &NodeView) -> i64 {
        let (strategy, resources) = &*self.strategy;
        strategy.score(resources, uses(resources, &self.requests, node.row, true))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plugins::testing::{PodBuilder, node, pod, scores, scores_with, verdict, verdict_with};
    use serde_json::json;

    #[test]
    fn what_is_missing_is_named() {
        let verdict = |incoming: PodBuilder| {
            let there = vec![pod("a").cpu("600m")];
            let status = verdict(DESCRIPTOR, incoming, node("n").capacity("1", "1Gi", 2), there);
            (status.code, status.message())
        };
        assert_eq!(verdict(pod("b").cpu("400m")).0, Code::Success);
        assert_eq!(verdict(pod("b").cpu("500m")), (Code::Unschedulable, "Insufficient cpu".to_owned()));
        assert_eq!(
            verdict(pod("b").cpu("500m").memory("2Gi")),
            (Code::UnschedulableAndUnresolvable, "Insufficient cpu, Insufficient memory".to_owned())
        );
        assert_eq!(verdict(pod("b").request("example.com/gpu", "1")).1, "Insufficient example.com/gpu");
    }

    #[test]
    fn ignored_resources_are_not_looked_at() {
        for args in [
            json!({"ignoredResources": ["example.com/gpu"]}),
            json!({"ignoredResourceGroups": ["example.com"]}),
        ] {
            let wants = pod("b").request("example.com/gpu", "1");
            assert!(verdict_with(DESCRIPTOR, &args, wants, node("n"), vec![]).is_success(), "{args}");
        }
    }

    #[test]
    fn a_full_node_takes_no_more_pods() {
        let status = verdict(DESCRIPTOR, pod("b"), node("n").capacity("8", "8Gi", 1), vec![pod("a")]);
        assert_eq!((status.code, status.message().as_str()), (Code::Unschedulable, "Too many pods"));
    }

    #[test]
    fn strategies_order_nodes() {
        let incoming = || pod("p").cpu("1").memory("1Gi");
        let nodes = || vec![node("empty").capacity("4", "4Gi", 110), node("busy").capacity("4", "4Gi", 110)];
        let there = || vec![(1, pod("a").cpu("2").memory("2Gi"))];
        assert_eq!(scores(DESCRIPTOR, incoming(), nodes(), there()), [75, 25]);
        let most = json!({"scoringStrategy": {"type": "MostAllocated", "resources": [{"name": "cpu", "weight": 1}]}});
        assert_eq!(scores_with(DESCRIPTOR, &most, incoming(), nodes(), there()), [25, 75]);
        let ratio = json!({"scoringStrategy": {"type": "RequestedToCapacityRatio", "requestedToCapacityRatio":
            {"shape": [{"utilization": 0, "score": 0}, {"utilization": 100, "score": 10}]}}});
        assert_eq!(scores_with(DESCRIPTOR, &ratio, incoming(), nodes(), there()), [25, 75]);
    }
}
