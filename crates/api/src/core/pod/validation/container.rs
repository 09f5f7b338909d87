//! Validation of containers: main, init, sidecar and ephemeral containers.

use std::collections::BTreeSet;

use k8s_openapi::api::core::v1::{
    Container, ContainerPort, EphemeralContainer, PodSpec, VolumeDevice, VolumeMount,
};
use knarr_apimachinery::field::{Error, ErrorList, Path};
use knarr_apimachinery::names;

use super::volume::Volumes;
use super::{env, handler, resources, security};
use crate::validate;

pub fn containers(errors: &mut ErrorList, path: &Path, spec: &PodSpec, volumes: &Volumes<'_>) {
    let path = path.child("containers");
    if spec.containers.is_empty() {
        errors.push(Error::required(&path, ""));
        return;
    }
    let mut seen = BTreeSet::new();
    for (i, container) in spec.containers.iter().enumerate() {
        let path = path.index(i);
        common(errors, &path, container, spec, volumes);
        if !seen.insert(&container.name) {
            errors.push(Error::duplicate(&path.child("name"), container.name.as_str()));
        }
        handler::lifecycle_and_probes(errors, &path, container, spec);
        restart_policy(errors, &path, container);
    }
    host_ports(errors, &path, &spec.containers);
}

pub fn init_containers(errors: &mut ErrorList, path: &Path, spec: &PodSpec, volumes: &Volumes<'_>) {
    let parent = path.child("initContainers");
    let mut seen: BTreeSet<&str> = spec.containers.iter().map(|c| c.name.as_str()).collect();
    for (i, container) in spec.init_containers.iter().flatten().enumerate() {
        let path = parent.index(i);
        common(errors, &path, container, spec, volumes);
        restart_policy(errors, &path, container);
        let sidecar = container.restart_policy.as_deref() == Some("Always");
        if !seen.insert(&container.name) && !container.name.is_empty() {
            errors.push(Error::duplicate(&path.child("name"), container.name.as_str()));
        }
        host_ports(errors, &parent, std::slice::from_ref(container));
        if sidecar {
            handler::lifecycle_and_probes(errors, &path, container, spec);
            continue;
        }
        let why = "may not be set for init containers without restartPolicy=Always";
        for (field, set) in [
            ("lifecycle", container.lifecycle.is_some()),
            ("livenessProbe", container.liveness_probe.is_some()),
            ("readinessProbe", container.readiness_probe.is_some()),
            ("startupProbe", container.startup_probe.is_some()),
        ] {
            if set {
                errors.push(Error::forbidden(&path.child(field), why));
            }
        }
        for (j, policy) in container.resize_policy.iter().flatten().enumerate() {
            if policy.restart_policy == "RestartContainer" {
                let path = path.child("resizePolicy").index(j).child("restartPolicy");
                let problem = "must not be set to 'RestartContainer' for non-sidecar initContainers";
                errors.push(Error::invalid(&path, policy.restart_policy.as_str(), problem));
            }
        }
    }
}

pub fn ephemeral_containers(errors: &mut ErrorList, path: &Path, spec: &PodSpec, volumes: &Volumes<'_>) {
    let parent = path.child("ephemeralContainers");
    let others = spec.containers.iter().chain(spec.init_containers.iter().flatten());
    let others: BTreeSet<&str> = others.map(|c| c.name.as_str()).collect();
    let mut seen = others.clone();
    for (i, container) in spec.ephemeral_containers.iter().flatten().enumerate() {
        let path = parent.index(i);
        common(errors, &path, &as_container(container), spec, volumes);
        image_is_trimmed(errors, &path, container.image.as_deref());
        if !seen.insert(&container.name) {
            errors.push(Error::duplicate(&path.child("name"), container.name.as_str()));
        }
        let target = container.target_container_name.as_deref().unwrap_or("");
        if !target.is_empty() && !others.contains(target) {
            errors.push(Error::not_found(&path.child("targetContainerName"), target));
        }
        ephemeral_fields(errors, &path, container);
    }
}

fn ephemeral_fields(errors: &mut ErrorList, path: &Path, container: &EphemeralContainer) {
    let why = "cannot be set for an Ephemeral Container";
    let no_resources = container.resources.as_ref().is_none_or(|r| *r == Default::default());
    for (field, set) in [
        ("ports", container.ports.as_ref().is_some_and(|p| !p.is_empty())),
        ("resources", !no_resources),
        ("resizePolicy", container.resize_policy.as_ref().is_some_and(|p| !p.is_empty())),
        ("restartPolicy", container.restart_policy.is_some()),
        ("restartPolicyRules", container.restart_policy_rules.as_ref().is_some_and(|p| !p.is_empty())),
        ("livenessProbe", container.liveness_probe.is_some()),
        ("readinessProbe", container.readiness_probe.is_some()),
        ("startupProbe", container.startup_probe.is_some()),
        ("lifecycle", container.lifecycle.is_some()),
    ] {
        if set {
            errors.push(Error::forbidden(&path.child(field), why));
        }
    }
    for (i, mount) in container.volume_mounts.iter().flatten().enumerate() {
        let path = path.child("volumeMounts").index(i);
        for (field, value) in [("subPath", &mount.sub_path), ("subPathExpr", &mount.sub_path_expr)] {
            if value.as_deref().is_some_and(|v| !v.is_empty()) {
                errors.push(Error::forbidden(&path.child(field), why));
            }
        }
    }
}

/// Returns the fields that an ephemeral container shares with other containers.
pub fn as_container(ephemeral: &EphemeralContainer) -> Container {
    let e = ephemeral.clone();
    Container {
        args: e.args,
        command: e.command,
        env: e.env,
        env_from: e.env_from,
        image: e.image,
        image_pull_policy: e.image_pull_policy,
        lifecycle: e.lifecycle,
        liveness_probe: e.liveness_probe,
        name: e.name,
        ports: e.ports,
        readiness_probe: e.readiness_probe,
        resize_policy: e.resize_policy,
        resources: e.resources,
        restart_policy: e.restart_policy,
        restart_policy_rules: e.restart_policy_rules,
        security_context: e.security_context,
        startup_probe: e.startup_probe,
        stdin: e.stdin,
        stdin_once: e.stdin_once,
        termination_message_path: e.termination_message_path,
        termination_message_policy: e.termination_message_policy,
        tty: e.tty,
        volume_devices: e.volume_devices,
        volume_mounts: e.volume_mounts,
        working_dir: e.working_dir,
    }
}

pub fn image_is_trimmed(errors: &mut ErrorList, path: &Path, image: Option<&str>) {
    let image = image.unwrap_or("");
    if image.trim() != image {
        let problem = "must not have leading or trailing whitespace";
        errors.push(Error::invalid(&path.child("image"), image, problem));
    }
}

/// Validates what all kinds of containers have in common.
fn common(errors: &mut ErrorList, path: &Path, container: &Container, spec: &PodSpec, volumes: &Volumes<'_>) {
    if validate::required(errors, &path.child("name"), &container.name) {
        validate::dns_label(errors, &path.child("name"), &container.name);
    }
    validate::required(errors, &path.child("image"), container.image.as_deref().unwrap_or(""));
    let policy = container.termination_message_policy.as_deref().unwrap_or("");
    let policies = ["File", "FallbackToLogsOnError"];
    validate::one_of(errors, &path.child("terminationMessagePolicy"), policy, &policies);
    ports(errors, &path.child("ports"), container.ports.as_deref().unwrap_or_default());
    env::variables(errors, &path.child("env"), container.env.as_deref().unwrap_or_default());
    env::sources(errors, &path.child("envFrom"), container.env_from.as_deref().unwrap_or_default());
    mounts(errors, &path.child("volumeMounts"), container, volumes);
    devices(errors, &path.child("volumeDevices"), container, volumes);
    let policy = container.image_pull_policy.as_deref().unwrap_or("");
    let policies = ["Always", "IfNotPresent", "Never"];
    validate::one_of(errors, &path.child("imagePullPolicy"), policy, &policies);
    if let Some(requirements) = &container.resources {
        resources::of_container(errors, &path.child("resources"), requirements, spec);
    }
    resize_policy(errors, &path.child("resizePolicy"), container, spec);
    if let Some(context) = &container.security_context {
        let host_users = spec.host_users != Some(false);
        security::of_container(errors, &path.child("securityContext"), context, host_users);
    }
}

fn ports(errors: &mut ErrorList, path: &Path, ports: &[ContainerPort]) {
    let mut seen = BTreeSet::new();
    for (i, port) in ports.iter().enumerate() {
        let path = path.index(i);
        let name = port.name.as_deref().unwrap_or("");
        if !name.is_empty() {
            let found = names::port_name(name);
            if !found.is_empty() {
                validate::problems(errors, &path.child("name"), name, found);
            } else if !seen.insert(name) {
                errors.push(Error::duplicate(&path.child("name"), name));
            }
        }
        let inside = i64::from(port.container_port);
        if inside == 0 {
            errors.push(Error::required(&path.child("containerPort"), ""));
        } else {
            let found = names::port_number(inside);
            validate::number_problems(errors, &path.child("containerPort"), inside, found);
        }
        let host = i64::from(port.host_port.unwrap_or(0));
        if host != 0 {
            validate::number_problems(errors, &path.child("hostPort"), host, names::port_number(host));
        }
        let protocol = port.protocol.as_deref().unwrap_or("");
        validate::one_of(errors, &path.child("protocol"), protocol, &["SCTP", "TCP", "UDP"]);
    }
}

/// Refuses two container ports with the same host port.
fn host_ports(errors: &mut ErrorList, path: &Path, containers: &[Container]) {
    let mut seen = BTreeSet::new();
    for (i, container) in containers.iter().enumerate() {
        for (j, port) in container.ports.iter().flatten().enumerate() {
            let host = port.host_port.unwrap_or(0);
            let protocol = port.protocol.as_deref().unwrap_or("");
            let text = format!("{protocol}/{}/{host}", port.host_ip.as_deref().unwrap_or(""));
            if host != 0 && !seen.insert(text.clone()) {
                let path = path.index(i).child("ports").index(j).child("hostPort");
                errors.push(Error::duplicate(&path, text));
            }
        }
    }
}

fn mounts(errors: &mut ErrorList, path: &Path, container: &Container, volumes: &Volumes<'_>) {
    let devices = container.volume_devices.as_deref().unwrap_or_default();
    let mut seen = BTreeSet::new();
    for (i, mount) in container.volume_mounts.iter().flatten().enumerate() {
        let at = path.index(i);
        validate::required(errors, &at.child("name"), &mount.name);
        if !volumes.contains_key(mount.name.as_str()) {
            errors.push(Error::not_found(&at.child("name"), mount.name.as_str()));
        }
        validate::required(errors, &at.child("mountPath"), &mount.mount_path);
        if !seen.insert(&mount.mount_path) {
            let problem = "must be unique";
            errors.push(Error::invalid(&at.child("mountPath"), mount.mount_path.as_str(), problem));
        }
        if devices.iter().any(|d| d.name == mount.name) {
            let problem = "must not already exist in volumeDevices";
            errors.push(Error::invalid(&at.child("name"), mount.name.as_str(), problem));
        }
        if devices.iter().any(|d| d.device_path == mount.mount_path) {
            let problem = "must not already exist as a path in volumeDevices";
            errors.push(Error::invalid(&at.child("mountPath"), mount.mount_path.as_str(), problem));
        }
        sub_path(errors, path, &at, mount);
        propagation(errors, path, container, mount);
    }
}

/// Validates subPath and subPathExpr. Some errors name the list, not the element, as upstream's do.
fn sub_path(errors: &mut ErrorList, list: &Path, at: &Path, mount: &VolumeMount) {
    let sub_path = mount.sub_path.as_deref().unwrap_or("");
    let expression = mount.sub_path_expr.as_deref().unwrap_or("");
    if !sub_path.is_empty() {
        validate::descending_path(errors, &list.child("subPath"), sub_path);
    }
    if !expression.is_empty() {
        if !sub_path.is_empty() {
            let problem = "subPathExpr and subPath are mutually exclusive";
            errors.push(Error::invalid(&at.child("subPathExpr"), expression, problem));
        }
        validate::descending_path(errors, &list.child("subPathExpr"), expression);
    }
}

fn propagation(errors: &mut ErrorList, list: &Path, container: &Container, mount: &VolumeMount) {
    if let Some(mode) = mount.mount_propagation.as_deref() {
        let path = list.child("mountPropagation");
        let modes = ["Bidirectional", "HostToContainer", "None"];
        validate::supported_value(errors, &path, mode, &modes);
        let privileged = container.security_context.as_ref().is_some_and(|s| s.privileged == Some(true));
        if mode == "Bidirectional" && !privileged {
            let why = "Bidirectional mount propagation is available only to privileged containers";
            errors.push(Error::forbidden(&path, why));
        }
    }
    let path = list.child("recursiveReadOnly");
    match mount.recursive_read_only.as_deref() {
        None | Some("Disabled") => {}
        Some("Enabled" | "IfPossible") => {
            if mount.read_only != Some(true) {
                errors.push(Error::forbidden(&path, "may only be specified when readOnly is true"));
            }
            if mount.mount_propagation.as_deref().is_some_and(|m| m != "None") {
                let why = "may only be specified when mountPropagation is None or not specified";
                errors.push(Error::forbidden(&path, why));
            }
        }
        Some(other) => {
            errors.push(validate::not_supported(&path, other, &["Disabled", "Enabled", "IfPossible"]));
        }
    }
}

fn devices(errors: &mut ErrorList, path: &Path, container: &Container, volumes: &Volumes<'_>) {
    let mounts = container.volume_mounts.as_deref().unwrap_or_default();
    let (mut names, mut paths) = (BTreeSet::new(), BTreeSet::new());
    for (i, device) in container.volume_devices.iter().flatten().enumerate() {
        let path = path.index(i);
        let VolumeDevice { name, device_path } = device;
        validate::required(errors, &path.child("name"), name);
        if !names.insert(name) {
            errors.push(Error::invalid(&path.child("name"), name.as_str(), "must be unique"));
        }
        match volumes.get(name.as_str()) {
            Some(v) if v.persistent_volume_claim.is_none() && v.ephemeral.is_none() => {
                let problem =
                    "can only use volume source type of PersistentVolumeClaim or Ephemeral for block mode";
                errors.push(Error::invalid(&path.child("name"), name.as_str(), problem));
            }
            Some(_) => {}
            None => errors.push(Error::not_found(&path.child("name"), name.as_str())),
        }
        let at = path.child("devicePath");
        validate::required(errors, &at, device_path);
        if !paths.insert(device_path) {
            errors.push(Error::invalid(&at, device_path.as_str(), "must be unique"));
        }
        if device_path.split('/').any(|part| part == "..") {
            errors.push(Error::invalid(&at, device_path.as_str(), "can not contain backsteps ('..')"));
        }
        if mounts.iter().any(|m| m.name == *name) {
            let problem = "must not already exist in volumeMounts";
            errors.push(Error::invalid(&path.child("name"), name.as_str(), problem));
        }
        let last_of_name = |m: &&VolumeMount| {
            mounts.iter().rev().find(|other| other.name == m.name).is_some_and(|last| std::ptr::eq(last, *m))
        };
        if mounts.iter().filter(last_of_name).any(|m| m.mount_path == *device_path) {
            let problem = "must not already exist as a path in volumeMounts";
            errors.push(Error::invalid(&at, device_path.as_str(), problem));
        }
    }
}

fn resize_policy(errors: &mut ErrorList, path: &Path, container: &Container, spec: &PodSpec) {
    let mut seen = BTreeSet::new();
    for (i, policy) in container.resize_policy.iter().flatten().enumerate() {
        if !seen.insert(&policy.resource_name) {
            errors.push(Error::duplicate(&path.index(i), policy.resource_name.as_str()));
        }
        validate::one_of(errors, path, &policy.resource_name, &["cpu", "memory"]);
        validate::one_of(errors, path, &policy.restart_policy, &["NotRequired", "RestartContainer"]);
        let never = spec.restart_policy.as_deref() == Some("Never");
        if never && policy.restart_policy != "NotRequired" {
            let problem = "must be 'NotRequired' when pod `restartPolicy` is 'Never'";
            errors.push(Error::invalid(path, policy.restart_policy.as_str(), problem));
        }
    }
}

const MAX_RESTART_RULES: usize = 20;
const MAX_EXIT_CODES: usize = 255;

/// Validates a container's own restart policy and its rules.
fn restart_policy(errors: &mut ErrorList, path: &Path, container: &Container) {
    let rules = container.restart_policy_rules.as_deref().unwrap_or_default();
    let policy = path.child("restartPolicy");
    match container.restart_policy.as_deref() {
        None if rules.is_empty() => return,
        None => {
            let why = "must specify restartPolicy when restart rules are used";
            errors.push(Error::required(&policy, why));
        }
        Some(value) => {
            validate::supported_value(errors, &policy, value, &["Always", "Never", "OnFailure"]);
        }
    }
    let path = path.child("restartPolicyRules");
    if rules.len() > MAX_RESTART_RULES {
        errors.push(Error::too_many(&path, rules.len(), MAX_RESTART_RULES));
    }
    for (i, rule) in rules.iter().enumerate() {
        let path = path.index(i);
        let actions = ["Restart", "RestartAllContainers"];
        validate::supported_value(errors, &path.child("action"), &rule.action, &actions);
        let path = path.child("exitCodes");
        let Some(codes) = &rule.exit_codes else {
            errors.push(Error::required(&path, "must be specified"));
            continue;
        };
        validate::supported_value(errors, &path.child("operator"), &codes.operator, &["In", "NotIn"]);
        let values = codes.values.as_ref().map_or(0, Vec::len);
        if values > MAX_EXIT_CODES {
            errors.push(Error::too_many(&path.child("values"), values, MAX_EXIT_CODES));
        }
    }
}
