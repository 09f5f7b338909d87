//! Simulated nodes with a fake API server, in virtual time.

use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::{Event, Node, Pod};
use knarr_api::kind::Kind;
use knarr_client::Informers;
use knarr_client::clock::TokioClock;
use knarr_testing::FakeApi;
use serde_json::json;
use tokio_util::sync::CancellationToken;

use super::{Options, RUN_SECONDS_ANNOTATION};

fn pod(name: &str, node: &str, annotations: serde_json::Value) -> Pod {
    let value = json!({
        "metadata": {"name": name, "namespace": "default", "annotations": annotations},
        "spec": {"nodeName": node, "restartPolicy": "Never", "containers": [{"name": "c", "image": "i"}]}
    });
    serde_json::from_value(value).unwrap()
}

fn phase(api: &FakeApi, name: &str) -> String {
    api.get::<Pod>("default", name).and_then(|p| p.status?.phase).unwrap_or_default()
}

#[tokio::test(start_paused = true)]
async fn nodes_and_pods_live_and_go() {
    let clock = Arc::new(TokioClock::starting_at("2026-01-01T00:00:00Z".parse().unwrap()));
    let api = FakeApi::new(clock, &[Node::RESOURCE, Pod::RESOURCE, Lease::RESOURCE, Event::RESOURCE]);
    let stop = CancellationToken::new();
    let informers = Arc::new(Informers::new(api.client(), stop.clone()));
    let running = tokio::spawn(super::run(Options::new(20), api.client(), informers, stop.clone()));
    tokio::time::sleep(Duration::from_secs(11)).await;
    let nodes = api.all::<Node>();
    assert_eq!(nodes.len(), 20);
    let ready =
        nodes[0].status.as_ref().unwrap().conditions.as_ref().unwrap().iter().find(|c| c.type_ == "Ready");
    assert_eq!(ready.unwrap().status, "True");
    let leases = api.all::<Lease>();
    assert_eq!(leases.len(), 20);
    let times: std::collections::BTreeSet<String> =
        leases.iter().map(|l| format!("{:?}", l.spec.as_ref().unwrap().renew_time)).collect();
    assert_eq!(times.len(), 20, "heartbeats are spread");
    assert_eq!(leases[3].metadata.owner_references.as_ref().unwrap()[0].name, "simulated-0004");

    api.add(&pod("a", "simulated-0001", json!({})));
    api.add(&pod("b", "simulated-0001", json!({RUN_SECONDS_ANNOTATION: "60"})));
    api.add(&pod("elsewhere", "real", json!({})));
    tokio::time::sleep(Duration::from_secs(1)).await;
    assert_eq!((phase(&api, "a").as_str(), phase(&api, "b").as_str()), ("Running", "Running"));
    assert_eq!(phase(&api, "elsewhere"), "");
    let ips: Vec<_> =
        ["a", "b"].map(|n| api.get::<Pod>("default", n).unwrap().status.unwrap().pod_ip.unwrap()).into();
    assert_ne!(ips[0], ips[1]);
    tokio::time::sleep(Duration::from_secs(60)).await;
    assert_eq!((phase(&api, "a").as_str(), phase(&api, "b").as_str()), ("Running", "Succeeded"));

    let options = k8s_openapi::apimachinery::pkg::apis::meta::v1::DeleteOptions {
        grace_period_seconds: Some(30),
        ..Default::default()
    };
    api.client().delete::<Pod>("default", "a", &options).await.unwrap();
    api.remove::<Node>("", "simulated-0007");
    tokio::time::sleep(Duration::from_secs(2)).await;
    assert!(api.get::<Pod>("default", "a").is_none());
    assert!(api.get::<Node>("", "simulated-0007").is_some(), "a deleted node registers anew");

    stop.cancel();
    running.await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn nodes_tell_of_themselves_as_kubelets_do() {
    let clock = Arc::new(TokioClock::starting_at("2026-01-01T00:00:00Z".parse().unwrap()));
    let api = FakeApi::new(clock, &[Node::RESOURCE, Pod::RESOURCE, Lease::RESOURCE, Event::RESOURCE]);
    let stop = CancellationToken::new();
    let informers = Arc::new(Informers::new(api.client(), stop.clone()));
    let running = tokio::spawn(super::run(Options::new(2), api.client(), informers, stop.clone()));
    tokio::time::sleep(Duration::from_secs(11)).await;
    let emitted = |node: &str| {
        let events = api.all::<Event>().into_iter();
        let mine = events.filter(|e| e.source.as_ref().is_some_and(|s| s.host.as_deref() == Some(node)));
        let text = mine.map(|e| format!("{}: {}", e.reason.unwrap(), e.message.unwrap()));
        text.collect::<std::collections::BTreeSet<String>>()
    };
    let is_now = |reason: &str| format!("{reason}: Node simulated-0002 status is now: {reason}");
    let at_start: std::collections::BTreeSet<String> =
        ["NodeHasSufficientMemory", "NodeHasNoDiskPressure", "NodeHasSufficientPID", "NodeReady"]
            .map(is_now)
            .into_iter()
            .chain(["Starting: Starting kubelet.".to_owned()])
            .collect();
    assert_eq!(emitted("simulated-0002"), at_start);
    let event = api.all::<Event>().into_iter().find(|e| e.reason.as_deref() == Some("NodeReady")).unwrap();
    let node = api.get::<Node>("", event.involved_object.name.as_deref().unwrap()).unwrap();
    assert_eq!(event.involved_object.uid.as_deref(), Some(node.uid()));
    assert_eq!(event.source.unwrap().component.as_deref(), Some("kubelet"));

    for (unschedulable, reason) in [(true, "NodeNotSchedulable"), (false, "NodeSchedulable")] {
        assert!(!emitted("simulated-0002").contains(&is_now(reason)));
        let patch = knarr_client::Patch::Merge(json!({"spec": {"unschedulable": unschedulable}}));
        api.client().patch::<Node>("", "simulated-0002", None, &patch).await.unwrap();
        tokio::time::sleep(Duration::from_secs(1)).await;
        assert!(emitted("simulated-0002").contains(&is_now(reason)), "{reason}");
    }
    assert_eq!(emitted("simulated-0001").len(), 5);

    let capacity = node.status.unwrap().capacity.unwrap();
    for size in ["hugepages-2Mi", "hugepages-1Gi"] {
        assert_eq!(capacity[size].0, "0", "{size}");
    }
    stop.cancel();
    running.await.unwrap();
}
