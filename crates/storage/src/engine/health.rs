//! Decides which writes the store accepts while the disk fails or space is short.

use std::time::Duration;

use super::journal::Room;
use crate::types::{KeyValue, Op};

const FIRST_RETRY: Duration = Duration::from_millis(50);
const LAST_RETRY: Duration = Duration::from_secs(5);
/// How much an update may add to a value while space is short: a deletion timestamp, a condition, a lease's holder.
const SMALL_GROWTH: usize = 1024;

/// When to try again to open the file after a failed commit.
#[derive(Debug, Clone, Copy)]
pub(super) struct Retry {
    at: Duration,
    pause: Duration,
}

impl Retry {
    /// Creates a schedule whose first attempt is due at once.
    pub(super) fn new(now: Duration) -> Self {
        Self { at: now, pause: FIRST_RETRY }
    }

    pub(super) fn left(&self, now: Duration) -> Duration {
        self.at.saturating_sub(now)
    }

    /// Records a failed attempt. The pause is at least as long as the attempt took, because opening a large file takes
    /// a while.
    pub(super) fn failed(&mut self, started: Duration, now: Duration) {
        let took = now.saturating_sub(started);
        self.at = now.saturating_add(self.pause.max(took));
        self.pause = (self.pause * 2).min(LAST_RETRY);
    }
}

/// Returns whether a write is accepted while this much space is left. Deletions always are. Updates are if they make
/// the value hardly larger: finalizers must be removed and leases renewed before anything can be deleted.
pub(super) fn admits(room: Room, op: &Op, prev: Option<&KeyValue>) -> bool {
    let slack = match room {
        Room::Enough => return true,
        Room::Short => SMALL_GROWTH,
        Room::Last => 0,
    };
    match op {
        Op::Delete { .. } => true,
        Op::Put { value, .. } => prev.is_some_and(|prev| value.len() <= prev.value.len() + slack),
    }
}

/// Files smaller than this are not shrunk.
const SMALL_FILE: u64 = 64 * 1024 * 1024;

/// Returns whether to shrink the file: `used` is the approximate size of its content, `used_last` that of the last time
/// it was shrunk. While there is enough space, the file may be four times as large as necessary, because it grows in
/// steps and its space is reused.
pub(super) fn worth_shrinking(room: Room, file: u64, used: u64, used_last: Option<u64>) -> bool {
    let emptied = used_last.is_none_or(|last| used < last - last / 4);
    match room {
        Room::Enough => file > SMALL_FILE && used < file / 4 && emptied,
        Room::Short | Room::Last => used < file - file / 4 && emptied,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_are_shrunk_when_it_pays() {
        const MIB: u64 = 1024 * 1024;
        let table = [
            (Room::Enough, 60, 1, None, false),
            (Room::Enough, 100, 20, None, true),
            (Room::Enough, 100, 30, None, false),
            (Room::Enough, 100, 20, Some(24), false),
            (Room::Enough, 100, 20, Some(30), true),
            (Room::Short, 10, 8, None, false),
            (Room::Short, 10, 7, None, true),
            (Room::Last, 10, 7, Some(8), false),
        ];
        for (room, file, used, last, worth) in table {
            let decided = worth_shrinking(room, file * MIB, used * MIB, last.map(|last| last * MIB));
            assert_eq!(decided, worth, "{room:?} {file} {used} {last:?}");
        }
    }

    #[test]
    fn retries_become_rarer() {
        let ms = Duration::from_millis;
        let mut retry = Retry::new(ms(100));
        assert_eq!(retry.left(ms(100)), ms(0));
        retry.failed(ms(100), ms(110));
        assert_eq!(retry.left(ms(110)), ms(50));
        retry.failed(ms(160), ms(1160));
        assert_eq!(retry.left(ms(1160)), ms(1000), "as long as the attempt took");
        (0..20).for_each(|_| retry.failed(ms(0), ms(0)));
        assert_eq!(retry.left(ms(0)), LAST_RETRY);
    }

    #[test]
    fn what_is_admitted_while_room_is_short() {
        let put = |len: usize| Op::Put { key: "k".into(), value: vec![0; len].into(), lease: None };
        let prev = KeyValue {
            key: "k".into(),
            value: vec![0; 100].into(),
            create_revision: 1,
            mod_revision: 1,
            version: 1,
            lease: None,
        };
        let table = [
            (Room::Enough, put(9999), None, true),
            (Room::Short, put(1), None, false),
            (Room::Short, put(100 + SMALL_GROWTH), Some(&prev), true),
            (Room::Short, put(101 + SMALL_GROWTH), Some(&prev), false),
            (Room::Last, put(100), Some(&prev), true),
            (Room::Last, put(101), Some(&prev), false),
            (Room::Last, Op::Delete { key: "k".into() }, Some(&prev), true),
        ];
        for (room, op, prev, admitted) in table {
            assert_eq!(admits(room, &op, prev), admitted, "{room:?} {op:?}");
        }
    }
}
