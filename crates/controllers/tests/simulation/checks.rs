//! What must hold at every moment, and what must have come about in the end.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::api::apps::v1::{DaemonSet, Deployment, ReplicaSet, StatefulSet};
use k8s_openapi::api::batch::v1::Job;
use k8s_openapi::api::core::v1::Pod;
use knarr_api::kind::Kind;
use knarr_testing::FakeApi;

use crate::node::{Node, app, is_active, is_ready};
use crate::objects::{COMPLETIONS, KEPT, NAMESPACE, NODES, PARALLELISM, SURGE, UNAVAILABLE};
use crate::user::User;

/// How long a controller may act on what it saw before.
const MEMORY: Duration = Duration::from_secs(30);

/// The numbers that were wanted lately.
#[derive(Default)]
struct Recent(Vec<(Duration, i32)>);

impl Recent {
    fn note(&mut self, now: Duration, value: i32) {
        self.0.push((now, value));
        self.0.retain(|(at, _)| *at + MEMORY >= now);
    }

    fn most(&self) -> i32 {
        self.0.iter().map(|(_, v)| *v).max().unwrap_or(0)
    }

    fn least(&self) -> i32 {
        self.0.iter().map(|(_, v)| *v).min().unwrap_or(0)
    }
}

#[derive(Default)]
pub struct Checks {
    sets: BTreeMap<String, Recent>,
    web: Recent,
    web_was_up: bool,
    guarded_was_up: bool,
}

fn owner(pod: &Pod) -> &str {
    pod.metadata.owner_references.iter().flatten().next().map_or("", |o| o.uid.as_str())
}

fn ensure(holds: bool, why: impl FnOnce() -> String) -> Result<(), String> {
    if holds { Ok(()) } else { Err(why()) }
}

fn count(pods: &[Pod], holds: impl Fn(&&Pod) -> bool) -> i32 {
    i32::try_from(pods.iter().filter(holds).count()).unwrap_or(i32::MAX)
}

impl Checks {
    pub fn tick(&mut self, api: &Arc<FakeApi>, node: &Node, now: Duration) -> Result<(), String> {
        let pods = api.all::<Pod>();
        for set in api.all::<ReplicaSet>() {
            let recent = self.sets.entry(set.uid().to_owned()).or_default();
            recent.note(now, set.spec.replicas.unwrap_or(1));
            let (active, most) = (count(&pods, |p| owner(p) == set.uid() && is_active(p)), recent.most());
            ensure(active <= most, || format!("{active} pods of ReplicaSet {}, {most} wanted", set.name()))?;
        }
        self.rollout(api, &pods, now)?;
        let batch = count(&pods, |p| app(p) == "batch" && is_active(p));
        ensure(batch <= PARALLELISM, || format!("{batch} pods of the Job at a time"))?;
        if let Some(status) = api.get::<Job>(NAMESPACE, "batch").and_then(|j| j.status) {
            let (said, known) = (status.succeeded.unwrap_or(0), node.succeeded.len() as i32);
            ensure(said <= known, || format!("the Job counts {said} successes of {known}"))?;
            let (said, known) = (status.failed.unwrap_or(0), node.failed.len() as i32);
            ensure(said <= known, || format!("the Job counts {said} failures of {known}"))?;
        }
        for name in NODES {
            let on = |p: &&Pod| p.spec.as_ref().and_then(|s| s.node_name.as_deref()) == Some(name);
            let agents = count(&pods, |p| app(p) == "agent" && is_active(p) && on(p));
            ensure(agents <= 1, || format!("{agents} pods of the DaemonSet on {name}"))?;
        }
        for (name, uids) in &node.running {
            ensure(uids.len() <= 1 || !name.starts_with("db-"), || format!("{name} runs twice: {uids:?}"))?;
        }
        let guarded = count(&pods, |p| app(p) == "guarded" && is_ready(p)) as usize;
        self.guarded_was_up |= guarded == 3;
        ensure(!self.guarded_was_up || guarded >= KEPT, || {
            format!("evictions left {guarded} pods where the budget keeps {KEPT}")
        })
    }

    /// Never more pods than wanted and the surge, never fewer ready ones than the rollout may take.
    fn rollout(&mut self, api: &Arc<FakeApi>, pods: &[Pod], now: Duration) -> Result<(), String> {
        let Some(web) = api.get::<Deployment>(NAMESPACE, "web") else { return Ok(()) };
        self.web.note(now, web.spec.replicas.unwrap_or(1));
        let (active, most) = (count(pods, |p| app(p) == "web" && is_active(p)), self.web.most() + SURGE);
        ensure(active <= most, || format!("{active} pods of the Deployment, {most} at most"))?;
        let (ready, least) =
            (count(pods, |p| app(p) == "web" && is_ready(p)), self.web.least() - UNAVAILABLE);
        self.web_was_up |= ready >= web.spec.replicas.unwrap_or(1);
        ensure(!self.web_was_up || ready >= least, || format!("{ready} ready pods, {least} at least"))
    }

    pub fn at_rest(&self, api: &Arc<FakeApi>, node: &Node, user: &User) -> Result<(), String> {
        let pods = api.all::<Pod>();
        let of =
            |name: &str| -> Vec<&Pod> { pods.iter().filter(|p| app(p) == name && is_ready(p)).collect() };
        let image = |p: &&Pod| p.spec.as_ref().and_then(|s| s.containers[0].image.clone());
        let web = api.get::<Deployment>(NAMESPACE, "web").ok_or("the Deployment is gone")?;
        let wanted = web.spec.template.spec.as_ref().and_then(|s| s.containers[0].image.clone());
        let ready = of("web");
        let all = count(&pods, |p| app(p) == "web");
        ensure(ready.len() as i32 == web.spec.replicas.unwrap_or(1) && all == ready.len() as i32, || {
            format!(
                "{} ready pods and {all} in all of the Deployment, {:?} wanted",
                ready.len(),
                web.spec.replicas
            )
        })?;
        ensure(ready.iter().all(|p| image(p) == wanted), || "old pods of the Deployment".to_owned())?;
        let status = web.status.unwrap_or_default();
        ensure(status.updated_replicas == web.spec.replicas, || {
            format!("the Deployment's status: {status:?}")
        })?;
        let db = api.get::<StatefulSet>(NAMESPACE, "db").ok_or("the StatefulSet is gone")?;
        let wanted = db.spec.template.spec.as_ref().and_then(|s| s.containers[0].image.clone());
        let names: BTreeSet<&str> = of("db").iter().map(|p| p.name()).collect();
        let expected: Vec<String> = (0..db.spec.replicas.unwrap_or(1)).map(|n| format!("db-{n}")).collect();
        ensure(names.iter().copied().eq(expected.iter().map(String::as_str)), || {
            format!("pods of the StatefulSet: {names:?}, wanted {expected:?}")
        })?;
        ensure(of("db").iter().all(|p| image(p) == wanted), || "old pods of the StatefulSet".to_owned())?;
        let agent = api.get::<DaemonSet>(NAMESPACE, "agent").ok_or("the DaemonSet is gone")?;
        let wanted = agent.spec.template.spec.as_ref().and_then(|s| s.containers[0].image.clone());
        ensure(of("agent").len() == NODES.len(), || format!("{} pods of the DaemonSet", of("agent").len()))?;
        ensure(of("agent").iter().all(|p| image(p) == wanted), || "old pods of the DaemonSet".to_owned())?;
        ensure(of("guarded").len() == 3, || format!("{} guarded pods", of("guarded").len()))?;
        self.job(api, node)?;
        let gone = count(&pods, |p| app(p) == "gone");
        let sets = api.all::<ReplicaSet>().iter().filter(|s| s.name().starts_with("gone")).count();
        ensure(!user.deleted || (gone == 0 && sets == 0), || format!("{gone} pods and {sets} sets of nobody"))
    }

    fn job(&self, api: &Arc<FakeApi>, node: &Node) -> Result<(), String> {
        let status = api.get::<Job>(NAMESPACE, "batch").and_then(|j| j.status).unwrap_or_default();
        let complete =
            status.conditions.iter().flatten().any(|c| c.type_ == "Complete" && c.status == "True");
        ensure(complete, || format!("the Job is not complete: {status:?}"))?;
        let (succeeded, failed) = (node.succeeded.len() as i32, node.failed.len() as i32);
        ensure(status.succeeded == Some(COMPLETIONS) && succeeded == COMPLETIONS, || {
            format!(
                "the Job counts {:?} successes, {succeeded} of {COMPLETIONS} there were",
                status.succeeded
            )
        })?;
        ensure(status.failed.unwrap_or(0) == failed, || {
            format!("the Job counts {:?} failures, {failed} there were", status.failed)
        })
    }
}
