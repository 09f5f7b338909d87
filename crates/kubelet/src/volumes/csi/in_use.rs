//! The attachable volumes that this node uses: `volumesInUse` of its status. A volume is mounted only after it is
//! listed there, and detached only after it is removed from there.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Mutex, PoisonError};

use tokio::sync::watch;

use super::identity::VolumeId;

#[derive(Default)]
struct State {
    /// The volumes that pods have or want, by the pods' uids.
    wanted: BTreeMap<String, BTreeSet<VolumeId>>,
    /// The volumes that are staged on this node.
    staged: BTreeSet<VolumeId>,
}

/// The volumes of this node's pods.
pub struct InUse {
    state: Mutex<State>,
    published: watch::Sender<Option<BTreeSet<String>>>,
}

impl InUse {
    /// Starts with the volumes that an earlier run has left.
    pub fn new(wanted: BTreeMap<String, BTreeSet<VolumeId>>, staged: BTreeSet<VolumeId>) -> Self {
        Self { state: Mutex::new(State { wanted, staged }), published: watch::Sender::new(None) }
    }

    /// The names for the node's status; `None` until it is known which volumes are attachable.
    pub fn names(&self) -> watch::Receiver<Option<BTreeSet<String>>> {
        self.published.subscribe()
    }

    pub fn want(&self, pod_uid: &str, volume: &VolumeId) {
        self.lock().wanted.entry(pod_uid.to_owned()).or_default().insert(volume.clone());
    }

    /// Removes all volumes of the pod.
    pub fn forget(&self, pod_uid: &str) {
        self.lock().wanted.remove(pod_uid);
    }

    pub fn wanted_by(&self, pod_uid: &str) -> BTreeSet<VolumeId> {
        self.lock().wanted.get(pod_uid).cloned().unwrap_or_default()
    }

    /// Returns whether a pod other than this one has or wants the volume.
    pub fn is_wanted_by_others(&self, pod_uid: &str, volume: &VolumeId) -> bool {
        self.lock().wanted.iter().any(|(uid, volumes)| uid != pod_uid && volumes.contains(volume))
    }

    pub fn stage(&self, volume: &VolumeId) {
        self.lock().staged.insert(volume.clone());
    }

    pub fn unstage(&self, volume: &VolumeId) {
        self.lock().staged.remove(volume);
    }

    /// Publishes the names of the volumes in use for which `attachable` returns true.
    pub fn publish(&self, attachable: impl Fn(&VolumeId) -> bool) {
        let names = {
            let state = self.lock();
            let all = state.wanted.values().flatten().chain(&state.staged);
            all.filter(|v| attachable(v)).map(VolumeId::unique_name).collect()
        };
        self.published.send_if_modified(|known| {
            let new = Some(names);
            let news = *known != new;
            *known = new;
            news
        });
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_volume_is_in_use_until_nobody_wants_it_and_it_is_not_staged() {
        let (a, b) = (VolumeId::new("d", "a"), VolumeId::new("other", "b"));
        let in_use = InUse::new([("left".to_owned(), [a.clone()].into())].into(), [a.clone()].into());
        let names = in_use.names();
        assert_eq!(*names.borrow(), None);
        let publish = || {
            in_use.publish(|v| v.driver == "d");
            names.borrow().clone().unwrap().len()
        };
        assert_eq!(publish(), 1);
        in_use.want("p", &a);
        in_use.want("p", &b);
        assert!(in_use.is_wanted_by_others("p", &a) && !in_use.is_wanted_by_others("p", &b));
        in_use.forget("left");
        in_use.unstage(&a);
        assert_eq!(publish(), 1);
        assert_eq!(in_use.wanted_by("p"), [a, b].into());
        in_use.forget("p");
        assert_eq!(publish(), 0);
    }
}
