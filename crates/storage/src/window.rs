//! Which revision to compact so that a window of time stays readable.

/// Turns a regular tick into compactions: history is kept for between one and two intervals.
///
/// The caller ticks once an interval with the current revision and compacts what it is told to.
#[derive(Debug, Default)]
pub struct RevisionWindow {
    previous: Option<u64>,
}

impl RevisionWindow {
    /// The revision to compact now: the one that was current a tick ago.
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
