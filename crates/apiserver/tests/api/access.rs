//! Authorization: default roles, refusals, escalation, reviews; every verb is checked.

use std::sync::Arc;

use async_trait::async_trait;
use knarr_apimachinery::status::StatusError;
use knarr_apiserver::LocalApi;
use knarr_storage::{Embedded, Options};
use serde_json::{Value, json};

use crate::harness::{CONFIG_MAPS, Harness, PODS, User, config_map, default_account, pod};

#[tokio::test]
async fn every_resource_and_verb_is_checked() {
    let h = Harness::new().await;
    let nobody = h.user("nobody", &[]);
    // Reviews about the user itself, which are open to everyone.
    let open = ["selfsubjectaccessreviews", "selfsubjectrulesreviews", "selfsubjectreviews"];
    for resource in knarr_api::resources::all() {
        let types = &resource.types;
        let mut cases: Vec<(String, &str)> = resource.verbs.iter().map(|v| (String::new(), *v)).collect();
        for sub in resource.subresources {
            cases.extend(sub.verbs.iter().map(|v| (format!("/{}", sub.name), *v)));
        }
        for (sub, verb) in cases {
            let named = !sub.is_empty() || matches!(verb, "get" | "update" | "patch" | "delete");
            let mut uri = types.path(Some("default"), named.then_some("x"));
            uri.push_str(&sub);
            if verb == "watch" {
                uri.push_str("?watch=true");
            }
            let method = match verb {
                "create" => http::Method::POST,
                "update" => http::Method::PUT,
                "patch" => http::Method::PATCH,
                "delete" | "deletecollection" => http::Method::DELETE,
                _ => http::Method::GET,
            };
            let reply = nobody.raw(method, &uri, "application/json", "{}").await;
            if open.contains(&types.plural) {
                assert_ne!(reply.code, 403, "{verb} {uri}");
                continue;
            }
            assert_eq!(reply.code, 403, "{verb} {uri}: {}", reply.body);
            let expected = format!(
                "User \"nobody\" cannot {verb} resource \"{}{sub}\" in API group \"{}\"",
                types.plural, types.group
            );
            assert!(reply.message().contains(&expected), "{}", reply.message());
        }
    }
}

#[tokio::test]
async fn roles_grant_what_they_say() {
    let h = Harness::new().await;
    let (admin, jane) = (h.admin(), h.user("jane", &["readers"]));
    let refused = jane.get(PODS).await;
    assert_eq!(
        refused.message(),
        "pods is forbidden: User \"jane\" cannot list resource \"pods\" in API group \"\" in the namespace \"default\""
    );
    let binding = json!({
        "metadata": {"name": "readers"}, "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "view"},
        "subjects": [{"apiGroup": "rbac.authorization.k8s.io", "kind": "Group", "name": "readers"}],
    });
    admin
        .post("/apis/rbac.authorization.k8s.io/v1/namespaces/default/rolebindings", &binding)
        .await
        .expect(201);
    until_allowed(&jane, PODS).await;
    assert_eq!(jane.get("/api/v1/namespaces/kube-system/pods").await.code, 403);
    assert_eq!(jane.get("/api/v1/pods").await.code, 403);
    assert_eq!(jane.post(CONFIG_MAPS, &config_map("a")).await.code, 403);
    assert_eq!(jane.get("/api/v1/namespaces/default/secrets").await.code, 403);
    jane.get("/api").await.expect(200);
    assert_eq!(jane.get("/metrics").await.message(), "forbidden: User \"jane\" cannot get path \"/metrics\"");
}

#[tokio::test]
async fn nobody_grants_what_they_do_not_have() {
    let h = Harness::new().await;
    let (admin, jane) = (h.admin(), h.user("jane", &[]));
    let group = "rbac.authorization.k8s.io";
    let role = json!({"metadata": {"name": "granter"}, "rules": [
        {"verbs": ["*"], "apiGroups": [group], "resources": ["roles", "rolebindings"]}]});
    let base = format!("/apis/{group}/v1");
    admin.post(&format!("{base}/clusterroles"), &role).await.expect(201);
    let binding = json!({"metadata": {"name": "jane"}, "roleRef": {"apiGroup": group, "kind": "ClusterRole", "name": "granter"},
        "subjects": [{"apiGroup": group, "kind": "User", "name": "jane"}]});
    admin.post(&format!("{base}/clusterrolebindings"), &binding).await.expect(201);
    for _ in 0..100 {
        if jane.get(&format!("{base}/namespaces/default/roles")).await.code != 403 {
            break;
        }
        tokio::time::sleep(std::time::Duration::from_millis(10)).await;
    }
    // The granter's role covers `*`, which includes `escalate` and `bind`; a narrower role does not.
    let narrow = json!({"metadata": {"name": "granter"}, "rules": [
        {"verbs": ["create", "get", "list"], "apiGroups": [group], "resources": ["roles", "rolebindings"]}]});
    admin.put(&format!("{base}/clusterroles/granter"), &narrow).await.expect(200);
    let wanted = json!({"metadata": {"name": "r"}, "rules": [{"verbs": ["get"], "apiGroups": [""], "resources": ["secrets"]}]});
    let mut reply = jane.post(&format!("{base}/namespaces/default/roles?dryRun=All"), &wanted).await;
    for _ in 0..100 {
        if reply.code == 403 {
            break;
        }
        tokio::time::sleep(std::time::Duration::from_millis(10)).await;
        reply = jane.post(&format!("{base}/namespaces/default/roles?dryRun=All"), &wanted).await;
    }
    assert_eq!(reply.code, 403);
    assert_eq!(
        reply.message(),
        "roles.rbac.authorization.k8s.io \"r\" is forbidden: user \"jane\" (groups=[\"system:authenticated\"]) is attempting to grant RBAC permissions not currently held:\n{APIGroups:[\"\"], Resources:[\"secrets\"], Verbs:[\"get\"]}"
    );
}

#[tokio::test]
async fn nodes_see_their_own() {
    let h = Harness::new().await;
    let (admin, node) = (h.admin(), h.user("system:node:n1", &["system:nodes"]));
    default_account(&admin).await;
    for (name, on) in [("mine", "n1"), ("other", "n2")] {
        let mut body = pod(name);
        body["spec"]["volumes"] = json!([
            {"name": "s", "secret": {"secretName": format!("{name}-secret")}},
            {"name": "t", "projected": {"sources": [{"serviceAccountToken": {"path": "token"}}]}}]);
        admin.post(PODS, &body).await.expect(201);
        let binding = json!({"metadata": {"name": name}, "target": {"kind": "Node", "name": on}});
        admin.post(&format!("{PODS}/{name}/binding"), &binding).await.expect(201);
        let secret = json!({"metadata": {"name": format!("{name}-secret")}});
        admin.post("/api/v1/namespaces/default/secrets", &secret).await.expect(201);
    }
    // An answered write may reach the authorizer's cache a moment later.
    admin.get(PODS).await.expect(200);
    node.get("/api/v1/namespaces/default/secrets/mine-secret").await.expect(200);
    assert_eq!(node.get("/api/v1/namespaces/default/secrets/other-secret").await.code, 403);
    assert_eq!(node.get("/api/v1/namespaces/default/secrets").await.code, 403);
    let own = node.get("/api/v1/pods?fieldSelector=spec.nodeName%3Dn1").await.expect(200);
    assert_eq!(own["items"].as_array().unwrap().len(), 1);
    let elsewhere = node.get("/api/v1/pods?fieldSelector=spec.nodeName%3Dn2").await.expect(403);
    let why = "scope: node: can only list/watch pods with spec.nodeName field selector";
    assert!(elsewhere["message"].as_str().unwrap().ends_with(why), "{elsewhere}");
    // No pod is on both nodes, so either node may list with this selector.
    for terms in ["spec.nodeName%3Dn1,spec.nodeName%3Dm", "spec.nodeName%3Dn1,spec.nodeName%3Dn2"] {
        let none = node.get(&format!("/api/v1/pods?fieldSelector={terms}")).await.expect(200);
        assert_eq!(none["items"], json!([]), "{terms}");
    }
    // By the role knarr:node-proxier: a node needs the other nodes to reach their pods.
    node.get("/api/v1/nodes").await.expect(200);
    let register = |name: &str| json!({"metadata": {"name": name}});
    let own = node.post("/api/v1/nodes", &register("n1")).await.expect(201);
    assert_eq!(own["spec"]["taints"][0]["key"], "node.kubernetes.io/not-ready");
    assert_eq!(node.post("/api/v1/nodes", &register("n2")).await.code, 403);
    let mut uids = Vec::new();
    for name in ["mine", "other"] {
        let pod = admin.get(&format!("{PODS}/{name}")).await.expect(200);
        uids.push((name, pod["metadata"]["uid"].clone()));
    }
    let token = |pod: &str| {
        let uid = uids.iter().find(|(name, _)| *name == pod).map(|(_, uid)| uid.clone());
        json!({"spec": {"boundObjectRef": {"apiVersion": "v1", "kind": "Pod", "name": pod, "uid": uid}}})
    };
    let uri = "/api/v1/namespaces/default/serviceaccounts/default/token";
    node.post(uri, &token("mine")).await.expect(201);
    assert_eq!(node.post(uri, &token("other")).await.code, 403);
    assert_eq!(node.post(uri, &json!({"spec": {}})).await.code, 403);
    let status = json!({"status": {"phase": "Running"}});
    node.patch(&format!("{PODS}/mine/status"), "merge-patch+json", &status).await.expect(200);
    let refused = node.patch(&format!("{PODS}/other/status"), "merge-patch+json", &status).await;
    assert_eq!(refused.code, 403, "{}", refused.body);
}

#[tokio::test]
async fn a_node_reads_what_is_the_clusters_by_its_own_path() {
    let h = Harness::new().await;
    let (admin, node) = (h.admin(), h.user("system:node:n1", &["system:nodes"]));
    let attachment = json!({"metadata": {"name": "a"},
        "spec": {"attacher": "d", "nodeName": "n1", "source": {"persistentVolumeName": "v"}}});
    admin.post("/apis/storage.k8s.io/v1/volumeattachments", &attachment).await.expect(201);
    let slice = json!({"metadata": {"name": "s"}, "spec": {"driver": "d", "nodeName": "n1", "devices": [],
        "pool": {"name": "n1", "generation": 1, "resourceSliceCount": 1}}});
    admin.post("/apis/resource.k8s.io/v1/resourceslices", &slice).await.expect(201);
    default_account(&admin).await;
    let mut user = pod("user");
    user["spec"]["nodeName"] = json!("n1");
    user["spec"]["volumes"] = json!([{"name": "v", "persistentVolumeClaim": {"claimName": "c"}}]);
    admin.post(PODS, &user).await.expect(201);
    let volume = json!({"metadata": {"name": "v"}, "spec": {"accessModes": ["ReadWriteOnce"],
        "capacity": {"storage": "1Gi"}, "hostPath": {"path": "/v"},
        "claimRef": {"namespace": "default", "name": "c"}}});
    admin.post("/api/v1/persistentvolumes", &volume).await.expect(201);
    // A list is answered once the caches contain every earlier write, and the authorizer reads the caches.
    admin.get("/api/v1/persistentvolumes").await.expect(200);
    for (group, object) in [
        ("/api/v1", "persistentvolumes/v"),
        ("/apis/storage.k8s.io/v1", "volumeattachments/a"),
        ("/apis/resource.k8s.io/v1", "resourceslices/s"),
    ] {
        node.get(&format!("{group}/{object}")).await.expect(200);
        let below = node.get(&format!("{group}/namespaces/default/{object}")).await.expect(403);
        let why = "no relationship found between node 'n1' and this object";
        assert!(below["message"].as_str().unwrap().ends_with(why), "{below}");
    }
}

#[tokio::test]
async fn reviews_go_through_admission() {
    let h = Harness::new().await;
    // NodeRestriction refuses writes by a user in the group of nodes without a node name.
    let (unnamed, named) =
        (h.user("system:node:", &["system:nodes"]), h.user("system:node:n1", &["system:nodes"]));
    let pods = json!({"resourceAttributes": {"verb": "get", "resource": "pods"}});
    for (resource, spec) in [
        ("authentication.k8s.io/v1/selfsubjectreviews", json!({})),
        ("authorization.k8s.io/v1/selfsubjectaccessreviews", pods),
        ("authorization.k8s.io/v1/selfsubjectrulesreviews", json!({"namespace": "default"})),
    ] {
        let (uri, review) = (format!("/apis/{resource}"), json!({"spec": spec}));
        let refused = unnamed.post(&uri, &review).await.expect(403);
        let why = "\"Unknown\" is forbidden: could not determine node from user \"system:node:\"";
        assert!(refused["message"].as_str().unwrap().ends_with(why), "{refused}");
        named.post(&uri, &review).await.expect(201);
    }
}

#[tokio::test]
async fn a_refusal_says_whose_it_is() {
    let h = Harness::new().await;
    let admin = h.admin();
    let group = "rbac.authorization.k8s.io";
    let binding = json!({"metadata": {"name": "dangling"},
        "roleRef": {"apiGroup": group, "kind": "ClusterRole", "name": "missing"},
        "subjects": [{"kind": "User", "apiGroup": group, "name": "system:node:n1"}]});
    admin.post(&format!("/apis/{group}/v1/clusterrolebindings"), &binding).await.expect(201);
    admin.get(&format!("/apis/{group}/v1/clusterrolebindings")).await.expect(200);
    let node = h.user("system:node:n1", &["system:nodes"]);
    let missing = format!("rbac: RBAC: clusterrole.{group} \"missing\" not found");
    for (uri, why) in [
        (
            "/api/v1/secrets",
            format!(
                "secrets is forbidden: User \"system:node:n1\" cannot list resource \"secrets\" in API group \"\" at \
                 the cluster scope: node: can only read namespaced object of this type\n{missing}"
            ),
        ),
        ("/nope", format!("forbidden: User \"system:node:n1\" cannot get path \"/nope\": {missing}")),
        (
            "/api/v1//pods",
            format!(
                "forbidden: User \"system:node:n1\" cannot get resource \"\" in API group \"\" at the cluster scope: \
                 {missing}"
            ),
        ),
    ] {
        assert_eq!(node.get(uri).await.expect(403)["message"], why, "{uri}");
    }
}

#[tokio::test]
async fn reviews_answer() {
    let h = Harness::new().await;
    let admin = h.admin();
    let base = "/apis/authorization.k8s.io/v1";
    let ask = |group: &str| {
        json!({"spec": {"user": "somebody", "groups": [group],
        "resourceAttributes": {"verb": "get", "resource": "pods", "namespace": "default"}}})
    };
    let yes = admin.post(&format!("{base}/subjectaccessreviews"), &ask("system:masters")).await.expect(201);
    assert_eq!(yes["status"]["allowed"], true);
    let no = admin.post(&format!("{base}/subjectaccessreviews"), &ask("others")).await.expect(201);
    assert_eq!(no["status"]["allowed"], false);
    let jane = h.user("jane", &[]);
    let own = json!({"spec": {"nonResourceAttributes": {"verb": "get", "path": "/version"}}});
    let own = jane.post(&format!("{base}/selfsubjectaccessreviews"), &own).await.expect(201);
    assert_eq!(own["status"]["allowed"], true);
    let rules = jane
        .post(&format!("{base}/selfsubjectrulesreviews"), &json!({"spec": {"namespace": "default"}}))
        .await
        .expect(201);
    assert!(!rules["status"]["resourceRules"].as_array().unwrap().is_empty());
    let me = jane.post("/apis/authentication.k8s.io/v1/selfsubjectreviews", &json!({})).await.expect(201);
    assert_eq!(me["status"]["userInfo"]["username"], "jane");
}

#[tokio::test]
async fn impersonation_needs_the_right() {
    let h = Harness::new().await;
    let ask = || {
        http::Request::builder()
            .uri(PODS)
            .header("impersonate-user", "jane")
            .body(Default::default())
            .unwrap()
    };
    let reply = h.admin().send(ask()).await;
    assert!(reply.message().contains("User \"jane\" cannot list"), "{}", reply.message());
    let reply = h.user("bob", &[]).send(ask()).await;
    assert_eq!(
        reply.message(),
        "pods is forbidden: User \"bob\" cannot impersonate-on:user-info:list resource \"pods\" in API group \"\" in the namespace \"default\""
    );
}

/// Waits until the user is authorized: the index of roles follows the watch cache.
async fn until_allowed(user: &User, uri: &str) {
    for _ in 0..100 {
        if user.get(uri).await.code == 200 {
            return;
        }
        tokio::time::sleep(std::time::Duration::from_millis(10)).await;
    }
    user.get(uri).await.expect(200);
}

/// A local API that answers with the posted spec.
struct Echo;

#[async_trait]
impl LocalApi for Echo {
    fn group(&self) -> &'static str {
        "echo.example.com"
    }

    fn version(&self) -> &'static str {
        "v1"
    }

    fn resources(&self) -> &'static [(&'static str, &'static str)] {
        &[("echoes", "Echo")]
    }

    async fn answer(&self, _: &str, _: &str, spec: Value) -> Result<Value, StatusError> {
        Ok(spec)
    }
}

#[tokio::test]
async fn a_right_in_one_namespace_is_not_enough_for_questions_about_the_cluster() {
    let store = Arc::new(Embedded::memory(Options::default()));
    let h = Harness::on(store, |config| config.local_apis = vec![Arc::new(Echo)]).await;
    let (admin, jane) = (h.admin(), h.user("jane", &[]));
    let uri = "/apis/echo.example.com/v1/namespaces/default/echoes";
    let question =
        json!({"apiVersion": "echo.example.com/v1", "kind": "Echo", "metadata": {}, "spec": {"a": 1}});
    assert_eq!(admin.post(uri, &question).await.expect(201)["status"], json!({"a": 1}));
    let role = json!({"metadata": {"name": "all"}, "rules": [{"verbs": ["*"], "apiGroups": ["*"], "resources": ["*"]}]});
    let rbac = "/apis/rbac.authorization.k8s.io/v1";
    admin.post(&format!("{rbac}/clusterroles"), &role).await.expect(201);
    let binding = json!({
        "metadata": {"name": "all"}, "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "all"},
        "subjects": [{"apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": "jane"}],
    });
    admin.post(&format!("{rbac}/namespaces/default/rolebindings"), &binding).await.expect(201);
    until_allowed(&jane, PODS).await;
    let refused = jane.post(uri, &question).await;
    let words = "User \"jane\" cannot create resource \"echoes\" in API group \"echo.example.com\" at the cluster scope";
    assert!(refused.message().contains(words), "{}", refused.body);
    refused.expect(403);
    admin.post(&format!("{rbac}/clusterrolebindings"), &binding).await.expect(201);
    until_allowed(&jane, "/api/v1/pods").await;
    jane.post(uri, &question).await.expect(201);
}
