//! Images: archives, a real registry, pull secrets and policies.

use std::process::{Child, Stdio};
use std::time::Duration;

use serde_json::{Value, json};

use crate::cluster::{Cluster, shared};
use crate::kubectl::Kubectl;
use crate::objects::{BUSYBOX, sleeper};
use crate::sandbox::wait_for;

const USER: &str = "user";
const PASSWORD: &str = "secret";
/// The bcrypt hash of the password `secret`.
const HTPASSWD: &str = "user:$2y$05$abcdefghijklmnopqrstuuOQiyCxlgf/oeuTqixKmWdcYUh4Hjl0a\n";

/// Debian's docker-registry on a loopback port of the sandbox.
pub struct Registry {
    child: Child,
    pub host: String,
}

impl Registry {
    pub fn start(cluster: &Cluster, port: u16) -> Self {
        let folder = cluster.sandbox.path(&format!("registry-{port}"));
        std::fs::create_dir_all(&folder).expect("folder");
        let (password, config) = (folder.join("htpasswd"), folder.join("config.yml"));
        std::fs::write(&password, HTPASSWD).expect("file");
        let text = json!({
            "version": "0.1",
            "log": {"level": "error"},
            "storage": {"filesystem": {"rootdirectory": folder.join("data")}},
            "http": {"addr": format!("127.0.0.1:{port}")},
            "auth": {"htpasswd": {"realm": "test", "path": password}},
        });
        std::fs::write(&config, text.to_string()).expect("file");
        let mut command = cluster.sandbox.command("docker-registry");
        command.arg("serve").arg(&config).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        let registry = Self { child: command.spawn().expect("nsenter"), host: format!("127.0.0.1:{port}") };
        let listening = format!("busybox nc -w 1 127.0.0.1 {port} </dev/null");
        wait_for("the registry", Duration::from_secs(20), || {
            cluster.sandbox.try_sh(&listening).status.success().then_some(())
        });
        registry
    }

    /// Pushes an image of the node under another name.
    pub fn push(&self, cluster: &Cluster, image: &str, repository: &str, tag: &str) {
        let archive = cluster.sandbox.path("push.tar");
        cluster.image(["export", image, "--output", &archive.to_string_lossy()]);
        let credentials = format!("{USER}:{PASSWORD}");
        cluster.python("push.py", &[&archive.to_string_lossy(), &self.host, repository, tag, &credentials]);
    }
}

impl Drop for Registry {
    fn drop(&mut self) {
        if let Some(pid) = crate::sandbox::only_child(self.child.id()) {
            let _ = nix::sys::signal::kill(nix::unistd::Pid::from_raw(pid as i32), nix::sys::signal::SIGKILL);
        }
        let _ = self.child.wait();
    }
}

fn with_image(name: &str, image: &str, policy: &str) -> Value {
    let mut object = sleeper(name);
    object["spec"]["containers"][0]["image"] = json!(image);
    object["spec"]["containers"][0]["imagePullPolicy"] = json!(policy);
    object
}

fn waiting(kubectl: &Kubectl, pod: &str, reason: &str) {
    kubectl.until(&format!("pod {pod}"), "{.status.containerStatuses[0].state.waiting.reason}", reason);
}

#[test]
fn a6_private_images_need_their_secret() {
    let cluster = shared();
    let kubectl = cluster.namespace("a6-private");
    let registry = Registry::start(cluster, 5000);
    registry.push(cluster, BUSYBOX, "team/box", "1.0");
    let image = format!("{}/team/box:1.0", registry.host);

    kubectl.apply(&with_image("refused", &image, "Always"));
    waiting(&kubectl, "refused", "ImagePullBackOff");
    let message = kubectl.event("refused", "Failed");
    assert!(message.contains(&format!("Failed to pull image \"{image}\"")), "{message}");

    let server = format!("--docker-server={}", registry.host);
    kubectl.run([
        "create",
        "secret",
        "docker-registry",
        "wrong",
        &server,
        "--docker-username=user",
        "--docker-password=no",
    ]);
    kubectl.run([
        "create",
        "secret",
        "docker-registry",
        "right",
        &server,
        "--docker-username=user",
        "--docker-password=secret",
    ]);
    let mut object = with_image("by-pod", &image, "Always");
    object["spec"]["imagePullSecrets"] = json!([{"name": "wrong"}, {"name": "right"}]);
    kubectl.apply(&object);
    kubectl.ready("by-pod");
    let pulled = kubectl.event("by-pod", "Pulled");
    assert!(pulled.starts_with(&format!("Successfully pulled image \"{image}\" in ")), "{pulled}");
    assert!(pulled.contains("Image size: "), "{pulled}");
    assert_eq!(kubectl.event("by-pod", "Pulling").trim(), format!("Pulling image \"{image}\""));
    let id = kubectl.path("pod by-pod", "{.status.containerStatuses[0].imageID}");
    assert!(id.contains("sha256:"), "{id}");

    kubectl.run(["patch", "serviceaccount", "default", "-p", r#"{"imagePullSecrets": [{"name": "right"}]}"#]);
    kubectl.apply(&with_image("by-account", &image, "Always"));
    kubectl.ready("by-account");

    kubectl.apply(&with_image("no-such-tag", &format!("{}/team/box:2.0", registry.host), "IfNotPresent"));
    waiting(&kubectl, "no-such-tag", "ImagePullBackOff");
    let message = kubectl.event("no-such-tag", "Failed");
    assert!(message.contains("not found"), "{message}");
}

/// Pods A and B in two namespaces; A's pull has put the image on the node.
#[test]
fn a6_a_private_image_serves_only_pods_that_may_pull_it() {
    let cluster = shared();
    let (a, b) = (cluster.namespace("a6-owner"), cluster.namespace("a6-stranger"));
    let registry = Registry::start(cluster, 5002);
    registry.push(cluster, BUSYBOX, "owner/box", "1.0");
    let image = format!("{}/owner/box:1.0", registry.host);
    let server = format!("--docker-server={}", registry.host);
    let secret = |kubectl: &Kubectl, password: &str| {
        let password = format!("--docker-password={password}");
        kubectl.run([
            "create",
            "secret",
            "docker-registry",
            "pull",
            &server,
            "--docker-username=user",
            &password,
        ]);
    };
    let with_secret = |name: &str, policy: &str| {
        let mut object = with_image(name, &image, policy);
        object["spec"]["imagePullSecrets"] = json!([{"name": "pull"}]);
        object
    };
    secret(&a, PASSWORD);
    a.apply(&with_secret("first", "IfNotPresent"));
    a.ready("first");
    a.apply(&with_secret("second", "Never"));
    a.ready("second");
    let present =
        format!("Container image \"{image}\" already present on machine and can be accessed by the pod");
    assert_eq!(a.event("second", "Pulled").trim(), present);

    // Without credentials, and with credentials that the registry refuses.
    b.apply(&with_image("without", &image, "IfNotPresent"));
    b.apply(&with_image("never", &image, "Never"));
    waiting(&b, "without", "ImagePullBackOff");
    waiting(&b, "never", "ErrImageNeverPull");
    let hidden = format!("Container image \"{image}\" is not present with pull policy of Never");
    assert_eq!(b.event("never", "ErrImageNeverPull").trim(), hidden);
    secret(&b, "wrong");
    b.apply(&with_secret("refused", "IfNotPresent"));
    waiting(&b, "refused", "ImagePullBackOff");
    // The same image by its digest and as a volume.
    let digest = a.path("pod first", "{.status.containerStatuses[0].imageID}");
    b.apply(&with_image("by-digest", digest.trim(), "IfNotPresent"));
    waiting(&b, "by-digest", "ImagePullBackOff");
    let mut mounting = sleeper("mounting");
    mounting["spec"]["volumes"] =
        json!([{"name": "box", "image": {"reference": image, "pullPolicy": "Never"}}]);
    mounting["spec"]["containers"][0]["volumeMounts"] = json!([{"name": "box", "mountPath": "/box"}]);
    b.apply(&mounting);
    waiting(&b, "mounting", "ErrImageNeverPull");

    // With the right credential no pull is needed: the hash of A's Secret is the same.
    b.run(["delete", "secret", "pull"]);
    secret(&b, PASSWORD);
    b.apply(&with_secret("let-in", "Never"));
    b.ready("let-in");
    assert_eq!(b.event("let-in", "Pulled").trim(), present);
    // Any pod may use the preloaded image with the same content.
    b.apply(&with_image("preloaded", BUSYBOX, "Never"));
    b.ready("preloaded");
}

#[test]
fn a6_pull_policies_and_back_off() {
    let kubectl = shared().namespace("a6-policies");
    kubectl.apply(&with_image("missing", "knarr.local/missing:v1", "IfNotPresent"));
    kubectl.apply(&with_image("never", "knarr.local/missing:v1", "Never"));
    kubectl.apply(&with_image("invalid", "Not/A/Name:x", "IfNotPresent"));
    kubectl.apply(&with_image("present", BUSYBOX, "Never"));
    kubectl.ready("present");
    kubectl.eventually("get pod missing --no-headers", |line| {
        line.contains("ErrImagePull") || line.contains("ImagePullBackOff")
    });
    waiting(&kubectl, "missing", "ImagePullBackOff");
    waiting(&kubectl, "never", "ErrImageNeverPull");
    waiting(&kubectl, "invalid", "InvalidImageName");
    let message = kubectl.event("missing", "BackOff");
    assert_eq!(message.trim(), "Back-off pulling image \"knarr.local/missing:v1\"");
    assert!(kubectl.event("missing", "Failed").contains("Error: ErrImagePull"));
    let message = kubectl.event("never", "ErrImageNeverPull");
    assert_eq!(
        message.trim(),
        "Container image \"knarr.local/missing:v1\" is not present with pull policy of Never"
    );
    let message = kubectl.event("present", "Pulled");
    assert!(message.contains("Container image \"busybox\" already present on machine"), "{message}");
}

#[test]
fn a6_image_commands() {
    let cluster = shared();
    let list = cluster.image("ls");
    assert!(list.starts_with("IMAGE "), "{list}");
    assert!(list.contains("knarr.local/web:v1 ") && list.contains("knarr.local/web:v2 "), "{list}");
    let json: Value = serde_json::from_str(&cluster.image("ls -o json")).expect("JSON");
    assert!(json["images"].as_array().is_some_and(|i| i.len() >= 3), "{json}");

    let registry = Registry::start(cluster, 5001);
    registry.push(cluster, BUSYBOX, "box", "x");
    let name = format!("{}/box:x", registry.host);
    let mut command = cluster.knarr(&["image", "pull", &name, "--username", USER, "--password-stdin"]);
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().expect("nsenter");
    std::io::Write::write_all(&mut child.stdin.take().expect("a pipe"), PASSWORD.as_bytes())
        .expect("the password");
    let output = child.wait_with_output().expect("its end");
    assert!(output.status.success(), "{output:?}");
    assert!(cluster.image("ls").contains(&format!("{name} ")));
    let refused = cluster.try_image(&["pull".into(), format!("{}/box:none", registry.host)]);
    assert!(!refused.status.success());
    assert_eq!(String::from_utf8_lossy(&refused.stderr).trim().lines().count(), 1, "{refused:?}");

    let archive = cluster.sandbox.path("exported.tar");
    let archive = archive.to_string_lossy();
    cluster.image(["export", &name, "--output", &archive]);
    assert_eq!(cluster.image(["rm", &name]), format!("removed {name}\n"));
    assert!(!cluster.image("ls").contains(&name));
    let imported = cluster.image(["import", &archive]);
    assert!(imported.starts_with("imported ") && imported.contains(&name), "{imported}");
    let kubectl = cluster.namespace("a6-import");
    kubectl.apply(&with_image("imported", &name, "Never"));
    kubectl.ready("imported");

    let missing = cluster.try_image(&["rm".into(), "nothing:here".into()]);
    assert!(!missing.status.success(), "{missing:?}");
    let broken = cluster.sandbox.path("broken.tar");
    std::fs::write(&broken, "this is no archive").expect("file");
    let refused = cluster.try_image(&["import".into(), broken.to_string_lossy().into_owned()]);
    assert!(
        !refused.status.success() && String::from_utf8_lossy(&refused.stderr).starts_with("error: "),
        "{refused:?}"
    );
}
