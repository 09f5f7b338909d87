//! The API server alone under load: creates, gets, lists, a thousand watchers; compared with kube-apiserver
//! if requested.

use std::path::{Path, PathBuf};
use std::process::Child;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::{Value, json};

use super::cluster::Cluster;
use super::report::Report;
use super::{list, process};
use crate::http::Access;
use crate::sandbox::{log_to, only_child};

const PODS: &str = "/api/v1/namespaces/default/pods";
const MAPS: &str = "/api/v1/namespaces/default/configmaps";
const CLIENTS: usize = 16;
const GETS_PER_CLIENT: usize = 500;
const WATCHERS: usize = 1000;
const WATCHER_STACK: usize = 256 * 1024;
const UPDATES: u32 = 200;
const UPDATE_EVERY: Duration = Duration::from_millis(50);
const ETCD: &str = "http://127.0.0.1:2379";

/// The processes whose memory is measured.
struct Subject {
    name: &'static str,
    access: Access,
    server: u32,
    /// The process that stores the server's state, if that is another one.
    etcd: Option<u32>,
}

/// Measures Knarr first, then upstream with the same requests in the same sandbox, if the folder of its
/// binaries is given.
pub fn measure(binary: &Path, lists: usize, objects: usize, upstream: Option<&PathBuf>) -> Result<Report> {
    let mut report = Report::new("apiserver");
    report.add("pods", objects as f64, "pods");
    let mut cluster = Cluster::new(binary)?;
    let mut alone = vec!["--disable-node", "--disable-scheduler", "--disable-controller-manager"];
    // No controller creates service accounts here.
    let admission = ["--disable-admission-plugins", "ServiceAccount"];
    alone.extend(admission);
    cluster.start(&alone)?;
    let access = cluster.access()?;
    let ours = Subject { name: "ours", access: access.clone(), server: cluster.pid()?, etcd: None };
    run(&mut report, &ours, lists, objects)?;
    cluster.stop()?;
    if let Some(folder) = upstream {
        let processes = Upstream::start(&cluster, folder, &access, &admission)?;
        let theirs =
            Subject { name: "upstream", access, server: processes.server()?, etcd: Some(processes.etcd()?) };
        run(&mut report, &theirs, lists, objects)?;
    }
    Ok(report)
}

fn run(report: &mut Report, subject: &Subject, lists: usize, objects: usize) -> Result<()> {
    let name = subject.name;
    eprintln!("{name}: {objects} pods are created, read and listed");
    let before = process::memory(subject.server)?.rss;
    report.add(&format!("{name} RSS at rest"), before, "MB");

    let begun = Instant::now();
    let times = clients(|client| create(&subject.access, client, objects))?;
    report.add(&format!("{name} creates"), times.len() as f64 / begun.elapsed().as_secs_f64(), "creates/s");
    report.add_times(&format!("{name} create"), &times);

    let begun = Instant::now();
    let times = clients(|client| get(&subject.access, client, objects))?;
    report.add(&format!("{name} gets"), times.len() as f64 / begun.elapsed().as_secs_f64(), "gets/s");
    report.add_times(&format!("{name} get"), &times);

    // Writes leave garbage that is collected soon after.
    std::thread::sleep(Duration::from_secs(5));
    let held = process::memory(subject.server)?.rss;
    report.add(&format!("{name} RSS with the pods"), held, "MB");
    let mut connection = subject.access.connect()?;
    let mut times = Vec::new();
    let mut bytes = 0;
    for _ in 0..lists {
        let begun = Instant::now();
        bytes = connection.send("GET", PODS, None)?.len();
        times.push(begun.elapsed());
    }
    report.add_times(&format!("{name} LIST"), &times);
    report.add(&format!("{name} size of a pod"), bytes as f64 / 1000.0 / objects as f64, "kB");
    report.add(&format!("{name} held a pod"), (held - before) * 1000.0 / objects as f64, "kB");
    let after = process::memory(subject.server)?;
    report.add(&format!("{name} highest RSS"), after.peak, "MB");

    eprintln!("{name}: {WATCHERS} watchers");
    let (times, passed) = watch(&subject.access)?;
    report.add(&format!("{name} events"), times.len() as f64 / passed.as_secs_f64(), "events/s");
    report.add_times(&format!("{name} update to event"), &times);
    report.add(&format!("{name} RSS after the watchers"), process::memory(subject.server)?.rss, "MB");
    if let Some(etcd) = subject.etcd {
        report.add(&format!("{name} RSS of etcd"), process::memory(etcd)?.rss, "MB");
    }
    Ok(())
}

/// Does the same work with all clients at once, each on its own connection.
fn clients(work: impl Fn(usize) -> Result<Vec<Duration>> + Sync) -> Result<Vec<Duration>> {
    std::thread::scope(|scope| {
        let work = &work;
        let threads: Vec<_> = (0..CLIENTS).map(|client| scope.spawn(move || work(client))).collect();
        let mut all = Vec::new();
        for thread in threads {
            all.extend(thread.join().ok().context("a client panicked")??);
        }
        Ok(all)
    })
}

fn create(access: &Access, client: usize, objects: usize) -> Result<Vec<Duration>> {
    let mut connection = access.connect()?;
    let mut times = Vec::new();
    for number in (client..objects).step_by(CLIENTS) {
        let mut pod = list::pod(number);
        // Makes the object the same on both sides: otherwise only one of them adds a token's volume.
        pod["spec"]["automountServiceAccountToken"] = json!(false);
        let body = pod.to_string();
        let begun = Instant::now();
        connection.send("POST", PODS, Some(body.as_bytes()))?;
        times.push(begun.elapsed());
    }
    Ok(times)
}

fn get(access: &Access, client: usize, objects: usize) -> Result<Vec<Duration>> {
    let mut connection = access.connect()?;
    let mut times = Vec::new();
    for i in 0..GETS_PER_CLIENT {
        // An order that differs from that of creation: neighbours must not be requested in turn.
        let number = (client * 7919 + i * 104_729) % objects;
        let path = format!("{PODS}/web-5d4f8c7b9-{number:05}");
        let begun = Instant::now();
        connection.send("GET", &path, None)?;
        times.push(begun.elapsed());
    }
    Ok(times)
}

/// Measures from the moment before an update is sent to its event at each of the watchers.
fn watch(access: &Access) -> Result<(Vec<Duration>, Duration)> {
    let mut connection = access.connect()?;
    let map = |sent: u128| {
        json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "watched"},
            "data": {"sent": format!("{sent:020}"), "text": "x".repeat(1000)}})
    };
    let made = connection.json("POST", MAPS, Some(&map(0)))?;
    let version = made["metadata"]["resourceVersion"].as_str().context("a resourceVersion")?;
    let path = format!("{MAPS}?watch=true&resourceVersion={version}&fieldSelector=metadata.name%3Dwatched");
    let base = Instant::now();
    let mut threads = Vec::new();
    for _ in 0..WATCHERS {
        let mut watch = access.connect()?.watch(&path)?;
        let thread = std::thread::Builder::new().stack_size(WATCHER_STACK).spawn(move || {
            let mut times = Vec::with_capacity(UPDATES as usize);
            while times.len() < UPDATES as usize {
                let line = watch.next_line()?;
                let sent = sent_at(&line).context("an event without its time")?;
                times.push(base.elapsed().saturating_sub(sent));
            }
            anyhow::Ok(times)
        });
        threads.push(thread?);
    }
    let begun = Instant::now();
    for i in 0..UPDATES {
        let due = UPDATE_EVERY * i;
        std::thread::sleep(due.saturating_sub(begun.elapsed()));
        connection.json("PUT", &format!("{MAPS}/watched"), Some(&map(base.elapsed().as_nanos())))?;
    }
    let mut all = Vec::new();
    for thread in threads {
        all.extend(thread.join().ok().context("a watcher panicked")??);
    }
    Ok((all, begun.elapsed()))
}

fn sent_at(line: &[u8]) -> Option<Duration> {
    const MARK: &[u8] = b"\"sent\":\"";
    let at = line.windows(MARK.len()).position(|w| w == MARK)? + MARK.len();
    let digits = std::str::from_utf8(line.get(at..at + 20)?).ok()?;
    digits.parse().ok().map(Duration::from_nanos)
}

/// kube-apiserver on etcd, with the certificates of Knarr's server, so that the same kubeconfig fits.
pub struct Upstream {
    children: Vec<Child>,
}

impl Upstream {
    /// Starts it; `more` are further options of kube-apiserver.
    pub fn start(cluster: &Cluster, folder: &Path, access: &Access, more: &[&str]) -> Result<Self> {
        let mut started = Self { children: Vec::new() };
        let mut etcd = cluster.sandbox.command(folder.join("etcd"));
        etcd.args(["--listen-client-urls", ETCD, "--advertise-client-urls", ETCD]);
        etcd.arg("--data-dir").arg(cluster.sandbox.path("etcd"));
        etcd.args(["--quota-backend-bytes", "8589934592"]);
        log_to(&mut etcd, &cluster.sandbox.path("etcd.log"));
        started.children.push(etcd.spawn().context("etcd")?);

        let file = |name: &str| cluster.data_dir().join("pki").join(name).display().to_string();
        let mut server = cluster.sandbox.command(folder.join("kube-apiserver"));
        server.args(["--etcd-servers", ETCD, "--secure-port", "6443", "--authorization-mode", "Node,RBAC"]);
        server.arg(format!("--client-ca-file={}", file("ca.crt")));
        server.arg(format!("--tls-cert-file={}", file("apiserver.crt")));
        server.arg(format!("--tls-private-key-file={}", file("apiserver.key")));
        // kube-apiserver signs with keys in PKCS#8, but cannot verify with them: it can with a certificate.
        server.arg(format!("--service-account-key-file={}", file("apiserver.crt")));
        server.arg(format!("--service-account-signing-key-file={}", file("apiserver.key")));
        server.args(["--service-account-issuer", "https://kubernetes.default.svc.cluster.local"]);
        server.args(["--service-cluster-ip-range", "10.43.0.0/16"]);
        server.args(more);
        log_to(&mut server, &cluster.sandbox.path("upstream.log"));
        started.children.push(server.spawn().context("kube-apiserver")?);
        let begun = Instant::now();
        let ready = || access.connect().and_then(|mut c| c.send("GET", "/readyz", None));
        while ready().is_err() {
            let ended = started.children[1].try_wait()?.is_some();
            if ended || begun.elapsed() > Duration::from_secs(120) {
                let log = std::fs::read_to_string(cluster.sandbox.path("upstream.log")).unwrap_or_default();
                let tail: Vec<&str> = log.lines().rev().take(20).collect();
                bail!("kube-apiserver did not become ready:\n{}", tail.join("\n"));
            }
            std::thread::sleep(Duration::from_millis(100));
        }
        let namespace: Value = access
            .connect()?
            .json("GET", "/api/v1/namespaces/default", None)
            .context("the namespace default")?;
        ensure!(namespace["kind"] == "Namespace", "kube-apiserver has no namespace default");
        Ok(started)
    }

    fn pid(&self, index: usize) -> Result<u32> {
        only_child(self.children[index].id()).context("the process is gone")
    }

    fn etcd(&self) -> Result<u32> {
        self.pid(0)
    }

    pub fn server(&self) -> Result<u32> {
        self.pid(1)
    }
}

impl Drop for Upstream {
    fn drop(&mut self) {
        for child in &mut self.children {
            if let Some(pid) = only_child(child.id()) {
                let _ = kill(Pid::from_raw(pid.cast_signed()), Signal::SIGKILL);
            }
            let _ = child.wait();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_time_of_sending_is_read_off_an_event() {
        let line = br#"{"type":"MODIFIED","object":{"data":{"sent":"00000000000000001500","text":""}}}"#;
        assert_eq!(sent_at(line), Some(Duration::from_nanos(1500)));
        assert_eq!(sent_at(b"{}"), None);
    }
}
