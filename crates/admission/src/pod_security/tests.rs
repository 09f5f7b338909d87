//! Tests of the pods that each level accepts or refuses, and of the messages.

use serde_json::{Value, json};

use super::evaluate::{Pod, details, evaluate, reasons};
use super::policy::{Level, LevelVersion, Version};
use super::{existing_pods, is_significant};

fn found(level: Level, minor: Option<u32>, pod: &Value) -> String {
    let version = minor.map_or(Version::Latest, Version::Minor);
    details(&evaluate(
        LevelVersion { level, version },
        Pod { metadata: &pod["metadata"], spec: &pod["spec"] },
    ))
}

fn good() -> Value {
    json!({"metadata": {}, "spec": {
        "securityContext": {"runAsNonRoot": true, "seccompProfile": {"type": "RuntimeDefault"}},
        "containers": [{"name": "a", "securityContext": {
            "allowPrivilegeEscalation": false, "capabilities": {"drop": ["ALL"]}}}]}})
}

/// Returns an acceptable pod with one field changed.
fn with(pointer: &str, value: Value) -> Value {
    let mut pod = good();
    let mut at = &mut pod;
    for part in pointer.split('/').skip(1) {
        at = match part.parse::<usize>() {
            Ok(index) => &mut at[index],
            Err(_) => &mut at[part],
        };
    }
    *at = value;
    pod
}

#[test]
fn plain_pods() {
    let plain = json!({"spec": {"containers": [{"name": "a"}, {"name": "b"}]}});
    assert_eq!(found(Level::Privileged, None, &plain), "");
    assert_eq!(found(Level::Baseline, None, &plain), "");
    assert_eq!(
        found(Level::Restricted, None, &plain),
        "allowPrivilegeEscalation != false (containers \"a\", \"b\" must set securityContext.allowPrivilegeEscalation=false), \
         unrestricted capabilities (containers \"a\", \"b\" must set securityContext.capabilities.drop=[\"ALL\"]), \
         runAsNonRoot != true (pod or containers \"a\", \"b\" must set securityContext.runAsNonRoot=true), \
         seccompProfile (pod or containers \"a\", \"b\" must set securityContext.seccompProfile.type to \"RuntimeDefault\" or \"Localhost\")"
    );
    assert_eq!(found(Level::Restricted, None, &good()), "");
    assert_eq!(found(Level::Restricted, None, &json!("nonsense")), "");
}

#[test]
fn every_check_of_baseline() {
    let context = "/spec/containers/0/securityContext";
    for (pointer, value, expected) in [
        ("/spec/hostNetwork", json!(true), "host namespaces (hostNetwork=true)"),
        (
            "/spec/securityContext/appArmorProfile",
            json!({"type": "Unconfined"}),
            "forbidden AppArmor profile (pod must not set AppArmor profile type to \"Unconfined\")",
        ),
        (
            "/metadata/annotations",
            json!({"container.apparmor.security.beta.kubernetes.io/a": "unconfined"}),
            "forbidden AppArmor profile (annotation must not set AppArmor profile type to \"container.apparmor.security.beta.kubernetes.io/a=\"unconfined\"\")",
        ),
        (
            &format!("{context}/capabilities/add"),
            json!(["NET_ADMIN", "CHOWN"]),
            "non-default capabilities (container \"a\" must not include \"NET_ADMIN\" in securityContext.capabilities.add)",
        ),
        (
            "/spec/volumes",
            json!([{"name": "v", "hostPath": {"path": "/"}}, {"name": "w", "emptyDir": {}}]),
            "hostPath volumes (volume \"v\")",
        ),
        (
            "/spec/containers/0/ports",
            json!([{"hostPort": 80}, {"hostPort": 443}, {"containerPort": 1}]),
            "hostPort (container \"a\" uses hostPorts 443, 80)",
        ),
        (
            "/spec/containers/0/livenessProbe",
            json!({"httpGet": {"host": "h"}}),
            "probe or lifecycle host (container \"a\" uses probe or lifecycle host \"h\")",
        ),
        (
            &format!("{context}/privileged"),
            json!(true),
            "privileged (container \"a\" must not set securityContext.privileged=true)",
        ),
        (
            &format!("{context}/procMount"),
            json!("Unmasked"),
            "procMount (container \"a\" must not set securityContext.procMount to \"Unmasked\")",
        ),
        (
            &format!("{context}/seLinuxOptions"),
            json!({"type": "t", "user": "u"}),
            "seLinuxOptions (container \"a\" set forbidden securityContext.seLinuxOptions: type \"t\"; user may not be set)",
        ),
        (
            &format!("{context}/seccompProfile"),
            json!({"type": "Unconfined"}),
            "seccompProfile (container \"a\" must not set securityContext.seccompProfile.type to \"Unconfined\")",
        ),
        ("/spec/securityContext/sysctls", json!([{"name": "a"}, {"name": "b"}]), "forbidden sysctls (a, b)"),
        (
            "/spec/securityContext/windowsOptions",
            json!({"hostProcess": true}),
            "hostProcess (pod must not set securityContext.windowsOptions.hostProcess=true)",
        ),
    ] {
        assert_eq!(found(Level::Baseline, None, &with(pointer, value)), expected);
    }
}

#[test]
fn every_further_check_of_restricted() {
    let context = "/spec/containers/0/securityContext";
    for (pointer, value, expected) in [
        (
            &format!("{context}/capabilities/add"),
            json!(["CHOWN", "NET_BIND_SERVICE"]),
            "unrestricted capabilities (container \"a\" must not include \"CHOWN\" in securityContext.capabilities.add)",
        ),
        (
            &"/spec/volumes".to_owned(),
            json!([{"name": "v", "hostPath": {"path": "/"}}, {"name": "w", "nfs": {}}]),
            "restricted volume types (volumes \"v\", \"w\" use restricted volume types \"hostPath\", \"nfs\")",
        ),
        (
            &format!("{context}/runAsNonRoot"),
            json!(false),
            "runAsNonRoot != true (container \"a\" must not set securityContext.runAsNonRoot=false)",
        ),
        (&format!("{context}/runAsUser"), json!(0), "runAsUser=0 (container \"a\" must not set runAsUser=0)"),
        (
            &format!("{context}/procMount"),
            json!("Unmasked"),
            "procMount (container \"a\" must not set securityContext.procMount to \"Unmasked\")",
        ),
    ] {
        assert_eq!(found(Level::Restricted, None, &with(pointer, value)), expected);
    }
}

#[test]
fn versions() {
    let sysctl = with("/spec/securityContext/sysctls", json!([{"name": "net.ipv4.tcp_rmem"}]));
    let probe = with("/spec/containers/0/livenessProbe", json!({"tcpSocket": {"host": "h"}}));
    let mut users = with("/spec/containers/0/securityContext/runAsUser", json!(0));
    users["spec"]["hostUsers"] = false.into();
    let mut windows = json!({"spec": {"os": {"name": "windows"}, "containers": [{"name": "a"}]}});
    windows["spec"]["securityContext"] = json!({"runAsNonRoot": true});
    for (level, pod, minor, allowed) in [
        (Level::Baseline, &sysctl, Some(31), false),
        (Level::Baseline, &sysctl, Some(32), true),
        (Level::Baseline, &probe, Some(33), true),
        (Level::Baseline, &probe, Some(34), false),
        (Level::Baseline, &probe, Some(99), false),
        (Level::Restricted, &users, Some(34), false),
        (Level::Restricted, &users, Some(35), true),
        (Level::Restricted, &windows, Some(24), false),
        (Level::Restricted, &windows, Some(25), true),
    ] {
        assert_eq!(found(level, minor, pod).is_empty(), allowed, "{minor:?} {pod}");
    }
}

#[test]
fn only_what_matters_is_looked_at_again() {
    let pod = |image: &str, ephemeral: Value| json!({"spec": {"containers": [{"image": image}], "ephemeralContainers": ephemeral}});
    for (new, expected) in
        [(pod("a", json!([])), false), (pod("b", json!([])), true), (pod("a", json!([{"name": "e"}])), true)]
    {
        assert_eq!(is_significant(&new, &pod("a", json!([]))), expected, "{new}");
    }
}

#[test]
fn pods_that_are_there_already() {
    let pod = |name: &str, host: bool, class: &str| {
        let pod = json!({"metadata": {"name": name}, "spec": {
            "hostNetwork": host, "runtimeClassName": class, "containers": [{"name": "a"}]}});
        std::sync::Arc::new(knarr_api::object::Object::new(pod.to_string().into(), &[]).unwrap())
    };
    let pods = [pod("c", true, ""), pod("b", true, ""), pod("a", false, ""), pod("x", true, "free")];
    let level = LevelVersion { level: Level::Baseline, version: Version::Latest };
    let exemptions = crate::config::Exemptions { runtime_classes: vec!["free".into()], ..Default::default() };
    assert_eq!(
        existing_pods(&pods, "n", level, &exemptions),
        [
            "existing pods in namespace \"n\" violate the new PodSecurity enforce level \"baseline:latest\"",
            "b (and 1 other pod): host namespaces",
        ]
    );
    assert_eq!(reasons(&[]), "");
}
