//! Measures the service proxy with many services: prints the figures of docs/adr/0004-network.md.

mod lab;

use std::net::Ipv4Addr;
use std::time::Instant;

use knarr_network::proxy::{ProxyConfig, ServiceProxy};
use lab::objects::{service, slice};
use serde_json::{Value, json};

const ENDPOINTS: u32 = 4;
const UPDATES: u32 = 20;

#[test]
fn sync_times() {
    lab::isolate();
    let tcp = json!({"ports": [{"name": "t", "port": 80}]});
    for count in [1, 100, 5_000] {
        measure(count, "a TCP port", &tcp);
    }
    measure(5_000, "a TCP and a UDP port", &json!({}));
}

fn address(base: Ipv4Addr, n: u32) -> Ipv4Addr {
    Ipv4Addr::from(u32::from(base) + n)
}

fn measure(count: u32, ports: &str, spec: &Value) {
    let endpoints = |n: u32, shift: u32| {
        let first = n * ENDPOINTS + shift;
        let ips: Vec<_> =
            (first..first + ENDPOINTS).map(|n| (address(Ipv4Addr::new(10, 42, 0, 2), n), "this")).collect();
        slice(&format!("s{n}"), &ips)
    };
    let services: Vec<_> = (0..count)
        .map(|n| service(&format!("s{n}"), address(Ipv4Addr::new(10, 43, 0, 2), n), spec.clone()))
        .collect();
    let mut slices: Vec<_> = (0..count).map(|n| endpoints(n, 0)).collect();
    let mut config = ProxyConfig::new("this", vec![Ipv4Addr::new(192, 0, 2, 1)]);
    config.cluster_cidr = Some("10.42.0.0/16".parse().unwrap());
    let mut proxy = ServiceProxy::new(config).unwrap();
    let start = Instant::now();
    let full = proxy.sync(&services, &slices).unwrap();
    let full_time = start.elapsed();
    let mut updates = Vec::new();
    for round in 0..UPDATES {
        let n = round * 7 % count;
        slices[n as usize] = endpoints(n, round + 1);
        let start = Instant::now();
        let report = proxy.sync(&services, &slices).unwrap();
        updates.push(start.elapsed());
        assert_eq!((report.changed, report.full), (1, false));
    }
    updates.sort();
    let start = Instant::now();
    proxy.sync(&services, &slices).unwrap();
    println!(
        "{count} services with {ports} and {ENDPOINTS} endpoints: full {full_time:.1?} ({} KB), update median {:.2?}, \
         slowest {:.2?}, nothing changed {:.2?}",
        full.bytes / 1000,
        updates[updates.len() / 2],
        updates[updates.len() - 1],
        start.elapsed(),
    );
}
