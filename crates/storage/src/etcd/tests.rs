//! Tests the engine on real etcd servers: the suite, TLS, failover, restarts, compaction under a watch.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;

use super::*;
use crate::embedded::tests::manual_time;
use crate::suite::etcd_server::Server;
use crate::suite::{self, Fixture};
use crate::{EventKind, Precondition, WatchItem};

async fn put(store: &Etcd, key: &str, value: &str) -> u64 {
    let (key, value) = (Bytes::copy_from_slice(key.as_bytes()), Bytes::copy_from_slice(value.as_bytes()));
    store.put(key, value, Precondition::Any, None).await.unwrap().kv.mod_revision
}

/// The revisions of all events up to and including `through`.
async fn revisions(watch: &mut Watch, through: u64) -> Vec<u64> {
    let mut seen = Vec::new();
    loop {
        let item = tokio::time::timeout(Duration::from_secs(60), watch.next()).await;
        let item = item.expect("in time").expect("not ended").expect("no error");
        if let WatchItem::Events(batch) = &item {
            seen.extend(batch.events.iter().map(|event| event.kv.mod_revision));
        }
        if item.revision() >= through {
            return seen;
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn etcd_conforms() {
    suite::run(|| async {
        let server = Server::start();
        let (time, advance) = manual_time();
        let options = EtcdOptions { time, watch_buffer: 4, ..server.options() };
        let store = server.store(options).await;
        Fixture { store: Arc::new(store), advance, keep: Box::new(server) }
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_watch_survives_restarts_without_losing_or_repeating() {
    let mut server = Server::start();
    let store = server.store(server.options()).await;
    let start = store.current_revision().await.unwrap();
    let mut watch = store.watch(WatchRequest::prefix("k").after(start)).await.unwrap();
    for round in 0..3u64 {
        let mut last = 0;
        for i in 0..20 {
            last = put(&store, "k", &format!("{round}-{i}")).await;
        }
        // Some events are read before the member dies, some only after it is back.
        if round % 2 == 0 {
            assert_eq!(revisions(&mut watch, last).await.len(), 20);
        }
        server.kill();
        server.run();
        // A read is retried until the member is back. A write is not, because it might have been executed.
        store.current_revision().await.unwrap();
        let next = put(&store, "k", "after").await;
        let expected: Vec<u64> = if round % 2 == 0 { vec![next] } else { (last - 19..=next).collect() };
        assert_eq!(revisions(&mut watch, next).await, expected);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn progress_counts_the_writes_of_others() {
    let server = Server::start();
    let store = server.store(server.options()).await;
    let mut watch = store.watch(WatchRequest::prefix("k")).await.unwrap();
    server.etcdctl(&["put", "/elsewhere", "x"]);
    let current = store.current_revision().await.unwrap();
    watch.progress_requester().request();
    assert_eq!(revisions(&mut watch, current).await, Vec::<u64>::new());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_watch_that_is_overtaken_by_compaction_says_so() {
    const WRITES: u64 = 60;
    let server = Server::start();
    let store = server.store(EtcdOptions { watch_buffer: 1, ..server.options() }).await;
    let mut watch = store.watch(WatchRequest::prefix("k")).await.unwrap();
    // There is no reader: most of the events stay in etcd's history.
    let big = "x".repeat(500 * 1024);
    let mut last = 0;
    for _ in 0..WRITES {
        last = put(&store, "k", &big).await;
    }
    store.compact(last).await.unwrap();
    let mut expected = last + 1 - WRITES;
    let error = loop {
        let item = tokio::time::timeout(Duration::from_secs(30), watch.next()).await.expect("in time");
        match item.expect("an error before the end") {
            Ok(WatchItem::Progress(_)) => {}
            Ok(WatchItem::Events(batch)) => {
                for event in batch.events {
                    assert_eq!(event.kv.mod_revision, expected);
                    assert_eq!(event.prev.is_none(), event.kv.version == 1);
                    expected += 1;
                }
            }
            Err(error) => break error,
        }
    };
    assert!(matches!(error, Error::Compacted { .. }), "{error}");
    assert!(expected < last);
    let gone = store.watch(WatchRequest::prefix("k").after(last - 1)).await.map(|_| ());
    assert_eq!(gone, Err(Error::Compacted { requested: last - 1, compacted: last }));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn requests_fail_while_etcd_is_away_and_work_again_when_it_is_back() {
    let mut server = Server::start();
    let options = EtcdOptions { request_timeout: Duration::from_secs(2), ..server.options() };
    let patient = server.store(server.options()).await;
    let store = Etcd::new(options).unwrap();
    put(&store, "a", "1").await;
    server.kill();
    let error = store.get(b"a").await.unwrap_err().to_string();
    assert!(error.starts_with("rpc error: code = Unavailable desc = connection error: desc = "), "{error}");
    assert!(error.contains("connect: connection refused"), "{error}");
    let waiting = tokio::spawn(async move { patient.get(b"a").await });
    server.run();
    assert!(waiting.await.unwrap().unwrap().is_some());
    assert!(store.get(b"a").await.unwrap().is_some());
    store.close().await.unwrap();
    assert_eq!(store.get(b"a").await, Err(Error::Closed));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_next_endpoint_takes_over() {
    let server = Server::start();
    let mut endpoints = vec!["http://127.0.0.1:9".to_owned()];
    endpoints.extend(server.options().endpoints);
    let options = EtcdOptions { endpoints, ..server.options() };
    let store = server.store(options).await;
    let revision = put(&store, "a", "1").await;
    let mut watch = store.watch(WatchRequest::prefix("a").after(revision - 1)).await.unwrap();
    assert_eq!(revisions(&mut watch, revision).await, [revision]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn large_ranges_and_values_come_whole() {
    let server = Server::start();
    let store = server.store(server.options()).await;
    let big = "x".repeat(700 * 1024);
    for i in 0..12 {
        put(&store, &format!("big/{i:02}"), &big).await;
    }
    let mut watch = store.watch(WatchRequest::prefix("big/").after(1)).await.unwrap();
    let all = store.range(RangeRequest::prefix("big/")).await.unwrap();
    assert_eq!((all.kvs.len(), all.more, all.remaining), (12, false, 0));
    let some = store.range(RangeRequest::prefix("big/").limit(7)).await.unwrap();
    assert_eq!((some.kvs.len(), some.more, some.remaining), (7, true, 5));
    assert_eq!(revisions(&mut watch, all.revision).await.len(), 12);
    // etcd refuses values above its `--max-request-bytes` with its own message.
    let above = store.put("a".into(), vec![b'x'; 1_700_000].into(), Precondition::Any, None).await;
    assert_eq!(above, Err(Error::Backend("etcdserver: request is too large".into())));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn leases_end_in_etcd_too() {
    let server = Server::start();
    let store = server.store(server.options()).await;
    let lease = store.grant_lease(1).await.unwrap();
    let key = Bytes::from_static(b"leased");
    let written = store.put(key, Bytes::new(), Precondition::Any, Some(lease)).await.unwrap().kv;
    let mut watch = store.watch(WatchRequest::prefix("leased").after(written.mod_revision)).await.unwrap();
    // The test does not call `expire_leases`.
    loop {
        if let WatchItem::Events(batch) = watch.next().await.unwrap().unwrap() {
            assert_eq!(batch.events[0].kind, EventKind::Delete);
            assert_eq!(batch.events[0].prev.as_ref(), Some(&written));
            break;
        }
    }
    assert_eq!(store.keep_alive_lease(lease).await, Err(Error::LeaseNotFound(lease)));
}

struct Certificates {
    ca: String,
    server: (String, String),
    client: (String, String),
}

fn certificates() -> Certificates {
    use rcgen::{BasicConstraints, CertificateParams, IsCa, Issuer, KeyPair};
    let ca_key = KeyPair::generate().unwrap();
    let mut params = CertificateParams::default();
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    let ca = params.self_signed(&ca_key).unwrap();
    let issuer = Issuer::from_ca_cert_pem(&ca.pem(), ca_key).unwrap();
    let leaf = |names: &[&str]| {
        let key = KeyPair::generate().unwrap();
        let names: Vec<String> = names.iter().map(|name| (*name).to_owned()).collect();
        let mut params = CertificateParams::new(names).unwrap();
        params.extended_key_usages =
            vec![rcgen::ExtendedKeyUsagePurpose::ServerAuth, rcgen::ExtendedKeyUsagePurpose::ClientAuth];
        let certificate = params.signed_by(&key, &issuer).unwrap();
        (certificate.pem(), key.serialize_pem())
    };
    Certificates { ca: ca.pem(), server: leaf(&["127.0.0.1"]), client: leaf(&[]) }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn client_certificates_are_shown_and_servers_checked() {
    let made = certificates();
    let server = Server::start_with("https", |folder| {
        let file = |name: &str, text: &str| {
            let path = folder.join(name);
            std::fs::write(&path, text).unwrap();
            path.to_string_lossy().into_owned()
        };
        vec![
            "--client-cert-auth".into(),
            format!("--trusted-ca-file={}", file("ca.crt", &made.ca)),
            format!("--cert-file={}", file("server.crt", &made.server.0)),
            format!("--key-file={}", file("server.key", &made.server.1)),
        ]
    });
    let tls = EtcdTls { ca_pem: Some(made.ca.clone()), client_pem: Some(made.client.clone()) };
    let store = server.store(EtcdOptions { tls: tls.clone(), ..server.options() }).await;
    put(&store, "a", "1").await;

    let short = Duration::from_secs(2);
    let other = certificates();
    for tls in [
        EtcdTls { client_pem: None, ..tls.clone() },
        EtcdTls { ca_pem: Some(other.ca.clone()), ..tls.clone() },
        EtcdTls { client_pem: Some(other.client.clone()), ..tls },
    ] {
        let refused = Etcd::new(EtcdOptions { tls, request_timeout: short, ..server.options() }).unwrap();
        assert!(refused.current_revision().await.is_err());
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn users_of_an_etcd_with_authentication_log_in() {
    let server = Server::start();
    server.store(server.options()).await;
    for arguments in [
        &["user", "add", "root:secret"][..],
        &["role", "add", "root"],
        &["user", "grant-role", "root", "root"],
        &["auth", "enable"],
    ] {
        server.etcdctl(arguments);
    }
    let user = Some(("root".to_owned(), "secret".to_owned()));
    let store = server.store(EtcdOptions { user, ..server.options() }).await;
    put(&store, "a", "1").await;
    let stranger = Etcd::new(server.options()).unwrap();
    let error = stranger.get(b"a").await.unwrap_err();
    assert_eq!(error, Error::Backend("etcdserver: user name is empty".into()));
}
