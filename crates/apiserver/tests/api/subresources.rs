//! Status, scale, binding, eviction, tokens.

use serde_json::{Value, json};

use crate::harness::{APPLY, Harness, MERGE, PODS, default_account, pod};

const DEPLOYMENTS: &str = "/apis/apps/v1/namespaces/default/deployments";

fn deployment() -> serde_json::Value {
    json!({
        "apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "d"},
        "spec": {"replicas": 2, "selector": {"matchLabels": {"a": "b"}}, "template": {
            "metadata": {"labels": {"a": "b"}}, "spec": {"containers": [{"name": "c", "image": "i"}]}}},
    })
}

#[tokio::test]
async fn status_and_spec_are_apart() {
    let h = Harness::new().await;
    let u = h.admin();
    let made = u.post(DEPLOYMENTS, &deployment()).await.expect(201);
    assert_eq!(made["metadata"]["generation"], 1);
    let uri = format!("{DEPLOYMENTS}/d");
    let both = json!({"spec": {"replicas": 5}, "status": {"replicas": 4}});
    let spec = u.patch(&uri, MERGE, &both).await.expect(200);
    assert_eq!(
        (&spec["spec"]["replicas"], &spec["status"]["replicas"]),
        (&json!(5), &serde_json::Value::Null)
    );
    assert_eq!(spec["metadata"]["generation"], 2);
    let both = json!({"spec": {"replicas": 7}, "status": {"replicas": 4}});
    let status = u.patch(&format!("{uri}/status"), MERGE, &both).await.expect(200);
    assert_eq!((&status["spec"]["replicas"], &status["status"]["replicas"]), (&json!(5), &json!(4)));
    assert_eq!(status["metadata"]["generation"], 2);
    u.get(&format!("{uri}/status")).await.expect(200);
}

#[tokio::test]
async fn scales() {
    let h = Harness::new().await;
    let u = h.admin();
    u.post(DEPLOYMENTS, &deployment()).await.expect(201);
    let uri = format!("{DEPLOYMENTS}/d/scale");
    let mut scale = u.get(&uri).await.expect(200);
    assert_eq!((scale["kind"].as_str(), scale["status"]["selector"].as_str()), (Some("Scale"), Some("a=b")));
    scale["spec"]["replicas"] = 3.into();
    let after = u.put(&uri, &scale).await.expect(200);
    assert_eq!(after["spec"]["replicas"], 3);
    assert_eq!(u.put(&uri, &scale).await.code, 409);
    let patched = u.patch(&uri, MERGE, &json!({"spec": {"replicas": 6}})).await.expect(200);
    assert_eq!(patched["spec"]["replicas"], 6);
    let negative = u.patch(&uri, MERGE, &json!({"spec": {"replicas": -1}})).await;
    assert_eq!(negative.code, 422);
    assert_eq!(u.get(&format!("{DEPLOYMENTS}/d")).await.expect(200)["spec"]["replicas"], 6);
}

#[tokio::test]
async fn pods_are_bound_once() {
    let h = Harness::new().await;
    let u = h.admin();
    default_account(&u).await;
    u.post(PODS, &pod("p")).await.expect(201);
    let binding = json!({"apiVersion": "v1", "kind": "Binding", "metadata": {"name": "p"}, "target": {"kind": "Node", "name": "n"}});
    let reply = u.post("/api/v1/namespaces/default/bindings", &binding).await.expect(201);
    assert_eq!((&reply["status"], &reply["code"]), (&json!("Success"), &json!(201)));
    let bound = u.get(&format!("{PODS}/p")).await.expect(200);
    assert_eq!(bound["spec"]["nodeName"], "n");
    assert_eq!(bound["status"]["conditions"][0]["type"], "PodScheduled");
    let again = u.post(&format!("{PODS}/p/binding"), &binding).await;
    assert_eq!(again.code, 409);
}

#[tokio::test]
async fn evictions_respect_budgets() {
    let h = Harness::new().await;
    let u = h.admin();
    default_account(&u).await;
    u.post(PODS, &pod("p")).await.expect(201);
    let running =
        json!({"status": {"phase": "Running", "conditions": [{"type": "Ready", "status": "True"}]}});
    u.patch(&format!("{PODS}/p/status"), MERGE, &running).await.expect(200);
    let budgets = "/apis/policy/v1/namespaces/default/poddisruptionbudgets";
    let budget = json!({"metadata": {"name": "b"}, "spec": {"minAvailable": 1, "selector": {"matchLabels": {"app": "p"}}}});
    let made = u.post(budgets, &budget).await.expect(201);
    let generation = made["metadata"]["generation"].clone();
    let status = json!({"status": {"observedGeneration": generation, "disruptionsAllowed": 0, "currentHealthy": 1, "desiredHealthy": 1, "expectedPods": 1}});
    u.patch(&format!("{budgets}/b/status"), MERGE, &status).await.expect(200);
    u.get(budgets).await.expect(200);
    let eviction = json!({"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": "p"}});
    let refused = u.post(&format!("{PODS}/p/eviction"), &eviction).await;
    assert_eq!(
        (refused.code, refused.message()),
        (429, "Cannot evict pod as it would violate the pod's disruption budget.")
    );
    assert_eq!(
        refused.body["details"]["causes"][0]["message"],
        "The disruption budget b needs 1 healthy pods and has 1 currently"
    );
    u.patch(&format!("{budgets}/b/status"), MERGE, &json!({"status": {"disruptionsAllowed": 1}}))
        .await
        .expect(200);
    let unknown = json!({"apiVersion": "policy/v2", "kind": "Eviction", "metadata": {"name": "p"}});
    assert_eq!(u.post(&format!("{PODS}/p/eviction"), &unknown).await.code, 400);
    let old = json!({"apiVersion": "policy/v1beta1", "kind": "Eviction", "metadata": {"name": "p"}});
    u.post(&format!("{PODS}/p/eviction"), &old).await.expect(201);
    assert_eq!(u.get(&format!("{PODS}/p")).await.code, 404);
    let after = u.get(&format!("{budgets}/b")).await.expect(200);
    assert_eq!(after["status"]["disruptionsAllowed"], 0);
}

#[tokio::test]
async fn what_an_eviction_says_of_deletion_is_checked() {
    let h = Harness::new().await;
    let u = h.admin();
    default_account(&u).await;
    let mut bound = pod("p");
    bound["spec"]["nodeName"] = "n".into();
    u.post(PODS, &bound).await.expect(201);
    let running = json!({"status": {"phase": "Running"}});
    u.patch(&format!("{PODS}/p/status"), MERGE, &running).await.expect(200);
    let evict = async |options: Value| {
        let eviction = json!({"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": "p"}, "deleteOptions": options});
        u.post(&format!("{PODS}/p/eviction"), &eviction).await
    };
    let before = u.get(&format!("{PODS}/p")).await.expect(200);
    for (options, field) in [
        (json!({"propagationPolicy": "Sideways"}), "propagationPolicy: Unsupported value: \"Sideways\""),
        (
            json!({"propagationPolicy": "Orphan", "orphanDependents": true}),
            "propagationPolicy: Invalid value",
        ),
        (json!({"dryRun": ["Some"]}), "dryRun: Unsupported value"),
    ] {
        let refused = evict(options).await;
        assert_eq!(refused.code, 422, "{}", refused.body);
        assert!(refused.message().contains(field), "{}", refused.message());
    }
    assert_eq!(u.get(&format!("{PODS}/p")).await.expect(200), before);
    evict(json!({"gracePeriodSeconds": -5})).await.expect(201);
    let going = u.get(&format!("{PODS}/p")).await.expect(200);
    assert_eq!(going["metadata"]["deletionGracePeriodSeconds"], 1);
}

#[tokio::test]
async fn tokens_are_issued_and_reviewed() {
    let h = Harness::new().await;
    let u = h.admin();
    default_account(&u).await;
    u.post(PODS, &pod("p")).await.expect(201);
    let uri = "/api/v1/namespaces/default/serviceaccounts/default/token";
    let ask = json!({"spec": {"expirationSeconds": 600, "boundObjectRef": {"apiVersion": "v1", "kind": "Pod", "name": "p"}}});
    let issued = u.post(uri, &ask).await.expect(201);
    let token = issued["status"]["token"].as_str().unwrap();
    let review = || json!({"spec": {"token": token}});
    let reviews = "/apis/authentication.k8s.io/v1/tokenreviews";
    let known = u.post(reviews, &review()).await.expect(201);
    assert_eq!(known["status"]["authenticated"], true);
    assert_eq!(known["status"]["user"]["username"], "system:serviceaccount:default:default");
    assert_eq!(known["status"]["user"]["extra"]["authentication.kubernetes.io/pod-name"], json!(["p"]));
    // The token is invalid once its pod is deleted.
    u.delete_with(&format!("{PODS}/p"), &json!({"gracePeriodSeconds": 0})).await.expect(200);
    u.get(PODS).await.expect(200);
    let gone = u.post(reviews, &review()).await.expect(201);
    assert_eq!(gone["status"].get("authenticated"), None);
    let short = u.post(uri, &json!({"spec": {"expirationSeconds": 5}})).await;
    assert!(
        short.message().contains("may not specify a duration less than 10 minutes"),
        "{}",
        short.message()
    );
    let attested = json!({"spec": {"attestations": {"a": ["b"]}}});
    let refused = u.post(uri, &attested).await;
    let why = "attestations may only be specified with a webhook bound object reference";
    assert!(refused.message().contains(why), "{}", refused.message());
    let keys = u.get("/openid/v1/jwks").await.expect(200);
    assert_eq!(keys["keys"][0]["kty"], "EC");
    let other = u.post(uri, &json!({"metadata": {"uid": "other"}})).await;
    assert_eq!(other.code, 409);
    let why = "the UID in the token request (other) does not match the UID of the service account (";
    assert!(other.message().contains(why), "{}", other.message());
    let account = u.get("/api/v1/namespaces/default/serviceaccounts/default").await.expect(200);
    u.post(uri, &json!({"metadata": {"uid": account["metadata"]["uid"]}})).await.expect(201);
}

#[tokio::test]
async fn tokens_may_be_bound_to_a_node() {
    let h = Harness::new().await;
    let u = h.admin();
    default_account(&u).await;
    u.post("/api/v1/nodes", &json!({"metadata": {"name": "n"}})).await.expect(201);
    let uri = "/api/v1/namespaces/default/serviceaccounts/default/token";
    let node = json!({"apiVersion": "v1", "kind": "Node", "name": "n"});
    let issued = u.post(uri, &json!({"spec": {"boundObjectRef": node}})).await.expect(201);
    let token = issued["status"]["token"].as_str().unwrap();
    let reviews = "/apis/authentication.k8s.io/v1/tokenreviews";
    let known = u.post(reviews, &json!({"spec": {"token": token}})).await.expect(201);
    let extra = &known["status"]["user"]["extra"];
    assert_eq!(extra["authentication.kubernetes.io/node-name"], json!(["n"]));
    let id = extra["authentication.kubernetes.io/credential-id"][0].as_str().unwrap_or("");
    assert!(id.strip_prefix("JTI=").is_some_and(|id| id.len() == 36), "{id}");
    // The token is invalid once its node is deleted.
    u.delete("/api/v1/nodes/n").await.expect(200);
    u.get("/api/v1/nodes").await.expect(200);
    let gone = u.post(reviews, &json!({"spec": {"token": token}})).await.expect(201);
    assert_eq!(gone["status"].get("authenticated"), None);
}

#[tokio::test]
async fn an_applied_scale_has_owners_of_its_own() {
    let h = Harness::new().await;
    let u = h.admin();
    let uri = "/apis/apps/v1/namespaces/default/deployments/d";
    let deployment = json!({"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "d"},
        "spec": {"replicas": 1, "selector": {"matchLabels": {"a": "b"}},
            "template": {"metadata": {"labels": {"a": "b"}}, "spec": {"containers": [{"name": "c", "image": "i"}]}}}});
    u.patch(&format!("{uri}?fieldManager=app"), APPLY, &deployment).await.expect(201);
    let scale = json!({"apiVersion": "autoscaling/v1", "kind": "Scale", "metadata": {"name": "d"},
        "spec": {"replicas": 3}});
    let refused = u.patch(&format!("{uri}/scale?fieldManager=hpa"), APPLY, &scale).await;
    assert_eq!(
        (refused.code, refused.message()),
        (409, "Apply failed with 1 conflict: conflict with \"app\": .spec.replicas")
    );
    let scaled =
        u.patch(&format!("{uri}/scale?fieldManager=hpa&force=true"), APPLY, &scale).await.expect(200);
    assert_eq!(scaled["spec"]["replicas"], 3);
    let managed = u.get(uri).await.expect(200)["metadata"]["managedFields"].clone();
    let owner = &managed[0];
    assert_eq!((owner["manager"].as_str(), owner["subresource"].as_str()), (Some("hpa"), Some("scale")));
    assert_eq!(owner["fieldsV1"], json!({"f:spec": {"f:replicas": {}}}));
    assert_eq!(managed[1]["manager"], "app");
    assert_eq!(managed[1]["fieldsV1"]["f:spec"].get("f:replicas"), None);
}
