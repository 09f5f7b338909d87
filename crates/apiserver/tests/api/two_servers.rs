//! Two API servers on one etcd behave as one.

use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::api::core::v1::ConfigMap;
use knarr_client::transport::{ListOptions, WatchEvent};
use knarr_storage::Store;
use knarr_storage::suite::etcd_server::Server;
use serde_json::{Value, json};

use crate::harness::{CONFIG_MAPS, Harness, User, config_map};

/// Starts two servers at the same time.
async fn two(etcd: &Server) -> (Harness, Harness) {
    let server = |ip: &'static str| async move {
        let store: Arc<dyn Store> = Arc::new(etcd.store(etcd.options()).await);
        let change = |config: &mut knarr_apiserver::Config| {
            config.shared_store = true;
            config.advertise = format!("{ip}:6443").parse().unwrap();
        };
        Harness::on(store, change).await
    };
    tokio::join!(server("10.0.0.1"), server("10.0.0.2"))
}

async fn endpoint_ips(harness: &Harness) -> Vec<String> {
    let endpoints = harness.admin().get("/api/v1/namespaces/default/endpoints/kubernetes").await.expect(200);
    let addresses = endpoints["subsets"][0]["addresses"].as_array().cloned().unwrap_or_default();
    addresses.iter().map(|a| a["ip"].as_str().unwrap().to_owned()).collect()
}

fn names(list: &Value) -> Vec<&str> {
    list["items"].as_array().unwrap().iter().filter_map(|item| item["metadata"]["name"].as_str()).collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_read_sees_what_either_server_has_answered() {
    let etcd = Server::start();
    let (a, b) = two(&etcd).await;
    let (one, other) = (a.admin(), b.admin());
    for i in 0..40 {
        let (writer, reader) = if i % 2 == 0 { (&one, &other) } else { (&other, &one) };
        let name = format!("c{i:02}");
        writer.post(CONFIG_MAPS, &config_map(&name)).await.expect(201);
        reader.get(&format!("{CONFIG_MAPS}/{name}")).await.expect(200);
        let list = reader.get(CONFIG_MAPS).await.expect(200);
        assert_eq!(names(&list).iter().filter(|n| n.starts_with('c')).count(), i + 1);
        // Writes of other programs to the same etcd must not make a list wait in vain.
        if i % 10 == 0 {
            etcd.etcdctl(&["put", "/elsewhere", "x"]);
        }
    }
    // Both servers detect the conflict.
    let mut current = one.get(&format!("{CONFIG_MAPS}/c00")).await.expect(200);
    current["data"]["k"] = json!("changed");
    other.put(&format!("{CONFIG_MAPS}/c00"), &current).await.expect(200);
    one.put(&format!("{CONFIG_MAPS}/c00"), &current).await.expect(409);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn addresses_and_ports_are_given_out_once() {
    let etcd = Server::start();
    let (a, b) = two(&etcd).await;
    let make = |harness: &Harness, name: String| {
        let user = harness.admin();
        tokio::spawn(async move {
            let service = json!({"apiVersion": "v1", "kind": "Service", "metadata": {"name": name},
                "spec": {"type": "NodePort", "selector": {"a": "b"}, "ports": [{"port": 80}]}});
            user.post("/api/v1/namespaces/default/services", &service).await.expect(201)
        })
    };
    let made: Vec<_> = (0..15).flat_map(|i| [make(&a, format!("a{i}")), make(&b, format!("b{i}"))]).collect();
    let mut given = std::collections::BTreeSet::new();
    for service in made {
        let service = service.await.unwrap();
        assert!(given.insert(service["spec"]["clusterIP"].to_string()));
        assert!(given.insert(service["spec"]["ports"][0]["nodePort"].to_string()));
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_kubernetes_service_stands_for_the_servers_that_live() {
    let etcd = Server::start();
    let (a, b) = two(&etcd).await;
    // The server that joined last has added both addresses.
    assert_eq!(endpoint_ips(&a).await, ["10.0.0.1", "10.0.0.2"]);
    let slice = "/apis/discovery.k8s.io/v1/namespaces/default/endpointslices/kubernetes";
    let slice = a.admin().get(slice).await.expect(200);
    assert_eq!(slice["endpoints"].as_array().map(Vec::len), Some(2));
    b.server.stop();
    let left = async {
        while endpoint_ips(&a).await != ["10.0.0.1"] {
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(30), left).await.expect("the stopped server leaves");
}

/// Creates an object, with retries. A write on a connection that etcd has just closed is answered with an error
/// although it may have happened.
async fn create(user: &User, name: &str) {
    let mut last = 0;
    for _ in 0..100 {
        let reply = user.post(CONFIG_MAPS, &config_map(name)).await;
        last = reply.code;
        if matches!(last, 201 | 409) {
            return;
        }
        assert!(reply.message().contains("code = Unavailable"), "{}", reply.body);
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    panic!("{last} for 5 s");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn watches_go_on_after_etcd_was_away() {
    let mut etcd = Server::start();
    let (a, b) = two(&etcd).await;
    let resource = <ConfigMap as knarr_api::kind::Kind>::RESOURCE;
    let options = ListOptions::default();
    let mut watch = a.admin().0.watch(&resource, Some("default"), &options).await.unwrap();
    let mut seen = Vec::new();
    for round in 0..3 {
        let name = format!("r{round}");
        create(&b.admin(), &name).await;
        while !seen.contains(&name) {
            use futures_util::StreamExt;
            let event = tokio::time::timeout(Duration::from_secs(60), watch.next()).await.expect("in time");
            if let WatchEvent::Added(object) = event.expect("the watch goes on").expect("no error") {
                assert!(!seen.contains(&object.name().to_owned()), "{} came twice", object.name());
                seen.push(object.name().to_owned());
            }
        }
        etcd.kill();
        etcd.run();
    }
}
