//! End-to-end tests of damaged data folders and backups.

use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt;

use knarr_storage::{Checked, Fault, FaultKind, Options, Precondition, Store};

use super::*;
use crate::backup::contents;
use crate::pki::Pki;

struct Folder(PathBuf);

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// Creates a data folder with keys, certificates and two objects.
async fn cluster(name: &str) -> (Folder, Layout) {
    let folder = Folder(std::env::temp_dir().join(format!("knarr-check-{name}-{}", std::process::id())));
    let _ = fs::remove_dir_all(&folder.0);
    let layout = Layout::create(&folder.0).unwrap();
    let pki = Pki::open(layout.pki()).unwrap();
    pki.service_account_key().unwrap();
    crate::kubeconfig::write_admin(&layout, &pki, "https://127.0.0.1:6443").unwrap();
    let options = Options { reserve_bytes: 0, ..Options::default() };
    let store = Embedded::open(layout.store(), options).unwrap();
    for name in ["a", "b"] {
        let key = format!("/registry/core/configmaps/n/{name}");
        let meta = format!(r#"{{"namespace":"n","name":"{name}","uid":"u"}}"#);
        let value = format!(r#"{{"kind":"ConfigMap","apiVersion":"v1","metadata":{meta}}}"#);
        store.put(key.into(), value.into(), Precondition::Any, None).await.unwrap();
    }
    store.close().await.unwrap();
    (folder, layout)
}

fn args(layout: &Layout, repair: bool) -> CheckArgs {
    CheckArgs {
        file: None,
        data_dir: layout.root().to_owned(),
        repair,
        encryption_provider_config: None,
        passphrase_file: None,
        output: Output::Table,
        etcd: EtcdArgs::none(),
    }
}

/// Returns everything in a folder with its content, except the lock's leftovers.
fn image(folder: &Path) -> Vec<(PathBuf, u32, Vec<u8>)> {
    let mut found = Vec::new();
    let mut folders = vec![folder.to_owned()];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            if path.ends_with("pki/lock") {
                continue;
            }
            let mode = fs::metadata(&path).unwrap().permissions().mode();
            if path.is_dir() {
                folders.push(path.clone());
                found.push((path, mode, Vec::new()));
            } else {
                let content = fs::read(&path).unwrap();
                found.push((path, mode, content));
            }
        }
    }
    found.sort();
    found
}

fn names(report: &Report) -> Vec<(&str, &str)> {
    report.findings.iter().map(|finding| (finding.area, finding.name.as_str())).collect()
}

#[tokio::test]
async fn a_sound_folder_is_found_sound_and_not_touched() {
    let (_folder, layout) = cluster("sound").await;
    let before = image(layout.root());
    let report = check(&args(&layout, false)).await.unwrap();
    assert_eq!(names(&report), []);
    assert!(report.looked_at.contains(&"store: 2 keys at revision 3".to_owned()), "{:?}", report.looked_at);
    let report = check(&args(&layout, true)).await.unwrap();
    assert_eq!((report.left(), report.kept), (0, None));
    assert!(image(layout.root()) == before);
    let nowhere = Layout::at(&layout.root().join("nowhere"));
    assert!(check(&args(&nowhere, false)).await.is_err());
}

#[tokio::test]
async fn damage_is_found_without_a_change_and_repaired_on_request() {
    let (_folder, layout) = cluster("damaged").await;
    let pki = layout.pki();
    fs::set_permissions(pki.join("sa.key"), Permissions::from_mode(0o644)).unwrap();
    fs::write(pki.join("admin.key"), "x").unwrap();
    let file = layout.store().join("store.redb");
    let mut bytes = fs::read(&file).unwrap();
    // Damages the value of an object, and updates the checksums of its page and row.
    let at = bytes.windows(16).position(|window| window == br#""kind":"ConfigMa"#).unwrap();
    bytes[at] ^= 1;
    fs::write(&file, &bytes).unwrap();
    let before = image(layout.root());
    let report = check(&args(&layout, false)).await.unwrap();
    let found = names(&report);
    assert!(
        found.contains(&("file", "pki/sa.key")) && found.contains(&("certificate", "pki/admin.crt")),
        "{found:?}"
    );
    assert!(found.contains(&("store", "store.redb")), "{found:?}");
    assert!(
        found.iter().any(|(area, name)| *area == "store" && name.starts_with("/registry/core/")),
        "{found:?}"
    );
    assert!(image(layout.root()) == before, "nothing is changed without --repair");

    let report = check(&args(&layout, true)).await.unwrap();
    // The object itself cannot be restored.
    assert_eq!(report.left(), 1, "{:?}", report.findings);
    let kept = PathBuf::from(report.kept.unwrap());
    assert_eq!(fs::read(kept.join("store.redb")).unwrap(), bytes);
    assert_eq!(fs::read(kept.join("pki/admin.key")).unwrap(), b"x");
    assert!(!pki.join("admin.crt").exists() && !pki.join("admin.key").exists());
    let again = check(&args(&layout, false)).await.unwrap();
    assert!(
        again.left() == 1 && again.findings.iter().all(|f| f.name.starts_with("/registry/")),
        "{again:?}"
    );
}

#[tokio::test]
async fn what_cannot_be_repaired_is_left_alone() {
    let (_folder, layout) = cluster("lost").await;
    let file = layout.store().join("store.redb");
    let whole = fs::read(&file).unwrap();
    fs::write(&file, &whole[..whole.len() / 2]).unwrap();
    fs::remove_file(layout.pki().join("ca.key")).unwrap();
    let before = image(layout.root());
    let report = check(&args(&layout, true)).await.unwrap();
    assert_eq!(names(&report), [("file", "pki/ca.key"), ("store", "store.redb")]);
    assert_eq!((report.left(), report.kept), (2, None));
    assert!(report.findings[1].problem.ends_with("bring back a backup with `knarr restore`"));
    assert!(image(layout.root()) == before);
}

#[tokio::test]
async fn backups_are_looked_into() {
    let (_folder, layout) = cluster("backup").await;
    let options = Options { reserve_bytes: 0, ..Options::default() };
    let store = Embedded::open(layout.store(), options).unwrap();
    let taken = snapshot(&store).await.unwrap();
    store.close().await.unwrap();
    let source = contents::Source {
        layout: layout.clone(),
        node: "n".to_owned(),
        shared_store: false,
        encryption_config: None,
    };
    let contents = contents::prepare(&source, taken, jiff::Timestamp::UNIX_EPOCH).unwrap();
    let (_, bytes) = contents.write(None, Vec::new()).unwrap();
    let file = layout.root().join("b.knarr");
    fs::write(&file, &bytes).unwrap();
    let of_file = CheckArgs { file: Some(file.clone()), ..args(&layout, false) };
    let report = check(&of_file).await.unwrap();
    assert_eq!(names(&report), []);
    assert!(report.looked_at[0].starts_with("2 keys at revision 3"), "{:?}", report.looked_at);
    fs::write(&file, &bytes[..bytes.len() - 20]).unwrap();
    let report = check(&of_file).await.unwrap();
    assert_eq!((names(&report).len(), report.findings[0].area), (1, "backup"));
}

#[tokio::test]
async fn files_of_others_and_links_are_left_as_they_are() {
    let (_folder, layout) = cluster("others").await;
    let pki = layout.pki();
    // The files of another cluster: none of them fits this one's authorities.
    let (_other, other) = cluster("others-etcd").await;
    for name in ["etcd", "tls"] {
        fs::create_dir(pki.join(name)).unwrap();
        fs::set_permissions(pki.join(name), Permissions::from_mode(0o700)).unwrap();
    }
    let copies = [
        ("admin.crt", "etcd/client.crt"),
        ("admin.key", "etcd/client.key"),
        ("admin.crt", "tls/web.crt"),
        ("admin.key", "tls/web.key"),
        ("ca.crt", "oidc.crt"),
    ];
    for (from, to) in copies {
        fs::copy(other.pki().join(from), pki.join(to)).unwrap();
    }
    // The keys are kept elsewhere.
    for name in ["ca.crt", "admin.key"] {
        let elsewhere = layout.root().join(name);
        fs::rename(pki.join(name), &elsewhere).unwrap();
        std::os::unix::fs::symlink(&elsewhere, pki.join(name)).unwrap();
    }
    let before = image(layout.root());
    let report = check(&args(&layout, false)).await.unwrap();
    assert_eq!(names(&report), []);
    // A repair of something else.
    fs::set_permissions(pki.join("sa.key"), Permissions::from_mode(0o644)).unwrap();
    let report = check(&args(&layout, true)).await.unwrap();
    assert_eq!((report.left(), names(&report)), (0, vec![("file", "pki/sa.key")]));
    let kept = PathBuf::from(report.kept.unwrap());
    assert!(kept.join("pki/ca.crt").exists());
    fs::remove_dir_all(&kept).unwrap();
    assert!(image(layout.root()) == before);
}

#[tokio::test]
async fn nothing_is_repaired_while_certificates_are_changed() {
    let (_folder, layout) = cluster("locked").await;
    fs::set_permissions(layout.pki().join("sa.key"), Permissions::from_mode(0o644)).unwrap();
    let locked = crate::pki::lock(&layout.pki()).unwrap();
    let error = check(&args(&layout, true)).await.unwrap_err();
    assert!(error.to_string().contains("another process changes the certificates"), "{error}");
    assert_eq!(names(&check(&args(&layout, false)).await.unwrap()), [("file", "pki/sa.key")]);
    drop(locked);
    assert_eq!(check(&args(&layout, true)).await.unwrap().left(), 0);
}

/// Other users could write to `pki/` until now: a link that they have put in place of a file is not followed.
#[tokio::test]
async fn modes_are_not_changed_through_links() {
    let (_folder, layout) = cluster("links").await;
    let (outside, inside) = (layout.root().join("outside"), layout.pki().join("sa.key"));
    fs::set_permissions(&inside, Permissions::from_mode(0o644)).unwrap();
    let mut findings = folder::modes(&layout);
    assert_eq!(findings.len(), 1, "{findings:?}");
    fs::rename(&inside, &outside).unwrap();
    std::os::unix::fs::symlink(&outside, &inside).unwrap();
    let kept = layout.root().join("before");
    folder::repair(&layout, &mut findings, &kept).unwrap();
    assert!(!findings[0].repaired && findings[0].problem.contains("was not repaired"), "{findings:?}");
    assert_eq!(fs::metadata(&outside).unwrap().permissions().mode() & 0o777, 0o644);
}

#[tokio::test]
async fn a_store_that_is_lost_keeps_nothing_else_from_being_repaired() {
    let (_folder, layout) = cluster("lost-store").await;
    fs::write(layout.pki().join("admin.key"), "x").unwrap();
    let mut findings = check(&args(&layout, false)).await.unwrap().findings;
    // Found with the others, and worse than it looked.
    findings.push(Finding::error("store", "store.redb", "pages").repair(Some("the file is written anew")));
    let file = layout.store().join("store.redb");
    let whole = fs::read(&file).unwrap();
    fs::write(&file, &whole[..whole.len() / 2]).unwrap();
    let kept = layout.root().join("before");
    assert!(folder::repair(&layout, &mut findings, &kept).unwrap());
    assert!(findings.iter().any(|f| f.name == "store.redb" && f.problem.starts_with("it was not repaired:")));
    assert!(findings.iter().any(|f| f.name == "pki/admin.crt" && f.repaired), "{findings:?}");
    assert!(kept.join("pki/admin.key").exists() && !kept.join("store.redb").exists());

    // A check promises no repair of such a store.
    let fault = |kind| Fault { kind, key: None, reason: "torn".to_owned() };
    let mut checked = Checked::default();
    checked.faults.push(fault(FaultKind::Pages));
    assert!(folder::findings(&checked)[0].repair.is_some());
    checked.faults.push(fault(FaultKind::Unreadable));
    assert!(folder::findings(&checked).iter().all(|finding| finding.repair.is_none()));
}

#[test]
fn a_disk_without_room_for_copies_stays_as_full_as_it_was() {
    let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
    let (_folder, layout) = runtime.block_on(cluster("full"));
    let store = fs::read(layout.store().join("store.redb")).unwrap();
    std::thread::scope(|scope| {
        // A mount namespace of this thread alone, with a disk that has room for the file and little else.
        let work = || {
            use nix::mount::{MsFlags, mount};
            nix::sched::unshare(nix::sched::CloneFlags::CLONE_NEWNS).unwrap();
            let (none, private) = (None::<&str>, MsFlags::MS_REC | MsFlags::MS_PRIVATE);
            mount(none, "/", none, private, none).unwrap();
            let root = layout.root().join("disk");
            fs::create_dir(&root).unwrap();
            let size = format!("size={}", store.len() + store.len() / 2);
            mount(Some("tmpfs"), &root, Some("tmpfs"), MsFlags::empty(), Some(size.as_str())).unwrap();
            let small = Layout::create(&root).unwrap();
            fs::create_dir_all(small.store()).unwrap();
            fs::create_dir_all(small.pki()).unwrap();
            fs::write(small.pki().join("sa.key"), "k").unwrap();
            let mut bytes = store.clone();
            let at = bytes.windows(16).position(|window| window == br#""kind":"ConfigMa"#).unwrap();
            bytes[at] ^= 1;
            fs::write(small.store().join("store.redb"), &bytes).unwrap();
            let before = image(&root);
            let mut findings = folder::store(&small).unwrap().findings;
            assert!(findings.iter().any(|f| f.repair.is_some()), "{findings:?}");
            let error = folder::repair(&small, &mut findings, &root.join("before")).unwrap_err();
            assert!(error.to_string().ends_with("nothing was repaired"), "{error:#}");
            assert!(image(&root) == before, "copies were left");
        };
        scope.spawn(work).join().unwrap();
    });
}
