//! What must hold in the end: the state of the cluster matches its objects.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use k8s_openapi::api::apps::v1::{ControllerRevision, DaemonSet, Deployment, ReplicaSet, StatefulSet};
use k8s_openapi::api::batch::v1::{CronJob, Job};
use k8s_openapi::api::core::v1::{Namespace, Node, PersistentVolumeClaim, Pod, PodSpec, ResourceQuota};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use knarr_api::kind::Kind;
use knarr_testing::FakeApi;

use super::jobs::{counted, has_condition};
use super::{Checks, Outcome, controller, ensure};
use crate::front::Front;
use crate::node::{app, is_ready, node_of};
use crate::objects::{
    BACKOFF_LIMIT, BOUNDED, COMPLETIONS, DOOMED, FATAL, GUARDED, NAMESPACE, QUOTA, SCALED, SCALES, TARGET,
};
use crate::user::User;

struct Cluster {
    pods: Vec<Arc<Pod>>,
}

fn image(spec: Option<&PodSpec>) -> Option<&str> {
    spec?.containers.first()?.image.as_deref()
}

impl Cluster {
    /// Checks that all pods of an app are ready and have this image; returns their number.
    fn all_ready(&self, name: &str, wanted: Option<&str>) -> Result<i32, String> {
        let pods: Vec<_> = self.pods.iter().filter(|p| app(p) == name).collect();
        let ready = pods.iter().filter(|p| is_ready(p)).count();
        ensure(ready == pods.len(), || format!("{ready} of {} pods of {name} are ready", pods.len()))?;
        let new = |p: &&&Arc<Pod>| wanted.is_none() || image(p.spec.as_ref()) == wanted;
        let new = pods.iter().filter(new).count();
        ensure(new == pods.len(), || format!("{new} of {} pods of {name} are of {wanted:?}", pods.len()))?;
        Ok(i32::try_from(ready).unwrap_or(i32::MAX))
    }
}

fn get<K: Kind>(api: &FakeApi, name: &str) -> Result<K, String> {
    api.get::<K>(NAMESPACE, name).ok_or_else(|| format!("{} {name} is gone", K::RESOURCE.kind))
}

pub fn at_rest(checks: &Checks, api: &FakeApi, front: &Front, user: &User) -> Outcome {
    let cluster = Cluster { pods: api.every::<Pod>() };
    deployment(api, &cluster)?;
    stateful_set(api, &cluster, "db")?;
    stateful_set(api, &cluster, "cache")?;
    daemon_set(api, &cluster, "agent")?;
    daemon_set(api, &cluster, "relay")?;
    let guarded = cluster.all_ready("guarded", None)?;
    ensure(guarded as usize == GUARDED, || format!("{guarded} guarded pods"))?;
    deleted(api, &cluster, user)?;
    doomed(api, &cluster, user)?;
    autoscaled(api, &cluster, front)?;
    quota(api, &cluster)?;
    jobs(checks, api)?;
    owners_exist(api)
}

fn deployment(api: &FakeApi, cluster: &Cluster) -> Outcome {
    let web: Deployment = get(api, "web")?;
    let ready = cluster.all_ready("web", image(web.spec.template.spec.as_ref()))?;
    ensure(Some(ready) == web.spec.replicas, || {
        format!("{ready} pods of the Deployment, {:?} wanted", web.spec.replicas)
    })?;
    let status = web.status.unwrap_or_default();
    let shown = (status.updated_replicas, status.available_replicas, status.replicas);
    ensure(shown == (web.spec.replicas, web.spec.replicas, web.spec.replicas), || {
        format!("the Deployment's status: {status:?}")
    })
}

fn stateful_set(api: &FakeApi, cluster: &Cluster, name: &str) -> Outcome {
    let set: StatefulSet = get(api, name)?;
    cluster.all_ready(name, image(set.spec.template.spec.as_ref()))?;
    let of = |p: &&Arc<Pod>| app(p) == name;
    let names: BTreeSet<&str> = cluster.pods.iter().filter(of).map(|p| p.name()).collect();
    let wanted = set.spec.replicas.unwrap_or(1);
    let expected: BTreeSet<String> = (0..wanted).map(|n| format!("{name}-{n}")).collect();
    ensure(names.iter().copied().eq(expected.iter().map(String::as_str)), || {
        format!("pods of StatefulSet {name}: {names:?}, wanted {expected:?}")
    })?;
    let claims = api.every::<PersistentVolumeClaim>();
    let has = |n: i32| claims.iter().any(|c| c.name() == format!("data-{name}-{n}"));
    ensure((0..wanted).all(has), || format!("StatefulSet {name} lacks claims"))
}

fn daemon_set(api: &FakeApi, cluster: &Cluster, name: &str) -> Outcome {
    let set: DaemonSet = get(api, name)?;
    cluster.all_ready(name, image(set.spec.template.spec.as_ref()))?;
    let of: Vec<_> = cluster.pods.iter().filter(|p| app(p) == name).collect();
    let on: BTreeSet<&str> = of.iter().filter_map(|p| node_of(p)).collect();
    let nodes = api.every::<Node>();
    let everywhere = nodes.iter().map(|n| n.name()).eq(on.iter().copied()) && on.len() == of.len();
    ensure(everywhere, || format!("{} pods of DaemonSet {name} on {on:?}", of.len()))
}

/// Checks that nothing is left of a deleted Deployment, or that its dependents are left if they were to be
/// orphaned.
fn deleted(api: &FakeApi, cluster: &Cluster, user: &User) -> Outcome {
    let pods = |name: &str| cluster.pods.iter().filter(|p| app(p) == name).count();
    let sets = api.every::<ReplicaSet>();
    let of = |name: &'static str| sets.iter().filter(move |s| s.name().starts_with(name));
    ensure(!user.deleted || (pods("gone") == 0 && of("gone").count() == 0), || {
        format!("{} pods and {} sets are left of a deleted Deployment", pods("gone"), of("gone").count())
    })?;
    ensure(pods("kept") == 4 && of("kept").count() == 1, || {
        format!("{} pods and {} sets of what was to be kept", pods("kept"), of("kept").count())
    })?;
    let orphans = of("kept").filter(|s| controller(&s.metadata).is_none()).count();
    ensure((orphans == 1) == user.orphaned, || "the set has the wrong owner".to_owned())
}

/// Checks that nothing is left of a deleted namespace, and that another one has what belongs in it.
fn doomed(api: &FakeApi, cluster: &Cluster, user: &User) -> Outcome {
    if !user.doomed {
        let there = (cluster.all_ready("lost", None)?, cluster.all_ready("left", None)?);
        return ensure(there == (4, 3), || format!("{there:?} pods in the other namespace"));
    }
    ensure(api.get::<Namespace>("", DOOMED).is_none(), || "the namespace has not gone".to_owned())?;
    let left = api.objects_in(DOOMED);
    ensure(left.is_empty(), || format!("left in the namespace: {left:?}"))
}

/// Checks that there are as many pods as the load requires, within the bounds.
fn autoscaled(api: &FakeApi, cluster: &Cluster, front: &Front) -> Outcome {
    let scaled: Deployment = get(api, SCALED)?;
    let ready = cluster.all_ready(SCALED, None)?;
    let load = front.load.load(Ordering::SeqCst);
    let wanted = i32::try_from(load / TARGET).unwrap_or(i32::MAX).clamp(SCALES.0, SCALES.1);
    ensure(Some(ready) == scaled.spec.replicas && ready == wanted, || {
        format!("{ready} pods for a load of {load}, {:?} wanted", scaled.spec.replicas)
    })
}

/// Checks that the quota's usage matches the objects, and that it refuses nothing that fits.
fn quota(api: &FakeApi, cluster: &Cluster) -> Outcome {
    let there = cluster.all_ready(BOUNDED, None)?;
    let quota = api.get::<ResourceQuota>(BOUNDED, BOUNDED).and_then(|q| q.status).unwrap_or_default();
    let used = quota.used.as_ref().and_then(|u| u.get("pods")).map(|q| q.0.as_str());
    ensure(used == Some(&there.to_string()), || format!("{used:?} pods are charged, and {there} are there"))?;
    let set = api.get::<ReplicaSet>(BOUNDED, BOUNDED).ok_or("the bounded ReplicaSet is gone")?;
    let wanted = set.spec.replicas.unwrap_or(1).min(QUOTA);
    ensure(there == wanted, || format!("{there} pods under the quota, {wanted} possible"))
}

fn jobs(checks: &Checks, api: &FakeApi) -> Outcome {
    for name in ["batch", "indexed"] {
        let job: Job = get(api, name)?;
        let ends = checks.jobs.ends(job.uid());
        let status = job.status.unwrap_or_default();
        ensure(has_condition(&status, "Complete"), || format!("Job {name} is not complete: {status:?}"))?;
        let said = counted(&status);
        ensure(said == (ends.succeeded.len(), ends.failed.len()) && said.0 == COMPLETIONS as usize, || {
            format!(
                "Job {name} counts {said:?} successes and failures; there were {} and {}",
                ends.succeeded.len(),
                ends.failed.len()
            )
        })?;
    }
    let limited: Job = get(api, "limited")?;
    let status = limited.status.unwrap_or_default();
    let failed = counted(&status).1 as i32;
    let reason = status.conditions.iter().flatten().find(|c| c.type_ == "Failed" && c.status == "True");
    match reason.and_then(|c| c.reason.as_deref()) {
        None => {
            ensure(has_condition(&status, "Complete"), || {
                format!("the limited Job is not over: {status:?}")
            })?;
            ensure(failed <= BACKOFF_LIMIT, || format!("the limited Job succeeded with {failed} failures"))?;
        }
        Some("BackoffLimitExceeded") => {
            ensure(failed > BACKOFF_LIMIT, || format!("the limited Job failed with {failed} failures"))?;
        }
        Some("PodFailurePolicy") => {
            let why = reason.and_then(|c| c.message.as_deref()).unwrap_or("");
            ensure(why.contains(&format!("exit code {FATAL}")), || format!("the limited Job failed: {why}"))?;
        }
        Some(other) => return Err(format!("the limited Job failed: {other}")),
    }
    ensure(api.get::<CronJob>(NAMESPACE, "cron").is_some(), || "the CronJob is gone".to_owned())
}

/// Checks that all owners exist.
fn owners_exist(api: &FakeApi) -> Outcome {
    fn all<K: Kind>(api: &FakeApi, into: &mut Vec<(&'static str, ObjectMeta)>) {
        into.extend(api.every::<K>().iter().map(|o| (K::RESOURCE.kind, o.meta().clone())));
    }
    let mut there = Vec::new();
    all::<ControllerRevision>(api, &mut there);
    all::<CronJob>(api, &mut there);
    all::<DaemonSet>(api, &mut there);
    all::<Deployment>(api, &mut there);
    all::<Job>(api, &mut there);
    all::<PersistentVolumeClaim>(api, &mut there);
    all::<Pod>(api, &mut there);
    all::<ReplicaSet>(api, &mut there);
    all::<StatefulSet>(api, &mut there);
    let uids: BTreeSet<&str> = there.iter().filter_map(|(_, m)| m.uid.as_deref()).collect();
    for (kind, meta) in &there {
        let lost = meta.owner_references.iter().flatten().find(|o| !uids.contains(o.uid.as_str()));
        ensure(lost.is_none(), || format!("{kind} {:?} is left of {lost:?}", meta.name))?;
    }
    Ok(())
}
