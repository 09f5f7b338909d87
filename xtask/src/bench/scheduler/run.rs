//! One workload on one side.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use serde_json::{Value, json};

use super::bound::Bound;
use super::shapes::{self, Volume};
use super::sides::ControlPlane;
use super::workloads::{Meanwhile, Pods, Step, Workload};
use crate::http::{Access, Connection};

/// Concurrent requests, as in upstream's suite.
const CLIENTS: usize = 30;
/// A scheduler that binds nothing for this long has failed.
const PATIENCE: Duration = Duration::from_secs(300);

/// How the measured pods are created.
#[derive(Clone, Copy)]
pub enum Arrival {
    /// As fast as possible, while they are scheduled.
    AtOnce,
    /// All before scheduling begins.
    Backlog,
    /// At this rate per second.
    Rate(f64),
}

pub struct Outcome {
    pub pods: usize,
    /// Bindings per second, from the first creation to the last binding; of a backlog, once bindings flow.
    pub per_second: f64,
    /// How long their creation took.
    pub creating: Duration,
    /// The time from the creation of each pod to its binding.
    pub latencies: Vec<Duration>,
    /// The CPU time of API server and scheduler meanwhile.
    pub cpu: Duration,
    /// Their memory at the end, in MB.
    pub memory: f64,
}

pub fn run(
    plane: &mut ControlPlane,
    workload: &Workload,
    shrink: usize,
    arrival: Arrival,
) -> Result<Outcome> {
    let access = plane.access().clone();
    let end = AtomicBool::new(false);
    let bound = Bound::watch(&access)?;
    std::thread::scope(|scope| {
        let mut outcome = None;
        // The background work must end even if a step fails.
        let mut steps = || -> Result<()> {
            for (at, step) in workload.steps.iter().enumerate() {
                let last = at + 1 == workload.steps.len();
                match step {
                    Step::Nodes(count, shape) => nodes(&access, shrunk(*count, shrink), *shape)?,
                    Step::Namespaces(prefix, count) => namespaces(&access, prefix, *count)?,
                    Step::Objects(path, object) => {
                        drop(access.connect()?.json("POST", path, Some(&object()))?)
                    }
                    Step::Pods(pods) if last => {
                        outcome = Some(measure(plane, &access, &bound, pods, shrink, arrival)?);
                    }
                    Step::Pods(pods) => {
                        let names = create(&access, pods, &format!("init-{at}"), shrink, 0.0)?.0;
                        if pods.bound {
                            bound.wait(&names, PATIENCE)?;
                        }
                    }
                    Step::Meanwhile(work, milliseconds) => {
                        let (access, end) = (access.clone(), &end);
                        let every = Duration::from_millis(*milliseconds);
                        scope.spawn(move || meanwhile(&access, work, every, end));
                    }
                }
            }
            Ok(())
        };
        let done = steps();
        end.store(true, Ordering::Relaxed);
        done.map(|()| outcome)
    })?
    .context("the workload measures nothing")
}

fn shrunk(count: usize, by: usize) -> usize {
    (count / by.max(1)).max(1)
}

fn measure(
    plane: &mut ControlPlane,
    access: &Access,
    bound: &Bound,
    pods: &Pods,
    shrink: usize,
    arrival: Arrival,
) -> Result<Outcome> {
    let rate = if let Arrival::Rate(rate) = arrival { rate } else { 0.0 };
    if matches!(arrival, Arrival::Backlog) {
        plane.stop_scheduler()?;
    }
    let mut before = plane.used()?.0;
    let begun = Instant::now();
    let (names, created) = create(access, pods, "measured", shrink, rate)?;
    let creating = begun.elapsed();
    let times = if matches!(arrival, Arrival::Backlog) {
        let watched = Bound::watch(access)?;
        before = plane.used()?.0;
        if plane.resume_scheduler()? {
            before = Duration::ZERO;
            Bound::since_start(access)?.wait(&names, PATIENCE)?
        } else {
            watched.wait(&names, PATIENCE)?
        }
    } else {
        bound.wait(&names, PATIENCE)?
    };
    let (after, memory) = plane.used()?;
    let latencies =
        times.iter().zip(&created).map(|(bound, created)| bound.saturating_duration_since(*created));
    let latencies = latencies.collect();
    let per_second = match arrival {
        Arrival::Backlog => flow(times),
        _ => {
            let last = times.iter().max().copied().context("no pods")?;
            names.len() as f64 / last.saturating_duration_since(begun).as_secs_f64().max(1e-9)
        }
    };
    Ok(Outcome {
        pods: names.len(),
        per_second,
        creating,
        latencies,
        cpu: after.saturating_sub(before),
        memory,
    })
}

/// Returns the bindings per second once they flow: without the start, and without pods that were bound before
/// the watch began.
fn flow(mut times: Vec<Instant>) -> f64 {
    times.sort_unstable();
    let Some((start, last)) = times.get(times.len() / 10).zip(times.last()) else { return 0.0 };
    let rest = times.iter().filter(|at| *at > start).count();
    rest as f64 / last.saturating_duration_since(*start).as_secs_f64().max(1e-9)
}

/// Does the same work with all clients, each on its own connection.
fn parallel(
    access: &Access,
    count: usize,
    work: impl Fn(&mut Connection, usize) -> Result<()> + Sync,
) -> Result<()> {
    let next = AtomicUsize::new(0);
    std::thread::scope(|scope| {
        let (next, work) = (&next, &work);
        let threads: Vec<_> = (0..CLIENTS.min(count))
            .map(|_| {
                scope.spawn(move || -> Result<()> {
                    let mut connection = access.connect()?;
                    loop {
                        let number = next.fetch_add(1, Ordering::Relaxed);
                        if number >= count {
                            return Ok(());
                        }
                        work(&mut connection, number)?;
                    }
                })
            })
            .collect();
        for thread in threads {
            thread.join().ok().context("a client panicked")??;
        }
        Ok(())
    })
}

fn nodes(access: &Access, count: usize, shape: fn(usize) -> Value) -> Result<()> {
    parallel(access, count, |connection, number| {
        let node = shape(number);
        connection.json("POST", "/api/v1/nodes", Some(&node))?;
        if let Some(object) = shapes::csi_node(&node) {
            connection.json("POST", "/apis/storage.k8s.io/v1/csinodes", Some(&object))?;
        }
        Ok(())
    })
}

fn namespaces(access: &Access, prefix: &str, count: usize) -> Result<()> {
    parallel(access, count, |connection, number| {
        let name = format!("{prefix}-{number}");
        let namespace = json!({"apiVersion": "v1", "kind": "Namespace",
            "metadata": {"name": name, "labels": {"team": "devops"}}});
        connection.json("POST", "/api/v1/namespaces", Some(&namespace)).map(drop)
    })
}

/// Creates the pods; returns their names with their namespaces, and when each request was sent. A `rate` of
/// zero stands for as fast as possible.
fn create(
    access: &Access,
    pods: &Pods,
    prefix: &str,
    shrink: usize,
    rate: f64,
) -> Result<(Vec<String>, Vec<Instant>)> {
    let (base, namespaces) = pods.namespace;
    let each = shrunk(pods.count, shrink);
    let place = |number: usize| {
        if namespaces == 1 { base.to_owned() } else { format!("{base}-{}", number / each) }
    };
    let name = |number: usize| format!("{prefix}-{number:06}");
    if pods.volume != Volume::None {
        parallel(access, each * namespaces, |connection, number| {
            let (namespace, name) = (place(number), name(number));
            let (volume, claim) = shapes::bound_volume(pods.volume, &namespace, &name);
            connection.json("POST", "/api/v1/persistentvolumes", Some(&volume))?;
            let path = format!("/api/v1/namespaces/{namespace}/persistentvolumeclaims");
            connection.json("POST", &path, Some(&claim)).map(drop)
        })?;
    }
    let count = each * namespaces;
    let begun = Instant::now();
    let sent: Vec<_> = (0..count).map(|_| std::sync::OnceLock::new()).collect();
    parallel(access, count, |connection, number| {
        let (namespace, name) = (place(number), name(number));
        let mut pod = (pods.shape)(number);
        pod["metadata"]["name"] = json!(name);
        if pods.volume != Volume::None {
            pod = shapes::with_claim(pod, &name);
        }
        let body = pod.to_string();
        if rate > 0.0 {
            let due = Duration::from_secs_f64(number as f64 / rate);
            std::thread::sleep(due.saturating_sub(begun.elapsed()));
        }
        sent[number].get_or_init(Instant::now);
        let path = format!("/api/v1/namespaces/{namespace}/pods");
        connection.send("POST", &path, Some(body.as_bytes())).map(drop)
    })?;
    let names = (0..count).map(|number| format!("{}/{}", place(number), name(number))).collect();
    Ok((names, sent.into_iter().filter_map(std::sync::OnceLock::into_inner).collect()))
}

/// Does work beside the measurement, until its end; failures are only logged.
fn meanwhile(access: &Access, work: &Meanwhile, every: Duration, end: &AtomicBool) {
    let Ok(mut connection) = access.connect() else { return };
    let begun = Instant::now();
    for number in 0.. {
        std::thread::sleep((every * number).saturating_sub(begun.elapsed()));
        if end.load(Ordering::Relaxed) {
            return;
        }
        if let Err(error) = once(&mut connection, work, number as usize) {
            eprintln!("meanwhile: {error:#}");
            match access.connect() {
                Ok(anew) => connection = anew,
                Err(_) => return,
            }
        }
    }
}

fn once(connection: &mut Connection, work: &Meanwhile, number: usize) -> Result<()> {
    const PODS: &str = "/api/v1/namespaces/default/pods";
    const SERVICES: &str = "/api/v1/namespaces/default/services";
    let name = |number: usize| format!("meanwhile-{number:06}");
    let named = |mut object: Value| {
        object["metadata"]["name"] = json!(name(number));
        object
    };
    match work {
        Meanwhile::Create(shape) => drop(connection.json("POST", PODS, Some(&named(shape(number))))?),
        Meanwhile::Recreate(shape) => {
            let node = json!({"apiVersion": "v1", "kind": "Node", "metadata": {}, "status": {
                "capacity": {"pods": "0"}, "conditions": [{"type": "Ready", "status": "True"}]}});
            for (path, object) in
                [("/api/v1/nodes", node), (PODS, shape(number)), (SERVICES, shapes::service())]
            {
                connection.json("POST", path, Some(&named(object)))?;
                if let Some(before) = number.checked_sub(1) {
                    connection.send("DELETE", &format!("{path}/{}", name(before)), None)?;
                }
            }
        }
        Meanwhile::Delete(namespace) => {
            // In the order in which the step before this one created them.
            let path = format!("/api/v1/namespaces/{namespace}/pods?limit=1");
            let list = connection.json("GET", &path, None)?;
            if let Some(name) = list["items"][0]["metadata"]["name"].as_str() {
                connection.send("DELETE", &format!("/api/v1/namespaces/{namespace}/pods/{name}"), None)?;
            }
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_flow_is_measured_without_its_beginning() {
        let start = Instant::now();
        let at = |ms: u64| start + Duration::from_millis(ms);
        // 20 pods that were bound when the watch began, then one every 10 ms.
        let times: Vec<_> =
            (0..20).map(|_| at(500)).chain((1..=100).map(|n| at(500 + n * 10))).rev().collect();
        assert!((flow(times) - 100.0).abs() < 1e-6);
        assert_eq!(flow(Vec::new()), 0.0);
    }
}
