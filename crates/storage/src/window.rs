//! Chooses the revision to compact so that a window of time stays readable.

/// Turns regular ticks into compactions: history is kept for one to two intervals.
///
/// The caller calls `tick` once per interval with the current revision, and compacts the revision it returns.
#[derive(Debug, Default)]
pub struct RevisionWindow {
    previous: Option<u64>,
}

impl RevisionWindow {
    /// Returns the revision to compact now: the one that was current at the tick before.
    pub fn tick(&mut self, current: u64) -> Option<u64> {
        self.previous.replace(current)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn compacts_what_was_current_a_tick_ago() {
        let mut window = RevisionWindow::default();
        assert_eq!(window.tick(10), None);
        assert_eq!(window.tick(20), Some(10));
        assert_eq!(window.tick(20), Some(20));
    }
}
