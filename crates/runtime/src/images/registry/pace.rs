//! The minimum speed of a registry.
//!
//! A body of which a byte arrives now and then never times out. The required speed is less than that of the
//! slowest line over which images are pulled, so that only a registry that delays a pull on purpose, or because
//! of a fault, is given up.

use std::time::Duration;

use super::NetworkError;

/// The least number of bytes per span of waiting. Time between the waits, for example for writing to a slow
/// disk, does not count.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Pace {
    pub span: Duration,
    pub min_bytes: u64,
}

impl Default for Pace {
    /// Requires 4 KiB a second, averaged over five minutes.
    fn default() -> Self {
        Self { span: Duration::from_secs(300), min_bytes: 300 * (4 << 10) }
    }
}

/// The progress of one body, also over several connections.
#[derive(Debug)]
pub struct Paced {
    pace: Pace,
    waited: Duration,
    bytes: u64,
}

impl Paced {
    pub fn new(pace: Pace) -> Self {
        Self { pace, waited: Duration::ZERO, bytes: 0 }
    }

    /// Records that bytes arrived after some waiting; fails if they are too few.
    pub fn came(&mut self, waited: Duration, bytes: usize) -> Result<(), NetworkError> {
        self.waited += waited;
        self.bytes += bytes as u64;
        if self.waited < self.pace.span {
            return Ok(());
        }
        if self.bytes < self.pace.min_bytes {
            return Err(NetworkError::Slow { bytes: self.bytes, seconds: self.waited.as_secs() });
        }
        *self = Self::new(self.pace);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_span_has_to_bring_something() {
        let pace = Pace { span: Duration::from_secs(10), min_bytes: 100 };
        let second = Duration::from_secs(1);
        let mut paced = Paced::new(pace);
        for _ in 0..30 {
            paced.came(second, 10).unwrap();
        }
        // A burst counts only for its own span.
        paced.came(second, 1_000_000).unwrap();
        for _ in 0..18 {
            paced.came(second, 1).unwrap();
        }
        let error = paced.came(second, 1).unwrap_err().to_string();
        assert_eq!(error, "too slow: 10 bytes in 10 s");
    }
}
