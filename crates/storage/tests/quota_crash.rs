//! Kills the store with SIGKILL while the quota refuses writes: acknowledged writes are kept, refused ones are not, and
//! the count is exact.
//!
//! The test runs its own binary again as the writer and kills it during its work.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Arc;

use bytes::Bytes;
use knarr_storage::{Embedded, Error, KeyRange, Options, Precondition, RangeRequest, Store};

const DIR_VARIABLE: &str = "KNARR_STORAGE_QUOTA_DIR";
const START_VARIABLE: &str = "KNARR_STORAGE_QUOTA_START";
const ROUNDS: usize = 6;
const WRITERS: u64 = 4;
const KEYS: u64 = 12;
const QUOTA: u64 = 400_000;

fn options() -> Options {
    Options { quota_bytes: QUOTA, history_revisions: 100, ..Options::default() }
}

fn key_of(writer: u64, number: u64) -> String {
    format!("{writer}/{}", number % KEYS)
}

fn deletes(number: u64) -> bool {
    (number / KEYS) % 4 == 3
}

fn value_of(number: u64) -> Bytes {
    let mut value = format!("{number} ").into_bytes();
    value.resize(value.len() + (number * 7919 % 20_000) as usize, b'.');
    value.into()
}

/// The writer: does nothing unless it is run again with a folder to write to.
#[test]
fn writer() {
    let Ok(dir) = std::env::var(DIR_VARIABLE) else { return };
    let start: u64 = std::env::var(START_VARIABLE).unwrap().parse().unwrap();
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    runtime.block_on(async {
        let store = Arc::new(Embedded::open(dir, options()).unwrap());
        let writers: Vec<_> =
            (0..WRITERS).map(|writer| tokio::spawn(write(Arc::clone(&store), writer, start))).collect();
        for writer in writers {
            writer.await.unwrap();
        }
    });
}

async fn write(store: Arc<Embedded>, writer: u64, start: u64) {
    for number in start.. {
        let key = Bytes::from(key_of(writer, number));
        let done = if deletes(number) {
            store.delete(key, Precondition::Any).await.map(drop)
        } else {
            store.put(key, value_of(number), Precondition::Any, None).await.map(drop)
        };
        let what = match done {
            Ok(()) => "done",
            Err(Error::NoSpace) if !deletes(number) => "refused",
            Err(error) => panic!("{error}"),
        };
        // One write call, so that a line is written completely or not at all.
        let line = format!("ack {what} {writer} {number}\n");
        std::io::stdout().lock().write_all(line.as_bytes()).unwrap();
    }
}

/// What the writers are known to have done.
#[derive(Default)]
struct Known {
    /// By key: the number in the value, or `None` if the key is deleted.
    keys: BTreeMap<String, Option<u64>>,
    /// The last answer to each writer.
    last: BTreeMap<u64, u64>,
    refused: usize,
}

impl Known {
    fn note(&mut self, line: &str) {
        let fields: Vec<&str> = line.split(' ').collect();
        let [_, what, writer, number] = fields[..] else { panic!("{line}") };
        let (writer, number): (u64, u64) = (writer.parse().unwrap(), number.parse().unwrap());
        self.last.insert(writer, number);
        if what == "refused" {
            self.refused += 1;
        } else {
            self.keys.insert(key_of(writer, number), (!deletes(number)).then_some(number));
        }
    }

    /// Lets the writer get this many answers, then kills it. Lines from before its death count as well.
    fn run_and_kill(&mut self, dir: &Path, start: u64, answers: usize) {
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "writer", "--nocapture", "--test-threads=1"])
            .env(DIR_VARIABLE, dir)
            .env(START_VARIABLE, start.to_string())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let lines = BufReader::new(child.stdout.take().unwrap()).lines();
        let mut left = answers;
        for line in lines.map_while(Result::ok) {
            // The test harness may have written text at the beginning of the first line.
            let Some(at) = line.find("ack ") else { continue };
            self.note(&line[at..]);
            left = left.saturating_sub(1);
            if left == 0 {
                // The pipe is read to its end.
                let _ = child.kill();
            }
        }
        child.wait().unwrap();
        assert_eq!(left, 0, "the writer went on until it was killed");
    }

    /// Accepts the effects of the writers' last, unanswered operations, and checks everything else.
    async fn check(&mut self, dir: &Path) {
        let store = Embedded::open(dir, options()).unwrap();
        let kvs = store.range(RangeRequest::new(KeyRange::all())).await.unwrap().kvs;
        let number_of = |value: &[u8]| -> u64 {
            let text = String::from_utf8_lossy(value);
            text.split(' ').next().unwrap().parse().unwrap()
        };
        let mut found = BTreeMap::new();
        for kv in &kvs {
            let number = number_of(&kv.value);
            assert_eq!(kv.value, value_of(number), "{:?} is whole", kv.key);
            found.insert(String::from_utf8_lossy(&kv.key).into_owned(), number);
        }
        for (writer, last) in &self.last {
            let next = last + 1;
            let key = key_of(*writer, next);
            let now = found.get(&key).copied();
            if now == (!deletes(next)).then_some(next) {
                self.keys.insert(key, now);
            }
        }
        let there = self.keys.iter().filter_map(|(key, number)| Some((key.clone(), (*number)?)));
        assert_eq!(there.collect::<BTreeMap<_, _>>(), found);
        let counted: usize = kvs.iter().map(|kv| kv.key.len() + kv.value.len() + 256).sum();
        let status = store.status().await.unwrap();
        assert_eq!(status.live_bytes, counted as u64, "exact");
        assert!(status.live_bytes <= QUOTA + QUOTA / 16, "{}", status.live_bytes);
    }
}

struct TempDir(PathBuf);

impl Drop for TempDir {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

#[tokio::test]
async fn a_kill_at_the_quota_loses_nothing() {
    let dir = TempDir(std::env::temp_dir().join(format!("knarr-storage-quota-{}", std::process::id())));
    let mut rng = fastrand::Rng::new();
    let mut known = Known::default();
    for round in 0..ROUNDS {
        // Each round has numbers of its own.
        known.run_and_kill(&dir.0, round as u64 * 1_000_000, rng.usize(150..400));
        known.check(&dir.0).await;
    }
    assert!(known.refused > 0, "the quota was reached");
}
