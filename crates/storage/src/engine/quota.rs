//! Limits on the size of the store: accounts for the bytes of its keys, in total and by share.

use std::collections::BTreeMap;

use bytes::Bytes;

use super::health::admits;
use super::journal::Room;
use crate::error::Error;
use crate::options::{Options, ShareOf};
use crate::types::{Event, EventKind, KeyRange, KeyValue, Op};

/// The overhead of a key besides its own bytes and those of its value. Source: etcd's estimate.
pub(crate) const KEY_OVERHEAD_BYTES: u64 = 256;
/// The alarm clears when this much is free (less with small quotas), which is more than the largest value.
const CLEAR_BELOW: u64 = 4 * 1024 * 1024;

/// The bytes of the live keys.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Usage {
    pub(crate) total: u64,
    shares: BTreeMap<Bytes, u64>,
}

pub(crate) fn footprint(key: &[u8], value: &[u8]) -> u64 {
    key.len() as u64 + value.len() as u64 + KEY_OVERHEAD_BYTES
}

fn footprint_of(kv: &KeyValue) -> u64 {
    footprint(&kv.key, &kv.value)
}

impl Usage {
    pub(crate) fn share(&self, name: &[u8]) -> u64 {
        self.shares.get(name).copied().unwrap_or(0)
    }

    /// Changes a key's bytes from `before` to `after`.
    pub(crate) fn replace(&mut self, share: Option<&[u8]>, before: u64, after: u64) {
        self.total = self.total.saturating_sub(before).saturating_add(after);
        let Some(name) = share else { return };
        match self.shares.get_mut(name) {
            Some(used) => {
                *used = used.saturating_sub(before).saturating_add(after);
                if *used == 0 {
                    self.shares.remove(name);
                }
            }
            None if after > 0 => {
                self.shares.insert(Bytes::copy_from_slice(name), after);
            }
            None => {}
        }
    }

    pub(crate) fn apply(&mut self, event: &Event, share_of: Option<ShareOf>) {
        let before = event.prev.as_ref().map_or(0, footprint_of);
        let after = if event.kind == EventKind::Put { footprint_of(&event.kv) } else { 0 };
        self.replace(share_of.and_then(|of| of(&event.kv.key)), before, after);
    }
}

/// The changes of the usage by a batch so far, to be added to the usage of a state.
#[derive(Debug, Default)]
pub(crate) struct Changes {
    total: i128,
    shares: BTreeMap<Bytes, i128>,
}

impl Changes {
    pub(crate) fn add(&mut self, event: &Event, share_of: Option<ShareOf>) {
        let before = event.prev.as_ref().map_or(0, footprint_of);
        let after = if event.kind == EventKind::Put { footprint_of(&event.kv) } else { 0 };
        self.change(share_of.and_then(|of| of(&event.kv.key)), i128::from(after) - i128::from(before));
    }

    fn change(&mut self, share: Option<&[u8]>, by: i128) {
        self.total += by;
        if let Some(name) = share {
            *self.shares.entry(Bytes::copy_from_slice(name)).or_default() += by;
        }
    }

    fn total_on(&self, usage: &Usage) -> u64 {
        on(usage.total, self.total)
    }

    fn share_on(&self, usage: &Usage, name: &[u8]) -> u64 {
        on(usage.share(name), self.shares.get(name).copied().unwrap_or(0))
    }
}

fn on(used: u64, change: i128) -> u64 {
    u64::try_from(i128::from(used) + change).unwrap_or(0)
}

/// How much room is left when `used` bytes are in use. A margin above the limit is for what deletions need first:
/// deletion timestamps and the removal of finalizers.
fn room_within(used: u64, limit: u64, margin: u64) -> Room {
    if used <= limit {
        Room::Enough
    } else if used <= limit.saturating_add(margin) {
        Room::Short
    } else {
        Room::Last
    }
}

/// The margin above a limit: a thirty-second of it, at most 32 MiB. A quota has two: one for small updates of any key,
/// and another one for the reserved keys alone.
fn margin(limit: u64) -> u64 {
    (limit / 32).min(32 * 1024 * 1024)
}

/// The limits of a store.
#[derive(Debug, Clone)]
pub(crate) struct Limits {
    /// `None` means no quota.
    quota: Option<u64>,
    share: Option<u64>,
    share_of: Option<ShareOf>,
    reserved: Vec<KeyRange>,
}

/// The state that a transaction is checked against.
pub(crate) struct Present<'a> {
    pub(crate) usage: &'a Usage,
    pub(crate) changes: &'a Changes,
    /// Whether the quota's alarm is raised.
    pub(crate) alarm: bool,
}

impl Limits {
    pub(crate) fn new(options: &Options) -> Self {
        Self {
            quota: (options.quota_bytes > 0).then_some(options.quota_bytes),
            share: (options.share_bytes > 0).then_some(options.share_bytes),
            share_of: options.share_of,
            reserved: options.reserved.clone(),
        }
    }

    pub(crate) fn share_of(&self) -> Option<ShareOf> {
        self.share_of
    }

    pub(crate) fn quota(&self) -> Option<u64> {
        self.quota
    }

    pub(crate) fn any(&self) -> bool {
        self.quota.is_some() || self.share.is_some()
    }

    /// Checks whether there is room for a transaction's operations, each with the present state of its key.
    pub(crate) fn check(&self, present: &Present<'_>, ops: &[(&Op, Option<KeyValue>)]) -> Result<(), Error> {
        let mut asked = Changes::default();
        for (op, prev) in ops {
            let before = prev.as_ref().map_or(0, footprint_of);
            let after = match op {
                Op::Put { key, value, .. } => footprint(key, value),
                Op::Delete { .. } => 0,
            };
            let share = self.share_of.and_then(|of| of(op.key()));
            asked.change(share, i128::from(after) - i128::from(before));
        }
        self.check_shares(present, &asked, ops)?;
        self.check_quota(present, &asked, ops)
    }

    fn check_shares(
        &self,
        present: &Present<'_>,
        asked: &Changes,
        ops: &[(&Op, Option<KeyValue>)],
    ) -> Result<(), Error> {
        let (Some(limit), Some(share_of)) = (self.share, self.share_of) else { return Ok(()) };
        for (name, change) in &asked.shares {
            let used = present.changes.share_on(present.usage, name);
            let room = room_within(on(used, *change), limit, margin(limit));
            let mut of_share = ops.iter().filter(|(op, _)| share_of(op.key()) == Some(&name[..]));
            if !of_share.all(|(op, prev)| admits(room, op, prev.as_ref())) {
                return Err(Error::ShareExceeded {
                    share: String::from_utf8_lossy(name).into_owned(),
                    used,
                    requested: u64::try_from(*change).unwrap_or(0),
                    limit,
                });
            }
        }
        Ok(())
    }

    fn check_quota(
        &self,
        present: &Present<'_>,
        asked: &Changes,
        ops: &[(&Op, Option<KeyValue>)],
    ) -> Result<(), Error> {
        let Some(quota) = self.quota else { return Ok(()) };
        let after = on(present.changes.total_on(present.usage), asked.total);
        let mut room = room_within(after, quota, margin(quota));
        if present.alarm {
            room = room.max(Room::Short);
        }
        let reserve_left = after <= quota.saturating_add(2 * margin(quota));
        let fits = |(op, prev): &(&Op, Option<KeyValue>)| {
            admits(room, op, prev.as_ref()) || (reserve_left && self.is_reserved(op.key()))
        };
        if ops.iter().all(fits) { Ok(()) } else { Err(Error::NoSpace) }
    }

    fn is_reserved(&self, key: &[u8]) -> bool {
        self.reserved.iter().any(|range| range.contains(key))
    }

    /// Returns whether the quota's alarm is raised: a write that the quota refuses raises it, and it is cleared once
    /// there is room for any write.
    pub(crate) fn alarm(&self, was: bool, refused: bool, used: u64) -> bool {
        self.quota.is_some_and(|quota| {
            let close = used.saturating_add(CLEAR_BELOW.min(quota / 32)) > quota;
            close && (was || refused || used >= quota)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn share_of(key: &[u8]) -> Option<&[u8]> {
        key.split(|byte| *byte == b'/').nth(1)
    }

    fn limits(quota: u64, share: u64) -> Limits {
        let reserved = vec![KeyRange::prefix("r/")];
        Limits::new(&Options {
            quota_bytes: quota,
            share_bytes: share,
            share_of: Some(share_of),
            reserved,
            ..Options::default()
        })
    }

    /// A put with this footprint.
    fn put(key: &'static str, bytes: u64) -> Op {
        let value = vec![0; bytes as usize - KEY_OVERHEAD_BYTES as usize - key.len()];
        Op::Put { key: key.into(), value: value.into(), lease: None }
    }

    fn held(key: &'static str, bytes: u64) -> Option<KeyValue> {
        let Op::Put { key, value, .. } = put(key, bytes) else { return None };
        Some(KeyValue { key, value, create_revision: 1, mod_revision: 1, version: 1, lease: None })
    }

    #[test]
    fn the_quota_refuses_what_grows() {
        const Q: u64 = 320_000;
        // The margin is 10,000.
        let delete = || Op::Delete { key: "k".into() };
        let table = [
            ("up to the quota", Q - 1000, false, put("k", 1000), None, true),
            ("beyond it", Q - 999, false, put("k", 1000), None, false),
            ("in place of as much", Q, false, put("k", 1000), held("k", 1000), true),
            ("a small update", Q, false, put("k", 2024), held("k", 1000), true),
            ("a larger update", Q, false, put("k", 2025), held("k", 1000), false),
            ("a small update beyond the margin", Q + 10_000, false, put("k", 1001), held("k", 1000), false),
            ("an update that grows nothing", Q + 99_999, true, put("k", 1000), held("k", 1000), true),
            ("a deletion", Q + 99_999, true, delete(), held("k", 1000), true),
            ("a small creation while the alarm is on", Q - 5000, true, put("k", 1000), None, false),
            ("a reserved key", Q + 10_000, true, put("r/k", 10_000), None, true),
            ("a reserved key beyond the reserve", Q + 10_001, true, put("r/k", 10_000), None, false),
        ];
        for (what, total, alarm, op, prev, fits) in table {
            let usage = Usage { total, ..Usage::default() };
            let present = Present { usage: &usage, changes: &Changes::default(), alarm };
            let checked = limits(Q, 0).check(&present, &[(&op, prev)]);
            assert_eq!(checked, if fits { Ok(()) } else { Err(Error::NoSpace) }, "{what}");
        }
    }

    #[test]
    fn shares_are_limited_one_by_one() {
        const S: u64 = 32_000;
        let table = [
            ("up to the limit", S - 1000, put("x/a/k", 1000), None, None),
            ("beyond it", S - 999, put("x/a/k", 1000), None, Some(1000)),
            ("another's", S - 999, put("x/b/k", 1000), None, None),
            ("nobody's", S - 999, put("x", 1000), None, None),
            ("a deletion timestamp", S, put("x/a/k", 1200), held("x/a/k", 1000), None),
            ("above the margin", S + 1000, put("x/a/k", 1200), held("x/a/k", 1000), Some(200)),
            ("a deletion", S + 9000, Op::Delete { key: "x/a/k".into() }, held("x/a/k", 1000), None),
        ];
        for (what, used, op, prev, refused) in table {
            let mut usage = Usage::default();
            usage.replace(Some(b"a"), 0, used);
            let present = Present { usage: &usage, changes: &Changes::default(), alarm: false };
            let checked = limits(0, S).check(&present, &[(&op, prev)]);
            let expected = refused.map_or(Ok(()), |requested| {
                Err(Error::ShareExceeded { share: "a".into(), used, requested, limit: S })
            });
            assert_eq!(checked, expected, "{what}");
        }
    }

    #[test]
    fn the_alarm_clears_when_there_is_room_for_any_write() {
        const Q: u64 = 320_000;
        for (was, refused, used, on) in [
            (false, false, Q - 1, false),
            (false, false, Q, true),
            (false, true, Q - 1, true),
            (false, true, Q - 10_000, false),
            (true, false, Q - 9_999, true),
            (true, false, Q - 10_000, false),
        ] {
            assert_eq!(limits(Q, 0).alarm(was, refused, used), on, "{was} {refused} {used}");
        }
        assert!(!limits(0, 0).alarm(true, true, u64::MAX));
    }

    #[test]
    fn usage_forgets_shares_that_are_empty() {
        let mut usage = Usage::default();
        usage.replace(Some(b"a"), 0, 500);
        usage.replace(None, 0, 300);
        assert_eq!((usage.total, usage.share(b"a")), (800, 500));
        usage.replace(Some(b"a"), 500, 0);
        assert_eq!(usage, Usage { total: 300, ..Usage::default() });
    }
}
