//! Limits how often failing checks are logged, because clients may request them at any rate.

use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

const EVERY: Duration = Duration::from_secs(10);

/// When each endpoint's failing checks were last logged, by the monotonic clock.
#[derive(Default)]
pub struct Pace(Mutex<BTreeMap<&'static str, Duration>>);

impl Pace {
    /// Returns whether failures are to be logged now.
    pub fn is_due(&self, endpoint: &'static str, now: Duration) -> bool {
        let mut last = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if last.get(endpoint).is_some_and(|last| now.saturating_sub(*last) < EVERY) {
            return false;
        }
        last.insert(endpoint, now);
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_every_ten_seconds() {
        let pace = Pace::default();
        let due = |endpoint, seconds| pace.is_due(endpoint, Duration::from_secs(seconds));
        assert_eq!(
            [due("readyz", 0), due("readyz", 1), due("livez", 1), due("readyz", 9)],
            [true, false, true, false]
        );
        assert_eq!([due("readyz", 10), due("readyz", 11)], [true, false]);
    }
}
