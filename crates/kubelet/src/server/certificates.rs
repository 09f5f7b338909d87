//! Metrics of the kubelet's certificates.

use std::sync::Arc;

use jiff::Timestamp;

use super::families::Family;
use super::serving_certificate::ServingCertificate;

/// Returns when a certificate expires; `None` if there is none, or its end is not known.
pub type NotAfter = Arc<dyn Fn() -> Option<Timestamp> + Send + Sync>;

/// The kubelet's certificates.
pub struct Certificates {
    /// The certificate of the kubelet's server.
    pub serving: Arc<ServingCertificate>,
    /// The certificate by which the kubelet authenticates to the API server.
    pub client: NotAfter,
}

impl Certificates {
    pub fn families(&self, now: Timestamp) -> [Family; 2] {
        let ttl = |name, help, end: Option<Timestamp>| {
            let left = end.map(|end| end.duration_since(now).as_secs());
            let mut family = Family::new(name, "gauge", help);
            family.add(vec![], left.map_or(f64::INFINITY, |left| left as f64), None);
            family
        };
        [
            ttl(
                "kubelet_certificate_manager_client_ttl_seconds",
                "[ALPHA] Seconds until the client certificate expires, negative after that; +Inf if there is none.",
                (self.client)(),
            ),
            ttl(
                "kubelet_certificate_manager_server_ttl_seconds",
                "[ALPHA] Seconds until the serving certificate expires, negative after that; +Inf if that is not known.",
                self.serving.not_after(),
            ),
        ]
    }
}
