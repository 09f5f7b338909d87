//! Lists: selectors, pages, resourceVersions, forms.

use serde_json::{Value, json};

use crate::harness::{CONFIG_MAPS, Harness, PODS, User, config_map, default_account, pod};

async fn five(u: &User) {
    for name in ["a", "b", "c", "d", "e"] {
        let mut body = config_map(name);
        body["metadata"]["labels"] = json!({"odd": (name == "a" || name == "c" || name == "e").to_string()});
        u.post(CONFIG_MAPS, &body).await.expect(201);
    }
}

fn names(list: &Value) -> Vec<&str> {
    list["items"].as_array().unwrap().iter().map(|i| i["metadata"]["name"].as_str().unwrap()).collect()
}

#[tokio::test]
async fn selectors() {
    let h = Harness::new().await;
    let u = h.admin();
    five(&u).await;
    let list = u.get(CONFIG_MAPS).await.expect(200);
    assert_eq!((list["kind"].as_str(), list["apiVersion"].as_str()), (Some("ConfigMapList"), Some("v1")));
    assert_eq!(names(&list), ["a", "b", "c", "d", "e"]);
    for (query, expected) in [
        ("labelSelector=odd%3Dtrue", vec!["a", "c", "e"]),
        ("labelSelector=odd!%3Dtrue", vec!["b", "d"]),
        ("fieldSelector=metadata.name%3Db", vec!["b"]),
        ("labelSelector=none", vec![]),
    ] {
        let list = u.get(&format!("{CONFIG_MAPS}?{query}")).await.expect(200);
        assert_eq!(names(&list), expected, "{query}");
        let everywhere = u.get(&format!("/api/v1/configmaps?{query}")).await.expect(200);
        let mut found = names(&everywhere);
        // The server itself has some objects.
        found.retain(|name| !name.starts_with("kube-"));
        assert_eq!(found, expected, "{query}");
    }
    let unknown = u.get(&format!("{CONFIG_MAPS}?fieldSelector=data.k%3Dv")).await;
    assert_eq!(unknown.code, 400);
    assert_eq!(u.get(&format!("{CONFIG_MAPS}?labelSelector=%3D%3D")).await.code, 400);
}

#[tokio::test]
async fn pages_are_one_state() {
    let h = Harness::new().await;
    let u = h.admin();
    five(&u).await;
    let first = u.get(&format!("{CONFIG_MAPS}?limit=2")).await.expect(200);
    assert_eq!(names(&first), ["a", "b"]);
    assert_eq!(first["metadata"]["remainingItemCount"], 3);
    let token = first["metadata"]["continue"].as_str().unwrap().to_owned();
    let again = u.get(&format!("{CONFIG_MAPS}?limit=2&continue={token}")).await.expect(200);
    assert_eq!(names(&again), ["c", "d"]);
    // Changes between two pages are not visible.
    u.delete(&format!("{CONFIG_MAPS}/c")).await.expect(200);
    u.post(CONFIG_MAPS, &config_map("cc")).await.expect(201);
    let second = u.get(&format!("{CONFIG_MAPS}?limit=2&continue={token}")).await.expect(200);
    assert_eq!(names(&second), ["c", "d"]);
    assert_eq!(second["metadata"]["resourceVersion"], first["metadata"]["resourceVersion"]);
    let token = second["metadata"]["continue"].as_str().unwrap();
    let last = u.get(&format!("{CONFIG_MAPS}?limit=2&continue={token}")).await.expect(200);
    assert_eq!(names(&last), ["e"]);
    assert_eq!(last["metadata"].get("continue"), None);
    assert_eq!(u.get(&format!("{CONFIG_MAPS}?limit=2&continue=rubbish")).await.code, 400);
}

#[tokio::test]
async fn versions() {
    let h = Harness::new().await;
    let u = h.admin();
    five(&u).await;
    let list = u.get(CONFIG_MAPS).await.expect(200);
    let version = list["metadata"]["resourceVersion"].as_str().unwrap().to_owned();
    u.delete(&format!("{CONFIG_MAPS}/a")).await.expect(200);
    let exact = format!("{CONFIG_MAPS}?resourceVersion={version}&resourceVersionMatch=Exact");
    assert_eq!(names(&u.get(&exact).await.expect(200)).len(), 5);
    let newer = format!("{CONFIG_MAPS}?resourceVersion={version}&resourceVersionMatch=NotOlderThan");
    assert!(u.get(&newer).await.expect(200)["items"].is_array());
    // A list without a resourceVersion contains every answered write.
    assert_eq!(names(&u.get(CONFIG_MAPS).await.expect(200)), ["b", "c", "d", "e"]);
    for query in [
        "resourceVersionMatch=Exact",
        "resourceVersion=0&resourceVersionMatch=Exact",
        "resourceVersionMatch=Some",
    ] {
        assert_eq!(u.get(&format!("{CONFIG_MAPS}?{query}")).await.code, 422, "{query}");
    }
    h.store.compact(h.store.current_revision().await.unwrap()).await.unwrap();
    let gone = u.get(&exact).await;
    assert_eq!((gone.code, gone.body["reason"].as_str()), (410, Some("Expired")));
}

#[tokio::test]
async fn tables_and_metadata() {
    let h = Harness::new().await;
    let u = h.admin();
    default_account(&u).await;
    u.post(PODS, &pod("p")).await.expect(201);
    let accept = "application/json;as=Table;v=v1;g=meta.k8s.io,application/json";
    let table = u.get_as(PODS, accept).await.expect(200);
    assert_eq!(table["kind"], "Table");
    assert_eq!(table["columnDefinitions"][0]["name"], "Name");
    assert_eq!(table["rows"][0]["cells"][0], "p");
    assert_eq!(table["rows"][0]["object"]["kind"], "PartialObjectMetadata");
    let one = u.get_as(&format!("{PODS}/p?includeObject=Object"), accept).await.expect(200);
    assert_eq!(one["rows"][0]["object"]["kind"], "Pod");
    let partial = "application/json;as=PartialObjectMetadataList;v=v1;g=meta.k8s.io";
    let list = u.get_as(PODS, partial).await.expect(200);
    assert_eq!(list["kind"], "PartialObjectMetadataList");
    assert_eq!(list["items"][0]["kind"], "PartialObjectMetadata");
    assert_eq!(list["items"][0].get("spec"), None);
}

/// Items of a built-in list omit apiVersion and kind; items of custom resources have them.
#[tokio::test]
async fn items_of_a_list_do_not_say_what_they_are() {
    let h = Harness::new().await;
    let u = h.admin();
    five(&u).await;
    let list = u.get(CONFIG_MAPS).await.expect(200);
    assert_eq!((list["kind"].as_str(), list["apiVersion"].as_str()), (Some("ConfigMapList"), Some("v1")));
    for item in list["items"].as_array().unwrap() {
        let members: Vec<&String> = item.as_object().unwrap().keys().collect();
        assert_eq!(members, ["data", "metadata"]);
    }
    let one = u.get(&format!("{CONFIG_MAPS}/a")).await.expect(200);
    assert_eq!((one["kind"].as_str(), one["apiVersion"].as_str()), (Some("ConfigMap"), Some("v1")));
}

#[tokio::test]
async fn collections_are_deleted() {
    let h = Harness::new().await;
    let u = h.admin();
    five(&u).await;
    u.delete(&format!("{CONFIG_MAPS}?labelSelector=odd%3Dtrue")).await.expect(200);
    assert_eq!(names(&u.get(CONFIG_MAPS).await.expect(200)), ["b", "d"]);
}

#[tokio::test]
async fn events_have_two_forms() {
    let h = Harness::new().await;
    let u = h.admin();
    let event = json!({
        "metadata": {"name": "e", "namespace": "default"}, "reason": "Started", "message": "hello", "type": "Normal",
        "involvedObject": {"kind": "Pod", "name": "p", "namespace": "default"}, "source": {"component": "kubelet"},
        "firstTimestamp": "2026-01-01T00:00:00Z", "lastTimestamp": "2026-01-01T00:00:00Z", "count": 1,
    });
    u.post("/api/v1/namespaces/default/events", &event).await.expect(201);
    let other = u.get("/apis/events.k8s.io/v1/namespaces/default/events").await.expect(200);
    assert_eq!(other["items"][0]["note"], "hello");
    assert_eq!(other["items"][0]["regarding"]["name"], "p");
    let selected = u.get("/apis/events.k8s.io/v1/events?fieldSelector=regarding.name%3Dp").await.expect(200);
    assert_eq!(selected["items"].as_array().unwrap().len(), 1);
    let none = u.get("/api/v1/events?fieldSelector=involvedObject.name%3Dq").await.expect(200);
    assert!(none["items"].as_array().unwrap().is_empty());
    let kv = h.store.get(b"/registry/core/events/default/e").await.unwrap().unwrap();
    assert!(kv.lease.is_some());
}

#[tokio::test]
async fn mistakes_in_reads_are_named_as_upstream_names_them() {
    let h = Harness::new().await;
    let u = h.admin();
    let exact0 = "ListOptions.meta.k8s.io \"\" is invalid: resourceVersionMatch: Forbidden: resourceVersionMatch \"exact\" is forbidden for resourceVersion \"0\"";
    let both = "ListOptions.meta.k8s.io \"\" is invalid: [resourceVersionMatch: Forbidden: resourceVersionMatch is forbidden unless resourceVersion is provided, sendInitialEvents: Forbidden: sendInitialEvents is forbidden for list]";
    let continued = "ListOptions.meta.k8s.io \"\" is invalid: resourceVersionMatch: Forbidden: resourceVersionMatch is forbidden when continue is provided";
    let version = "resourceVersion: Invalid value: \"x\": strconv.ParseUint: parsing \"x\": invalid syntax";
    for (query, code, message) in [
        ("?resourceVersion=0&resourceVersionMatch=Exact", 422, exact0),
        ("?sendInitialEvents=true&resourceVersionMatch=NotOlderThan", 422, both),
        ("?watch=true&continue=xx", 422, continued),
        ("?resourceVersion=x", 400, &format!("invalid resource version: {version}")),
        ("?watch=true&resourceVersion=x", 500, version),
        ("/a?resourceVersion=x", 500, version),
        (
            "?continue=%25%25",
            400,
            "invalid continue token: continue key is not valid: illegal base64 data at input byte 0",
        ),
        (
            "?continue=xx",
            400,
            "invalid continue token: continue key is not valid: invalid character 'Ç' looking for beginning of value",
        ),
    ] {
        let reply = u.get(&format!("{CONFIG_MAPS}{query}")).await;
        assert_eq!((reply.code, reply.message()), (code, message), "{query}");
    }
}

#[tokio::test]
async fn any_version_is_answered_whole() {
    let h = Harness::new().await;
    let u = h.admin();
    for name in ["a", "b", "c"] {
        u.post(CONFIG_MAPS, &config_map(name)).await.expect(201);
    }
    for (query, items) in [("?limit=2", 2), ("?limit=2&resourceVersion=0", 3)] {
        let list = u.get(&format!("{CONFIG_MAPS}{query}")).await.expect(200);
        assert_eq!(list["items"].as_array().map(Vec::len), Some(items), "{query}");
    }
}

/// Returns how many objects of this kind lists have read from the store.
async fn fetched(u: &User) -> u64 {
    let metrics = u.get("/metrics").await.body;
    let start = "apiserver_storage_list_fetched_objects_total{group=\"\",index=\"\",resource=\"configmaps\",storage=\"etcd\"} ";
    let mut lines = metrics.as_str().unwrap().lines();
    lines.find_map(|line| line.strip_prefix(start)).map_or(0, |count| count.parse().unwrap())
}

#[tokio::test]
async fn a_page_of_an_old_state_reads_little_more_than_it_shows() {
    let h = Harness::new().await;
    let u = h.admin();
    five(&u).await;
    let old =
        u.get(CONFIG_MAPS).await.expect(200)["metadata"]["resourceVersion"].as_str().unwrap().to_owned();
    u.delete(&format!("{CONFIG_MAPS}/c")).await.expect(200);
    // The cache contains the writes from here on, so only the store still has the old state.
    u.get(CONFIG_MAPS).await.expect(200);
    let page = format!("{CONFIG_MAPS}?limit=1&resourceVersion={old}&resourceVersionMatch=Exact");
    let first = u.get(&page).await.expect(200);
    assert_eq!(names(&first), ["a"]);
    assert_eq!(first["metadata"]["remainingItemCount"], 4);
    assert_eq!(fetched(&u).await, 2);
    let token = first["metadata"]["continue"].as_str().unwrap();
    let rest = u.get(&format!("{CONFIG_MAPS}?limit=3&continue={token}")).await.expect(200);
    assert_eq!(names(&rest), ["b", "c", "d"]);
    assert_eq!((&rest["metadata"]["remainingItemCount"], fetched(&u).await), (&json!(1), 6));
    let odd = u.get(&format!("{page}&labelSelector=odd%3Dtrue")).await.expect(200);
    assert_eq!(names(&odd), ["a"]);
    let token = odd["metadata"]["continue"].as_str().unwrap();
    let next =
        u.get(&format!("{CONFIG_MAPS}?limit=2&labelSelector=odd%3Dtrue&continue={token}")).await.expect(200);
    assert_eq!(names(&next), ["c", "e"]);
    assert!(next["metadata"].get("continue").is_none_or(|token| token == ""));
}
