//! Writes with valid bodies, as dry runs: admission and registries refuse them to some users, and not to others.

use serde_json::{Value, json};

use super::requests::Question;

const RBAC: &str = "/apis/rbac.authorization.k8s.io/v1";
const ALPHA: &str = "/api/v1/namespaces/alpha";

/// Returns each request with its body: a JSON object, which is a merge patch if the method is PATCH.
pub fn all() -> Vec<Question> {
    let mut all = Vec::new();
    for (method, target, body) in
        rights().into_iter().chain(of_nodes()).chain(of_pods()).chain(reviews()).chain(others())
    {
        let mut question = Question::new(method, &target);
        question.body = Some(body.to_string());
        all.push(question);
    }
    all
}

type Write = (&'static str, String, Value);

/// With a body, the query is ignored.
fn dry() -> Value {
    json!({"apiVersion": "v1", "kind": "DeleteOptions", "dryRun": ["All"]})
}

/// Grants of permissions that the user may not have.
fn rights() -> Vec<Write> {
    let group = "rbac.authorization.k8s.io";
    let mut all = Vec::new();
    let rules = [
        json!([{"apiGroups": [""], "resources": ["pods"], "verbs": ["get"]}]),
        json!([{"apiGroups": [""], "resources": ["secrets"], "verbs": ["get"], "resourceNames": ["mounted"]}]),
        json!([{"apiGroups": ["*"], "resources": ["*/scale"], "verbs": ["*"]}]),
        json!([{"apiGroups": ["apps"], "resources": ["*"], "verbs": ["update"]}]),
        json!([{"apiGroups": ["*"], "resources": ["*"], "verbs": ["*"]}]),
        json!([]),
    ];
    for rules in rules {
        for place in [format!("{RBAC}/namespaces/alpha/roles"), format!("{RBAC}/namespaces/beta/roles")] {
            all.push(("POST", place, json!({"metadata": {"name": "new"}, "rules": rules})));
        }
        all.push((
            "POST",
            format!("{RBAC}/clusterroles"),
            json!({"metadata": {"name": "new"}, "rules": rules}),
        ));
        all.push(("PATCH", format!("{RBAC}/namespaces/alpha/roles/named"), json!({"rules": rules})));
    }
    let paths = json!([{"nonResourceURLs": ["/metrics"], "verbs": ["get"]}]);
    all.push(("POST", format!("{RBAC}/clusterroles"), json!({"metadata": {"name": "new"}, "rules": paths})));
    let subjects = json!([{"kind": "User", "apiGroup": group, "name": "x"}]);
    for (kind, name) in [
        ("ClusterRole", "system:aggregate-to-view"),
        ("ClusterRole", "cluster-admin"),
        ("ClusterRole", "parts"),
        ("ClusterRole", "missing"),
        ("Role", "named"),
        ("Role", "missing"),
    ] {
        let binding = json!({"metadata": {"name": "new"}, "subjects": subjects,
            "roleRef": {"apiGroup": group, "kind": kind, "name": name}});
        for namespace in ["alpha", "beta"] {
            all.push(("POST", format!("{RBAC}/namespaces/{namespace}/rolebindings"), binding.clone()));
        }
        all.push(("POST", format!("{RBAC}/clusterrolebindings"), binding));
    }
    all
}

/// Writes of nodes to their own objects and to those of others.
fn of_nodes() -> Vec<Write> {
    let mut all = Vec::new();
    for name in ["n1", "n2", "n3", "new"] {
        let named = json!({"metadata": {"name": name}});
        let label = |key: &str| json!({"metadata": {"labels": {key: "x"}}});
        all.push(("POST", "/api/v1/nodes".into(), named.clone()));
        for key in ["x", "kubernetes.io/hostname", "node-restriction.kubernetes.io/x", "node.kubernetes.io/x"]
        {
            all.push(("PATCH", format!("/api/v1/nodes/{name}"), label(key)));
        }
        let taint = json!({"spec": {"taints": [{"key": "x", "effect": "NoSchedule"}]}});
        all.push(("PATCH", format!("/api/v1/nodes/{name}"), taint));
        let reference = json!({"spec": {"configSource": {"configMap": {}}}});
        all.push(("PATCH", format!("/api/v1/nodes/{name}"), reference));
        all.push(("PATCH", format!("/api/v1/nodes/{name}/status"), json!({"status": {"phase": "Running"}})));
        all.push(("DELETE", format!("/api/v1/nodes/{name}"), dry()));
        let lease = json!({"metadata": {"name": name}, "spec": {"holderIdentity": name}});
        let leases = "/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases";
        all.push(("POST", leases.into(), lease.clone()));
        all.push(("PATCH", format!("{leases}/{name}"), json!({"spec": {"holderIdentity": "y"}})));
        let csi = json!({"metadata": {"name": name}, "spec": {"drivers": []}});
        all.push(("POST", "/apis/storage.k8s.io/v1/csinodes".into(), csi));
        let slice = json!({"metadata": {"name": "new"}, "spec": {"driver": "d.example.com", "nodeName": name,
            "devices": [], "pool": {"name": name, "generation": 1, "resourceSliceCount": 1}}});
        all.push(("POST", "/apis/resource.k8s.io/v1/resourceslices".into(), slice));
    }
    all
}

fn of_pods() -> Vec<Write> {
    let mut all = Vec::new();
    let annotation = json!({"kubernetes.io/config.mirror": "x"});
    for node in ["n1", "n2"] {
        for (name, annotations, volumes) in [
            ("plain", json!({}), json!([])),
            ("mirror", annotation.clone(), json!([])),
            ("reader", annotation.clone(), json!([{"name": "v", "configMap": {"name": "mounted"}}])),
            ("thief", annotation.clone(), json!([{"name": "v", "secret": {"secretName": "mounted"}}])),
        ] {
            let spec = json!({"nodeName": node, "volumes": volumes, "automountServiceAccountToken": false,
                "containers": [{"name": "c", "image": "i"}]});
            let pod = json!({"metadata": {"name": name, "annotations": annotations}, "spec": spec});
            all.push(("POST", format!("{ALPHA}/pods"), pod));
        }
    }
    for pod in ["p1", "p2", "mirror", "waiting", "nothing"] {
        let path = format!("{ALPHA}/pods/{pod}");
        all.push(("DELETE", path.clone(), dry()));
        all.push(("PATCH", path.clone(), json!({"metadata": {"labels": {"x": "y"}}})));
        all.push(("PATCH", format!("{path}/status"), json!({"status": {"message": "x"}})));
        all.push(("PATCH", format!("{path}/status"), json!({"metadata": {"labels": {"x": "y"}}})));
        let eviction = json!({"metadata": {"name": pod}});
        all.push(("POST", format!("{path}/eviction"), eviction));
        let binding = json!({"metadata": {"name": pod}, "target": {"kind": "Node", "name": "n1"}});
        all.push(("POST", format!("{path}/binding"), binding.clone()));
        all.push(("POST", format!("{ALPHA}/bindings"), binding));
    }
    for account in ["runner", "other", "unused", "nothing"] {
        let path = format!("{ALPHA}/serviceaccounts/{account}/token");
        all.push(("POST", path.clone(), json!({"spec": {"expirationSeconds": 3600}})));
        let bound = json!({"apiVersion": "v1", "kind": "Pod", "name": "p1", "uid": "x"});
        all.push(("POST", path.clone(), json!({"spec": {"boundObjectRef": bound}})));
        all.push(("POST", path, json!({"spec": {"audiences": ["https://elsewhere"]}})));
    }
    for claim in ["claim-1", "claim-2"] {
        let path = format!("{ALPHA}/persistentvolumeclaims/{claim}");
        all.push(("PATCH", format!("{path}/status"), json!({"status": {"capacity": {"storage": "1Gi"}}})));
        all.push(("PATCH", format!("{path}/status"), json!({"metadata": {"labels": {"x": "y"}}})));
        all.push(("PATCH", path, json!({"spec": {"resources": {"requests": {"storage": "2Gi"}}}})));
    }
    all
}

fn reviews() -> Vec<Write> {
    let group = "/apis/authorization.k8s.io/v1";
    let pods = json!({"verb": "get", "resource": "pods", "namespace": "alpha"});
    let other = json!({"user": "x", "resourceAttributes": pods});
    vec![
        ("POST", format!("{group}/selfsubjectaccessreviews"), json!({"spec": {"resourceAttributes": pods}})),
        ("POST", format!("{group}/selfsubjectrulesreviews"), json!({"spec": {"namespace": "alpha"}})),
        ("POST", format!("{group}/subjectaccessreviews"), json!({"spec": other})),
        ("POST", format!("{group}/namespaces/alpha/localsubjectaccessreviews"), json!({"spec": other})),
        ("POST", format!("{group}/namespaces/beta/localsubjectaccessreviews"), json!({"spec": other})),
        ("POST", "/apis/authentication.k8s.io/v1/tokenreviews".into(), json!({"spec": {"token": "viewer"}})),
        ("POST", "/apis/authentication.k8s.io/v1/selfsubjectreviews".into(), json!({})),
    ]
}

fn others() -> Vec<Write> {
    let group = "/apis/admissionregistration.k8s.io/v1";
    let mut all = Vec::new();
    for (version, kind) in [("v1", "ConfigMap"), ("v1", "Secret"), ("rbac.authorization.k8s.io/v1", "Role")] {
        let rules = json!([{"apiGroups": ["apps"], "apiVersions": ["v1"], "operations": ["CREATE"],
            "resources": ["deployments"]}]);
        let policy = json!({"metadata": {"name": "new"}, "spec": {"paramKind": {"apiVersion": version, "kind": kind},
            "matchConstraints": {"resourceRules": rules}, "validations": [{"expression": "true"}]}});
        all.push(("POST", format!("{group}/validatingadmissionpolicies"), policy));
    }
    let binding =
        json!({"metadata": {"name": "new"}, "spec": {"policyName": "none", "validationActions": ["Deny"]}});
    all.push(("POST", format!("{group}/validatingadmissionpolicybindings"), binding));
    all.push((
        "PATCH",
        "/apis/apps/v1/namespaces/alpha/deployments/web/scale".into(),
        json!({"spec": {"replicas": 2}}),
    ));
    all.push((
        "PATCH",
        "/apis/example.com/v1/namespaces/alpha/widgets/one/scale".into(),
        json!({"spec": {"replicas": 2}}),
    ));
    all.push(("POST", "/api/v1/namespaces".into(), json!({"metadata": {"name": "new"}})));
    all.push(("DELETE", "/api/v1/namespaces/default".into(), dry()));
    all.push(("POST", format!("{ALPHA}/configmaps"), json!({"metadata": {"name": "new"}})));
    all.push(("POST", "/api/v1/namespaces/nothing/configmaps".into(), json!({"metadata": {"name": "new"}})));
    let event = json!({"metadata": {"name": "new"}, "involvedObject": {"kind": "Pod", "namespace": "alpha", "name": "p1"}});
    all.push(("POST", format!("{ALPHA}/events"), event));
    all
}
