//! Tests of the store through its public interface.

use std::collections::BTreeMap;
use std::fs;
use std::io::{Cursor, Write};
use std::os::unix::process::ExitStatusExt;
use std::process::{Command, Stdio};
use std::time::Duration;

use super::fixture::{Tar, TempDir, TestImage, gzip, is_root, zstd};
use super::layers::LayerLimits;
use super::*;

async fn import(store: &ImageStore, archive: Vec<u8>) -> Result<Vec<Image>, ImageError> {
    store.import_from(Cursor::new(archive), ImportOptions::default()).await
}

fn layer(name: &str, content: &str) -> Vec<u8> {
    Tar::new().file(name, content).bytes()
}

fn read(store: &ImageStore, image: &Image, path: &str) -> Option<String> {
    let dirs = image.layers.iter().rev().map(|chain| store.inner.layers.fs_dir(chain));
    dirs.into_iter().find_map(|dir| fs::read_to_string(dir.join(path)).ok())
}

#[tokio::test]
async fn an_oci_archive_is_imported_listed_found_and_removed() {
    if !is_root() {
        return;
    }
    let dir = TempDir::new();
    let store = ImageStore::open(dir.path()).await.unwrap();
    let plain = layer("hello", "world");
    let config = ImageConfig { cmd: vec!["/hello".into()], ..Default::default() };
    let test =
        TestImage::new(&[(gzip(&plain), plain.clone()), (zstd(&layer("b", "2")), layer("b", "2"))], config);
    let images = import(&store, gzip(&test.oci_archive("docker.io/library/web:1"))).await.unwrap();
    assert_eq!(images.len(), 1);
    let image = &images[0];
    assert_eq!(image.id, test.id);
    assert_eq!(image.repo_tags, ["docker.io/library/web:1"]);
    assert_eq!(image.repo_digests, [format!("docker.io/library/web@{}", test.manifest.digest)]);
    assert_eq!(image.size, test.blobs.iter().map(|(_, b)| b.len() as u64).sum::<u64>());
    assert_eq!(image.config.cmd, ["/hello"]);
    assert_eq!(read(&store, image, "hello").as_deref(), Some("world"));
    assert_eq!(read(&store, image, "b").as_deref(), Some("2"));

    drop(store);
    let store = ImageStore::open(dir.path()).await.unwrap();
    let id = image.id.to_string();
    for name in ["web:1", "docker.io/library/web:1", &id, &id[7..], &id[7..20], &image.repo_digests[0]] {
        assert_eq!(store.get(name).await.unwrap().map(|i| i.id), Some(image.id), "{name}");
    }
    for name in ["web", "web:2", "other:1", &"a".repeat(64)] {
        assert!(store.get(name).await.unwrap().is_none(), "{name}");
    }
    assert!(matches!(store.get("Web:1").await.unwrap_err().kind(), ErrorKind::InvalidReference));

    store.tag("web:1", &"web:stable".parse().unwrap()).await.unwrap();
    let removed = store.remove("web:1").await.unwrap();
    assert_eq!(removed.untagged, ["docker.io/library/web:1"]);
    assert!(removed.collected.unwrap().blobs.is_empty());
    let removed = store.remove("web:stable").await.unwrap();
    assert_eq!(removed.untagged.len(), 2, "removing the last tag also removes the digest");
    let collected = removed.collected.unwrap();
    assert_eq!((collected.blobs.len(), collected.layers.len()), (4, 2));
    assert!(store.list().await.unwrap().is_empty());
    assert_eq!(store.fs_info().await.unwrap().used, DiskUsage::default());
    assert!(matches!(store.remove("web:stable").await, Err(ImageError::NoImage(_))));
}

#[tokio::test]
async fn docker_archives_of_every_age() {
    if !is_root() {
        return;
    }
    let (a, b) = (layer("a", "1"), layer("b", "2"));
    let test = TestImage::plain(&[a.clone(), b.clone(), a.clone()]);
    let config = &test.blobs.iter().find(|(d, _)| *d == test.id).unwrap().1;
    let list = |config: &str, layers: [&str; 3]| {
        serde_json::json!([{"Config": config, "RepoTags": ["old:1", "reg.io/x/y:2"], "Layers": layers}])
            .to_string()
    };
    let old = Tar::new()
        .dir("l1/", 0o755)
        .file("l1/VERSION", "1.0")
        .file("l1/layer.tar", &a)
        .file("l2/layer.tar", &b)
        .symlink("l3/layer.tar", "../l1/layer.tar")
        .file("abc.json", config)
        .file("repositories", "{}")
        .file("manifest.json", list("abc.json", ["l1/layer.tar", "l2/layer.tar", "l3/layer.tar"]))
        .bytes();
    let blob = |bytes: &[u8]| format!("blobs/sha256/{}", Digest::of(bytes).hex());
    let new = test
        .add_to(Tar::new())
        .file("manifest.json", list(&blob(config), [&blob(&a), &blob(&b), &blob(&a)]))
        // An index without names, beside docker's list.
        .file("index.json", serde_json::json!({"schemaVersion": 2, "manifests": [test.manifest]}).to_string())
        .bytes();
    for archive in [old, new] {
        let dir = TempDir::new();
        let store = ImageStore::open(dir.path()).await.unwrap();
        let images = import(&store, archive).await.unwrap();
        assert_eq!(images[0].id, test.id);
        assert_eq!(images[0].repo_tags, ["docker.io/library/old:1", "reg.io/x/y:2"]);
        assert_eq!(images[0].layers.len(), 3);
        assert_eq!(read(&store, &images[0], "b").as_deref(), Some("2"));
    }
}

#[tokio::test]
async fn several_images_and_platforms_in_one_archive() {
    if !is_root() {
        return;
    }
    let (one, two) = (TestImage::plain(&[layer("a", "1")]), TestImage::plain(&[layer("a", "2")]));
    let foreign = TestImage::plain(&[layer("a", "foreign")]);
    let platform = Platform::host();
    let multi = serde_json::json!({"schemaVersion": 2, "manifests": [
        {"mediaType": foreign.manifest.media_type, "digest": foreign.manifest.digest, "size": 1,
         "platform": {"os": "linux", "architecture": "vax"}},
        {"mediaType": two.manifest.media_type, "digest": two.manifest.digest, "size": two.manifest.size,
         "platform": {"os": "linux", "architecture": platform.architecture}},
    ]})
    .to_string();
    let digest = Digest::of(multi.as_bytes());
    let index = |name: &str| {
        serde_json::json!({"schemaVersion": 2, "manifests": [
            {"mediaType": one.manifest.media_type, "digest": one.manifest.digest, "size": one.manifest.size,
             "annotations": {"org.opencontainers.image.ref.name": name}},
            {"mediaType": "application/vnd.oci.image.index.v1+json", "digest": digest, "size": multi.len(),
             "annotations": {"io.containerd.image.name": "multi:1"}},
        ]})
        .to_string()
    };
    // The blobs of the foreign platform are omitted, as in exports of one platform.
    let archive = |name: &str| {
        let tar = two.add_to(one.add_to(Tar::new().file("index.json", index(name))));
        tar.file(&format!("blobs/sha256/{}", digest.hex()), &multi).bytes()
    };
    let dir = TempDir::new();
    let store = ImageStore::open(dir.path()).await.unwrap();
    let error = import(&store, archive("v1")).await.unwrap_err();
    assert!(error.chain().contains("has no name in the archive"), "{}", error.chain());
    assert!(store.list().await.unwrap().is_empty(), "nothing is half imported");
    let options = ImportOptions { name: Some("named".parse().unwrap()), ..Default::default() };
    let images = store.import_from(Cursor::new(archive("v1")), options).await.unwrap();
    assert_eq!(images[0].repo_tags, ["docker.io/library/named:v1"]);
    assert_eq!(images[1].repo_tags, ["docker.io/library/multi:1"]);
    assert_eq!(images[1].repo_digests, [format!("docker.io/library/multi@{digest}")]);
    assert_eq!(read(&store, &images[1], "a").as_deref(), Some("2"));
    let by_manifest = format!("multi@{}", two.manifest.digest);
    assert_eq!(store.get(&by_manifest).await.unwrap().unwrap().id, two.id);

    let vax = Platform { architecture: "vax".into(), ..platform };
    let options = ImportOptions { platform: vax, name: Some("x".parse().unwrap()), ..Default::default() };
    let error = store.import_from(Cursor::new(archive("v1")), options).await.unwrap_err();
    assert!(error.chain().contains("is missing from the archive"), "{}", error.chain());
    store.remove("named:v1").await.unwrap();
    let left = store.get("multi:1").await.unwrap().unwrap();
    assert_eq!(read(&store, &left, "a").as_deref(), Some("2"), "the index's content is not collected");
}

#[tokio::test]
async fn bad_archives_say_what_is_wrong() {
    let test = TestImage::plain(&[layer("a", "1")]);
    let good = test.oci_archive("x:1");
    let mut wrong_blob = test.oci_archive("x:1");
    let at = wrong_blob.windows(9).position(|w| w == b"\"diff_ids").unwrap();
    wrong_blob[at] = b' ';
    for (archive, wanted) in [
        (Vec::new(), "neither index.json nor manifest.json"),
        (b"this is no archive".repeat(100), "cannot read the archive"),
        (good[..good.len() / 2].to_vec(), "failed to import"),
        (wrong_blob, "digest mismatch"),
        (Tar::new().file("index.json", "{").bytes(), "malformed index.json"),
        (Tar::new().file("index.json", vec![b' '; 5 << 20]).bytes(), "the limit is 4194304"),
        (Tar::new().file("manifest.json", r#"[{"Config":"../../etc/passwd"}]"#).bytes(), "etc/passwd is missing"),
        (
            Tar::new().file("index.json", serde_json::json!({"schemaVersion": 2, "manifests": [{
                "digest": test.manifest.digest, "size": 1, "annotations": {"io.containerd.image.name": "x"}}]}).to_string()).bytes(),
            "is missing from the archive",
        ),
    ] {
        let dir = TempDir::new();
        let store = ImageStore::open(dir.path()).await.unwrap();
        let error = import(&store, archive).await.unwrap_err();
        assert!(error.chain().contains(wanted), "wanted {wanted}: {}", error.chain());
        assert!(store.list().await.unwrap().is_empty());
        assert_eq!(fs::read_dir(dir.path().join("ingest")).unwrap().count(), 0);
    }
}

#[tokio::test]
async fn exports_import_again_and_are_the_same_each_time() {
    if !is_root() {
        return;
    }
    let dir = TempDir::new();
    let store = ImageStore::open(dir.path()).await.unwrap();
    let shared = layer("shared", "s");
    for (name, own) in [("a:1", "1"), ("b:1", "2")] {
        let plain = layer("own", own);
        let test = TestImage::new(
            &[(shared.clone(), shared.clone()), (gzip(&plain), plain)],
            ImageConfig::default(),
        );
        import(&store, test.oci_archive(name)).await.unwrap();
    }
    store.tag("a:1", &"a:2".parse().unwrap()).await.unwrap();
    let id = store.get("a:1").await.unwrap().unwrap().id.to_string();
    let names = [id, "b:1".to_owned()];
    let archive = store.export(&names, Vec::new()).await.unwrap();
    assert_eq!(archive, store.export(&names, Vec::new()).await.unwrap());
    let other = TempDir::new();
    let copy = ImageStore::open(other.path()).await.unwrap();
    import(&copy, archive).await.unwrap();
    let summary = |images: Vec<Image>| -> BTreeMap<_, _> {
        images.into_iter().map(|i| (i.id, (i.repo_tags, i.repo_digests, i.size))).collect()
    };
    assert_eq!(summary(copy.list().await.unwrap()), summary(store.list().await.unwrap()));
    let error = store.export(&["nothing:1".to_owned()], Vec::new()).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::NotFound);
}

#[tokio::test]
async fn snapshots_protect_their_layers() {
    if !is_root() {
        return;
    }
    let dir = TempDir::new();
    let store = ImageStore::open(dir.path()).await.unwrap();
    let test = TestImage::plain(&[layer("a", "1"), layer("b", "2")]);
    import(&store, test.oci_archive("x:1")).await.unwrap();
    let snapshot = store.create_snapshot("c1", "x:1").await.unwrap();
    assert_eq!(snapshot.image, test.id);
    assert!(matches!(store.create_snapshot("c1", "x:1").await, Err(ImageError::SnapshotExists(_))));
    for bad in ["", "../x", ".hidden", "a/b", &"x".repeat(129)] {
        assert!(matches!(store.create_snapshot(bad, "x:1").await, Err(ImageError::SnapshotName(_))), "{bad}");
    }
    assert!(matches!(store.create_snapshot("c2", "y:1").await, Err(ImageError::NoImage(_))));
    let removed = store.remove("x:1").await.unwrap().collected.unwrap();
    assert_eq!((removed.blobs.len(), removed.layers.len()), (4, 0));
    drop(store);
    let store = ImageStore::open(dir.path()).await.unwrap();
    assert_eq!(store.snapshots().await.unwrap(), std::slice::from_ref(&snapshot));
    fs::write(snapshot.upperdir.join("new"), vec![1; 5000]).unwrap();
    let usage = store.snapshot_usage("c1").await.unwrap().unwrap();
    assert_eq!(usage.inodes, 2);
    assert!(usage.bytes >= 5000);
    assert!(snapshot.lowerdirs.iter().all(|lower| lower.exists()));
    store.remove_snapshot("c1").await.unwrap();
    store.remove_snapshot("c1").await.unwrap();
    assert_eq!(store.collect().await.unwrap().unwrap().layers.len(), 2);
    assert!(matches!(store.snapshot_usage("c1").await, Err(ImageError::NoSnapshot(_))));
    assert_eq!(fs::read_dir(dir.path().join("trash")).unwrap().count(), 0);
}

#[tokio::test]
async fn many_at_once_do_not_get_in_each_others_way() {
    if !is_root() {
        return;
    }
    let dir = TempDir::new();
    let store = ImageStore::open(dir.path()).await.unwrap();
    import(&store, crash_image(0)).await.unwrap();
    let tasks = (0..16).map(|task| {
        let store = store.clone();
        tokio::spawn(async move {
            for n in 0..6 {
                let name = format!("c{task}-{n}");
                store.create_snapshot(&name, "crash:0").await.unwrap();
                if task % 4 == 0 {
                    import(&store, crash_image(task + n)).await.unwrap();
                } else if task % 4 == 1 {
                    store.collect().await.unwrap();
                }
                store.remove_snapshot(&name).await.unwrap();
            }
        })
    });
    for task in futures_util::future::join_all(tasks).await {
        task.unwrap();
    }
    assert!(store.snapshots().await.unwrap().is_empty());
    let image = store.get("crash:0").await.unwrap().unwrap();
    assert_eq!(read(&store, &image, "shared").map(|s| s.len()), Some(200_000));
}

#[tokio::test]
async fn a_missing_layer_folder_is_unpacked_again() {
    if !is_root() {
        return;
    }
    let dir = TempDir::new();
    let store = ImageStore::open(dir.path()).await.unwrap();
    let image =
        import(&store, TestImage::plain(&[layer("a", "1")]).oci_archive("x:1")).await.unwrap().remove(0);
    fs::remove_dir_all(dir.path().join("layers").join(image.layers[0].hex())).unwrap();
    store.create_snapshot("c", "x:1").await.unwrap();
    assert_eq!(read(&store, &image, "a").as_deref(), Some("1"));
}

#[tokio::test]
async fn two_processes_see_each_other() {
    if !is_root() {
        return;
    }
    let dir = TempDir::new();
    let server = ImageStore::open(dir.path()).await.unwrap();
    // Two handles share as little as two processes do: only the files.
    let command = ImageStore::open(dir.path()).await.unwrap();
    import(&command, TestImage::plain(&[layer("a", "1")]).oci_archive("x:1")).await.unwrap();
    assert_eq!(server.list().await.unwrap().len(), 1);
    let lease = command.lease().await.unwrap();
    let removed = server.remove("x:1").await.unwrap();
    assert_eq!(removed.collected, None, "not while another process holds a lease");
    drop(lease);
    assert_eq!(server.collect().await.unwrap().unwrap().blobs.len(), 3);
    assert!(command.list().await.unwrap().is_empty());
}

#[tokio::test]
async fn collecting_put_off_by_a_lease_happens_when_it_ends() {
    if !is_root() {
        return;
    }
    let dir = TempDir::new();
    let store = ImageStore::open(dir.path()).await.unwrap();
    import(&store, TestImage::plain(&[layer("a", "1")]).oci_archive("x:1")).await.unwrap();
    let lease = store.lease().await.unwrap();
    assert_eq!(store.remove("x:1").await.unwrap().collected, None);
    drop(lease);
    for _ in 0..200 {
        if store.inner.content.list().unwrap().is_empty() {
            return;
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    panic!("content is still there");
}

/// Runs on a thread with its own mount namespace, so that no mount is left on the machine.
fn with_private_mounts(work: impl FnOnce() + Send + 'static) {
    let thread = std::thread::spawn(move || {
        nix::sched::unshare(nix::sched::CloneFlags::CLONE_NEWNS).unwrap();
        let flags = nix::mount::MsFlags::MS_PRIVATE | nix::mount::MsFlags::MS_REC;
        nix::mount::mount(None::<&str>, "/", None::<&str>, flags, None::<&str>).unwrap();
        work();
    });
    thread.join().unwrap();
}

#[test]
fn overlays_of_many_layers_mount_write_and_come_back() {
    if !is_root() {
        return;
    }
    let dir = TempDir::new();
    let store = ImageStore::open_blocking(dir.path(), LayerLimits::default()).unwrap();
    let mut layers = vec![Tar::new().file("base/a", "1").file("base/b", "2").file("gone", "x").bytes()];
    layers.push(Tar::new().file("base/.wh..wh..opq", "").file("base/c", "3").file(".wh.gone", "").bytes());
    layers.extend((0..118).map(|n| layer(&format!("f{n}"), &n.to_string())));
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        import(&store, TestImage::plain(&layers).oci_archive("deep:1")).await.unwrap();
        import(&store, TestImage::plain(&[]).oci_archive("scratch:1")).await.unwrap();
        store.create_snapshot("deep", "deep:1").await.unwrap();
        store.create_snapshot("scratch", "scratch:1").await.unwrap();
    });
    with_private_mounts(move || {
        let snapshots = store.inner.snapshots.list().unwrap();
        for snapshot in &snapshots {
            assert!(!snapshot.is_mounted().unwrap());
            snapshot.mount(None).unwrap();
            snapshot.mount(None).unwrap();
            assert!(snapshot.is_mounted().unwrap());
            fs::write(snapshot.target.join("written"), "w").unwrap();
        }
        let root = &snapshots[0].target;
        assert!(!root.join("base/a").exists() && !root.join("gone").exists());
        assert_eq!(fs::read_to_string(root.join("base/c")).unwrap(), "3");
        assert_eq!(fs::read_to_string(root.join("f117")).unwrap(), "117");
        fs::remove_file(root.join("f0")).unwrap();
        for snapshot in &snapshots {
            snapshot.unmount().unwrap();
            snapshot.unmount().unwrap();
            assert!(!snapshot.target.join("written").exists());
            snapshot.mount(None).unwrap();
            assert_eq!(fs::read_to_string(snapshot.target.join("written")).unwrap(), "w");
            assert!(!snapshots[0].target.join("f0").exists());
            // The mount is busy, and is removed nevertheless.
            let open = fs::File::open(snapshot.target.join("written")).unwrap();
            store.inner.snapshots.remove(&snapshot.name).unwrap();
            drop(open);
        }
        store.inner.snapshots.empty_trash();
        assert!(store.inner.snapshots.list().unwrap().is_empty());
    });
}

const CRASH_DIR: &str = "KNARR_TEST_CRASH_DIR";

fn crash_image(n: usize) -> Vec<u8> {
    let shared = Tar::new().file("shared", vec![5; 200_000]).bytes();
    TestImage::plain(&[shared, layer("own", &n.to_string())]).oci_archive(&format!("crash:{}", n % 5))
}

/// Not a test of its own: the process that [`being_killed_at_any_moment_loses_nothing`] kills.
#[test]
fn crash_child() {
    let Some(dir) = std::env::var_os(CRASH_DIR) else { return };
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let store = ImageStore::open(dir).await.unwrap();
        for n in 0..10_000 {
            import(&store, crash_image(n)).await.unwrap();
            println!("imported {}", n % 5);
            std::io::stdout().flush().unwrap();
            store.create_snapshot(&format!("s{n}"), &format!("crash:{}", n % 5)).await.unwrap();
            if n % 3 == 2 {
                store.remove(&format!("crash:{}", n % 5)).await.unwrap();
            }
            store.remove_snapshot(&format!("s{n}")).await.unwrap();
        }
    });
}

#[tokio::test]
async fn being_killed_at_any_moment_loses_nothing() {
    if !is_root() {
        return;
    }
    let dir = TempDir::new();
    for round in 0..12u64 {
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "--nocapture", "images::tests::crash_child"])
            .env(CRASH_DIR, dir.path())
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        tokio::time::sleep(Duration::from_millis(40 + round * 37 % 150)).await;
        child.kill().unwrap();
        assert_eq!(child.wait().unwrap().signal(), Some(9), "it was still importing");
        let store = ImageStore::open(dir.path()).await.unwrap();
        assert_eq!(fs::read_dir(dir.path().join("ingest")).unwrap().count(), 0);
        assert_eq!(fs::read_dir(dir.path().join("trash")).unwrap().count(), 0);
        let names = store.inner.catalog.refs().unwrap();
        let images = store.list().await.unwrap();
        let listed: usize = images.iter().map(|i| i.repo_tags.len() + i.repo_digests.len()).sum();
        assert_eq!(listed, names.len(), "every name leads to whole content");
        for image in images {
            assert_eq!(read(&store, &image, "shared").map(|s| s.len()), Some(200_000));
            for layer in &store.inner.catalog.content(&image.manifest).unwrap().layers {
                store.inner.content.read(&layer.digest, 1 << 30).unwrap();
            }
        }
        for snapshot in store.snapshots().await.unwrap() {
            assert!(snapshot.lowerdirs.iter().all(|lower| lower.exists()));
            store.remove_snapshot(&snapshot.name).await.unwrap();
        }
        store.collect().await.unwrap().unwrap();
    }
}
