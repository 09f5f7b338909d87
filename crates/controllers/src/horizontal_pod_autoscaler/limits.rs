//! How fast and how far the number of replicas may change: stabilization windows, policies, bounds.
//!
//! Source: the behaviour of `k8s.io/kubernetes/pkg/controller/podautoscaler/horizontal.go`.

use std::time::Duration;

use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::autoscaling::v2::{HPAScalingPolicy, HPAScalingRules, HorizontalPodAutoscalerBehavior};

/// Without scaling rules, replicas at most double in one step, or rise to `UP_MINIMUM`.
const UP_FACTOR: f64 = 2.0;
const UP_MINIMUM: f64 = 4.0;
/// The most entries kept in each list of the history.
const MOST: usize = 1000;

/// The recent recommendations and scale events.
#[derive(Debug, Default)]
pub struct History {
    recommendations: Vec<(Timestamp, i32)>,
    ups: Vec<(Timestamp, i32)>,
    downs: Vec<(Timestamp, i32)>,
}

impl History {
    /// Records the size at which the controller first saw the target.
    pub fn begin(&mut self, now: Timestamp, current: i32) {
        if self.recommendations.is_empty() {
            self.recommendations.push((now, current));
        }
    }

    /// Records that replicas were added or removed.
    pub fn changed(&mut self, now: Timestamp, rules: &Rules, from: i32, to: i32) {
        let (list, period) = if to > from {
            (&mut self.ups, rules.up.period())
        } else {
            (&mut self.downs, rules.down.period())
        };
        prune(list, now, period);
        list.push((now, (to - from).abs()));
    }
}

fn ago(now: Timestamp, seconds: i32) -> Timestamp {
    now.checked_sub(SignedDuration::from_secs(i64::from(seconds))).unwrap_or(Timestamp::MIN)
}

fn prune(list: &mut Vec<(Timestamp, i32)>, now: Timestamp, seconds: i32) {
    let cutoff = ago(now, seconds);
    list.retain(|(at, _)| *at >= cutoff);
    let surplus = list.len().saturating_sub(MOST - 1);
    list.drain(..surplus);
}

fn within(list: &[(Timestamp, i32)], now: Timestamp, seconds: i32) -> i32 {
    let cutoff = ago(now, seconds);
    list.iter().filter(|(at, _)| *at > cutoff).map(|(_, change)| change).sum()
}

/// The rules of one direction, with defaults filled in.
#[derive(Debug, Clone)]
pub struct Direction {
    window: i32,
    select: String,
    policies: Vec<HPAScalingPolicy>,
}

/// The scaling rules of both directions.
#[derive(Debug, Clone)]
pub struct Rules {
    up: Direction,
    down: Direction,
}

fn policy(type_: &str, value: i32) -> HPAScalingPolicy {
    HPAScalingPolicy { type_: type_.to_owned(), value, period_seconds: 15 }
}

impl Direction {
    fn of(rules: Option<&HPAScalingRules>, window: i32, policies: Vec<HPAScalingPolicy>) -> Self {
        let given = rules.and_then(|r| r.policies.clone()).filter(|p| !p.is_empty());
        Self {
            window: rules.and_then(|r| r.stabilization_window_seconds).unwrap_or(window),
            select: rules.and_then(|r| r.select_policy.clone()).unwrap_or_else(|| "Max".to_owned()),
            policies: given.unwrap_or(policies),
        }
    }

    fn period(&self) -> i32 {
        self.policies.iter().map(|p| p.period_seconds).max().unwrap_or(0)
    }
}

impl Rules {
    /// Reads the rules of a behavior; `window` is the default stabilization window for scaling down.
    pub fn of(behavior: &HorizontalPodAutoscalerBehavior, window: Duration) -> Self {
        let up = vec![policy("Pods", 4), policy("Percent", 100)];
        Self {
            up: Direction::of(behavior.scale_up.as_ref(), 0, up),
            down: Direction::of(behavior.scale_down.as_ref(), seconds(window), vec![policy("Percent", 100)]),
        }
    }
}

fn seconds(window: Duration) -> i32 {
    i32::try_from(window.as_secs()).unwrap_or(i32::MAX)
}

/// The reason and message of a condition.
type Reason = (&'static str, &'static str);

/// The number of replicas to set, and the conditions that explain it.
#[derive(Debug, PartialEq, Eq)]
pub struct Limited {
    pub replicas: i32,
    /// The condition `AbleToScale`, whose status is True.
    pub able: Reason,
    /// The condition `ScalingLimited`, with its status.
    pub limit: (bool, Reason),
}

const READY: Reason = ("ReadyForNewScale", "recommended size matches current size");
const DOWN_STABILIZED: Reason = (
    "ScaleDownStabilized",
    "recent recommendations were higher than current one, applying the highest recent recommendation",
);
const UP_STABILIZED: Reason = (
    "ScaleUpStabilized",
    "recent recommendations were lower than current one, applying the lowest recent recommendation",
);
const WITHIN: Reason = ("DesiredWithinRange", "the desired count is within the acceptable range");
const TOO_FEW: Reason =
    ("TooFewReplicas", "the desired replica count is less than the minimum replica count");
const TOO_MANY: Reason =
    ("TooManyReplicas", "the desired replica count is more than the maximum replica count");
const TOO_FAST_UP: Reason =
    ("ScaleUpLimit", "the desired replica count is increasing faster than the maximum scale rate");
const TOO_FAST_DOWN: Reason =
    ("ScaleDownLimit", "the desired replica count is decreasing faster than the maximum scale rate");

/// Limits the number that the metrics propose to what is allowed now.
pub fn limit(
    history: &mut History,
    rules: Option<&Rules>,
    window: Duration,
    now: Timestamp,
    current: i32,
    proposed: i32,
    (min, max): (i32, i32),
) -> Limited {
    let (stabilized, reason) = match rules {
        Some(rules) => stabilize_by_rules(history, rules, now, current, proposed),
        None => stabilize(history, window, now, proposed),
    };
    let able = if stabilized == proposed { READY } else { reason };
    let (replicas, why) = match rules {
        Some(rules) => rate(history, rules, now, current, stabilized, (min, max)),
        None => bound(current, stabilized, (min, max)),
    };
    Limited { replicas, able, limit: (replicas != stabilized, why) }
}

fn stabilize(history: &mut History, window: Duration, now: Timestamp, proposed: i32) -> (i32, Reason) {
    prune(&mut history.recommendations, now, seconds(window));
    let highest = history.recommendations.iter().map(|(_, n)| *n).max().unwrap_or(proposed);
    history.recommendations.push((now, proposed));
    (highest.max(proposed), DOWN_STABILIZED)
}

fn stabilize_by_rules(
    history: &mut History,
    rules: &Rules,
    now: Timestamp,
    current: i32,
    proposed: i32,
) -> (i32, Reason) {
    let (mut lowest, mut highest) = (proposed, proposed);
    let (up, down) = (ago(now, rules.up.window), ago(now, rules.down.window));
    for (at, n) in &history.recommendations {
        if *at > up {
            lowest = lowest.min(*n);
        }
        if *at > down {
            highest = highest.max(*n);
        }
    }
    prune(&mut history.recommendations, now, rules.up.window.max(rules.down.window));
    history.recommendations.push((now, proposed));
    let reason = if proposed >= current { UP_STABILIZED } else { DOWN_STABILIZED };
    (current.max(lowest).min(highest), reason)
}

fn bound(current: i32, desired: i32, (min, max): (i32, i32)) -> (i32, Reason) {
    let fastest = (UP_FACTOR * f64::from(current)).max(UP_MINIMUM) as i32;
    let (most, why) = if max > fastest { (fastest, TOO_FAST_UP) } else { (max, TOO_MANY) };
    if desired < min {
        (min, TOO_FEW)
    } else if desired > most {
        (most, why)
    } else {
        (desired, WITHIN)
    }
}

fn rate(
    history: &History,
    rules: &Rules,
    now: Timestamp,
    current: i32,
    desired: i32,
    (min, max): (i32, i32),
) -> (i32, Reason) {
    let start = |period: i32| {
        current.saturating_sub(within(&history.ups, now, period)).saturating_add(within(
            &history.downs,
            now,
            period,
        ))
    };
    if desired > current {
        let fastest = reach(&rules.up, current, start, 1).max(current);
        let (most, why) = if max > fastest { (fastest, TOO_FAST_UP) } else { (max, TOO_MANY) };
        if desired > most {
            return (most, why);
        }
    } else if desired < current {
        let fastest = reach(&rules.down, current, start, -1).min(current);
        let (least, why) = if min < fastest { (fastest, TOO_FAST_DOWN) } else { (min, TOO_FEW) };
        if desired < least {
            return (least, why);
        }
    }
    (desired, WITHIN)
}

/// Returns how far the policies of one direction (1 up, -1 down) let the number go; `start` returns the number one
/// period ago.
fn reach(direction: &Direction, current: i32, start: impl Fn(i32) -> i32, sign: i32) -> i32 {
    if direction.select == "Disabled" {
        return current;
    }
    let proposals = direction.policies.iter().map(|p| {
        let from = start(p.period_seconds);
        match p.type_.as_str() {
            "Pods" => from.saturating_add(sign.saturating_mul(p.value)),
            _ => {
                let part = f64::from(from) * (1.0 + f64::from(sign) * f64::from(p.value) / 100.0);
                // Scaling up rounds up, or one pod might never become two.
                if sign > 0 { part.ceil() as i32 } else { part as i32 }
            }
        }
    });
    // The greatest change is the highest number when scaling up and the lowest when scaling down.
    let greatest = (direction.select != "Min") == (sign > 0);
    let found = if greatest { proposals.max() } else { proposals.min() };
    found.unwrap_or(current)
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    const WINDOW: Duration = Duration::from_secs(300);

    use super::*;
    use crate::testing::at;

    fn rules(value: Value) -> Rules {
        Rules::of(&serde_json::from_value(value).unwrap(), WINDOW)
    }

    #[test]
    fn without_rules() {
        let mut history = History::default();
        history.begin(at(0), 5);
        let mut go = |second: i64, current: i32, proposed: i32| {
            let got = limit(&mut history, None, WINDOW, at(second), current, proposed, (2, 30));
            (got.replicas, got.able.0, got.limit.1.0)
        };
        assert_eq!(go(15, 5, 3), (5, "ScaleDownStabilized", "DesiredWithinRange"));
        assert_eq!(go(30, 5, 50), (10, "ReadyForNewScale", "ScaleUpLimit"));
        assert_eq!(go(45, 20, 50), (30, "ReadyForNewScale", "TooManyReplicas"));
        assert_eq!(go(300, 30, 1), (30, "ScaleDownStabilized", "TooManyReplicas"));
        assert_eq!(go(400, 30, 1), (2, "ReadyForNewScale", "TooFewReplicas"));
    }

    #[test]
    fn policies() {
        let slow = json!({
            "scaleUp": {"policies": [{"type": "Pods", "value": 2, "periodSeconds": 60},
                {"type": "Percent", "value": 10, "periodSeconds": 60}]},
            "scaleDown": {"stabilizationWindowSeconds": 0,
                "policies": [{"type": "Percent", "value": 50, "periodSeconds": 60}]},
        });
        let with = |field: &str, value: &str| {
            let mut all = slow.clone();
            all[field]["selectPolicy"] = value.into();
            rules(all)
        };
        // rules, current, added in the last minute, proposed, replicas, reason
        for (rules, current, added, proposed, replicas, reason) in [
            (rules(slow.clone()), 10, 0, 20, 12, "ScaleUpLimit"),
            (rules(slow.clone()), 12, 2, 20, 12, "ScaleUpLimit"),
            (rules(slow.clone()), 50, 0, 90, 56, "ScaleUpLimit"),
            (with("scaleUp", "Min"), 100, 0, 200, 102, "ScaleUpLimit"),
            (with("scaleUp", "Disabled"), 10, 0, 20, 10, "ScaleUpLimit"),
            (rules(slow.clone()), 10, 0, 1, 5, "ScaleDownLimit"),
            (with("scaleDown", "Disabled"), 10, 0, 1, 10, "ScaleDownLimit"),
            (rules(json!({})), 10, 0, 100, 20, "ScaleUpLimit"),
            (rules(json!({})), 1, 0, 100, 5, "ScaleUpLimit"),
            (rules(slow.clone()), 108, 0, 200, 110, "TooManyReplicas"),
        ] {
            let mut history = History::default();
            if added > 0 {
                history.changed(at(0), &rules, current - added, current);
            }
            let got = limit(&mut history, Some(&rules), WINDOW, at(30), current, proposed, (1, 110));
            assert_eq!(
                (got.replicas, got.limit.1.0),
                (replicas, reason),
                "{current} to {proposed}: {rules:?}"
            );
        }
    }

    #[test]
    fn windows() {
        let rules = rules(json!({"scaleUp": {"stabilizationWindowSeconds": 60}}));
        let mut history = History::default();
        history.begin(at(0), 5);
        let mut go = |second: i64, proposed: i32| {
            let got = limit(&mut history, Some(&rules), WINDOW, at(second), 5, proposed, (1, 100));
            (got.replicas, got.able.0)
        };
        assert_eq!(go(30, 8), (5, "ScaleUpStabilized"));
        assert_eq!(go(61, 9), (8, "ScaleUpStabilized"));
        assert_eq!(go(100, 3), (5, "ScaleDownStabilized"));
        assert_eq!(go(500, 3), (3, "ReadyForNewScale"));
    }

    #[test]
    fn what_is_remembered_is_bounded() {
        let rules = rules(json!({}));
        let mut history = History::default();
        for n in 0..5000 {
            limit(&mut history, Some(&rules), WINDOW, at(n / 100), 5, 5, (1, 10));
        }
        assert!(history.recommendations.len() <= MOST);
    }
}
