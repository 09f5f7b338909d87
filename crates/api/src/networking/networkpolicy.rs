//! NetworkPolicy: which traffic pods may receive and send.

use k8s_openapi::api::networking::v1 as api;
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;
use knarr_apimachinery::field::{Error, ErrorList, Path};
use knarr_apimachinery::names;
use serde_json::{Value, json};

use crate::addresses::{self, Network};
use crate::defaults::{child, items, unset};
use crate::kind::Kind;
use crate::naming;
use crate::object::Object;
use crate::prepare;
use crate::resource::{CellContext, Column, Resource};
use crate::strategy::Strategy;
use crate::table::{self, AGE, NAME};
use crate::validate;

pub const RESOURCE: Resource = Resource {
    short_names: &["netpol"],
    columns: COLUMNS,
    cells,
    ..Resource::stored(api::NetworkPolicy::RESOURCE, "NetworkPolicyList", "networkpolicy", &Rules)
};

const COLUMNS: &[Column] = &[
    NAME,
    Column::new("Pod-Selector", "string", "The selector for the pods that the policy applies to."),
    AGE,
];

fn cells(object: &Object, cx: &CellContext) -> Vec<Value> {
    let o = object.typed::<api::NetworkPolicy>().unwrap_or_default();
    vec![
        Value::from(object.name()),
        Value::from(table::selector(o.spec.as_ref().and_then(|s| s.pod_selector.as_ref()))),
        table::age(o.metadata.creation_timestamp.as_ref(), cx),
    ]
}

struct Rules;

impl Strategy for Rules {
    fn default(&self, object: &mut Value) {
        let spec = child(prepare::object(object), "spec");
        let sends = spec.get("egress").and_then(Value::as_array).is_some_and(|e| !e.is_empty());
        if spec.get("policyTypes").and_then(Value::as_array).is_none_or(Vec::is_empty) {
            let types = if sends { json!(["Ingress", "Egress"]) } else { json!(["Ingress"]) };
            spec.insert("policyTypes".to_owned(), types);
        }
        for direction in ["ingress", "egress"] {
            for rule in items(spec, direction) {
                for port in items(rule, "ports") {
                    unset(port, "protocol", "TCP");
                }
            }
        }
    }

    fn prepare_for_create(&self, object: &mut Value) {
        prepare::set_generation(object, 1);
    }

    fn prepare_for_update(&self, new: &mut Value, old: &Value, _: Option<&str>) {
        prepare::bump_generation(new, old, &["/spec"]);
    }

    fn validate(&self, object: &Object) -> ErrorList {
        let policy = object.typed::<api::NetworkPolicy>();
        policy.map(|p| validate_spec(&p.spec.clone().unwrap_or_default(), &[])).unwrap_or_default()
    }

    fn validate_update(&self, new: &Object, old: &Object, _: Option<&str>) -> ErrorList {
        let (Ok(new), Ok(old)) = (new.typed::<api::NetworkPolicy>(), old.typed::<api::NetworkPolicy>())
        else {
            return ErrorList::new();
        };
        // A network that the old object has in any place is not validated again.
        let old = old.spec.clone().unwrap_or_default();
        let known: Vec<String> = blocks(&old).into_iter().flat_map(|(_, b)| networks(&b)).collect();
        validate_spec(&new.spec.clone().unwrap_or_default(), &known)
    }

    fn warnings(&self, new: &Object, _: Option<&Object>) -> Vec<String> {
        let Ok(policy) = new.typed::<api::NetworkPolicy>() else { return Vec::new() };
        let mut warnings = Vec::new();
        for (path, block) in blocks(&policy.spec.clone().unwrap_or_default()) {
            warnings.extend(addresses::cidr_warnings(&path.child("cidr"), &block.cidr));
            for (i, except) in block.except.iter().flatten().enumerate() {
                warnings.extend(addresses::cidr_warnings(&path.child("except").index(i), except));
            }
        }
        warnings
    }

    fn validate_name(&self, name: &str, prefix: bool) -> Vec<String> {
        naming::subdomain(name, prefix)
    }
}

fn networks(block: &api::IPBlock) -> Vec<String> {
    std::iter::once(&block.cidr).chain(block.except.iter().flatten()).cloned().collect()
}

/// The peers and ports of one rule, with the paths of both.
struct Rule<'a> {
    peers: (Path, &'a [api::NetworkPolicyPeer]),
    ports: (Path, &'a [api::NetworkPolicyPort]),
}

/// Returns all rules, ingress before egress.
fn rules(spec: &api::NetworkPolicySpec) -> Vec<Rule<'_>> {
    let path = Path::new("spec");
    let ingress = spec.ingress.iter().flatten().enumerate().map(|(i, rule)| {
        let path = path.child("ingress").index(i);
        (path, "from", rule.from.as_deref(), rule.ports.as_deref())
    });
    let egress = spec.egress.iter().flatten().enumerate().map(|(i, rule)| {
        let path = path.child("egress").index(i);
        (path, "to", rule.to.as_deref(), rule.ports.as_deref())
    });
    ingress
        .chain(egress)
        .map(|(path, peers_name, peers, ports)| Rule {
            peers: (path.child(peers_name), peers.unwrap_or_default()),
            ports: (path.child("ports"), ports.unwrap_or_default()),
        })
        .collect()
}

fn blocks(spec: &api::NetworkPolicySpec) -> Vec<(Path, api::IPBlock)> {
    let mut found = Vec::new();
    for Rule { peers: (path, peers), .. } in rules(spec) {
        for (i, peer) in peers.iter().enumerate() {
            found.extend(peer.ip_block.clone().map(|block| (path.index(i).child("ipBlock"), block)));
        }
    }
    found
}

fn validate_spec(spec: &api::NetworkPolicySpec, known: &[String]) -> ErrorList {
    let mut errors = ErrorList::new();
    let path = Path::new("spec");
    validate::label_selector(&mut errors, &path.child("podSelector"), spec.pod_selector.as_ref());
    for rule in rules(spec) {
        let (path, ports) = rule.ports;
        ports.iter().enumerate().for_each(|(i, p)| port(&mut errors, &path.index(i), p));
        let (path, peers) = rule.peers;
        peers.iter().enumerate().for_each(|(i, p)| peer(&mut errors, &path.index(i), p, known));
    }
    let path = path.child("policyTypes");
    let types = spec.policy_types.as_deref().unwrap_or_default();
    if types.len() > 2 {
        let problem = "may not specify more than two policyTypes";
        errors.push(Error::invalid(&path, validate::shown(&types), problem));
        return errors;
    }
    for (i, type_) in types.iter().enumerate() {
        validate::supported_value(&mut errors, &path.index(i), type_, &["Ingress", "Egress"]);
    }
    errors
}

fn port(errors: &mut ErrorList, path: &Path, port: &api::NetworkPolicyPort) {
    if let Some(protocol) = port.protocol.as_deref() {
        validate::supported_value(errors, &path.child("protocol"), protocol, &["TCP", "UDP", "SCTP"]);
    }
    let at = path.child("endPort");
    let mut not_with = |what: &str| {
        if let Some(end) = port.end_port {
            let problem = format!("may not be specified when `port` is {what}");
            errors.push(Error::invalid(&at, end, problem));
        }
    };
    match &port.port {
        None => not_with("not specified"),
        Some(IntOrString::String(_)) => not_with("non-numeric"),
        Some(IntOrString::Int(_)) => {}
    }
    if let Some(number) = &port.port {
        validate::port_or_name(errors, &path.child("port"), number);
    }
    if let (Some(IntOrString::Int(start)), Some(end)) = (&port.port, port.end_port) {
        if end < *start {
            errors.push(Error::invalid(&at, end, "must be greater than or equal to `port`"));
        }
        let end = i64::from(end);
        validate::number_problems(errors, &at, end, names::port_number(end));
    }
}

fn peer(errors: &mut ErrorList, path: &Path, peer: &api::NetworkPolicyPeer, known: &[String]) {
    validate::label_selector(errors, &path.child("podSelector"), peer.pod_selector.as_ref());
    validate::label_selector(errors, &path.child("namespaceSelector"), peer.namespace_selector.as_ref());
    let selects = peer.pod_selector.is_some() || peer.namespace_selector.is_some();
    match (&peer.ip_block, selects) {
        (None, false) => errors.push(Error::required(path, "must specify a peer")),
        (Some(block), selects) => {
            ip_block(errors, &path.child("ipBlock"), block, known);
            if selects {
                errors.push(Error::forbidden(path, "may not specify both ipBlock and another peer"));
            }
        }
        (None, true) => {}
    }
}

fn ip_block(errors: &mut ErrorList, path: &Path, block: &api::IPBlock, known: &[String]) {
    let network = |errors: &mut ErrorList, path: &Path, text: &str| {
        if known.iter().any(|k| k == text) {
            return Network::parse(text);
        }
        addresses::cidr(errors, path, text)
    };
    let at = path.child("cidr");
    if !validate::required(errors, &at, &block.cidr) {
        return;
    }
    let Some(whole) = network(errors, &at, &block.cidr) else { return };
    for (i, text) in block.except.iter().flatten().enumerate() {
        let path = path.child("except").index(i);
        let Some(except) = network(errors, &path, text) else { continue };
        if !whole.contains(&except) || whole.bits == except.bits {
            errors.push(Error::invalid(&path, text.as_str(), "must be a strict subset of `cidr`"));
        }
    }
}
