//! When a resize that could not be carried out is tried again: after pauses that grow with time, not with the passes that
//! other events bring.

use std::time::Duration;

use jiff::{SignedDuration, Timestamp};

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Retry {
    /// Pauses so far.
    pauses: u32,
    pub at: Timestamp,
}

impl Retry {
    /// After a failure at `now`. One before its time is one more of the same pause.
    pub fn after(known: Option<Self>, now: Timestamp) -> Self {
        let pauses = match known {
            Some(retry) if now < retry.at => return retry,
            Some(retry) => retry.pauses.saturating_add(1),
            None => 1,
        };
        let pause = SignedDuration::try_from(pause_after(pauses - 1)).unwrap_or_default();
        Self { pauses, at: now.checked_add(pause).unwrap_or(Timestamp::MAX) }
    }
}

/// How long to wait after so many failures in a row.
pub fn pause_after(failures: u32) -> Duration {
    const FIRST: Duration = Duration::from_millis(500);
    const LONGEST: Duration = Duration::from_secs(122);
    FIRST.saturating_mul(1 << failures.min(10)).min(LONGEST)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_grow_with_time() {
        let at = |millis| Timestamp::from_millisecond(millis).unwrap();
        let mut retry = None;
        // When it failed, and when it is tried again.
        for (failed, again) in [(0, 500), (100, 500), (499, 500), (500, 1500), (700, 1500), (1600, 3600)] {
            retry = Some(Retry::after(retry, at(failed)));
            assert_eq!(retry.map(|r| r.at), Some(at(again)), "{failed}");
        }
    }
}
