//! Properties of a pod that many parts of the kubelet use.

use std::borrow::Cow;
use std::sync::LazyLock;

use k8s_openapi::api::core::v1::{Container, EphemeralContainer, Pod, PodSpec, PodStatus, SecurityContext};
use knarr_api::kind::Kind;

static NO_SPEC: LazyLock<PodSpec> = LazyLock::new(PodSpec::default);
static NO_STATUS: LazyLock<PodStatus> = LazyLock::new(PodStatus::default);

pub fn spec(pod: &Pod) -> &PodSpec {
    pod.spec.as_ref().unwrap_or(&NO_SPEC)
}

pub fn status(pod: &Pod) -> &PodStatus {
    pod.status.as_ref().unwrap_or(&NO_STATUS)
}

pub fn phase(pod: &Pod) -> &str {
    status(pod).phase.as_deref().unwrap_or("")
}

pub fn init_containers(pod: &Pod) -> &[Container] {
    spec(pod).init_containers.as_deref().unwrap_or_default()
}

pub fn ephemeral_containers(pod: &Pod) -> &[EphemeralContainer] {
    spec(pod).ephemeral_containers.as_deref().unwrap_or_default()
}

/// Returns the containers of all kinds, as `Container`.
pub fn containers(pod: &Pod) -> impl Iterator<Item = Cow<'_, Container>> {
    let regular = init_containers(pod).iter().chain(&spec(pod).containers).map(Cow::Borrowed);
    regular.chain(ephemeral_containers(pod).iter().map(|c| Cow::Owned(common_shape(c))))
}

/// Returns the security contexts of the containers of all kinds.
pub fn security_contexts(pod: &Pod) -> impl Iterator<Item = &SecurityContext> {
    let regular = init_containers(pod).iter().chain(&spec(pod).containers).map(|c| &c.security_context);
    regular.chain(ephemeral_containers(pod).iter().map(|c| &c.security_context)).flatten()
}

/// Returns `name_namespace(uid)`, the form in messages.
pub fn format(pod: &Pod) -> String {
    format!("{}_{}({})", pod.name(), pod.namespace(), pod.uid())
}

/// Returns the restart policy; `Always` if the pod sets none.
pub fn restart_policy(pod: &Pod) -> &str {
    spec(pod).restart_policy.as_deref().unwrap_or("Always")
}

pub fn is_host_network(pod: &Pod) -> bool {
    spec(pod).host_network == Some(true)
}

pub fn is_terminal_phase(phase: &str) -> bool {
    phase == "Failed" || phase == "Succeeded"
}

/// Returns whether an init container is a sidecar, which is restarted as long as the pod lives (KEP-753).
pub fn is_sidecar(container: &Container) -> bool {
    container.restart_policy.as_deref() == Some("Always")
}

pub fn has_sidecars(pod: &Pod) -> bool {
    init_containers(pod).iter().any(is_sidecar)
}

/// The kind of a container in its pod.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ContainerKind {
    Init,
    Main,
    Ephemeral,
}

impl ContainerKind {
    /// Returns the field in events, such as `spec.containers{web}`.
    pub fn field_path(self, name: &str) -> String {
        let field = match self {
            Self::Init => "initContainers",
            Self::Main => "containers",
            Self::Ephemeral => "ephemeralContainers",
        };
        format!("spec.{field}{{{name}}}")
    }
}

/// Returns a container of the pod by name; an ephemeral one is converted to `Container`.
pub fn find_container<'a>(pod: &'a Pod, name: &str) -> Option<(ContainerKind, Cow<'a, Container>)> {
    let named = |c: &&Container| c.name == name;
    if let Some(container) = spec(pod).containers.iter().find(named) {
        return Some((ContainerKind::Main, Cow::Borrowed(container)));
    }
    if let Some(container) = init_containers(pod).iter().find(named) {
        return Some((ContainerKind::Init, Cow::Borrowed(container)));
    }
    let ephemeral = ephemeral_containers(pod).iter().find(|c| c.name == name)?;
    Some((ContainerKind::Ephemeral, Cow::Owned(common_shape(ephemeral))))
}

/// Converts an ephemeral container, which has the fields of a container and one more.
pub fn common_shape(ephemeral: &EphemeralContainer) -> Container {
    let c = ephemeral.clone();
    Container {
        args: c.args,
        command: c.command,
        env: c.env,
        env_from: c.env_from,
        image: c.image,
        image_pull_policy: c.image_pull_policy,
        lifecycle: c.lifecycle,
        liveness_probe: c.liveness_probe,
        name: c.name,
        ports: c.ports,
        readiness_probe: c.readiness_probe,
        resize_policy: c.resize_policy,
        resources: c.resources,
        restart_policy: c.restart_policy,
        restart_policy_rules: c.restart_policy_rules,
        security_context: c.security_context,
        startup_probe: c.startup_probe,
        stdin: c.stdin,
        stdin_once: c.stdin_once,
        termination_message_path: c.termination_message_path,
        termination_message_policy: c.termination_message_policy,
        tty: c.tty,
        volume_devices: c.volume_devices,
        volume_mounts: c.volume_mounts,
        working_dir: c.working_dir,
    }
}

/// Returns whether a container that ended with `exit_code` is restarted: by its own rules first, then by its own
/// policy, then by the pod's (KEP-5307).
pub fn restarts_after(container: &Container, pod: &Pod, exit_code: i32) -> bool {
    for rule in container.restart_policy_rules.iter().flatten() {
        let Some(codes) = rule.exit_codes.as_ref().filter(|_| rule.action == "Restart") else { continue };
        let listed = codes.values.iter().flatten().any(|code| *code == exit_code);
        if (codes.operator == "In") == listed {
            return true;
        }
    }
    match container.restart_policy.as_deref().unwrap_or(restart_policy(pod)) {
        "Always" => true,
        "OnFailure" => exit_code != 0,
        _ => false,
    }
}

/// Returns whether a container that is killed for its probe is restarted; exit codes do not count, as it still runs.
pub fn restarts_after_kill(container: &Container, pod: &Pod) -> bool {
    container.restart_policy.as_deref().unwrap_or(restart_policy(pod)) != "Never"
}

#[cfg(test)]
mod tests {
    use super::*;
    use k8s_openapi::api::core::v1::{ContainerRestartRule, ContainerRestartRuleOnExitCodes};

    #[test]
    fn restart_rules_go_before_policies() {
        let rule = |operator: &str, codes: &[i32]| {
            Some(vec![ContainerRestartRule {
                action: "Restart".into(),
                exit_codes: Some(ContainerRestartRuleOnExitCodes {
                    operator: operator.into(),
                    values: Some(codes.to_vec()),
                }),
            }])
        };
        let table = [
            ("Always", None, None, 0, true),
            ("OnFailure", None, None, 0, false),
            ("OnFailure", None, None, 1, true),
            ("Never", None, None, 1, false),
            ("Always", Some("Never"), None, 1, false),
            ("Never", Some("Never"), rule("In", &[42]), 42, true),
            ("Never", Some("Never"), rule("In", &[42]), 1, false),
            ("Never", Some("Never"), rule("NotIn", &[42]), 1, true),
            ("Never", Some("Never"), rule("NotIn", &[42]), 42, false),
        ];
        for (pod_policy, own, rules, code, expected) in table {
            let container = Container {
                restart_policy: own.map(str::to_owned),
                restart_policy_rules: rules,
                ..Container::default()
            };
            let spec = PodSpec { restart_policy: Some(pod_policy.to_owned()), ..PodSpec::default() };
            let pod = Pod { spec: Some(spec), ..Pod::default() };
            assert_eq!(restarts_after(&container, &pod, code), expected, "{pod_policy} {own:?} {code}");
        }
    }
}
