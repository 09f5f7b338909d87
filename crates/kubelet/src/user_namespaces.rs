//! `hostUsers: false`: a pod that asks for a user namespace of its own does not run in the host's.
//!
//! Source: `k8s.io/kubernetes/pkg/kubelet/userns`, KEP-127.

use k8s_openapi::api::core::v1::Pod;

use crate::pod;
use crate::runtime::RuntimeFeatures;

/// Why the pod's sandbox cannot be made by that handler.
pub fn check(pod: &Pod, handler: &str, features: &RuntimeFeatures) -> Result<(), String> {
    if pod::spec(pod).host_users != Some(false) {
        return Ok(());
    }
    let known = features.handlers.iter().find(|h| h.name == handler);
    if known.is_some_and(|h| h.user_namespaces) {
        return Ok(());
    }
    let mut message = "can't set `spec.hostUsers: false`, ".to_owned();
    message.push_str(&match handler {
        "" => "runtime does not support user namespaces".to_owned(),
        handler => format!("RuntimeClass handler {handler:?} does not support user namespaces"),
    });
    if known.is_none() && !features.handlers.is_empty() {
        message.push_str(&format!(": the handler {handler:?} is not known"));
    }
    Err(message)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::runtime::RuntimeHandler;
    use k8s_openapi::api::core::v1::PodSpec;

    #[test]
    fn only_handlers_that_have_them() {
        let handler = |name: &str, user_namespaces| RuntimeHandler {
            name: name.into(),
            user_namespaces,
            ..RuntimeHandler::default()
        };
        let listed = RuntimeFeatures {
            handlers: vec![handler("", false), handler("runc", true), handler("old", false)],
            ..RuntimeFeatures::default()
        };
        let check = |host_users, name: &str, features: &RuntimeFeatures| {
            let spec = PodSpec { host_users, ..PodSpec::default() };
            check(&Pod { spec: Some(spec), ..Pod::default() }, name, features)
        };
        for host_users in [None, Some(true)] {
            assert_eq!(check(host_users, "", &listed), Ok(()));
        }
        assert_eq!(check(Some(false), "runc", &listed), Ok(()));
        let cannot = "can't set `spec.hostUsers: false`, ";
        for (name, what) in [
            ("", "runtime does not support user namespaces"),
            ("old", "RuntimeClass handler \"old\" does not support user namespaces"),
            (
                "new",
                "RuntimeClass handler \"new\" does not support user namespaces: the handler \"new\" is not known",
            ),
        ] {
            assert_eq!(check(Some(false), name, &listed), Err(format!("{cannot}{what}")));
        }
        let silent = RuntimeFeatures::default();
        assert_eq!(
            check(Some(false), "", &silent),
            Err(format!("{cannot}runtime does not support user namespaces"))
        );
    }
}
