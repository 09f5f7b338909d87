//! Exponential back-off by key, for restarts and image pulls.
//!
//! Source: the behaviour of `k8s.io/client-go/util/flowcontrol.Backoff`.

use std::collections::BTreeMap;
use std::time::Duration;

use jiff::Timestamp;

/// The first and the longest pause of container restarts and image pulls.
pub const INITIAL: Duration = Duration::from_secs(10);
pub const MAX: Duration = Duration::from_secs(300);

#[derive(Debug, Clone, Copy)]
struct Entry {
    back_off: Duration,
    last_update: Timestamp,
}

/// Pauses that double with every failure. A key without failures for twice the longest pause starts over.
#[derive(Debug, Clone)]
pub struct BackOff {
    initial: Duration,
    max: Duration,
    entries: BTreeMap<String, Entry>,
}

impl Default for BackOff {
    fn default() -> Self {
        Self::new(INITIAL, MAX)
    }
}

fn since(now: Timestamp, earlier: Timestamp) -> Duration {
    Duration::try_from(now.duration_since(earlier)).unwrap_or(Duration::ZERO)
}

impl BackOff {
    pub fn new(initial: Duration, max: Duration) -> Self {
        Self { initial, max, entries: BTreeMap::new() }
    }

    fn expired(&self, entry: &Entry, event: Timestamp) -> bool {
        since(event, entry.last_update) > self.max * 2
    }

    /// Returns the current pause of a key; zero if it has none.
    pub fn get(&self, key: &str) -> Duration {
        self.entries.get(key).map_or(Duration::ZERO, |entry| entry.back_off)
    }

    /// Records a failure: the pause doubles, or starts over if the last failure was long before `event`.
    pub fn next(&mut self, key: &str, event: Timestamp, now: Timestamp) {
        let back_off = match self.entries.get(key) {
            Some(entry) if !self.expired(entry, event) => (entry.back_off * 2).min(self.max),
            _ => self.initial,
        };
        self.entries.insert(key.to_owned(), Entry { back_off, last_update: now });
        // Older entries are not needed: an end that counts is at most twice the longest pause after the failure.
        self.entries.retain(|_, entry| since(now, entry.last_update) <= self.max * 3);
    }

    /// Returns until when to wait, counted from `event` (the end of the container); `None` if the pause has
    /// passed.
    pub fn wait_since(&self, key: &str, event: Timestamp, now: Timestamp) -> Option<Timestamp> {
        let entry = self.entries.get(key).filter(|entry| !self.expired(entry, event))?;
        let until = event.checked_add(entry.back_off).ok()?;
        (now < until).then_some(until)
    }

    /// Returns the same, counted from the last recorded failure.
    pub fn wait_since_update(&self, key: &str, now: Timestamp) -> Option<Timestamp> {
        let entry = self.entries.get(key).filter(|entry| !self.expired(entry, now))?;
        let until = entry.last_update.checked_add(entry.back_off).ok()?;
        (now < until).then_some(until)
    }

    /// Forgets the keys with this prefix.
    pub fn forget(&mut self, prefix: &str) {
        self.entries.retain(|key, _| !key.starts_with(prefix));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(seconds: i64) -> Timestamp {
        Timestamp::from_second(1_000_000 + seconds).unwrap()
    }

    #[test]
    fn doubles_to_the_limit_and_starts_over_after_a_quiet_time() {
        let mut back_off = BackOff::default();
        assert_eq!(back_off.wait_since("a", at(0), at(0)), None);
        let mut now = 0;
        for expected in [10, 20, 40, 80, 160, 300, 300] {
            back_off.next("a", at(now), at(now));
            assert_eq!(back_off.get("a").as_secs(), expected);
            assert_eq!(back_off.wait_since("a", at(now), at(now)), Some(at(now + expected as i64)));
            assert_eq!(back_off.wait_since("a", at(now), at(now + expected as i64)), None);
            now += expected as i64;
        }
        // It ran for eleven minutes, then failed.
        now += 660;
        assert_eq!(back_off.wait_since("a", at(now), at(now)), None);
        back_off.next("a", at(now), at(now));
        assert_eq!(back_off.get("a").as_secs(), 10);
        assert_eq!(back_off.entries.len(), 1);
        back_off.next("b", at(now), at(now));
        back_off.next("c", at(now + 900), at(now + 900));
        assert_eq!(back_off.entries.len(), 3, "entries that may still be waited for");
        back_off.next("c", at(now + 901), at(now + 901));
        assert_eq!(back_off.entries.keys().collect::<Vec<_>>(), ["c"]);
        assert_eq!(back_off.get("c").as_secs(), 20);
        back_off.forget("c");
        back_off.forget("a");
        assert_eq!(back_off.get("a").as_secs(), 0);
    }
}
