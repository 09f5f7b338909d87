//! Validation of Services: ports, addresses, and the fields that each type allows.

use std::collections::BTreeSet;

use k8s_openapi::api::core::v1::{Service, ServicePort, ServiceSpec};
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;
use knarr_apimachinery::field::{Error, ErrorList, Path};
use knarr_apimachinery::names;
use serde_json::{Value, json};

use crate::addresses;
use crate::core::endpoints::endpoint_ip;
use crate::validate;

/// The longest timeout of ClientIP affinity, in seconds.
const STICKY_MAX_SECONDS: i32 = 86400;

fn is_headless(spec: &ServiceSpec) -> bool {
    spec.cluster_ips.as_deref() == Some(&["None".to_owned()])
}

fn type_of(spec: &ServiceSpec) -> &str {
    spec.type_.as_deref().unwrap_or("")
}

fn is_external(spec: &ServiceSpec) -> bool {
    match type_of(spec) {
        "LoadBalancer" | "NodePort" => true,
        "ClusterIP" => spec.external_ips.as_ref().is_some_and(|ips| !ips.is_empty()),
        _ => false,
    }
}

fn needs_health_check(spec: &ServiceSpec) -> bool {
    type_of(spec) == "LoadBalancer" && spec.external_traffic_policy.as_deref() == Some("Local")
}

pub fn service(service: &Service) -> ErrorList {
    let mut errors = ErrorList::new();
    let spec = service.spec.clone().unwrap_or_default();
    let path = Path::new("spec");
    let ports = spec.ports.as_deref().unwrap_or_default();
    if ports.is_empty() && !is_headless(&spec) && type_of(&spec) != "ExternalName" {
        errors.push(Error::required(&path.child("ports"), ""));
    }
    of_type(&mut errors, &path, &spec);
    let mut names = BTreeSet::new();
    for (i, port) in ports.iter().enumerate() {
        service_port(&mut errors, &path.child("ports").index(i), port, ports.len() > 1, &mut names);
    }
    validate::labels(&mut errors, &path.child("selector"), spec.selector.as_ref());
    session_affinity(&mut errors, &path, &spec);
    addresses(&mut errors, &path, &spec);
    for (i, ip) in spec.external_ips.iter().flatten().enumerate() {
        let path = path.child("externalIPs").index(i);
        if addresses::ip(&mut errors, &path, ip).is_some() {
            endpoint_ip(&mut errors, &path, ip);
        }
    }
    let types = ["ClusterIP", "ExternalName", "LoadBalancer", "NodePort"];
    validate::one_of(&mut errors, &path.child("type"), type_of(&spec), &types);
    unique_ports(&mut errors, &path.child("ports"), &spec, ports);
    load_balancer(&mut errors, &path, &spec);
    traffic(&mut errors, &path, &spec);
    errors
}

/// Validates the fields that a type requires and forbids.
fn of_type(errors: &mut ErrorList, path: &Path, spec: &ServiceSpec) {
    let kind = type_of(spec);
    match kind {
        "LoadBalancer" | "NodePort" if is_headless(spec) => {
            let problem = format!("may not be set to 'None' for {kind} services");
            errors.push(Error::invalid(&path.child("clusterIPs").index(0), "None", problem));
        }
        "ExternalName" => {
            let why = "may not be set for ExternalName services";
            for (field, set) in [
                ("clusterIPs", spec.cluster_ips.as_ref().is_some_and(|ips| !ips.is_empty())),
                ("ipFamilies", spec.ip_families.as_ref().is_some_and(|f| !f.is_empty())),
                ("ipFamilyPolicy", spec.ip_family_policy.is_some()),
            ] {
                if set {
                    errors.push(Error::forbidden(&path.child(field), why));
                }
            }
            let name = spec.external_name.as_deref().unwrap_or("");
            let name = name.strip_suffix('.').unwrap_or(name);
            if validate::required(errors, &path.child("externalName"), name) {
                validate::dns_subdomain(errors, &path.child("externalName"), name);
            }
        }
        _ => {}
    }
}

fn service_port<'a>(
    errors: &mut ErrorList,
    path: &Path,
    port: &'a ServicePort,
    needs_name: bool,
    seen: &mut BTreeSet<&'a str>,
) {
    let name = port.name.as_deref().unwrap_or("");
    if !name.is_empty() {
        validate::dns_label(errors, &path.child("name"), name);
        if !seen.insert(name) {
            errors.push(Error::duplicate(&path.child("name"), name));
        }
    } else if needs_name {
        errors.push(Error::required(&path.child("name"), ""));
    }
    let number = i64::from(port.port);
    validate::number_problems(errors, &path.child("port"), number, names::port_number(number));
    let protocol = port.protocol.as_deref().unwrap_or("");
    validate::one_of(errors, &path.child("protocol"), protocol, &["SCTP", "TCP", "UDP"]);
    let target = port.target_port.clone().unwrap_or(IntOrString::Int(0));
    validate::port_or_name(errors, &path.child("targetPort"), &target);
    if let Some(protocol) = &port.app_protocol {
        validate::label_key(errors, &path.child("appProtocol"), protocol);
    }
}

fn unique_ports(errors: &mut ErrorList, path: &Path, spec: &ServiceSpec, ports: &[ServicePort]) {
    let (mut node_ports, mut numbers) = (BTreeSet::new(), BTreeSet::new());
    for (i, port) in ports.iter().enumerate() {
        let node_port = port.node_port.unwrap_or(0);
        if node_port == 0 {
            continue;
        }
        let path = path.index(i).child("nodePort");
        if type_of(spec) == "ClusterIP" {
            errors.push(Error::forbidden(&path, "may not be used when `type` is 'ClusterIP'"));
        }
        if !node_ports.insert((&port.protocol, node_port)) {
            errors.push(Error::duplicate(&path, node_port));
        }
    }
    for (i, port) in ports.iter().enumerate() {
        if !numbers.insert((&port.protocol, port.port)) {
            let protocol = port.protocol.as_deref().unwrap_or("");
            // The message shows upstream's internal Go type of a port, with every field.
            let text = format!(
                r#"{{"Name":"","Protocol":"{protocol}","AppProtocol":null,"Port":{},"TargetPort":0,"NodePort":0}}"#,
                port.port
            );
            errors.push(validate::duplicate_text(&path.index(i), &text));
        }
    }
}

fn session_affinity(errors: &mut ErrorList, path: &Path, spec: &ServiceSpec) {
    let affinity = spec.session_affinity.as_deref().unwrap_or("");
    validate::one_of(errors, &path.child("sessionAffinity"), affinity, &["ClientIP", "None"]);
    let config = spec.session_affinity_config.as_ref();
    let path = path.child("sessionAffinityConfig");
    if affinity == "None" && config.is_some() {
        errors.push(Error::forbidden(&path, "must not be set when session affinity is None"));
    }
    if affinity != "ClientIP" {
        return;
    }
    let why = "when session affinity type is ClientIP";
    let client_ip = config.map(|c| c.client_ip.as_ref());
    match client_ip.map(|c| c.map(|c| c.timeout_seconds)) {
        None => errors.push(Error::required(&path, why)),
        Some(None) => errors.push(Error::required(&path.child("clientIP"), why)),
        Some(Some(None)) => {
            errors.push(Error::required(&path.child("clientIP").child("timeoutSeconds"), why));
        }
        Some(Some(Some(seconds))) if seconds <= 0 || seconds > STICKY_MAX_SECONDS => {
            let path = path.child("clientIP").child("timeoutSeconds");
            let problem = format!("must be greater than 0 and less than {STICKY_MAX_SECONDS}");
            errors.push(Error::invalid(&path, seconds, problem));
        }
        _ => {}
    }
}

/// Validates cluster addresses and their families against each other.
fn addresses(errors: &mut ErrorList, path: &Path, spec: &ServiceSpec) {
    if type_of(spec) == "ExternalName" {
        return;
    }
    let at = path.child("clusterIPs");
    let ips = spec.cluster_ips.clone().unwrap_or_default();
    let families = spec.ip_families.as_deref().unwrap_or_default();
    match (spec.cluster_ip.as_deref().unwrap_or(""), ips.first()) {
        ("", None) => {}
        ("", Some(_)) => {
            let problem = "must be empty when `clusterIP` is not specified";
            errors.push(Error::invalid(&at, ips.clone(), problem));
        }
        (_, None) => errors.push(Error::required(&at, "")),
        (ip, Some(first)) if ip != first => {
            errors.push(Error::invalid(&at, ips.clone(), "first value must match `clusterIP`"));
        }
        _ => {}
    }
    let mut seen = BTreeSet::new();
    for (i, family) in families.iter().enumerate() {
        let path = path.child("ipFamilies").index(i);
        validate::supported_value(errors, &path, family, &["IPv4", "IPv6"]);
        if !seen.insert(family) {
            errors.push(Error::duplicate(&path, family.as_str()));
        }
    }
    if let Some(policy) = &spec.ip_family_policy {
        let policies = ["PreferDualStack", "RequireDualStack", "SingleStack"];
        validate::supported_value(errors, &path.child("ipFamilyPolicy"), policy, &policies);
    }
    let before = errors.0.len();
    let mut parsed = Vec::new();
    for (i, ip) in ips.iter().enumerate() {
        if i == 0 && ip == "None" {
            if ips.len() > 1 {
                let problem = "'None' must be the first and only value";
                errors.push(Error::invalid(&at, ips.clone(), problem));
            }
        } else {
            parsed.extend(addresses::ip(errors, &at.index(i), ip));
        }
    }
    let well_formed = errors.0.len() == before;
    if ips.len() > 2 {
        errors.push(Error::invalid(&at, ips.clone(), "may only hold up to 2 values"));
    }
    if !well_formed {
        return;
    }
    if ips.len() > 1 && parsed.iter().all(|ip| ip.is_ipv4() == parsed[0].is_ipv4()) {
        let problem = "may specify no more than one IP for each IP family";
        errors.push(Error::invalid(&at, ips.clone(), problem));
    }
    for (i, (ip, family)) in parsed.iter().zip(families).enumerate() {
        let fits = if family == "IPv6" { ip.is_ipv6() } else { ip.is_ipv4() };
        if !fits {
            let problem = format!("expected an {family} value as indicated by `ipFamilies[{i}]`");
            errors.push(Error::invalid(&at.index(i), ips[i].as_str(), problem));
        }
    }
}

fn load_balancer(errors: &mut ErrorList, path: &Path, spec: &ServiceSpec) {
    let is_balancer = type_of(spec) == "LoadBalancer";
    let only = "may only be used when `type` is 'LoadBalancer'";
    let ranges = spec.load_balancer_source_ranges.as_deref().unwrap_or_default();
    let at = path.child("LoadBalancerSourceRanges");
    if !ranges.is_empty() && !is_balancer {
        errors.push(Error::forbidden(&at, only));
    }
    for (i, range) in ranges.iter().enumerate() {
        addresses::cidr(errors, &at.index(i), range.trim());
    }
    match spec.allocate_load_balancer_node_ports {
        Some(_) if !is_balancer => {
            errors.push(Error::forbidden(&path.child("allocateLoadBalancerNodePorts"), only));
        }
        None if is_balancer => {
            errors.push(Error::required(&Path::new("allocateLoadBalancerNodePorts"), ""));
        }
        _ => {}
    }
    if let Some(class) = &spec.load_balancer_class {
        let path = path.child("loadBalancerClass");
        if is_balancer {
            validate::label_key(errors, &path, class);
        } else {
            errors.push(Error::forbidden(&path, only));
        }
    }
}

fn traffic(errors: &mut ErrorList, path: &Path, spec: &ServiceSpec) {
    let external = spec.external_traffic_policy.as_deref().unwrap_or("");
    let at = path.child("externalTrafficPolicy");
    if is_external(spec) {
        validate::one_of(errors, &at, external, &["Cluster", "Local"]);
    } else if !external.is_empty() {
        let problem = "may only be set for externally-accessible services";
        errors.push(Error::invalid(&at, external, problem));
    }
    let port = spec.health_check_node_port.unwrap_or(0);
    if !needs_health_check(spec) && port != 0 {
        let problem = "may only be set when `type` is 'LoadBalancer' and `externalTrafficPolicy` is 'Local'";
        errors.push(Error::invalid(&path.child("healthCheckNodePort"), port, problem));
    }
    let at = path.child("internalTrafficPolicy");
    match &spec.internal_traffic_policy {
        Some(policy) => validate::supported_value(errors, &at, policy, &["Cluster", "Local"]),
        None if matches!(type_of(spec), "NodePort" | "LoadBalancer" | "ClusterIP") => {
            errors.push(Error::required(&at, ""));
        }
        None => {}
    }
    if let Some(distribution) = &spec.traffic_distribution {
        let known = ["PreferClose", "PreferSameZone", "PreferSameNode"];
        validate::supported_value(errors, &path.child("trafficDistribution"), distribution, &known);
    }
}

/// Validates an update: allocated addresses do not change.
pub fn update(new: &Service, old: &Service) -> ErrorList {
    let mut errors = ErrorList::new();
    let (spec, before) = (new.spec.clone().unwrap_or_default(), old.spec.clone().unwrap_or_default());
    let path = Path::new("spec");
    let named = type_of(&spec) == "ExternalName" || type_of(&before) == "ExternalName";
    let headless = is_headless(&spec) && is_headless(&before);
    if !named && !headless {
        cluster_ips_stay(&mut errors, &path, &spec, &before);
    }
    let balancers = type_of(&spec) == "LoadBalancer" && type_of(&before) == "LoadBalancer";
    if balancers && spec.load_balancer_class != before.load_balancer_class {
        let shown = json!(spec.load_balancer_class);
        errors.push(Error::invalid(&path.child("loadBalancerClass"), shown, "may not change once set"));
    }
    if needs_health_check(&spec)
        && needs_health_check(&before)
        && spec.health_check_node_port != before.health_check_node_port
    {
        errors.push(Error::forbidden(&path.child("healthCheckNodePort"), validate::IMMUTABLE));
    }
    errors.extend(service(new));
    errors
}

fn cluster_ips_stay(errors: &mut ErrorList, path: &Path, spec: &ServiceSpec, before: &ServiceSpec) {
    const CHANGED: &str = "may not change once set";
    let new = spec.cluster_ips.clone().unwrap_or_default();
    let old = before.cluster_ips.clone().unwrap_or_default();
    let at = path.child("clusterIPs");
    if new.len() == old.len() {
        for (i, _) in new.iter().zip(&old).enumerate().filter(|(_, (new, old))| new != old) {
            errors.push(Error::invalid(&at.index(i), new.clone(), CHANGED));
        }
        return;
    }
    match (new.first(), old.first()) {
        (None, Some(_)) => {
            errors.push(Error::invalid(&at.index(0), Value::Null, "primary clusterIP can not be unset"));
        }
        (Some(now), Some(was)) if now != was => {
            errors.push(Error::invalid(&at.index(0), new.clone(), CHANGED));
        }
        _ => {}
    }
    let single = spec.ip_family_policy.as_deref() == Some("SingleStack");
    if old.len() > new.len() && new.len() == 1 && !single {
        let problem = "must be set to 'SingleStack' when releasing the secondary clusterIP";
        errors.push(Error::invalid(&path.child("ipFamilyPolicy"), json!(spec.ip_family_policy), problem));
    }
}
