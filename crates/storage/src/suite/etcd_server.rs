//! An etcd process for tests, in a folder of its own, on loopback.

use std::net::TcpListener;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use crate::Store;
use crate::{Etcd, EtcdOptions};

static COUNT: AtomicU32 = AtomicU32::new(0);

/// A running member, killed and removed when it is dropped.
pub struct Server {
    folder: PathBuf,
    port: u16,
    peer_port: u16,
    scheme: &'static str,
    extra: Vec<String>,
    child: Option<Child>,
}

fn free_port() -> u16 {
    TcpListener::bind(("127.0.0.1", 0)).unwrap().local_addr().unwrap().port()
}

impl Server {
    pub fn start() -> Self {
        Self::start_with("http", |_| Vec::new())
    }

    /// Starts a member with further arguments, which may depend on its folder.
    pub fn start_with(scheme: &'static str, extra: impl Fn(&PathBuf) -> Vec<String>) -> Self {
        let n = COUNT.fetch_add(1, Ordering::Relaxed);
        let folder = std::env::temp_dir().join(format!("knarr-etcd-{}-{n}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        let extra = extra(&folder);
        let mut server =
            Self { folder, port: free_port(), peer_port: free_port(), scheme, extra, child: None };
        server.run();
        server
    }

    pub fn url(&self) -> String {
        format!("{}://127.0.0.1:{}", self.scheme, self.port)
    }

    /// Starts the process with the existing data.
    pub fn run(&mut self) {
        let peer = format!("http://127.0.0.1:{}", self.peer_port);
        let child = Command::new("etcd")
            .args(["--name", "a", "--data-dir"])
            .arg(self.folder.join("data"))
            .args(["--listen-client-urls", &self.url(), "--advertise-client-urls", &self.url()])
            .args(["--listen-peer-urls", &peer, "--initial-advertise-peer-urls", &peer])
            .args(["--initial-cluster", &format!("a={peer}")])
            .args(["--heartbeat-interval", "20", "--election-timeout", "200"])
            .args(&self.extra)
            .stdout(Stdio::null())
            .stderr(Stdio::from(std::fs::File::create(self.folder.join("log")).unwrap()))
            .spawn()
            .expect("`etcd` runs: install the package etcd-server");
        self.child = Some(child);
    }

    /// Kills the process with SIGKILL.
    pub fn kill(&mut self) {
        if let Some(mut child) = self.child.take() {
            child.kill().unwrap();
            child.wait().unwrap();
        }
    }

    pub fn options(&self) -> EtcdOptions {
        // The suite's keys do not begin with a slash.
        let prefix = "/suite/".to_owned();
        EtcdOptions { prefix, request_timeout: Duration::from_secs(30), ..EtcdOptions::new(vec![self.url()]) }
    }

    /// Returns a store on the member, once it answers.
    pub async fn store(&self, options: EtcdOptions) -> Etcd {
        let store = Etcd::new(options).unwrap();
        if let Err(error) = store.current_revision().await {
            let log = std::fs::read_to_string(self.folder.join("log")).unwrap_or_default();
            panic!("{error}\n{log}");
        }
        store
    }

    pub fn etcdctl(&self, arguments: &[&str]) {
        let done = Command::new("etcdctl")
            .env("ETCDCTL_API", "3")
            .args(["--endpoints", &self.url()])
            .args(arguments)
            .stdout(Stdio::null())
            .status()
            .expect("`etcdctl` runs: install the package etcd-client");
        assert!(done.success(), "etcdctl {arguments:?}");
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.kill();
        let _ = std::fs::remove_dir_all(&self.folder);
    }
}
