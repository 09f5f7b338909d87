//! Times in the precision of the API.

use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;

/// Cuts a time to whole seconds, as the API stores it; a finer one would differ at every comparison.
pub fn whole_seconds(at: Timestamp) -> Time {
    Time(Timestamp::from_second(at.as_second()).unwrap_or(at))
}
