//! Applies the rules to the kernel, and remembers what was computed and applied.

use std::sync::Arc;

use k8s_openapi::api::core::v1::Service;
use k8s_openapi::api::discovery::v1::EndpointSlice;
use thiserror::Error;

use super::ProxyConfig;
use super::base;
use super::conntrack_limits;
use super::endpoints::is_proxied;
use super::plan::{Applied, Changes};
use super::service::{ServiceRules, service_rules};
use crate::conntrack::{self, UdpDestinations};
use crate::netlink::{Netlink, NetlinkError};
use crate::nft::NftError;
use crate::per_service::PerService;

/// Why the rules of services could not be applied.
#[derive(Debug, Error)]
pub enum ProxyError {
    #[error("opening a netlink socket")]
    Open(#[source] NetlinkError),
    #[error("changing packet rules")]
    Nft(#[from] NftError),
    #[error("deleting stale connections")]
    Conntrack(#[source] NetlinkError),
}

fn acted_on(
    computed: &PerService<ServiceRules>,
    mut slices: Vec<Arc<EndpointSlice>>,
) -> Vec<Arc<EndpointSlice>> {
    let nothing = ServiceRules::default();
    slices
        .retain(|slice| is_proxied(slice) && computed.of_slice(slice).is_some_and(|rules| *rules != nothing));
    slices
}

/// The result of one sync.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SyncReport {
    /// The number of services in force.
    pub services: usize,
    /// The number of services whose rules changed.
    pub changed: usize,
    /// Whether the whole table was rewritten.
    pub full: bool,
    /// The number of bytes sent to nf_tables.
    pub bytes: usize,
    /// The number of stale UDP flows that were deleted.
    pub flows: usize,
}

/// The service proxy. It works in the network namespace of the thread that created it; `sync` blocks while the
/// kernel applies the rules.
pub struct ServiceProxy {
    config: ProxyConfig,
    netlink: Netlink,
    computed: PerService<ServiceRules>,
    /// `None` before the table was written for the first time, and after an error left its state unknown.
    applied: Option<Applied>,
}

impl ServiceProxy {
    /// Opens the sockets; changes no rules yet.
    pub fn new(config: ProxyConfig) -> Result<Self, ProxyError> {
        let netlink = Netlink::netfilter().map_err(ProxyError::Open)?;
        Ok(Self { config, netlink, computed: PerService::default(), applied: None })
    }

    /// Applies the given services, which must be all that exist. Services whose objects are the same `Arc`s as
    /// before are not computed again. The first sync replaces the table in one transaction, so that a restart
    /// does not disturb connections and traffic; later ones change only what differs.
    pub fn sync(
        &mut self,
        services: &[Arc<Service>],
        slices: &[Arc<EndpointSlice>],
    ) -> Result<SyncReport, ProxyError> {
        self.computed
            .update(services, slices, |service, slices| service_rules(&self.config, service, slices));
        let desired = self.computed.values();
        if let Some(mut applied) = self.applied.take() {
            let changes = applied.advance(&desired);
            match self.apply(&changes) {
                Ok(report) => {
                    self.applied = Some(applied);
                    return self.finish(report, &changes);
                }
                // Another process may have changed the table: write it again completely.
                Err(error) => {
                    let error: &dyn std::error::Error = &error;
                    tracing::warn!(error, "changing service rules failed; rewriting all of them");
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
        // The settings exist only after rules have enabled connection tracking.
        if let Some(file) = &self.config.sysctls_file
            && let Err(error) = conntrack_limits::raise(file)
        {
            let error: &dyn std::error::Error = &error;
            tracing::warn!(error, "the limits of connection tracking are not raised");
        }
        let report = SyncReport { full: true, bytes, changed: changes.services, ..SyncReport::default() };
        self.finish(report, &changes)
    }

    /// Forgets the applied state, so that the next sync rewrites the table.
    pub fn invalidate(&mut self) {
        self.applied = None;
    }

    /// Returns the slices that the rules of the last sync were made from.
    pub fn acted_on(&self, slices: Vec<Arc<EndpointSlice>>) -> Vec<Arc<EndpointSlice>> {
        acted_on(&self.computed, slices)
    }

    /// Returns the number of services with rules.
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
                // The full sync then checks all UDP destinations again.
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
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    /// Source: `EndpointSliceUpdate` of `k8s.io/kubernetes/pkg/proxy/endpointschangetracker.go` sees no others.
    #[test]
    fn slices_of_ignored_services_are_not_acted_on() {
        let service = |name: &str, label: Option<&str>, ip: &str| {
            let labels = label.map(|label| json!({label: ""})).unwrap_or(json!({}));
            let object = json!({"metadata": {"name": name, "namespace": "default", "labels": labels},
                "spec": {"clusterIP": ip, "ports": [{"port": 80}]}});
            Arc::new(serde_json::from_value::<Service>(object).unwrap())
        };
        let slice = |name: &str, of: &str, label: Option<&str>, address_type: &str| {
            let mut labels = json!({"kubernetes.io/service-name": of});
            if let Some(label) = label {
                labels[label] = json!("");
            }
            let object = json!({"metadata": {"name": name, "namespace": "default", "labels": labels},
                "addressType": address_type, "endpoints": []});
            Arc::new(serde_json::from_value::<EndpointSlice>(object).unwrap())
        };
        let (headless, foreign) =
            ("service.kubernetes.io/headless", "service.kubernetes.io/service-proxy-name");
        let services = [
            service("web", None, "10.43.0.9"),
            service("left", Some(foreign), "10.43.0.10"),
            service("headless", None, "None"),
        ];
        let slices = vec![
            slice("ours", "web", None, "IPv4"),
            slice("v6", "web", None, "IPv6"),
            slice("marked", "web", Some(foreign), "IPv4"),
            slice("marked-headless", "web", Some(headless), "IPv4"),
            slice("of-left", "left", None, "IPv4"),
            slice("of-headless", "headless", None, "IPv4"),
            slice("of-nobody", "gone", None, "IPv4"),
        ];
        let config = ProxyConfig::new("node-a", vec![]);
        let mut computed = PerService::default();
        computed.update(&services, &slices, |service, slices| service_rules(&config, service, slices));
        let acted_on = acted_on(&computed, slices);
        let names: Vec<_> = acted_on.iter().filter_map(|slice| slice.metadata.name.as_deref()).collect();
        assert_eq!(names, ["ours"]);
    }
}
