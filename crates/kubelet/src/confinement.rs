//! What of a pod's confinement this node can see to; a pod that asks for more is rejected.

use k8s_openapi::api::core::v1::Pod;

use crate::admission::Rejection;
use crate::host_security::HostSecurity;
use crate::runtime::RuntimeFeatures;
use crate::sysctls::SysctlAllowlist;
use crate::{app_armor, pod, se_linux};

fn rejection(reason: &str, message: String) -> Rejection {
    Rejection { reason: reason.to_owned(), message }
}

/// The sysctl that the pod may not set.
pub fn forbidden_sysctl(pod: &Pod, allowed: &SysctlAllowlist) -> Option<Rejection> {
    allowed.forbidden(pod).map(|why| rejection("SysctlForbidden", format!("forbidden sysctl: {why}")))
}

/// The profile or label that nobody would enforce.
pub fn unenforceable(pod: &Pod, host: HostSecurity, features: &RuntimeFeatures) -> Option<Rejection> {
    // What ran once was judged then.
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
