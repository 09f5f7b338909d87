//! Service: a stable address for a set of pods.

mod defaults;
mod validation;
mod warnings;

use std::collections::BTreeSet;

use k8s_openapi::api::core::v1 as api;
use knarr_apimachinery::field::ErrorList;
use serde_json::{Value, json};

use crate::defaults::{child, text};
use crate::kind::Kind;
use crate::naming;
use crate::object::Object;
use crate::prepare;
use crate::resource::{self, CellContext, Column, Resource, Subresource};
use crate::strategy::Strategy;
use crate::table::{self, AGE, NAME};

const PROXY: Subresource = Subresource {
    name: "proxy",
    body: Some(("", "v1", "ServiceProxyOptions")),
    verbs: &["create", "delete", "get", "patch", "update"],
};

pub const RESOURCE: Resource = Resource {
    short_names: &["svc"],
    categories: &["all"],
    subresources: &[PROXY, resource::STATUS],
    selectable: &["spec.clusterIP", "spec.type"],
    columns: COLUMNS,
    cells,
    ..Resource::stored(api::Service::RESOURCE, "ServiceList", "service", &Rules)
};

const COLUMNS: &[Column] = &[
    NAME,
    Column::new("Type", "string", "The type of the service."),
    Column::new("Cluster-IP", "string", "The cluster IP address of the service."),
    Column::new("External-IP", "string", "The external addresses of the service."),
    Column::new("Port(s)", "string", "The ports of the service, with node ports."),
    AGE,
    Column::wide("Selector", "string", "The label selector for the pods."),
];

fn cells(object: &Object, cx: &CellContext) -> Vec<Value> {
    let o = object.typed::<api::Service>().unwrap_or_default();
    let spec = o.spec.clone().unwrap_or_default();
    let cluster_ip = spec.cluster_ips.iter().flatten().next().map_or("<none>", String::as_str);
    let ports: Vec<String> = spec.ports.iter().flatten().map(port).collect();
    vec![
        Value::from(object.name()),
        Value::from(spec.type_.as_deref().unwrap_or("")),
        Value::from(cluster_ip),
        Value::from(external_ip(&spec, o.status.as_ref())),
        table::or_none(&ports.join(",")),
        table::age(o.metadata.creation_timestamp.as_ref(), cx),
        Value::from(table::labels(spec.selector.as_ref())),
    ]
}

fn port(port: &api::ServicePort) -> String {
    let protocol = port.protocol.as_deref().unwrap_or("");
    match port.node_port {
        Some(node_port) if node_port > 0 => format!("{}:{node_port}/{protocol}", port.port),
        _ => format!("{}/{protocol}", port.port),
    }
}

fn external_ip(spec: &api::ServiceSpec, status: Option<&api::ServiceStatus>) -> String {
    let external = spec.external_ips.as_deref().unwrap_or_default();
    match spec.type_.as_deref().unwrap_or("") {
        "ClusterIP" | "NodePort" if external.is_empty() => "<none>".to_owned(),
        "ClusterIP" | "NodePort" => external.join(","),
        "LoadBalancer" => {
            let ingress = status.and_then(|s| s.load_balancer.as_ref()).and_then(|l| l.ingress.as_ref());
            let given: BTreeSet<&str> = ingress
                .into_iter()
                .flatten()
                .filter_map(|i| i.ip.as_deref().filter(|ip| !ip.is_empty()).or(i.hostname.as_deref()))
                .filter(|address| !address.is_empty())
                .collect();
            let all: Vec<&str> = given.into_iter().chain(external.iter().map(String::as_str)).collect();
            if all.is_empty() { "<pending>".to_owned() } else { all.join(",") }
        }
        "ExternalName" => spec.external_name.clone().unwrap_or_default(),
        _ => "<unknown>".to_owned(),
    }
}

struct Rules;

impl Strategy for Rules {
    fn default(&self, object: &mut Value) {
        defaults::service(object);
    }

    fn prepare_for_create(&self, object: &mut Value) {
        prepare::object(object).insert("status".to_owned(), json!({"loadBalancer": {}}));
        let spec = child(prepare::object(object), "spec");
        if let (false, None) = (text(spec, "clusterIP").is_empty(), spec.get("clusterIPs")) {
            let single = json!([text(spec, "clusterIP")]);
            spec.insert("clusterIPs".to_owned(), single);
        }
    }

    fn prepare_for_update(&self, new: &mut Value, old: &Value, subresource: Option<&str>) {
        prepare::update_with_status(new, old, subresource);
        if subresource.is_none() {
            defaults::carry_over(new, old);
        }
    }

    fn allow_create_on_update(&self) -> bool {
        true
    }

    fn validate(&self, object: &Object) -> ErrorList {
        object.typed::<api::Service>().map(|o| validation::service(&o)).unwrap_or_default()
    }

    fn validate_update(&self, new: &Object, old: &Object, subresource: Option<&str>) -> ErrorList {
        let (Ok(new), Ok(old)) = (new.typed::<api::Service>(), old.typed::<api::Service>()) else {
            return ErrorList::new();
        };
        match subresource {
            Some("status") => ErrorList::new(),
            _ => validation::update(&new, &old),
        }
    }

    fn warnings(&self, new: &Object, _: Option<&Object>) -> Vec<String> {
        new.typed::<api::Service>().map(|service| warnings::service(&service)).unwrap_or_default()
    }

    fn validate_name(&self, name: &str, prefix: bool) -> Vec<String> {
        naming::label(name, prefix)
    }
}
