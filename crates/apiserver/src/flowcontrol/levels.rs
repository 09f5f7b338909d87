//! The active configuration: priority levels with their limits and queues, the ordered flow schemas, and borrowing of
//! seats.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::api::flowcontrol::v1::{
    FlowSchema, FlowSchemaSpec, PriorityLevelConfiguration, PriorityLevelConfigurationSpec,
};

use super::allocation::{Wish, allocate};
use super::demand::{Demand, Integrator};
use super::queue_set::{QueueSet, Queuing};
use super::{defaults, matching, shuffle};
use knarr_auth::authn::UserInfo;
use knarr_wire::request_info::RequestInfo;

/// One request may take this fraction of a priority level's seats.
const MAX_SEATS_PART: f64 = 0.15;

/// An active flow schema.
pub struct Schema {
    pub name: String,
    pub uid: String,
    pub level: String,
    spec: FlowSchemaSpec,
}

impl Schema {
    /// Returns the flow distinguisher of a request.
    pub fn flow(&self, user: &UserInfo, info: &RequestInfo) -> String {
        match self.spec.distinguisher_method.as_ref().map(|m| m.type_.as_str()) {
            Some("ByUser") => user.name.clone(),
            Some("ByNamespace") => info.namespace.clone(),
            _ => String::new(),
        }
    }
}

/// The limits of a level, in seats.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    pub nominal: u64,
    pub lower: u64,
    pub upper: u64,
}

/// An active priority level.
pub struct Level {
    pub uid: String,
    spec: PriorityLevelConfigurationSpec,
    pub exempt: bool,
    pub queues: QueueSet,
    pub limits: Limits,
    pub current: u64,
    /// The maximum number of seats of one request; 0 means that the level has no limit of its own.
    pub max_seats: u64,
    /// Whether no object exists for the level any more; it is removed once it is idle.
    pub quiescing: bool,
    demand_now: Integrator,
    pub demand: Demand,
    pub target: f64,
}

impl Level {
    /// Records the demand; must be called after every change of its queues.
    pub fn note_demand(&mut self, now: Duration) {
        self.demand_now.set(now, self.queues.demand() as f64);
    }

    fn shares(&self) -> f64 {
        let shares = match (&self.spec.limited, &self.spec.exempt) {
            (Some(limited), _) => limited.nominal_concurrency_shares.unwrap_or(30),
            (None, Some(exempt)) => exempt.nominal_concurrency_shares.unwrap_or(0),
            (None, None) => 0,
        };
        f64::from(shares.max(0))
    }

    fn set_limits(&mut self, total: u64, share_sum: f64) {
        let nominal =
            if share_sum > 0.0 { (total as f64 * self.shares() / share_sum).ceil() as u64 } else { 0 };
        let percent =
            |p: Option<i32>| p.map(|p| (nominal as f64 * f64::from(p.max(0)) / 100.0).round() as u64);
        let limited = self.spec.limited.as_ref();
        let lendable = limited
            .map(|l| l.lendable_percent)
            .or_else(|| self.spec.exempt.as_ref().map(|e| e.lendable_percent))
            .flatten();
        let lendable = percent(lendable).unwrap_or(0).min(nominal);
        let borrowing = percent(limited.and_then(|l| l.borrowing_limit_percent)).unwrap_or(total);
        self.limits = Limits { nominal, lower: nominal - lendable, upper: nominal + borrowing };
        self.max_seats = match self.spec.limited.as_ref().and_then(queuing_of) {
            Some(Queuing::Queues { hand, .. }) => {
                let part = (nominal as f64 * MAX_SEATS_PART).ceil() as u64;
                part.min(nominal / (hand.max(1) as u64)).max(1)
            }
            _ => 0,
        };
    }
}

fn queuing_of(
    limited: &k8s_openapi::api::flowcontrol::v1::LimitedPriorityLevelConfiguration,
) -> Option<Queuing> {
    let response = &limited.limit_response;
    if response.type_ != "Queue" {
        return Some(Queuing::Reject);
    }
    let queuing = response.queuing.as_ref();
    let number =
        |n: Option<i32>, default: i32| usize::try_from(n.filter(|n| *n > 0).unwrap_or(default)).unwrap_or(1);
    let queues = number(queuing.and_then(|q| q.queues), 64);
    let hand = number(queuing.and_then(|q| q.hand_size), 8);
    let length = number(queuing.and_then(|q| q.queue_length_limit), 50);
    shuffle::is_possible(queues, hand).then_some(Queuing::Queues { queues, hand, length })
}

/// Returns the queuing configuration; `None` if the spec is invalid.
fn queuing(name: &str, spec: &PriorityLevelConfigurationSpec) -> Option<Queuing> {
    match (spec.type_.as_str(), &spec.limited) {
        ("Exempt", None) if name == "exempt" => Some(Queuing::Exempt),
        ("Limited", Some(limited)) if name != "exempt" => queuing_of(limited),
        _ => None,
    }
}

/// The value of a flow schema's `Dangling` condition: whether its priority level is missing.
#[derive(Debug, PartialEq, Eq)]
pub struct Dangling {
    pub schema: String,
    pub level: String,
    pub dangling: bool,
}

/// All levels and schemas.
pub struct Levels {
    pub total: u64,
    pub nominal_sum: u64,
    pub schemas: Vec<Arc<Schema>>,
    pub levels: BTreeMap<String, Level>,
    pub fair_fraction: f64,
}

impl Levels {
    pub fn new(total: u64, now: Duration) -> Self {
        let mut all =
            Self { total, nominal_sum: 0, schemas: Vec::new(), levels: BTreeMap::new(), fair_fraction: 0.0 };
        all.digest(&[], &[], now);
        all
    }

    /// Applies new configuration objects. The mandatory ones exist even if they are not among the objects.
    pub fn digest(
        &mut self,
        levels: &[Arc<PriorityLevelConfiguration>],
        schemas: &[Arc<FlowSchema>],
        now: Duration,
    ) -> Vec<Dangling> {
        let mut wanted: BTreeMap<String, (String, PriorityLevelConfigurationSpec)> = BTreeMap::new();
        for level in levels {
            let name = level.metadata.name.clone().unwrap_or_default();
            if let Some(spec) = Some(level.spec.clone()).filter(|s| queuing(&name, s).is_some()) {
                wanted.insert(name, (level.metadata.uid.clone().unwrap_or_default(), spec));
            }
        }
        for value in defaults::levels() {
            let name = value["metadata"]["name"].as_str().unwrap_or("").to_owned();
            if defaults::is_mandatory(&name)
                && !wanted.contains_key(&name)
                && let Ok(spec) = serde_json::from_value(value["spec"].clone())
            {
                wanted.insert(name, (String::new(), spec));
            }
        }
        let dangling = self.take_schemas(schemas, &wanted);
        self.levels.retain(|name, level| {
            level.quiescing = !wanted.contains_key(name);
            !level.quiescing || !level.queues.is_idle()
        });
        for (name, (uid, spec)) in wanted {
            let Some(queuing) = queuing(&name, &spec) else { continue };
            match self.levels.get_mut(&name) {
                Some(level) => (level.uid, level.spec) = (uid, spec),
                None => {
                    let level = Level {
                        uid,
                        exempt: queuing == Queuing::Exempt,
                        spec,
                        queues: QueueSet::new(queuing, 0, now),
                        limits: Limits::default(),
                        current: 0,
                        max_seats: 0,
                        quiescing: false,
                        demand_now: Integrator::default(),
                        demand: Demand::default(),
                        target: 0.0,
                    };
                    self.levels.insert(name, level);
                }
            }
        }
        self.set_limits(now);
        dangling
    }

    fn take_schemas(
        &mut self,
        schemas: &[Arc<FlowSchema>],
        levels: &BTreeMap<String, (String, PriorityLevelConfigurationSpec)>,
    ) -> Vec<Dangling> {
        let mut dangling = Vec::new();
        let mut usable: Vec<Schema> = Vec::new();
        let own = |object: &FlowSchema| Schema {
            name: object.metadata.name.clone().unwrap_or_default(),
            uid: object.metadata.uid.clone().unwrap_or_default(),
            level: object.spec.priority_level_configuration.name.clone(),
            spec: object.spec.clone(),
        };
        for schema in schemas.iter().map(|s| own(s)) {
            let lost = !levels.contains_key(&schema.level);
            dangling.push(Dangling {
                schema: schema.name.clone(),
                level: schema.level.clone(),
                dangling: lost,
            });
            if !lost {
                usable.push(schema);
            }
        }
        for value in defaults::schemas() {
            let name = value["metadata"]["name"].as_str().unwrap_or("");
            if defaults::is_mandatory(name)
                && !usable.iter().any(|s| s.name == name)
                && let Ok(object) = serde_json::from_value::<FlowSchema>(value)
            {
                usable.push(own(&object));
            }
        }
        usable.sort_by(|a, b| {
            let precedence = |s: &Schema| s.spec.matching_precedence.unwrap_or(1000);
            (precedence(a), &a.name).cmp(&(precedence(b), &b.name))
        });
        self.schemas = usable.into_iter().map(Arc::new).collect();
        dangling
    }

    fn set_limits(&mut self, now: Duration) {
        let share_sum: f64 = self.levels.values().map(Level::shares).sum();
        self.nominal_sum = 0;
        for (name, level) in &mut self.levels {
            let fresh = level.limits == Limits::default();
            level.set_limits(self.total, share_sum);
            self.nominal_sum += level.limits.nominal;
            if fresh {
                level.current = level.limits.nominal - (level.limits.nominal - level.limits.lower) / 2;
            }
            if let Some(queuing) = queuing(name, &level.spec) {
                level.queues.configure(queuing, level.current, now);
            }
        }
        self.borrow(now);
    }

    /// Divides the seats again, according to the demand in the last period.
    pub fn borrow(&mut self, now: Duration) {
        let mut left = self.nominal_sum as f64;
        let (mut names, mut wishes) = (Vec::new(), Vec::new());
        let (mut lower_sum, mut least_sum) = (0.0, 0.0);
        for (name, level) in &mut self.levels {
            level.demand_now.finish(now, &mut level.demand);
            let (lower, high) = (level.limits.lower as f64, level.demand.high_watermark);
            if level.exempt {
                let least = lower.max(high);
                level.current = least as u64;
                level.target = least;
                left -= least;
                continue;
            }
            let least = lower.max(high.min(level.limits.nominal as f64));
            level.target = least.max(level.demand.smoothed);
            names.push(name.clone());
            wishes.push(Wish { lower: least, upper: level.limits.upper as f64, target: level.target });
            lower_sum += lower;
            least_sum += least;
        }
        self.fair_fraction = 0.0;
        let mut shares: Option<Vec<f64>> = None;
        if left > least_sum
            && let Some((found, fraction)) = allocate(self.nominal_sum as f64, &wishes)
        {
            self.fair_fraction = fraction;
            shares = Some(found);
        }
        let part = if least_sum > lower_sum {
            ((left - lower_sum) / (least_sum - lower_sum)).clamp(0.0, 1.0)
        } else {
            0.0
        };
        for (at, name) in names.iter().enumerate() {
            let Some(level) = self.levels.get_mut(name) else { continue };
            let lower = level.limits.lower as f64;
            level.current = match &shares {
                Some(shares) => shares[at].round() as u64,
                None if left > least_sum => level.current,
                None => (lower + (wishes[at].lower - lower) * part).round() as u64,
            };
        }
        for (name, level) in &mut self.levels {
            if let Some(queuing) = queuing(name, &level.spec) {
                level.queues.configure(queuing, level.current, now);
            }
        }
    }

    /// Returns the first schema that matches the request.
    pub fn classify(&self, user: &UserInfo, info: &RequestInfo) -> Option<Arc<Schema>> {
        let found = self.schemas.iter().find(|s| matching::matches(&s.spec, user, info));
        found.or_else(|| self.schemas.iter().find(|s| s.name == "catch-all")).cloned()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::flowcontrol::queue_set::Work;

    fn all() -> (Vec<Arc<PriorityLevelConfiguration>>, Vec<Arc<FlowSchema>>) {
        let levels = defaults::levels().into_iter().map(|v| Arc::new(serde_json::from_value(v).unwrap()));
        let schemas = defaults::schemas().into_iter().map(|v| Arc::new(serde_json::from_value(v).unwrap()));
        (levels.collect(), schemas.collect())
    }

    #[test]
    fn the_default_levels_share_six_hundred_seats() {
        let mut levels = Levels::new(600, Duration::ZERO);
        assert_eq!(levels.levels.keys().collect::<Vec<_>>(), ["catch-all", "exempt"]);
        let (objects, schemas) = all();
        let dangling = levels.digest(&objects, &schemas, Duration::ZERO);
        assert!(dangling.iter().all(|d| !d.dangling) && dangling.len() == 11);
        for (name, nominal, lower) in [
            ("exempt", 0, 0),
            ("catch-all", 13, 13),
            ("system", 74, 50),
            ("node-high", 98, 73),
            ("leader-election", 25, 25),
            ("workload-high", 98, 49),
            ("workload-low", 245, 24),
            ("global-default", 49, 24),
        ] {
            let limits = levels.levels[name].limits;
            assert_eq!((limits.nominal, limits.lower), (nominal, lower), "{name}");
        }
        let sum: u64 = levels.levels.values().map(|l| l.current).sum();
        assert!(sum.abs_diff(levels.nominal_sum) <= 8, "{sum} {}", levels.nominal_sum);
    }

    #[test]
    fn busy_levels_borrow_from_idle_ones() {
        let mut levels = Levels::new(600, Duration::ZERO);
        let (objects, schemas) = all();
        levels.digest(&objects, &schemas, Duration::ZERO);
        let now = Duration::from_secs(1);
        let level = levels.levels.get_mut("global-default").unwrap();
        for id in 0..400 {
            level.queues.start(now, id, Work::seats(1), id);
            level.queues.dispatch(now);
        }
        level.note_demand(now);
        levels.borrow(Duration::from_secs(11));
        let busy = &levels.levels["global-default"];
        assert!(busy.current > busy.limits.nominal, "{} {:?}", busy.current, busy.limits);
        assert!(levels.levels["workload-low"].current < levels.levels["workload-low"].limits.nominal);
        assert!(levels.levels["leader-election"].current >= 25, "it lends nothing");
    }

    #[test]
    fn schemas_without_their_level_dangle_and_busy_levels_go_last() {
        let mut levels = Levels::new(600, Duration::ZERO);
        let (mut objects, schemas) = all();
        levels.digest(&objects, &schemas, Duration::ZERO);
        let level = levels.levels.get_mut("workload-low").unwrap();
        level.queues.start(Duration::ZERO, 1, Work::seats(1), 0);
        level.queues.dispatch(Duration::ZERO);
        objects.retain(|l| l.metadata.name.as_deref() != Some("workload-low"));
        let dangling = levels.digest(&objects, &schemas, Duration::ZERO);
        let lost: Vec<_> = dangling.iter().filter(|d| d.dangling).map(|d| d.schema.as_str()).collect();
        assert_eq!(lost, ["service-accounts"]);
        assert!(levels.levels["workload-low"].quiescing);
        levels.levels.get_mut("workload-low").unwrap().queues.finish(Duration::ZERO, 1);
        levels.digest(&objects, &schemas, Duration::ZERO);
        assert!(!levels.levels.contains_key("workload-low"));
    }
}
