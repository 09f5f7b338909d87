//! Event handlers of the informers: put changes into the cache and the queue.

use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::api::core::v1::{Namespace, Node, PersistentVolume, PersistentVolumeClaim, Pod};
use k8s_openapi::api::resource::v1::{DeviceClass, DeviceTaintRule, ResourceClaim, ResourceSlice};
use k8s_openapi::api::scheduling::v1beta1::PodGroup;
use k8s_openapi::api::storage::v1::{CSIDriver, CSINode, CSIStorageCapacity, StorageClass, VolumeAttachment};
use knarr_api::kind::Kind;
use knarr_client::{Event, Informers};

use crate::cache::is_terminal;
use crate::cluster_events::{node_update, pod_update};
use crate::framework::{Action, Changed, ClusterEvent, PodInfo, Resource, Status};
use crate::groups::Groups;
use crate::metrics::Metric;
use crate::scheduler::{Scheduler, State};

impl Scheduler {
    /// Records how long a change took to handle, for each of these events.
    fn handled(&self, events: impl IntoIterator<Item = ClusterEvent>, begun: Duration) {
        for event in events {
            self.metrics.since(Metric::EventHandling, &[&event.label()], begun);
        }
    }

    pub(crate) fn on_node(&self, event: &Event<Node>) {
        let now = self.now();
        let mut state = self.lock();
        match event {
            Event::Updated { old, new } => self.observe_node(&mut state, old, new),
            Event::Deleted(node) => self.health.forget_node(node.name()),
            Event::Added(_) => {}
        }
        let State { cache, queue, .. } = &mut *state;
        let mut notify = |actions: Vec<ClusterEvent>, change: Changed| {
            for happened in actions {
                queue.on_event(&self.profiles, happened, &change, now);
            }
        };
        let node_event = |action| vec![ClusterEvent::new(Resource::Node, action)];
        match event {
            Event::Added(node) => {
                cache.set_node(Arc::clone(node));
                notify(node_event(Action::ADD), Changed::of(None, Some(Arc::clone(node))));
            }
            Event::Updated { old, new } => {
                cache.set_node(Arc::clone(new));
                notify(node_update(old, new), Changed::of(Some(Arc::clone(old)), Some(Arc::clone(new))));
            }
            Event::Deleted(node) => {
                cache.remove_node(node.name());
                notify(node_event(Action::DELETE), Changed::of(Some(Arc::clone(node)), None));
            }
        }
        drop(state);
        match event {
            Event::Added(_) => self.handled(node_event(Action::ADD), now),
            Event::Updated { old, new } => self.handled(node_update(old, new), now),
            Event::Deleted(_) => self.handled(node_event(Action::DELETE), now),
        }
        self.wake.notify_one();
    }

    pub(crate) fn on_namespace(&self, event: &Event<Namespace>) {
        let mut state = self.lock();
        match event {
            Event::Added(ns) | Event::Updated { new: ns, .. } => {
                let labels = ns.metadata.labels.clone().unwrap_or_default();
                state.cache.set_namespace(ns.name(), Some(labels));
            }
            Event::Deleted(ns) => state.cache.set_namespace(ns.name(), None),
        }
    }

    pub(crate) fn on_pod(&self, event: &Event<Pod>) {
        let now = self.now();
        let mut state = self.lock();
        match event {
            Event::Added(pod) => self.pod_is(&mut state, None, pod, now),
            Event::Updated { old, new } => self.pod_is(&mut state, Some(old), new, now),
            Event::Deleted(pod) => {
                self.observe_gone(&mut state, pod);
                let State { cache, queue, .. } = &mut *state;
                if let Some(waiting) = queue.get(pod.uid()) {
                    cache.nominate(waiting, None);
                }
                queue.remove(pod.uid());
                cache.remove_pod(pod.uid());
                self.waiting.reject(pod.uid(), "", Status::unschedulable("removed"));
                // A PreBind that waits for this pod can stop.
                self.catalog.announce();
                if is_assigned(pod) {
                    let gone = Changed::of::<Pod>(Some(Arc::clone(pod)), None);
                    let happened = ClusterEvent::new(Resource::AssignedPod, Action::DELETE);
                    queue.on_event(&self.profiles, happened, &gone, now);
                }
            }
        }
        drop(state);
        let (action, pod) = match event {
            Event::Added(pod) => (Action::ADD, pod),
            Event::Updated { new, .. } => (Action::UPDATE, new),
            Event::Deleted(pod) => (Action::DELETE, pod),
        };
        let resource = if is_assigned(pod) { Resource::AssignedPod } else { Resource::UnscheduledPod };
        self.handled([ClusterEvent::new(resource, action)], now);
        self.wake.notify_one();
    }

    fn pod_is(&self, state: &mut State, old: Option<&Arc<Pod>>, pod: &Arc<Pod>, now: Duration) {
        self.observe_start(state, old, pod);
        let State { cache, queue, .. } = state;
        if is_assigned(pod) {
            if let Some(waiting) = queue.get(pod.uid()) {
                cache.nominate(waiting, None);
            }
            queue.remove(pod.uid());
            cache.set_pod(pod);
            let events = match old.filter(|old| is_assigned(old)) {
                None => vec![ClusterEvent::new(Resource::AssignedPod, Action::ADD)],
                Some(old) if !is_terminal(old) && is_terminal(pod) => {
                    let gone = Changed::of::<Pod>(Some(Arc::clone(old)), None);
                    let happened = ClusterEvent::new(Resource::AssignedPod, Action::DELETE);
                    return queue.on_event(&self.profiles, happened, &gone, now);
                }
                Some(old) => pod_update(Resource::AssignedPod, old, pod),
            };
            let assigned_before = old.filter(|old| is_assigned(old)).cloned();
            let change = Changed::of(assigned_before, Some(Arc::clone(pod)));
            for happened in events {
                queue.on_event(&self.profiles, happened, &change, now);
            }
            return;
        }
        let name = pod.spec.as_ref().and_then(|s| s.scheduler_name.as_deref()).unwrap_or("default-scheduler");
        let waits = self.profiles.find(name).is_some()
            && !is_terminal(pod)
            && pod.metadata.deletion_timestamp.is_none();
        if !waits {
            if cache.groups().is_some() && !cache.is_assumed(pod.uid()) {
                cache.remove_pod(pod.uid());
            }
            return queue.remove(pod.uid());
        }
        cache.set_waiting(pod);
        if cache.is_assumed(pod.uid()) {
            return;
        }
        let info = PodInfo::new(pod);
        cache.nominate(&info, info.nominated_node.as_deref());
        let events = old.map(|old| pod_update(Resource::TargetPod, old, pod)).unwrap_or_default();
        let change = Changed::of(old.cloned(), Some(Arc::clone(pod)));
        queue.set(&self.profiles, info, &events, &change, now);
        if old.is_none() && cache.groups().is_some() {
            // The new pod may be the one that the rest of its group waits for.
            let came = ClusterEvent::new(Resource::UnscheduledPod, Action::ADD);
            queue.on_event(&self.profiles, came, &change, now);
        }
    }

    /// Handles a pod group; called only where gang scheduling is on.
    pub(crate) fn on_pod_group(&self, groups: &Groups, event: &Event<PodGroup>) {
        let now = self.now();
        let mut state = self.lock();
        let (action, change) = match event {
            Event::Added(new) => (Action::ADD, Changed::of(None, Some(Arc::clone(new)))),
            Event::Updated { old, new } => {
                (Action::UPDATE, Changed::of(Some(Arc::clone(old)), Some(Arc::clone(new))))
            }
            Event::Deleted(old) => (Action::DELETE, Changed::of(Some(Arc::clone(old)), None)),
        };
        match event {
            Event::Added(group) | Event::Updated { new: group, .. } => groups.set_object(Arc::clone(group)),
            Event::Deleted(group) => {
                groups.remove_object(&group.key());
                self.reports.forget(&group.key());
            }
        }
        state.queue.group_changed(&self.profiles, &event.object().key());
        let happened = ClusterEvent::new(Resource::PodGroup, action);
        state.queue.on_event(&self.profiles, happened, &change, now);
        drop(state);
        self.wake.notify_one();
    }
}

type Watch = fn(&Arc<Scheduler>, &Informers);

/// The kinds besides nodes and pods whose changes may make a waiting pod schedulable.
const WATCHED: &[(Resource, Watch)] = &[
    (Resource::PersistentVolume, |s, i| s.watch::<PersistentVolume>(i, Resource::PersistentVolume)),
    (Resource::PersistentVolumeClaim, |s, i| {
        s.watch::<PersistentVolumeClaim>(i, Resource::PersistentVolumeClaim);
    }),
    (Resource::StorageClass, |s, i| s.watch::<StorageClass>(i, Resource::StorageClass)),
    (Resource::CsiNode, |s, i| s.watch::<CSINode>(i, Resource::CsiNode)),
    (Resource::CsiDriver, |s, i| s.watch::<CSIDriver>(i, Resource::CsiDriver)),
    (Resource::CsiStorageCapacity, |s, i| s.watch::<CSIStorageCapacity>(i, Resource::CsiStorageCapacity)),
    (Resource::VolumeAttachment, |s, i| s.watch::<VolumeAttachment>(i, Resource::VolumeAttachment)),
    (Resource::ResourceClaim, |s, i| s.watch::<ResourceClaim>(i, Resource::ResourceClaim)),
    (Resource::DeviceClass, |s, i| s.watch::<DeviceClass>(i, Resource::DeviceClass)),
    (Resource::ResourceSlice, |s, i| {
        s.watch::<ResourceSlice>(i, Resource::ResourceSlice);
        s.watch_taint_rules(i);
    }),
];

impl Scheduler {
    /// Watches those of the kinds that at least one plugin is interested in.
    pub(crate) fn watch_others(self: &Arc<Self>, informers: &Informers) {
        for (resource, watch) in WATCHED {
            if self.profiles.listen_to(ClusterEvent::new(*resource, Action::ALL)) {
                watch(self, informers);
            }
        }
    }

    /// Watches DeviceTaintRules. They put taints on devices: for waiting pods this is a change of ResourceSlices.
    fn watch_taint_rules(self: &Arc<Self>, informers: &Informers) {
        let scheduler = Arc::clone(self);
        informers.informer::<DeviceTaintRule>().add_handler(move |_| {
            let (happened, now) =
                (ClusterEvent::new(Resource::ResourceSlice, Action::UPDATE), scheduler.now());
            scheduler.lock().queue.on_event(&scheduler.profiles, happened, &Changed::default(), now);
            scheduler.wake.notify_one();
        });
    }

    fn watch<K: Kind>(self: &Arc<Self>, informers: &Informers, resource: Resource) {
        let scheduler = Arc::clone(self);
        informers.informer::<K>().add_handler(move |event| {
            let (action, change) = match event {
                Event::Added(new) => (Action::ADD, Changed::of(None, Some(Arc::clone(new)))),
                Event::Updated { old, new } => {
                    (Action::UPDATE, Changed::of(Some(Arc::clone(old)), Some(Arc::clone(new))))
                }
                Event::Deleted(old) => (Action::DELETE, Changed::of(Some(Arc::clone(old)), None)),
            };
            let happened = ClusterEvent::new(resource, action);
            if !scheduler.profiles.listen_to(happened) {
                return;
            }
            let now = scheduler.now();
            scheduler.lock().queue.on_event(&scheduler.profiles, happened, &change, now);
            scheduler.wake.notify_one();
        });
    }
}

fn is_assigned(pod: &Pod) -> bool {
    pod.spec.as_ref().and_then(|s| s.node_name.as_deref()).is_some_and(|n| !n.is_empty())
}
