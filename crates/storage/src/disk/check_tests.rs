//! Damages stores in several ways, and tests what a check finds and what a repair does.

use std::io;
use std::os::unix::fs::FileExt;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use bytes::Bytes;
use nix::mount::{MsFlags, mount};
use nix::sched::{CloneFlags, unshare};
use redb::backends::FileBackend;
use redb::{Database, ReadableTable};

use super::check::{Checked, FaultKind, check, check_with, open_on};
use super::codec;
use super::file::{self, OpenError, guarded};
use super::journal::{KEYS, LEASES, LOG, META, META_LAST_LEASE, META_REVISION};
use super::rewrite::{RepairError, repair};
use super::tests::{Faults, FaultyFile, TempDir};
use crate::{Embedded, KeyValue, LeaseId, Options, Precondition, ScrubFault, Store, damage};

fn options() -> Options {
    Options { reserve_bytes: 0, ..Options::default() }
}

fn file(dir: &TempDir) -> PathBuf {
    file::file(&dir.0)
}

/// Returns a store with some keys, one of them with a lease, and a history.
async fn filled(keys: usize) -> TempDir {
    let dir = TempDir::new();
    let store = Embedded::open(&dir.0, options()).unwrap();
    let lease = store.grant_lease(60).await.unwrap();
    for n in 0..keys {
        let (key, value) = (format!("k{n:03}"), vec![n as u8; 700]);
        let lease = (n == 1).then_some(lease);
        store.put(key.into(), value.into(), Precondition::Any, lease).await.unwrap();
    }
    store.put("k000".into(), "again".into(), Precondition::Exists, None).await.unwrap();
    store.delete("k002".into(), Precondition::Exists).await.unwrap();
    store.close().await.unwrap();
    dir
}

/// Changes the file of a closed store directly.
fn edit(dir: &TempDir, change: impl FnOnce(&redb::WriteTransaction)) {
    let database = Database::open(file(dir)).unwrap();
    let txn = database.begin_write().unwrap();
    change(&txn);
    txn.commit().unwrap();
}

fn only(found: &Checked) -> (FaultKind, Option<&[u8]>, &str) {
    assert_eq!(found.faults.len(), 1, "{:?}", found.faults);
    let fault = &found.faults[0];
    (fault.kind, fault.key.as_deref(), fault.reason.as_str())
}

fn without(kvs: &[KeyValue], key: &str) -> Vec<KeyValue> {
    kvs.iter().filter(|kv| kv.key != key).cloned().collect()
}

fn kept(_: &std::path::Path) -> io::Result<()> {
    Ok(())
}

#[tokio::test]
async fn a_sound_store_has_no_faults_and_stays_as_it_is() {
    let dir = filled(20).await;
    let before = std::fs::read(file(&dir)).unwrap();
    let found = check(&dir.0).unwrap();
    assert_eq!(found.faults, []);
    assert_eq!((found.kvs.len(), found.revision), (19, 23));
    assert!(repair(&dir.0, |_| panic!("nothing needs a repair")).unwrap().is_empty());
    assert!(std::fs::read(file(&dir)).unwrap() == before);
}

#[tokio::test]
async fn a_store_that_was_killed_is_sound_too() {
    let dir = filled(20).await;
    let store = Embedded::open(&dir.0, options()).unwrap();
    store.put("late".into(), "1".into(), Precondition::Any, None).await.unwrap();
    assert!(matches!(check(&dir.0), Err(OpenError::Locked(_))));
    // The file as it is on the disk while the store is in use.
    let copy = TempDir::new();
    std::fs::create_dir_all(&copy.0).unwrap();
    std::fs::copy(file(&dir), file(&copy)).unwrap();
    let before = std::fs::read(file(&copy)).unwrap();
    let found = check(&copy.0).unwrap();
    assert_eq!(found.faults, []);
    assert!(found.kvs.iter().any(|kv| &kv.key[..] == b"late"));
    assert!(std::fs::read(file(&copy)).unwrap() == before, "nothing is written, not even redb's own repair");
}

#[tokio::test]
async fn flipped_bytes_are_found_or_meant_nothing() {
    let dir = filled(60).await;
    let whole = std::fs::read(file(&dir)).unwrap();
    let sound = check(&dir.0).unwrap();
    let (mut harmless, mut repaired, mut lost) = (0, 0, 0);
    let page = 4096;
    for at in (0..whole.len()).step_by(page).flat_map(|start| [start + 1, start + 130, start + 2500]) {
        let mut damaged = whole.clone();
        let Some(byte) = damaged.get_mut(at) else { continue };
        *byte ^= 0x55;
        std::fs::write(file(&dir), &damaged).unwrap();
        let found = match check(&dir.0) {
            Ok(found) => found,
            // One of these bytes contains the number of the format.
            Err(error) => {
                assert!(matches!(error, OpenError::Format { .. }), "byte {at}: {error}");
                continue;
            }
        };
        assert!(std::fs::read(file(&dir)).unwrap() == damaged, "byte {at}: the file was changed");
        if found.faults.is_empty() {
            assert_eq!(found.kvs, sound.kvs, "byte {at}: not noticed");
            harmless += 1;
            continue;
        }
        match repair(&dir.0, kept) {
            Err(RepairError::Unreadable(_)) => lost += 1,
            Err(error) => panic!("byte {at}: {error}"),
            Ok(_) => {
                let after = check(&dir.0).unwrap();
                assert!(after.faults.iter().all(|f| f.kind == FaultKind::Key), "{at}: {:?}", after.faults);
                for (was, is) in sound.kvs.iter().zip(&after.kvs) {
                    assert!(was == is || was.key == is.key && damage(&is.value).is_some(), "byte {at}");
                }
                assert_eq!(after.kvs.len(), sound.kvs.len(), "byte {at}: no key is lost in silence");
                repaired += 1;
            }
        }
    }
    assert!(harmless > 0 && repaired > 0 && lost > 0, "{harmless} {repaired} {lost}");
}

/// Checks the file with a block that the disk cannot read.
fn check_with_bad_block(dir: &TempDir, at: u64) -> Result<Checked, OpenError> {
    let path = file(dir);
    check_with(&path, &|unread| {
        let faults = Faults::default();
        faults.bad_byte.store(at + 1, Ordering::SeqCst);
        let opened = std::fs::File::options().read(true).write(true).open(&path).unwrap();
        let backend = FaultyFile { inner: FileBackend::new(opened).unwrap(), faults: Arc::new(faults) };
        guarded(&path, || open_on(&path, backend, unread))
    })
}

#[tokio::test]
async fn a_sector_that_cannot_be_read_is_a_fault_like_any_other() {
    let dir = filled(60).await;
    let sound = check(&dir.0).unwrap();
    let len = std::fs::metadata(file(&dir)).unwrap().len();
    let (mut unused, mut mended, mut lost) = (0, 0, 0);
    for at in (0..len).step_by(4096) {
        let found = check_with_bad_block(&dir, at).unwrap_or_else(|error| panic!("block at {at}: {error}"));
        if found.faults.is_empty() {
            unused += 1;
            continue;
        }
        let place = format!("bytes {at} to {} cannot be read: Input/output error", at + 4095);
        assert!(found.faults.iter().any(|fault| fault.reason.starts_with(&place)), "{:?}", found.faults);
        if found.is_unreadable() {
            lost += 1;
        } else if found.kvs == sound.kvs {
            mended += 1;
        }
    }
    assert!(unused > 0 && mended > 0 && lost > 0, "{unused} {mended} {lost}");
}

#[tokio::test]
async fn a_file_that_was_cut_off_is_unreadable() {
    let dir = filled(60).await;
    let whole = std::fs::read(file(&dir)).unwrap();
    for len in [0, 10, 4096, whole.len() / 2, whole.len() - 4096] {
        std::fs::write(file(&dir), &whole[..len]).unwrap();
        let found = check(&dir.0).unwrap();
        assert!(found.is_unreadable(), "{len}: {:?}", found.faults);
        assert!(matches!(repair(&dir.0, kept), Err(RepairError::Unreadable(_))), "{len}");
        assert_eq!(std::fs::read(file(&dir)).unwrap().len(), len);
    }
}

#[tokio::test]
async fn a_damaged_row_is_named_and_stays_set_aside() {
    let dir = filled(20).await;
    let sound = check(&dir.0).unwrap();
    edit(&dir, |txn| {
        let mut keys = txn.open_table(KEYS).unwrap();
        let mut row = keys.get(&b"k005"[..]).unwrap().unwrap().value().to_vec();
        row[40] ^= 1;
        keys.insert(&b"k005"[..], &row[..]).unwrap();
    });
    let found = check(&dir.0).unwrap();
    let of_row = (FaultKind::Key, Some(&b"k005"[..]), "a row does not match its checksum");
    assert_eq!(only(&found), of_row);
    // The row alone cannot be repaired. A repair of another fault leaves it as it is.
    assert!(repair(&dir.0, kept).unwrap().is_empty());
    edit(&dir, |txn| drop(txn.open_table(LOG).unwrap().remove(12).unwrap()));
    assert_eq!(repair(&dir.0, kept).unwrap().len(), 1);
    let after = check(&dir.0).unwrap();
    assert_eq!(only(&after), of_row);
    assert_eq!(without(&after.kvs, "k005"), without(&sound.kvs, "k005"));
    let store = Embedded::open(&dir.0, options()).unwrap();
    let kv = store.get(b"k005").await.unwrap().unwrap();
    assert_eq!(damage(&kv.value), Some("a row does not match its checksum"));
    store.delete("k005".into(), Precondition::Exists).await.unwrap();
    store.close().await.unwrap();
    assert_eq!(check(&dir.0).unwrap().faults, []);
}

#[tokio::test]
async fn what_contradicts_itself_is_found_and_repaired() {
    type Edit = fn(&redb::WriteTransaction);
    let cases: [(&str, FaultKind, Edit); 5] = [
        ("of revision 12 in the middle of the log is damaged: it is missing", FaultKind::History, |txn| {
            drop(txn.open_table(LOG).unwrap().remove(12).unwrap());
        }),
        ("the log holds revision 23, but the newest one is said to be 20", FaultKind::Numbers, |txn| {
            txn.open_table(META).unwrap().insert(META_REVISION, 20).unwrap();
        }),
        ("under lease 1, which does not exist", FaultKind::Lease, |txn| {
            drop(txn.open_table(LEASES).unwrap().remove(1).unwrap());
        }),
        ("lease 1 exists, but the last one is said to be 0", FaultKind::Numbers, |txn| {
            txn.open_table(META).unwrap().insert(META_LAST_LEASE, 0).unwrap();
        }),
        ("it was created by revision 99", FaultKind::Numbers, |txn| {
            let mut keys = txn.open_table(KEYS).unwrap();
            let row = keys.get(&b"k007"[..]).unwrap().unwrap().value().to_vec();
            let mut kv = codec::decode_key_value(b"k007", &row).unwrap();
            kv.create_revision = 99;
            let mut row = Vec::new();
            codec::encode_key_value(&mut row, &kv);
            keys.insert(&b"k007"[..], &row[..]).unwrap();
        }),
    ];
    for (reason, kind, change) in cases {
        let dir = filled(20).await;
        let sound = check(&dir.0).unwrap();
        edit(&dir, change);
        let found = check(&dir.0).unwrap();
        let fault = found.faults.iter().find(|f| f.reason.contains(reason));
        assert_eq!(fault.map(|f| f.kind), Some(kind), "{reason}: {:?}", found.faults);
        let before = std::fs::read(file(&dir)).unwrap();
        let full = || io::Error::from(io::ErrorKind::StorageFull);
        assert!(matches!(repair(&dir.0, |_| Err(full())), Err(RepairError::Keep(_))), "{reason}");
        assert!(std::fs::read(file(&dir)).unwrap() == before, "{reason}: changed without a copy");
        let mut copied = false;
        let mended = repair(&dir.0, |path| {
            assert!(std::fs::read(path)? == before);
            copied = true;
            Ok(())
        });
        assert!(!mended.unwrap().is_empty() && copied, "{reason}");
        let after = check(&dir.0).unwrap();
        assert_eq!(after.faults, [], "{reason}");
        assert!(after.revision >= sound.revision, "{reason}");
        let values = |kvs: &[KeyValue]| -> Vec<(Bytes, Bytes, u64, Option<LeaseId>)> {
            kvs.iter().map(|kv| (kv.key.clone(), kv.value.clone(), kv.mod_revision, kv.lease)).collect()
        };
        assert_eq!(values(&after.kvs), values(&sound.kvs), "{reason}");
        let store = Embedded::open(&dir.0, options()).unwrap();
        let next = store.put("k000".into(), "x".into(), Precondition::Exists, None).await.unwrap();
        assert!(next.kv.mod_revision > sound.revision, "{reason}");
        assert!(store.grant_lease(5).await.unwrap().get() > 1, "{reason}");
    }
}

/// Returns the result of a scrub of the whole file while it is in use.
async fn scrubbed(store: &Embedded) -> (u64, Vec<ScrubFault>) {
    let (mut keys, mut faults, mut from) = (0, Vec::new(), None);
    loop {
        let step = store.scrub(from).await.unwrap().unwrap();
        keys += step.keys;
        faults.extend(step.faults);
        match step.next {
            Some(next) => from = Some(next),
            None => return (keys, faults),
        }
    }
}

/// Where the file of a store contains these bytes.
fn places(dir: &TempDir, bytes: &[u8]) -> Vec<u64> {
    let file = std::fs::read(file(dir)).unwrap();
    let found: Vec<u64> = (0..)
        .zip(file.windows(bytes.len()))
        .filter(|(_, window)| *window == bytes)
        .map(|(at, _)| at)
        .collect();
    assert!(!found.is_empty());
    found
}

/// Changes the file of a store that is in use.
fn write_at(dir: &TempDir, places: &[u64], bytes: &[u8]) {
    let on_disk = std::fs::File::options().write(true).open(file(dir)).unwrap();
    places.iter().for_each(|at| on_disk.write_all_at(bytes, *at).unwrap());
}

#[tokio::test]
async fn damage_shows_while_the_store_is_in_use() {
    let dir = filled(20).await;
    // The database has all of it in its cache.
    let store = Embedded::open(&dir.0, options()).unwrap();
    for n in 0..5u8 {
        // More than one step reads.
        let value = vec![n; 700_000].into();
        store.put(format!("large{n}").into(), value, Precondition::Any, None).await.unwrap();
    }
    assert_eq!(scrubbed(&store).await, (24, Vec::new()));
    let value = [9; 700];
    let places = places(&dir, &value);
    write_at(&dir, &places, &[1]);
    let (keys, faults) = scrubbed(&store).await;
    assert_eq!(keys, 0, "the database does not read what is damaged");
    let is_named =
        |at: &u64| faults.iter().any(|fault| fault.bytes.as_ref().is_some_and(|of| of.contains(at)));
    assert!(places.iter().any(is_named), "{faults:?}");
    assert!(faults.iter().all(|fault| fault.reason == "it is not as it was written"), "{faults:?}");
    assert_eq!(store.get(b"k009").await.unwrap().unwrap().value, &value[..], "memory is sound");
    write_at(&dir, &places, &[9]);
    assert_eq!(scrubbed(&store).await, (24, Vec::new()));
    assert_eq!(Embedded::memory(options()).scrub(None).await.unwrap(), None);
}

/// A restart reads more than the keys, so a scrub reads the whole file, from the first scrub on.
#[tokio::test]
async fn leases_and_log_are_looked_at_too() {
    let dir = filled(20).await;
    let store = Embedded::open(&dir.0, options()).unwrap();
    let lease = [1u64.to_le_bytes(), 60u64.to_le_bytes()].concat();
    // The log contains the value that `again` has replaced.
    for (what, bytes) in [("leases", lease.as_slice()), ("log", &[0; 700])] {
        let places = if what == "log" { vec![log_record(&dir)] } else { places(&dir, bytes) };
        write_at(&dir, &places, &[0xee]);
        let (_, faults) = scrubbed(&store).await;
        assert!(!faults.is_empty(), "{what}");
        write_at(&dir, &places, &bytes[..1]);
        assert_eq!(scrubbed(&store).await.1, [], "{what}");
    }
}

/// Where a record of the log contains the overwritten value.
fn log_record(dir: &TempDir) -> u64 {
    // The key, the marker of a previous value, its four numbers, its length: only the log has these before a value.
    let head = [&b"k000"[..], &[1]].concat();
    let found: Vec<u64> = places(dir, &head);
    let bytes = std::fs::read(file(dir)).unwrap();
    let value = |at: u64| (at as usize) + head.len() + 32 + 4;
    let is_record = |at: &&u64| bytes.get(value(**at)..value(**at) + 700) == Some(&[0; 700][..]);
    value(*found.iter().find(is_record).unwrap()) as u64
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn writes_during_a_look_are_no_damage() {
    let dir = filled(20).await;
    let store = std::sync::Arc::new(Embedded::open(&dir.0, options()).unwrap());
    let writer = {
        let store = std::sync::Arc::clone(&store);
        tokio::spawn(async move {
            for n in 0..200u32 {
                let (key, value) = (format!("w{}", n % 17), vec![n as u8; 1 + (n as usize * 7919) % 60_000]);
                store.put(key.into(), value.into(), Precondition::Any, None).await.unwrap();
                if n % 50 == 49 {
                    store.compact(store.current_revision().await.unwrap()).await.unwrap();
                }
            }
        })
    };
    let mut looks = 0;
    while !writer.is_finished() || looks == 0 {
        let (keys, faults) = scrubbed(&store).await;
        assert_eq!(faults, []);
        assert!(keys >= 19, "{keys}");
        looks += 1;
    }
    writer.await.unwrap();
    assert_eq!(scrubbed(&store).await.1, []);
}

#[test]
fn a_repair_that_finds_no_room_leaves_nothing_behind() {
    let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
    let dir = runtime.block_on(filled(400));
    edit(&dir, |txn| drop(txn.open_table(LOG).unwrap().remove(12).unwrap()));
    let bytes = std::fs::read(file(&dir)).unwrap();
    std::thread::scope(|scope| {
        // A mount namespace of this thread alone, with a disk that has little more room than the file needs.
        let work = || {
            unshare(CloneFlags::CLONE_NEWNS).unwrap();
            let (none, flags) = (None::<&str>, MsFlags::MS_REC | MsFlags::MS_PRIVATE);
            mount(none, "/", none, flags, none).unwrap();
            let size = format!("size={}", bytes.len() + 64 * 1024);
            let tmpfs = Some("tmpfs");
            mount(tmpfs, &dir.0, tmpfs, MsFlags::empty(), Some(size.as_str())).unwrap();
            std::fs::write(file(&dir), &bytes).unwrap();
            let repaired = repair(&dir.0, kept);
            assert!(matches!(repaired, Err(RepairError::Database(_) | RepairError::Open(_))), "{repaired:?}");
            let left: Vec<_> = std::fs::read_dir(&dir.0).unwrap().map(|of| of.unwrap().file_name()).collect();
            assert_eq!(left, ["store.redb"]);
            assert!(std::fs::read(file(&dir)).unwrap() == bytes);
        };
        scope.spawn(work).join().unwrap();
    });
}
