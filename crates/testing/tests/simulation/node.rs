//! The simulated machines: pods start, run and end each at their own pace, and a machine can be cut off or
//! die.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::{Node, PersistentVolume, PersistentVolumeClaim, Pod};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{DeleteOptions, MicroTime, Preconditions, Time};
use knarr_api::kind::{Kind, ObjectKey};
use knarr_testing::FakeApi;
use serde_json::{Value, json};

use crate::objects::{FATAL, LEASES, NODES, add_node};

/// This fraction of a job's pods fails, and this fraction of the limited Job's failures is fatal.
const FAILING: f64 = 0.2;
const FATALLY: f64 = 0.2;
/// How often a machine renews its lease.
const RENEW: Duration = Duration::from_secs(10);
/// How long a dead machine's Node stays until the user removes it.
const NOTICED: Duration = Duration::from_secs(70);
/// The most machines of a run; until then, new ones join.
const MACHINES: usize = 5;
/// Longer than node lifecycle waits for a lease.
const CUT: Duration = Duration::from_secs(75);
const JOBS: [&str; 4] = ["batch", "cron", "indexed", "limited"];

#[derive(Clone, Copy, PartialEq)]
enum State {
    Up,
    /// Its kubelet has no connection; its containers keep running.
    CutUntil(Duration),
    /// Nothing runs on it any more.
    DeadSince(Duration),
}

struct Machine {
    state: State,
    /// The factor by which it is slower than others.
    slow: f64,
    renew: Duration,
}

pub struct Machines {
    rng: fastrand::Rng,
    machines: BTreeMap<String, Machine>,
    /// Until when a machine may fail, if machines do.
    failing_until: Option<Duration>,
    next_failure: Duration,
    /// When the next machine joins.
    joins: Duration,
    made: usize,
    /// When the next event of a pod is due, by uid.
    due: BTreeMap<String, Duration>,
    /// The running processes: uids by the pod's name.
    pub running: BTreeMap<String, BTreeSet<String>>,
}

pub fn phase(pod: &Pod) -> &str {
    pod.status.as_ref().and_then(|s| s.phase.as_deref()).unwrap_or("")
}

pub fn app(pod: &Pod) -> &str {
    pod.metadata.labels.as_ref().and_then(|l| l.get("app")).map_or("", String::as_str)
}

pub fn has_ended(pod: &Pod) -> bool {
    matches!(phase(pod), "Succeeded" | "Failed")
}

pub fn is_active(pod: &Pod) -> bool {
    pod.metadata.deletion_timestamp.is_none() && !has_ended(pod)
}

pub fn is_ready(pod: &Pod) -> bool {
    let conditions = pod.status.as_ref().and_then(|s| s.conditions.as_ref());
    is_active(pod) && conditions.into_iter().flatten().any(|c| c.type_ == "Ready" && c.status == "True")
}

pub fn node_of(pod: &Pod) -> Option<&str> {
    pod.spec.as_ref()?.node_name.as_deref()
}

impl Machines {
    pub fn new(mut rng: fastrand::Rng, failing_until: Option<Duration>) -> Self {
        let mut machine = || Machine {
            state: State::Up,
            slow: if rng.f64() < 0.2 { 4.0 } else { 1.0 },
            renew: Duration::ZERO,
        };
        let machines = NODES.iter().map(|n| ((*n).to_owned(), machine())).collect();
        let joins = Duration::from_secs_f64(20.0 + rng.f64() * 150.0);
        Self {
            rng,
            joins,
            machines,
            failing_until,
            next_failure: Duration::from_secs(25),
            made: NODES.len(),
            due: BTreeMap::new(),
            running: BTreeMap::new(),
        }
    }

    pub async fn tick(&mut self, api: &Arc<FakeApi>, now: Duration) -> Result<(), String> {
        self.fail(api, now);
        if now >= self.joins && self.made < MACHINES {
            self.joins = now + Duration::from_secs_f64(self.rng.f64() * 100.0);
            self.join(api, now);
        }
        self.report(api, now);
        provision(api);
        let pods = api.every::<Pod>();
        let there: BTreeSet<&str> = pods.iter().map(|p| p.uid()).collect();
        self.due.retain(|uid, _| there.contains(uid.as_str()));
        for pod in &pods {
            let Some(machine) = node_of(pod).and_then(|n| self.machines.get(n)) else { continue };
            if machine.state != State::Up {
                continue;
            }
            let wait = Duration::from_secs_f64((0.1 + self.rng.f64() * 3.0) * machine.slow);
            let due = *self.due.entry(pod.uid().to_owned()).or_insert(now + wait);
            if due > now {
                continue;
            }
            self.due.insert(pod.uid().to_owned(), now + wait);
            self.advance(api, pod).await?;
        }
        // A kubelet ends pods that the API no longer has; a machine that is cut off learns of it later.
        let machines = &self.machines;
        let cut = machines.values().any(|m| matches!(m.state, State::CutUntil(_)));
        if !cut {
            self.running.values_mut().for_each(|uids| uids.retain(|uid| there.contains(uid.as_str())));
        }
        Ok(())
    }

    /// Sometimes cuts off or kills a machine, one at a time; a dead one is replaced by another.
    fn fail(&mut self, api: &Arc<FakeApi>, now: Duration) {
        let back =
            self.machines.iter_mut().filter(|(_, m)| matches!(m.state, State::CutUntil(at) if at <= now));
        for (name, machine) in back {
            machine.state = State::Up;
            machine.renew = now;
            set_ready(api, name);
        }
        let gone = |m: &Machine| matches!(m.state, State::DeadSince(at) if at + NOTICED <= now);
        let lost: Vec<String> =
            self.machines.iter().filter(|(_, m)| gone(m)).map(|(n, _)| n.clone()).collect();
        for name in lost {
            self.machines.remove(&name);
            api.remove::<Node>("", &name);
            api.remove::<Lease>(LEASES, &name);
            self.join(api, now);
        }
        if now < self.next_failure || self.failing_until.is_none_or(|until| now >= until) || !self.all_up() {
            return;
        }
        self.next_failure = now + Duration::from_secs_f64(10.0 + self.rng.f64() * 60.0);
        let at = self.rng.usize(..self.machines.len());
        let (dies, leaves) = (self.rng.f64() < 0.5, self.rng.f64() < 0.3);
        let Some((name, machine)) = self.machines.iter_mut().nth(at) else { return };
        if dies {
            // A machine that leaves is removed from the cluster at once.
            machine.state = State::DeadSince(if leaves { now.saturating_sub(NOTICED) } else { now });
            let there: BTreeSet<String> = api
                .every::<Pod>()
                .iter()
                .filter(|p| node_of(p) == Some(name))
                .map(|p| p.uid().to_owned())
                .collect();
            self.running.values_mut().for_each(|uids| uids.retain(|uid| !there.contains(uid)));
        } else {
            machine.state = State::CutUntil(now + CUT.mul_f64(0.2 + self.rng.f64()));
        }
    }

    fn join(&mut self, api: &Arc<FakeApi>, now: Duration) {
        self.made += 1;
        let name = format!("n{}", self.made);
        add_node(api, &name);
        self.machines.insert(name, Machine { state: State::Up, slow: 1.0, renew: now });
    }

    pub fn all_up(&self) -> bool {
        self.machines.values().all(|m| m.state == State::Up)
    }

    fn report(&mut self, api: &Arc<FakeApi>, now: Duration) {
        let wall = api.client().clock().now();
        for (name, machine) in
            self.machines.iter_mut().filter(|(_, m)| m.state == State::Up && m.renew <= now)
        {
            machine.renew = now + RENEW;
            api.edit::<Lease>(LEASES, name, |lease| {
                lease.spec.get_or_insert_default().renew_time = Some(MicroTime(wall));
            });
            let unknown = api.get::<Node>("", name).and_then(|n| n.status?.conditions);
            if unknown.is_some_and(|c| c.iter().any(|c| c.type_ == "Ready" && c.status != "True")) {
                set_ready(api, name);
            }
        }
    }

    async fn advance(&mut self, api: &Arc<FakeApi>, pod: &Pod) -> Result<(), String> {
        let (name, uid) = (pod.name(), pod.uid().to_owned());
        let now = api.client().clock().now();
        let is_job = JOBS.contains(&app(pod));
        if pod.metadata.deletion_timestamp.is_some() {
            self.end(api, pod, is_job).await;
        } else if !matches!(phase(pod), "Running" | "Succeeded" | "Failed") {
            let uids = self.running.entry(name.to_owned()).or_default();
            uids.insert(uid);
            if uids.len() > 1 {
                return Err(format!("{name} runs twice: {uids:?}"));
            }
            set(api, &pod.key(), "Running", None, now);
        } else if phase(pod) == "Running" && !is_ready(pod) {
            // The pod was considered lost with its machine.
            set(api, &pod.key(), "Running", None, now);
        } else if phase(pod) == "Running" && is_job {
            let fails = self.rng.f64() < FAILING;
            let fatal = fails && app(pod) == "limited" && self.rng.f64() < FATALLY;
            let code = if fatal { FATAL } else { i32::from(fails) };
            self.stop(pod);
            set(api, &pod.key(), if fails { "Failed" } else { "Succeeded" }, Some(code), now);
        }
        Ok(())
    }

    fn stop(&mut self, pod: &Pod) {
        if let Some(uids) = self.running.get_mut(pod.name()) {
            uids.remove(pod.uid());
        }
    }

    /// Stops a pod that is being deleted, reports how it ended, and removes it.
    async fn end(&mut self, api: &Arc<FakeApi>, pod: &Pod, is_job: bool) {
        self.stop(pod);
        if is_job && !has_ended(pod) {
            return set(api, &pod.key(), "Failed", Some(143), api.client().clock().now());
        }
        let options = DeleteOptions {
            grace_period_seconds: Some(0),
            preconditions: Some(Preconditions { uid: Some(pod.uid().to_owned()), resource_version: None }),
            ..DeleteOptions::default()
        };
        // The pod may have been removed meanwhile.
        let _ = api.client().delete::<Pod>(pod.namespace(), pod.name(), &options).await;
    }
}

/// Binds claims to volumes that can be used on all nodes.
fn provision(api: &Arc<FakeApi>) {
    for claim in api.every::<PersistentVolumeClaim>() {
        if claim.spec.as_ref().is_none_or(|s| s.volume_name.is_some()) {
            continue;
        }
        let volume = format!("pv-{}", claim.uid());
        let of = json!({"kind": "PersistentVolumeClaim", "namespace": claim.namespace(), "name": claim.name(), "uid": claim.uid()});
        let spec = json!({"capacity": {"storage": "1Gi"}, "accessModes": ["ReadWriteOnce"], "claimRef": of});
        let object = json!({"metadata": {"name": volume}, "spec": spec, "status": {"phase": "Bound"}});
        api.add::<PersistentVolume>(&serde_json::from_value(object).expect("a volume"));
        api.edit::<PersistentVolumeClaim>(claim.namespace(), claim.name(), |c| {
            c.spec.get_or_insert_default().volume_name = Some(volume);
            let bound = "pv.kubernetes.io/bind-completed".to_owned();
            c.metadata.annotations.get_or_insert_default().insert(bound, "yes".to_owned());
            c.status.get_or_insert_default().phase = Some("Bound".to_owned());
        });
    }
}

fn set_ready(api: &Arc<FakeApi>, name: &str) {
    api.edit::<Node>("", name, |node| {
        for condition in node.status.get_or_insert_default().conditions.iter_mut().flatten() {
            if condition.type_ == "Ready" {
                "True".clone_into(&mut condition.status);
                condition.reason = Some("KubeletReady".to_owned());
            }
        }
    });
}

/// Sets a pod's status as a kubelet does: the phase, and the exit code of its container.
pub fn set(api: &Arc<FakeApi>, pod: &ObjectKey, phase: &str, exit: Option<i32>, now: Timestamp) {
    let ready = if phase == "Running" { "True" } else { "False" };
    api.edit::<Pod>(&pod.namespace, &pod.name, |pod| {
        let status = pod.status.get_or_insert_default();
        status.phase = Some(phase.to_owned());
        status.start_time.get_or_insert(Time(now));
        let condition: Value = json!({"type": "Ready", "status": ready, "lastTransitionTime": now.to_string()});
        let conditions = status.conditions.get_or_insert_default();
        conditions.retain(|c| c.type_ != "Ready");
        conditions.push(serde_json::from_value(condition).expect("a condition"));
        if let Some(code) = exit {
            let ended = json!({"exitCode": code, "finishedAt": now.to_string()});
            let container = json!({"name": "c", "image": "i", "imageID": "", "ready": false, "restartCount": 0,
                "state": {"terminated": ended}});
            status.container_statuses = Some(vec![serde_json::from_value(container).expect("a status")]);
        }
    });
}
