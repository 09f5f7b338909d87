//! Extenders that work, give wrong answers, hang or are unreachable.

use crate::config::go_duration::GoDuration;
use std::sync::Arc;

use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use knarr_client::clock::SystemClock;
use knarr_testing::hook_server::{HookServer, Received, Reply};
use serde_json::{Value, json};

use super::config::TlsConfig;
use super::*;
use crate::plugins::testing::{node, pod};

async fn start(answer: impl Fn(&Received) -> Reply + Send + Sync + 'static) -> HookServer {
    HookServer::start(&["localhost"], answer).await.unwrap()
}

fn config(hook: &HookServer) -> ExtenderConfig {
    let tls = TlsConfig {
        ca_data: BASE64_STANDARD.encode(&hook.ca_pem),
        server_name: "localhost".to_owned(),
        ..TlsConfig::default()
    };
    ExtenderConfig {
        url_prefix: hook.url("/x/"),
        filter_verb: "filter".to_owned(),
        prioritize_verb: "prioritize".to_owned(),
        preempt_verb: "preempt".to_owned(),
        bind_verb: "bind".to_owned(),
        weight: 2,
        tls_config: Some(tls),
        http_timeout: GoDuration::from_secs(20),
        ..ExtenderConfig::default()
    }
}

fn nodes() -> Vec<Arc<Node>> {
    ["a", "b", "c"].map(|name| Arc::new(node(name).build())).into()
}

fn names() -> Vec<String> {
    ["a", "b", "c"].map(str::to_owned).into()
}

async fn filter(configs: &[ExtenderConfig]) -> Result<Filtered, String> {
    let extenders = Extenders::new(configs).unwrap();
    extenders.filter(&SystemClock, &pod("p").build(), &nodes()).await.map_err(|e| chain(&e))
}

#[tokio::test]
async fn nodes_are_filtered_by_object_and_by_name() {
    let by_object = start(|asked| {
        assert_eq!(asked.path, "/x/filter");
        assert_eq!(asked.body["Pod"]["metadata"]["name"], "p");
        assert!(asked.body["NodeNames"].is_null());
        let items: Vec<Value> = asked.body["Nodes"]["items"].as_array().unwrap()[1..].to_vec();
        Reply::Json(json!({"Nodes": {"items": items}, "FailedNodes": {"a": "no card"}}))
    })
    .await;
    let by_name = start(|asked| {
        assert_eq!(asked.body["NodeNames"], json!(["b", "c"]));
        // Field names are matched in any case, as Go does.
        Reply::Json(json!({"nodenames": ["c"], "failedAndUnresolvableNodes": {"b": "never"},
            "failedNodes": {"b": "not now"}}))
    })
    .await;
    let second = ExtenderConfig { node_cache_capable: true, ..config(&by_name) };
    let said = filter(&[config(&by_object), second]).await.unwrap();
    assert_eq!(said.nodes, ["c"]);
    assert_eq!(said.failed, [("a".to_owned(), "no card".to_owned())].into());
    assert_eq!(said.unresolvable, [("b".to_owned(), "never".to_owned())].into());
}

#[tokio::test]
async fn lies_and_failures_are_told_and_may_be_ignored() {
    let table: Vec<(Reply, &str)> = vec![
        (
            Reply::Json(json!({"NodeNames": ["z"]})),
            "extender \"URL\" claims a filtered node \"z\" which is not found in the input node list",
        ),
        (Reply::Json(json!({"Error": "out of cards"})), "out of cards"),
        (
            Reply::Json(json!({"NodeNames": "a"})),
            "extender \"URL\" gives an answer that is not what it should be: NodeNames is no list",
        ),
        (
            Reply::Json(json!({"NodeNames": [7]})),
            "extender \"URL\" gives an answer that is not what it should be: NodeNames has something other than names",
        ),
        (
            Reply::Json(json!({"NodeNames": [], "FailedNodes": {"a": 1}})),
            "extender \"URL\" gives an answer that is not what it should be: a failed node's message is no text",
        ),
        (Reply::Raw(500, b"boom".to_vec()), "failed filter with extender at URL URL/filter, code 500"),
        (Reply::Raw(200, b"{".to_vec()), "the answer from \"URL/filter\" is not what it should be: EOF"),
        (Reply::HangUp, "Post \"URL/filter\": "),
        (
            Reply::Never,
            "Post \"URL/filter\": context deadline exceeded (Client.Timeout exceeded while awaiting headers)",
        ),
    ];
    for (reply, expected) in table {
        let patience = if matches!(reply, Reply::Never) { 50 } else { 20_000 };
        let reply = std::sync::Mutex::new(Some(reply));
        let hook = start(move |_| reply.lock().unwrap().take().unwrap_or(Reply::HangUp)).await;
        let config = ExtenderConfig {
            node_cache_capable: true,
            http_timeout: GoDuration(patience * 1_000_000),
            ..config(&hook)
        };
        let error = filter(std::slice::from_ref(&config)).await.unwrap_err();
        let own = expected.replace("URL/", &format!("https://{}/x/", hook.address));
        let own = own.replace("\"URL\"", &format!("\"https://{}/x\"", hook.address));
        assert!(error.starts_with(&own), "{error:?}, not {own:?}");
        let gone = ExtenderConfig { ignorable: true, url_prefix: "http://127.0.0.1:1".to_owned(), ..config };
        assert_eq!(filter(&[gone]).await.unwrap().nodes, names());
    }
}

#[tokio::test]
async fn scores_are_weighed_and_a_broken_one_gives_none() {
    let hook = start(|_| Reply::Json(json!([{"Host": "a", "Score": 10}, {"Host": "b", "Score": 3}]))).await;
    let broken = start(|_| Reply::Json(json!({"a": 1}))).await;
    let extenders = Extenders::new(&[config(&hook), config(&broken), config(&hook)]).unwrap();
    let scores = extenders.prioritize(&SystemClock, &pod("p").build(), &nodes(), &names()).await;
    assert_eq!(scores, [("a".to_owned(), 400), ("b".to_owned(), 120)].into());
}

#[tokio::test]
async fn only_pods_with_managed_resources_are_asked_about() {
    let hook = start(|_| Reply::Json(json!({}))).await;
    let resource = serde_json::from_value(json!({"name": "example.com/gpu"})).unwrap();
    let extenders =
        Extenders::new(&[ExtenderConfig { managed_resources: vec![resource], ..config(&hook) }]).unwrap();
    let info = |p: crate::plugins::testing::PodBuilder| PodInfo::new(&p.build());
    assert!(!extenders.decide_on(&info(pod("p").cpu("1"))));
    assert!(extenders.decide_on(&info(pod("p").request("example.com/gpu", "1"))));
    assert!(extenders.bind(&SystemClock, &info(pod("p")), "a").await.is_none());
    let bound = extenders.bind(&SystemClock, &info(pod("p").request("example.com/gpu", "1")), "a").await;
    bound.unwrap().unwrap();
    let asked = hook.received();
    assert_eq!(asked.len(), 1);
    let expected = json!({"PodName": "p", "PodNamespace": "default", "PodUID": "p", "Node": "a"});
    assert_eq!((asked[0].path.as_str(), &asked[0].body), ("/x/bind", &expected));
}

#[tokio::test]
async fn victims_are_changed_only_to_pods_of_their_node() {
    let pods = |names: &[&str]| names.iter().map(|n| Arc::new(pod(n).build())).collect::<Vec<_>>();
    let candidates = || -> BTreeMap<String, Candidate> {
        let one = |victims: &[&str], there: &[&str]| Candidate {
            victims: pods(victims),
            there: pods(there),
            violations: 1,
        };
        [("a".to_owned(), one(&["v"], &["v", "w"])), ("b".to_owned(), one(&["x"], &["x"]))].into()
    };
    let table = [
        (json!({"a": {"Pods": [{"UID": "w"}], "NumPDBViolations": 0}}), Ok(vec!["w"])),
        (json!({"b": {"Pods": [{"UID": "x"}]}}), Ok(vec![])),
        (
            json!({"a": {"Pods": [{"UID": "x"}]}}),
            Err(" claims to preempt pod (UID: &{x}) on node: a, but the pod is not found on that node"),
        ),
        (json!({"a": {"Pods": []}}), Err("expected at least one victim pod on node \"a\"")),
        (json!({"z": {"Pods": [{"UID": "x"}]}}), Err("nodeinfo not found for node name \"z\"")),
    ];
    for (answer, expected) in table {
        let hook = start(move |asked| {
            assert_eq!(asked.body["NodeNameToMetaVictims"]["b"]["Pods"], json!([{"UID": "x"}]));
            Reply::Json(json!({"NodeNameToMetaVictims": answer}))
        })
        .await;
        let config = ExtenderConfig { node_cache_capable: true, ..config(&hook) };
        let extenders = Extenders::new(&[config]).unwrap();
        let left = extenders.preempt(&SystemClock, &pod("p").build(), candidates()).await;
        match expected {
            Ok(victims) => {
                let left = left.unwrap();
                let of_a = left
                    .get("a")
                    .map(|c| c.victims.iter().map(|p| p.metadata.uid.clone().unwrap()).collect());
                assert_eq!(of_a.unwrap_or_else(Vec::new), victims);
            }
            Err(why) => assert!(chain(&left.unwrap_err()).ends_with(why)),
        }
    }
}

#[tokio::test]
async fn certificates_are_checked_where_there_is_an_authority() {
    let hook = start(|_| Reply::Json(json!({"NodeNames": ["a"]}))).await;
    let other = start(|_| Reply::Never).await;
    let by_name = |config| ExtenderConfig { node_cache_capable: true, ..config };
    let wrong = ExtenderConfig { url_prefix: hook.url("/x"), ..by_name(config(&other)) };
    assert!(filter(&[wrong]).await.unwrap_err().contains("certificate"));
    let unchecked = ExtenderConfig { tls_config: None, enable_https: true, ..by_name(config(&hook)) };
    assert_eq!(filter(&[unchecked]).await.unwrap().nodes, ["a"]);
    let strange = ExtenderConfig { url_prefix: "ftp://x".to_owned(), ..ExtenderConfig::default() };
    assert!(Extenders::new(&[strange]).is_err());
}
