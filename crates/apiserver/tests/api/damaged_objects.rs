//! Stored objects that do not decode: everything else works, and they can be deleted.

use std::sync::Arc;

use knarr_storage::{Embedded, Options, Precondition, Store, damaged_value};
use serde_json::{Value, json};

use crate::harness::{CONFIG_MAPS, Harness, config_map};

const IGNORE: &str = "ignoreStoreReadErrorWithClusterBreakingPotential";

#[tokio::test]
async fn one_damaged_object_stops_nothing() {
    let store: Arc<dyn Store> = Arc::new(Embedded::memory(Options::default()));
    let first = Harness::on(Arc::clone(&store), |_| ()).await;
    first.admin().post(CONFIG_MAPS, &config_map("whole")).await.expect(201);
    drop(first);
    let damage = async |name: &str, value| {
        let key = format!("/registry/core/configmaps/default/{name}");
        store.put(key.into(), value, Precondition::Any, None).await.unwrap();
    };
    damage("cut", "{\"metadata\":{\"na".into()).await;
    damage("unread", damaged_value("a row does not match its checksum")).await;

    let h = Harness::on(Arc::clone(&store), |_| ()).await;
    let user = h.admin();
    let names = async || {
        let list = user.get(CONFIG_MAPS).await.expect(200);
        let items = list["items"].as_array().unwrap().clone();
        items.iter().map(|o| o["metadata"]["name"].as_str().unwrap().to_owned()).collect::<Vec<_>>()
    };
    assert_eq!(names().await, ["whole"]);
    let metrics = user.get("/metrics").await.body;
    let counted = "knarr_storage_damaged_objects{group=\"\",resource=\"configmaps\"} 2";
    assert!(metrics.as_str().unwrap().contains(counted), "{metrics}");
    let reply = user.get(&format!("{CONFIG_MAPS}/unread")).await;
    assert_eq!(reply.code, 500, "it is not taken for absent");
    assert!(reply.message().contains("StorageError: corrupt object, Code: 7"), "{}", reply.message());
    assert!(reply.message().ends_with("a row does not match its checksum"), "{}", reply.message());
    user.post(CONFIG_MAPS, &config_map("cut")).await.expect(409);
    user.delete(&format!("{CONFIG_MAPS}/cut")).await.expect(500);

    let options = |more: Value| {
        let mut options = json!({"apiVersion": "v1", "kind": "DeleteOptions", IGNORE: true});
        options.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        options
    };
    let gone =
        user.delete_with(&format!("{CONFIG_MAPS}/cut"), &options(json!({"gracePeriodSeconds": 0}))).await;
    assert!(gone.message().contains("cannot be set together with .gracePeriodSeconds"), "{}", gone.message());
    gone.expect(422);
    let whole = user.delete_with(&format!("{CONFIG_MAPS}/whole"), &options(json!({}))).await;
    assert!(whole.message().contains("the object is decodable from storage"), "{}", whole.message());
    whole.expect(409);
    user.delete_with(&format!("{CONFIG_MAPS}/absent"), &options(json!({}))).await.expect(404);

    // The permission to delete is not enough.
    let role = json!({"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRole",
        "metadata": {"name": "deleter"},
        "rules": [{"verbs": ["delete"], "apiGroups": [""], "resources": ["configmaps"]}]});
    user.post("/apis/rbac.authorization.k8s.io/v1/clusterroles", &role).await.expect(201);
    let binding = json!({"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRoleBinding",
        "metadata": {"name": "bob"}, "subjects": [{"kind": "User", "name": "bob"}],
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "deleter"}});
    user.post("/apis/rbac.authorization.k8s.io/v1/clusterrolebindings", &binding).await.expect(201);
    let bob = h.user("bob", &[]);
    bob.delete_with(&format!("{CONFIG_MAPS}/cut"), &options(json!({}))).await.expect(403);

    user.delete_with(&format!("{CONFIG_MAPS}/cut"), &options(json!({"dryRun": ["All"]}))).await.expect(200);
    user.delete(CONFIG_MAPS).await.expect(500);
    assert!(names().await.is_empty(), "the rest of the collection is gone");
    for name in ["cut", "unread"] {
        let status =
            user.delete_with(&format!("{CONFIG_MAPS}/{name}"), &options(json!({}))).await.expect(200);
        assert_eq!((&status["kind"], &status["status"]), (&json!("Status"), &json!("Success")));
        user.get(&format!("{CONFIG_MAPS}/{name}")).await.expect(404);
        user.post(CONFIG_MAPS, &config_map(name)).await.expect(201);
    }
    user.delete(CONFIG_MAPS).await.expect(200);
}

#[tokio::test]
async fn what_may_be_against_a_write_is_not_taken_for_absent() {
    let store: Arc<dyn Store> = Arc::new(Embedded::memory(Options::default()));
    let h = Harness::on(Arc::clone(&store), |_| ()).await;
    h.admin().post(CONFIG_MAPS, &config_map("there")).await.expect(201);
    let account = json!({"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": "default"}});
    h.admin().post("/api/v1/namespaces/default/serviceaccounts", &account).await.expect(201);
    drop(h);
    let damaged = [
        ("core/resourcequotas/default/few", "resourcequotas \"default/few\""),
        ("core/limitranges/default/small", "limitranges \"default/small\""),
        (
            "admissionregistration.k8s.io/validatingwebhookconfigurations/v",
            "validatingwebhookconfigurations.admissionregistration.k8s.io \"v\"",
        ),
        (
            "admissionregistration.k8s.io/mutatingwebhookconfigurations/m",
            "mutatingwebhookconfigurations.admissionregistration.k8s.io \"m\"",
        ),
        (
            "admissionregistration.k8s.io/validatingadmissionpolicies/p",
            "validatingadmissionpolicies.admissionregistration.k8s.io \"p\"",
        ),
        (
            "admissionregistration.k8s.io/validatingadmissionpolicybindings/b",
            "validatingadmissionpolicybindings.admissionregistration.k8s.io \"b\"",
        ),
    ];
    for (at, (key, named)) in damaged.into_iter().enumerate() {
        let key = format!("/registry/{key}");
        store.put(key.clone().into(), "{\"metadata\":{".into(), Precondition::Any, None).await.unwrap();
        let h = Harness::on(Arc::clone(&store), |_| ()).await;
        let user = h.admin();
        let pod = crate::harness::pod(&format!("p{at}"));
        let refused = user.post(crate::harness::PODS, &pod).await;
        assert!(
            refused.message().contains(&format!("{named} cannot be read from the store")),
            "{}",
            refused.body
        );
        refused.expect(500);
        // Quotas and limits of other namespaces are not affected; the other plugins are affected everywhere.
        let uri = "/api/v1/namespaces/kube-public/configmaps";
        let elsewhere = user.post(uri, &config_map(&format!("c{at}"))).await;
        assert_eq!(elsewhere.code, if at < 2 { 201 } else { 500 }, "{}", elsewhere.body);
        let options = json!({"apiVersion": "v1", "kind": "DeleteOptions", IGNORE: true});
        let (group, rest) = key.trim_start_matches("/registry/").split_once('/').unwrap();
        let path = match rest.rsplit_once('/').unwrap() {
            (of, name) if group == "core" => {
                let plural = of.split('/').next().unwrap();
                format!("/api/v1/namespaces/default/{plural}/{name}")
            }
            (plural, name) => format!("/apis/{group}/v1/{plural}/{name}"),
        };
        user.delete_with(&path, &options).await.expect(200);
        // Admission learns of damaged objects from the watch cache.
        let mut again = user.post(crate::harness::PODS, &pod).await;
        for _ in 0..100 {
            if again.code == 201 {
                break;
            }
            tokio::time::sleep(std::time::Duration::from_millis(10)).await;
            again = user.post(crate::harness::PODS, &pod).await;
        }
        again.expect(201);
    }
}
