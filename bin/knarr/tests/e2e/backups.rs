//! Backups: taken of a running server, restored elsewhere, refused when damaged.

use std::path::Path;
use std::process::{Command, Output};

use serde_json::json;

use crate::cluster::{Cluster, knarr};
use crate::sandbox::{Process, succeeded};

const SERVER: [&str; 1] = ["--disable-node"];

/// Runs a command that has to fail; returns its error output.
pub fn refused(command: &mut Command) -> String {
    let output = command.output().expect("nsenter(1) of util-linux");
    assert!(!output.status.success(), "{output:?}");
    String::from_utf8_lossy(&output.stderr).into_owned()
}

pub fn backup(cluster: &Cluster, file: &Path, more: &[&str]) -> Output {
    cluster
        .knarr(&["backup"])
        .args(more)
        .arg("--output")
        .arg(file)
        .output()
        .expect("nsenter(1) of util-linux")
}

pub fn restore(cluster: &Cluster, file: &Path, more: &[&str]) -> Command {
    let mut command = cluster.knarr(&["restore"]);
    command.args(more).arg(file);
    command
}

fn names(folder: &Path) -> Vec<String> {
    let entries = std::fs::read_dir(folder).expect("a folder");
    entries.flatten().map(|entry| entry.file_name().to_string_lossy().into_owned()).collect()
}

/// Returns what is compared: all objects that users have created, without their resourceVersions.
pub fn objects(cluster: &Cluster) -> String {
    let columns =
        "-o custom-columns=KIND:.kind,NAMESPACE:.metadata.namespace,NAME:.metadata.name,UID:.metadata.uid";
    let admin = cluster.admin();
    admin.run(&format!(
        "get deployments,secrets,namespaces,serviceaccounts,services -A --no-headers {columns}"
    ))
}

/// Returns the user that the server authenticates with this token.
pub fn holder(cluster: &Cluster, token: &str) -> String {
    let spec = json!({"token": token});
    let review = json!({"apiVersion": "authentication.k8s.io/v1", "kind": "TokenReview", "spec": spec});
    cluster.admin().with("create -o jsonpath={.status.user.username} -f -", &review.to_string())
}

pub fn version(cluster: &Cluster) -> u64 {
    let version = cluster.admin().path("secret keep -n default", "{.metadata.resourceVersion}");
    version.parse().expect("a resourceVersion")
}

#[test]
fn h5_a_backup_of_a_running_server_comes_back_in_another_folder() {
    let mut cluster = Cluster::new();
    cluster.start_server_with(&SERVER);
    cluster.admin().run("create deployment web --image=example/web --replicas=0");
    cluster.admin().run("create secret generic keep --from-literal=a=1");
    cluster
        .admin()
        .eventually("get deployment web -o jsonpath={.status.observedGeneration}", |out| out == "1");
    cluster.admin().eventually("get serviceaccount default -o name", |out| out.contains("default"));
    let (file, sealed) = (cluster.sandbox.path("cluster.knarr"), cluster.sandbox.path("sealed.knarr"));
    let said = succeeded("knarr backup", &backup(&cluster, &file, &[]));
    assert!(said.starts_with("backed up "), "{said}");
    let mode =
        std::os::unix::fs::PermissionsExt::mode(&std::fs::metadata(&file).expect("a file").permissions());
    assert_eq!(mode & 0o7777, 0o600);
    let passphrase = cluster.sandbox.path("passphrase");
    std::fs::write(&passphrase, "correct horse\n").expect("a file");
    let passphrase = ["--passphrase-file", passphrase.to_str().expect("a path")];
    succeeded("knarr backup", &backup(&cluster, &sealed, &passphrase));
    let (before, seen) = (objects(&cluster), version(&cluster));
    let token = cluster.admin().run("create token default");

    // Changes after the backup are not in it, and use revisions that no restored object may have.
    cluster.admin().run("delete deployment web");
    cluster.admin().run("label secret keep later=yes");
    let lost = version(&cluster);
    assert!(lost > seen);
    assert!(refused(&mut restore(&cluster, &file, &[])).contains("is not empty"));
    assert!(cluster.interrupt_server());
    assert!(!cluster.data_dir().join("admin.sock").exists());

    // The folder of a stopped server is read from disk.
    let stopped = cluster.sandbox.path("stopped.knarr");
    succeeded("knarr backup", &backup(&cluster, &stopped, &[]));

    for (file, more) in [(&file, &[][..]), (&sealed, &passphrase[..])] {
        std::fs::remove_dir_all(cluster.data_dir()).expect("the data folder");
        succeeded("knarr restore", &restore(&cluster, file, more).output().expect("nsenter(1)"));
        cluster.start_server_with(&SERVER);
        assert_eq!(objects(&cluster), before);
        assert_eq!(cluster.admin().path("secret keep -n default", "{.data.a}"), "MQ==");
        assert_eq!(cluster.admin().path("secret keep -n default", "{.metadata.labels}"), "");
        assert!(version(&cluster) > lost + 1_000_000, "{} after {lost}", version(&cluster));
        assert_eq!(holder(&cluster, token.trim()), "system:serviceaccount:default:default");
        // A watch from before the loss has to list again.
        let old = format!("get --raw /api/v1/secrets?watch=1&resourceVersion={lost}&timeoutSeconds=5");
        let gone = cluster.admin().attempt(&old);
        let gone = [gone.stdout, gone.stderr].concat();
        assert!(String::from_utf8_lossy(&gone).contains("too old resource version"), "{gone:?}");
        assert!(cluster.interrupt_server());
    }
}

#[test]
fn h5_a_damaged_backup_is_refused_and_a_killed_one_leaves_no_file() {
    let mut cluster = Cluster::new();
    cluster.start_server_with(&SERVER);
    let folder = cluster.sandbox.path("backups");
    std::fs::create_dir(&folder).expect("a folder");
    let file = folder.join("cluster.knarr");

    // The command is killed while it waits for the server, which a signal has paused.
    cluster.pause_server();
    let child = cluster.knarr(&["backup"]).arg("-o").arg(&file).spawn().expect("nsenter(1)");
    let nsenter = child.id();
    let mut running = Process::new(child);
    let holds_it = || {
        let knarr = crate::sandbox::only_child(nsenter)?;
        let files = std::fs::read_dir(format!("/proc/{knarr}/fd")).ok()?.flatten();
        let mut targets = files.filter_map(|fd| std::fs::read_link(fd.path()).ok());
        targets.any(|target| target.to_string_lossy().contains("backups/")).then_some(())
    };
    crate::sandbox::wait_for("the file of the backup", std::time::Duration::from_secs(20), holds_it);
    running.kill();
    cluster.resume_server();
    assert_eq!(names(&folder), Vec::<String>::new());

    // The server continues, and answers the next command.
    succeeded("knarr backup", &backup(&cluster, &file, &[]));
    assert_eq!(names(&folder), ["cluster.knarr"]);

    // A full disk causes a clear error and leaves no file.
    cluster.sandbox.sh("mkdir $0/small && mount -t tmpfs -o size=64k tmpfs $0/small");
    let full = cluster.sandbox.path("small/cluster.knarr");
    let output = backup(&cluster, &full, &[]);
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(!output.status.success() && said.contains("No space left on device"), "{said}");
    assert_eq!(cluster.sandbox.sh("ls -A $0/small"), "");

    let whole = std::fs::read(&file).expect("the backup");
    let elsewhere = cluster.sandbox.path("elsewhere");
    let restored = |file: &Path| {
        let mut command = cluster.sandbox.command(knarr());
        refused(command.arg("restore").arg(file).arg("--data-dir").arg(&elsewhere))
    };
    let mut flipped = whole.clone();
    flipped[whole.len() / 2] ^= 1;
    let mut newer = whole.clone();
    newer[13] = b'9';
    for (name, content, reason) in [
        ("cut", &whole[..whole.len() - 100], "it was cut off"),
        ("flipped", &flipped, "it is damaged"),
        ("newer", &newer, "it has version 9 of the format"),
        ("foreign", b"hello", "it is not a backup of knarr"),
    ] {
        let file = folder.join(name);
        std::fs::write(&file, content).expect("a file");
        let said = restored(&file);
        assert!(said.contains(reason), "{name}: {said}");
        assert!(!elsewhere.exists(), "{name}");
    }
}
