//! Kills the store with SIGKILL at random moments: nothing acknowledged is lost, and revisions never go back.
//!
//! The test runs its own binary again as the writer and kills it during its work.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::mpsc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use knarr_storage::{
    Embedded, EventKind, KeyRange, Options, Precondition, RangeRequest, Store, WatchItem, WatchRequest,
};

const DIR_VARIABLE: &str = "KNARR_STORAGE_CRASH_DIR";
const ROUNDS: u64 = 8;
const WRITERS: u64 = 8;
const KEYS: u64 = 12;

/// A write as the child reports it: key, revision, and the number in its value.
type Acknowledged = BTreeMap<String, (u64, u64)>;

fn value_of(key: &str, number: u64) -> Bytes {
    let mut value = format!("{number} {key} ").into_bytes();
    value.resize(value.len() + (number % 1500) as usize, b'.');
    value.into()
}

fn number_of(value: &[u8]) -> u64 {
    let text = String::from_utf8_lossy(value);
    text.split(' ').next().and_then(|number| number.parse().ok()).expect("a value we wrote")
}

/// The writer: does nothing unless it is run again with a folder to write to.
#[test]
fn writer() {
    let Ok(dir) = std::env::var(DIR_VARIABLE) else { return };
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    runtime.block_on(write_until_killed(Path::new(&dir)));
}

async fn write_until_killed(dir: &Path) {
    // A small history, so that it is compacted and pruned all the time.
    let options = Options { history_revisions: 300, ..Options::default() };
    let store = Arc::new(Embedded::open(dir, options).unwrap());
    let start = store.current_revision().await.unwrap();
    let writers: Vec<_> = (0..WRITERS)
        .map(|writer| {
            let store = Arc::clone(&store);
            tokio::spawn(async move {
                for i in 0.. {
                    let key = format!("{writer}/{}", i % KEYS);
                    let number = start * 1000 + i;
                    let put = store.put(key.clone().into(), value_of(&key, number), Precondition::Any, None);
                    let revision = put.await.unwrap().kv.mod_revision;
                    // One write call, so that a line is written completely or not at all.
                    let line = format!("ack {key} {revision} {number}\n");
                    std::io::stdout().lock().write_all(line.as_bytes()).unwrap();
                }
            })
        })
        .collect();
    for writer in writers {
        writer.await.unwrap();
    }
}

struct KillOnDrop(Child);

impl Drop for KillOnDrop {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Lets the writer run for a moment after its first answer, then kills it.
fn run_and_kill(dir: &Path, moment: Duration, acknowledged: &mut Acknowledged) {
    let child = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "writer", "--nocapture", "--test-threads=1"])
        .env(DIR_VARIABLE, dir)
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let mut child = KillOnDrop(child);
    let stdout = child.0.stdout.take().unwrap();
    let (sender, receiver) = mpsc::sync_channel(1024);
    let reader = std::thread::spawn(move || {
        for line in BufReader::new(stdout).lines().map_while(Result::ok) {
            // The test harness may have written text at the beginning of the first line.
            if let Some(at) = line.find("ack ") {
                let _ = sender.send(line[at..].to_owned());
            }
        }
    });
    let mut record = |line: String| {
        let fields: Vec<&str> = line.split(' ').collect();
        if let [_, key, revision, number] = fields[..] {
            acknowledged.insert(key.to_owned(), (revision.parse().unwrap(), number.parse().unwrap()));
        }
    };
    record(receiver.recv_timeout(Duration::from_secs(60)).expect("the writer starts"));
    let end = Instant::now() + moment;
    while let Ok(line) = receiver.recv_timeout(end.saturating_duration_since(Instant::now())) {
        record(line);
        if Instant::now() >= end {
            break;
        }
    }
    child.0.kill().unwrap();
    child.0.wait().unwrap();
    // Lines from before its death count as well.
    receiver.iter().for_each(record);
    reader.join().unwrap();
}

/// The first start creates the file. Wherever it is killed, the next start succeeds.
#[test]
fn a_first_start_may_be_killed_at_any_moment() {
    let root = std::env::temp_dir().join(format!("knarr-storage-first-{}", std::process::id()));
    for round in 0..60_u32 {
        let dir = root.join(round.to_string());
        std::fs::create_dir_all(&dir).unwrap();
        let child = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "writer", "--nocapture", "--test-threads=1"])
            .env(DIR_VARIABLE, &dir)
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let mut child = KillOnDrop(child);
        let begun = || std::fs::read_dir(&dir).unwrap().next().is_some();
        while !begun() && child.0.try_wait().unwrap().is_none() {
            std::thread::yield_now();
        }
        let moment = Instant::now() + Duration::from_micros(40) * round;
        while Instant::now() < moment {
            std::hint::spin_loop();
        }
        child.0.kill().unwrap();
        child.0.wait().unwrap();
        drop(
            Embedded::open(&dir, Options::default()).unwrap_or_else(|error| panic!("round {round}: {error}")),
        );
    }
    std::fs::remove_dir_all(&root).unwrap();
}

async fn check(dir: &Path, acknowledged: &Acknowledged, least: u64) -> u64 {
    let store = Embedded::open(dir, Options::default()).unwrap();
    let status = store.status().await.unwrap();
    assert!(status.revision >= least, "{} after {least}", status.revision);
    let kvs = store.range(RangeRequest::new(KeyRange::all())).await.unwrap().kvs;
    for kv in &kvs {
        let key = String::from_utf8_lossy(&kv.key);
        assert_eq!(kv.value, value_of(&key, number_of(&kv.value)), "{key} is whole");
    }
    for (key, (revision, number)) in acknowledged {
        let kv = store.get(key.as_bytes()).await.unwrap().unwrap_or_else(|| panic!("{key} is lost"));
        assert!(kv.mod_revision >= *revision, "{key}: revision {} of {revision}", kv.mod_revision);
        assert!(number_of(&kv.value) >= *number, "{key}: {} of {number}", number_of(&kv.value));
        assert!(status.revision >= *revision);
    }
    // The history must be complete as well: each revision once, leading to the current keys.
    let base = store.range(RangeRequest::new(KeyRange::all()).at(status.compacted_revision)).await;
    let mut replayed: BTreeMap<Bytes, _> = base.map_or_else(
        |_| BTreeMap::new(),
        |base| base.kvs.into_iter().map(|kv| (kv.key.clone(), kv)).collect(),
    );
    let request = WatchRequest::new(KeyRange::all()).after(status.compacted_revision);
    let mut watch = store.watch(request).await.unwrap();
    let mut last = status.compacted_revision.max(1);
    while let Some(WatchItem::Events(batch)) = watch.next().await.transpose().unwrap() {
        for event in batch.events {
            assert_eq!(event.kv.mod_revision, last + 1);
            assert_eq!(event.kind, EventKind::Put);
            last = event.kv.mod_revision;
            assert_eq!(replayed.insert(event.kv.key.clone(), event.kv), event.prev);
        }
    }
    assert_eq!(last, status.revision);
    assert!(replayed.into_values().eq(kvs));
    status.revision
}

struct TempDir(PathBuf);

impl Drop for TempDir {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

#[tokio::test]
async fn nothing_acknowledged_is_lost() {
    let dir = TempDir(std::env::temp_dir().join(format!("knarr-storage-crash-{}", std::process::id())));
    let mut rng = fastrand::Rng::new();
    let mut acknowledged = Acknowledged::new();
    let mut revision = 1;
    for _ in 0..ROUNDS {
        run_and_kill(&dir.0, Duration::from_millis(rng.u64(5..400)), &mut acknowledged);
        let after = check(&dir.0, &acknowledged, revision).await;
        assert!(after > revision, "the writer wrote something");
        revision = after;
    }
    assert!(acknowledged.len() as u64 > WRITERS);
}
