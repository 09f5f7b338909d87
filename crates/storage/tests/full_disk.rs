//! Tests a full disk: which writes are refused, which succeed, and that nothing acknowledged is lost.
//!
//! The test runs its own binary again as the writer, on a small file system in a mount namespace of its own.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::time::{Duration, Instant};

use bytes::Bytes;
use knarr_storage::{Embedded, Error, NoSpace, Options, Precondition, Store};
use nix::mount::{MsFlags, mount, umount};
use nix::sched::{CloneFlags, unshare};

const DIR_VARIABLE: &str = "KNARR_STORAGE_FULL_DISK_DIR";
const VALUE_BYTES: usize = 100_000;

fn options() -> Options {
    Options { reserve_bytes: 4 * 1024 * 1024, ..Options::default() }
}

fn value_of(key: &str) -> Bytes {
    let mut value = key.as_bytes().to_vec();
    // Random data, which a file system cannot compress.
    let mut rng = fastrand::Rng::with_seed(key.len() as u64);
    value.resize_with(VALUE_BYTES, || rng.u8(..));
    value.into()
}

fn say(line: &str) {
    // One write call, so that a line is written completely or not at all.
    std::io::stdout().lock().write_all(format!("say {line}\n").as_bytes()).unwrap();
}

async fn put(store: &Embedded, key: &str) -> Result<(), Error> {
    store.put(key.to_owned().into(), value_of(key), Precondition::Any, None).await?;
    say(&format!("put {key}"));
    Ok(())
}

async fn delete(store: &Embedded, key: &str) {
    store.delete(key.to_owned().into(), Precondition::Exists).await.expect("deletions go on a full disk");
    say(&format!("deleted {key}"));
}

/// The writer: does nothing unless it is run again with a folder to write to.
#[test]
fn writer() {
    let Ok(dir) = std::env::var(DIR_VARIABLE) else { return };
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(write(Path::new(&dir)));
}

async fn write(dir: &Path) {
    let store = Embedded::open(dir, options()).unwrap();
    store.put("small".into(), "1".into(), Precondition::Any, None).await.unwrap();
    let mut keys = 0;
    let refused = loop {
        match put(&store, &format!("k{keys}")).await {
            Ok(()) => keys += 1,
            Err(error) => break error,
        }
    };
    assert_eq!(refused, Error::NoSpace);
    assert_eq!(refused.to_string(), "etcdserver: mvcc: database space exceeded");
    assert_eq!(store.status().await.unwrap().no_space, Some(NoSpace::Disk));
    say("full");
    listen();
    // No byte is left for others now.
    assert_eq!(put(&store, "more").await, Err(Error::NoSpace));
    assert!(store.get(b"k0").await.unwrap().is_some());
    for key in 0..10 {
        delete(&store, &format!("k{key}")).await;
    }
    for value in 0..50 {
        let small = store.put("small".into(), value.to_string().into(), Precondition::Exists, None).await;
        small.expect("what stays as large as it was is written");
    }
    let revision = store.current_revision().await.unwrap();
    store.compact(revision).await.expect("compaction goes on a full disk");
    say("deleted enough");
    listen();
    // Deletions alone make room as well: the file is shrunk.
    for key in 10..keys - 20 {
        delete(&store, &format!("k{key}")).await;
    }
    let revision = store.current_revision().await.unwrap();
    store.compact(revision).await.expect("compaction goes on a full disk");
    let start = Instant::now();
    while store.status().await.unwrap().no_space.is_some() {
        assert!(start.elapsed() < Duration::from_secs(20), "the alarm clears without a write");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    for key in 0.. {
        if put(&store, &format!("again{}", key % 20)).await.is_err() {
            break;
        }
    }
}

fn listen() {
    let mut line = String::new();
    std::io::stdin().read_line(&mut line).unwrap();
}

/// A small file system, unmounted when it is dropped.
struct Disk(PathBuf);

impl Disk {
    fn new(kind: &str) -> Self {
        assert!(nix::unistd::geteuid().is_root(), "this test mounts file systems and must run as root");
        unshare(CloneFlags::CLONE_NEWNS | CloneFlags::CLONE_FS).unwrap();
        mount(None::<&str>, "/", None::<&str>, MsFlags::MS_REC | MsFlags::MS_PRIVATE, None::<&str>).unwrap();
        let folder = std::env::temp_dir().join(format!("knarr-storage-full-{kind}-{}", std::process::id()));
        let at = folder.join("disk");
        std::fs::create_dir_all(&at).unwrap();
        if kind == "tmpfs" {
            mount(Some("tmpfs"), &at, Some("tmpfs"), MsFlags::empty(), Some("size=48m")).unwrap();
        } else {
            let image = folder.join("image");
            File::create(&image).unwrap().set_len(64 * 1024 * 1024).unwrap();
            run(Command::new("mkfs.ext4").args(["-q", "-m", "0"]).arg(&image));
            run(Command::new("mount").args(["-o", "loop"]).arg(&image).arg(&at));
        }
        Self(folder)
    }

    fn at(&self) -> PathBuf {
        self.0.join("disk")
    }

    /// Fills all free space, or this many bytes of it, with another file.
    fn fill(&self, bytes: usize) {
        let mut file = File::options().create(true).append(true).open(self.at().join("filler")).unwrap();
        for size in [64 * 1024, 4096] {
            let chunk = vec![7; size];
            for _ in 0..bytes / size {
                if file.write_all(&chunk).and_then(|()| file.sync_data()).is_err() {
                    break;
                }
            }
        }
    }
}

impl Drop for Disk {
    fn drop(&mut self) {
        let _ = umount(&self.at());
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

fn run(command: &mut Command) {
    let output = command.output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
}

struct Writer {
    child: Child,
    stdin: ChildStdin,
    lines: std::io::Lines<BufReader<ChildStdout>>,
    /// The acknowledged keys: present or deleted.
    acknowledged: BTreeMap<String, bool>,
}

impl Writer {
    fn start(dir: &Path) -> Self {
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "writer", "--nocapture", "--test-threads=1"])
            .env(DIR_VARIABLE, dir)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let stdin = child.stdin.take().unwrap();
        let lines = BufReader::new(child.stdout.take().unwrap()).lines();
        Self { child, stdin, lines, acknowledged: BTreeMap::new() }
    }

    /// Records the writer's output, up to this line.
    fn until(&mut self, last: &str) {
        for line in self.lines.by_ref().map_while(Result::ok) {
            // The test harness may have written text at the beginning of the line.
            let Some(at) = line.find("say ") else { continue };
            let said = &line[at + 4..];
            match said.split_once(' ') {
                Some((what, key)) if key != "enough" => {
                    self.acknowledged.insert(key.to_owned(), what == "put");
                }
                _ => {}
            }
            if said == last {
                return;
            }
        }
        if !last.is_empty() {
            panic!("the writer ended before {last:?}");
        }
    }

    fn go_on(&mut self) {
        self.stdin.write_all(b"\n").unwrap();
    }
}

impl Drop for Writer {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Where nothing else frees space, the store's own deletions have to.
fn fill_free_and_kill(kind: &str, another_frees: bool) {
    let disk = Disk::new(kind);
    let dir = disk.at().join("store");
    disk.fill(16 * 1024 * 1024);
    let mut writer = Writer::start(&dir);
    writer.until("full");
    disk.fill(usize::MAX);
    writer.go_on();
    writer.until("deleted enough");
    if another_frees {
        std::fs::remove_file(disk.at().join("filler")).unwrap();
    }
    writer.go_on();
    writer.until("put again7");
    writer.child.kill().unwrap();
    writer.until("");
    writer.child.wait().unwrap();

    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let store = Embedded::open(&dir, options()).unwrap();
        for (key, is_there) in &writer.acknowledged {
            let found = store.get(key.as_bytes()).await.unwrap().map(|kv| kv.value);
            assert_eq!(found, is_there.then(|| value_of(key)), "{key}");
        }
        assert!(writer.acknowledged.len() > 20);
    });
}

#[test]
fn a_full_tmpfs_is_survived() {
    fill_free_and_kill("tmpfs", true);
}

#[test]
fn a_full_ext4_is_survived() {
    fill_free_and_kill("ext4", true);
}

#[test]
fn a_store_that_fills_the_disk_alone_makes_room_by_deletions() {
    fill_free_and_kill("tmpfs", false);
}
