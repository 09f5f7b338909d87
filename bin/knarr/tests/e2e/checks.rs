//! `knarr check` of a running server, of one that was killed, and of one whose file is damaged.

use std::fs;
use std::process::Output;

use crate::cluster::Cluster;
use crate::objects::{config_map, sleeper};
use crate::sandbox::succeeded;

fn check(cluster: &Cluster, words: &[&str]) -> Output {
    cluster.knarr(&[&["check"], words].concat()).output().expect("nsenter(1) of util-linux")
}

fn json(output: &Output) -> serde_json::Value {
    serde_json::from_slice(&output.stdout).unwrap_or_else(|e| panic!("{e}: {output:?}"))
}

#[test]
fn h5_damage_is_found_and_repaired() {
    let mut cluster = Cluster::start();
    {
        let kubectl = cluster.namespace("checked");
        kubectl.apply(&config_map("kept", serde_json::json!({"k": "unmistakable-value"})));
        kubectl.apply(&sleeper("stays"));
        kubectl.ready("stays");
        let said = succeeded("knarr check", &check(&cluster, &[]));
        assert!(said.contains(" keys at revision ") && said.contains("not the store's file"), "{said}");
        let running = check(&cluster, &["--repair"]);
        let said = String::from_utf8_lossy(&running.stderr).into_owned();
        assert!(!running.status.success() && said.contains("a server runs on"), "{said}");
        // The namespace has to exist afterwards.
        std::mem::forget(kubectl);
    }
    cluster.kill_server();
    let found = check(&cluster, &["-o", "json"]);
    succeeded("knarr check", &found);
    assert_eq!(json(&found)["findings"], serde_json::json!([]));
    cluster.start_server();
    assert!(cluster.interrupt_server());

    let file = cluster.data_dir().join("store/store.redb");
    let mut bytes = fs::read(&file).expect("the store");
    let value = b"unmistakable-value";
    let places: Vec<usize> =
        (0..bytes.len() - value.len()).filter(|at| bytes[*at..].starts_with(value)).collect();
    assert!(!places.is_empty());
    places.iter().for_each(|at| bytes[*at] ^= 1);
    fs::write(&file, &bytes).expect("the store");
    let found = check(&cluster, &["-o", "json"]);
    assert_eq!(found.status.code(), Some(1));
    assert_eq!(fs::read(&file).expect("the store"), bytes, "nothing is changed");
    let key = "/registry/core/configmaps/checked/kept";
    let findings = json(&found)["findings"].as_array().cloned().expect("a list");
    assert!(findings.iter().any(|f| f["name"] == key && f["severity"] == "error"), "{findings:?}");

    let repaired = check(&cluster, &["--repair", "-o", "json"]);
    assert_eq!(repaired.status.code(), Some(1), "the object itself is lost");
    let kept = json(&repaired)["keptIn"].as_str().expect("a folder").to_owned();
    assert_eq!(fs::read(format!("{kept}/store.redb")).expect("a copy"), bytes);
    cluster.start_server();
    let admin = cluster.admin();
    admin.run("wait -n checked --for=condition=Ready pod/stays --timeout=60s");
    let lost = admin.fails("get configmap -n checked kept");
    assert!(lost.contains("corrupt object"), "{lost}");
}
