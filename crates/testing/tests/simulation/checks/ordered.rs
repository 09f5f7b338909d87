//! The StatefulSet whose pods are created and deleted in order: each pod after the one before it is ready,
//! the last one deleted first.

use std::collections::BTreeMap;
use std::time::Duration;

use k8s_openapi::api::core::v1::Pod;
use knarr_api::kind::{Kind, ObjectKey};

use super::sets::Recent;
use super::{MEMORY, Outcome, Pods, ensure};
use crate::node::{has_ended, is_ready};
use crate::objects::NAMESPACE;

const CONTROLLER: &str = "statefulset-controller";
const SET: &str = "db";

#[derive(Default)]
pub struct Ordered {
    wanted: Recent,
    /// When the pod of an ordinal was last seen ready.
    ready: BTreeMap<i32, Duration>,
}

fn ordinal(name: &str) -> Option<i32> {
    name.strip_prefix(SET)?.strip_prefix('-')?.parse().ok()
}

impl Ordered {
    pub fn wants(&mut self, now: Duration, replicas: i32) {
        self.wanted.note(now, replicas);
    }

    /// Checks a change of a pod: `before` is its previous state, `pods` are the present pods.
    pub fn pod(&mut self, before: Option<&Pod>, pod: &Pod, by: &str, now: Duration, pods: &Pods) -> Outcome {
        let Some(n) = ordinal(pod.name()) else { return Ok(()) };
        if is_ready(pod) || before.is_some_and(is_ready) {
            self.ready.insert(n, now);
        }
        if by != CONTROLLER {
            return Ok(());
        }
        let Some(before) = before else { return self.comes(n, now, pods) };
        let going = |p: &Pod| p.metadata.deletion_timestamp.is_some();
        if going(pod) && !going(before) && !has_ended(before) { self.goes(n, now, pods) } else { Ok(()) }
    }

    fn was_ready(&self, n: i32, now: Duration, pods: &Pods) -> bool {
        let is = pods.get(&ObjectKey::new(NAMESPACE, &format!("{SET}-{n}"))).is_some_and(|p| is_ready(p));
        is || self.ready.get(&n).is_some_and(|at| *at + MEMORY >= now)
    }

    fn comes(&self, n: i32, now: Duration, pods: &Pods) -> Outcome {
        let unready = (0..n).find(|m| !self.was_ready(*m, now, pods));
        ensure(unready.is_none(), || format!("{SET}-{n} was made before {SET}-{unready:?} was ready"))
    }

    fn goes(&self, n: i32, now: Duration, pods: &Pods) -> Outcome {
        let above = |m: i32| pods.contains_key(&ObjectKey::new(NAMESPACE, &format!("{SET}-{m}")));
        if n >= self.wanted.most(now) {
            let later = (n + 1..n + 10).find(|m| above(*m));
            return ensure(later.is_none(), || format!("{SET}-{n} goes before {SET}-{later:?}"));
        }
        let unready = (n + 1..self.wanted.least(now)).find(|m| !self.was_ready(*m, now, pods));
        ensure(unready.is_none(), || format!("{SET}-{n} is replaced while {SET}-{unready:?} is not ready"))
    }
}
