//! Volumes in pods.

use serde_json::json;

use crate::cluster::shared;
use crate::kubectl::PATIENCE;
use crate::objects::{config_map, once, secret, sleeper};
use crate::sandbox::wait_for;

#[test]
fn b11_empty_dir_host_path_and_sub_path() {
    let cluster = shared();
    let kubectl = cluster.namespace("b11-dirs");
    let folder = cluster.sandbox.path("b11");
    std::fs::create_dir_all(folder.join("inner")).expect("folder");
    std::fs::write(folder.join("inner/file"), "from the node\n").expect("file");
    let script = "stat -c %a /empty; mount | grep ' /memory ' | cut -d' ' -f5; df -k /memory | tail -1 | awk '{print $2}'; \
        cat /sub/file; echo written > /host/by-pod; touch /locked/x 2>/dev/null || echo locked";
    let mut object = once("dirs", script);
    object["spec"]["containers"][0]["volumeMounts"] = json!([
        {"name": "empty", "mountPath": "/empty"},
        {"name": "memory", "mountPath": "/memory"},
        {"name": "host", "mountPath": "/host"},
        {"name": "host", "mountPath": "/sub", "subPath": "inner"},
        {"name": "host", "mountPath": "/locked", "readOnly": true},
    ]);
    object["spec"]["volumes"] = json!([
        {"name": "empty", "emptyDir": {}},
        {"name": "memory", "emptyDir": {"medium": "Memory", "sizeLimit": "8Mi"}},
        {"name": "host", "hostPath": {"path": folder, "type": "Directory"}},
    ]);
    kubectl.apply(&object);
    kubectl.phase("dirs", "Succeeded");
    assert_eq!(kubectl.run("logs dirs"), "777\ntmpfs\n8192\nfrom the node\nlocked\n");
    assert_eq!(std::fs::read_to_string(folder.join("by-pod")).expect("file"), "written\n");

    let mut object = sleeper("no-such-folder");
    object["spec"]["containers"][0]["volumeMounts"] = json!([{"name": "host", "mountPath": "/host"}]);
    object["spec"]["volumes"] =
        json!([{"name": "host", "hostPath": {"path": "/no/such/folder", "type": "Directory"}}]);
    kubectl.apply(&object);
    let message = kubectl.event("no-such-folder", "FailedMount");
    assert!(message.contains("/no/such/folder is not a directory"), "{message}");
}

#[test]
fn b11_config_map_and_secret_files_follow_their_objects() {
    let kubectl = shared().namespace("b11-config");
    kubectl.apply(&config_map("settings", json!({"a": "1", "b": "2"})));
    kubectl.apply(&secret("hidden", json!({"password": "s3cr3t"})));
    let mut object = sleeper("reader");
    object["spec"]["containers"][0]["volumeMounts"] = json!([
        {"name": "settings", "mountPath": "/settings"},
        {"name": "one", "mountPath": "/one"},
        {"name": "hidden", "mountPath": "/hidden"},
        {"name": "maybe", "mountPath": "/maybe"},
    ]);
    object["spec"]["volumes"] = json!([
        {"name": "settings", "configMap": {"name": "settings"}},
        {"name": "one", "configMap": {"name": "settings", "items": [{"key": "b", "path": "deep/b.txt", "mode": 0o400}]}},
        {"name": "hidden", "secret": {"secretName": "hidden", "defaultMode": 0o440}},
        {"name": "maybe", "configMap": {"name": "not-yet", "optional": true}},
    ]);
    kubectl.apply(&object);
    kubectl.ready("reader");
    let sh = |script: &str| kubectl.run(["exec", "reader", "--", "sh", "-c", script]);
    assert_eq!(sh("cd /settings; cat a; echo; cat b; ls"), "1\n2a\nb\n");
    assert_eq!(sh("ls /one; cat /one/deep/b.txt; stat -L -c ' %a' /one/deep/b.txt"), "deep\n2 400\n");
    assert_eq!(sh("cat /hidden/password; stat -L -c ' %a' /hidden/password"), "s3cr3t 440\n");
    assert_eq!(sh("mount | grep -c ' /hidden type tmpfs'"), "1\n", "secrets stay off the disk");
    assert_eq!(sh("ls /maybe"), "");
    assert_eq!(sh("touch /settings/x 2>/dev/null || echo read-only"), "read-only\n");

    kubectl.apply(&config_map("settings", json!({"a": "changed", "c": "new"})));
    kubectl.apply(&config_map("not-yet", json!({"late": "x"})));
    kubectl.eventually(["exec", "reader", "--", "cat", "/settings/a"], |out| out == "changed");
    assert_eq!(sh("ls /settings"), "a\nc\n");
    kubectl.eventually(["exec", "reader", "--", "ls", "/maybe"], |out| out == "late\n");

    let mut object = sleeper("waits");
    object["spec"]["containers"][0]["volumeMounts"] = json!([{"name": "x", "mountPath": "/x"}]);
    object["spec"]["volumes"] = json!([{"name": "x", "configMap": {"name": "absent"}}]);
    kubectl.apply(&object);
    let message = kubectl.event("waits", "FailedMount");
    assert!(
        message.contains("MountVolume.SetUp failed for volume \"x\" : configmap \"absent\" not found"),
        "{message}"
    );
}

#[test]
fn b11_projected_and_downward_api() {
    let kubectl = shared().namespace("b11-projected");
    kubectl.apply(&config_map("settings", json!({"a": "1"})));
    kubectl.apply(&secret("hidden", json!({"b": "2"})));
    let mut object = sleeper("all");
    object["metadata"]["annotations"] = json!({"note": "first"});
    object["spec"]["containers"][0]["resources"] = json!({"limits": {"cpu": "200m", "memory": "64Mi"}});
    object["spec"]["containers"][0]["volumeMounts"] = json!([{"name": "all", "mountPath": "/all"}]);
    object["spec"]["volumes"] = json!([{"name": "all", "projected": {"sources": [
        {"configMap": {"name": "settings"}},
        {"secret": {"name": "hidden", "items": [{"key": "b", "path": "secret/b"}]}},
        {"downwardAPI": {"items": [
            {"path": "name", "fieldRef": {"fieldPath": "metadata.name"}},
            {"path": "labels", "fieldRef": {"fieldPath": "metadata.labels"}},
            {"path": "note", "fieldRef": {"fieldPath": "metadata.annotations['note']"}},
            {"path": "cpu", "resourceFieldRef": {"containerName": "main", "resource": "limits.cpu", "divisor": "1m"}},
        ]}},
        {"serviceAccountToken": {"path": "token", "audience": "vault", "expirationSeconds": 3600}},
    ]}}]);
    kubectl.apply(&object);
    kubectl.ready("all");
    let cat = |file: &str| kubectl.run(["exec", "all", "--", "cat", &format!("/all/{file}")]);
    assert_eq!((cat("a").as_str(), cat("secret/b").as_str(), cat("name").as_str()), ("1", "2", "all"));
    assert_eq!((cat("labels").as_str(), cat("cpu").as_str()), ("app=\"all\"", "200"));
    assert_eq!(cat("token").split('.').count(), 3, "a JSON web token");
    kubectl.run("annotate pod all note=second --overwrite");
    kubectl.eventually("exec all -- cat /all/note", |out| out == "second");
}

/// The pod's own credentials: the token that every pod gets has the rights that RBAC gives its service
/// account.
#[test]
fn a1_service_account_token_reaches_the_api() {
    let cluster = shared();
    let kubectl = cluster.namespace("a1-token");
    kubectl.apply(&sleeper("client"));
    kubectl.ready("client");
    let folder = "/var/run/secrets/kubernetes.io/serviceaccount";
    let sh = |script: &str| kubectl.run(["exec", "client", "--", "sh", "-c", script]);
    assert_eq!(sh(&format!("cat {folder}/namespace")), "a1-token");
    let authority = kubectl.path("configmap kube-root-ca.crt", r"{.data.ca\.crt}");
    assert_eq!(sh(&format!("cat {folder}/ca.crt")).trim(), authority.trim());
    assert_eq!(
        sh("nc -w 2 $KUBERNETES_SERVICE_HOST $KUBERNETES_SERVICE_PORT </dev/null && echo reached"),
        "reached\n"
    );

    let token = sh(&format!("cat {folder}/token"));
    let ask = |path: &str| -> serde_json::Value {
        let text = cluster.python("raw.py", &["GET", path, "--token", &token]);
        serde_json::from_str(&text).expect("JSON")
    };
    assert_eq!(ask("/api")["code"], 200);
    let pods = "/api/v1/namespaces/a1-token/pods";
    let refused = ask(pods);
    assert_eq!(refused["code"], 403);
    let user = "User \\\"system:serviceaccount:a1-token:default\\\" cannot list resource \\\"pods\\\"";
    assert!(refused["body"].as_str().is_some_and(|b| b.contains(user)), "{refused}");
    kubectl.run("create role reader --verb=get,list --resource=pods");
    kubectl.run("create rolebinding reader --role=reader --serviceaccount=a1-token:default");
    kubectl
        .eventually("auth can-i list pods --as=system:serviceaccount:a1-token:default", |out| out == "yes\n");
    assert_eq!(ask(pods)["code"], 200);
    kubectl.run("delete pod client");
    wait_for("the end of the token with its pod", PATIENCE, || (ask(pods)["code"] == 401).then_some(()));
}
