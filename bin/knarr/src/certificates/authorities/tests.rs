//! End-to-end tests of rotations on a folder, including processes that die midway.

use std::fs;
use std::path::{Path, PathBuf};

use knarr_storage::{Embedded, Options, Store};

use super::plan::{NAMES, SERVICE_ACCOUNTS};
use super::*;
use crate::certificates::facts;
use crate::certificates::inventory;
use crate::pki::{Subject, read};

struct Folder(PathBuf);

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

fn cluster(name: &str) -> (Folder, Layout) {
    let folder = Folder(std::env::temp_dir().join(format!("knarr-rotate-ca-{name}-{}", std::process::id())));
    let _ = fs::remove_dir_all(&folder.0);
    let layout = Layout::create(&folder.0).unwrap();
    let pki = Pki::open(layout.pki()).unwrap();
    pki.authorities().unwrap();
    leaf(&layout);
    (folder, layout)
}

/// Returns the serving certificate as a server creates or keeps it at its start.
fn leaf(layout: &Layout) -> String {
    let subject = Subject {
        common_name: "x",
        organizations: &[],
        names: &["x".to_owned()],
        addresses: &[],
        server: true,
        client: true,
    };
    let pki = Pki::open(layout.pki()).unwrap();
    pki.front_proxy().unwrap().credentials("front-proxy-client", &subject).unwrap();
    pki.credentials("apiserver", &subject).unwrap().certificate
}

fn step(layout: &Layout, action: Action) -> Result<()> {
    run(layout, &RotateCaArgs { action })
}

fn all() -> Action {
    Action::Begin { names: Vec::new() }
}

fn bundle(layout: &Layout, name: &str) -> Vec<String> {
    let pem = read(&layout.pki().join(format!("{name}.crt"))).unwrap();
    let chain = facts::chain(pem.as_bytes()).unwrap();
    chain.iter().map(|der| facts::Facts::of(der).unwrap().subject).collect()
}

fn is_trusted(leaf: &str, bundle: &str) -> bool {
    let leaf = facts::chain(leaf.as_bytes()).unwrap();
    let bundle = facts::chain(bundle.as_bytes()).unwrap();
    bundle.iter().any(|authority| facts::is_signed_by(&leaf[0], authority))
}

#[test]
fn all_authorities_are_rotated_in_three_steps() {
    let (_folder, layout) = cluster("whole");
    let pki = || Pki::open(layout.pki()).unwrap();
    let trust = || pki().ca_pem().to_owned();
    let (identity, trust_before, leaf_before) = (pki().identity().unwrap(), trust(), leaf(&layout));
    let token_key = pki().service_account_key().unwrap();
    assert!(further_token_keys(&layout.pki()).unwrap().is_empty());

    step(&layout, all()).unwrap();
    assert!(bundle(&layout, "ca").len() == 2 && bundle(&layout, "ca")[0] == "kubernetes");
    assert_eq!(leaf(&layout), leaf_before, "the old one signs");
    assert_eq!(pki().service_account_key().unwrap(), token_key);
    assert_eq!(further_token_keys(&layout.pki()).unwrap().len(), 1, "and the next one is known");
    let trust_between = trust();
    let error = step(&layout, Action::Sign { force: false }).unwrap_err().to_string();
    assert!(error.starts_with("not yet: the server to be restarted"), "{error}");

    step(&layout, Action::Sign { force: true }).unwrap();
    for name in &NAMES[..3] {
        let bundle = bundle(&layout, name);
        assert!(bundle.len() == 2 && bundle[0].contains('@') && !bundle[1].contains('@'), "{bundle:?}");
    }
    let waits = waiting::on(&layout, &load(&layout.pki()).unwrap().unwrap(), SystemClock.now()).unwrap();
    assert!(waits.iter().any(|on| on.starts_with("apiserver: the server signs it anew")), "{waits:?}");
    let leaf_after = leaf(&layout);
    assert_ne!(leaf_after, leaf_before, "the server signs anew");
    assert!(is_trusted(&leaf_after, &trust_between) && !is_trusted(&leaf_after, &trust_before));
    assert!(is_trusted(&leaf_before, &trust()), "old certificates are good until the end");
    assert_ne!(pki().service_account_key().unwrap(), token_key);
    let waits = waiting::on(&layout, &load(&layout.pki()).unwrap().unwrap(), SystemClock.now()).unwrap();
    assert!(!waits.iter().any(|on| on.contains("signs it anew")), "{waits:?}");

    step(&layout, Action::Finish { force: true }).unwrap();
    for name in &NAMES[..3] {
        assert_eq!(bundle(&layout, name).len(), 1, "{name}");
    }
    assert_eq!(leaf(&layout), leaf_after);
    assert!(!is_trusted(&leaf_before, &trust()) && is_trusted(&leaf_after, &trust_between));
    assert!(!layout.pki().join("rotation").exists() && load(&layout.pki()).unwrap().is_none());
    let former = further_token_keys(&layout.pki()).unwrap();
    let public = rcgen::KeyPair::from_pem(&token_key).unwrap().public_key_pem();
    assert_eq!(former, std::slice::from_ref(&public), "tokens of before are still verified");
    assert_eq!(pki().identity().unwrap(), identity, "it is the same cluster");
    assert!(inventory::read(&layout).unwrap().iter().all(|entry| entry.facts.is_ok()));

    // Rotates once more.
    step(&layout, Action::Begin { names: vec![SERVICE_ACCOUNTS.to_owned()] }).unwrap();
    assert_eq!(bundle(&layout, "ca").len(), 1, "that one alone");
    step(&layout, Action::Sign { force: true }).unwrap();
    step(&layout, Action::Finish { force: true }).unwrap();
    let former = further_token_keys(&layout.pki()).unwrap().concat();
    assert!(former.matches("BEGIN PUBLIC KEY").count() == 2 && former.contains(public.trim()));
}

#[test]
fn a_rotation_is_given_up_before_anything_is_signed() {
    let (_folder, layout) = cluster("cancel");
    let before = read(&layout.pki().join("ca.crt")).unwrap();
    assert!(step(&layout, Action::Cancel).is_err());
    step(&layout, all()).unwrap();
    assert!(step(&layout, all()).is_err());
    step(&layout, Action::Cancel).unwrap();
    assert_eq!(read(&layout.pki().join("ca.crt")).unwrap(), before);
    assert!(further_token_keys(&layout.pki()).unwrap().is_empty());
    assert!(!layout.pki().join("rotation").exists());
}

fn copy(from: &Path, to: &Path) {
    fs::create_dir_all(to).unwrap();
    for entry in fs::read_dir(from).unwrap() {
        let entry = entry.unwrap();
        let target = to.join(entry.file_name());
        if entry.path().is_dir() {
            copy(&entry.path(), &target);
        } else {
            fs::copy(entry.path(), target).unwrap();
        }
    }
}

/// The procedure of docs/certificates.md for several servers: the rotation is copied once, and each step is
/// taken on each server.
#[test]
fn servers_that_take_the_same_steps_have_the_same_authorities() {
    let (_a, a) = cluster("same-a");
    let (_b, b) = another("same-b", &a);
    step(&a, all()).unwrap();
    copy_rotation(&a, &b);
    resume(&b.pki()).unwrap();
    let files = ["ca.crt", "ca.key", "sa.key", "identity", "front-proxy/ca.crt", "front-proxy/ca.key"];
    let same = |further: &[&str]| {
        for file in files.iter().chain(further) {
            let of = |layout: &Layout| fs::read(layout.pki().join(file)).unwrap();
            assert!(of(&a) == of(&b), "{file}");
        }
    };
    same(&["rotation/state.json", "kubelet-serving/ca.crt", "kubelet-serving/ca.key"]);
    for server in [&a, &b] {
        step(server, Action::Sign { force: true }).unwrap();
    }
    same(&[]);
    for server in [&b, &a] {
        step(server, Action::Finish { force: true }).unwrap();
    }
    same(&["sa.former.pub", "rotation.last", "kubelet-serving/ca.crt", "kubelet-serving/ca.key"]);
    assert!(load(&b.pki()).unwrap().is_none() && bundle(&b, "ca").len() == 1);
}

fn copy_rotation(from: &Layout, to: &Layout) {
    copy(&from.pki().join("rotation"), &to.pki().join("rotation"));
    fs::copy(from.pki().join("identity"), to.pki().join("identity")).unwrap();
}

#[test]
fn a_start_waits_until_a_step_is_written() {
    let (_folder, layout) = cluster("start");
    step(&layout, all()).unwrap();
    let lock = pki::lock(&layout.pki()).unwrap();
    let (send, receive) = std::sync::mpsc::channel();
    let folder = layout.pki();
    let start = std::thread::spawn(move || {
        let opened = open(&folder, Arc::new(SystemClock)).unwrap();
        send.send(()).unwrap();
        opened
    });
    assert!(receive.recv_timeout(Duration::from_millis(200)).is_err(), "the step is being written");
    // The next phase, of which only the state is on disk.
    let mut rotation = load(&layout.pki()).unwrap().unwrap();
    rotation.phase = Phase::Sign;
    let state = serde_json::to_vec(&rotation).unwrap();
    fs::write(layout.pki().join("rotation/state.json"), state).unwrap();
    drop(lock);
    let opened = start.join().unwrap();
    assert_eq!(opened.rotation.unwrap().phase, Phase::Sign);
    assert_eq!(opened.pki.ca_pem(), read(&layout.pki().join("ca.crt")).unwrap());
    assert!(bundle(&layout, "ca")[0].contains('@'), "the new one signs");
    assert!(step(&layout, Action::Status).is_err(), "a step waits for the start in turn");
    drop(opened.lock);
    step(&layout, Action::Status).unwrap();
}

/// Creates a server of the same cluster on one etcd, with the files that an administrator copies to it.
fn another(name: &str, of: &Layout) -> (Folder, Layout) {
    let (folder, layout) = cluster(name);
    fs::remove_dir_all(layout.pki()).unwrap();
    copy(&of.pki(), &layout.pki());
    (folder, layout)
}

#[tokio::test]
async fn a_server_that_was_away_while_authorities_were_replaced_is_refused() {
    let store = Embedded::memory(Options::default());
    let key = b"/cluster/authorities";
    let start = async |layout: &Layout| {
        let pki = Pki::open(layout.pki()).unwrap();
        crate::store::keep_in_step(&store, &pki, "/knarr").await
    };
    let (_a, a) = cluster("step-a");
    let (_b, b) = another("step-b", &a);
    let (_c, away) = another("step-c", &a);
    for server in [&a, &b, &away] {
        start(server).await.unwrap();
    }
    assert!(store.get(key).await.unwrap().is_none(), "nothing changes before the first rotation");

    step(&a, all()).unwrap();
    copy_rotation(&a, &b);
    let actions = || [None, Some(Action::Sign { force: true }), Some(Action::Finish { force: true })];
    for (first, second) in actions().into_iter().zip(actions()) {
        first.into_iter().for_each(|action| step(&a, action).unwrap());
        // The other server is a step behind, and starts in between.
        start(&a).await.unwrap();
        start(&b).await.unwrap();
        second.into_iter().for_each(|action| step(&b, action).unwrap());
        resume(&b.pki()).unwrap();
        for server in [&b, &a, &b] {
            start(server).await.unwrap();
        }
    }
    let refused = start(&away).await.unwrap_err().to_string();
    assert!(refused.contains("(ca, front-proxy/ca, kubelet-serving/ca, service-accounts)"), "{refused}");
    assert!(refused.ends_with("delete /knarr/cluster/authorities in etcd"), "{refused}");
    assert_eq!(
        Pki::open(away.pki()).unwrap().identity().unwrap(),
        Pki::open(a.pki()).unwrap().identity().unwrap(),
        "by its identity it would be of the cluster"
    );
    // The rotation that was begun there is another one, of authorities that no longer exist.
    step(&away, all()).unwrap();
    assert!(start(&away).await.is_err());
    let (_d, fresh) = another("step-d", &a);
    start(&fresh).await.unwrap();
    step(&fresh, all()).unwrap();
    for server in [&fresh, &a, &b] {
        start(server).await.unwrap();
    }
}

/// Mixes the files of `pki/` from before and after a step: whichever of them a killed process had written
/// after the phase, a start completes the step.
#[test]
fn a_process_that_dies_within_a_step_leaves_it_to_the_next_start() {
    let (_folder, layout) = cluster("killed");
    let steps = [all(), Action::Sign { force: true }, Action::Finish { force: true }];
    for action in steps {
        let before = layout.root().join("before");
        copy(&layout.pki(), &before);
        step(&layout, action).unwrap();
        let after = layout.root().join("after");
        copy(&layout.pki(), &after);
        let changed: Vec<String> = ["ca.crt", "ca.key", "sa.key", "front-proxy/ca.crt", "front-proxy/ca.key"]
            .into_iter()
            .filter(|name| fs::read(before.join(name)).unwrap() != fs::read(after.join(name)).unwrap())
            .map(str::to_owned)
            .collect();
        assert!(!changed.is_empty());
        // In a last phase, the folder of the rotation is removed at the end.
        let rotation = load(&after).unwrap();
        for written in 0..changed.len() {
            let pki = layout.root().join("killed");
            copy(&after, &pki);
            for name in &changed[written..] {
                fs::copy(before.join(name), pki.join(name)).unwrap();
            }
            if rotation.is_none() {
                copy(&before.join("rotation"), &pki.join("rotation"));
                let mut last = load(&before).unwrap().unwrap();
                last.phase = Phase::Finish;
                let text = serde_json::to_vec(&last).unwrap();
                fs::write(pki.join("rotation/state.json"), text).unwrap();
            }
            resume(&pki).unwrap();
            resume(&pki).unwrap();
            assert_eq!(load(&pki).unwrap(), rotation);
            for name in &changed {
                assert!(fs::read(pki.join(name)).unwrap() == fs::read(after.join(name)).unwrap(), "{name}");
            }
            Pki::open(pki.clone()).unwrap().front_proxy().unwrap();
            fs::remove_dir_all(&pki).unwrap();
        }
        fs::remove_dir_all(&before).unwrap();
        fs::remove_dir_all(&after).unwrap();
    }
}
