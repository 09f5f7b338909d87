//! The shell around the rules: remembers what was computed and applied, and talks to the kernel.

use std::collections::BTreeMap;
use std::sync::Arc;

use k8s_openapi::api::core::v1::Service;
use k8s_openapi::api::discovery::v1::EndpointSlice;
use thiserror::Error;

use super::ProxyConfig;
use super::base;
use super::plan::{Applied, Changes};
use super::service::{ServiceKey, ServiceRules, service_key, service_rules};
use crate::conntrack::{self, UdpDestinations};
use crate::netlink::{Netlink, NetlinkError};
use crate::nft::NftError;

const SERVICE_NAME_LABEL: &str = "kubernetes.io/service-name";

/// Why services could not be brought into force.
#[derive(Debug, Error)]
pub enum ProxyError {
    #[error("opening a netlink socket")]
    Open(#[source] NetlinkError),
    #[error("changing packet rules")]
    Nft(#[from] NftError),
    #[error("forgetting stale connections")]
    Conntrack(#[source] NetlinkError),
}

/// What one sync did.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SyncReport {
    /// Services in force.
    pub services: usize,
    /// Services whose rules changed.
    pub changed: usize,
    /// The table was written anew.
    pub full: bool,
    /// Bytes sent to nf_tables.
    pub bytes: usize,
    /// Stale UDP flows forgotten.
    pub flows: usize,
}

/// The rules of a service with the very objects they were computed from.
struct Computed {
    service: Arc<Service>,
    slices: Vec<Arc<EndpointSlice>>,
    rules: Arc<ServiceRules>,
}

/// The service proxy. It works in the network namespace of the thread that made it; `sync` blocks while the kernel
/// works.
pub struct ServiceProxy {
    config: ProxyConfig,
    netlink: Netlink,
    computed: BTreeMap<ServiceKey, Computed>,
    /// None until the table was written whole, and after an error left its state unknown.
    applied: Option<Applied>,
}

impl ServiceProxy {
    pub fn new(config: ProxyConfig) -> Result<Self, ProxyError> {
        let netlink = Netlink::netfilter().map_err(ProxyError::Open)?;
        Ok(Self { config, netlink, computed: BTreeMap::new(), applied: None })
    }

    /// Brings the given services, which are all there are, into force. Objects that are the same `Arc` as the last
    /// time are not looked at again. The first sync replaces the table in one transaction, so connections and
    /// traffic do not notice a restart; later ones change what differs.
    pub fn sync(
        &mut self,
        services: &[Arc<Service>],
        slices: &[Arc<EndpointSlice>],
    ) -> Result<SyncReport, ProxyError> {
        self.compute(services, slices);
        let desired: BTreeMap<_, _> =
            self.computed.iter().map(|(k, c)| (k.clone(), c.rules.clone())).collect();
        if let Some(mut applied) = self.applied.take() {
            let changes = applied.advance(&desired);
            match self.apply(&changes) {
                Ok(report) => {
                    self.applied = Some(applied);
                    return self.finish(report, &changes);
                }
                // Somebody else may have changed the table: write it anew.
                Err(error) => {
                    let error: &dyn std::error::Error = &error;
                    tracing::warn!(error, "changing service rules failed; writing them all anew");
                }
            }
        }
        let mut applied = Applied::default();
        let changes = applied.advance(&desired);
        let mut batch = base::rebuild(&self.config);
        changes.write(&mut batch);
        let bytes = batch.len();
        batch.commit(&mut self.netlink)?;
        self.applied = Some(applied);
        let report = SyncReport { full: true, bytes, changed: changes.services, ..SyncReport::default() };
        self.finish(report, &changes)
    }

    /// Forgets what is in force, so that the next sync writes the table anew.
    pub fn invalidate(&mut self) {
        self.applied = None;
    }

    /// How many services have rules.
    pub fn services(&self) -> usize {
        self.applied.as_ref().map_or(0, |applied| applied.services().len())
    }

    fn apply(&mut self, changes: &Changes) -> Result<SyncReport, NftError> {
        let mut batch = crate::nft::Batch::new(&self.config.table);
        changes.write(&mut batch);
        let bytes = if batch.is_empty() { 0 } else { batch.len() };
        batch.commit(&mut self.netlink)?;
        Ok(SyncReport { bytes, changed: changes.services, ..SyncReport::default() })
    }

    fn finish(&mut self, mut report: SyncReport, changes: &Changes) -> Result<SyncReport, ProxyError> {
        report.services = self.services();
        match self.forget_stale_flows(&changes.udp) {
            Ok(flows) => report.flows = flows,
            Err(error) => {
                // A full sync looks at all UDP destinations again.
                self.invalidate();
                return Err(ProxyError::Conntrack(error));
            }
        }
        Ok(report)
    }

    fn forget_stale_flows(&mut self, udp: &UdpDestinations) -> Result<usize, NetlinkError> {
        if udp.by_address.is_empty() && udp.by_node_port.is_empty() {
            return Ok(0);
        }
        let flows = conntrack::udp_flows(&mut self.netlink)?;
        let stale = conntrack::stale_flows(&flows, udp, &self.config.node_ips);
        for flow in &stale {
            conntrack::delete_flow(&mut self.netlink, flow)?;
        }
        Ok(stale.len())
    }

    /// Brings `computed` up to date.
    fn compute(&mut self, services: &[Arc<Service>], slices: &[Arc<EndpointSlice>]) {
        let mut by_service = slices_by_service(slices);
        let mut computed = BTreeMap::new();
        for service in services {
            let key = service_key(service);
            let slices = by_service.remove(&*key).unwrap_or_default();
            let before = self.computed.remove(&key);
            let entry = match before {
                Some(before) if same(&before, service, &slices) => before,
                before => {
                    let rules = Arc::new(service_rules(&self.config, service, &slices));
                    // Equal rules keep their identity, which spares the comparison later.
                    let rules = before.map(|b| b.rules).filter(|old| **old == *rules).unwrap_or(rules);
                    Computed { service: service.clone(), slices, rules }
                }
            };
            computed.insert(key, entry);
        }
        self.computed = computed;
    }
}

fn same(before: &Computed, service: &Arc<Service>, slices: &[Arc<EndpointSlice>]) -> bool {
    Arc::ptr_eq(&before.service, service)
        && before.slices.len() == slices.len()
        && before.slices.iter().zip(slices).all(|(a, b)| Arc::ptr_eq(a, b))
}

/// Slices by `namespace/name` of their service.
fn slices_by_service(slices: &[Arc<EndpointSlice>]) -> BTreeMap<String, Vec<Arc<EndpointSlice>>> {
    let mut by_service: BTreeMap<String, Vec<Arc<EndpointSlice>>> = BTreeMap::new();
    for slice in slices {
        let labels = slice.metadata.labels.as_ref();
        if let Some(name) = labels.and_then(|labels| labels.get(SERVICE_NAME_LABEL)) {
            let namespace = slice.metadata.namespace.as_deref().unwrap_or_default();
            by_service.entry(format!("{namespace}/{name}")).or_default().push(slice.clone());
        }
    }
    by_service
}
