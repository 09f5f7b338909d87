//! Finds the backend of a request: the kubelet of a pod's node, or a pod or endpoint itself.

use std::sync::Arc;

use k8s_openapi::api::core::v1::{Node, Pod, Service};
use k8s_openapi::api::discovery::v1::{Endpoint, EndpointSlice};
use knarr_apimachinery::field::{Error, ErrorList, Path};
use knarr_apimachinery::status::StatusError;
use knarr_client::transport::Query as Builder;

use super::{Backend, Location, Proxy, addresses, rewrite};
use knarr_registry::store;
use knarr_wire::query::Query;
use knarr_wire::request::Request;

/// Returns the backend and path; `None` for the log of a pod without a node, because it has no log yet.
pub async fn locate(proxy: &Proxy, request: &Request) -> Result<Option<Location>, StatusError> {
    let info = &request.info;
    match (info.resource.as_str(), info.subresource.as_str()) {
        ("nodes", "proxy") => {
            let (scheme, name, port) = name_and_port(&info.name)?;
            let mut to = kubelet_of(proxy, name).await?;
            let Backend::Kubelet { address: stated, port: own_port, .. } = &to else {
                return Err(StatusError::path_not_found());
            };
            // The kubelet proves its identity by its certificate, whatever address its name resolves to.
            let address = match proxy.to_own_machine {
                true => stated.clone(),
                false => addresses::of_host(stated).await?.to_string(),
            };
            // Any other port of the node is called without the kubelet's TLS settings.
            if let Ok(asked) = port.parse::<u16>()
                && asked != *own_port
            {
                to = by_scheme(scheme, address, asked)?;
            }
            Ok(Some(Location { to, path: rest(request) }))
        }
        ("services", "proxy") => service(proxy, request).await.map(Some),
        ("pods", "proxy") => {
            let (scheme, name, port) = name_and_port(&info.name)?;
            let pod = pod(proxy, &info.namespace, name).await?;
            pod_proxy(&pod, scheme, port, rest(request)).map(Some)
        }
        ("pods", kind) => {
            let pod = pod(proxy, &info.namespace, &info.name).await?;
            in_pod(proxy, request, &pod, kind).await
        }
        _ => Err(StatusError::path_not_found()),
    }
}

/// Returns the path after `proxy`, with the query.
fn rest(request: &Request) -> String {
    let path = rewrite::split(&request.raw_path, &request.info.resource).rest;
    let query = request.raw_query.as_deref().map(|q| format!("?{q}")).unwrap_or_default();
    format!("{}{query}", if path.is_empty() { "/" } else { &path })
}

/// Returns a backend with or without TLS, depending on the scheme.
fn by_scheme(scheme: &str, address: String, port: u16) -> Result<Backend, StatusError> {
    if scheme != "https" {
        return Ok(Backend::Plain { address, port });
    }
    let tls = knarr_tls::trusting_anybody().map_err(StatusError::internal)?.with_no_client_auth();
    Ok(Backend::Tls { server_name: address.clone(), address, port, tls: Arc::new(tls) })
}

async fn pod(proxy: &Proxy, namespace: &str, name: &str) -> Result<Pod, StatusError> {
    let served = proxy.registry.table.find("", "v1", "pods").ok_or_else(StatusError::path_not_found)?;
    let current = store::read(&proxy.registry, &served, namespace, name)
        .await?
        .ok_or_else(|| served.not_found(name))?;
    let pod = current.object.typed::<Pod>().map_err(StatusError::internal)?;
    Ok(Pod::clone(&pod))
}

pub async fn kubelet_of(proxy: &Proxy, node: &str) -> Result<Backend, StatusError> {
    let served = proxy.registry.table.find("", "v1", "nodes").ok_or_else(StatusError::path_not_found)?;
    let current =
        store::read(&proxy.registry, &served, "", node).await?.ok_or_else(|| served.not_found(node))?;
    let typed = current.object.typed::<Node>().map_err(StatusError::internal)?;
    let status = typed.status.as_ref();
    let addresses = status.and_then(|s| s.addresses.as_deref()).unwrap_or_default();
    let of_type = |kind: &str| addresses.iter().find(|a| a.type_ == kind).map(|a| a.address.clone());
    let address = of_type("InternalIP").or_else(|| of_type("ExternalIP")).or_else(|| of_type("Hostname"));
    let endpoint = status.and_then(|s| s.daemon_endpoints.as_ref()).and_then(|d| d.kubelet_endpoint.as_ref());
    let port = endpoint.and_then(|e| u16::try_from(e.port).ok()).filter(|p| *p != 0).unwrap_or(10250);
    match address {
        Some(address) => Ok(Backend::Kubelet { node: node.to_owned(), address, port }),
        None => Err(StatusError::internal(format!(
            "no preferred addresses found; known addresses: [] of node \"{node}\""
        ))),
    }
}

async fn in_pod(
    proxy: &Proxy,
    request: &Request,
    pod: &Pod,
    kind: &str,
) -> Result<Option<Location>, StatusError> {
    let name = pod.metadata.name.as_deref().unwrap_or("");
    let namespace = pod.metadata.namespace.as_deref().unwrap_or("");
    let node = pod.spec.as_ref().and_then(|s| s.node_name.as_deref()).unwrap_or("");
    let query = &request.query;
    let container = match kind {
        "portforward" => String::new(),
        _ => container(pod, query.get("container").unwrap_or(""))?,
    };
    if kind == "log" {
        check_log_options(name, query)?;
        if query.flag("insecureSkipTLSVerifyBackend") {
            request.warn("insecureSkipTLSVerifyBackend: the kubelet's certificate is verified all the same");
        }
    }
    if node.is_empty() {
        if kind == "log" {
            return Ok(None);
        }
        return Err(StatusError::bad_request(format!("pod {name} does not have a host assigned")));
    }
    let to = kubelet_of(proxy, node).await?;
    let (path, parameters) = match kind {
        "log" => (format!("/containerLogs/{namespace}/{name}/{container}"), log_parameters(query)),
        "portforward" => {
            let ports: Vec<&str> = query.all("ports").chain(query.all("port")).collect();
            let mut out = Builder::default();
            if !ports.is_empty() {
                out.add("port", &ports.join(","));
            }
            (format!("/portForward/{namespace}/{name}"), out.0)
        }
        kind => (format!("/{kind}/{namespace}/{name}/{container}"), stream_parameters(query)),
    };
    let path = if parameters.is_empty() { path } else { format!("{path}?{parameters}") };
    Ok(Some(Location { to, path }))
}

fn log_parameters(query: &Query) -> String {
    let mut out = Builder::default();
    for flag in ["follow", "previous", "timestamps"] {
        if query.flag(flag) {
            out.add(flag, "true");
        }
    }
    for name in ["sinceSeconds", "sinceTime", "tailLines", "limitBytes", "stream"] {
        if let Some(value) = query.non_empty(name) {
            out.add(name, value);
        }
    }
    out.0
}

fn stream_parameters(query: &Query) -> String {
    let mut out = Builder::default();
    for (ours, kubelets) in [("stdin", "input"), ("stdout", "output"), ("stderr", "error"), ("tty", "tty")] {
        if query.flag(ours) {
            out.add(kubelets, "1");
        }
    }
    for word in query.all("command") {
        out.add("command", word);
    }
    out.0
}

fn check_log_options(pod: &str, query: &Query) -> Result<(), StatusError> {
    let mut errors = ErrorList::new();
    for (name, least, why) in [
        ("tailLines", 0, "must be greater than or equal to 0"),
        ("limitBytes", 1, "must be greater than 0"),
        ("sinceSeconds", 1, "must be greater than 0"),
    ] {
        if let Some(number) = query.number(name)?
            && number < least
        {
            errors.push(Error::invalid(&Path::new(name), number, why));
        }
    }
    if query.non_empty("sinceSeconds").is_some() && query.non_empty("sinceTime").is_some() {
        errors.push(Error::forbidden(
            &Path::default(),
            "at most one of `sinceTime` or `sinceSeconds` may be specified",
        ));
    }
    if errors.is_empty() { Ok(()) } else { Err(StatusError::invalid("", "PodLogOptions", pod, &errors)) }
}

/// Returns the requested container, or the only one.
fn container(pod: &Pod, wanted: &str) -> Result<String, StatusError> {
    let name = pod.metadata.name.as_deref().unwrap_or("");
    let Some(spec) = &pod.spec else { return Err(StatusError::bad_request("pod has no spec")) };
    let main: Vec<&str> = spec.containers.iter().map(|c| c.name.as_str()).collect();
    let init: Vec<&str> = spec.init_containers.iter().flatten().map(|c| c.name.as_str()).collect();
    let ephemeral: Vec<&str> = spec.ephemeral_containers.iter().flatten().map(|c| c.name.as_str()).collect();
    if wanted.is_empty() {
        if let [only] = main.as_slice() {
            return Ok((*only).to_owned());
        }
        let mut why =
            format!("a container name must be specified for pod {name}, choose one of: [{}]", main.join(" "));
        if !init.is_empty() {
            why.push_str(&format!(" or one of the init containers: [{}]", init.join(" ")));
        }
        if !ephemeral.is_empty() {
            why.push_str(&format!(" or one of the ephemeral containers: [{}]", ephemeral.join(" ")));
        }
        return Err(StatusError::bad_request(why));
    }
    if main.iter().chain(&init).chain(&ephemeral).any(|c| *c == wanted) {
        return Ok(wanted.to_owned());
    }
    Err(StatusError::bad_request(format!("container {wanted} is not valid for pod {name}")))
}

/// Splits `name`, `name:port` or `https:name:port` into scheme, name and port.
fn name_and_port(text: &str) -> Result<(&str, &str, &str), StatusError> {
    let invalid = || StatusError::bad_request(format!("invalid service request \"{text}\""));
    match text.split(':').collect::<Vec<_>>()[..] {
        [name] => Ok(("", name, "")),
        [name, port] => Ok(("", name, port)),
        [scheme @ ("" | "http" | "https"), name, port] => Ok((scheme, name, port)),
        _ => Err(invalid()),
    }
}

fn pod_proxy(pod: &Pod, scheme: &str, port: &str, path: String) -> Result<Location, StatusError> {
    let name = pod.metadata.name.as_deref().unwrap_or("");
    let address = pod.status.as_ref().and_then(|s| s.pod_ip.clone()).unwrap_or_default();
    addresses::check(&address)?;
    let containers = pod.spec.iter().flat_map(|s| &s.containers);
    let mut ports = containers.flat_map(|c| c.ports.iter().flatten());
    let number = if port.is_empty() {
        ports.next().map(|p| p.container_port)
    } else if let Ok(number) = port.parse::<i32>() {
        Some(number)
    } else {
        ports.find(|p| p.name.as_deref() == Some(port)).map(|p| p.container_port)
    };
    let number = number.unwrap_or(80);
    let port = u16::try_from(number)
        .map_err(|_| StatusError::bad_request(format!("invalid port {number} of pod {name}")))?;
    Ok(Location { to: by_scheme(scheme, address, port)?, path })
}

async fn service(proxy: &Proxy, request: &Request) -> Result<Location, StatusError> {
    let info = &request.info;
    let (scheme, name, port) = name_and_port(&info.name)?;
    let served = proxy.registry.table.find("", "v1", "services").ok_or_else(StatusError::path_not_found)?;
    let found = store::read(&proxy.registry, &served, &info.namespace, name).await?;
    let none = || StatusError::unavailable(format!("no endpoints available for service \"{}\"", info.name));
    let object = found.ok_or_else(none)?.object;
    let service = object.typed::<Service>().map_err(StatusError::internal)?;
    let ports = service.spec.as_ref().and_then(|s| s.ports.as_deref()).unwrap_or_default();
    let chosen = match port {
        "" if ports.len() == 1 => ports.first(),
        "" => ports.iter().find(|p| p.name.as_deref().unwrap_or("").is_empty()),
        text => ports.iter().find(|p| p.name.as_deref() == Some(text) || p.port.to_string() == text),
    };
    let port_name = chosen.and_then(|p| p.name.clone()).unwrap_or_default();
    let slices = proxy.registry.table.find("discovery.k8s.io", "v1", "endpointslices").ok_or_else(none)?;
    for object in slices.cache()?.list(Some(&info.namespace)) {
        if object.header().label("kubernetes.io/service-name") != Some(name) {
            continue;
        }
        let Ok(slice) = object.typed::<EndpointSlice>() else { continue };
        let port = slice.ports.iter().flatten().find(|p| p.name.as_deref().unwrap_or("") == port_name);
        let Some(Ok(port)) = port.and_then(|p| p.port).map(u16::try_from) else { continue };
        let ready = |e: &&Endpoint| e.conditions.as_ref().is_none_or(|c| c.ready != Some(false));
        for endpoint in slice.endpoints.iter().flatten().filter(ready) {
            if let Some(address) = pod_address(proxy, &info.namespace, endpoint).await {
                let to = by_scheme(scheme, address, port)?;
                return Ok(Location { to, path: rest(request) });
            }
        }
    }
    Err(none())
}

/// Returns the endpoint's address if it is an address of the pod that the endpoint refers to: the author of an
/// EndpointSlice cannot choose another one.
async fn pod_address(proxy: &Proxy, namespace: &str, endpoint: &Endpoint) -> Option<String> {
    let address = endpoint.addresses.first()?;
    let target = endpoint.target_ref.as_ref().filter(|t| t.namespace.as_deref() == Some(namespace))?;
    let pod = pod(proxy, namespace, target.name.as_deref()?).await.ok()?;
    let mut known = pod.status.iter().flat_map(|s| s.pod_ips.iter().flatten());
    known.any(|known| known.ip == *address).then(|| address.clone())
}
