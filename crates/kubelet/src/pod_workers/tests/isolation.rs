//! Isolation that a pod asks for is provided, or the pod is refused; it is never omitted silently.

use super::*;
use crate::runtime::SeccompProfile;

/// Returns `Reason: message` of a pod that was rejected.
async fn rejection(spec: Value) -> String {
    let lab = Lab::new().await;
    lab.add(spec);
    lab.until("an end", |lab| lab.phase() == "Failed").await;
    assert!(lab.runtime.calls().is_empty(), "{:?}", lab.runtime.calls());
    let status = lab.pod().status.unwrap();
    let text = format!("{}: {}", status.reason.unwrap_or_default(), status.message.unwrap_or_default());
    assert!(lab.events().await.contains(&text.replace("Pod was rejected: ", "")), "{text}");
    text
}

fn with(field: &str, value: Value) -> Value {
    let mut spec = web(json!({}));
    spec[field] = value;
    spec
}

#[tokio::test(start_paused = true)]
async fn user_namespaces_that_the_runtime_does_not_have_are_refused() {
    let lab = Lab::new().await;
    lab.add(with("hostUsers", json!(false)));
    tokio::time::sleep(Duration::from_secs(5)).await;
    let expected = "FailedCreatePodSandBox: Failed to create pod sandbox: can't set `spec.hostUsers: false`, runtime \
                does not support user namespaces";
    assert!(lab.events().await.contains(&expected.to_owned()), "{:?}", lab.events().await);
    assert_eq!(lab.phase(), "Pending");
    assert_eq!(lab.runtime.calls(), Vec::<String>::new());
}

#[tokio::test(start_paused = true)]
async fn profiles_of_an_app_armor_that_is_not_there_are_refused() {
    let context = json!({"appArmorProfile": {"type": "RuntimeDefault"}});
    assert_eq!(
        rejection(with("securityContext", context)).await,
        "AppArmor: Pod was rejected: Cannot enforce AppArmor: AppArmor is not enabled on the host"
    );
}

#[tokio::test(start_paused = true)]
async fn labels_of_an_se_linux_that_is_not_there_are_warned_of_once() {
    let lab = Lab::new().await;
    lab.add(with("securityContext", json!({"seLinuxOptions": {"level": "s0:c1,c2"}})));
    lab.until_state("main", "Running").await;
    let events = lab.events().await;
    let warned = events.iter().filter(|e| e.starts_with("SELinuxOptionsIgnored: ")).count();
    assert_eq!(warned, 1, "{events:?}");
}

#[tokio::test(start_paused = true)]
async fn sysctls_that_are_not_safe_are_refused() {
    let context = json!({"sysctls": [{"name": "kernel/msgmax", "value": "65536"}]});
    assert_eq!(
        rejection(with("securityContext", context)).await,
        "SysctlForbidden: Pod was rejected: forbidden sysctl: \"kernel.msgmax\" not allowlisted"
    );
}

#[tokio::test(start_paused = true)]
async fn containers_are_confined_unless_they_say_otherwise() {
    let confined = async |security: Value| {
        let lab = Lab::new().await;
        lab.add(web(json!({"securityContext": security})));
        lab.until_state("main", "Running").await;
        lab.runtime.lock().containers[0].1.seccomp.clone()
    };
    assert_eq!(confined(json!({})).await, SeccompProfile::RuntimeDefault);
    assert_eq!(confined(json!({"privileged": true})).await, SeccompProfile::Unconfined);
    let unconfined = json!({"seccompProfile": {"type": "Unconfined"}});
    assert_eq!(confined(unconfined).await, SeccompProfile::Unconfined);
}
