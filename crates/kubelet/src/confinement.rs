//! Whether this node can enforce a pod's confinement; a pod that requires more is rejected.

use k8s_openapi::api::core::v1::Pod;

use crate::admission::Rejection;
use crate::host_security::HostSecurity;
use crate::runtime::RuntimeFeatures;
use crate::sysctls::SysctlAllowlist;
use crate::{app_armor, pod, se_linux};

fn rejection(reason: &str, message: String) -> Rejection {
    Rejection { reason: reason.to_owned(), message }
}

/// Returns the rejection of a pod that sets a sysctl that is not allowed.
pub fn forbidden_sysctl(pod: &Pod, allowed: &SysctlAllowlist) -> Option<Rejection> {
    allowed.forbidden(pod).map(|why| rejection("SysctlForbidden", format!("forbidden sysctl: {why}")))
}

/// Returns the rejection of a pod whose AppArmor profile or SELinux label this node cannot enforce.
pub fn unenforceable(pod: &Pod, host: HostSecurity, features: &RuntimeFeatures) -> Option<Rejection> {
    // A pod that has run here was checked before.
    if !matches!(pod::phase(pod), "" | "Pending") {
        return None;
    }
    let app_armor = app_armor::unenforceable(pod, host, features)
        .map(|why| rejection("AppArmor", format!("Cannot enforce AppArmor: {why}")));
    app_armor.or_else(|| {
        se_linux::unenforceable(pod, host, features)
            .map(|why| rejection("SELinux", format!("Cannot enforce SELinux: {why}")))
    })
}
