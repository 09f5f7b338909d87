//! Validation of pods and pod templates, with upstream's error texts.

mod annotations;
mod container;
mod env;
mod handler;
mod resize;
mod resources;
mod scheduling;
mod security;
mod update;
mod volume;

use k8s_openapi::api::core::v1::{Pod, PodSpec, PodTemplateSpec};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use knarr_apimachinery::field::{Error, ErrorList, Path};
use knarr_apimachinery::names;

use crate::addresses;
use crate::validate;

pub use container::as_container;
pub use resize::resize_update;
pub use resources::{container_resource_name, is_standard_resource, limits_alone, quantity, resource_name};
pub use scheduling::{node_selector, taint_effect, tolerations};
pub use update::{ephemeral_containers_update, status_update, update};
pub use volume::host_path_source as host_path;

/// The owner of a pod spec: some rules apply to pods only, not to templates.
#[derive(Clone, Copy)]
pub enum Of<'a> {
    Pod(&'a ObjectMeta),
    Template,
}

/// Validates a new pod.
pub fn create(pod: &Pod) -> ErrorList {
    let mut errors = metadata_and_spec(pod);
    let Some(spec) = &pod.spec else { return errors };
    let path = Path::new("spec");
    if spec.ephemeral_containers.as_ref().is_some_and(|c| !c.is_empty()) {
        errors.push(Error::forbidden(&path.child("ephemeralContainers"), "cannot be set on create"));
    }
    let bound = spec.node_name.as_ref().is_some_and(|n| !n.is_empty());
    if bound && spec.scheduling_gates.as_ref().is_some_and(|g| !g.is_empty()) {
        let why = "cannot be set until all schedulingGates have been cleared";
        errors.push(Error::forbidden(&path.child("nodeName"), why));
    }
    errors
}

/// Validates what must hold for a pod at any time.
fn metadata_and_spec(pod: &Pod) -> ErrorList {
    let mut errors = ErrorList::new();
    let path = Path::new("spec");
    let no_spec = PodSpec::default();
    let spec = pod.spec.as_ref().unwrap_or(&no_spec);
    let at = Path::new("metadata").child("annotations");
    annotations::annotations(&mut errors, &at, pod.metadata.annotations.as_ref(), spec);
    pod_spec(&mut errors, &path, spec, Of::Pod(&pod.metadata));
    if spec.service_account_name.as_deref().unwrap_or("").is_empty() {
        tokens_need_an_account(&mut errors, &path, spec);
    }
    if let Some(seconds) = spec.termination_grace_period_seconds {
        validate::nonnegative(&mut errors, &path.child("terminationGracePeriodSeconds"), seconds);
    }
    let main = (path.child("containers"), Some(&spec.containers));
    for (path, list) in [main, (path.child("initContainers"), spec.init_containers.as_ref())] {
        for (i, container) in list.into_iter().flatten().enumerate() {
            container::image_is_trimmed(&mut errors, &path.index(i), container.image.as_deref());
        }
    }
    errors
}

fn tokens_need_an_account(errors: &mut ErrorList, path: &Path, spec: &PodSpec) {
    for (i, volume) in spec.volumes.iter().flatten().enumerate() {
        let sources = volume.projected.as_ref().and_then(|p| p.sources.as_ref());
        for (j, source) in sources.into_iter().flatten().enumerate() {
            if source.service_account_token.is_some() {
                let path = path.child("volumes").index(i).child("projected").child("sources").index(j);
                let why = "must not be specified when serviceAccountName is not set";
                errors.push(Error::forbidden(&path.child("serviceAccountToken"), why));
            }
        }
    }
}

/// Validates a workload's `spec.template`.
pub fn template(errors: &mut ErrorList, path: &Path, template: &PodTemplateSpec) {
    let metadata = template.metadata.as_ref();
    validate::labels(errors, &path.child("labels"), metadata.and_then(|m| m.labels.as_ref()));
    let annotations = metadata.and_then(|m| m.annotations.as_ref());
    validate::annotations(errors, &path.child("annotations"), annotations);
    let no_spec = PodSpec::default();
    let spec = template.spec.as_ref().unwrap_or(&no_spec);
    annotations::annotations(errors, &path.child("annotations"), annotations, spec);
    let path = path.child("spec");
    pod_spec(errors, &path, spec, Of::Template);
    if spec.ephemeral_containers.as_ref().is_some_and(|c| !c.is_empty()) {
        let why = "ephemeral containers not allowed in pod template";
        errors.push(Error::forbidden(&path.child("ephemeralContainers"), why));
    }
}

/// Validates a pod spec, in upstream's order.
pub fn pod_spec(errors: &mut ErrorList, path: &Path, spec: &PodSpec, of: Of<'_>) {
    if spec.termination_grace_period_seconds.is_none() {
        errors.push(Error::required(&path.child("terminationGracePeriodSeconds"), ""));
    }
    let volumes = volume::volumes(errors, &path.child("volumes"), spec, of);
    container::containers(errors, path, spec, &volumes);
    container::init_containers(errors, path, spec, &volumes);
    container::ephemeral_containers(errors, path, spec, &volumes);
    resources::of_pod(errors, path, spec);
    host_network_ports(errors, path, spec, of);
    let restart_policy = spec.restart_policy.as_deref().unwrap_or("");
    let restart_policies = ["Always", "OnFailure", "Never"];
    validate::one_of(errors, &path.child("restartPolicy"), restart_policy, &restart_policies);
    let dns_policy = spec.dns_policy.as_deref().unwrap_or("");
    let dns_policies = ["ClusterFirstWithHostNet", "ClusterFirst", "Default", "None"];
    validate::one_of(errors, &path.child("dnsPolicy"), dns_policy, &dns_policies);
    validate::labels(errors, &path.child("nodeSelector"), spec.node_selector.as_ref());
    security::of_pod(errors, &path.child("securityContext"), spec);
    if spec.host_pid == Some(true) && spec.share_process_namespace == Some(true) {
        let problem = "ShareProcessNamespace and HostPID cannot both be enabled";
        errors.push(Error::invalid(&path.child("shareProcessNamespace"), true, problem));
    }
    scheduling::affinity(errors, &path.child("affinity"), spec.affinity.as_ref());
    dns_config(errors, &path.child("dnsConfig"), spec);
    for (i, gate) in spec.readiness_gates.iter().flatten().enumerate() {
        let path = path.child("readinessGates").index(i).child("conditionType");
        validate::label_key(errors, &path, &gate.condition_type);
    }
    scheduling::gates(errors, &path.child("schedulingGates"), spec);
    let spread = path.child("topologySpreadConstraints");
    scheduling::spread(errors, &spread, spec.topology_spread_constraints.as_deref().unwrap_or_default());
    host_users(errors, path, spec);
    host_name(errors, path, spec);
    identity(errors, path, spec);
    scheduling::group(errors, &path.child("schedulingGroup"), spec);
    env::file_volumes(errors, path, spec);
}

/// Requires that container ports and host ports are equal if the pod uses the host's network.
fn host_network_ports(errors: &mut ErrorList, path: &Path, spec: &PodSpec, of: Of<'_>) {
    if spec.host_network != Some(true) {
        return;
    }
    for (i, container) in spec.containers.iter().enumerate() {
        for (j, port) in container.ports.iter().flatten().enumerate() {
            let host = port.host_port.unwrap_or(0);
            if (matches!(of, Of::Pod(_)) || host != 0) && host != port.container_port {
                let path = path.child("containers").index(i).child("ports").index(j).child("hostPort");
                let problem = "must match `containerPort` when `hostNetwork` is true";
                errors.push(Error::invalid(&path, host, problem));
            }
        }
    }
}

const MAX_NAMESERVERS: usize = 3;
const MAX_SEARCHES: usize = 32;
const MAX_SEARCH_CHARACTERS: usize = 2048;

fn dns_config(errors: &mut ErrorList, path: &Path, spec: &PodSpec) {
    let needed = spec.dns_policy.as_deref() == Some("None");
    let Some(config) = &spec.dns_config else {
        if needed {
            let why = "must provide `dnsConfig` when `dnsPolicy` is None";
            errors.push(Error::required(path, why));
        }
        return;
    };
    let servers = config.nameservers.as_deref().unwrap_or_default();
    if needed && servers.is_empty() {
        let why = "must provide at least one DNS nameserver when `dnsPolicy` is None";
        errors.push(Error::required(&path.child("nameservers"), why));
        return;
    }
    if servers.len() > MAX_NAMESERVERS {
        let problem = format!("must not have more than {MAX_NAMESERVERS} nameservers");
        errors.push(Error::invalid(&path.child("nameservers"), servers.to_vec(), problem));
    }
    for (i, server) in servers.iter().enumerate() {
        addresses::ip(errors, &path.child("nameservers").index(i), server);
    }
    let searches = config.searches.as_deref().unwrap_or_default();
    if searches.len() > MAX_SEARCHES {
        let problem = format!("must not have more than {MAX_SEARCHES} search paths");
        errors.push(Error::invalid(&path.child("searches"), searches.to_vec(), problem));
    }
    if searches.join(" ").len() > MAX_SEARCH_CHARACTERS {
        let problem = format!(
            "must not have more than {MAX_SEARCH_CHARACTERS} characters (including spaces) in the search list"
        );
        errors.push(Error::invalid(&path.child("searches"), searches.to_vec(), problem));
    }
    for (i, search) in searches.iter().enumerate().filter(|(_, s)| *s != ".") {
        let search = search.strip_suffix('.').unwrap_or(search);
        let found = names::dns1123_subdomain_with_underscore(search);
        validate::problems(errors, &path.child("searches").index(i), search, found);
    }
    for (i, option) in config.options.iter().flatten().enumerate() {
        if option.name.as_deref().unwrap_or("").is_empty() {
            errors.push(Error::required(&path.child("options").index(i), "must not be empty"));
        }
    }
}

/// Refuses a user namespace for a pod that shares other namespaces with the host.
fn host_users(errors: &mut ErrorList, path: &Path, spec: &PodSpec) {
    if spec.host_users != Some(false) {
        return;
    }
    for (name, set) in
        [("hostNetwork", spec.host_network), ("HostPID", spec.host_pid), ("HostIPC", spec.host_ipc)]
    {
        if set == Some(true) {
            errors.push(Error::forbidden(&path.child(name), "when `hostUsers` is false"));
        }
    }
}

const HOST_NAME_MAX: usize = 64;

fn host_name(errors: &mut ErrorList, path: &Path, spec: &PodSpec) {
    let Some(name) = &spec.hostname_override else { return };
    let path = path.child("hostnameOverride");
    if spec.set_hostname_as_fqdn == Some(true) {
        let why = "may not be specified when setHostnameAsFQDN is true";
        errors.push(Error::forbidden(&path, why));
    }
    if spec.host_network == Some(true) {
        errors.push(Error::forbidden(&path, "may not be specified when hostNetwork is true"));
    }
    if name.len() > HOST_NAME_MAX {
        errors.push(Error::too_long(&path, HOST_NAME_MAX));
    }
    validate::dns_subdomain(errors, &path, name);
}

/// Validates the remaining fields: names of other objects, deadlines, tolerations.
fn identity(errors: &mut ErrorList, path: &Path, spec: &PodSpec) {
    let filled = |text: &Option<String>| text.clone().filter(|t| !t.is_empty());
    if let Some(name) = filled(&spec.service_account_name) {
        validate::dns_subdomain(errors, &path.child("serviceAccountName"), &name);
    }
    if let Some(name) = filled(&spec.node_name) {
        validate::dns_subdomain(errors, &path.child("nodeName"), &name);
    }
    if let Some(seconds) = spec.active_deadline_seconds {
        let found = names::in_range(seconds, 1, i64::from(i32::MAX));
        validate::number_problems(errors, &path.child("activeDeadlineSeconds"), seconds, found);
    }
    for (field, name) in [("hostname", &spec.hostname), ("subdomain", &spec.subdomain)] {
        if let Some(name) = filled(name) {
            validate::dns_label(errors, &path.child(field), &name);
        }
    }
    tolerations(errors, &path.child("tolerations"), spec.tolerations.as_deref().unwrap_or_default());
    for (i, alias) in spec.host_aliases.iter().flatten().enumerate() {
        let path = path.child("hostAliases").index(i);
        addresses::ip(errors, &path.child("ip"), &alias.ip);
        for (j, name) in alias.hostnames.iter().flatten().enumerate() {
            validate::dns_subdomain(errors, &path.child("hostnames").index(j), name);
        }
    }
    if let Some(name) = filled(&spec.priority_class_name) {
        validate::dns_subdomain(errors, &path.child("priorityClassName"), &name);
    }
    if let Some(name) = &spec.runtime_class_name {
        validate::dns_subdomain(errors, &path.child("runtimeClassName"), name);
    }
    if let Some(policy) = &spec.preemption_policy {
        let policies = ["PreemptLowerPriority", "Never"];
        validate::one_of(errors, &path.child("preemptionPolicy"), policy, &policies);
    }
    if let Some(overhead) = &spec.overhead {
        resources::limits_alone(errors, &path.child("overhead"), overhead);
    }
    if let Some(os) = &spec.os
        && validate::required(errors, &path.child("os").child("name"), &os.name)
    {
        validate::supported_value(errors, &path.child("os"), &os.name, &["linux", "windows"]);
    }
}
