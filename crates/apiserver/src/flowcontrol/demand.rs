//! The demand for seats of a priority level over a period: average, standard deviation, high watermark, and smoothed
//! values.

use std::time::Duration;

/// The weight of the previous smoothed demand from one period to the next.
const SMOOTHING: f64 = 0.977;

/// Integrates a step function over time.
#[derive(Debug, Default)]
pub struct Integrator {
    since: Duration,
    seconds: f64,
    now: f64,
    sum: f64,
    squares: f64,
    most: f64,
}

/// The demand of past periods.
#[derive(Debug, Default, Clone, Copy)]
pub struct Demand {
    pub average: f64,
    pub deviation: f64,
    pub high_watermark: f64,
    pub smoothed: f64,
}

impl Integrator {
    fn advance(&mut self, now: Duration) {
        let seconds = now.saturating_sub(self.since).as_secs_f64();
        self.since = self.since.max(now);
        self.seconds += seconds;
        self.sum += self.now * seconds;
        self.squares += self.now * self.now * seconds;
    }

    pub fn set(&mut self, now: Duration, value: f64) {
        self.advance(now);
        self.now = value;
        self.most = self.most.max(value);
    }

    /// Adds the last period to the statistics, and begins a new one.
    pub fn finish(&mut self, now: Duration, demand: &mut Demand) {
        self.advance(now);
        demand.high_watermark = self.most.round();
        if self.seconds > 0.0 {
            demand.average = self.sum / self.seconds;
            let variance = self.squares / self.seconds - demand.average * demand.average;
            demand.deviation = variance.max(0.0).sqrt();
            let envelope = demand.average + demand.deviation;
            demand.smoothed = envelope.max(SMOOTHING * demand.smoothed + (1.0 - SMOOTHING) * envelope);
        }
        *self = Self { since: self.since, now: self.now, most: self.now, ..Self::default() };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_step_is_averaged_and_forgotten_slowly() {
        let at = Duration::from_secs;
        let (mut integrator, mut demand) = (Integrator::default(), Demand::default());
        integrator.set(at(0), 0.0);
        integrator.set(at(5), 10.0);
        integrator.finish(at(10), &mut demand);
        assert_eq!((demand.average, demand.deviation, demand.high_watermark), (5.0, 5.0, 10.0));
        assert_eq!(demand.smoothed, 10.0);
        integrator.set(at(10), 0.0);
        integrator.finish(at(20), &mut demand);
        assert_eq!((demand.average, demand.high_watermark), (0.0, 10.0));
        assert!((demand.smoothed - 9.77).abs() < 1e-9);
    }
}
