//! Compares the index with a plain evaluation of the same objects, after random changes.

use std::collections::BTreeMap;

use k8s_openapi::api::rbac::v1::{ClusterRole, ClusterRoleBinding, Role, RoleBinding, Subject};
use knarr_apimachinery::selector::Selector;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

use super::*;

/// The objects of the four resources by key, and the caches that hold them.
struct World {
    rbac: Rbac,
    objects: [BTreeMap<String, Value>; 4],
    revision: u64,
}

const KINDS: [&str; 4] = ["Role", "ClusterRole", "RoleBinding", "ClusterRoleBinding"];
const NAMES: [&str; 3] = ["a", "b", "c"];
const NAMESPACES: [&str; 2] = ["n", "m"];

impl World {
    fn new() -> Self {
        let cache = || Arc::new(Cache::scripted());
        let sources = Sources {
            roles: cache(),
            cluster_roles: cache(),
            role_bindings: cache(),
            cluster_role_bindings: cache(),
        };
        Self { rbac: Rbac::new(sources), objects: Default::default(), revision: 1 }
    }

    fn put(&mut self, kind: usize, mut object: Value) {
        self.revision += 1;
        object["kind"] = KINDS[kind].into();
        object["apiVersion"] = "rbac.authorization.k8s.io/v1".into();
        let key = key(&object);
        self.rbac.sources.all()[kind].put(&key, &object, self.revision);
        self.objects[kind].insert(key, object);
    }

    fn delete(&mut self, kind: usize, key: &str) {
        self.revision += 1;
        if self.objects[kind].remove(key).is_some() {
            self.rbac.sources.all()[kind].delete(key, self.revision);
        }
    }

    fn typed<T: DeserializeOwned>(&self, kind: usize) -> Vec<T> {
        self.objects[kind].values().map(|o| serde_json::from_value(o.clone()).unwrap()).collect()
    }

    /// Authorizes by scanning every object.
    fn naive(&self, user: &UserInfo, wanted: &Attributes) -> bool {
        let cluster = self.typed::<ClusterRoleBinding>(3).into_iter();
        let cluster = cluster.map(|b| (String::new(), b.role_ref, b.subjects));
        let namespaced = self.typed::<RoleBinding>(2).into_iter();
        let namespaced = namespaced.map(|b| (b.metadata.namespace.unwrap(), b.role_ref, b.subjects));
        cluster.chain(namespaced).any(|(namespace, role, subjects)| {
            let concerned = namespace.is_empty() || wanted.is_resource() && namespace == wanted.namespace;
            let bound = subjects.iter().flatten().any(|s| is_bound(s, &namespace, user));
            let rules = self.rules(&role, &namespace);
            concerned && bound && rules.iter().any(|r| rules::allows(r, wanted))
        })
    }

    fn rules(&self, role: &RoleRef, namespace: &str) -> Vec<PolicyRule> {
        if role.kind == "Role" {
            let named = |r: &Role| {
                r.metadata.name.as_ref() == Some(&role.name)
                    && r.metadata.namespace.as_deref() == Some(namespace)
            };
            return self.typed::<Role>(0).into_iter().find(named).and_then(|r| r.rules).unwrap_or_default();
        }
        self.cluster_rules(&role.name, 4)
    }

    fn cluster_rules(&self, name: &str, depth: usize) -> Vec<PolicyRule> {
        let all = self.typed::<ClusterRole>(1);
        let Some(role) = all.iter().find(|r| r.metadata.name.as_deref() == Some(name)) else { return vec![] };
        let mut rules = role.rules.clone().unwrap_or_default();
        if depth == 0 {
            return rules;
        }
        for selector in role.aggregation_rule.iter().flat_map(|a| a.cluster_role_selectors.iter().flatten()) {
            let selector = Selector::from_label_selector(Some(selector)).unwrap();
            for other in all.iter().filter(|o| o.metadata.name != role.metadata.name) {
                let labels = other.metadata.labels.clone().unwrap_or_default();
                if selector.matches_with(|key| labels.get(key).map(String::as_str)) {
                    rules.extend(self.cluster_rules(other.metadata.name.as_ref().unwrap(), depth - 1));
                }
            }
        }
        rules
    }

    fn allowed(&self, user: &UserInfo, wanted: &Attributes) -> bool {
        self.rbac.authorize(user, wanted).is_allowed()
    }
}

fn key(object: &Value) -> String {
    let metadata = &object["metadata"];
    let name = metadata["name"].as_str().unwrap();
    metadata["namespace"].as_str().map_or(name.to_owned(), |namespace| format!("{namespace}/{name}"))
}

fn is_bound(subject: &Subject, namespace: &str, user: &UserInfo) -> bool {
    match subject.kind.as_str() {
        "User" => subject.name == user.name,
        "Group" => user.groups.contains(&subject.name),
        _ => {
            let of = subject.namespace.as_deref().unwrap_or(namespace);
            !of.is_empty() && user.name == format!("system:serviceaccount:{of}:{}", subject.name)
        }
    }
}

fn one<'a, T: ?Sized>(random: &mut fastrand::Rng, of: &[&'a T]) -> &'a T {
    of[random.usize(..of.len())]
}

fn some_rules(random: &mut fastrand::Rng) -> Value {
    let rules = (0..random.usize(0..3)).map(|_| {
        if random.u8(..8) == 0 {
            return json!({"verbs": ["get"], "nonResourceURLs": [one(random, &["/x", "/x/*", "*"])]});
        }
        let mut rule = json!({
            "verbs": [one(random, &["get", "list", "*"])],
            "apiGroups": [one(random, &["", "apps", "*"])],
            "resources": [one(random, &["pods", "pods/log", "*/log", "*"])],
        });
        if random.u8(..4) == 0 {
            rule["resourceNames"] = json!([one(random, &NAMES)]);
        }
        rule
    });
    rules.collect()
}

fn some_object(random: &mut fastrand::Rng, kind: usize) -> Value {
    let mut object = json!({"metadata": {"name": one(random, &NAMES)}});
    if kind == 0 || kind == 2 {
        object["metadata"]["namespace"] = one(random, &NAMESPACES).into();
    }
    if kind < 2 {
        object["rules"] = some_rules(random);
        if kind == 1 {
            object["metadata"]["labels"] = json!({"l": one(random, &NAMES)});
            if random.bool() {
                let selector = json!({"matchLabels": {"l": one(random, &NAMES)}});
                object["aggregationRule"] = json!({"clusterRoleSelectors": [selector]});
            }
        }
        return object;
    }
    let role = if kind == 2 { one(random, &["Role", "ClusterRole"]) } else { "ClusterRole" };
    object["roleRef"] =
        json!({"apiGroup": "rbac.authorization.k8s.io", "kind": role, "name": one(random, &NAMES)});
    let subjects = (0..random.usize(0..4)).map(|_| {
        let mut subject =
            json!({"kind": one(random, &["User", "Group", "ServiceAccount"]), "name": one(random, &NAMES)});
        if subject["kind"] == "ServiceAccount" && random.bool() {
            subject["namespace"] = one(random, &NAMESPACES).into();
        }
        subject
    });
    object["subjects"] = subjects.collect();
    object
}

fn some_question(random: &mut fastrand::Rng) -> (UserInfo, Attributes) {
    let user = match random.u8(..3) {
        0 => UserInfo::new(
            &format!("system:serviceaccount:{}:{}", one(random, &NAMESPACES), one(random, &NAMES)),
            &[],
        ),
        1 => UserInfo::new(one(random, &NAMES), &[]),
        _ => UserInfo::new(one(random, &NAMES), &[one(random, &NAMES), one(random, &NAMES)]),
    };
    if random.u8(..6) == 0 {
        let path = one(random, &["/x", "/x/y", "/y"]).to_owned();
        return (user, Attributes { verb: "get".into(), path, ..Attributes::default() });
    }
    let wanted = Attributes {
        verb: one(random, &["get", "list", "delete"]).to_owned(),
        group: one(random, &["", "apps"]).to_owned(),
        resource: one(random, &["pods", "secrets"]).to_owned(),
        subresource: one(random, &["", "log"]).to_owned(),
        namespace: one(random, &["", "n", "m"]).to_owned(),
        name: one(random, &["", "a", "b"]).to_owned(),
        ..Attributes::default()
    };
    (user, wanted)
}

#[test]
fn random_changes_leave_the_index_as_a_plain_evaluation_has_it() {
    let mut allowed = 0;
    for seed in 0..40 {
        let mut random = fastrand::Rng::with_seed(seed);
        let mut world = World::new();
        for step in 0..120 {
            let kind = random.usize(..4);
            if random.u8(..3) == 0 {
                let keys: Vec<_> = world.objects[kind].keys().cloned().collect();
                if !keys.is_empty() {
                    world.delete(kind, &keys[random.usize(..keys.len())]);
                }
            } else {
                let object = some_object(&mut random, kind);
                world.put(kind, object);
            }
            // Occasionally a cache is reloaded, which ends the watches.
            if random.u8(..20) == 0 {
                world.rbac.sources.all()[kind].load_again();
            }
            for _ in 0..8 {
                let (user, wanted) = some_question(&mut random);
                let expected = world.naive(&user, &wanted);
                allowed += u32::from(expected);
                assert_eq!(
                    world.allowed(&user, &wanted),
                    expected,
                    "seed {seed}, step {step}: {user:?} {wanted:?}"
                );
            }
        }
    }
    assert!(allowed > 500, "only {allowed} questions were answered with yes");
}

fn binding(name: &str, user: &str) -> Value {
    json!({
        "metadata": {"name": name, "namespace": "n"},
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": "a"},
        "subjects": [{"kind": "User", "name": user}],
    })
}

#[test]
fn one_change_is_one_change_and_a_missed_event_begins_anew() {
    let mut world = World::new();
    world.put(0, json!({"metadata": {"name": "a", "namespace": "n"}, "rules": [{"verbs": ["get"], "apiGroups": [""], "resources": ["pods"]}]}));
    world.put(2, binding("first", "user"));
    let wanted = Attributes {
        verb: "get".into(),
        resource: "pods".into(),
        namespace: "n".into(),
        ..Attributes::default()
    };
    let user = UserInfo::new("user", &[]);
    assert!(world.allowed(&user, &wanted));
    let untouched = |world: &World| {
        world.rbac.with_index(|index| {
            index.bindings(&user, "n").next().map(|(binding, _)| std::ptr::from_ref(binding) as usize)
        })
    };
    let before = untouched(&world);
    world.put(2, binding("second", "other"));
    assert!(world.allowed(&UserInfo::new("other", &[]), &wanted));
    assert_eq!(untouched(&world), before, "the other binding was not read again");
    // More events than a watch can queue, before the next request.
    for number in 0..1500 {
        world.put(2, binding(&format!("b{}", number % 1100), &format!("u{}", number % 7)));
    }
    assert!(world.allowed(&UserInfo::new("u3", &[]), &wanted));
    assert_ne!(untouched(&world), before, "the index began anew");
    assert_eq!(world.rbac.with_index(Index::sizes), (9, 1102));
    for number in 0..1100 {
        world.delete(2, &format!("n/b{number}"));
    }
    assert!(!world.allowed(&UserInfo::new("u3", &[]), &wanted));
    assert_eq!(world.rbac.with_index(Index::sizes), (2, 2));
}

#[test]
fn who_allows_what_is_said() {
    let mut world = World::new();
    world.put(1, json!({"metadata": {"name": "a"}, "rules": [{"verbs": ["get"], "apiGroups": [""], "resources": ["pods"]}]}));
    let mut account = binding("b", "a");
    account["roleRef"]["kind"] = "ClusterRole".into();
    account["subjects"] = json!([{"kind": "ServiceAccount", "name": "s"}]);
    world.put(2, account);
    let wanted = Attributes {
        verb: "get".into(),
        resource: "pods".into(),
        namespace: "n".into(),
        ..Attributes::default()
    };
    let user = UserInfo::new("system:serviceaccount:n:s", &[]);
    let Decision::Allowed { reason } = world.rbac.authorize(&user, &wanted) else { panic!("refused") };
    assert_eq!(reason, "RBAC: allowed by RoleBinding \"b/n\" of ClusterRole \"a\" to ServiceAccount \"s/n\"");
    world.delete(1, "a");
    let Decision::NoOpinion { reason } = world.rbac.authorize(&user, &wanted) else { panic!("decided") };
    assert_eq!(reason, "RBAC: clusterrole.rbac.authorization.k8s.io \"a\" not found");
}
