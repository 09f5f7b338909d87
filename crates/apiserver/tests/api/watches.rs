//! Watches through the in-process transport.

use std::sync::Arc;
use std::time::Duration;

use futures_util::StreamExt;
use k8s_openapi::api::core::v1::ConfigMap;
use knarr_api::kind::Kind;
use knarr_client::WatchEvent;
use knarr_client::transport::{ListOptions, WatchStream};

use crate::harness::{CONFIG_MAPS, Harness, MERGE, config_map};

async fn next(stream: &mut WatchStream) -> String {
    let event = tokio::time::timeout(Duration::from_secs(5), stream.next()).await.unwrap();
    match event {
        None => "end".into(),
        Some(Ok(WatchEvent::Added(o))) => format!("+{}", o.name()),
        Some(Ok(WatchEvent::Modified(o))) => format!("~{}", o.name()),
        Some(Ok(WatchEvent::Deleted(o))) => format!("-{}", o.name()),
        Some(Ok(WatchEvent::Bookmark(_))) => "bookmark".into(),
        Some(Err(e)) => format!("{e}"),
    }
}

fn from(version: &str) -> ListOptions {
    ListOptions { resource_version: Some(version.into()), ..ListOptions::default() }
}

#[tokio::test]
async fn list_then_watch_misses_nothing() {
    let h = Harness::new().await;
    let u = h.admin();
    u.post(CONFIG_MAPS, &config_map("a")).await.expect(201);
    let list = u.0.list(&ConfigMap::RESOURCE, Some("default"), &ListOptions::default()).await.unwrap();
    assert_eq!(list.items.len(), 1);
    u.post(CONFIG_MAPS, &config_map("b")).await.expect(201);
    let mut watch = u.0.watch(&ConfigMap::RESOURCE, None, &from(&list.resource_version)).await.unwrap();
    u.patch(&format!("{CONFIG_MAPS}/a"), MERGE, &serde_json::json!({"data": {"x": "y"}})).await.expect(200);
    u.delete(&format!("{CONFIG_MAPS}/b")).await.expect(200);
    for expected in ["+b", "~a", "-b"] {
        assert_eq!(next(&mut watch).await, expected);
    }
}

#[tokio::test]
async fn lists_share_the_caches_objects() {
    let h = Harness::new().await;
    let u = h.admin();
    u.post(CONFIG_MAPS, &config_map("a")).await.expect(201);
    let all = ListOptions::default();
    let one = u.0.list(&ConfigMap::RESOURCE, None, &all).await.unwrap();
    let two = h.user("other", &["system:masters"]).0.list(&ConfigMap::RESOURCE, None, &all).await.unwrap();
    assert!(Arc::ptr_eq(&one.items[0], &two.items[0]));
}

#[tokio::test]
async fn watches_without_a_version_begin_with_the_state() {
    let h = Harness::new().await;
    let u = h.admin();
    u.post(CONFIG_MAPS, &config_map("a")).await.expect(201);
    let selected = ListOptions { field_selector: Some("metadata.name=a".into()), ..ListOptions::default() };
    let mut watch = u.0.watch(&ConfigMap::RESOURCE, Some("default"), &selected).await.unwrap();
    assert_eq!(next(&mut watch).await, "+a");
    u.post(CONFIG_MAPS, &config_map("b")).await.expect(201);
    u.delete(&format!("{CONFIG_MAPS}/a")).await.expect(200);
    assert_eq!(next(&mut watch).await, "-a");
}

#[tokio::test]
async fn watches_end_in_time_with_a_bookmark() {
    let h = Harness::new().await;
    let u = h.admin();
    let options = ListOptions { timeout_seconds: Some(1), allow_bookmarks: true, ..from("0") };
    let mut watch = u.0.watch(&ConfigMap::RESOURCE, Some("default"), &options).await.unwrap();
    assert_eq!(next(&mut watch).await, "bookmark");
    assert_eq!(next(&mut watch).await, "end");
}

#[tokio::test]
async fn stopping_ends_watches() {
    let h = Harness::new().await;
    let mut watch = h.admin().0.watch(&ConfigMap::RESOURCE, Some("default"), &from("0")).await.unwrap();
    h.server.stop();
    assert_eq!(next(&mut watch).await, "end");
}

#[tokio::test]
async fn a_restarted_server_goes_on_with_watches_of_before() {
    let h = Harness::new().await;
    let u = h.admin();
    u.post(CONFIG_MAPS, &config_map("a")).await.expect(201);
    let list = u.0.list(&ConfigMap::RESOURCE, Some("default"), &ListOptions::default()).await.unwrap();
    u.post(CONFIG_MAPS, &config_map("b")).await.expect(201);
    u.patch(&format!("{CONFIG_MAPS}/a"), MERGE, &serde_json::json!({"data": {"x": "y"}})).await.expect(200);
    u.delete(&format!("{CONFIG_MAPS}/b")).await.expect(200);
    h.server.stop();

    let again = Harness::on(Arc::clone(&h.store), |_| ()).await;
    let v = again.admin();
    let mut watch = v.0.watch(&ConfigMap::RESOURCE, None, &from(&list.resource_version)).await.unwrap();
    v.post(CONFIG_MAPS, &config_map("c")).await.expect(201);
    for expected in ["+b", "~a", "-b", "+c"] {
        assert_eq!(next(&mut watch).await, expected);
    }

    // A compacted revision is expired.
    let now = again.store.current_revision().await.unwrap();
    again.store.compact(now).await.unwrap();
    let third = Harness::on(Arc::clone(&h.store), |_| ()).await;
    let refused = third.admin().0.watch(&ConfigMap::RESOURCE, None, &from(&list.resource_version)).await;
    let error = refused.err().expect("refused").to_string();
    assert!(error.contains(&format!("too old resource version: {} (", list.resource_version)), "{error}");
}
