//! The default flow schemas and priority levels of every cluster.

use serde_json::{Value, json};

const API_VERSION: &str = "flowcontrol.apiserver.k8s.io/v1";
pub const AUTOUPDATE: &str = "apf.kubernetes.io/autoupdate-spec";

/// Name, shares, lendable percent; for levels with queues also the number of queues and the hand size.
type Level = (&'static str, i32, i32, Option<(i32, i32)>);

const LEVELS: [Level; 7] = [
    ("catch-all", 5, 0, None),
    ("system", 30, 33, Some((64, 6))),
    ("node-high", 40, 25, Some((64, 6))),
    ("leader-election", 10, 0, Some((16, 4))),
    ("workload-high", 40, 50, Some((128, 6))),
    ("workload-low", 100, 90, Some((128, 6))),
    ("global-default", 20, 50, Some((128, 6))),
];
const QUEUE_LENGTH: i32 = 50;

/// Returns whether the object is mandatory: it is restored whatever a user changes.
pub fn is_mandatory(name: &str) -> bool {
    matches!(name, "exempt" | "catch-all")
}

fn object(kind: &str, name: &str, spec: Value) -> Value {
    json!({
        "apiVersion": API_VERSION, "kind": kind,
        "metadata": {"name": name, "annotations": {AUTOUPDATE: "true"}},
        "spec": spec,
    })
}

pub fn levels() -> Vec<Value> {
    let exempt = json!({"type": "Exempt", "exempt": {"nominalConcurrencyShares": 0, "lendablePercent": 0}});
    let mut all = vec![object("PriorityLevelConfiguration", "exempt", exempt)];
    for (name, shares, lendable, queues) in LEVELS {
        let response = match queues {
            None => json!({"type": "Reject"}),
            Some((queues, hand)) => json!({"type": "Queue", "queuing": {
                "queues": queues, "handSize": hand, "queueLengthLimit": QUEUE_LENGTH}}),
        };
        let limited = json!({
            "nominalConcurrencyShares": shares, "lendablePercent": lendable, "limitResponse": response,
        });
        let spec = json!({"type": "Limited", "limited": limited});
        all.push(object("PriorityLevelConfiguration", name, spec));
    }
    all
}

fn groups(names: &[&str]) -> Vec<Value> {
    names.iter().map(|n| json!({"kind": "Group", "group": {"name": n}})).collect()
}

fn users(names: &[&str]) -> Vec<Value> {
    names.iter().map(|n| json!({"kind": "User", "user": {"name": n}})).collect()
}

fn kube_system_accounts() -> Value {
    json!({"kind": "ServiceAccount", "serviceAccount": {"namespace": "kube-system", "name": "*"}})
}

fn resources(verbs: &[&str], group: &str, resources: &[&str], cluster: bool) -> Value {
    let mut rule = json!({
        "verbs": verbs, "apiGroups": [group], "resources": resources, "namespaces": ["*"],
    });
    if cluster {
        rule["clusterScope"] = true.into();
    }
    rule
}

/// Returns the rule that matches all requests of the subjects.
fn everything(subjects: Vec<Value>) -> Value {
    json!({
        "subjects": subjects,
        "resourceRules": [resources(&["*"], "*", &["*"], true)],
        "nonResourceRules": [{"verbs": ["*"], "nonResourceURLs": ["*"]}],
    })
}

pub fn schemas() -> Vec<Value> {
    const EVERYBODY: [&str; 2] = ["system:unauthenticated", "system:authenticated"];
    let probes = json!({
        "subjects": groups(&EVERYBODY),
        "nonResourceRules": [{"verbs": ["get"], "nonResourceURLs": ["/healthz", "/readyz", "/livez"]}],
    });
    let mut electors = users(&["system:kube-controller-manager", "system:kube-scheduler"]);
    electors.push(kube_system_accounts());
    let leases = "coordination.k8s.io";
    let election = json!({
        "subjects": electors,
        "resourceRules": [resources(&["get", "create", "update"], leases, &["leases"], false)],
    });
    let nodes = json!({
        "subjects": groups(&["system:nodes"]),
        "resourceRules": [
            resources(&["*"], "", &["nodes", "nodes/status"], true),
            resources(&["*"], leases, &["leases"], false),
        ],
    });
    [
        ("exempt", "exempt", 1, "", everything(groups(&["system:masters"]))),
        ("probes", "exempt", 2, "", probes),
        ("system-leader-election", "leader-election", 100, "ByUser", election),
        ("system-node-high", "node-high", 400, "ByUser", nodes),
        ("system-nodes", "system", 500, "ByUser", everything(groups(&["system:nodes"]))),
        (
            "kube-controller-manager",
            "workload-high",
            800,
            "ByNamespace",
            everything(users(&["system:kube-controller-manager"])),
        ),
        (
            "kube-scheduler",
            "workload-high",
            800,
            "ByNamespace",
            everything(users(&["system:kube-scheduler"])),
        ),
        (
            "kube-system-service-accounts",
            "workload-high",
            900,
            "ByNamespace",
            everything(vec![kube_system_accounts()]),
        ),
        ("service-accounts", "workload-low", 9000, "ByUser", everything(groups(&["system:serviceaccounts"]))),
        ("global-default", "global-default", 9900, "ByUser", everything(groups(&EVERYBODY))),
        ("catch-all", "catch-all", 10000, "ByUser", everything(groups(&EVERYBODY))),
    ]
    .into_iter()
    .map(|(name, level, precedence, method, rules)| {
        let mut spec = json!({
            "priorityLevelConfiguration": {"name": level}, "matchingPrecedence": precedence, "rules": [rules],
        });
        if !method.is_empty() {
            spec["distinguisherMethod"] = json!({"type": method});
        }
        object("FlowSchema", name, spec)
    })
    .collect()
}
