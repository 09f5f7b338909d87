//! Encodes rows as bytes. Every row ends with a checksum over its key and its body.
//!
//! A row of `keys` contains the state of the key: create revision, mod revision, version, lease (0 for none), each as a
//! little-endian u64, then the value.
//!
//! A row of `log` contains how to undo a revision: a u32 count of events, then for each its kind (0 put, 1 delete), its
//! key, and whether there was a value before, with that value in the form of `keys`. Keys and values have a u32 length
//! before them. The value that an event wrote is the previous value of the next event, or the one in `keys`, so each
//! value is stored at most twice.

use bytes::Bytes;

use crate::types::{Event, EventKind, KeyValue, LeaseId};

const CHECKSUM_BYTES: usize = 8;

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(super) enum CodecError {
    #[error("a row is shorter than it says")]
    Short,
    #[error("a row does not match its checksum")]
    Checksum,
    #[error("a row holds an unknown kind of event")]
    Kind,
    #[error("a row goes on after its end")]
    Trailing,
}

type Result<T> = std::result::Result<T, CodecError>;

/// An event as stored in the log: without the value it wrote.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Undo {
    pub(super) kind: EventKind,
    pub(super) key: Bytes,
    pub(super) prev: Option<KeyValue>,
}

pub(super) fn encode_key_value(row: &mut Vec<u8>, kv: &KeyValue) {
    row.clear();
    put_numbers(row, kv);
    row.extend_from_slice(&kv.value);
    seal(row, &kv.key);
}

pub(super) fn decode_key_value(key: &[u8], row: &[u8]) -> Result<KeyValue> {
    let mut reader = Reader(open(row, key)?);
    let key = Bytes::copy_from_slice(key);
    reader.key_value(key)
}

pub(super) fn encode_undo(row: &mut Vec<u8>, revision: u64, events: &[Event]) {
    row.clear();
    put_len(row, events.len());
    for event in events {
        row.push(match event.kind {
            EventKind::Put => 0,
            EventKind::Delete => 1,
        });
        put_len(row, event.kv.key.len());
        row.extend_from_slice(&event.kv.key);
        row.push(u8::from(event.prev.is_some()));
        if let Some(prev) = &event.prev {
            put_numbers(row, prev);
            put_len(row, prev.value.len());
            row.extend_from_slice(&prev.value);
        }
    }
    seal(row, &revision.to_le_bytes());
}

pub(super) fn decode_undo(revision: u64, row: &[u8]) -> Result<Vec<Undo>> {
    let mut reader = Reader(open(row, &revision.to_le_bytes())?);
    let count = reader.len()?;
    // The count is not used to allocate memory: decoding ends when the bytes of an event are missing.
    let mut events = Vec::new();
    for _ in 0..count {
        let kind = match reader.byte()? {
            0 => EventKind::Put,
            1 => EventKind::Delete,
            _ => return Err(CodecError::Kind),
        };
        let key_len = reader.len()?;
        let key = Bytes::copy_from_slice(reader.take(key_len)?);
        let prev = match reader.byte()? {
            0 => None,
            1 => Some(reader.prev(key.clone())?),
            _ => return Err(CodecError::Kind),
        };
        events.push(Undo { kind, key, prev });
    }
    if reader.0.is_empty() { Ok(events) } else { Err(CodecError::Trailing) }
}

fn put_numbers(row: &mut Vec<u8>, kv: &KeyValue) {
    let lease = kv.lease.map_or(0, LeaseId::get);
    for number in [kv.create_revision, kv.mod_revision, kv.version, lease] {
        row.extend_from_slice(&number.to_le_bytes());
    }
}

/// Lengths are limited by the limits on keys, values and transactions, far below 4 GiB.
fn put_len(row: &mut Vec<u8>, len: usize) {
    row.extend_from_slice(&u32::try_from(len).unwrap_or(u32::MAX).to_le_bytes());
}

fn seal(row: &mut Vec<u8>, key: &[u8]) {
    let sum = checksum(key, row);
    row.extend_from_slice(&sum.to_le_bytes());
}

fn open<'a>(row: &'a [u8], key: &[u8]) -> Result<&'a [u8]> {
    let (body, sum) = row.split_last_chunk::<CHECKSUM_BYTES>().ok_or(CodecError::Short)?;
    if checksum(key, body) == u64::from_le_bytes(*sum) { Ok(body) } else { Err(CodecError::Checksum) }
}

/// Each step is a bijection of the sum so far, so any change within one word of eight bytes is detected; a larger
/// change goes undetected once in 2^64.
pub(super) fn checksum(key: &[u8], body: &[u8]) -> u64 {
    const PRIME: u64 = 0x9e37_79b9_7f4a_7c15;
    let step = |sum: u64, word: u64| (sum ^ word).wrapping_mul(PRIME).rotate_left(29);
    let mut sum = step(PRIME, key.len() as u64);
    sum = step(sum, body.len() as u64);
    for part in [key, body] {
        let (words, rest) = part.as_chunks::<8>();
        sum = words.iter().fold(sum, |sum, word| step(sum, u64::from_le_bytes(*word)));
        let mut last = [0; 8];
        last[..rest.len()].copy_from_slice(rest);
        sum = step(sum, u64::from_le_bytes(last));
    }
    sum
}

struct Reader<'a>(&'a [u8]);

impl<'a> Reader<'a> {
    fn take(&mut self, len: usize) -> Result<&'a [u8]> {
        let (taken, rest) = self.0.split_at_checked(len).ok_or(CodecError::Short)?;
        self.0 = rest;
        Ok(taken)
    }

    fn array<const N: usize>(&mut self) -> Result<[u8; N]> {
        let (taken, rest) = self.0.split_first_chunk::<N>().ok_or(CodecError::Short)?;
        self.0 = rest;
        Ok(*taken)
    }

    fn byte(&mut self) -> Result<u8> {
        Ok(self.array::<1>()?[0])
    }

    fn number(&mut self) -> Result<u64> {
        Ok(u64::from_le_bytes(self.array()?))
    }

    fn len(&mut self) -> Result<usize> {
        Ok(u32::from_le_bytes(self.array()?) as usize)
    }

    fn prev(&mut self, key: Bytes) -> Result<KeyValue> {
        let numbers = [self.number()?, self.number()?, self.number()?, self.number()?];
        let value_len = self.len()?;
        let value = self.take(value_len)?;
        Ok(with_numbers(key, numbers, value))
    }

    /// Reads a key's state; the rest of the row is the value.
    fn key_value(&mut self, key: Bytes) -> Result<KeyValue> {
        let numbers = [self.number()?, self.number()?, self.number()?, self.number()?];
        Ok(with_numbers(key, numbers, self.0))
    }
}

fn with_numbers(key: Bytes, numbers: [u64; 4], value: &[u8]) -> KeyValue {
    let [create_revision, mod_revision, version, lease] = numbers;
    let value = Bytes::copy_from_slice(value);
    KeyValue { key, value, create_revision, mod_revision, version, lease: LeaseId::new(lease) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn kv(key: &'static str, value: &'static str, lease: u64) -> KeyValue {
        KeyValue {
            key: key.into(),
            value: value.into(),
            create_revision: 3,
            mod_revision: 9,
            version: 4,
            lease: LeaseId::new(lease),
        }
    }

    fn events() -> Vec<Event> {
        vec![
            Event { kind: EventKind::Put, kv: kv("a", "new", 0), prev: None },
            Event { kind: EventKind::Delete, kv: kv("b", "", 0), prev: Some(kv("b", "old", 7)) },
        ]
    }

    #[test]
    fn rows_come_back() {
        let mut row = Vec::new();
        for kv in [kv("key", "value", 5), kv("k", "", 0)] {
            encode_key_value(&mut row, &kv);
            assert_eq!(decode_key_value(&kv.key, &row), Ok(kv));
        }
        encode_undo(&mut row, 10, &events());
        let undo: Vec<Undo> = events()
            .into_iter()
            .map(|event| Undo { kind: event.kind, key: event.kv.key, prev: event.prev })
            .collect();
        assert_eq!(decode_undo(10, &row), Ok(undo));
    }

    #[test]
    fn damage_shows() {
        let mut row = Vec::new();
        encode_undo(&mut row, 10, &events());
        assert!(decode_undo(11, &row).is_err());
        for len in 0..row.len() {
            assert!(decode_undo(10, &row[..len]).is_err(), "cut at {len}");
        }
        for bit in 0..row.len() * 8 {
            let mut bad = row.clone();
            bad[bit / 8] ^= 1 << (bit % 8);
            assert!(decode_undo(10, &bad).is_err(), "bit {bit}");
        }
        encode_key_value(&mut row, &kv("key", "value", 5));
        assert_eq!(decode_key_value(b"other", &row), Err(CodecError::Checksum));
    }

    #[test]
    fn a_sealed_row_of_nonsense_is_refused() {
        for body in
            [&[9, 0, 0, 0][..], &[1, 0, 0, 0, 7], &[0, 0, 0, 0, 1], &[1, 0, 0, 0, 0, 255, 255, 255, 255]]
        {
            let mut row = body.to_vec();
            seal(&mut row, &1u64.to_le_bytes());
            assert!(decode_undo(1, &row).is_err(), "{body:?}");
        }
    }
}
