//! Durations in the configuration file, in Go's notation: `1m30s`.

use std::time::Duration;

use knarr_apimachinery::duration;
use serde::{Deserialize, Deserializer};

/// A duration in nanoseconds.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct GoDuration(pub i64);

impl GoDuration {
    /// Returns a duration of this many seconds.
    pub const fn from_secs(seconds: i64) -> Self {
        Self(seconds * 1_000_000_000)
    }

    /// The duration; zero if it is negative.
    pub fn get(self) -> Duration {
        Duration::from_nanos(u64::try_from(self.0).unwrap_or(0))
    }

    /// Returns `default` if this duration is missing or zero.
    pub fn or(self, default: Self) -> Self {
        if self.0 == 0 { default } else { self }
    }
}

impl std::fmt::Display for GoDuration {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&duration::format(self.0))
    }
}

impl<'de> Deserialize<'de> for GoDuration {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        let text = String::deserialize(from)?;
        let parsed = duration::parse(&text).map_err(serde::de::Error::custom)?;
        let wrong = |_| serde::de::Error::custom(format!("time: invalid duration {text:?}"));
        i64::try_from(parsed.as_nanos()).map(Self).map_err(wrong)
    }
}
