//! Tests of the service proxy, with real traffic between namespaces.

mod lab;

use std::collections::{BTreeMap, BTreeSet};
use std::net::{Ipv4Addr, UdpSocket};
use std::sync::{Arc, Mutex};

use k8s_openapi::api::core::v1::Service;
use k8s_openapi::api::discovery::v1::EndpointSlice;
use knarr_client::clock::SystemClock;
use knarr_network::netlink::Netlink;
use knarr_network::nft;
use knarr_network::proxy::{self, ProxyConfig, ProxyMetrics, ServiceProxy};
use knarr_network::source::{ServiceSource, Snapshot};
use lab::objects::{VIP, service, slice};
use lab::{Node, Outside, Pod, in_both_bridge_modes, tcp_get, udp_get};
use serde_json::json;
use tokio::sync::Notify;
use tokio_util::sync::CancellationToken;

fn config() -> ProxyConfig {
    let mut config = ProxyConfig::new("this", vec![Ipv4Addr::new(192, 0, 2, 1)]);
    config.cluster_cidr = Some("10.42.0.0/16".parse().unwrap());
    config
}

fn proxy() -> ServiceProxy {
    ServiceProxy::new(config()).unwrap()
}

fn serving_pod(node: &Node, name: &str) -> Pod {
    let mut pod = node.pod(name);
    pod.serve_tcp(8080);
    pod.serve_udp(8080);
    pod
}

fn sync(proxy: &mut ServiceProxy, services: &[&Arc<Service>], slices: &[&Arc<EndpointSlice>]) {
    let services: Vec<_> = services.iter().copied().cloned().collect();
    let slices: Vec<_> = slices.iter().copied().cloned().collect();
    proxy.sync(&services, &slices).unwrap();
}

fn refused(result: std::io::Result<lab::Answer>) -> bool {
    result.is_err_and(|e| e.kind() == std::io::ErrorKind::ConnectionRefused)
}

#[test]
fn limits_of_connection_tracking_are_raised_and_restored() {
    in_both_bridge_modes(|node| {
        let setting = |name: &str| {
            let text = std::fs::read_to_string(format!("/proc/sys/net/netfilter/{name}")).unwrap();
            text.trim().parse::<u64>().unwrap()
        };
        const CLOSE_WAIT: &str = "nf_conntrack_tcp_timeout_close_wait";
        const ESTABLISHED: &str = "nf_conntrack_tcp_timeout_established";
        let before = setting(ESTABLISHED);
        assert!(before > 86_400 && setting(CLOSE_WAIT) == 60, "the kernel's defaults");
        let file = node.folder.0.join("sysctls.json");
        let mut config = config();
        config.sysctls_file = Some(file.clone());
        sync(&mut ServiceProxy::new(config).unwrap(), &[], &[]);
        assert_eq!(setting(CLOSE_WAIT), 3600);
        assert_eq!(setting(ESTABLISHED), before, "what is higher stays");
        knarr_network::links::Sysctls::open(file).unwrap().restore().unwrap();
        assert_eq!(setting(CLOSE_WAIT), 60);
    });
}

#[test]
fn a_service_is_reached_from_pods_and_from_the_node() {
    in_both_bridge_modes(|node| {
        let (a, b) = (serving_pod(&node, "a"), serving_pod(&node, "b"));
        let client = node.pod("client");
        let mut proxy = proxy();
        let web = service("web", VIP, json!({}));
        sync(&mut proxy, &[&web], &[&slice("web", &[(a.ip, "this"), (b.ip, "this")])]);
        let mut seen = BTreeSet::new();
        for _ in 0..40 {
            let answer = client.get(VIP, 80).unwrap();
            assert_eq!(answer.client, client.ip, "the client's address is kept");
            seen.insert(answer.server);
        }
        assert_eq!(seen, BTreeSet::from(["a".to_owned(), "b".to_owned()]));
        assert_eq!(client.udp_get(VIP, 80).unwrap().client, client.ip);
        // Half of these reach the pod that sends them.
        for _ in 0..20 {
            assert!(a.get(VIP, 80).is_ok(), "hairpin");
            assert!(a.udp_get(VIP, 80).is_ok(), "hairpin");
        }
        for _ in 0..10 {
            assert!(tcp_get(VIP, 80).is_ok(), "from the node");
            assert!(udp_get(&UdpSocket::bind("0.0.0.0:0").unwrap(), VIP, 80).is_ok(), "from the node");
        }
    });
}

#[test]
fn a_node_without_a_route_to_services_reaches_them_by_its_bridge() {
    // The node has only loopback and the bridge, and no default route.
    let node = Node::new();
    let a = serving_pod(&node, "a");
    let mut proxy = proxy();
    sync(&mut proxy, &[&service("web", VIP, json!({}))], &[&slice("web", &[(a.ip, "this")])]);
    assert_eq!(tcp_get(VIP, 80).unwrap().client, node.network.gateway());
}

/// Like the API server's own service: endpoints on this node and on another.
#[test]
fn endpoints_may_be_addresses_of_nodes() {
    in_both_bridge_modes(|node| {
        let mut outside = Outside::new();
        outside.host.serve_tcp(8080);
        let listener = std::net::TcpListener::bind((outside.node_ip, 8080)).unwrap();
        let _server = lab::Server::tcp(listener, "node".to_owned());
        let client = node.pod("client");
        let mut proxy = proxy();
        let api = service("kubernetes", VIP, json!({}));
        sync(&mut proxy, &[&api], &[&slice("kubernetes", &[(outside.node_ip, "this")])]);
        assert_eq!(
            client.get(VIP, 80).unwrap(),
            lab::Answer { server: "node".to_owned(), client: client.ip }
        );
        assert_eq!(tcp_get(VIP, 80).unwrap().server, "node");
        sync(&mut proxy, &[&api], &[&slice("kubernetes", &[(outside.host.ip, "other")])]);
        assert_eq!(client.get(VIP, 80).unwrap().client, outside.node_ip, "masqueraded as all that leaves");
        assert_eq!(tcp_get(VIP, 80).unwrap().server, "outside");
    });
}

#[test]
fn the_loop_follows_changes() {
    let node = Node::new();
    let a = serving_pod(&node, "a");
    let client = node.pod("client");
    let snapshot = Arc::new(Mutex::new(Snapshot::default()));
    let changed = Arc::new(Notify::new());
    let reading = snapshot.clone();
    let source = ServiceSource::new(changed.clone(), move || reading.lock().unwrap().clone());
    let stop = CancellationToken::new();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let (send, mut synced) = tokio::sync::mpsc::channel(8);
        let metrics = Arc::new(ProxyMetrics::new(Arc::new(SystemClock)));
        let counted = Arc::clone(&metrics);
        let running = tokio::spawn(proxy::run(proxy(), source, counted, stop.clone(), move |report| {
            send.try_send(*report).unwrap();
        }));
        changed.notify_one();
        assert!(synced.recv().await.unwrap().full);
        *snapshot.lock().unwrap() = Snapshot {
            services: vec![service("web", VIP, json!({}))],
            slices: vec![slice("web", &[(a.ip, "this")])],
        };
        for _ in 0..5 {
            changed.notify_one();
        }
        let report = synced.recv().await.unwrap();
        assert_eq!((report.services, report.changed, report.full), (1, 1, false));
        assert_eq!(client.get(VIP, 80).unwrap().server, "a");
        stop.cancel();
        running.await.unwrap();
        assert!(synced.recv().await.is_none(), "several changes at once are one sync");
        let text = metrics.render();
        let family = "kubeproxy_sync_proxy_rules_";
        assert!(
            text.contains(&format!("{family}duration_seconds_count{{ip_family=\"IPv4\"}} 2\n")),
            "{text}"
        );
        assert!(text.contains(&format!("{family}last_timestamp_seconds{{ip_family=\"IPv4\"}} 1")), "{text}");
    });
    assert_eq!(client.get(VIP, 80).unwrap().server, "a", "the rules stay");
}

#[test]
fn endpoints_come_and_go() {
    let node = Node::new();
    let (a, b) = (serving_pod(&node, "a"), serving_pod(&node, "b"));
    let client = node.pod("client");
    let mut proxy = proxy();
    let web = service("web", VIP, json!({}));
    sync(&mut proxy, &[&web], &[]);
    assert!(refused(client.get(VIP, 80)), "no endpoints");
    assert!(refused(client.udp_get(VIP, 80)), "no endpoints");
    assert!(refused(tcp_get(VIP, 80)), "no endpoints, from the node");
    sync(&mut proxy, &[&web], &[&slice("web", &[(a.ip, "this")])]);
    assert_eq!(client.get(VIP, 80).unwrap().server, "a");
    sync(&mut proxy, &[&web], &[&slice("web", &[(b.ip, "this")])]);
    assert_eq!(client.get(VIP, 80).unwrap().server, "b");
    assert!(refused(client.get(VIP, 81)), "a port the service does not have");
    sync(&mut proxy, &[&web], &[]);
    assert!(refused(client.get(VIP, 80)));
    sync(&mut proxy, &[], &[]);
    assert!(!refused(client.get(VIP, 80)), "the service is gone");
}

#[test]
fn a_udp_client_that_keeps_its_socket_moves_on() {
    let node = Node::new();
    let (a, b) = (serving_pod(&node, "a"), serving_pod(&node, "b"));
    let client = node.pod("client");
    let socket = client.run(|| UdpSocket::bind("0.0.0.0:0").unwrap());
    let mut proxy = proxy();
    let web = service("web", VIP, json!({}));
    sync(&mut proxy, &[&web], &[]);
    assert!(udp_get(&socket, VIP, 80).is_err());
    sync(&mut proxy, &[&web], &[&slice("web", &[(a.ip, "this")])]);
    assert_eq!(udp_get(&socket, VIP, 80).unwrap().server, "a");
    let report = proxy.sync(&[web], &[slice("web", &[(b.ip, "this")])]).unwrap();
    assert_eq!(report.flows, 1);
    assert_eq!(udp_get(&socket, VIP, 80).unwrap().server, "b");
}

#[test]
fn clients_stick_to_an_endpoint() {
    let node = Node::new();
    let (a, b) = (serving_pod(&node, "a"), serving_pod(&node, "b"));
    let client = node.pod("client");
    let mut proxy = proxy();
    let web = service(
        "web",
        VIP,
        json!({"sessionAffinity": "ClientIP", "sessionAffinityConfig": {"clientIP": {"timeoutSeconds": 1}}}),
    );
    let both = slice("web", &[(a.ip, "this"), (b.ip, "this")]);
    sync(&mut proxy, &[&web], &[&both]);
    let first = client.get(VIP, 80).unwrap().server;
    for _ in 0..20 {
        assert_eq!(client.get(VIP, 80).unwrap().server, first);
    }
    // The service's other endpoint is removed; the client stays with its own.
    let (kept, other) = if first == "a" { (&a, &b) } else { (&b, &a) };
    sync(&mut proxy, &[&web], &[&slice("web", &[(kept.ip, "this")])]);
    assert_eq!(client.get(VIP, 80).unwrap().server, first);
    sync(&mut proxy, &[&web], &[&both]);
    for _ in 0..10 {
        assert_eq!(client.get(VIP, 80).unwrap().server, first);
    }
    sync(&mut proxy, &[&web], &[&slice("web", &[(other.ip, "this")])]);
    assert_eq!(client.get(VIP, 80).unwrap().server, other.name);
    sync(&mut proxy, &[&web], &[&both]);
    let mut seen = BTreeSet::new();
    for _ in 0..12 {
        seen.insert(client.get(VIP, 80).unwrap().server);
        std::thread::sleep(std::time::Duration::from_millis(1100));
        if seen.len() == 2 {
            break;
        }
    }
    assert_eq!(seen.len(), 2, "the memory of a client ends");
}

#[test]
fn node_ports_and_external_addresses_lead_to_the_service() {
    in_both_bridge_modes(|node| {
        let outside = Outside::new();
        let a = serving_pod(&node, "a");
        let client = node.pod("client");
        let external = Ipv4Addr::new(10, 43, 200, 1);
        let mut proxy = proxy();
        let web =
            service("web", VIP, json!({"type": "NodePort", "nodePort": 30080, "externalIPs": [external]}));
        sync(&mut proxy, &[&web], &[&slice("web", &[(a.ip, "this")])]);
        let answer = outside.host.get(outside.node_ip, 30080).unwrap();
        assert_eq!((answer.server.as_str(), answer.client), ("a", node.network.gateway()), "masqueraded");
        assert_eq!(outside.host.udp_get(outside.node_ip, 30080).unwrap().server, "a");
        assert_eq!(outside.host.get(external, 80).unwrap().server, "a");
        assert_eq!(outside.host.get(VIP, 80).unwrap().client, node.network.gateway(), "masqueraded");
        for pod in [&client, &a] {
            assert_eq!(pod.get(outside.node_ip, 30080).unwrap().server, "a");
            assert_eq!(pod.get(external, 80).unwrap().server, "a");
        }
        assert_eq!(tcp_get(outside.node_ip, 30080).unwrap().server, "a", "from the node");
        assert!(refused(tcp_get(Ipv4Addr::LOCALHOST, 30080)), "not on loopback");
        sync(&mut proxy, &[&web], &[]);
        assert!(refused(outside.host.get(outside.node_ip, 30080)));
        assert!(refused(tcp_get(outside.node_ip, 30080)));
    });
}

#[test]
fn external_policy_local_keeps_the_client_and_stays_on_the_node() {
    in_both_bridge_modes(|node| {
        let outside = Outside::new();
        let (a, far) = (serving_pod(&node, "a"), serving_pod(&node, "far"));
        let client = node.pod("client");
        let mut proxy = proxy();
        let web = service(
            "web",
            VIP,
            json!({"type": "NodePort", "nodePort": 30080, "externalTrafficPolicy": "Local"}),
        );
        sync(&mut proxy, &[&web], &[&slice("web", &[(a.ip, "this"), (far.ip, "other")])]);
        for _ in 0..10 {
            let answer = outside.host.get(outside.node_ip, 30080).unwrap();
            assert_eq!((answer.server.as_str(), answer.client), ("a", outside.host.ip));
        }
        sync(&mut proxy, &[&web], &[&slice("web", &[(far.ip, "other")])]);
        let dropped = outside.host.get(outside.node_ip, 30080);
        assert!(dropped.is_err() && !refused(dropped), "dropped, so that a load balancer tries another node");
        assert_eq!(client.get(outside.node_ip, 30080).unwrap().server, "far", "pods may use any endpoint");
        assert_eq!(tcp_get(outside.node_ip, 30080).unwrap().server, "far", "the node as well");
    });
}

#[test]
fn load_balancer_addresses_admit_their_source_ranges() {
    let node = Node::new();
    let outside = Outside::new();
    let a = serving_pod(&node, "a");
    let ip = Ipv4Addr::new(10, 43, 200, 2);
    let mut proxy = proxy();
    for (range, admitted) in [("192.0.2.0/24", true), ("203.0.113.0/24", false)] {
        let spec = json!({"type": "LoadBalancer", "loadBalancerSourceRanges": [range]});
        let mut web = Service::clone(&service("web", VIP, spec));
        web.status = serde_json::from_value(json!({"loadBalancer": {"ingress": [{"ip": ip}]}})).unwrap();
        sync(&mut proxy, &[&Arc::new(web)], &[&slice("web", &[(a.ip, "this")])]);
        assert_eq!(outside.host.get(ip, 80).is_ok(), admitted, "{range}");
    }
}

#[test]
fn a_restart_and_a_flushed_table_are_made_good() {
    let node = Node::new();
    let (a, b) = (serving_pod(&node, "a"), serving_pod(&node, "b"));
    let client = node.pod("client");
    let web = service("web", VIP, json!({}));
    let mut first = proxy();
    sync(&mut first, &[&web], &[&slice("web", &[(a.ip, "this")])]);
    drop(first);
    assert_eq!(client.get(VIP, 80).unwrap().server, "a", "the rules outlive the process");
    let mut second = proxy();
    sync(&mut second, &[&web], &[&slice("web", &[(b.ip, "this")])]);
    assert_eq!(client.get(VIP, 80).unwrap().server, "b");
    let mut netlink = Netlink::netfilter().unwrap();
    let mut batch = nft::Batch::new("knarr");
    batch.delete_table();
    batch.commit(&mut netlink).unwrap();
    sync(&mut second, &[&web], &[&slice("web", &[(a.ip, "this")])]);
    assert_eq!(client.get(VIP, 80).unwrap().server, "a");
}

#[test]
fn many_endpoints_share_the_load() {
    let node = Node::new();
    let pods: Vec<_> = (0..20).map(|n| serving_pod(&node, &format!("pod-{n}"))).collect();
    let client = node.pod("client");
    let mut proxy = proxy();
    let web = service("web", VIP, json!({}));
    for count in [5, 20] {
        let endpoints: Vec<_> = pods[..count].iter().map(|pod| (pod.ip, "this")).collect();
        sync(&mut proxy, &[&web], &[&slice("web", &endpoints)]);
        let mut seen = BTreeMap::new();
        for _ in 0..count * 20 {
            *seen.entry(client.get(VIP, 80).unwrap().server).or_insert(0) += 1;
        }
        assert_eq!(seen.len(), count, "{seen:?}");
        assert!(seen.values().all(|n| (3..60).contains(n)), "{seen:?}");
    }
}

/// Updates must leave the same state in the kernel as a fresh start would write.
#[test]
fn updates_and_a_fresh_start_end_alike() {
    lab::isolate();
    let ip = |n: u8| Ipv4Addr::new(10, 42, 0, n);
    let affinity = json!({"sessionAffinity": "ClientIP"});
    let mut updated = proxy();
    let services: Vec<_> = (1..6)
        .map(|n| {
            let extra = if n % 2 == 0 { affinity.clone() } else { json!({"nodePort": 30000 + u16::from(n)}) };
            service(&format!("s{n}"), Ipv4Addr::new(10, 43, 0, n), extra)
        })
        .collect();
    for round in 0..12u8 {
        let slices: Vec<_> = (1..6u8)
            .map(|n| {
                let endpoints: Vec<_> = (0..(round + n) % 4).map(|e| (ip(e + n), "this")).collect();
                slice(&format!("s{n}"), &endpoints)
            })
            .collect();
        let services = &services[..usize::from(round % 6)];
        updated.sync(services, &slices).unwrap();
        let incremental = listing();
        proxy().sync(services, &slices).unwrap();
        assert_eq!(incremental, listing(), "round {round}");
        updated.invalidate();
        updated.sync(services, &slices).unwrap();
    }
}

type Table = (nft::Listing, Vec<(String, Vec<nft::Element>)>);

fn listing() -> Table {
    let mut netlink = Netlink::netfilter().unwrap();
    let mut listing = nft::list_table(&mut netlink, "knarr").unwrap().unwrap();
    let anonymous = listing.sets.values().filter(|s| s.anonymous).count();
    listing.sets.retain(|_, set| !set.anonymous);
    let elements = listing
        .sets
        .keys()
        .map(|name| (name.clone(), nft::elements(&mut netlink, "knarr", name).unwrap()))
        .collect();
    listing.sets.insert(format!("{anonymous} anonymous"), nft::ListedSet { anonymous: true });
    (listing, elements)
}
