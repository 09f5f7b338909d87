//! SELinux labels in a pod's spec: the label of each container, and whether this node can set it.
//!
//! Upstream passes labels to the runtime, and runtimes ignore them where SELinux is off. Here the pod gets a
//! warning event then; where SELinux is on and the runtime cannot set labels, the pod is refused.

use k8s_openapi::api::core::v1::{Container, Pod, SELinuxOptions as ApiOptions};

use crate::host_security::HostSecurity;
use crate::pod;
use crate::runtime::{RuntimeFeatures, SeLinuxOptions};

fn shape(options: &ApiOptions) -> Option<SeLinuxOptions> {
    let text = |field: &Option<String>| field.clone().unwrap_or_default();
    let made = SeLinuxOptions {
        user: text(&options.user),
        role: text(&options.role),
        type_: text(&options.type_),
        level: text(&options.level),
    };
    (made != SeLinuxOptions::default()).then_some(made)
}

/// Returns the label of the pod's sandbox, and of containers without their own.
pub fn of_pod(pod: &Pod) -> Option<SeLinuxOptions> {
    pod::spec(pod).security_context.as_ref().and_then(|s| s.se_linux_options.as_ref()).and_then(shape)
}

pub fn of_container(pod: &Pod, container: &Container) -> Option<SeLinuxOptions> {
    match container.security_context.as_ref().and_then(|s| s.se_linux_options.as_ref()) {
        Some(own) => shape(own),
        None => of_pod(pod),
    }
}

fn is_asked(pod: &Pod) -> bool {
    let own = |s: &k8s_openapi::api::core::v1::SecurityContext| s.se_linux_options.as_ref().and_then(shape);
    of_pod(pod).is_some() || pod::security_contexts(pod).any(|s| own(s).is_some())
}

/// Returns why the pod's labels cannot be set on this node.
pub fn unenforceable(pod: &Pod, host: HostSecurity, features: &RuntimeFeatures) -> Option<String> {
    let refused = host.se_linux && !features.se_linux && is_asked(pod);
    refused.then(|| "the container runtime does not support SELinux labels".to_owned())
}

/// Returns the warning about labels that have no effect on this host.
pub fn warning(pod: &Pod, host: HostSecurity) -> Option<(&'static str, String)> {
    let ignored = !host.se_linux && is_asked(pod);
    ignored.then(|| {
        (
            "SELinuxOptionsIgnored",
            "seLinuxOptions have no effect: SELinux is not enabled on the host".to_owned(),
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use knarr_api::kind::Kind;
    use serde_json::{Value, json};

    fn pod(of_pod: Value, own: Value) -> Pod {
        let context = |options: Value| json!({"seLinuxOptions": options});
        let pod = json!({"metadata": {"name": "p"}, "spec": {
            "securityContext": context(of_pod),
            "containers": [{"name": "web", "securityContext": context(own)}],
        }});
        Pod::decode(pod.to_string().as_bytes()).unwrap()
    }

    #[test]
    fn set_refused_or_warned_of() {
        let on = HostSecurity { se_linux: true, ..HostSecurity::default() };
        let can = RuntimeFeatures { se_linux: true, ..RuntimeFeatures::default() };
        let (off, cannot) = (HostSecurity::default(), RuntimeFeatures::default());
        for (of_pod, own, asked) in [
            (Value::Null, Value::Null, false),
            (json!({}), json!({}), false),
            (json!({"level": "s0:c1"}), Value::Null, true),
            (Value::Null, json!({"type": "spc_t"}), true),
        ] {
            let pod = pod(of_pod, own);
            assert_eq!(unenforceable(&pod, on, &cannot).is_some(), asked);
            assert_eq!(unenforceable(&pod, on, &can), None);
            assert_eq!(unenforceable(&pod, off, &cannot), None);
            assert_eq!(warning(&pod, off).is_some(), asked);
            assert_eq!(warning(&pod, on), None);
        }
    }

    #[test]
    fn a_container_has_its_own_or_its_pods() {
        let labels = |pod: &Pod| of_container(pod, &pod.spec.as_ref().unwrap().containers[0]);
        let level = |level: &str| SeLinuxOptions { level: level.into(), ..SeLinuxOptions::default() };
        assert_eq!(labels(&pod(json!({"level": "a"}), Value::Null)), Some(level("a")));
        assert_eq!(labels(&pod(json!({"user": "u"}), json!({"level": "b"}))), Some(level("b")));
    }
}
