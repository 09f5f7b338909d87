//! What admission has recently charged to a quota; the charged objects may not exist yet.

use std::collections::VecDeque;
use std::time::Duration;

use knarr_api::quota::Amounts;

/// How long after its charge an object may be created.
pub const SETTLE: Duration = Duration::from_millis(250);

/// The charges of one quota, as seen in its `status.used`.
#[derive(Debug, Default)]
pub struct Charges {
    used: Amounts,
    recent: VecDeque<(Duration, Amounts)>,
}

impl Charges {
    /// Observes the quota's `used` at `now`; returns how much of it was charged within [`SETTLE`], the first time all
    /// of it.
    pub fn observe(&mut self, used: Amounts, now: Duration) -> Amounts {
        let mut raised = Amounts::new();
        for (name, amount) in &used {
            let mut more = amount.clone();
            if let Some(before) = self.used.get(name) {
                more.sub(before);
            }
            if more.signum() > 0 {
                raised.insert(name.clone(), more);
            }
        }
        if !raised.is_empty() {
            self.recent.push_back((now, raised));
        }
        self.recent.retain(|(at, _)| now.saturating_sub(*at) < SETTLE);
        self.used = used;
        let mut sum = Amounts::new();
        for (name, amount) in self.recent.iter().flat_map(|(_, raised)| raised) {
            match sum.get_mut(name) {
                Some(so_far) => so_far.add(amount),
                None => drop(sum.insert(name.clone(), amount.clone())),
            }
        }
        sum
    }

    /// Records the amounts that the controller is about to write; what the quota shows beyond them later was charged
    /// since. They are recorded even if the write fails: then an amount that is still there counts as charged again.
    pub fn record(&mut self, used: Amounts) {
        self.used = used;
    }
}

/// Adds recent charges to each amount in `total` that is lower than in `used`, up to the amount in `used`. Returns
/// whether any amount was raised.
pub fn keep_recent(total: &mut Amounts, used: &Amounts, recent: &Amounts) -> bool {
    let mut kept = false;
    for (name, there) in total.iter_mut() {
        let Some((before, lately)) = used.get(name).zip(recent.get(name)).filter(|(b, _)| *b > there) else {
            continue;
        };
        there.add(lately);
        if *there > *before {
            *there = before.clone();
        }
        kept = true;
    }
    kept
}

#[cfg(test)]
mod tests {
    use super::*;
    use knarr_apimachinery::quantity::Quantity;

    fn pods(n: &str) -> Amounts {
        Amounts::from([("pods".to_owned(), Quantity::parse(n).unwrap())])
    }

    #[test]
    fn a_charge_counts_for_a_while() {
        let at = Duration::from_millis;
        let mut charges = Charges::default();
        assert_eq!(charges.observe(pods("2"), at(0)), pods("2"), "the time of the charge is unknown");
        assert_eq!(charges.observe(pods("3"), at(100)), pods("3"));
        assert_eq!(charges.observe(pods("1"), at(250)), pods("1"), "the third does not exist yet");
        assert_eq!(charges.observe(pods("1"), at(349)), pods("1"));
        assert_eq!(charges.observe(pods("1"), at(350)), Amounts::new());
    }

    #[test]
    fn what_is_charged_after_something_was_taken_off_counts() {
        let mut charges = Charges::default();
        charges.observe(pods("4"), Duration::ZERO);
        assert_eq!(charges.observe(pods("4"), SETTLE), Amounts::new());
        charges.record(pods("3"));
        assert_eq!(charges.observe(pods("4"), SETTLE * 2), pods("1"), "three, and one more");
    }

    #[test]
    fn what_was_charged_lately_is_not_taken_off() {
        for (there, used, recent, expected, kept) in [
            ("1", "4", None, "1", false),
            ("1", "4", Some("2"), "3", true),
            ("3", "4", Some("2"), "4", true),
            ("4", "4", Some("2"), "4", false),
            ("5", "4", Some("2"), "5", false),
        ] {
            let mut total = pods(there);
            let recent = recent.map(pods).unwrap_or_default();
            assert_eq!(keep_recent(&mut total, &pods(used), &recent), kept, "{there} of {used}");
            assert_eq!(total, pods(expected), "{there} of {used}");
        }
    }
}
