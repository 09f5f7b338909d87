//! Pods that Permit plugins make wait between reservation and binding.

use std::collections::{BTreeSet, HashMap};
use std::sync::{Mutex, MutexGuard, PoisonError};

use tokio::sync::oneshot;

use crate::framework::Status;

struct Waiting {
    /// The plugins that have not allowed the pod yet.
    plugins: BTreeSet<&'static str>,
    done: oneshot::Sender<(&'static str, Status)>,
}

/// Waiting pods by uid.
#[derive(Default)]
pub struct WaitingPods(Mutex<HashMap<Box<str>, Waiting>>);

impl WaitingPods {
    /// Makes the pod wait for these plugins. The receiver gets `Success`, or the plugin that rejected the pod with its
    /// status.
    pub fn wait(
        &self,
        uid: &str,
        plugins: BTreeSet<&'static str>,
    ) -> oneshot::Receiver<(&'static str, Status)> {
        let (done, result) = oneshot::channel();
        self.lock().insert(uid.into(), Waiting { plugins, done });
        result
    }

    /// Records that the plugin allows the pod. The pod continues when all plugins have allowed it.
    pub fn allow(&self, uid: &str, plugin: &'static str) {
        let mut waiting = self.lock();
        let Some(pod) = waiting.get_mut(uid) else { return };
        pod.plugins.remove(plugin);
        if pod.plugins.is_empty()
            && let Some(pod) = waiting.remove(uid)
        {
            // The receiver may have been dropped: then the pod waits no more.
            let _ = pod.done.send((plugin, Status::SUCCESS));
        }
    }

    /// Rejects the pod on behalf of the plugin: its reservation is taken back. Returns false when the pod does not
    /// wait.
    pub fn reject(&self, uid: &str, plugin: &'static str, status: Status) -> bool {
        let Some(pod) = self.lock().remove(uid) else { return false };
        let _ = pod.done.send((plugin, status));
        true
    }

    /// The uids of the waiting pods.
    pub fn uids(&self) -> Vec<Box<str>> {
        let mut uids: Vec<_> = self.lock().keys().cloned().collect();
        uids.sort();
        uids
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<Box<str>, Waiting>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pod_goes_on_when_all_plugins_allow_it() {
        let pods = WaitingPods::default();
        let mut result = pods.wait("a", BTreeSet::from(["x", "y"]));
        pods.allow("a", "x");
        assert!(result.try_recv().is_err());
        pods.allow("a", "y");
        assert!(result.try_recv().unwrap().1.is_success());
        assert!(pods.uids().is_empty());
    }

    #[test]
    fn one_rejection_is_enough() {
        let pods = WaitingPods::default();
        let mut result = pods.wait("a", BTreeSet::from(["x", "y"]));
        assert!(pods.reject("a", "y", Status::unschedulable("no")));
        assert_eq!(result.try_recv().unwrap(), ("y", Status::unschedulable("no")));
        assert!(!pods.reject("a", "y", Status::unschedulable("no")));
    }
}
