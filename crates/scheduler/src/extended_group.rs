//! The cycle of a pod group that extenders take part in. It is the cycle of any group, except that extenders are called
//! for each pod, one after the other, while the cluster may change.

use std::sync::Arc;
use std::time::Duration;

use crate::extended::{CHANGED, best_left};
use crate::framework::PodInfo;
use crate::metrics::Metric;
use crate::queue::PoppedGroup;
use crate::schedule_group::{Attempted, Found, Placing, Prepared, Verdict};
use crate::schedule_one::Outcome;
use crate::scheduler::{Next, Scheduler};

impl Scheduler {
    pub(crate) async fn extended_group_cycle(self: Arc<Self>, popped: PoppedGroup) {
        // Nothing has been written before the decision, so ending here leaves nothing behind.
        let next = tokio::select! {
            biased;
            () = self.background.ending() => return,
            next = self.extended_group_decision(popped) => next,
        };
        for one in next {
            Arc::clone(&self).carry_on(one).await;
        }
        // The outcome may make other pods schedulable.
        self.wake.notify_one();
    }

    async fn extended_group_decision(&self, popped: PoppedGroup) -> Vec<Next> {
        let _turn = self.extended.lock().await;
        let begun = self.now();
        let prepared = self.prepare_group(&mut self.lock(), popped);
        match prepared {
            Some(prepared) => self.decide_extended_group(prepared, begun).await,
            None => Vec::new(),
        }
    }

    async fn decide_extended_group(&self, prepared: Prepared, begun: Duration) -> Vec<Next> {
        // No pods are preempted for the group: extenders would have to agree to its nodes first, and trial placements
        // do not call them.
        let Some(attempted) = self.attempt(&prepared, false) else { return Vec::new() };
        let (found, verdict) = match prepared.wrong.clone() {
            Some(why) => (Vec::new(), Verdict::Failed(why)),
            None => self.place_extended_group(&attempted).await,
        };
        self.metrics.since(Metric::GroupAlgorithmDuration, &[], begun);
        let mut state = self.lock();
        self.conclude_group(&mut state, &attempted, found, verdict, begun)
    }

    async fn place_extended_group(&self, attempted: &Attempted<'_>) -> (Vec<Found>, Verdict) {
        let mut placing = Placing::begin(attempted);
        for pod in attempted.pods {
            if !placing.goes_on() {
                break;
            }
            let one = self.place_extended_member(attempted, pod).await;
            placing.took(attempted, one);
        }
        self.end_placing(&mut *self.lock(), attempted, placing)
    }

    async fn place_extended_member(&self, attempted: &Attempted<'_>, pod: &Arc<PodInfo>) -> Found {
        if !self.extenders.decide_on(pod) {
            return self.place_member(&mut *self.lock(), attempted, pod);
        }
        let Attempted { at, profile, .. } = *attempted;
        let Some(whole) = self.whole(pod) else { return Found::Failed(CHANGED.to_owned()) };
        let names = match self.feasible_names(at, profile, pod) {
            Ok(names) => names,
            Err(Outcome::NoFit(diagnosis)) => return Found::NoFit(diagnosis),
            Err(Outcome::Failed(why)) => return Found::Failed(why),
            Err(Outcome::Placed(_)) => return Found::NotTried,
        };
        let (filtered, scores) = match self.ask(&whole, &names).await {
            Ok(answers) => answers,
            Err(why) => return Found::Failed(why),
        };
        if filtered.nodes.is_empty() {
            return match self.diagnose_extended(at, pod, &filtered) {
                Ok(diagnosis) => Found::NoFit(Box::new(diagnosis)),
                Err(why) => Found::Failed(why),
            };
        }
        let mut state = self.lock();
        let state = &mut *state;
        if state.queue.get(pod.uid()).is_none() {
            return Found::Failed(CHANGED.to_owned());
        }
        match best_left(state, (at, profile), pod, &filtered.nodes, &scores) {
            Some(node) => {
                let node = state.cache.snapshot().row(node).name().to_owned();
                self.settle(state, attempted, pod, node)
            }
            None => Found::Failed(CHANGED.to_owned()),
        }
    }
}
