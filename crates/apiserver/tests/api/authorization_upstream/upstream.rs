//! Upstream's API server with an etcd of its own.
//!
//! `KNARR_UPSTREAM` is a directory with kube-apiserver and etcd.

use std::net::{SocketAddr, TcpListener};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use http::HeaderValue;
use knarr_client::http::HttpTransport;
use knarr_client::kubeconfig::Access;

use crate::harness::User;
use crate::tls::Authority;

const PATIENCE: Duration = Duration::from_secs(120);
const PAUSE: Duration = Duration::from_millis(100);

/// The running programs; they are ended on drop.
pub struct Upstream {
    folder: PathBuf,
    children: Vec<Child>,
    pub admin: User,
    pub address: SocketAddr,
}

impl Drop for Upstream {
    fn drop(&mut self) {
        for child in self.children.iter_mut().rev() {
            let _ = child.kill();
            let _ = child.wait();
        }
        let _ = std::fs::remove_dir_all(&self.folder);
    }
}

fn free_port() -> u16 {
    TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port()
}

fn start(program: PathBuf, flags: &[String], log: String) -> Child {
    let log = std::fs::File::create(log).unwrap();
    let mut command = Command::new(&program);
    command.args(flags).stdout(Stdio::null()).stderr(log);
    command.spawn().unwrap_or_else(|e| panic!("KNARR_UPSTREAM: {} does not start: {e}", program.display()))
}

impl Upstream {
    /// Starts the programs with a certificate of this CA, and a token file in which `admin` is a token of an
    /// administrator.
    pub async fn start(authority: &Authority, tokens: &str, admin: &str) -> Self {
        let programs = std::env::var_os("KNARR_UPSTREAM")
            .expect("KNARR_UPSTREAM: a folder with kube-apiserver and etcd");
        let programs = Path::new(&programs);
        let folder = std::env::temp_dir().join(format!("upstream-{}", uuid::Uuid::new_v4()));
        std::fs::create_dir_all(&folder).unwrap();
        let file = |name: &str| folder.join(name).display().to_string();
        std::fs::write(file("tokens"), tokens).unwrap();
        let key = rcgen::KeyPair::generate().unwrap();
        std::fs::write(file("key"), key.serialize_pem()).unwrap();
        std::fs::write(file("public"), key.public_key_pem()).unwrap();
        let serving = authority.sign("kube-apiserver", &[], &["127.0.0.1"], false);
        std::fs::write(file("serving.crt"), serving.certificate_pem).unwrap();
        std::fs::write(file("serving.key"), serving.key_pem).unwrap();
        let (store, peer, port) = (free_port(), free_port(), free_port());
        let (store, peer) = (format!("http://127.0.0.1:{store}"), format!("http://127.0.0.1:{peer}"));
        let etcd = start(
            programs.join("etcd"),
            &[
                format!("--data-dir={}", file("etcd")),
                format!("--listen-client-urls={store}"),
                format!("--advertise-client-urls={store}"),
                format!("--listen-peer-urls={peer}"),
                format!("--initial-advertise-peer-urls={peer}"),
                format!("--initial-cluster=default={peer}"),
                "--unsafe-no-fsync".to_owned(),
            ],
            file("etcd.log"),
        );
        let api = start(
            programs.join("kube-apiserver"),
            &[
                format!("--etcd-servers={store}"),
                format!("--secure-port={port}"),
                format!("--tls-cert-file={}", file("serving.crt")),
                format!("--tls-private-key-file={}", file("serving.key")),
                format!("--token-auth-file={}", file("tokens")),
                format!("--service-account-signing-key-file={}", file("key")),
                format!("--service-account-key-file={}", file("public")),
                "--service-account-issuer=https://kubernetes.default.svc".to_owned(),
                "--service-cluster-ip-range=10.0.0.0/24".to_owned(),
                "--bind-address=127.0.0.1".to_owned(),
                "--advertise-address=127.0.0.1".to_owned(),
                "--endpoint-reconciler-type=none".to_owned(),
                "--authorization-mode=Node,RBAC".to_owned(),
                "--enable-admission-plugins=NodeRestriction".to_owned(),
            ],
            file("kube-apiserver.log"),
        );
        let server = format!("https://127.0.0.1:{port}");
        let access = Access { server, insecure_skip_tls_verify: true, ..Access::default() };
        let transport = HttpTransport::new(&access).unwrap();
        let bearer = HeaderValue::from_str(&format!("Bearer {admin}")).unwrap();
        let admin = User(Arc::new(transport.with_authorization(bearer)));
        let address = SocketAddr::from(([127, 0, 0, 1], port));
        let upstream = Self { children: vec![etcd, api], admin, folder, address };
        upstream.ready().await;
        upstream
    }

    async fn ready(&self) {
        let began = Instant::now();
        let request = || http::Request::builder().uri("/readyz").body(bytes::Bytes::new()).unwrap();
        while self.admin.0.send(request()).await.is_err() {
            if began.elapsed() > PATIENCE {
                let log = std::fs::read_to_string(self.folder.join("kube-apiserver.log")).unwrap_or_default();
                panic!("kube-apiserver is not ready: {}", &log[log.len().saturating_sub(4000)..]);
            }
            tokio::time::sleep(PAUSE).await;
        }
    }
}
