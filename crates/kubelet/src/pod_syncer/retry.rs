//! When a failed resize is tried again: after pauses that grow with time, and not with each pass that other events
//! cause.

use std::time::Duration;

use jiff::{SignedDuration, Timestamp};

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
/// The next attempt of a failed resize.
pub(super) struct Retry {
    /// The number of pauses so far.
    pauses: u32,
    pub at: Timestamp,
}

impl Retry {
    /// Returns the next attempt after a failure at `now`. A failure before the time of the known attempt does not
    /// count: its pause goes on.
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

/// Returns the pause after this many failures in a row.
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
        // When the resize fails, and when it is tried again, in milliseconds.
        for (failed, again) in [(0, 500), (100, 500), (499, 500), (500, 1500), (700, 1500), (1600, 3600)] {
            retry = Some(Retry::after(retry, at(failed)));
            assert_eq!(retry.map(|r| r.at), Some(at(again)), "{failed}");
        }
    }
}
