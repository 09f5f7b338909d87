//! Ingress: routes HTTP from outside to services, by host and path.

use std::collections::BTreeSet;

use k8s_openapi::api::core::v1::TypedLocalObjectReference;
use k8s_openapi::api::networking::v1 as api;
use knarr_apimachinery::field::{Error, ErrorList, Path};
use knarr_apimachinery::names;
use serde_json::Value;

use crate::addresses;
use crate::kind::Kind;
use crate::naming;
use crate::object::Object;
use crate::prepare;
use crate::resource::{self, CellContext, Column, Resource};
use crate::strategy::Strategy;
use crate::table::{self, AGE, NAME};
use crate::validate;

pub const RESOURCE: Resource = Resource {
    short_names: &["ing"],
    subresources: &[resource::STATUS],
    columns: COLUMNS,
    cells,
    ..Resource::stored(api::Ingress::RESOURCE, "IngressList", "ingress", &Rules)
};

const COLUMNS: &[Column] = &[
    NAME,
    Column::new("Class", "string", "The IngressClass of the ingress."),
    Column::new("Hosts", "string", "The hosts in the rules of the ingress."),
    Column::new("Address", "string", "The addresses of the load balancer."),
    Column::new("Ports", "string", "The TCP ports on which the ingress listens."),
    AGE,
];

fn cells(object: &Object, cx: &CellContext) -> Vec<Value> {
    let o = object.typed::<api::Ingress>().unwrap_or_default();
    let (spec, status) = (o.spec.clone().unwrap_or_default(), o.status.clone().unwrap_or_default());
    let ports = if spec.tls.is_some_and(|t| !t.is_empty()) { "80, 443" } else { "80" };
    let balancer = status.load_balancer.unwrap_or_default();
    let address = |i: &api::IngressLoadBalancerIngress| {
        let filled = |text: &Option<String>| text.clone().filter(|t| !t.is_empty());
        filled(&i.ip).or_else(|| filled(&i.hostname))
    };
    let addresses: BTreeSet<String> = balancer.ingress.iter().flatten().filter_map(address).collect();
    vec![
        Value::from(object.name()),
        Value::from(spec.ingress_class_name.as_deref().unwrap_or("<none>")),
        Value::from(hosts(spec.rules.as_deref().unwrap_or_default())),
        Value::from(addresses.into_iter().collect::<Vec<_>>().join(",")),
        Value::from(ports),
        table::age(o.metadata.creation_timestamp.as_ref(), cx),
    ]
}

/// Returns the HOSTS cell: the first three hosts and how many rules are omitted, rules without a host included.
fn hosts(rules: &[api::IngressRule]) -> String {
    const SHOWN: usize = 3;
    let (mut shown, mut more) = (Vec::new(), false);
    for rule in rules {
        more |= shown.len() == SHOWN;
        shown.extend(rule.host.as_deref().filter(|h| !more && !h.is_empty()));
    }
    let text = shown.join(",");
    match (shown.is_empty(), more) {
        (true, _) => "*".to_owned(),
        (false, true) => format!("{text} + {} more...", rules.len() - SHOWN),
        (false, false) => text,
    }
}

const CLASS_ANNOTATION: &str = "kubernetes.io/ingress.class";

struct Rules;

impl Strategy for Rules {
    fn prepare_for_create(&self, object: &mut Value) {
        prepare::create_with_status(object);
    }

    fn prepare_for_update(&self, new: &mut Value, old: &Value, subresource: Option<&str>) {
        prepare::update_with_generation(new, old, subresource);
    }

    fn validate(&self, object: &Object) -> ErrorList {
        let Ok(ingress) = object.typed::<api::Ingress>() else { return ErrorList::new() };
        let spec = ingress.spec.clone().unwrap_or_default();
        let mut errors = ErrorList::new();
        validate_spec(&mut errors, &spec, Lenient::default(), &raw_rules(object));
        let annotation = ingress.metadata.annotations.as_ref().and_then(|a| a.get(CLASS_ANNOTATION));
        if let (Some(annotation), Some(class)) = (annotation, &spec.ingress_class_name)
            && annotation != class
        {
            let path = Path::new("annotations").child(CLASS_ANNOTATION);
            let problem = "must match `ingressClassName` when both are specified";
            errors.push(Error::invalid(&path, annotation.as_str(), problem));
        }
        errors
    }

    fn validate_update(&self, new: &Object, old: &Object, subresource: Option<&str>) -> ErrorList {
        let raw = raw_rules(new);
        let (Ok(new), Ok(old)) = (new.typed::<api::Ingress>(), old.typed::<api::Ingress>()) else {
            return ErrorList::new();
        };
        let mut errors = ErrorList::new();
        match subresource {
            Some("status") => validate_status(&mut errors, &new, &old),
            _ => {
                let lenient = Lenient::towards(&old.spec.clone().unwrap_or_default());
                validate_spec(&mut errors, &new.spec.clone().unwrap_or_default(), lenient, &raw);
            }
        }
        errors
    }

    fn warnings(&self, new: &Object, old: Option<&Object>) -> Vec<String> {
        let Ok(ingress) = new.typed::<api::Ingress>() else { return Vec::new() };
        let annotated =
            ingress.metadata.annotations.as_ref().is_some_and(|a| a.contains_key(CLASS_ANNOTATION));
        let has_class = ingress.spec.as_ref().is_some_and(|s| s.ingress_class_name.is_some());
        if old.is_some() || has_class || !annotated {
            return Vec::new();
        }
        vec![format!(
            "annotation {CLASS_ANNOTATION:?} is deprecated, please use 'spec.ingressClassName' instead"
        )]
    }

    fn validate_name(&self, name: &str, prefix: bool) -> Vec<String> {
        naming::subdomain(name, prefix)
    }
}

/// Violations that an update may keep, because the old object has them.
#[derive(Clone, Copy, Default)]
struct Lenient {
    secret_names: bool,
    wildcard_rules: bool,
}

impl Lenient {
    fn towards(old: &api::IngressSpec) -> Self {
        let invalid = |rule: &&api::IngressRule| {
            let mut errors = ErrorList::new();
            rule_value(&mut errors, &Path::default(), rule, &Value::Null);
            !errors.is_empty()
        };
        let wildcard = |rule: &&api::IngressRule| rule.host.as_deref().is_some_and(|host| host.contains('*'));
        Self {
            secret_names: old.tls.iter().flatten().any(|tls| !secret_problems(tls).is_empty()),
            wildcard_rules: old.rules.iter().flatten().filter(wildcard).any(|rule| invalid(&rule)),
        }
    }
}

fn secret_problems(tls: &api::IngressTLS) -> Vec<String> {
    let name = tls.secret_name.as_deref().unwrap_or("");
    if name.is_empty() { Vec::new() } else { names::dns1123_subdomain(name) }
}

/// Returns the rules as raw JSON: in the typed view, an empty path type equals a missing one.
fn raw_rules(object: &Object) -> Value {
    let mut value: Value = serde_json::from_slice(&object.json()).unwrap_or_default();
    value.pointer_mut("/spec/rules").map(Value::take).unwrap_or_default()
}

fn validate_spec(errors: &mut ErrorList, spec: &api::IngressSpec, lenient: Lenient, raw: &Value) {
    let path = Path::new("spec");
    let rules = spec.rules.as_deref().unwrap_or_default();
    if rules.is_empty() && spec.default_backend.is_none() {
        let problem = "either `defaultBackend` or `rules` must be specified";
        errors.push(Error::invalid(&path, Value::Null, problem));
    }
    if let Some(default) = &spec.default_backend {
        backend(errors, &path.child("defaultBackend"), default);
    }
    for (i, rule) in rules.iter().enumerate() {
        let path = path.child("rules").index(i);
        let name = rule.host.as_deref().unwrap_or("");
        let wildcard = name.contains('*');
        if !name.is_empty() {
            if addresses::parse_ip(name).is_some() {
                let problem = "must be a DNS name, not an IP address";
                errors.push(Error::invalid(&path.child("host"), name, problem));
            }
            host(errors, &path.child("host"), name);
        }
        if !wildcard || !lenient.wildcard_rules {
            rule_value(errors, &path, rule, &raw[i]);
        }
    }
    for (i, tls) in spec.tls.iter().flatten().enumerate() {
        let path = path.child("tls").index(i);
        for (j, name) in tls.hosts.iter().flatten().enumerate() {
            host(errors, &path.child("hosts").index(j), name);
        }
        if !lenient.secret_names {
            let name = tls.secret_name.as_deref().unwrap_or("");
            validate::problems(errors, &path.child("secretName"), name, secret_problems(tls));
        }
    }
    if let Some(class) = spec.ingress_class_name.as_deref() {
        validate::dns_subdomain(errors, &path.child("ingressClassName"), class);
    }
}

fn host(errors: &mut ErrorList, path: &Path, host: &str) {
    let problems = if host.contains('*') {
        names::wildcard_dns1123_subdomain(host)
    } else {
        names::dns1123_subdomain(host)
    };
    validate::problems(errors, path, host, problems);
}

fn rule_value(errors: &mut ErrorList, path: &Path, rule: &api::IngressRule, raw: &Value) {
    let Some(http) = &rule.http else { return };
    let path = path.child("http").child("paths");
    if http.paths.is_empty() {
        errors.push(Error::required(&path, ""));
    }
    for (i, rule) in http.paths.iter().enumerate() {
        let has_type = raw["http"]["paths"][i]["pathType"].is_string();
        http_path(errors, &path.index(i), rule, has_type);
    }
}

const BAD_PARTS: [&str; 5] = ["//", "/./", "/../", "%2f", "%2F"];
const BAD_ENDS: [&str; 2] = ["/..", "/."];

fn http_path(errors: &mut ErrorList, path: &Path, rule: &api::HTTPIngressPath, has_type: bool) {
    let at = path.child("path");
    let text = rule.path.as_deref().unwrap_or("");
    let mut invalid = |problem: String| errors.push(Error::invalid(&at, text, problem));
    match rule.path_type.as_str() {
        "" if !has_type => {
            errors.push(Error::required(&path.child("pathType"), "pathType must be specified"));
            return;
        }
        "Exact" | "Prefix" => {
            if !text.starts_with('/') {
                invalid("must be an absolute path".to_owned());
            }
            for part in BAD_PARTS.iter().filter(|part| text.contains(**part)) {
                invalid(format!("must not contain '{part}'"));
            }
            for end in BAD_ENDS.iter().filter(|end| text.ends_with(**end)) {
                invalid(format!("cannot end with '{end}'"));
            }
        }
        "ImplementationSpecific" => {
            if !text.is_empty() && !text.starts_with('/') {
                invalid("must be an absolute path".to_owned());
            }
        }
        other => {
            let types = ["Exact", "ImplementationSpecific", "Prefix"];
            errors.push(validate::not_supported(&path.child("pathType"), other, &types));
        }
    }
    backend(errors, &path.child("backend"), &rule.backend);
}

fn backend(errors: &mut ErrorList, path: &Path, backend: &api::IngressBackend) {
    let service = match (&backend.resource, &backend.service) {
        (Some(_), Some(_)) => {
            errors.push(Error::invalid(path, "", "cannot set both resource and service backends"));
            return;
        }
        (Some(resource), None) => {
            reference(errors, &path.child("resource"), resource);
            return;
        }
        (None, None) => {
            errors.push(Error::invalid(path, "", "resource or service backend is required"));
            return;
        }
        (None, Some(service)) => service,
    };
    let at = path.child("service");
    if validate::required(errors, &at.child("name"), &service.name) {
        validate::dns_label(errors, &at.child("name"), &service.name);
    }
    let port = service.port.clone().unwrap_or_default();
    let name = port.name.as_deref().unwrap_or("");
    let number = i64::from(port.number.unwrap_or(0));
    let at = at.child("port");
    match (name, number) {
        ("", 0) => errors.push(Error::required(path, "port name or number is required")),
        ("", number) => {
            let problems = names::port_number(number);
            validate::number_problems(errors, &at.child("number"), number, problems);
        }
        (name, 0) => validate::problems(errors, &at.child("name"), name, names::port_name(name)),
        _ => errors.push(Error::invalid(path, "", "cannot set both port name & port number")),
    }
}

fn reference(errors: &mut ErrorList, path: &Path, reference: &TypedLocalObjectReference) {
    if let Some(group) = reference.api_group.as_deref() {
        validate::dns_subdomain(errors, &path.child("apiGroup"), group);
    }
    for (field, value) in [("kind", &reference.kind), ("name", &reference.name)] {
        validate::path_segment(errors, &path.child(field), value);
    }
}

fn validate_status(errors: &mut ErrorList, new: &api::Ingress, old: &api::Ingress) {
    let list = |ingress: &api::Ingress| {
        let status = ingress.status.clone().unwrap_or_default();
        status.load_balancer.unwrap_or_default().ingress.unwrap_or_default()
    };
    let known: Vec<String> = list(old).into_iter().filter_map(|i| i.ip).collect();
    let path = Path::new("status").child("loadBalancer").child("ingress");
    for (i, ingress) in list(new).into_iter().enumerate() {
        let path = path.index(i);
        if let Some(ip) = ingress.ip.filter(|ip| !ip.is_empty() && !known.contains(ip)) {
            addresses::ip(errors, &path.child("ip"), &ip);
        }
        if let Some(name) = ingress.hostname.filter(|h| !h.is_empty()) {
            let path = path.child("hostname");
            validate::dns_subdomain(errors, &path, &name);
            if addresses::parse_ip(&name).is_some() {
                let problem = "must be a DNS name, not an IP address";
                errors.push(Error::invalid(&path, name, problem));
            }
        }
    }
}
