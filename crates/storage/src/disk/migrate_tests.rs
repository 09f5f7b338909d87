//! Tests stores of former formats: files in `fixtures/` as they were written, and formats that only exist in these
//! tests.

use std::path::PathBuf;

use redb::{Database, ReadableDatabase, ReadableTable, TableDefinition, WriteTransaction};

use super::codec::{decode_key_value, encode_key_value};
use super::file::{OpenError, file};
use super::journal::{KEYS, META, META_FORMAT};
use super::load::LoadError;
use super::migrate::{FORMAT, OLDEST, STEPS, Step, migrate, newest};
use super::tests::TempDir;
use crate::{
    Embedded, KeyRange, LeaseId, Options, Precondition, RangeRequest, Store, WatchItem, WatchRequest,
};

fn options() -> Options {
    Options { reserve_bytes: 0, ..Options::default() }
}

/// The path of the file of a format. It is stored without the zeros that most of it consists of.
fn fixture(format: u64) -> PathBuf {
    let name = format!("src/disk/fixtures/format-{format}.bin");
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join(name)
}

/// Writes the content of every fixture.
async fn fill(store: &Embedded) {
    let lease = store.grant_lease(3600).await.unwrap();
    for (key, value, lease) in [
        ("/registry/core/configmaps/default/a", "one", None),
        ("/registry/core/events/default/e", "event", Some(lease)),
        ("/registry/core/configmaps/default/b", "gone", None),
        ("/registry/core/configmaps/default/a", "two", None),
    ] {
        store.put(key.into(), value.into(), Precondition::Any, lease).await.unwrap();
    }
    store.compact(3).await.unwrap();
    store.delete("/registry/core/configmaps/default/b".into(), Precondition::Exists).await.unwrap();
}

/// Encodes a file as runs of bytes between zeros: first the length of the whole, then for each run its offset and
/// length (u32, little-endian) and its bytes.
fn pack(bytes: &[u8]) -> Vec<u8> {
    const GAP: usize = 16;
    let number = |n: usize| u32::try_from(n).unwrap().to_le_bytes();
    let mut packed = number(bytes.len()).to_vec();
    let mut at = 0;
    while let Some(start) = bytes[at..].iter().position(|byte| *byte != 0).map(|skip| at + skip) {
        let gap = bytes[start..].windows(GAP).position(|window| window.iter().all(|byte| *byte == 0));
        let end = gap.map_or(bytes.len(), |gap| start + gap);
        packed.extend([number(start), number(end - start)].concat());
        packed.extend(&bytes[start..end]);
        at = end;
    }
    packed
}

fn unpack(packed: &[u8]) -> Vec<u8> {
    let number = |at: usize| u32::from_le_bytes(packed[at..at + 4].try_into().unwrap()) as usize;
    let mut bytes = vec![0; number(0)];
    let mut at = 4;
    while at < packed.len() {
        let (start, len) = (number(at), number(at + 4));
        bytes[start..start + len].copy_from_slice(&packed[at + 8..at + 8 + len]);
        at += 8 + len;
    }
    bytes
}

fn unpacked(format: u64) -> TempDir {
    let dir = TempDir::new();
    std::fs::create_dir_all(&dir.0).unwrap();
    std::fs::write(file(&dir.0), unpack(&std::fs::read(fixture(format)).unwrap())).unwrap();
    dir
}

#[tokio::test]
#[ignore = "writes the fixture of the current format, to be run after a change of format"]
async fn write_fixture() {
    let dir = TempDir::new();
    let store = Embedded::open(&dir.0, options()).unwrap();
    fill(&store).await;
    store.close().await.unwrap();
    let packed = pack(&std::fs::read(file(&dir.0)).unwrap());
    assert_eq!(unpack(&packed), std::fs::read(file(&dir.0)).unwrap());
    std::fs::write(fixture(FORMAT), packed).unwrap();
}

/// The current program reads a file of any format completely: keys, leases, history.
#[tokio::test]
async fn files_of_every_format_open_with_everything_in_them() {
    for format in OLDEST..=FORMAT {
        let dir = unpacked(format);
        assert_eq!(super::check::check(&dir.0).unwrap().faults, [], "format {format}");
        for _ in 0..2 {
            let store = Embedded::open(&dir.0, options()).unwrap();
            let kvs = store.range(RangeRequest::new(KeyRange::all())).await.unwrap().kvs;
            let shown: Vec<_> = kvs
                .iter()
                .map(|kv| {
                    (&kv.key[..], &kv.value[..], kv.create_revision, kv.mod_revision, kv.version, kv.lease)
                })
                .collect();
            type Row = (&'static [u8], &'static [u8], u64, u64, u64, Option<LeaseId>);
            let expected: [Row; 2] = [
                (b"/registry/core/configmaps/default/a", b"two", 2, 5, 2, None),
                (b"/registry/core/events/default/e", b"event", 3, 3, 1, LeaseId::new(1)),
            ];
            assert_eq!(shown, expected, "format {format}");
            assert_eq!(store.lease_ttl(LeaseId::new(1).unwrap()).await.unwrap(), 3600);
            let status = store.status().await.unwrap();
            assert_eq!((status.revision, status.compacted_revision), (6, 3), "format {format}");
            let mut watch = store.watch(WatchRequest::new(KeyRange::all()).after(3)).await.unwrap();
            let mut revisions = Vec::new();
            while revisions.len() < 3 {
                let WatchItem::Events(batch) = watch.next().await.unwrap().unwrap() else { continue };
                revisions.extend(batch.events.iter().map(|event| event.kv.mod_revision));
            }
            assert_eq!(revisions, [4, 5, 6], "format {format}");
            store.close().await.unwrap();
        }
        assert_eq!(format_of(&Database::open(file(&dir.0)).unwrap()), FORMAT, "format {format}");
    }
}

#[test]
fn fixtures_are_packed_and_unpacked() {
    for bytes in
        [vec![], vec![0; 100], vec![1; 100], [vec![0; 40], vec![1, 0, 2], vec![0; 40], vec![3]].concat()]
    {
        assert_eq!(unpack(&pack(&bytes)), bytes);
    }
}

const ADDED: TableDefinition<'static, &str, u64> = TableDefinition::new("added");

/// Adds a byte in front of every value.
fn second(txn: &WriteTransaction) -> Result<(), redb::Error> {
    let mut keys = txn.open_table(KEYS)?;
    let rows: Vec<(Vec<u8>, Vec<u8>)> = keys
        .iter()?
        .map(|row| row.map(|(key, row)| (key.value().to_vec(), row.value().to_vec())))
        .collect::<Result<_, _>>()?;
    for (key, row) in rows {
        let mut kv = decode_key_value(&key, &row).map_err(|e| redb::Error::Corrupted(e.to_string()))?;
        kv.value = [b"2", &kv.value[..]].concat().into();
        let mut row = Vec::new();
        encode_key_value(&mut row, &kv);
        keys.insert(&key[..], &row[..])?;
    }
    Ok(())
}

/// Adds a table, from the result of the step before.
fn third(txn: &WriteTransaction) -> Result<(), redb::Error> {
    let sum = {
        let keys = txn.open_table(KEYS)?;
        let starts = |row: &redb::AccessGuard<&[u8]>| row.value().get(32) == Some(&b'2');
        keys.iter()?.filter(|row| row.as_ref().is_ok_and(|(_, row)| starts(row))).count() as u64
    };
    txn.open_table(ADDED)?.insert("values", sum)?;
    Ok(())
}

fn fails(_: &WriteTransaction) -> Result<(), redb::Error> {
    Err(redb::Error::Corrupted("this step fails".to_owned()))
}

fn format_of(database: &Database) -> u64 {
    let meta = database.begin_read().unwrap().open_table(META).unwrap();
    meta.get(META_FORMAT).unwrap().unwrap().value()
}

fn values(database: &Database) -> Vec<Vec<u8>> {
    let keys = database.begin_read().unwrap().open_table(KEYS).unwrap();
    let value = |key: &[u8], row: &[u8]| decode_key_value(key, row).unwrap().value.to_vec();
    keys.iter().unwrap().map(|row| row.unwrap()).map(|(key, row)| value(key.value(), row.value())).collect()
}

#[test]
fn steps_are_taken_in_order_from_where_a_file_is_and_once() {
    let dir = unpacked(OLDEST);
    let database = Database::open(file(&dir.0)).unwrap();
    let steps: [Step; 2] = [second, third];
    migrate(&database, &steps[..0]).unwrap();
    assert_eq!((format_of(&database), newest(&steps[..0])), (OLDEST, OLDEST));
    for _ in 0..2 {
        migrate(&database, &steps[..1]).unwrap();
        assert_eq!(
            (format_of(&database), values(&database)),
            (2, vec![b"2two".to_vec(), b"2event".to_vec()])
        );
    }
    for _ in 0..2 {
        migrate(&database, &steps).unwrap();
        assert_eq!(format_of(&database), 3);
        let added = database.begin_read().unwrap().open_table(ADDED).unwrap();
        assert_eq!(
            added.get("values").unwrap().unwrap().value(),
            2,
            "the third step saw what the second did"
        );
    }
    assert!(matches!(migrate(&database, &steps[..1]), Err(LoadError::Format(3))), "newer is refused");
}

#[test]
fn a_step_that_fails_leaves_everything_as_it_was() {
    let dir = unpacked(OLDEST);
    let database = Database::open(file(&dir.0)).unwrap();
    let before = values(&database);
    assert!(migrate(&database, &[second, fails]).is_err());
    assert_eq!((format_of(&database), values(&database)), (OLDEST, before));
    drop(database);
    assert!(Embedded::open(&dir.0, options()).is_ok());
}

#[test]
fn a_newer_format_is_refused_in_clear_words() {
    for format in [0, newest(STEPS) + 1] {
        let dir = unpacked(FORMAT);
        {
            let database = Database::open(file(&dir.0)).unwrap();
            let txn = database.begin_write().unwrap();
            txn.open_table(META).unwrap().insert(META_FORMAT, format).unwrap();
            txn.commit().unwrap();
        }
        let error = Embedded::open(&dir.0, options()).unwrap_err();
        assert!(matches!(error, OpenError::Format { found, .. } if found == format));
        let reads =
            format!("has format {format}, this version of knarr reads formats up to {FORMAT}: start one");
        assert!(error.to_string().contains(&reads), "{error}");
    }
}
