//! Certificates: what there is, and when it expires.

use std::process::Output;

use serde_json::Value;

use crate::cluster::{Cluster, shared};
use crate::sandbox::succeeded;

fn certificates(cluster: &Cluster, words: &[&str]) -> Output {
    cluster.knarr(&[&["certificates"], words].concat()).output().expect("nsenter(1) of util-linux")
}

/// `knarr certificates -o json` by name.
fn listed(cluster: &Cluster) -> Vec<(String, Value)> {
    let text = succeeded("knarr certificates", &certificates(cluster, &["-o", "json"]));
    let list: Value = serde_json::from_str(&text).expect("JSON");
    let all = list["certificates"].as_array().cloned().expect("a list");
    all.into_iter().map(|one| (one["name"].as_str().expect("a name").to_owned(), one)).collect()
}

fn of(cluster: &Cluster, name: &str) -> Value {
    let found = listed(cluster).into_iter().find(|(n, _)| n == name);
    found.unwrap_or_else(|| panic!("no certificate {name}")).1
}

#[test]
fn h10_certificates_are_listed() {
    let cluster = shared();
    let table = succeeded("knarr certificates", &certificates(cluster, &[]));
    let header: Vec<&str> = table.lines().next().unwrap_or_default().split_whitespace().collect();
    assert_eq!(header, ["NAME", "SUBJECT", "USE", "AUTHORITY", "EXPIRES", "DAYS", "LEFT"], "{table}");
    let row = |name: &str| table.lines().find(|l| l.starts_with(&format!("{name} "))).unwrap_or_default();
    for (name, wanted) in [
        ("ca", "kubernetes"),
        ("front-proxy/ca", "kubernetes-front-proxy"),
        ("kubelet-serving/ca", "authority"),
        ("apiserver", "kube-apiserver"),
        ("apiserver-kubelet-client", "client"),
        ("front-proxy/front-proxy-client", "front-proxy/ca"),
        ("kubelet-serving/kubelet", "kubelet-serving/ca"),
        ("admin.kubeconfig", "kubernetes-admin"),
    ] {
        assert!(row(name).contains(wanted), "{name}, {wanted}:\n{table}");
    }
    let admin = of(cluster, "admin.kubeconfig");
    assert_eq!(admin["groups"], serde_json::json!(["system:masters"]));
    assert!((360..=365).contains(&admin["daysLeft"].as_i64().unwrap_or_default()), "{admin}");
    assert!(of(cluster, "ca")["daysLeft"].as_i64().unwrap_or_default() > 3600);

    // A damaged file is shown, and is an error.
    let damaged = cluster.data_dir().join("pki/damaged.crt");
    std::fs::write(&damaged, "nonsense").expect("a file");
    let output = certificates(cluster, &[]);
    std::fs::remove_file(&damaged).expect("the file");
    let (shown, said) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert_eq!(output.status.code(), Some(1));
    assert!(shown.contains("damaged") && shown.contains("<unreadable>"), "{shown}");
    assert!(said.starts_with("error: damaged cannot be read: ") && said.contains("no certificate"), "{said}");
}
