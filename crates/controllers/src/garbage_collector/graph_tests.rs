//! Tests of the graph.

use std::sync::Arc;

use super::super::identity::{FOREGROUND, ORPHAN};
use super::*;

/// Makes the identity of `ns/name`; the name is the uid as well.
fn object(key: &str) -> Identity {
    let (namespace, name) = key.split_once('/').unwrap();
    let text = |s: &str| Arc::<str>::from(s);
    Identity {
        kind: text("ConfigMap"),
        api_version: text("v1"),
        namespace: text(namespace),
        name: text(name),
        uid: text(name),
    }
}

/// Makes a reference from `name`, or from `name!` for a blocking one.
fn owner(name: &str) -> Reference {
    let identity = object(&format!("/{}", name.trim_end_matches('!')));
    Reference {
        api_version: identity.api_version,
        kind: identity.kind,
        name: identity.name,
        uid: identity.uid,
        controller: false,
        blocks: name.ends_with('!'),
    }
}

fn owned(owners: &[&str]) -> Meta {
    Meta { owners: owners.iter().map(|o| owner(o)).collect(), ..Meta::default() }
}

fn deleted(owners: &[&str], finalizer: &str) -> Meta {
    Meta { being_deleted: true, finalizers: vec![finalizer.into()], ..owned(owners) }
}

fn uids(names: &[&str]) -> Vec<Uid> {
    names.iter().map(|n| Uid::from(*n)).collect()
}

#[test]
fn an_unseen_owner_is_read_and_its_absence_deletes_its_dependents() {
    let mut graph = Graph::default();
    assert_eq!(graph.upsert(&object("a/pod"), &owned(&["set"])).delete, uids(&["set"]));
    assert!(!graph.view("set").unwrap().observed);
    assert_eq!(graph.upsert(&object("a/pod2"), &owned(&["set"])), Effects::default());
    let effects = graph.not_found(&object("a/set"));
    assert_eq!(effects.delete, uids(&["pod", "pod2"]));
    assert_eq!(effects.absent, [object("a/set")]);
    assert_eq!(graph.view("set"), None);
}

#[test]
fn an_owner_seen_later_is_the_same_node() {
    let mut graph = Graph::default();
    graph.upsert(&object("a/pod"), &owned(&["set"]));
    assert_eq!(graph.upsert(&object("a/set"), &owned(&[])), Effects::default());
    let view = graph.view("set").unwrap();
    assert!(view.observed && view.standing.has_dependents);
    let effects = graph.remove(&object("a/set"));
    assert_eq!((effects.delete, effects.absent), (uids(&["pod"]), vec![object("a/set")]));
}

#[test]
fn a_real_owner_in_another_namespace_is_none() {
    let mut graph = Graph::default();
    graph.upsert(&object("a/set"), &owned(&[]));
    let effects = graph.upsert(&object("b/pod"), &owned(&["set"]));
    assert_eq!(effects.delete, uids(&["pod"]));
    assert_eq!(effects.invalid, [(object("b/pod"), object("b/set"))]);
    // The other order: the dependent is observed first.
    let mut graph = Graph::default();
    graph.upsert(&object("b/pod"), &owned(&["set"]));
    graph.upsert(&object("a/good"), &owned(&["set"]));
    let effects = graph.upsert(&object("a/set"), &owned(&[]));
    assert_eq!(effects.delete, uids(&["pod"]), "the dependent with the right reference is not checked");
    assert_eq!(effects.invalid, [(object("b/pod"), object("b/set"))]);
    // No such object exists in that namespace; the owner itself stays.
    let effects = graph.not_found(&object("b/set"));
    assert_eq!(effects.delete, uids(&["pod"]));
    assert!(graph.view("set").is_some());
}

#[test]
fn cluster_scoped_owners_serve_every_namespace() {
    let mut graph = Graph::default();
    graph.upsert(&object("/role"), &owned(&[]));
    assert_eq!(graph.upsert(&object("a/pod"), &owned(&["role"])), Effects::default());
    assert_eq!(graph.upsert(&object("b/pod2"), &owned(&["role"])), Effects::default());
}

#[test]
fn a_virtual_owner_with_several_names_is_tried_by_each() {
    let mut graph = Graph::default();
    graph.upsert(&object("a/one"), &owned(&["set"]));
    assert_eq!(graph.upsert(&object("b/two"), &owned(&["set"])).delete, uids(&["two"]));
    let effects = graph.not_found(&object("a/set"));
    assert_eq!(effects.delete, uids(&["one"]));
    assert_eq!(effects.delete_later, uids(&["set"]), "it may be in the other namespace");
    assert_eq!(graph.view("set").unwrap().identity, object("b/set"));
    graph.remove(&object("a/one"));
    assert_eq!(graph.not_found(&object("b/set")).delete, uids(&["two"]));
    assert_eq!(graph.view("set"), None);
}

#[test]
fn foreground_deletion_wakes_dependents_and_then_the_owner() {
    let mut graph = Graph::default();
    graph.upsert(&object("a/set"), &owned(&[]));
    graph.upsert(&object("a/p1"), &owned(&["set!"]));
    graph.upsert(&object("a/p2"), &owned(&["set"]));
    let effects = graph.upsert(&object("a/set"), &deleted(&[], FOREGROUND));
    assert_eq!(effects.delete, uids(&["p1", "p2", "set"]));
    assert_eq!(graph.upsert(&object("a/set"), &deleted(&[], FOREGROUND)), Effects::default(), "once");
    assert_eq!(graph.view("set").unwrap().blocking, [(Uid::from("p1"), false)]);
    assert_eq!(graph.remove(&object("a/p1")).delete, uids(&["set"]));
    assert!(graph.view("set").unwrap().blocking.is_empty());
}

#[test]
fn giving_up_a_blocking_reference_wakes_the_owner() {
    for next in [owned(&[]), owned(&["set"])] {
        let mut graph = Graph::default();
        graph.upsert(&object("a/set"), &owned(&[]));
        graph.upsert(&object("a/pod"), &owned(&["set!"]));
        assert_eq!(graph.upsert(&object("a/pod"), &next).delete, uids(&["set"]));
    }
}

#[test]
fn orphaning_starts_once() {
    let mut graph = Graph::default();
    graph.upsert(&object("a/pod"), &owned(&["set"]));
    let effects = graph.upsert(&object("a/set"), &deleted(&[], ORPHAN));
    assert_eq!((effects.orphan, effects.delete), (uids(&["set"]), vec![]));
    assert_eq!(graph.upsert(&object("a/set"), &deleted(&[], ORPHAN)), Effects::default());
    assert_eq!(graph.dependents("set"), [object("a/pod")]);
    graph.upsert(&object("a/pod"), &owned(&[]));
    assert!(graph.dependents("set").is_empty());
}

#[test]
fn nothing_is_kept_of_what_is_gone() {
    let mut graph = Graph::default();
    graph.upsert(&object("a/pod"), &owned(&["set"]));
    graph.upsert(&object("a/set"), &owned(&["deployment"]));
    graph.upsert(&object("a/deployment"), &owned(&[]));
    for key in ["a/deployment", "a/set", "a/pod", "a/never"] {
        graph.remove(&object(key));
    }
    assert_eq!(graph.len(), 0);
}
