//! Cluster addresses and node ports of Services: chosen, validated, and recorded under keys of their own.

use std::collections::BTreeSet;
use std::net::Ipv4Addr;

use bytes::Bytes;
use knarr_apimachinery::field::{Error, ErrorList, Path};
use knarr_apimachinery::status::StatusError;
use knarr_storage::{Compare, Op, Precondition, RangeRequest};
use serde_json::{Value, json};

use super::Allocated;
use super::addresses;
use super::ranges::{self, Range};
use crate::Registry;
use crate::metadata;
use crate::served::Served;
use crate::store::Extra;
use crate::store_errors::status_of;
use knarr_wire::metrics::Metric;

pub const IPS: &str = addresses::PREFIX;
pub const PORTS: &str = "/allocations/nodeports/";
/// How many random picks are tried before all allocated keys are listed.
const PICKS: usize = 8;

/// A value that the server chose.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Choice {
    pub key: Bytes,
}

impl Choice {
    /// Removes the choice from the Service, so that the next plan chooses again.
    pub fn clear(&self, service: &mut Value) {
        let key = String::from_utf8_lossy(&self.key).into_owned();
        let Some(spec) = service.get_mut("spec").and_then(Value::as_object_mut) else { return };
        if key.starts_with(IPS) {
            spec.remove("clusterIP");
            spec.remove("clusterIPs");
            return;
        }
        let number: i64 = key.strip_prefix(PORTS).and_then(|p| p.parse().ok()).unwrap_or(0);
        if spec.get("healthCheckNodePort").and_then(Value::as_i64) == Some(number) {
            spec.remove("healthCheckNodePort");
        }
        for port in spec.get_mut("ports").and_then(Value::as_array_mut).into_iter().flatten() {
            if port["nodePort"].as_i64() == Some(number)
                && let Some(port) = port.as_object_mut()
            {
                port.remove("nodePort");
            }
        }
    }
}

fn ip_key(ip: &str) -> Bytes {
    Bytes::from(format!("{IPS}{ip}"))
}

fn port_key(port: i64) -> Bytes {
    Bytes::from(format!("{PORTS}{port}"))
}

/// Returns the allocation keys of a Service.
fn held(service: &Value) -> BTreeSet<Bytes> {
    let mut keys = BTreeSet::new();
    let spec = &service["spec"];
    if spec["type"] == "ExternalName" {
        return keys;
    }
    let ip = spec["clusterIP"].as_str().unwrap_or("");
    if !ip.is_empty() && ip != "None" {
        keys.insert(ip_key(ip));
    }
    let ports = spec["ports"].as_array().into_iter().flatten().map(|p| &p["nodePort"]);
    for number in ports.chain([&spec["healthCheckNodePort"]]).filter_map(Value::as_i64) {
        if number != 0 {
            keys.insert(port_key(number));
        }
    }
    keys
}

pub async fn plan(
    registry: &Registry,
    old: Option<&Value>,
    new: Option<&mut Value>,
) -> Result<(Extra, Allocated), StatusError> {
    let before = old.map(held).unwrap_or_default();
    let (mut extra, mut allocated) = (Extra::default(), Allocated::default());
    let mut after = BTreeSet::new();
    if let Some(new) = new {
        let explicit = held(new);
        let wanted: BTreeSet<Bytes> = explicit.difference(&before).cloned().collect();
        // Most writes do not change addresses; for them the ranges are not read.
        let ranges = match wanted.iter().any(is_ip) || lacks_ip(new) {
            true => ranges::ready(registry).await?,
            false => Vec::new(),
        };
        check_ranges(registry, new, &wanted, &ranges)?;
        choose_ip(registry, new, &ranges).await?;
        choose_ports(registry, new).await?;
        after = held(new);
        for key in after.difference(&before) {
            extra.compares.push(Compare { key: key.clone(), condition: Precondition::NotExists });
            extra.ops.push(take(registry, key, new).await?);
            count(registry, key, &ranges, explicit.contains(key));
            if !explicit.contains(key) {
                allocated.chosen.push(Choice { key: key.clone() });
            }
        }
    }
    for key in before.difference(&after) {
        match old.filter(|_| is_ip(key)) {
            Some(old) => extra.ops.extend(addresses::release(registry, key, old).await?),
            None => extra.ops.push(Op::Delete { key: key.clone() }),
        }
    }
    Ok((extra, allocated))
}

/// Records the allocation of an address or port in the metrics.
fn count(registry: &Registry, key: &Bytes, ranges: &[Range], asked_for: bool) {
    let scope = if asked_for { "static" } else { "dynamic" };
    if !is_ip(key) {
        registry.metrics.increment(Metric::PortAllocations, &[scope]);
        return;
    }
    let ip = std::str::from_utf8(key).ok().and_then(|k| k.strip_prefix(IPS)?.parse().ok());
    if let Some(range) = ip.and_then(|ip| ranges.iter().find(|r| r.contains(ip))) {
        registry.metrics.increment(Metric::IpAllocations, &[&range.to_string(), scope]);
    }
}

fn is_ip(key: &Bytes) -> bool {
    key.starts_with(IPS.as_bytes())
}

/// Returns the operation that records the owner of an address or port.
async fn take(registry: &Registry, key: &Bytes, service: &Value) -> Result<Op, StatusError> {
    if is_ip(key) {
        return addresses::take(registry, key, service).await;
    }
    let owner = format!("{}/{}", metadata::text(service, "namespace"), metadata::text(service, "name"));
    Ok(Op::Put { key: key.clone(), value: Bytes::from(owner), lease: None })
}

/// Returns whether the server must choose an address.
fn lacks_ip(service: &Value) -> bool {
    let spec = &service["spec"];
    spec["type"] != "ExternalName" && spec["clusterIP"].as_str().unwrap_or("").is_empty()
}

/// Checks that the addresses and ports that the client asked for are in range.
fn check_ranges(
    registry: &Registry,
    service: &Value,
    wanted: &BTreeSet<Bytes>,
    ranges: &[Range],
) -> Result<(), StatusError> {
    let ports = &registry.settings.node_ports;
    for key in wanted {
        let text = String::from_utf8_lossy(key);
        if let Some(ip) = text.strip_prefix(IPS) {
            let fits = |ip: Ipv4Addr| ranges.iter().any(|r| r.contains(ip));
            if !ip.parse().is_ok_and(fits) {
                let why = "the provided network does not match the current range";
                return Err(refuse_ip(service, ip, why));
            }
        } else if let Some(port) = text.strip_prefix(PORTS).and_then(|p| p.parse::<i64>().ok()) {
            let fits = u16::try_from(port).is_ok_and(|p| ports.contains(&p));
            if !fits {
                let why = format!(
                    "provided port is not in the valid range. The range of valid ports is {}-{}",
                    ports.start(),
                    ports.end()
                );
                return Err(refuse_port(service, port, &why));
            }
        }
    }
    Ok(())
}

/// Returns a free address from the first range that has one.
async fn free_ip(registry: &Registry, ranges: &[Range]) -> Result<Option<String>, StatusError> {
    for range in ranges.iter().filter(|r| r.size > 2) {
        // The lower part is reserved for explicit requests, as long as the rest has a free address.
        let reserved = (range.size / 16).clamp(16, 256).min((range.size - 2) / 2);
        let show = |o| range.address(o).to_string();
        if let Some(ip) = free(registry, IPS, 1..range.size - 1, reserved, show).await? {
            return Ok(Some(ip));
        }
    }
    Ok(None)
}

async fn choose_ip(registry: &Registry, service: &mut Value, ranges: &[Range]) -> Result<(), StatusError> {
    let name = metadata::text(service, "name").to_owned();
    let Some(spec) = service.get_mut("spec").and_then(Value::as_object_mut) else { return Ok(()) };
    if spec.get("type").and_then(Value::as_str) == Some("ExternalName") {
        return Ok(());
    }
    let mut ip = spec.get("clusterIP").and_then(Value::as_str).unwrap_or("").to_owned();
    if ip.is_empty() {
        let found = free_ip(registry, ranges).await?;
        ip = found.ok_or_else(|| {
            let why = format!("failed to allocate a serviceIP for Service {name:?}: range is full");
            StatusError::internal(why)
        })?;
        spec.insert("clusterIP".into(), ip.clone().into());
    }
    if spec.get("clusterIPs").and_then(Value::as_array).is_none_or(Vec::is_empty) {
        spec.insert("clusterIPs".into(), json!([ip]));
    }
    if spec.get("ipFamilies").and_then(Value::as_array).is_none_or(Vec::is_empty) {
        spec.insert("ipFamilies".into(), json!(["IPv4"]));
    }
    if spec.get("ipFamilyPolicy").and_then(Value::as_str).unwrap_or("").is_empty() {
        spec.insert("ipFamilyPolicy".into(), "SingleStack".into());
    }
    Ok(())
}

async fn choose_ports(registry: &Registry, service: &mut Value) -> Result<(), StatusError> {
    let Some(spec) = service.get_mut("spec").and_then(Value::as_object_mut) else { return Ok(()) };
    let kind = spec.get("type").and_then(Value::as_str).unwrap_or("").to_owned();
    let for_balancer =
        kind == "LoadBalancer" && spec.get("allocateLoadBalancerNodePorts") != Some(&Value::Bool(false));
    let mut own: Vec<i64> = Vec::new();
    if kind == "NodePort" || for_balancer {
        let Some(ports) = spec.get_mut("ports").and_then(Value::as_array_mut) else { return Ok(()) };
        own.extend(ports.iter().filter_map(|p| p["nodePort"].as_i64()));
        for i in 0..ports.len() {
            if ports[i]["nodePort"].as_i64().unwrap_or(0) != 0 {
                continue;
            }
            // The same port number of another protocol shares the node port.
            let same = ports.iter().enumerate().find(|(j, p)| {
                *j != i
                    && p["port"] == ports[i]["port"]
                    && p["protocol"] != ports[i]["protocol"]
                    && p["nodePort"].as_i64().unwrap_or(0) != 0
            });
            let number = match same.and_then(|(_, p)| p["nodePort"].as_i64()) {
                Some(number) => number,
                None => free_port(registry, &own).await?,
            };
            own.push(number);
            ports[i]["nodePort"] = number.into();
        }
    }
    let local = spec.get("externalTrafficPolicy").and_then(Value::as_str) == Some("Local");
    let unset = spec.get("healthCheckNodePort").and_then(Value::as_i64).unwrap_or(0) == 0;
    if kind == "LoadBalancer" && local && unset {
        let number = free_port(registry, &own).await?;
        spec.insert("healthCheckNodePort".into(), number.into());
    }
    Ok(())
}

async fn free_port(registry: &Registry, own: &[i64]) -> Result<i64, StatusError> {
    let ports = &registry.settings.node_ports;
    let (low, high) = (u32::from(*ports.start()), u32::from(*ports.end()));
    let size = high - low + 1;
    let reserved = (size / 32).clamp(16, 128).min(size / 2);
    for _ in 0..=own.len() {
        let found = free(registry, PORTS, 0..size, reserved, |o| (low + o).to_string()).await?;
        match found.and_then(|p| p.parse().ok()) {
            Some(port) if own.contains(&port) => {}
            Some(port) => return Ok(port),
            None => break,
        }
    }
    Err(StatusError::internal("failed to allocate a nodePort: range is full"))
}

/// Returns a free value, from the upper part first; `None` if all are allocated.
async fn free(
    registry: &Registry,
    prefix: &str,
    offsets: std::ops::Range<u32>,
    reserved: u32,
    show: impl Fn(u32) -> String,
) -> Result<Option<String>, StatusError> {
    let dynamic = offsets.start + reserved..offsets.end;
    if !dynamic.is_empty() {
        for _ in 0..PICKS {
            let pick = show(fastrand::u32(dynamic.clone()));
            let key = format!("{prefix}{pick}");
            if registry.store.get(key.as_bytes()).await.map_err(|e| status_of(&e))?.is_none() {
                return Ok(Some(pick));
            }
        }
    }
    let all = registry.store.range(RangeRequest::prefix(prefix.to_owned()).without_count()).await;
    let all = all.map_err(|e| status_of(&e))?;
    let taken: BTreeSet<&[u8]> = all.kvs.iter().map(|kv| &kv.key[prefix.len()..]).collect();
    Ok(dynamic
        .chain(offsets.start..offsets.start + reserved)
        .map(show)
        .find(|p| !taken.contains(p.as_bytes())))
}

/// Returns 422 for a value that is already allocated to another Service.
pub fn taken(_served: &Served, service: &Value, key: &Bytes) -> StatusError {
    let text = String::from_utf8_lossy(key);
    if let Some(ip) = text.strip_prefix(IPS) {
        return refuse_ip(service, ip, "provided IP is already allocated");
    }
    let port = text.strip_prefix(PORTS).and_then(|p| p.parse().ok()).unwrap_or(0);
    refuse_port(service, port, "provided port is already allocated")
}

fn refuse_ip(service: &Value, ip: &str, why: &str) -> StatusError {
    let path = Path::new("spec").child("clusterIPs");
    let shown = match &service["spec"]["clusterIPs"] {
        Value::Null => json!([ip]),
        ips => ips.clone(),
    };
    invalid(service, Error::invalid(&path, shown, format!("failed to allocate IP {ip}: {why}")))
}

fn refuse_port(service: &Value, port: i64, why: &str) -> StatusError {
    let ports = service["spec"]["ports"].as_array();
    let index = ports.into_iter().flatten().position(|p| p["nodePort"].as_i64() == Some(port)).unwrap_or(0);
    let path = Path::new("spec").child("ports").index(index).child("nodePort");
    invalid(service, Error::invalid(&path, port, why))
}

fn invalid(service: &Value, error: Error) -> StatusError {
    let mut errors = ErrorList::new();
    errors.push(error);
    StatusError::invalid("", "Service", metadata::text(service, "name"), &errors)
}
