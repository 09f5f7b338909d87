//! All names of the cluster's zone, kept up to date service by service.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::Arc;

use hickory_proto::ProtoError;
use hickory_proto::rr::Name;
use k8s_openapi::api::core::v1::Service;
use k8s_openapi::api::discovery::v1::EndpointSlice;

use super::entry::{ServiceEntry, service_entry};
use crate::per_service::{PerService, ServiceKey};

/// The zone and its services.
pub struct Records {
    zone: Name,
    /// The addresses of the zone's name server.
    servers: Vec<IpAddr>,
    serial: u32,
    computed: PerService<ServiceEntry>,
    services: BTreeMap<ServiceKey, Arc<ServiceEntry>>,
    /// Names by address, relative to the zone.
    reverse: BTreeMap<IpAddr, BTreeSet<String>>,
    /// Namespaces with services, and their number of services.
    namespaces: BTreeMap<String, usize>,
}

impl Records {
    /// Creates an empty zone, for example `cluster.local`, with a name server at these addresses.
    pub fn new(zone: &str, servers: Vec<IpAddr>) -> Result<Self, ProtoError> {
        let mut zone = Name::from_ascii(zone)?.to_lowercase();
        zone.set_fqdn(true);
        Ok(Self {
            zone,
            servers,
            serial: 1,
            computed: PerService::default(),
            services: BTreeMap::new(),
            reverse: BTreeMap::new(),
            namespaces: BTreeMap::new(),
        })
    }

    pub fn zone(&self) -> &Name {
        &self.zone
    }

    pub fn servers(&self) -> &[IpAddr] {
        &self.servers
    }

    /// Returns the zone's serial, which increases with every change.
    pub fn serial(&self) -> u32 {
        self.serial
    }

    pub fn service(&self, namespace: &str, name: &str) -> Option<&ServiceEntry> {
        self.services.get(format!("{namespace}/{name}").as_str()).map(Arc::as_ref)
    }

    pub fn has_namespace(&self, namespace: &str) -> bool {
        self.namespaces.contains_key(namespace)
    }

    /// Returns the names of an address, relative to the zone.
    pub fn names_of(&self, ip: IpAddr) -> impl Iterator<Item = &str> {
        self.reverse.get(&ip).into_iter().flatten().map(String::as_str)
    }

    /// Updates the records to the given services, which must be all that exist; returns whether they changed.
    pub fn update(&mut self, services: &[Arc<Service>], slices: &[Arc<EndpointSlice>]) -> bool {
        self.computed.update(services, slices, service_entry);
        let desired = self.computed.values();
        let mut changed = false;
        for (key, old) in std::mem::take(&mut self.services) {
            match desired.get(&key) {
                Some(new) if Arc::ptr_eq(&old, new) => {
                    self.services.insert(key, old);
                }
                _ => {
                    changed = true;
                    self.forget(&key, &old);
                }
            }
        }
        for (key, new) in desired {
            if !self.services.contains_key(&key) {
                changed = true;
                self.remember(&key, &new);
                self.services.insert(key, new);
            }
        }
        if changed {
            self.serial = self.serial.wrapping_add(1);
        }
        changed
    }

    fn remember(&mut self, key: &str, entry: &ServiceEntry) {
        let (namespace, _) = split(key);
        *self.namespaces.entry(namespace.to_owned()).or_default() += 1;
        for (ip, name) in names(key, entry) {
            self.reverse.entry(ip).or_default().insert(name);
        }
    }

    fn forget(&mut self, key: &str, entry: &ServiceEntry) {
        let (namespace, _) = split(key);
        if let Some(count) = self.namespaces.get_mut(namespace) {
            *count -= 1;
            if *count == 0 {
                self.namespaces.remove(namespace);
            }
        }
        for (ip, name) in names(key, entry) {
            if let Some(names) = self.reverse.get_mut(&ip) {
                names.remove(&name);
                if names.is_empty() {
                    self.reverse.remove(&ip);
                }
            }
        }
    }
}

fn split(key: &str) -> (&str, &str) {
    key.split_once('/').unwrap_or(("", key))
}

/// Returns the addresses of a service and its endpoints with their names. The name of an endpoint contains its
/// service's name, so two services never have a name in common.
fn names(key: &str, entry: &ServiceEntry) -> Vec<(IpAddr, String)> {
    let (namespace, name) = split(key);
    let service = format!("{name}.{namespace}.svc");
    let endpoints = entry.endpoints.iter().map(|e| (e.ip, format!("{}.{service}", e.hostname)));
    entry.cluster_ips.iter().map(|ip| (*ip, service.clone())).chain(endpoints).collect()
}
