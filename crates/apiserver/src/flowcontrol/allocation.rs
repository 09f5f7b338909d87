//! Divides the server's seats among the priority levels: in proportion to their demand, within their bounds.

/// The demand and bounds of one priority level.
#[derive(Debug, Clone, Copy)]
pub struct Wish {
    pub lower: f64,
    pub upper: f64,
    /// The demand; at least `lower`.
    pub target: f64,
}

const LEAST_TARGET: f64 = 0.001;
/// The number of bisection steps; more than the precision of f64 needs.
const ROUNDS: usize = 200;

/// Returns shares with the given sum, and the common proportion. Each share is its target times the proportion,
/// clamped to its bounds. `None` if the bounds do not allow the sum.
pub fn allocate(sum: f64, wishes: &[Wish]) -> Option<(Vec<f64>, f64)> {
    const EPSILON: f64 = 1e-7;
    let sound = |w: &Wish| w.lower >= 0.0 && w.target >= w.lower && w.upper >= w.lower;
    let (low, high) = wishes.iter().fold((0.0, 0.0), |(l, h), w| (l + w.lower, h + w.upper));
    if !wishes.iter().all(sound) || low - sum > EPSILON || sum - high > EPSILON {
        return None;
    }
    let share = |w: &Wish, proportion: f64| {
        (w.target.max(LEAST_TARGET) * proportion).clamp(w.lower, w.upper.max(w.lower))
    };
    let total = |proportion: f64| wishes.iter().map(|w| share(w, proportion)).sum::<f64>();
    // The total grows with the proportion, so the proportion that yields the sum is found by bisection.
    let most = wishes.iter().map(|w| w.upper / w.target.max(LEAST_TARGET)).fold(0.0, f64::max);
    let (mut below, mut above) = (0.0, most);
    for _ in 0..ROUNDS {
        let middle = f64::midpoint(below, above);
        if total(middle) < sum {
            below = middle;
        } else {
            above = middle;
        }
    }
    Some((wishes.iter().map(|w| share(w, above)).collect(), above))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn wish(lower: f64, upper: f64, target: f64) -> Wish {
        Wish { lower, upper, target }
    }

    #[test]
    fn shares_are_fair_within_bounds() {
        for (sum, wishes, expected) in [
            (30.0, vec![wish(0.0, 100.0, 10.0), wish(0.0, 100.0, 20.0)], vec![10.0, 20.0]),
            (60.0, vec![wish(0.0, 100.0, 10.0), wish(0.0, 100.0, 20.0)], vec![20.0, 40.0]),
            (60.0, vec![wish(0.0, 15.0, 10.0), wish(0.0, 100.0, 20.0)], vec![15.0, 45.0]),
            (30.0, vec![wish(20.0, 100.0, 20.0), wish(0.0, 100.0, 20.0)], vec![20.0, 10.0]),
            (0.0, vec![wish(0.0, 5.0, 1.0)], vec![0.0]),
        ] {
            let (found, _) = allocate(sum, &wishes).unwrap();
            for (f, e) in found.iter().zip(&expected) {
                assert!((f - e).abs() < 1e-6, "{found:?} {expected:?}");
            }
        }
        assert!(allocate(10.0, &[wish(0.0, 5.0, 1.0)]).is_none());
        assert!(allocate(1.0, &[wish(2.0, 5.0, 2.0)]).is_none());
        assert!(allocate(1.0, &[wish(2.0, 5.0, 1.0)]).is_none());
    }

    #[test]
    fn the_sum_is_kept_and_bounds_hold() {
        let mut random = fastrand::Rng::with_seed(7);
        for _ in 0..500 {
            let wishes: Vec<Wish> = (0..random.usize(1..8))
                .map(|_| {
                    let lower = random.f64() * 10.0;
                    wish(lower, lower + random.f64() * 50.0, lower + random.f64() * 40.0)
                })
                .collect();
            let low: f64 = wishes.iter().map(|w| w.lower).sum();
            let high: f64 = wishes.iter().map(|w| w.upper).sum();
            let sum = low + (high - low) * random.f64();
            let (found, _) = allocate(sum, &wishes).unwrap();
            assert!((found.iter().sum::<f64>() - sum).abs() < 1e-6);
            assert!(found.iter().zip(&wishes).all(|(f, w)| *f >= w.lower - 1e-9 && *f <= w.upper + 1e-9));
        }
    }
}
