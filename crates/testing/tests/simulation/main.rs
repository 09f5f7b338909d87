//! Simulates controllers, scheduler and API server with faults, by seed: invariants hold at all times, and in
//! the end the state of the cluster matches its objects.
//!
//! One seed again: `cargo xtask simulate --seed 7`; many: `cargo xtask simulate --seeds 10000`.

mod checks;
mod front;
mod lagging;
mod node;
mod objects;
mod user;
mod world;

use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};

use knarr_client::WatchEvent;
use knarr_testing::FakeApi;
use world::run;

/// After how many seeds a run prints its progress.
const PROGRESS: u64 = 100;
/// The number of seeds of a run by default.
const SEEDS: u64 = 3;
/// Seeds that found a fault, and which. Each fault has its own test as well, because changes of the simulator
/// change the meaning of a seed.
const FOUND: [(u64, &str); 8] = [
    (4, "a Job that was read before a wait started a second pod for an index that was done"),
    (10, "a Deployment whose scaling was interrupted between two sets never rolled out again"),
    (2065, "a pod came back under its name and took the claim that was going with the one before it"),
    (2091, "a finalizer that met a conflict stayed, and with it a Job that had all its pods"),
    (
        41534,
        "a deleted ReplicaSet, of which its controller was not notified, had pods created and deleted without end",
    ),
    (
        60068,
        "a CronJob's job that ran was given up after a restart, as it did not show, and a second one started",
    ),
    (62460, "a Deployment that was gone had ReplicaSets made and deleted without end"),
    (75591, "a pod of a node that was gone stayed for ever after one conflict"),
];

fn number(name: &str) -> Option<u64> {
    std::env::var(name).ok()?.parse().ok()
}

#[test]
fn nothing_forbidden_happens_and_the_cluster_comes_to_rest() {
    let first = number("KNARR_SEED").unwrap_or(0);
    let count = number("KNARR_SEEDS").unwrap_or(if number("KNARR_SEED").is_some() { 1 } else { SEEDS });
    let processors = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
    let jobs = number("KNARR_JOBS").map_or(processors, |n| n as usize).max(1);
    let (began, next, failed) = (std::time::Instant::now(), AtomicU64::new(first), Mutex::new(Vec::new()));
    let done = AtomicU64::new(0);
    let work = || {
        loop {
            let seed = next.fetch_add(1, Ordering::Relaxed);
            if seed >= first + count {
                return;
            }
            let run = run(seed);
            let done = done.fetch_add(1, Ordering::Relaxed) + 1;
            if done.is_multiple_of(PROGRESS) {
                eprintln!("{done} of {count} seeds after {:.0} s", began.elapsed().as_secs_f64());
            }
            if let Ok(plurals) = std::env::var("KNARR_SHOW") {
                changes(&run.api, &plurals).iter().for_each(|change| eprintln!("{change}"));
            }
            if let Err(why) = &run.outcome {
                eprintln!("seed {seed}: {why}\nagain: cargo xtask simulate --seed {seed}");
                failed.lock().expect("no panic").push(seed);
            }
        }
    };
    std::thread::scope(|scope| (0..jobs).for_each(|_| drop(scope.spawn(work))));
    let failed = failed.into_inner().expect("no panic");
    eprintln!("{count} seeds in {:.0} s, {jobs} at a time", began.elapsed().as_secs_f64());
    assert!(failed.is_empty(), "{} of {count} seeds failed: {failed:?}", failed.len());
}

#[test]
fn what_was_found_before_is_not_found_again() {
    for (seed, what) in FOUND {
        assert_eq!(run(seed).outcome, Ok(()), "seed {seed}: {what}");
    }
}

/// Returns the changes of objects of these plurals, or of all objects if it is empty.
fn changes(api: &FakeApi, plurals: &str) -> Vec<String> {
    let shown = |plural: &str| plurals.is_empty() || plurals.split(',').any(|p| p == plural);
    let mut lines = Vec::new();
    for change in api.changes_after(0) {
        let (verb, object) = match &change.event {
            WatchEvent::Added(o) => ("ADDED", o),
            WatchEvent::Modified(o) => ("MODIFIED", o),
            WatchEvent::Deleted(o) => ("DELETED", o),
            WatchEvent::Bookmark(_) => continue,
        };
        let plural = change.resource.plural;
        if shown(plural) {
            let json = String::from_utf8_lossy(&object.json()).into_owned();
            lines.push(format!("{} {verb} {plural} by {:?} {json}", change.revision, change.by));
        }
    }
    lines
}

/// Returns everything that happened, in order: the requests with their times, and the changes.
fn trace(seed: u64) -> Vec<String> {
    let run = run(seed);
    let api = &run.api;
    let asked = api.requests();
    let asked = asked.iter().map(|r| format!("{} {} {} {}", r.at, r.method, r.path, r.body));
    asked.chain(changes(api, "")).collect()
}

#[test]
fn a_seed_tells_the_same_story_twice() {
    let seed = 3;
    let (first, second) = (trace(seed), trace(seed));
    let differs = first.iter().zip(&second).position(|(a, b)| a != b);
    let at = differs.map(|n| (n, &first[n], &second[n]));
    assert_eq!(at, None, "seed {seed} of {} steps", first.len());
    assert_eq!(first.len(), second.len(), "seed {seed}");
}
