//! Authentication and authorization.

use crate::cluster::shared;

#[test]
fn a3_without_rights() {
    let kubectl = shared().namespace("a3-rights");
    let error = kubectl.fails("get pods --as=jane");
    assert_eq!(
        error,
        "Error from server (Forbidden): pods is forbidden: User \"jane\" cannot list resource \"pods\" in API group \"\" in the namespace \"a3-rights\"\n"
    );
    let error = kubectl.fails("get nodes --as=jane");
    assert!(error.contains("nodes is forbidden: User \"jane\" cannot list resource \"nodes\" in API group \"\" at the cluster scope"), "{error}");
    let error = kubectl.fails("delete deployment x --as=jane");
    assert!(error.contains("deployments.apps \"x\" is forbidden: User \"jane\" cannot delete resource \"deployments\" in API group \"apps\" in the namespace \"a3-rights\""), "{error}");
    let error = kubectl.fails("get --raw /metrics --as=jane");
    assert!(error.contains("forbidden: User \"jane\" cannot get path \"/metrics\""), "{error}");
}

#[test]
fn a1_roles_and_can_i() {
    let kubectl = shared().namespace("a1-roles");
    let can = |what: &str| {
        let output = kubectl.attempt(&format!("auth can-i {what} --as=jane"));
        String::from_utf8_lossy(&output.stdout).trim().to_owned()
    };
    assert_eq!(can("list pods"), "no");
    kubectl.run("create role reader --verb=get,list,watch --resource=pods,configmaps");
    kubectl.run("create rolebinding jane --role=reader --user=jane");
    kubectl.eventually("auth can-i list pods --as=jane", |out| out == "yes\n");
    assert_eq!(can("delete pods"), "no");
    assert_eq!(can("list pods -n default"), "no");
    kubectl.run("get pods --as=jane");
    assert!(kubectl.fails("create configmap x --as=jane").contains("configmaps is forbidden"));
    let error = kubectl.fails("create rolebinding more --clusterrole=cluster-admin --user=jane --as=jane");
    assert!(error.contains("is forbidden"), "{error}");
    let list = kubectl.run("auth can-i --list --as=jane");
    let header: Vec<&str> = list
        .lines()
        .next()
        .unwrap_or_default()
        .split("  ")
        .filter(|w| !w.is_empty())
        .map(str::trim)
        .collect();
    assert_eq!(header, ["Resources", "Non-Resource URLs", "Resource Names", "Verbs"], "{list}");
    assert!(list.lines().any(|l| l.starts_with("pods ") && l.ends_with("[get list watch]")), "{list}");
    let all = kubectl.run("auth can-i --list");
    assert!(all.lines().any(|l| l.starts_with("*.* ") && l.ends_with("[*]")), "{all}");
    assert!(kubectl.run("auth whoami").contains("system:masters"));

    kubectl.run("create clusterrolebinding a1-roles-view --clusterrole=view --user=viewer");
    kubectl.eventually("auth can-i list deployments --as=viewer -n default", |out| out == "yes\n");
    let output = kubectl.attempt("auth can-i get secrets --as=viewer");
    assert_eq!(String::from_utf8_lossy(&output.stdout), "no\n");
    kubectl.run("delete clusterrolebinding a1-roles-view");
}

#[test]
fn a1_tokens_and_user_certificates() {
    let cluster = shared();
    let kubectl = cluster.namespace("a1-tokens");
    kubectl.run("create serviceaccount robot");
    kubectl.run("create rolebinding robot --clusterrole=view --serviceaccount=a1-tokens:robot");
    let token = kubectl.run("create token robot --duration=1h");
    let ask = |path: &str| {
        let text = cluster.python("raw.py", &["GET", path, "--token", token.trim()]);
        let answer: serde_json::Value = serde_json::from_str(&text).expect("JSON");
        answer["code"].as_u64()
    };
    kubectl
        .eventually("auth can-i list pods --as=system:serviceaccount:a1-tokens:robot", |out| out == "yes\n");
    assert_eq!(ask("/api/v1/namespaces/a1-tokens/pods"), Some(200));
    assert_eq!(ask("/api/v1/nodes"), Some(403));
    kubectl.run("delete serviceaccount robot");
    crate::sandbox::wait_for("the end of the token", crate::kubectl::PATIENCE, || {
        (ask("/api/v1/namespaces/a1-tokens/pods") == Some(401)).then_some(())
    });
}
