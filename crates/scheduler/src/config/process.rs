//! The parts of the file about the process: the connection to the API server, and leader election.
//!
//! Source: the types and rules of `k8s.io/component-base/config`.

use knarr_apimachinery::field::{Error, ErrorList, Path};
use serde::Deserialize;

use super::go_duration::GoDuration;

/// `clientConnection`.
#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct ClientConnection {
    /// The path that is used when no flag names one.
    pub kubeconfig: String,
    pub accept_content_types: String,
    pub content_type: String,
    /// Read and validated only: the client waits when the server asks it to, and has no rate limit of its own.
    pub qps: f64,
    pub burst: i32,
}

impl ClientConnection {
    /// Validates the fields, by upstream's rules.
    pub fn validate(&self, path: &Path) -> ErrorList {
        let mut errors = ErrorList::new();
        if self.burst < 0 {
            errors.push(Error::invalid(&path.child("burst"), self.burst, "must be non-negative"));
        }
        errors
    }
}

/// `leaderElection`; missing fields have upstream's defaults.
#[derive(Debug, Clone, PartialEq, Eq, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct LeaderElection {
    pub leader_elect: Option<bool>,
    pub lease_duration: GoDuration,
    pub renew_deadline: GoDuration,
    pub retry_period: GoDuration,
    pub resource_lock: String,
    pub resource_name: String,
    pub resource_namespace: String,
}

impl LeaderElection {
    /// Validates the fields, by upstream's rules.
    pub fn validate(&self, path: &Path) -> ErrorList {
        let mut errors = ErrorList::new();
        if self.leader_elect == Some(false) {
            return errors;
        }
        let lease = self.lease_duration.or(GoDuration::from_secs(15));
        let renew = self.renew_deadline.or(GoDuration::from_secs(10));
        let retry = self.retry_period.or(GoDuration::from_secs(2));
        for (name, value) in [("leaseDuration", lease), ("renewDeadline", renew), ("retryPeriod", retry)] {
            if value <= GoDuration::default() {
                let why = "must be greater than zero";
                errors.push(Error::invalid(&path.child(name), value.to_string(), why));
            }
        }
        if lease <= renew {
            let why = "must be greater than `RenewDeadline`";
            errors.push(Error::invalid(&path.child("leaseDuration"), renew.to_string(), why));
        }
        let lock = self.resource_lock.as_str();
        if !matches!(lock, "" | "leases") {
            let why = "resourceLock value must be \"leases\"";
            errors.push(Error::invalid(&path.child("resourceLock"), lock, why));
        }
        errors
    }
}
