//! Warnings about valid pod specs that do not do what they seem to: deprecated fields, duplicates, overlaps.

use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet};

use k8s_openapi::api::core::v1::{
    Affinity, Container, ContainerPort, NodeSelectorTerm, PersistentVolumeClaimSpec, Pod, PodSpec,
    PodTemplateSpec,
};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity as Wire;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use knarr_apimachinery::field::Path;
use knarr_apimachinery::names;
use knarr_apimachinery::quantity::Quantity;

use super::paths;
use super::validation::as_container;
use crate::addresses;

/// Deprecated node labels.
const OLD_NODE_LABELS: &[(&str, &str)] = &[
    ("beta.kubernetes.io/arch", r#"deprecated since v1.14; use "kubernetes.io/arch" instead"#),
    ("beta.kubernetes.io/os", r#"deprecated since v1.14; use "kubernetes.io/os" instead"#),
    (
        "failure-domain.beta.kubernetes.io/region",
        r#"deprecated since v1.17; use "topology.kubernetes.io/region" instead"#,
    ),
    (
        "failure-domain.beta.kubernetes.io/zone",
        r#"deprecated since v1.17; use "topology.kubernetes.io/zone" instead"#,
    ),
    (
        "beta.kubernetes.io/instance-type",
        r#"deprecated since v1.17; use "node.kubernetes.io/instance-type" instead"#,
    ),
    ("app.kubernetes.io/created-by", "deprecated since v1.9"),
    (
        "scheduler.alpha.kubernetes.io/preferAvoidPods",
        "deprecated since v1.22; use Taints and Tolerations instead",
    ),
    ("node-role.kubernetes.io/master", r#"use "node-role.kubernetes.io/control-plane" instead"#),
];

const OLD_ANNOTATIONS: &[(&str, &str)] = &[
    (
        "scheduler.alpha.kubernetes.io/critical-pod",
        r#"non-functional in v1.16+; use the "priorityClassName" field instead"#,
    ),
    ("security.alpha.kubernetes.io/sysctls", r#"non-functional in v1.11+; use the "sysctls" field instead"#),
    (
        "security.alpha.kubernetes.io/unsafe-sysctls",
        r#"non-functional in v1.11+; use the "sysctls" field instead"#,
    ),
];

/// Returns the warning for a deprecated node label.
pub fn old_node_label(key: &str) -> Option<&'static str> {
    OLD_NODE_LABELS.iter().find(|(label, _)| *label == key).map(|(_, message)| *message)
}

/// Warns about deprecated labels in node selector terms and, with `values`, about values that no label can have.
pub fn node_selector_term(term: &NodeSelectorTerm, values: bool, path: &Path) -> Vec<String> {
    let mut warnings = Vec::new();
    for (i, expression) in term.match_expressions.iter().flatten().enumerate() {
        let path = path.child("matchExpressions").index(i);
        if let Some(message) = old_node_label(&expression.key) {
            warnings.push(format!("{}: {} is {message}", path.child("key"), expression.key));
        }
        for (j, value) in expression.values.iter().flatten().enumerate().filter(|_| values) {
            let path = path.child("values").index(j);
            let problems = names::label_value(value);
            warnings.extend(problems.iter().map(|p| format!("{path}: {value} is invalid, {p}")));
        }
    }
    warnings
}

/// Returns the warnings for a pod.
pub fn pod(pod: &Pod) -> Vec<String> {
    let no_spec = PodSpec::default();
    spec_and_metadata(&Path::default(), pod.spec.as_ref().unwrap_or(&no_spec), &pod.metadata, false)
}

/// Returns the warnings for a pod template at this path.
pub fn template(path: &Path, template: &PodTemplateSpec) -> Vec<String> {
    let (no_spec, no_metadata) = (PodSpec::default(), ObjectMeta::default());
    let metadata = template.metadata.as_ref().unwrap_or(&no_metadata);
    spec_and_metadata(path, template.spec.as_ref().unwrap_or(&no_spec), metadata, true)
}

fn spec_and_metadata(path: &Path, spec: &PodSpec, metadata: &ObjectMeta, is_template: bool) -> Vec<String> {
    let at = path.child("spec");
    let none = BTreeMap::new();
    let annotations = metadata.annotations.as_ref().unwrap_or(&none);
    let annotation_path = path.child("metadata").child("annotations");
    let mut warnings = Vec::new();
    node_labels(&mut warnings, &at, spec);
    for (key, message) in OLD_ANNOTATIONS.iter().filter(|(key, _)| annotations.contains_key(*key)) {
        warnings.push(format!("{}: {message}", annotation_path.key(key)));
    }
    old_volumes(&mut warnings, &at.child("volumes"), spec);
    warnings.extend(paths::overlaps(spec.volumes.as_deref().unwrap_or_default()));
    duplicates(&mut warnings, &at, spec);
    fractions(&mut warnings, &at.child("overhead"), spec.overhead.as_ref(), &["memory", "ephemeral-storage"]);
    let containers = containers(&at, spec);
    profiles(&mut warnings, &annotation_path, annotations, spec, &containers, is_template);
    for (path, container) in &containers {
        resources(&mut warnings, path, container);
        hidden_variables(&mut warnings, path, container);
    }
    ports(&mut warnings, &containers);
    if spec.termination_grace_period_seconds.is_some_and(|s| s < 0) {
        let path = at.child("terminationGracePeriodSeconds");
        warnings.push(format!("{path}: must be >= 0; negative values are invalid and will be treated as 1"));
    }
    if let Some(affinity) = &spec.affinity {
        unselective(&mut warnings, &at.child("affinity"), affinity);
    }
    let servers = spec.dns_config.iter().flat_map(|d| d.nameservers.iter().flatten());
    for (i, server) in servers.enumerate() {
        warnings.extend(addresses::ip_warning(&at.child("dnsConfig").child("nameservers").index(i), server));
    }
    for (i, alias) in spec.host_aliases.iter().flatten().enumerate() {
        warnings.extend(addresses::ip_warning(&at.child("hostAliases").index(i).child("ip"), &alias.ip));
    }
    warnings
}

fn node_labels(warnings: &mut Vec<String>, path: &Path, spec: &PodSpec) {
    for key in spec.node_selector.iter().flat_map(BTreeMap::keys) {
        if let Some(message) = old_node_label(key) {
            warnings.push(format!("{}: {message}", path.child("nodeSelector").key(key)));
        }
    }
    if let Some(nodes) = spec.affinity.as_ref().and_then(|a| a.node_affinity.as_ref()) {
        let path = path.child("affinity").child("nodeAffinity");
        if let Some(required) = &nodes.required_during_scheduling_ignored_during_execution {
            let path =
                path.child("requiredDuringSchedulingIgnoredDuringExecution").child("nodeSelectorTerms");
            for (i, term) in required.node_selector_terms.iter().enumerate() {
                warnings.extend(node_selector_term(term, false, &path.index(i)));
            }
        }
        let path = path.child("preferredDuringSchedulingIgnoredDuringExecution");
        let preferred = nodes.preferred_during_scheduling_ignored_during_execution.iter().flatten();
        for (i, term) in preferred.enumerate() {
            let path = path.index(i).child("preference");
            warnings.extend(node_selector_term(&term.preference, true, &path));
        }
    }
    for (i, spread) in spec.topology_spread_constraints.iter().flatten().enumerate() {
        let path = path.child("topologySpreadConstraints").index(i);
        if let Some(message) = old_node_label(&spread.topology_key) {
            warnings.push(format!("{}: {} is {message}", path.child("topologyKey"), spread.topology_key));
        }
        if spread.label_selector.is_none() {
            let path = path.child("labelSelector");
            warnings.push(format!("{path}: a null labelSelector results in matching no pod"));
        }
    }
}

fn old_volumes(warnings: &mut Vec<String>, path: &Path, spec: &PodSpec) {
    for (i, volume) in spec.volumes.iter().flatten().enumerate() {
        let path = path.index(i);
        let sources = [
            (
                "photonPersistentDisk",
                volume.photon_persistent_disk.is_some(),
                "deprecated in v1.11, non-functional in v1.16+",
            ),
            ("gitRepo", volume.git_repo.is_some(), "deprecated in v1.11, and disabled by default in v1.33+"),
            ("scaleIO", volume.scale_io.is_some(), "deprecated in v1.16, non-functional in v1.22+"),
            ("flocker", volume.flocker.is_some(), "deprecated in v1.22, non-functional in v1.25+"),
            ("storageOS", volume.storageos.is_some(), "deprecated in v1.22, non-functional in v1.25+"),
            ("quobyte", volume.quobyte.is_some(), "deprecated in v1.22, non-functional in v1.25+"),
            ("glusterfs", volume.glusterfs.is_some(), "deprecated in v1.25, non-functional in v1.26+"),
        ];
        let late = [
            ("cephfs", volume.cephfs.is_some(), "deprecated in v1.28, non-functional in v1.31+"),
            ("rbd", volume.rbd.is_some(), "deprecated in v1.28, non-functional in v1.31+"),
        ];
        let mut add = |(name, _, message): &(&str, bool, &str)| {
            warnings.push(format!("{}: {message}", path.child(name)));
        };
        sources.iter().filter(|s| s.1).for_each(&mut add);
        late.iter().filter(|s| s.1).for_each(&mut add);
        if let Some(claim) = volume.ephemeral.as_ref().and_then(|e| e.volume_claim_template.as_ref()) {
            let path = path.child("ephemeral").child("volumeClaimTemplate").child("spec");
            warnings.extend(claim_spec(&path, &claim.spec));
        }
    }
}

/// Warns about requests for a fraction of a byte.
pub fn claim_spec(path: &Path, spec: &PersistentVolumeClaimSpec) -> Vec<String> {
    let mut warnings = Vec::new();
    if let Some(resources) = &spec.resources {
        let path = path.child("resources");
        fractions(&mut warnings, &path.child("requests"), resources.requests.as_ref(), &["storage"]);
        fractions(&mut warnings, &path.child("limits"), resources.limits.as_ref(), &["storage"]);
    }
    warnings
}

fn fractions(warnings: &mut Vec<String>, path: &Path, list: Option<&BTreeMap<String, Wire>>, names: &[&str]) {
    for name in names {
        let Some(quantity) = list.and_then(|l| l.get(*name)).and_then(|q| Quantity::try_from(q).ok()) else {
            continue;
        };
        if quantity.nanos() % 1_000_000_000 != 0 {
            let path = path.key(name);
            warnings
                .push(format!("{path}: fractional byte value \"{quantity}\" is invalid, must be an integer"));
        }
    }
}

fn duplicates(warnings: &mut Vec<String>, path: &Path, spec: &PodSpec) {
    let mut seen = BTreeSet::new();
    for (i, alias) in spec.host_aliases.iter().flatten().enumerate() {
        if !seen.insert(&alias.ip) {
            let path = path.child("hostAliases").index(i).child("ip");
            warnings.push(format!("{path}: duplicate ip {:?}", alias.ip));
        }
    }
    let mut seen = BTreeSet::new();
    let secrets = spec.image_pull_secrets.as_deref().unwrap_or_default();
    let at = |i: usize| path.child("imagePullSecrets").index(i).child("name");
    for (i, secret) in secrets.iter().enumerate() {
        if !seen.insert(&secret.name) {
            warnings.push(format!("{}: duplicate name {:?}", at(i), secret.name));
        }
    }
    for (i, _) in secrets.iter().enumerate().filter(|(_, s)| s.name.is_empty()) {
        warnings.push(format!("{}: invalid empty name \"\"", at(i)));
    }
}

/// Returns every container with its path: init, main and ephemeral containers.
fn containers<'a>(path: &Path, spec: &'a PodSpec) -> Vec<(Path, Cow<'a, Container>)> {
    let mut all = Vec::with_capacity(spec.containers.len());
    let init = spec.init_containers.iter().flatten().enumerate();
    all.extend(init.map(|(i, c)| (path.child("initContainers").index(i), Cow::Borrowed(c))));
    let main = spec.containers.iter().enumerate();
    all.extend(main.map(|(i, c)| (path.child("containers").index(i), Cow::Borrowed(c))));
    let ephemeral = spec.ephemeral_containers.iter().flatten().enumerate();
    all.extend(
        ephemeral.map(|(i, c)| (path.child("ephemeralContainers").index(i), Cow::Owned(as_container(c)))),
    );
    all
}

/// Warns about annotations that fields have replaced.
fn profiles(
    warnings: &mut Vec<String>,
    path: &Path,
    annotations: &BTreeMap<String, String>,
    spec: &PodSpec,
    containers: &[(Path, Cow<'_, Container>)],
    is_template: bool,
) {
    const SECCOMP: &str = r#"non-functional in v1.27+; use the "seccompProfile" field instead"#;
    const APPARMOR: &str = r#"deprecated since v1.30; use the "appArmorProfile" field instead"#;
    if annotations.is_empty() {
        return;
    }
    let pod = spec.security_context.clone().unwrap_or_default();
    let key = "seccomp.security.alpha.kubernetes.io/pod";
    if pod.seccomp_profile.is_none() && annotations.contains_key(key) {
        warnings.push(format!("{}: {SECCOMP}", path.key(key)));
    }
    for (_, container) in containers {
        let own = container.security_context.clone().unwrap_or_default();
        let key = format!("container.seccomp.security.alpha.kubernetes.io/{}", container.name);
        if own.seccomp_profile.is_none() && annotations.contains_key(&key) {
            warnings.push(format!("{}: {SECCOMP}", path.key(&key)));
        }
        let key = format!("{}{}", super::app_armor::ANNOTATION_PREFIX, container.name);
        let Some(annotation) = annotations.get(&key) else { continue };
        let meant = super::app_armor::profile(annotation);
        let differs = meant.is_none() || meant != pod.app_armor_profile;
        // In a pod, the annotation has been copied to the field before.
        let only_annotated = match &own.app_armor_profile {
            None => differs,
            Some(own) => !is_template && differs && meant.as_ref() == Some(own),
        };
        if only_annotated {
            warnings.push(format!("{}: {APPARMOR}", path.key(&key)));
        }
    }
}

fn resources(warnings: &mut Vec<String>, path: &Path, container: &Container) {
    let Some(resources) = &container.resources else { return };
    let path = path.child("resources");
    for name in ["memory", "ephemeral-storage"] {
        fractions(warnings, &path.child("limits"), resources.limits.as_ref(), &[name]);
        fractions(warnings, &path.child("requests"), resources.requests.as_ref(), &[name]);
    }
}

/// Warns about a variable that is defined twice, unless the second definition refers to the first.
fn hidden_variables(warnings: &mut Vec<String>, path: &Path, container: &Container) {
    let mut seen = BTreeSet::new();
    for (i, variable) in container.env.iter().flatten().enumerate() {
        if seen.insert(&variable.name) {
            continue;
        }
        let reference = format!("$({})", variable.name);
        let value = variable.value.as_deref().unwrap_or("");
        if variable.value_from.is_some() || value == reference || !value.contains(&reference) {
            warnings.push(format!(
                "{}: hides previous definition of {:?}, which may be dropped when using apply",
                path.child("env").index(i),
                variable.name
            ));
        }
    }
}

fn ports(warnings: &mut Vec<String>, containers: &[(Path, Cow<'_, Container>)]) {
    let all: Vec<(Path, &ContainerPort)> = containers
        .iter()
        .flat_map(|(path, container)| {
            let ports = container.ports.iter().flatten().enumerate();
            ports.map(|(i, port)| (path.child("ports").index(i), port))
        })
        .collect();
    let host_port = |p: &ContainerPort| p.host_port.unwrap_or(0);
    let host_ip = |p: &ContainerPort| p.host_ip.clone().unwrap_or_default();
    let mut seen: BTreeMap<String, Vec<usize>> = BTreeMap::new();
    for (i, (path, port)) in all.iter().enumerate() {
        if !host_ip(port).is_empty() && host_port(port) == 0 {
            warnings.push(format!("{path}: hostIP set without hostPort: {}", shown(port)));
        }
        let key = format!("{}/{}", port.container_port, port.protocol.as_deref().unwrap_or(""));
        let others = seen.entry(key).or_default();
        for (other_path, other) in others.iter().map(|o| &all[*o]) {
            let what = if host_ip(port) == host_ip(other) && host_port(port) == host_port(other) {
                "duplicate"
            } else if host_port(port) == 0 || host_port(other) == 0 {
                "overlapping"
            } else if host_port(port) == host_port(other)
                && host_ip(port).is_empty() != host_ip(other).is_empty()
            {
                "dangerously ambiguous"
            } else {
                continue;
            };
            warnings.push(format!("{path}: {what} port definition with {other_path}"));
        }
        others.push(i);
    }
    let mut names: BTreeMap<&str, &Path> = BTreeMap::new();
    for (path, port) in &all {
        let Some(name) = port.name.as_deref().filter(|n| !n.is_empty()) else { continue };
        match names.get(name) {
            Some(other) => warnings.push(format!(
                "{path}: duplicate port name {name:?} with {other}, services and probes that select ports by name will use {other}"
            )),
            None => drop(names.insert(name, path)),
        }
    }
}

/// Returns a port as Go prints the struct.
fn shown(port: &ContainerPort) -> String {
    format!(
        "{{Name:{} HostPort:{} ContainerPort:{} Protocol:{} HostIP:{}}}",
        port.name.as_deref().unwrap_or(""),
        port.host_port.unwrap_or(0),
        port.container_port,
        port.protocol.as_deref().unwrap_or(""),
        port.host_ip.as_deref().unwrap_or("")
    )
}

/// Warns about terms without a selector, which match nothing.
fn unselective(warnings: &mut Vec<String>, path: &Path, affinity: &Affinity) {
    const REQUIRED: &str = "requiredDuringSchedulingIgnoredDuringExecution";
    const PREFERRED: &str = "preferredDuringSchedulingIgnoredDuringExecution";
    let (with, without) = (affinity.pod_affinity.as_ref(), affinity.pod_anti_affinity.as_ref());
    let kinds = [
        (
            "podAffinity",
            with.and_then(|a| a.required_during_scheduling_ignored_during_execution.as_ref()),
            with.and_then(|a| a.preferred_during_scheduling_ignored_during_execution.as_ref()),
        ),
        (
            "podAntiAffinity",
            without.and_then(|a| a.required_during_scheduling_ignored_during_execution.as_ref()),
            without.and_then(|a| a.preferred_during_scheduling_ignored_during_execution.as_ref()),
        ),
    ];
    let mut add = |path: Path| {
        let path = path.child("labelSelector");
        warnings.push(format!("{path}: a null labelSelector results in matching no pod"));
    };
    for (name, required, preferred) in kinds {
        let path = path.child(name);
        for (i, term) in required.into_iter().flatten().enumerate() {
            if term.label_selector.is_none() {
                add(path.child(REQUIRED).index(i));
            }
        }
        for (i, term) in preferred.into_iter().flatten().enumerate() {
            if term.pod_affinity_term.label_selector.is_none() {
                add(path.child(PREFERRED).index(i).child("podAffinityTerm"));
            }
        }
    }
}
