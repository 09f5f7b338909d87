//! Pods that a Permit plugin keeps waiting between their reservation and their binding.

use std::collections::{BTreeSet, HashMap};
use std::sync::{Mutex, MutexGuard, PoisonError};

use tokio::sync::oneshot;

use crate::framework::Status;

struct Waiting {
    /// The plugins that have not allowed the pod yet.
    plugins: BTreeSet<&'static str>,
    done: oneshot::Sender<(&'static str, Status)>,
}

/// By uid.
#[derive(Default)]
pub struct WaitingPods(Mutex<HashMap<Box<str>, Waiting>>);

impl WaitingPods {
    /// Makes the pod wait for these plugins. The receiver gets `Success`, or who rejected it and how.
    pub fn wait(
        &self,
        uid: &str,
        plugins: BTreeSet<&'static str>,
    ) -> oneshot::Receiver<(&'static str, Status)> {
        let (done, result) = oneshot::channel();
        self.lock().insert(uid.into(), Waiting { plugins, done });
        result
    }

    /// The plugin allows the pod; it goes on when all have.
    pub fn allow(&self, uid: &str, plugin: &'static str) {
        let mut waiting = self.lock();
        let Some(pod) = waiting.get_mut(uid) else { return };
        pod.plugins.remove(plugin);
        if pod.plugins.is_empty()
            && let Some(pod) = waiting.remove(uid)
        {
            // A receiver that is gone waits no more.
            let _ = pod.done.send((plugin, Status::SUCCESS));
        }
    }

    /// The plugin rejects the pod: its reservation is taken back. False when it does not wait.
    pub fn reject(&self, uid: &str, plugin: &'static str, status: Status) -> bool {
        let Some(pod) = self.lock().remove(uid) else { return false };
        let _ = pod.done.send((plugin, status));
        true
    }

    /// The uids of the pods that wait.
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
