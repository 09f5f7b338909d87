//! Runs all cases at once, as pods of one server.

use std::time::{Duration, Instant};

use serde_json::{Value, json};

use super::attacker::{self, IMAGE};
use super::cases::{Attack, Setting, VARIANTS, Variant};
use super::host::{Host, make_marker, marker_changes};
use super::{outcome, processes, volumes};
use crate::cluster::{knarr, shared};
use crate::kubectl::Kubectl;
use crate::objects::once;

/// Long enough for a machine that is thirty times as slow as others.
const PATIENCE: Duration = Duration::from_secs(600);
/// How often a race is attempted. `KNARR_ESCAPE_TRIES` sets another number, for slow machines.
const TRIES: usize = 6;

type Case = fn(Variant, &Setting) -> Attack;

const CASES: [Case; 12] = [
    processes::inside,
    processes::working_folders,
    processes::executables,
    processes::executables_by_exec,
    processes::newcomers,
    processes::changing_roots,
    processes::shared_processes,
    processes::kernel_file_systems,
    volumes::sub_paths,
    volumes::mount_points,
    volumes::devices,
    volumes::messages,
];

#[test]
fn pods_stay_in() {
    let cluster = shared();
    attacker::import(cluster);
    let kubectl = cluster.namespace("escapes");
    let folder = cluster.sandbox.path("escapes");
    let mut host = Host::new(&folder, knarr());
    let tries = std::env::var("KNARR_ESCAPE_TRIES").ok().and_then(|text| text.parse().ok()).unwrap_or(TRIES);
    let marker = host.marker.to_string_lossy().into_owned();
    let setting = Setting { marker, disk: host.disk.clone(), tries };
    let attacks: Vec<Attack> =
        CASES.iter().flat_map(|case| VARIANTS.map(|variant| case(variant, &setting))).collect();
    let list = json!({"apiVersion": "v1", "kind": "List", "items": attacks.iter().map(|a| &a.pod).collect::<Vec<_>>()});
    kubectl.with("create --validate=false -f -", &list.to_string());
    let ended = all_ended(&kubectl, &attacks);
    let mut faults: Vec<String> =
        attacks.iter().flat_map(|attack| outcome::faults(attack, &pod(&ended, &attack.name))).collect();
    faults.extend(host.changes());
    assert!(faults.is_empty(), "{} faults:\n{}", faults.len(), faults.join("\n"));
}

/// Waits until all containers of the pods have ended, or until a timeout; returns the pods.
pub fn all_ended(kubectl: &Kubectl, attacks: &[Attack]) -> Value {
    let deadline = Instant::now() + PATIENCE;
    loop {
        let pods = kubectl.json("pods");
        let open =
            attacks.iter().any(|attack| !outcome::unfinished(attack, &pod(&pods, &attack.name)).is_empty());
        if !open || Instant::now() > deadline {
            return pods;
        }
        std::thread::sleep(Duration::from_secs(1));
    }
}

pub fn pod(pods: &Value, name: &str) -> Value {
    let pods = pods["items"].as_array().into_iter().flatten();
    pods.clone().find(|pod| pod["metadata"]["name"] == name).cloned().unwrap_or_default()
}

/// A control case: a pod that mounts the marker's folder changes it, and the tests detect that.
#[test]
fn an_open_door_is_seen() {
    let cluster = shared();
    attacker::import(cluster);
    let kubectl = cluster.namespace("escapes-open");
    let marker = make_marker(&cluster.sandbox.path("given"));
    let mut pod = once("open", &format!("attack look open {} >/dev/termination-log", marker.display()));
    pod["spec"]["containers"][0]["image"] = json!(IMAGE);
    pod["spec"]["containers"][0]["volumeMounts"] = json!([{"name": "host", "mountPath": marker}]);
    pod["spec"]["volumes"] = json!([{"name": "host", "hostPath": {"path": marker}}]);
    kubectl.apply(&pod);
    kubectl.phase("open", "Succeeded");
    let words = kubectl.path("pod open", "{.status.containerStatuses[0].state.terminated.message}");
    assert!(words.contains("escaped: ") && words.contains("looked"), "{words}");
    let changes = marker_changes(&marker);
    assert!(changes.len() == 2, "a new file and a change: {changes:?}");
}
