//! kubectl against a cluster under test.

use std::io::Write;
use std::path::PathBuf;
use std::process::{Child, Command, Output, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::Value;

use crate::cluster::Cluster;
use crate::sandbox::{log_to, only_child, succeeded, wait_for};

/// How long a test waits for a change that should happen soon.
pub const PATIENCE: Duration = Duration::from_secs(90);

/// The arguments of a command: a line that is split at white space, or separate words.
pub trait Words {
    fn words(self) -> Vec<String>;
}

impl Words for &str {
    fn words(self) -> Vec<String> {
        self.split_whitespace().map(str::to_owned).collect()
    }
}

impl Words for &String {
    fn words(self) -> Vec<String> {
        self.as_str().words()
    }
}

impl<const N: usize> Words for [&str; N] {
    fn words(self) -> Vec<String> {
        self.iter().map(|w| (*w).to_owned()).collect()
    }
}

impl Words for &[String] {
    fn words(self) -> Vec<String> {
        self.to_vec()
    }
}

/// kubectl with a kubeconfig and usually a namespace, which is deleted when the test ends.
pub struct Kubectl<'a> {
    pub cluster: &'a Cluster,
    /// The namespace created for this test.
    namespace: Option<String>,
    kubeconfig: PathBuf,
}

impl<'a> Kubectl<'a> {
    pub fn new(cluster: &'a Cluster, namespace: Option<String>, kubeconfig: PathBuf) -> Self {
        Self { cluster, namespace, kubeconfig }
    }

    /// Returns kubectl for another namespace, which is deleted when the test ends.
    pub fn in_namespace(&self, name: &str) -> Self {
        Self::new(self.cluster, Some(name.to_owned()), self.kubeconfig.clone())
    }

    pub fn namespace(&self) -> &str {
        self.namespace.as_deref().unwrap_or("default")
    }

    pub fn command(&self, words: impl Words) -> Command {
        let mut command = self.cluster.sandbox.command("kubectl");
        command.arg("--kubeconfig").arg(&self.kubeconfig);
        command.arg("--cache-dir").arg(self.cluster.sandbox.path("kubectl-cache"));
        if let Some(namespace) = &self.namespace {
            command.args(["--namespace", namespace]);
        }
        command.args(words.words());
        command
    }

    /// Runs kubectl, whether it succeeds or fails.
    pub fn attempt(&self, words: impl Words) -> Output {
        self.command(words).output().expect("nsenter(1) of util-linux")
    }

    /// Runs kubectl, which has to succeed; returns its standard output.
    #[track_caller]
    pub fn run(&self, words: impl Words) -> String {
        let words = words.words();
        succeeded(&format!("kubectl {}", words.join(" ")), &self.attempt(words.as_slice()))
    }

    /// Runs kubectl, which has to fail; returns its standard error.
    #[track_caller]
    pub fn fails(&self, words: impl Words) -> String {
        let words = words.words();
        failed(&words.join(" "), &self.attempt(words.as_slice()))
    }

    /// Runs kubectl with text on its standard input, whether it succeeds or fails.
    pub fn attempt_with(&self, words: impl Words, input: &str) -> Output {
        let mut command = self.command(words);
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().expect("nsenter(1) of util-linux");
        let mut pipe = child.stdin.take().expect("a pipe");
        // If kubectl failed early it reads nothing; its message explains more than a broken pipe.
        let _ = pipe.write_all(input.as_bytes());
        drop(pipe);
        child.wait_with_output().expect("kubectl's end")
    }

    /// Runs `kubectl WORDS -f -` with a manifest; it has to succeed.
    #[track_caller]
    pub fn with(&self, words: &str, manifest: &str) -> String {
        succeeded(&format!("kubectl {words} <<END\n{manifest}\nEND"), &self.attempt_with(words, manifest))
    }

    #[track_caller]
    pub fn with_fails(&self, words: &str, manifest: &str) -> String {
        failed(words, &self.attempt_with(words, manifest))
    }

    /// Applies a manifest.
    #[track_caller]
    pub fn apply(&self, object: &Value) -> String {
        self.with("apply -f -", &object.to_string())
    }

    /// Runs `get … -o json` and parses the output.
    #[track_caller]
    pub fn json(&self, what: &str) -> Value {
        let text = self.run(&format!("get {what} -o json"));
        serde_json::from_str(&text).expect("JSON from kubectl")
    }

    /// Runs `get … -o jsonpath=…`.
    #[track_caller]
    pub fn path(&self, what: &str, path: &str) -> String {
        let mut words = format!("get {what}").words();
        words.push(format!("-o=jsonpath={path}"));
        self.run(words.as_slice())
    }

    /// Runs kubectl repeatedly until the output satisfies `good`; returns the output.
    #[track_caller]
    pub fn eventually(&self, words: impl Words, good: impl Fn(&str) -> bool) -> String {
        let words = words.words();
        let mut last = String::new();
        let deadline = Instant::now() + PATIENCE;
        while Instant::now() < deadline {
            let output = self.attempt(words.as_slice());
            last = String::from_utf8_lossy(&output.stdout).into_owned();
            if good(&last) {
                return last;
            }
            last.push_str(&String::from_utf8_lossy(&output.stderr));
            std::thread::sleep(Duration::from_millis(200));
        }
        panic!("kubectl {}: never as expected; last:\n{last}", words.join(" "));
    }

    /// Waits until a jsonpath has the given value.
    #[track_caller]
    pub fn until(&self, what: &str, path: &str, value: &str) {
        let mut words = format!("get {what}").words();
        words.push(format!("-o=jsonpath={path}"));
        self.eventually(words.as_slice(), |out| out == value);
    }

    /// Waits until a pod is Ready.
    #[track_caller]
    pub fn ready(&self, pod: &str) {
        self.run(&format!("wait --for=condition=Ready --timeout=90s pod/{pod}"));
    }

    /// Waits until a pod's phase is the given one.
    #[track_caller]
    pub fn phase(&self, pod: &str, phase: &str) {
        self.until(&format!("pod {pod}"), "{.status.phase}", phase);
    }

    /// Waits for an event of an object with the given reason; returns the messages of all such events.
    #[track_caller]
    pub fn event(&self, name: &str, reason: &str) -> String {
        let selector = format!("involvedObject.name={name},reason={reason}");
        let path = r"-o=jsonpath={range .items[*]}{.message}{'\n'}{end}";
        self.eventually(["get", "events", "--field-selector", &selector, path], |out| !out.trim().is_empty())
    }

    /// Runs kubectl in the background, with its output in a file.
    pub fn background(&self, words: impl Words) -> Background {
        let words = words.words();
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let name = format!("background-{}", COUNT.fetch_add(1, Ordering::Relaxed));
        let file = self.cluster.sandbox.path(&name);
        let mut command = self.command(words.as_slice());
        log_to(&mut command, &file);
        Background { child: command.spawn().expect("nsenter(1) of util-linux"), file }
    }

    /// Returns information that helps to understand a failure.
    fn report(&self) -> String {
        let show = |words: &str| String::from_utf8_lossy(&self.attempt(words).stdout).into_owned();
        let log = self.cluster.log();
        let tail: Vec<&str> = log.lines().rev().take(60).collect();
        format!(
            "--- {}: objects\n{}\n--- events\n{}\n--- end of the server's log\n{}",
            self.namespace(),
            show("get deployments,replicasets,pods,services,endpointslices -o wide"),
            show("get events --sort-by=.metadata.creationTimestamp"),
            tail.into_iter().rev().collect::<Vec<_>>().join("\n")
        )
    }
}

impl Drop for Kubectl<'_> {
    fn drop(&mut self) {
        let Some(namespace) = &self.namespace else { return };
        if std::thread::panicking() {
            eprintln!("{}", self.report());
        }
        let _ = self.attempt(["delete", "namespace", namespace, "--wait=false"]);
    }
}

#[track_caller]
fn failed(what: &str, output: &Output) -> String {
    let stdout = String::from_utf8_lossy(&output.stdout);
    assert!(!output.status.success(), "kubectl {what} succeeded:\n{stdout}");
    String::from_utf8_lossy(&output.stderr).into_owned()
}

/// A running kubectl.
pub struct Background {
    child: Child,
    file: PathBuf,
}

impl Background {
    /// Waits until the output so far satisfies `good`; returns it.
    #[track_caller]
    pub fn until(&self, good: impl Fn(&str) -> bool) -> String {
        let read = || std::fs::read_to_string(&self.file).unwrap_or_default();
        let deadline = Instant::now() + PATIENCE;
        while Instant::now() < deadline {
            if good(&read()) {
                return read();
            }
            std::thread::sleep(Duration::from_millis(50));
        }
        panic!("output never as expected; last:\n{}", read());
    }

    /// Waits until kubectl ends by itself; returns whether it succeeded, and its output.
    pub fn end(mut self) -> (bool, String) {
        let status = wait_for("kubectl's end", PATIENCE, || self.child.try_wait().expect("a child"));
        (status.success(), std::fs::read_to_string(&self.file).unwrap_or_default())
    }
}

impl Drop for Background {
    fn drop(&mut self) {
        if let Some(kubectl) = only_child(self.child.id()) {
            let _ = kill(Pid::from_raw(kubectl as i32), Signal::SIGKILL);
        }
        let _ = self.child.wait();
    }
}
