//! Scrubs the file: reads it part by part and compares it with memory, because damage to data that are never read goes
//! unnoticed.
//!
//! First the bytes of the file are compared with what was written, at the same time as writes. Only if all of them are
//! intact, the rows follow, through the database: they are compared with the state in memory.

use std::collections::BTreeMap;
use std::ops::Bound;
use std::sync::Arc;

use bytes::Bytes;

use super::committer::Committer;
use super::journal::{Journal, RawFile, Rows};
use super::state::{Scan, State};
use crate::types::{KeyRange, KeyValue, ScrubFault, ScrubFrom, ScrubStep, damage};
use crate::{Error, Result};

/// The number of bytes of rows that one step reads. It blocks writers for about as long as a write does.
const STEP_BYTES: usize = 1024 * 1024;

/// Scrubs the bytes from an offset on, where blocking is allowed.
pub(crate) async fn of_file(raw: Arc<dyn RawFile>, offset: u64) -> Result<ScrubStep> {
    let looked = tokio::task::spawn_blocking(move || raw.look(offset)).await;
    let step = looked.map_err(|_| Error::Unavailable { reason: "the file was not looked at".into() })?;
    let next = match step.next {
        Some(offset) => Some(ScrubFrom::Byte(offset)),
        None => (!step.damaged).then_some(ScrubFrom::Row(None)),
    };
    Ok(ScrubStep { next, keys: 0, bytes: step.bytes, faults: step.faults })
}

impl<J: Journal> Committer<J> {
    /// Scrubs the rows after a key. Between two batches, the file has the same content as memory.
    pub(crate) fn scrub(&mut self, after: Option<&[u8]>) -> Result<ScrubStep> {
        let read = self.journal.read_rows(after, STEP_BYTES);
        let state = self.core.read()?;
        match read {
            Ok(rows) => Ok(compare(&state, after, rows)),
            // The end of the unreadable part is unknown, so the scrub ends here as well.
            Err(error) => {
                let key = after.map(Bytes::copy_from_slice).unwrap_or_default();
                let fault = ScrubFault::of_key(key, error.to_string());
                Ok(ScrubStep { next: None, keys: 0, bytes: 0, faults: vec![fault] })
            }
        }
    }
}

/// Compares the rows after a key with memory. Keys that were set aside when the file was opened are skipped: they were
/// reported then, and memory contains no more about them than the file.
fn compare(state: &State, after: Option<&[u8]>, rows: Rows) -> ScrubStep {
    let next = if rows.ended { None } else { rows.rows.last().map(|(key, _)| key.clone()) };
    let range = KeyRange { start: start_after(after), end: next.as_ref().map(|key| start_after(Some(key))) };
    let mut scan = Scan::new(range, state.revision(), usize::MAX, false);
    state.scan(&mut scan, usize::MAX);
    let mut held: BTreeMap<Bytes, KeyValue> = scan.kvs.into_iter().map(|kv| (kv.key.clone(), kv)).collect();
    let keys = rows.rows.len() as u64;
    let mut faults = Vec::new();
    for (key, row) in rows.rows {
        let problem = match (row, held.remove(&key)) {
            (_, Some(held)) if damage(&held.value).is_some() => continue,
            (Err(reason), _) => reason,
            (Ok(row), Some(held)) if row == held => continue,
            (Ok(_), Some(_)) => "the file holds it otherwise than it was written".to_owned(),
            (Ok(_), None) => "the file holds it, and it was deleted".to_owned(),
        };
        faults.push(ScrubFault::of_key(key, problem));
    }
    let lost = "the file does not hold it";
    let held = held.into_iter().filter(|(_, kv)| damage(&kv.value).is_none());
    faults.extend(held.map(|(key, _)| ScrubFault::of_key(key, lost.to_owned())));
    ScrubStep { next: next.map(|key| ScrubFrom::Row(Some(key))), keys, bytes: 0, faults }
}

/// The first key that can follow another one.
fn start_after(key: Option<&[u8]>) -> Bytes {
    key.map(|key| Bytes::from([key, &[0]].concat())).unwrap_or_default()
}

/// The bound of the rows after a key.
pub(crate) fn bound(after: Option<&[u8]>) -> Bound<&[u8]> {
    after.map_or(Bound::Unbounded, Bound::Excluded)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::types::damaged_value;

    fn kv(key: &'static str, value: &'static str) -> KeyValue {
        let (key, value) = (key.into(), value.into());
        KeyValue { key, value, create_revision: 2, mod_revision: 3, version: 1, lease: None }
    }

    #[test]
    fn the_file_is_held_against_memory() {
        let state = State::restore(9, 9, 0, [], [kv("a", "1"), kv("b", "1"), kv("d", "1")]);
        let rows = |rows: &[(&'static str, Result<&'static str, &str>)], ended| Rows {
            rows: rows
                .iter()
                .map(|(key, row)| (Bytes::from(*key), row.map(|value| kv(key, value)).map_err(str::to_owned)))
                .collect(),
            bytes: 7,
            ended,
        };
        type Faults = [(&'static str, &'static str)];
        type Case = (Option<&'static [u8]>, Rows, Option<&'static str>, &'static Faults);
        let cases: [Case; 7] = [
            (None, rows(&[("a", Ok("1")), ("b", Ok("1")), ("d", Ok("1"))], true), None, &[]),
            (None, rows(&[("a", Ok("1"))], false), Some("a"), &[]),
            (Some(b"a"), rows(&[("b", Ok("1"))], false), Some("b"), &[]),
            (Some(b"a"), rows(&[("b", Ok("2")), ("d", Ok("1"))], true), None, &[("b", "otherwise")]),
            (Some(b"a"), rows(&[("b", Err("torn")), ("d", Ok("1"))], true), None, &[("b", "torn")]),
            (Some(b"b"), rows(&[("c", Ok("1")), ("d", Ok("1"))], true), None, &[("c", "deleted")]),
            (Some(b"b"), rows(&[], true), None, &[("d", "does not hold")]),
        ];
        for (after, rows, next, expected) in cases {
            let shown = format!("{after:?} {rows:?}");
            let step = compare(&state, after, rows);
            assert_eq!(step.next, next.map(|key| ScrubFrom::Row(Some(key.into()))), "{shown}");
            assert_eq!(step.faults.len(), expected.len(), "{shown}: {:?}", step.faults);
            for (fault, (expected, part)) in step.faults.iter().zip(expected) {
                assert!(fault.key == expected && fault.reason.contains(part), "{shown}: {:?}", step.faults);
            }
        }
    }

    #[test]
    fn what_was_set_aside_is_not_reported_every_day() {
        let aside = |key: &'static str| KeyValue { value: damaged_value("torn"), ..kv(key, "") };
        let state = State::restore(9, 9, 0, [], [aside("a"), aside("b"), aside("c"), kv("d", "1")]);
        let row = |key: &'static str, row| (Bytes::from(key), row);
        let rows = vec![
            row("a", Err("torn".to_owned())),
            // It does not have the value that the log says was written.
            row("b", Ok(kv("b", "older"))),
            row("d", Err("torn too".to_owned())),
        ];
        let step = compare(&state, None, Rows { rows, bytes: 7, ended: true });
        assert_eq!(step.faults, [ScrubFault::of_key("d".into(), "torn too".to_owned())]);
    }
}
