//! Environment variables for services, in the form of Kubernetes and of Docker links.

use std::collections::BTreeMap;
use std::sync::Arc;

use k8s_openapi::api::core::v1::Service;
use knarr_api::kind::Kind;

/// Returns the variables for the services of `namespace`, if links are enabled, and for `kubernetes`, the API.
pub fn service_env(
    services: &[Arc<Service>],
    namespace: &str,
    links: bool,
    master_namespace: &str,
) -> BTreeMap<String, String> {
    let master = |s: &Service| s.namespace() == master_namespace && s.name() == "kubernetes";
    let mut chosen: BTreeMap<&str, &Service> = BTreeMap::new();
    for service in services.iter().filter(|s| has_cluster_ip(s)) {
        if links && service.namespace() == namespace {
            chosen.insert(service.name(), service);
        } else if master(service) {
            chosen.entry(service.name()).or_insert(service);
        }
    }
    let mut env = BTreeMap::new();
    for service in chosen.into_values() {
        add(service, &mut env);
    }
    env
}

fn cluster_ip(service: &Service) -> &str {
    service.spec.as_ref().and_then(|s| s.cluster_ip.as_deref()).unwrap_or("")
}

fn has_cluster_ip(service: &Service) -> bool {
    let external = service.spec.as_ref().is_some_and(|s| s.type_.as_deref() == Some("ExternalName"));
    !external && !matches!(cluster_ip(service), "" | "None")
}

fn variable(name: &str) -> String {
    name.replace('-', "_").to_uppercase()
}

fn add(service: &Service, env: &mut BTreeMap<String, String>) {
    let ports = service.spec.as_ref().and_then(|s| s.ports.as_deref()).unwrap_or_default();
    let Some(first) = ports.first() else { return };
    let (name, ip) = (variable(service.name()), cluster_ip(service));
    env.insert(format!("{name}_SERVICE_HOST"), ip.to_owned());
    env.insert(format!("{name}_SERVICE_PORT"), first.port.to_string());
    let host = if ip.contains(':') { format!("[{ip}]") } else { ip.to_owned() };
    for (at, port) in ports.iter().enumerate() {
        if let Some(port_name) = port.name.as_deref().filter(|n| !n.is_empty()) {
            env.insert(format!("{name}_SERVICE_PORT_{}", variable(port_name)), port.port.to_string());
        }
        let protocol = port.protocol.as_deref().unwrap_or("TCP");
        let url = format!("{}://{host}:{}", protocol.to_lowercase(), port.port);
        if at == 0 {
            env.insert(format!("{name}_PORT"), url.clone());
        }
        let prefix = format!("{name}_PORT_{}_{}", port.port, protocol.to_uppercase());
        env.insert(format!("{prefix}_PROTO"), protocol.to_lowercase());
        env.insert(format!("{prefix}_PORT"), port.port.to_string());
        env.insert(format!("{prefix}_ADDR"), ip.to_owned());
        env.insert(prefix, url);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use k8s_openapi::api::core::v1::{ServicePort, ServiceSpec};

    fn service(namespace: &str, name: &str, ip: &str) -> Arc<Service> {
        let port = ServicePort { port: 80, name: Some("http".into()), ..ServicePort::default() };
        let spec =
            ServiceSpec { cluster_ip: Some(ip.into()), ports: Some(vec![port]), ..ServiceSpec::default() };
        let mut service = Service { spec: Some(spec), ..Service::default() };
        service.metadata.name = Some(name.into());
        service.metadata.namespace = Some(namespace.into());
        Arc::new(service)
    }

    #[test]
    fn links() {
        let all = [
            service("default", "kubernetes", "10.96.0.1"),
            service("a", "my-web", "10.96.0.2"),
            service("a", "headless", "None"),
            service("b", "other", "10.96.0.3"),
        ];
        let env = service_env(&all, "a", true, "default");
        for (name, value) in [
            ("KUBERNETES_SERVICE_HOST", "10.96.0.1"),
            ("MY_WEB_SERVICE_HOST", "10.96.0.2"),
            ("MY_WEB_SERVICE_PORT", "80"),
            ("MY_WEB_SERVICE_PORT_HTTP", "80"),
            ("MY_WEB_PORT", "tcp://10.96.0.2:80"),
            ("MY_WEB_PORT_80_TCP", "tcp://10.96.0.2:80"),
            ("MY_WEB_PORT_80_TCP_PROTO", "tcp"),
            ("MY_WEB_PORT_80_TCP_PORT", "80"),
            ("MY_WEB_PORT_80_TCP_ADDR", "10.96.0.2"),
        ] {
            assert_eq!(env.get(name).map(String::as_str), Some(value), "{name}");
        }
        assert!(!env.keys().any(|k| k.starts_with("HEADLESS") || k.starts_with("OTHER")));
        let without = service_env(&all, "a", false, "default");
        assert!(without.keys().all(|k| k.starts_with("KUBERNETES_")) && !without.is_empty());
    }
}
