//! Evictions from unresponsive machines: only after the pod's toleration time, and only from such a machine.

use std::collections::BTreeMap;
use std::time::Duration;

use k8s_openapi::api::core::v1::{Node, Pod};
use knarr_api::kind::Kind;

use super::{MEMORY, Outcome, ensure};
use crate::node::{app, node_of};
use crate::objects::PATIENCE;

/// Node lifecycle and taint eviction act under one account.
const CONTROLLER: &str = "node-controller";

/// When each machine had a NoExecute taint: from, and until when if it was removed.
#[derive(Default)]
pub struct Taints(BTreeMap<String, Vec<(Duration, Option<Duration>)>>);

impl Taints {
    pub fn node(&mut self, node: &Node, deleted: bool, now: Duration) {
        let taints = node.spec.as_ref().and_then(|s| s.taints.as_deref()).unwrap_or_default();
        let tainted = !deleted && taints.iter().any(|t| t.effect == "NoExecute");
        let times = self.0.entry(node.name().to_owned()).or_default();
        match times.last_mut() {
            Some((_, to @ None)) if !tainted => *to = Some(now),
            Some((_, None)) => {}
            _ if tainted => times.push((now, None)),
            _ => {}
        }
    }

    pub fn pod(&self, before: Option<&Pod>, pod: &Pod, by: &str, now: Duration) -> Outcome {
        let going = |p: &Pod| p.metadata.deletion_timestamp.is_some();
        let Some(before) = before.filter(|b| by == CONTROLLER && going(pod) && !going(b)) else {
            return Ok(());
        };
        let node = node_of(before).unwrap_or("");
        // The time of a taint is in whole seconds.
        let patience = if app(pod) == "web" { PATIENCE.unsigned_abs() - 1 } else { 0 };
        let times = self.0.get(node).into_iter().flatten();
        let enough = times.filter(|(_, to)| to.is_none_or(|to| to + MEMORY >= now));
        let enough = enough.map(|(from, to)| to.unwrap_or(now).saturating_sub(*from)).max();
        ensure(enough.is_some_and(|d| d >= Duration::from_secs(patience)), || {
            format!("{} was sent away from {node} after {enough:?}", pod.name())
        })
    }
}
