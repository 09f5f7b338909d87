//! GangScheduling: the pods of a gang wait until enough of them exist, and none starts before enough have a node.

use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::api::scheduling::v1beta1::PodGroup;
use knarr_api::kind::Kind;

use crate::framework::{
    Action, Changed, ClusterEvent, CycleState, Descriptor, Parts, Permit, PlacementFeasible, Plugin, PodInfo,
    PreEnqueue, Progress, Resource, Status,
};
use crate::groups::{Groups, Stage, group_of, min_count};
use crate::waiting::WaitingPods;

pub const NAME: &str = "GangScheduling";
pub const DESCRIPTOR: Descriptor = Descriptor {
    name: NAME,
    weight: 0,
    args: None,
    build: |build| {
        let plugin = Arc::new(GangScheduling {
            groups: build.catalog.shared::<Groups>(),
            waiting: build.catalog.shared::<WaitingPods>(),
        });
        Ok(Parts {
            pre_enqueue: Some(plugin.clone()),
            permit: Some(plugin.clone()),
            placement_feasible: Some(plugin.clone()),
            ..Parts::of(plugin)
        })
    },
};

/// How long assumed pods wait for the rest of their gang.
const PATIENCE: Duration = Duration::from_secs(300);

struct GangScheduling {
    groups: Arc<Groups>,
    waiting: Arc<WaitingPods>,
}

impl Plugin for GangScheduling {
    fn name(&self) -> &'static str {
        NAME
    }

    fn interests(&self) -> &'static [ClusterEvent] {
        const LIST: &[ClusterEvent] = &[
            ClusterEvent::new(Resource::UnscheduledPod, Action::ADD),
            ClusterEvent::new(Resource::AssignedPod, Action::ADD),
            ClusterEvent::new(Resource::PodGroup, Action::ADD.or(Action::UPDATE)),
        ];
        LIST
    }

    fn hint(&self, pod: &PodInfo, _: ClusterEvent, change: &Changed) -> bool {
        let Some(own) = pod.group() else { return false };
        if let Some(new) = change.new::<Pod>() {
            return group_of(new) == Some(own);
        }
        let Some(new) = change.new::<PodGroup>().filter(|g| g.key() == own) else { return false };
        // Of the updates of a group, only a smaller minCount helps.
        let gang = |g: &PodGroup| g.spec.scheduling_policy.gang.as_ref().map(|g| g.min_count);
        match change.old::<PodGroup>() {
            None => true,
            Some(old) => gang(old).zip(gang(new)).is_some_and(|(before, now)| now < before),
        }
    }
}

impl PreEnqueue for GangScheduling {
    fn pre_enqueue(&self, pod: &PodInfo) -> Status {
        let Some(key) = pod.group() else { return Status::SUCCESS };
        let Some(group) = self.groups.object(&key) else {
            let name = &key.name;
            return Status::unresolvable(format!(
                "waiting for pods's pod group {name:?} to appear in scheduling queue"
            ));
        };
        if group.spec.scheduling_policy.gang.is_some() && self.groups.counts(&key).0 < min_count(&group) {
            return Status::unresolvable(
                "waiting for minCount pods from a gang to appear in scheduling queue",
            );
        }
        Status::SUCCESS
    }
}

impl PlacementFeasible for GangScheduling {
    fn placement_feasible(&self, group: &PodGroup, progress: Progress) -> Status {
        let Progress { scheduled, remaining } = progress;
        let needed = min_count(group);
        let so_far = format!("{scheduled} scheduled, {remaining} remaining");
        if remaining + scheduled < needed {
            Status::unschedulable(format!("minCount ({needed}) cannot be satisfied: {so_far}"))
        } else if scheduled < needed {
            Status::wait(format!("minCount ({needed}) is not yet satisfied: {so_far}"))
        } else {
            Status::SUCCESS
        }
    }
}

impl Permit for GangScheduling {
    fn permit(&self, _: &CycleState, pod: &PodInfo, _: &str) -> (Status, Duration) {
        let go_on = (Status::SUCCESS, Duration::ZERO);
        let Some(key) = pod.group() else { return go_on };
        let Some(group) = self.groups.object(&key) else {
            let why = format!("failed to get podGroup {key}: not found");
            return (Status::error(why), Duration::ZERO);
        };
        if group.spec.scheduling_policy.gang.is_none() {
            return go_on;
        }
        if self.groups.counts(&key).1 < min_count(&group) {
            let why = "waiting for minCount pods from a gang to be scheduled";
            return (Status::wait(why), PATIENCE);
        }
        for uid in self.groups.at(&key, Stage::Assumed) {
            self.waiting.allow(&uid, NAME);
        }
        go_on
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::framework::{Build, Catalog, Code};
    use crate::plugins::testing::{pod, pod_group};

    fn plugin(catalog: &Arc<Catalog>) -> Parts {
        (DESCRIPTOR.build)(&Build { args: &serde_json::Value::Null, catalog }).unwrap()
    }

    #[test]
    fn a_gang_waits_for_its_group_and_for_enough_pods() {
        let catalog = Arc::<Catalog>::default();
        let (parts, groups) = (plugin(&catalog), catalog.shared::<Groups>());
        let said = |name: &str| {
            let info = PodInfo::new(&pod(name).group("g").build());
            parts.pre_enqueue.as_ref().unwrap().pre_enqueue(&info).message()
        };
        groups.set_pod(&pod("a").group("g").build());
        assert_eq!(said("a"), "waiting for pods's pod group \"g\" to appear in scheduling queue");
        groups.set_object(pod_group("g", Some(2)).into());
        assert_eq!(said("a"), "waiting for minCount pods from a gang to appear in scheduling queue");
        groups.set_pod(&pod("b").group("g").on("n").build());
        assert_eq!(said("a"), "");
        groups.set_object(pod_group("g", None).into());
        groups.remove_pod("b");
        assert_eq!(said("a"), "", "the pods of a basic group do not wait");
        assert!(parts.pre_enqueue.unwrap().pre_enqueue(&PodInfo::new(&pod("x").build())).is_success());
    }

    #[test]
    fn a_gang_is_feasible_while_enough_pods_are_left() {
        let parts = plugin(&Arc::default());
        let judge = |gang, scheduled, remaining| {
            let group = pod_group("g", gang);
            parts
                .placement_feasible
                .as_ref()
                .unwrap()
                .placement_feasible(&group, Progress { scheduled, remaining })
        };
        let wait = judge(Some(3), 1, 2);
        assert_eq!(wait.code, Code::Wait);
        assert_eq!(wait.message(), "minCount (3) is not yet satisfied: 1 scheduled, 2 remaining");
        let never = judge(Some(3), 1, 1);
        assert_eq!(never.code, Code::Unschedulable);
        assert_eq!(never.message(), "minCount (3) cannot be satisfied: 1 scheduled, 1 remaining");
        assert!(judge(Some(3), 3, 0).is_success());
        assert_eq!(judge(None, 0, 0).code, Code::Unschedulable, "one pod of a basic group must fit");
    }

    #[test]
    fn only_what_concerns_the_own_gang_helps() {
        let parts = plugin(&Arc::default());
        let waiting = PodInfo::new(&pod("a").group("g").build());
        let added = |p: crate::plugins::testing::PodBuilder| {
            let event = ClusterEvent::new(Resource::UnscheduledPod, Action::ADD);
            parts.plugin.hint(&waiting, event, &Changed::of::<Pod>(None, Some(p.build().into())))
        };
        assert!(added(pod("b").group("g")));
        assert!(!added(pod("b").group("other")) && !added(pod("b")));
        let grown = |before: Option<i32>, now| {
            let event = ClusterEvent::new(Resource::PodGroup, Action::UPDATE);
            let old = before.map(|n| pod_group("g", Some(n)).into());
            parts.plugin.hint(&waiting, event, &Changed::of(old, Some(pod_group("g", Some(now)).into())))
        };
        assert!(grown(None, 3) && grown(Some(3), 2));
        assert!(!grown(Some(2), 3));
    }

    #[test]
    fn the_last_of_a_gang_lets_the_others_go() {
        let catalog = Arc::<Catalog>::default();
        let (parts, groups) = (plugin(&catalog), catalog.shared::<Groups>());
        let waiting = catalog.shared::<WaitingPods>();
        groups.set_object(pod_group("g", Some(2)).into());
        ["a", "b"].into_iter().for_each(|name| groups.set_pod(&pod(name).group("g").build()));
        let permit = |name: &str| {
            groups.assume(name);
            let info = PodInfo::new(&pod(name).group("g").build());
            parts.permit.as_ref().unwrap().permit(&CycleState::default(), &info, "n").0.code
        };
        assert_eq!(permit("a"), Code::Wait);
        let mut answer = waiting.wait("a", [NAME].into());
        assert_eq!(permit("b"), Code::Success);
        assert!(answer.try_recv().unwrap().1.is_success());
    }
}
