//! Which Services have topology hints, and the zones' shares of CPU on which these depend.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use k8s_openapi::api::core::v1::{Node, Service};
use knarr_api::kind::{Kind, ObjectKey};
use knarr_client::events::EventType;

use super::plan::{Plan, ZONE};
use super::topology::{Counts, Shares, hint, is_asked_for};
use crate::support::nodes::is_ready;

const ENABLED: &str = "TopologyAwareHintsEnabled";
const DISABLED: &str = "TopologyAwareHintsDisabled";

#[derive(Default)]
struct State {
    shares: Option<Shares>,
    services: HashMap<ObjectKey, Counts>,
}

/// The Services with topology hints, behind a lock.
#[derive(Default)]
pub struct Hinted(Mutex<State>);

/// An event for a Service: type, reason, message.
pub type HintEvent = (EventType, &'static str, String);

impl Hinted {
    /// Updates the shares from the current nodes; returns the Services whose hints are no longer valid.
    pub fn nodes_changed<'n>(&self, nodes: impl Iterator<Item = &'n Node>) -> Vec<ObjectKey> {
        let shares = Shares::of(nodes);
        let mut state = self.lock();
        let is_bad = |counts: &Counts| shares.as_ref().is_none_or(|shares| shares.overload(counts));
        let bad =
            state.services.iter().filter(|(_, counts)| is_bad(counts)).map(|(key, _)| key.clone()).collect();
        state.shares = shares;
        bad
    }

    /// Adds hints to the plan if the Service requests topology hints.
    pub fn apply(&self, service: &Service, plan: &mut Plan) -> Option<HintEvent> {
        let mut state = self.lock();
        let key = service.key();
        if !is_asked_for(service) {
            let disabled = || (EventType::Warning, DISABLED, text("Topology Aware Hints has been disabled"));
            return state.services.remove(&key).map(|_| disabled());
        }
        match hint(plan, state.shares.as_ref()) {
            Ok(counts) => {
                let is_new = state.services.insert(key, counts).is_none();
                is_new.then(|| (EventType::Normal, ENABLED, text("Topology Aware Hints has been enabled")))
            }
            Err(why) => {
                state.services.remove(&key);
                Some((EventType::Warning, DISABLED, text(&why.to_string())))
            }
        }
    }

    /// Drops a Service that was deleted.
    pub fn forget(&self, service: &ObjectKey) {
        self.lock().services.remove(service);
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Returns whether a node's change can affect hints.
pub fn nodes_differ(old: &Node, new: &Node) -> bool {
    let zone = |node: &Node| node.metadata.labels.as_ref().and_then(|labels| labels.get(ZONE).cloned());
    is_ready(old) != is_ready(new) || zone(old) != zone(new)
}

fn text(what: &str) -> String {
    format!("{what}, addressType: IPv4")
}
