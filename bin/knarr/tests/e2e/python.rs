//! Tests with the Python `kubernetes` package, an independent client that uses other code paths than kubectl.

use crate::cluster::shared;

/// Runs one function of `python/client.py` in its own namespace.
fn scenario(name: &str) {
    let cluster = shared();
    let kubectl = cluster.namespace(&format!("py-{}", name.replace('_', "-")));
    let out = cluster.python("client.py", &[name, kubectl.namespace()]);
    assert!(out.ends_with("ok\n"), "{out}");
}

#[test]
fn a1_python_objects_and_patches() {
    scenario("objects");
}

#[test]
fn a1_python_watch_and_bookmarks() {
    scenario("watches");
}

#[test]
fn a1_python_errors() {
    scenario("errors");
}

#[test]
fn b12_python_exec_and_logs() {
    scenario("exec_and_logs");
}

#[test]
fn a2_python_deployment() {
    scenario("deployment");
}
