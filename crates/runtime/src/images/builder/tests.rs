//! Tests of building images and of starting their programs.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::PathBuf;
use std::process::{Command, Output};

use super::closure::closure;
use super::*;
use crate::images::fixture::{TempDir, is_root};
use crate::images::{Image, ImageStore};

fn run_in(root: &Path, program: &str, args: &[&str]) -> Output {
    use std::os::unix::process::CommandExt;
    let root = root.to_owned();
    let mut command = Command::new(program);
    command.args(args).env_clear().env("PATH", DEFAULT_PATH);
    // SAFETY: chroot and chdir are plain system calls, allowed between fork and exec.
    unsafe {
        command.pre_exec(move || {
            nix::unistd::chroot(&root)?;
            nix::unistd::chdir("/")?;
            Ok(())
        });
    }
    command.output().unwrap()
}

fn root_of(store: &ImageStore, image: &Image) -> PathBuf {
    store.inner.layers.fs_dir(&image.layers[0])
}

fn build() -> ImageBuild {
    ImageBuild::new("knarr/test:1".parse().unwrap())
        .entrypoint(["/app", "serve"])
        .env("PATH", "/bin")
        .env("MODE", "test")
        .port("8080/tcp")
        .label("a", "b")
        .user("65534")
        .working_dir("/data")
        .dir("/data", 0o770)
        .file("/etc/app.conf", "x = 1\n", 0o640)
        .symlink("/etc/link", "app.conf")
}

#[tokio::test]
async fn the_same_inputs_give_the_same_image() {
    if !is_root() {
        return;
    }
    let (one, two) = (TempDir::new(), TempDir::new());
    let (a, b) = (ImageStore::open(one.path()).await.unwrap(), ImageStore::open(two.path()).await.unwrap());
    let image = a.build(build()).await.unwrap();
    assert_eq!(image.id, b.build(build()).await.unwrap().id);
    assert_eq!(image.repo_tags, ["docker.io/knarr/test:1"]);
    assert_eq!(image.config.env, ["PATH=/bin", "MODE=test"]);
    assert_eq!(image.config.entrypoint, ["/app", "serve"]);
    let root = root_of(&a, &image);
    assert_eq!(fs::metadata(root.join("tmp")).unwrap().permissions().mode() & 0o7777, 0o1777);
    assert_eq!(fs::metadata(root.join("data")).unwrap().permissions().mode() & 0o7777, 0o770);
    assert_eq!(fs::read_to_string(root.join("etc/link")).unwrap(), "x = 1\n");
    assert_eq!(fs::metadata(root.join("etc/app.conf")).unwrap().mtime(), 0);
    let user = crate::images::resolve_user(&root, &image.config.user).unwrap();
    assert_eq!((user.uid, user.gid), (65534, 65534));

    let again = a.build(build()).await.unwrap();
    assert_eq!(again.id, image.id);
    let changed = a.build(build().file("/etc/app.conf", "x = 2\n", 0o640)).await.unwrap();
    assert_ne!(changed.id, image.id);
    assert!(a.get(&image.repo_digests[0]).await.unwrap().is_some(), "the old one keeps its digest name");
    for bad in ["relative", "/", "/a/../b", "/a//b", "/etc/link/below"] {
        let error = a.build(build().file(bad, "", 0o644)).await.unwrap_err();
        assert!(error.chain().contains("not an absolute path"), "{bad}: {}", error.chain());
    }
    let error = a.build(build().program("/no/such/program", "/p")).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::NotFound);
}

#[tokio::test]
async fn programs_start_with_the_libraries_that_came_along() {
    if !is_root() {
        return;
    }
    let dir = TempDir::new();
    let store = ImageStore::open(dir.path()).await.unwrap();
    // The test's own executable is an example of a dynamic program.
    let own = std::env::current_exe().unwrap();
    let mut image = ImageBuild::new("knarr/own:1".parse().unwrap()).program(&own, "/opt/own");
    for (program, at) in [("sh", "/bin/sh"), ("ls", "/bin/ls")] {
        image = image.program(find_program(program).unwrap(), at);
    }
    let image = store.build(image).await.unwrap();
    let root = root_of(&store, &image);
    let output = run_in(&root, "/bin/sh", &["-c", "echo $((6*7)) && ls / && /opt/own --help"]);
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{output:?}");
    assert!(text.starts_with("42\n") && text.contains("tmp") && text.contains("--shuffle-seed"), "{text}");
}

#[tokio::test]
async fn busybox_brings_its_applets() {
    if !is_root() {
        return;
    }
    let busybox = find_busybox().expect("busybox is needed: apt-get install busybox-static");
    let dir = TempDir::new();
    let store = ImageStore::open(dir.path()).await.unwrap();
    let name = || ImageBuild::new("busybox:1".parse().unwrap()).cmd(["sh"]);
    let image = store.build(name().busybox(&busybox).unwrap()).await.unwrap();
    let root = root_of(&store, &image);
    let output = run_in(&root, "/bin/sh", &["-c", "echo hi | wc -c; id -u; ls /proc | wc -l"]);
    assert_eq!(String::from_utf8_lossy(&output.stdout), "3\n0\n0\n", "{output:?}");
    let shell = store.build(name().shell().unwrap()).await.unwrap();
    assert_eq!(shell.id, image.id);
    assert!(matches!(name().busybox(Path::new("/bin/true")), Err(BuildError::Busybox { .. })));
}

#[test]
fn a_missing_library_is_named() {
    let dir = TempDir::new();
    let path = dir.path().join("program");
    let own = fs::read(std::env::current_exe().unwrap()).unwrap();
    let Some(at) = own.windows(10).position(|w| w == b"libc.so.6\0") else { return };
    let mut broken = own;
    broken[at..at + 9].copy_from_slice(b"libq.so.9");
    fs::write(&path, &broken).unwrap();
    let error = closure(&BTreeMap::from([("/p".to_owned(), path)])).unwrap_err();
    assert!(error.to_string().contains("libq.so.9"), "{error}");
}
