//! The output of `/livez`, `/readyz` and `/healthz`, and that it is correct.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use futures_util::StreamExt;
use k8s_openapi::api::core::v1::ConfigMap;
use knarr_api::kind::Kind;
use knarr_apiserver::steps;
use knarr_client::Supervisor;
use knarr_client::clock::SystemClock;
use knarr_client::transport::ListOptions;
use knarr_storage::{Embedded, Options, Store, Watch};
use tokio_util::sync::CancellationToken;

use crate::harness::{CONFIG_MAPS, Harness, User, config_map};
use crate::tapped::Tapped;

/// Far longer than any step of these tests takes.
const LONG: Duration = Duration::from_secs(60);

async fn text(user: &User, uri: &str) -> (u16, String) {
    let reply = user.get(uri).await;
    let text = reply.body.as_str().unwrap_or(reply.message()).to_owned();
    (reply.code, text)
}

/// Repeats the request until the response has this code.
async fn until(user: &User, uri: &str, code: u16) -> String {
    let asking = async {
        loop {
            match text(user, uri).await {
                (found, text) if found == code => return text,
                _ => tokio::task::yield_now().await,
            }
        }
    };
    tokio::time::timeout(LONG, asking).await.unwrap()
}

fn names(report: &str) -> BTreeSet<&str> {
    report.lines().filter_map(|line| line.strip_prefix("[+]")?.strip_suffix(" ok")).collect()
}

/// The hooks of kube-apiserver 1.37 with default flags, without those that depend on how the process runs.
const HOOKS: [&str; 25] = [
    "start-apiserver-admission-initializer",
    "generic-apiserver-start-informers",
    "priority-and-fairness-config-consumer",
    "priority-and-fairness-filter",
    "storage-object-count-tracker-hook",
    "start-apiextensions-informers",
    "start-apiextensions-controllers",
    "crd-informer-synced",
    "start-system-namespaces-controller",
    "start-cluster-authentication-info-controller",
    "storage-readiness",
    "start-legacy-token-tracking-controller",
    "start-service-ip-repair-controllers",
    "rbac/bootstrap-roles",
    "scheduling/bootstrap-system-priority-classes",
    "priority-and-fairness-config-producer",
    "bootstrap-controller",
    "start-kubernetes-service-cidr-controller",
    "start-kube-aggregator-informers",
    "apiservice-status-local-available-controller",
    "apiservice-status-remote-available-controller",
    "apiservice-registration-controller",
    "apiservice-discovery-controller",
    "kube-apiserver-autoregistration",
    "apiservice-openapi-controller",
];

#[tokio::test]
async fn checks_have_upstreams_names() {
    let h = Harness::new().await;
    let user = h.admin();
    for endpoint in ["livez", "readyz", "healthz"] {
        until(&user, &format!("/{endpoint}"), 200).await;
        let report = text(&user, &format!("/{endpoint}?verbose")).await.1;
        let found = names(&report);
        let hooks = HOOKS.map(|hook| format!("poststarthook/{hook}"));
        let all = ["ping", "log", "etcd", "autoregister-completion", "watch-cache", "repair-cluster-ips"];
        for name in hooks.iter().map(String::as_str).chain(all) {
            assert!(found.contains(name), "{endpoint} lacks {name}: {report}");
        }
        for name in ["etcd-readiness", "informer-sync", "shutdown"] {
            assert_eq!(found.contains(name), endpoint == "readyz", "{name} in {endpoint}");
        }
        assert!(report.ends_with(&format!("{endpoint} check passed\n")), "{report}");
        for name in ["poststarthook/rbac/bootstrap-roles", "etcd"] {
            assert_eq!(text(&user, &format!("/{endpoint}/{name}")).await, (200, "ok".to_owned()));
        }
        assert_eq!(text(&user, &format!("/{endpoint}/other")).await.0, 404);
        let report = text(&user, &format!("/{endpoint}?verbose&exclude=etcd&exclude=none")).await.1;
        assert!(report.contains("[+]etcd excluded: ok\n"), "{report}");
        let warning = "warn: some health checks cannot be excluded: no matches for \"none\"\n";
        assert!(report.contains(warning), "{report}");
    }
}

#[tokio::test]
async fn checks_fail_while_what_they_name_is_not_so() {
    let h = Harness::new().await;
    let user = h.admin();
    user.until_ready().await;
    let hook = format!("poststarthook/{}", steps::IDENTITY_LEASE);
    assert_eq!(text(&user, &format!("/livez/{hook}")).await.0, 404);
    let step = h.server.step(steps::IDENTITY_LEASE);
    for endpoint in ["livez", "readyz", "healthz"] {
        let (code, report) = text(&user, &format!("/{endpoint}")).await;
        assert_eq!(code, 500);
        assert!(report.contains(&format!("[-]{hook} failed: reason withheld\n")), "{report}");
        let why = text(&user, &format!("/{endpoint}/{hook}")).await;
        assert_eq!(why, (500, "internal server error: not finished".to_owned()));
    }
    step.finish();
    assert_eq!(text(&user, "/readyz").await, (200, "ok".to_owned()));

    h.store.close().await.unwrap();
    for name in ["livez/etcd", "readyz/etcd", "readyz/etcd-readiness"] {
        assert_eq!(text(&user, &format!("/{name}")).await.0, 500, "{name}");
    }
    // The feed of the caches fails permanently, and restarts do not help.
    until(&user, "/readyz/watch-cache", 500).await;
    let why = text(&user, "/readyz/informer-sync").await.1;
    assert!(why.contains(" informers not started yet: ["), "{why}");
}

#[tokio::test]
async fn a_feed_that_panics_is_restarted_and_no_watch_goes_silent() {
    let fails = Arc::new(AtomicBool::new(false));
    let memory: Arc<dyn Store> = Arc::new(Embedded::memory(Options::default()));
    let store = {
        let fails = Arc::clone(&fails);
        Tapped::over(memory, move |watch| {
            let (progress, fails) = (watch.progress_requester(), Arc::clone(&fails));
            let fragile = watch.inspect(move |_| {
                assert!(!fails.swap(false, Ordering::SeqCst), "a fault in the code");
            });
            Watch::new(fragile, progress)
        })
    };
    let h = Harness::on(store, |_| ()).await;
    let user = h.admin();
    user.until_ready().await;
    user.post(CONFIG_MAPS, &config_map("before")).await.expect(201);
    let from = user.0.list(&ConfigMap::RESOURCE, Some("default"), &ListOptions::default()).await.unwrap();
    let options = ListOptions { resource_version: Some(from.resource_version), ..ListOptions::default() };
    let mut watch = user.0.watch(&ConfigMap::RESOURCE, Some("default"), &options).await.unwrap();

    fails.store(true, Ordering::SeqCst);
    user.post(CONFIG_MAPS, &config_map("during")).await.expect(201);
    let report = until(&user, "/readyz", 500).await;
    assert!(report.contains("[-]watch-cache failed: reason withheld\n"), "{report}");
    assert!(report.contains("[-]informer-sync failed: reason withheld\n"), "{report}");
    let why = text(&user, "/readyz/watch-cache").await.1;
    assert!(why.contains("it panicked: a fault in the code"), "{why}");
    // A restart of the process would help no more than the restart of the feed.
    assert_eq!(text(&user, "/livez").await, (200, "ok".to_owned()));

    // The watch ends; a client has to start a new one, and then receives the missed changes.
    let ended = tokio::time::timeout(LONG, async { while watch.next().await.is_some_and(|e| e.is_ok()) {} });
    ended.await.unwrap();
    user.until_ready().await;
    let list = user.get(CONFIG_MAPS).await.expect(200);
    let found: Vec<_> = list["items"].as_array().unwrap().iter().map(|i| &i["metadata"]["name"]).collect();
    assert!(found.contains(&&"during".into()), "{found:?}");
    let mut watch = user.0.watch(&ConfigMap::RESOURCE, Some("default"), &options).await.unwrap();
    user.post(CONFIG_MAPS, &config_map("after")).await.expect(201);
    assert!(tokio::time::timeout(LONG, watch.next()).await.unwrap().is_some());
    let metrics = text(&user, "/metrics").await.1;
    assert!(metrics.contains("knarr_task_restarts_total{task=\"watch-cache\"} "), "{metrics}");
}

#[tokio::test]
async fn tasks_of_others_in_the_process_are_shown_and_do_not_count() {
    let h = Harness::new().await;
    let user = h.admin();
    user.until_ready().await;
    let supervisor = Supervisor::new(Arc::new(SystemClock));
    h.server.show_tasks(&supervisor);
    let stop = CancellationToken::new();
    let _well = supervisor.spawn("scheduler", stop.clone(), |stop| async move { stop.cancelled().await });
    let _ill = supervisor.spawn("dns", stop.clone(), |_| async { panic!("a fault in the code") });
    let why = until(&user, "/readyz/dns", 500).await;
    assert_eq!(why, "internal server error: it panicked: a fault in the code");
    let (code, report) = text(&user, "/readyz?verbose").await;
    assert_eq!(code, 200);
    assert!(report.contains("[-]dns failed, which is not counted: reason withheld\n"), "{report}");
    assert!(report.contains("[+]scheduler ok\n"), "{report}");
    // `/livez` reports only the lasting failure, and it does not count there either.
    let (code, report) = text(&user, "/livez?verbose").await;
    assert!(code == 200 && report.contains("]dns ") && report.contains("[+]scheduler ok\n"), "{report}");
    stop.cancel();
}
