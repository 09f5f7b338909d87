//! A node's service proxy, routes to other nodes, and name server.

use std::collections::BTreeSet;
use std::net::{IpAddr, SocketAddr};
use std::sync::{Arc, OnceLock};

use anyhow::{Context, Result, bail};
use knarr_apimachinery::clock::Clock;
use knarr_client::Informers;
use knarr_network::{dns, proxy, routes, source::ServiceSource};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::node::{NodeAccess, NodeOptions};

/// The counters of the service proxy and the name server.
pub struct NetworkMetrics {
    proxy: Arc<proxy::ProxyMetrics>,
    /// Set once the name server runs.
    dns: OnceLock<Arc<dns::DnsServer>>,
}

impl NetworkMetrics {
    pub fn new(clock: &Arc<dyn Clock>) -> Self {
        Self { proxy: Arc::new(proxy::ProxyMetrics::new(Arc::clone(clock))), dns: OnceLock::new() }
    }

    /// Returns the metrics in the text format of Prometheus.
    pub fn render(&self) -> String {
        self.proxy.render() + &self.dns.get().map(|server| server.metrics()).unwrap_or_default()
    }
}

/// Starts the service proxy, the routes to other nodes, and the name server.
pub async fn start(
    options: &NodeOptions,
    access: &NodeAccess,
    routes_to_nodes: bool,
    counted: &NetworkMetrics,
    tasks: &TaskTracker,
    stop: &CancellationToken,
) -> Result<()> {
    let informers = Arc::new(Informers::new(access.network.clone(), stop.clone()));
    let supervisor = &access.supervisor;
    let IpAddr::V4(node_ip) = options.ip else { bail!("the node's address {} is not IPv4", options.ip) };
    let mut config = proxy::ProxyConfig::new(&options.name, vec![node_ip]);
    config.cluster_cidr = Some(options.cluster_cidr.parse()?);
    config.local_service_ips = BTreeSet::from([options.cluster_dns]);
    config.sysctls_file = Some(options.layout.network().join("sysctls.json"));
    let first = proxy::ServiceProxy::new(config.clone()).context("the service proxy cannot be set up")?;
    let mut dns_config = dns::DnsConfig::new(vec![SocketAddr::new(IpAddr::V4(options.cluster_dns), 53)]);
    dns_config.zone.clone_from(&options.cluster_domain);
    dns_config.resolv_conf.clone_from(&options.resolv_conf);
    let server = dns::DnsServer::bind(&dns_config).context("the cluster DNS cannot be set up")?;

    let (of_proxy, of_dns, server) = (Arc::clone(&informers), Arc::clone(&informers), Arc::new(server));
    // This is the only place that sets it.
    let _ = counted.dns.set(Arc::clone(&server));
    let (mut first, metrics) = (Some(first), Arc::clone(&counted.proxy));
    tasks.spawn(supervisor.run("service-proxy", stop.clone(), move |stop| {
        let (informers, config, first) = (Arc::clone(&of_proxy), config.clone(), first.take());
        let metrics = Arc::clone(&metrics);
        async move {
            // The rules of the previous proxy stay in force, and the new one takes them over.
            let proxy = match first.map_or_else(|| proxy::ServiceProxy::new(config), Ok) {
                Ok(proxy) => proxy,
                Err(error) => return tracing::error!(%error, "the service proxy cannot be set up again"),
            };
            let source = ServiceSource::from_informers(&informers.until(stop.clone())).await;
            let Some(source) = source else { return };
            proxy::run(proxy, source, metrics, stop, |_| {}).await;
        }
    }));
    tasks.spawn(supervisor.run("dns", stop.clone(), move |stop| {
        let (informers, server) = (Arc::clone(&of_dns), Arc::clone(&server));
        async move {
            let source = ServiceSource::from_informers(&informers.until(stop.clone())).await;
            let Some(source) = source else { return };
            dns::run(&server, source, stop).await;
        }
    }));
    if !routes_to_nodes {
        return Ok(());
    }
    let (name, cluster) = (options.name.clone(), options.cluster_cidr.parse()?);
    tasks.spawn(supervisor.run("routes", stop.clone(), move |stop| {
        let (informers, name) = (informers.until(stop.clone()), name.clone());
        async move {
            if let Err(error) = routes::run(&informers, &name, cluster, stop).await {
                tracing::error!(%error, "routes to other nodes are not kept");
            }
        }
    }));
    Ok(())
}
