//! A round: clients and watchers on their own objects, a fault, the recovery, and the checks.

use std::sync::atomic::Ordering;
use std::thread::{Scope, ScopedJoinHandle, scope};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use fastrand::Rng;
use serde_json::json;

use super::client::{BACK_OFF, Client, Record, Shared};
use super::faults::{self, Effect, Fault};
use super::ground::Ground;
use super::history::{Answer, History, Request};
use super::objects::{self, RESOURCES};
use super::watcher::{FENCE, Seen, Watcher};

const CLIENTS: u32 = 4;
/// The client that writes the fences.
const LAST_CLIENT: u32 = CLIENTS;
/// The longest time until a server serves a request again, or a watch shows a write.
const LIMIT: Duration = Duration::from_secs(60);

/// The result of a round.
pub struct Outcome {
    pub effect: Effect,
    pub history: History,
    pub wrong: Vec<String>,
    /// Watches that had to start again because their revision was too old.
    pub expired: usize,
}

/// Runs a round. An error is a fault of this program or of the server, and loses the history so far.
pub fn run(fault: Fault, ground: &mut Ground, shared: &Shared, rng: &mut Rng) -> Result<Outcome> {
    let from = prepare(shared)?;
    let mut history = History { from, ..History::default() };
    let mut wrong = Vec::new();
    let (mut effect, mut expired) = (Effect::default(), 0);
    scope(|scope| -> Result<()> {
        let clients: Vec<_> = (0..CLIENTS)
            .map(|id| {
                let rng = rng.fork();
                scope.spawn(move || Client::new(id, shared).run(rng))
            })
            .collect();
        let watchers = watchers(scope, shared, from, rng);
        let under_fault = under_fault(fault, ground, shared, rng);
        shared.stop.store(true, Ordering::Relaxed);
        for client in clients {
            let Ok(record) = client.join() else { bail!("a client panicked") };
            add(&mut history, record);
        }
        let fenced = under_fault.and_then(|done| {
            effect = done;
            fence(shared)
        });
        match fenced {
            Ok(record) => add(&mut history, record),
            Err(error) => wrong.push(format!("{error:#}")),
        }
        let deadline = Instant::now() + if wrong.is_empty() { LIMIT } else { Duration::ZERO };
        while watchers.iter().any(|w| !w.is_finished()) && Instant::now() < deadline {
            std::thread::sleep(BACK_OFF);
        }
        shared.give_up.store(true, Ordering::Relaxed);
        for (id, watcher) in watchers.into_iter().enumerate() {
            let Ok(seen) = watcher.join() else { bail!("a watcher panicked") };
            if !seen.fence && wrong.is_empty() {
                wrong.push(format!("watcher {id} was not shown the last write within {LIMIT:?}"));
            }
            expired += seen.expired;
            history.streams.extend(seen.streams);
        }
        Ok(())
    })?;
    if expired > 0 && fault.leaves_history() {
        wrong.push(format!(
            "{expired} watches were answered that their revision is too old, within one round"
        ));
    }
    wrong.extend(super::check::check(&history));
    Ok(Outcome { effect, history, wrong, expired })
}

/// Runs some load, the fault, and some load again.
fn under_fault(fault: Fault, ground: &mut Ground, shared: &Shared, rng: &mut Rng) -> Result<Effect> {
    faults::recovered(shared, rng.u64(20..200))?;
    let effect =
        faults::inject(fault, ground, shared, rng).with_context(|| format!("the fault {fault:?}"))?;
    let recovered = faults::recovered(shared, rng.u64(20..100));
    if let Some(status) = ground.ended_by_itself()? {
        bail!("the server ended by itself with {status} after the fault {fault:?}: {recovered:?}");
    }
    recovered?;
    Ok(effect)
}

fn watchers<'scope, 'env>(
    scope: &'scope Scope<'scope, 'env>,
    shared: &'env Shared,
    from: u64,
    rng: &mut Rng,
) -> Vec<ScopedJoinHandle<'scope, Seen>> {
    let kinds = RESOURCES.iter().flat_map(|resource| [(resource, false), (resource, true)]);
    let spawn = |(id, (resource, hops)): (u32, (&'static objects::Resource, bool))| {
        let (watcher, rng) = (Watcher { id, shared, resource, hops }, rng.fork());
        scope.spawn(move || watcher.run(from, rng))
    };
    (0..).zip(kinds).map(spawn).collect()
}

fn add(history: &mut History, record: Record) {
    history.ops.extend(record.ops);
    history.lists.extend(record.lists);
}

/// Creates the namespace; returns a revision before that of any object in it.
fn prepare(shared: &Shared) -> Result<u64> {
    let body = json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": shared.namespace}});
    let path = format!("/api/v1/namespaces/{}", shared.namespace);
    eventually("make the namespace", || {
        let mut connection = shared.access.connect()?;
        let made = connection.json("POST", "/api/v1/namespaces", Some(&body));
        let made = made.or_else(|_| shared.access.connect()?.json("GET", &path, None))?;
        objects::revision(&made).context("no resourceVersion")
    })
}

/// Does a last list and a last write of each resource.
fn fence(shared: &Shared) -> Result<Record> {
    let mut client = Client::new(LAST_CLIENT, shared);
    for resource in RESOURCES {
        eventually("list at the end", || client.list(resource))?;
    }
    for resource in RESOURCES {
        let mut attempt = 0;
        eventually("write at the end", || {
            attempt += 1;
            let request = Request::Create { value: shared.value() };
            match client.one(resource, &format!("{FENCE}-{attempt}"), request, 0)? {
                Answer::Wrote(_) => Ok(()),
                other => bail!("{other:?}"),
            }
        })?;
    }
    Ok(client.record())
}

/// Retries for [`LIMIT`].
pub fn eventually<T>(what: &str, mut attempt: impl FnMut() -> Result<T>) -> Result<T> {
    let deadline = Instant::now() + LIMIT;
    loop {
        match attempt() {
            Err(error) if Instant::now() > deadline => {
                return Err(error).with_context(|| format!("could not {what} within {LIMIT:?}"));
            }
            Err(_) => std::thread::sleep(BACK_OFF * 4),
            Ok(done) => return Ok(done),
        }
    }
}
