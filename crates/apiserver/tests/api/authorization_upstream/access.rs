//! The roles and bindings that both servers hold.

use serde_json::{Value, json};

const GROUP: &str = "rbac.authorization.k8s.io";
const COLLECTIONS: &str = "/apis/rbac.authorization.k8s.io/v1";

fn subject(text: &str) -> Value {
    match text.split_once(' ') {
        Some(("account", name)) => {
            let (namespace, name) = name.split_once('/').unwrap();
            json!({"kind": "ServiceAccount", "namespace": namespace, "name": name})
        }
        Some((kind, name)) => json!({"kind": kind, "apiGroup": GROUP, "name": name}),
        None => json!({"kind": "User", "apiGroup": GROUP, "name": text}),
    }
}

fn rule(groups: &[&str], resources: &[&str], verbs: &[&str], names: &[&str]) -> Value {
    json!({"apiGroups": groups, "resources": resources, "verbs": verbs, "resourceNames": names})
}

fn urls(urls: &[&str], verbs: &[&str]) -> Value {
    json!({"nonResourceURLs": urls, "verbs": verbs})
}

/// Adds a ClusterRole, and a binding of the same name to this subject.
fn cluster(all: &mut Vec<(String, Value)>, name: &str, to: &str, rules: Value) {
    all.push((format!("{COLLECTIONS}/clusterroles"), json!({"metadata": {"name": name}, "rules": rules})));
    bind(all, name, None, ("ClusterRole", name), to);
}

/// Adds the same in one namespace.
fn within(all: &mut Vec<(String, Value)>, namespace: &str, name: &str, to: &str, rules: Value) {
    let role = json!({"metadata": {"name": name}, "rules": rules});
    all.push((format!("{COLLECTIONS}/namespaces/{namespace}/roles"), role));
    bind(all, name, Some(namespace), ("Role", name), to);
}

fn bind(
    all: &mut Vec<(String, Value)>,
    name: &str,
    namespace: Option<&str>,
    (kind, role): (&str, &str),
    to: &str,
) {
    let collection = match namespace {
        Some(namespace) => format!("{COLLECTIONS}/namespaces/{namespace}/rolebindings"),
        None => format!("{COLLECTIONS}/clusterrolebindings"),
    };
    let role = json!({"apiGroup": GROUP, "kind": kind, "name": role});
    all.push((collection, json!({"metadata": {"name": name.replace([' ', '/'], "-")}, "roleRef": role, "subjects": [subject(to)]})));
}

/// Verbs that act on one object or on many.
const VERBS: &[&str] = &["get", "list", "watch", "create", "update", "patch", "delete", "deletecollection"];
/// What leads on to a kubelet or a backend.
const WAYS: &[&str] = &[
    "pods/exec",
    "pods/attach",
    "pods/portforward",
    "pods/log",
    "pods/proxy",
    "services/proxy",
    "nodes/proxy",
    "pods/eviction",
    "pods/binding",
    "serviceaccounts/token",
];

/// Collections and objects, in an order in which they can be created.
pub fn objects() -> Vec<(String, Value)> {
    let mut all = Vec::new();
    // What the roles `view`, `edit` and `admin` are made of by a controller, which does not run here.
    for (part, of) in [("view", "view edit admin"), ("edit", "edit admin"), ("admin", "admin")] {
        let role = format!("system:aggregate-to-{part}");
        let mut grant = |namespace, role_of: &str, to: &str| {
            if of.contains(role_of) {
                bind(&mut all, &format!("{to}-{part}"), namespace, ("ClusterRole", &role), to);
            }
        };
        grant(None, "view", "viewer");
        grant(None, "edit", "Group editors");
        grant(Some("alpha"), "admin", "alpha-admin");
        grant(Some("alpha"), "edit", "account alpha/runner");
        grant(None, "view", "Group system:serviceaccounts:beta");
    }
    bind(&mut all, "everything", None, ("ClusterRole", "cluster-admin"), "Group cluster-admins");
    bind(&mut all, "dangling", None, ("ClusterRole", "missing"), "nobody");
    cluster(
        &mut all,
        "parts",
        "parts",
        json!([
            rule(&["*"], &["*/scale", "*/status"], &["*"], &[]),
            rule(&[""], &["pods/*", "nodes/*"], &["*"], &[]),
            rule(&["batch"], &["*"], &["get", "*"], &[]),
            rule(&["example.com"], &["*/*"], &["*"], &[]),
        ]),
    );
    cluster(&mut all, "getter", "getter", json!([rule(&[""], WAYS, &["get", "list", "watch"], &[])]));
    cluster(&mut all, "creator", "creator", json!([rule(&[""], WAYS, &["create"], &[])]));
    cluster(&mut all, "lister", "lister", json!([rule(&["*"], &["*"], &["list", "watch"], &[])]));
    cluster(&mut all, "only-lists", "only-lists", json!([rule(&["*"], &["*"], &["list"], &[])]));
    cluster(&mut all, "only-watches", "only-watches", json!([rule(&["*"], &["*"], &["watch"], &[])]));
    cluster(&mut all, "apps", "apps", json!([rule(&["apps", "example.com"], &["*"], &["*"], &[])]));
    let paths = ["/healthz/*", "/metrics", "/api*", "/openapi/*", "/livez/ping/", "/a/*/b", "/debug/pprof/*"];
    cluster(
        &mut all,
        "urls",
        "urls",
        json!([urls(&paths, &["get", "head"]), urls(&["/logs*", "/version/"], &["*"])]),
    );
    cluster(
        &mut all,
        "named",
        "named",
        json!([
            rule(&[""], &["nodes", "nodes/proxy", "nodes/status"], VERBS, &["n1"]),
            rule(&[""], &["namespaces", "namespaces/finalize"], VERBS, &["alpha"]),
            rule(&["apiextensions.k8s.io"], &["*"], &["*"], &["widgets.example.com"]),
            rule(&[""], &["persistentvolumes"], &["get", "watch"], &["volume-1", "volume-2"]),
        ]),
    );
    let one_of_each = json!([
        rule(&[""], &["secrets", "configmaps", "pods", "services"], VERBS, &["mounted", "p1", "web"]),
        rule(&[""], &["pods/log", "pods/exec", "pods/status", "services/proxy"], VERBS, &["p1", "web"]),
        rule(&["apps"], &["deployments", "deployments/scale"], VERBS, &["web"]),
        rule(&["example.com"], &["widgets", "widgets/status"], &["*"], &["one"]),
        rule(&[""], &["namespaces"], &["*"], &["alpha", "beta"]),
    ]);
    within(&mut all, "alpha", "named", "named", one_of_each);
    impersonation(&mut all);
    all
}

fn impersonation(all: &mut Vec<(String, Value)>) {
    const ABOUT: &[&str] = &["authentication.k8s.io"];
    cluster(
        all,
        "impersonator",
        "Group impersonators",
        json!([
            rule(&[""], &["users"], &["impersonate"], &["viewer"]),
            rule(&[""], &["groups"], &["impersonate"], &["editors"]),
            rule(ABOUT, &["uids"], &["impersonate"], &["7"]),
            rule(ABOUT, &["userextras/scopes", "userextras/scopes/x"], &["impersonate"], &["a"]),
        ]),
    );
    let account = json!([rule(&[""], &["serviceaccounts"], &["impersonate"], &[])]);
    within(all, "alpha", "impersonator", "Group impersonators", account);
    cluster(
        all,
        "constrained",
        "Group constrained",
        json!([
            rule(ABOUT, &["users"], &["impersonate:user-info"], &["viewer", "editor"]),
            rule(ABOUT, &["groups"], &["impersonate:user-info"], &["editors", "system:masters"]),
            rule(ABOUT, &["uids"], &["impersonate:user-info"], &["7"]),
            rule(ABOUT, &["userextras/example.com/scopes"], &["impersonate:user-info"], &["a"]),
            rule(ABOUT, &["nodes"], &["impersonate:arbitrary-node"], &["n1"]),
            rule(&[""], &["pods", "secrets"], &["impersonate-on:user-info:list"], &[]),
            rule(&["*"], &["*"], &["impersonate-on:user-info:get"], &[]),
            rule(&[""], &["secrets", "configmaps", "nodes"], &["impersonate-on:arbitrary-node:get"], &[]),
            rule(ABOUT, &["nodes"], &["impersonate:associated-node"], &["n1"]),
            rule(&["*"], &["*"], &["impersonate-on:associated-node:get"], &[]),
            rule(&["*"], &["*"], &["impersonate-on:serviceaccount:create"], &[]),
            urls(
                &["/healthz", "/metrics"],
                &["impersonate-on:user-info:get", "impersonate-on:arbitrary-node:get"]
            ),
        ]),
    );
    cluster(
        all,
        "associated",
        "account alpha/runner",
        json!([
            rule(ABOUT, &["nodes"], &["impersonate:associated-node"], &["*"]),
            rule(&[""], &["secrets", "pods", "nodes"], &["impersonate-on:associated-node:get"], &[]),
            rule(&[""], &["pods"], &["impersonate-on:associated-node:list"], &[]),
        ]),
    );
    let account = json!([
        rule(ABOUT, &["serviceaccounts"], &["impersonate:serviceaccount"], &["runner"]),
        rule(
            &["*"],
            &["*"],
            &["impersonate-on:serviceaccount:get", "impersonate-on:serviceaccount:list"],
            &[]
        ),
    ]);
    within(all, "alpha", "constrained", "Group constrained", account);
}
