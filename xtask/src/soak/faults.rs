//! The faults of a server while clients use it.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use clap::ValueEnum;
use fastrand::Rng;
use nix::sys::signal::Signal;
use serde_json::json;

use super::client::Shared;
use super::ground::Ground;
use super::round::eventually;

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, ValueEnum)]
pub enum Fault {
    /// SIGKILL, sometimes again during the start that follows
    Kill,
    /// SIGSTOP for up to 2.5 s, then SIGCONT
    Pause,
    /// The file system of the data folder is full; sometimes the server is killed meanwhile
    Disk,
    /// The server's control group may not grow; the kernel kills the server, or this program does, or it
    /// survives
    Memory,
    /// No more file descriptors
    Files,
    /// The wall clock jumps by up to an hour, forwards or backwards (needs libfaketime)
    Clock,
    /// Kill one or two of three members of etcd, which then stores the state
    Etcd,
}

impl Fault {
    /// Returns whether the history of a whole round still exists afterwards, so that every watch can resume
    /// at any revision of it.
    pub fn leaves_history(self) -> bool {
        matches!(self, Self::Kill | Self::Pause)
    }
}

/// The effects of a fault.
#[derive(Debug, Clone, Copy, Default)]
pub struct Effect {
    /// How many times the server was killed, by this program or the kernel.
    pub kills: u64,
    /// The longest start, until the server reported that it was ready.
    pub recovery: Duration,
    /// Starts that failed during the fault.
    pub refused_starts: u64,
}

/// The longest wait.
const LIMIT: Duration = Duration::from_secs(60);
/// The longest duration of a fault that affects too few requests.
const LASTS: Duration = Duration::from_secs(2);

/// Causes the fault, and ends it. The server runs again afterwards.
pub fn inject(fault: Fault, ground: &mut Ground, shared: &Shared, rng: &mut Rng) -> Result<Effect> {
    let mut effect = Effect::default();
    match fault {
        Fault::Kill => {
            ground.kill()?;
            effect.kills += 1;
            if rng.u8(..4) == 0 {
                ground.spawn()?;
                std::thread::sleep(Duration::from_millis(rng.u64(1..500)));
                ground.kill()?;
                effect.kills += 1;
            }
        }
        Fault::Pause => {
            ground.signal(Signal::SIGSTOP)?;
            std::thread::sleep(Duration::from_millis(rng.u64(100..2500)));
            ground.signal(Signal::SIGCONT)?;
            return Ok(effect);
        }
        Fault::Disk => disk(ground, shared, rng, &mut effect)?,
        Fault::Memory => memory(ground, shared, rng, &mut effect)?,
        Fault::Files => files(ground, shared, rng)?,
        Fault::Clock => {
            ground.set_clock(*rng.choice(&[-3600, -120, -5, 5, 120, 3600]).unwrap_or(&0))?;
            feel(shared, rng);
            if rng.bool() {
                effect.kills += 1;
                restart(ground, shared, &mut effect)?;
                feel(shared, rng);
            }
            // If the time is off by more than a few minutes, certificates are not valid: clients recover when
            // it is right again.
            ground.set_clock(0)?;
        }
        Fault::Etcd => {
            let first = rng.usize(..3);
            ground.kill_member(first);
            if rng.bool() {
                ground.kill_member(first + 1);
            }
            feel(shared, rng);
            if rng.u8(..3) == 0 {
                ground.kill()?;
                effect.kills += 1;
            }
            ground.start_members()?;
        }
    }
    if let Some(status) = ground.ended_by_itself()? {
        let log = std::fs::read_to_string(ground.log()).unwrap_or_default();
        bail!("the server ended by itself with {status}:\n{log}");
    }
    if ground.has_ended()? {
        restart(ground, shared, &mut effect)?;
    }
    Ok(effect)
}

/// Starts the server again.
fn restart(ground: &mut Ground, shared: &Shared, effect: &mut Effect) -> Result<()> {
    ground.kill()?;
    shared.generation.fetch_add(1, Ordering::Relaxed);
    let begun = Instant::now();
    ground.start()?;
    effect.recovery = effect.recovery.max(begun.elapsed());
    Ok(())
}

/// Waits until a counter has grown by `by`; returns false after `limit`.
pub fn grown(counter: &AtomicU64, by: u64, limit: Duration) -> bool {
    let wanted = counter.load(Ordering::Relaxed) + by;
    let deadline = Instant::now() + limit;
    while counter.load(Ordering::Relaxed) < wanted {
        if Instant::now() > deadline {
            return false;
        }
        std::thread::sleep(Duration::from_millis(1));
    }
    true
}

/// Waits until clients are affected by the fault.
fn feel(shared: &Shared, rng: &mut Rng) {
    grown(&shared.answered, rng.u64(50..500), LASTS);
}

fn disk(ground: &mut Ground, shared: &Shared, rng: &mut Rng, effect: &mut Effect) -> Result<()> {
    // cat fails when the disk is full, as intended.
    ground.sandbox.try_sh("cat /dev/zero >$0/data/fill 2>/dev/null");
    feel(shared, rng);
    if rng.bool() {
        ground.kill()?;
        effect.kills += 1;
        ground.sandbox.try_sh("cat /dev/zero >>$0/data/fill 2>/dev/null");
        if restart(ground, shared, effect).is_ok() {
            feel(shared, rng);
        } else {
            effect.refused_starts += 1;
            ground.kill()?;
        }
    }
    ground.sandbox.sh("rm $0/data/fill");
    Ok(())
}

fn memory(ground: &mut Ground, shared: &Shared, rng: &mut Rng, effect: &mut Effect) -> Result<()> {
    // The objects of the last fault would fill the disk eventually.
    let path = "/api/v1/namespaces/default/configmaps";
    let selected = format!("{path}?labelSelector=ballast");
    eventually("delete the ballast", || shared.access.connect()?.send("DELETE", &selected, None))?;
    let limit = ground.memory_used()?;
    // The kernel refuses a limit below what it cannot reclaim: then the present usage is the limit.
    let _ = ground.limit_memory(Some(limit));
    let text = "x".repeat(256 << 10);
    let deadline = Instant::now() + LASTS;
    for i in (0..32).take_while(|_| Instant::now() < deadline) {
        let ballast = json!({"apiVersion": "v1", "kind": "ConfigMap",
            "metadata": {"name": format!("ballast-{i}"), "labels": {"ballast": ""}}, "data": {"text": text}});
        let sent = shared.access.connect().and_then(|mut c| c.json("POST", path, Some(&ballast)));
        if sent.is_err() {
            break;
        }
    }
    // If the kernel does not kill, it may reclaim pages as fast as they are read again, without end.
    if !ended_within(ground, LASTS)? && rng.bool() {
        ground.limit_memory(None)?;
        // A kill that the kernel has decided happens within this time.
        if !ended_within(ground, LASTS)? {
            return Ok(());
        }
    }
    ground.kill()?;
    effect.kills += 1;
    ground.limit_memory(None)
}

/// Waits for the end of the process: one that the kernel kills takes a while to end.
fn ended_within(ground: &mut Ground, limit: Duration) -> Result<bool> {
    let deadline = Instant::now() + limit;
    while !ground.has_ended()? {
        if Instant::now() > deadline {
            return Ok(false);
        }
        std::thread::sleep(Duration::from_millis(1));
    }
    Ok(true)
}

fn files(ground: &mut Ground, shared: &Shared, rng: &mut Rng) -> Result<()> {
    let pid = ground.pid()?;
    let limits = std::fs::read_to_string(format!("/proc/{pid}/limits"))?;
    let line =
        limits.lines().find_map(|l| l.strip_prefix("Max open files")).context("no limit of open files")?;
    let mut words = line.split_whitespace();
    let (soft, hard) = (words.next().unwrap_or_default(), words.next().unwrap_or_default());
    let open = std::fs::read_dir(format!("/proc/{pid}/fd"))?.count();
    let set = |soft: &str, hard: &str| {
        let status = std::process::Command::new("prlimit")
            .args(["--pid", &pid.to_string(), &format!("--nofile={soft}:{hard}")])
            .status();
        match status {
            Ok(status) if status.success() => Ok(()),
            other => bail!("prlimit(1) of util-linux: {other:?}"),
        }
    };
    set(&(open + rng.usize(..3)).to_string(), hard)?;
    feel(shared, rng);
    // New connections get no descriptor.
    let connections: Vec<_> = (0..4).filter_map(|_| shared.access.connect().ok()).collect();
    feel(shared, rng);
    drop(connections);
    set(soft, hard)
}

/// Waits until writes are acknowledged again.
pub fn recovered(shared: &Shared, writes: u64) -> Result<()> {
    if !grown(&shared.acknowledged, writes, LIMIT) {
        bail!("fewer than {writes} writes were acknowledged within {LIMIT:?} after the fault");
    }
    Ok(())
}
