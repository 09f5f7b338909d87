//! The same server over real TLS: certificates, tokens, HTTP/1.1 and HTTP/2, streaming watches.

use std::net::SocketAddr;
use std::sync::Arc;

use bytes::Bytes;
use http_body_util::{BodyExt, Full};
use hyper_util::rt::{TokioExecutor, TokioIo};
use knarr_apiserver::{ApiServer, Config, Keypair};
use knarr_storage::{Embedded, Options, Store};
use rcgen::{CertificateParams, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use serde_json::{Value, json};
use tokio::net::{TcpListener, TcpStream};

use crate::harness::{CONFIG_MAPS, User, config, config_map};

pub struct Authority {
    pub issuer: Issuer<'static, KeyPair>,
    pub pem: String,
}

impl Authority {
    pub fn new() -> Self {
        let key = KeyPair::generate().unwrap();
        let mut params = CertificateParams::new(Vec::new()).unwrap();
        params.is_ca = IsCa::Ca(rcgen::BasicConstraints::Unconstrained);
        params.distinguished_name.push(DnType::CommonName, "test-ca");
        let pem = params.self_signed(&key).unwrap().pem();
        Self { issuer: Issuer::new(params, key), pem }
    }

    pub fn sign(&self, user: &str, groups: &[&str], hosts: &[&str], expired: bool) -> Keypair {
        let key = KeyPair::generate().unwrap();
        let mut params =
            CertificateParams::new(hosts.iter().map(|h| (*h).to_owned()).collect::<Vec<_>>()).unwrap();
        params.distinguished_name = rcgen::DistinguishedName::new();
        params.distinguished_name.push(DnType::CommonName, user);
        for group in groups {
            params.distinguished_name.push(DnType::OrganizationName, *group);
        }
        params.extended_key_usages =
            vec![ExtendedKeyUsagePurpose::ServerAuth, ExtendedKeyUsagePurpose::ClientAuth];
        if expired {
            params.not_before = rcgen::date_time_ymd(2000, 1, 1);
            params.not_after = rcgen::date_time_ymd(2001, 1, 1);
        }
        let certificate = params.signed_by(&key, &self.issuer).unwrap();
        Keypair { certificate_pem: certificate.pem(), key_pem: key.serialize_pem() }
    }
}

pub struct Served {
    pub server: ApiServer,
    pub store: Arc<dyn Store>,
    pub authority: Authority,
    pub address: SocketAddr,
}

pub async fn serve() -> Served {
    serve_with(|_, _| {}).await
}

/// Does the same as `serve`, with changes to the configuration.
pub async fn serve_with(change: impl FnOnce(&mut Config, &Authority)) -> Served {
    let authority = Authority::new();
    let store: Arc<dyn Store> = Arc::new(Embedded::memory(Options::default()));
    let mut config = config(Arc::clone(&store));
    change(&mut config, &authority);
    config.serving = authority.sign("apiserver", &[], &["127.0.0.1"], false);
    config.client_ca_pem = authority.pem.clone();
    config.kubelet_ca_pem = authority.pem.clone();
    config.kubelet_client =
        Some(authority.sign("kube-apiserver-kubelet-client", &["system:masters"], &[], false));
    let server = ApiServer::new(config).await.unwrap();
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let serving = server.clone();
    tokio::spawn(async move { serving.serve(listener).await });
    Served { server, store, authority, address }
}

impl Served {
    pub async fn connect(
        &self,
        client: Option<&Keypair>,
        h2: bool,
    ) -> tokio_rustls::client::TlsStream<TcpStream> {
        let mut roots = rustls::RootCertStore::empty();
        roots.add(CertificateDer::from_pem_slice(self.authority.pem.as_bytes()).unwrap()).unwrap();
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let builder = rustls::ClientConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_root_certificates(roots);
        let mut tls = match client {
            Some(pair) => builder
                .with_client_auth_cert(
                    vec![CertificateDer::from_pem_slice(pair.certificate_pem.as_bytes()).unwrap()],
                    PrivateKeyDer::from_pem_slice(pair.key_pem.as_bytes()).unwrap(),
                )
                .unwrap(),
            None => builder.with_no_client_auth(),
        };
        tls.alpn_protocols = vec![if h2 { b"h2".to_vec() } else { b"http/1.1".to_vec() }];
        let stream = TcpStream::connect(self.address).await.unwrap();
        let name = rustls::pki_types::ServerName::try_from("127.0.0.1").unwrap();
        tokio_rustls::TlsConnector::from(Arc::new(tls)).connect(name, stream).await.unwrap()
    }

    pub async fn open(
        &self,
        client: Option<&Keypair>,
        h2: bool,
        request: http::request::Builder,
        body: &str,
    ) -> http::Response<hyper::body::Incoming> {
        let stream = TokioIo::new(self.connect(client, h2).await);
        let body = Full::new(Bytes::from(body.to_owned()));
        if h2 {
            let (mut sender, connection) =
                hyper::client::conn::http2::handshake(TokioExecutor::new(), stream).await.unwrap();
            tokio::spawn(connection);
            return sender.send_request(request.body(body).unwrap()).await.unwrap();
        }
        let (mut sender, connection) = hyper::client::conn::http1::handshake(stream).await.unwrap();
        tokio::spawn(connection);
        sender.send_request(request.header("host", "127.0.0.1").body(body).unwrap()).await.unwrap()
    }

    /// Sends a request whose response may switch the connection to another protocol.
    pub async fn open_upgradable(
        &self,
        client: &Keypair,
        request: http::request::Builder,
    ) -> http::Response<hyper::body::Incoming> {
        let stream = TokioIo::new(self.connect(Some(client), false).await);
        let (mut sender, connection) = hyper::client::conn::http1::handshake(stream).await.unwrap();
        tokio::spawn(connection.with_upgrades());
        let request = request.header("host", "127.0.0.1").body(Full::new(Bytes::new()));
        sender.send_request(request.unwrap()).await.unwrap()
    }

    pub async fn ask(
        &self,
        client: Option<&Keypair>,
        h2: bool,
        request: http::request::Builder,
        body: &str,
    ) -> (u16, Value) {
        let response = self.open(client, h2, request, body).await;
        let code = response.status().as_u16();
        let bytes = response.into_body().collect().await.unwrap().to_bytes();
        let text = String::from_utf8_lossy(&bytes).into_owned();
        (code, serde_json::from_slice(&bytes).unwrap_or(Value::from(text)))
    }
}

fn get(path: &str) -> http::request::Builder {
    http::Request::builder().uri(format!("https://127.0.0.1{path}"))
}

pub fn get1(path: &str) -> http::request::Builder {
    http::Request::builder().uri(path)
}

#[tokio::test]
async fn certificates_say_who_asks() {
    let s = serve().await;
    let admin = s.authority.sign("admin", &["system:masters"], &[], false);
    for h2 in [false, true] {
        let request = if h2 { get(CONFIG_MAPS) } else { get1(CONFIG_MAPS) };
        let (code, list) = s.ask(Some(&admin), h2, request, "").await;
        assert_eq!((code, list["kind"].as_str()), (200, Some("ConfigMapList")));
    }
    let jane = s.authority.sign("jane", &["people"], &[], false);
    let (code, status) = s.ask(Some(&jane), false, get1(CONFIG_MAPS), "").await;
    assert_eq!(code, 403);
    assert!(status["message"].as_str().unwrap().contains("User \"jane\" cannot list"));
}

#[tokio::test]
async fn strangers_are_unauthorized() {
    let s = serve().await;
    let expired = s.authority.sign("admin", &["system:masters"], &[], true);
    let foreign = Authority::new().sign("admin", &["system:masters"], &[], false);
    for client in [None, Some(&expired), Some(&foreign)] {
        let (code, status) = s.ask(client, false, get1(CONFIG_MAPS), "").await;
        assert_eq!(
            (code, status["message"].as_str(), status["reason"].as_str()),
            (401, Some("Unauthorized"), Some("Unauthorized"))
        );
    }
    let token = get1(CONFIG_MAPS).header("authorization", "Bearer rubbish");
    assert_eq!(s.ask(None, false, token, "").await.0, 401);
    for path in ["/livez", "/readyz", "/healthz"] {
        assert_eq!(s.ask(None, false, get1(path), "").await, (200, json!("ok")));
    }
    assert_eq!(s.ask(None, false, get1("/version"), "").await.0, 401);
}

/// Checks whether an HTTP/2 connection ends after a first response with this code, or accepts further requests.
async fn check_one_request(s: &Served, client: Option<&Keypair>, path: &str, code: u16, ends: bool) {
    let stream = TokioIo::new(s.connect(client, true).await);
    let (mut sender, connection) =
        hyper::client::conn::http2::handshake(TokioExecutor::new(), stream).await.unwrap();
    let ended = tokio::spawn(connection);
    let body = || Full::new(Bytes::new());
    let answer = sender.send_request(get(path).body(body()).unwrap()).await.unwrap();
    assert_eq!(answer.status().as_u16(), code, "{path}");
    answer.into_body().collect().await.unwrap();
    if ends {
        let ended = tokio::time::timeout(std::time::Duration::from_secs(10), ended).await;
        return ended.unwrap_or_else(|_| panic!("{path}: still open")).unwrap().unwrap();
    }
    for _ in 0..3 {
        let answer = sender.send_request(get(path).body(body()).unwrap()).await.unwrap();
        assert_eq!(answer.status().as_u16(), code, "{path}");
        answer.into_body().collect().await.unwrap();
    }
}

#[tokio::test]
async fn who_is_not_known_keeps_no_http2_connection() {
    let s = serve().await;
    check_one_request(&s, None, CONFIG_MAPS, 401, true).await;
    check_one_request(&s, None, "/healthz", 200, true).await;
    let jane = s.authority.sign("jane", &["people"], &[], false);
    check_one_request(&s, Some(&jane), CONFIG_MAPS, 403, false).await;
    let off = serve_with(|config, _| {
        config.features.set("UnauthenticatedHTTP2DOSMitigation=false").unwrap();
    })
    .await;
    check_one_request(&off, None, CONFIG_MAPS, 401, false).await;
}

#[tokio::test]
async fn tokens_say_who_asks() {
    let s = serve().await;
    let user = User(s.server.transport(knarr_apiserver::UserInfo::new("admin", &["system:masters"])));
    crate::harness::default_account(&user).await;
    let uri = "/api/v1/namespaces/default/serviceaccounts/default/token";
    let issued = user.post(uri, &json!({"spec": {}})).await.expect(201);
    let token = issued["status"]["token"].as_str().unwrap();
    let ask = || get1(CONFIG_MAPS).header("authorization", format!("Bearer {token}"));
    let (code, status) = s.ask(None, false, ask(), "").await;
    assert_eq!(code, 403);
    assert!(
        status["message"]
            .as_str()
            .unwrap()
            .contains("User \"system:serviceaccount:default:default\" cannot list")
    );
    user.delete("/api/v1/namespaces/default/serviceaccounts/default").await.expect(200);
    user.get("/api/v1/serviceaccounts").await.expect(200);
    assert_eq!(s.ask(None, false, ask(), "").await.0, 401);
}

#[tokio::test]
async fn watches_stream() {
    let s = serve().await;
    let admin = s.authority.sign("admin", &["system:masters"], &[], false);
    let user = User(s.server.transport(knarr_apiserver::UserInfo::new("admin", &["system:masters"])));
    let response = s.open(Some(&admin), false, get1(&format!("{CONFIG_MAPS}?watch=1")), "").await;
    assert_eq!(response.headers()["content-type"], "application/json");
    let mut body = response.into_body();
    user.post(CONFIG_MAPS, &config_map("a")).await.expect(201);
    let frame = body.frame().await.unwrap().unwrap().into_data().unwrap();
    let event: Value = serde_json::from_slice(&frame).unwrap();
    assert_eq!(
        (event["type"].as_str(), event["object"]["metadata"]["name"].as_str()),
        (Some("ADDED"), Some("a"))
    );
    s.server.stop();
    assert!(body.frame().await.is_none());
}

#[tokio::test]
async fn large_answers_are_compressed() {
    let s = serve().await;
    let admin = s.authority.sign("admin", &["system:masters"], &[], false);
    let user = User(s.server.transport(knarr_apiserver::UserInfo::new("admin", &["system:masters"])));
    let mut large = config_map("a");
    large["data"]["k"] = "x".repeat(200_000).into();
    user.post(CONFIG_MAPS, &large).await.expect(201);
    let response = s.open(Some(&admin), false, get1(CONFIG_MAPS).header("accept-encoding", "gzip"), "").await;
    assert_eq!(response.headers()["content-encoding"], "gzip");
    let packed = response.into_body().collect().await.unwrap().to_bytes();
    assert!(packed.len() < 20_000);
    let list: Value = serde_json::from_reader(flate2::read::GzDecoder::new(&packed[..])).unwrap();
    assert_eq!(list["items"][0]["metadata"]["name"], "a");
    let response = s.open(Some(&admin), false, get1("/metrics").header("accept-encoding", "gzip"), "").await;
    assert_eq!(response.headers()["content-encoding"], "gzip");
    let packed = response.into_body().collect().await.unwrap().to_bytes();
    let text = std::io::read_to_string(flate2::read::GzDecoder::new(&packed[..])).unwrap();
    assert!(text.contains("\n# TYPE apiserver_request_total counter\n"));
}

#[tokio::test]
async fn bodies_are_limited() {
    let s = serve().await;
    let admin = s.authority.sign("admin", &["system:masters"], &[], false);
    let request =
        http::Request::builder().method("POST").uri(CONFIG_MAPS).header("content-type", "application/json");
    let (code, status) = s.ask(Some(&admin), false, request, &" ".repeat(3 * 1024 * 1024 + 1)).await;
    assert_eq!((code, status["message"].as_str()), (413, Some("Request entity too large: limit is 3145728")));
    // A client that sends its whole body before it reads the response gets one.
    let mut stream = s.connect(Some(&admin), false).await;
    let length = 10 << 20;
    let head = format!(
        "POST {CONFIG_MAPS} HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\ncontent-length: {length}\r\n\r\n"
    );
    tokio::io::AsyncWriteExt::write_all(&mut stream, head.as_bytes()).await.unwrap();
    tokio::io::AsyncWriteExt::write_all(&mut stream, " ".repeat(length).as_bytes()).await.unwrap();
    let mut answer = [0; 12];
    tokio::io::AsyncReadExt::read_exact(&mut stream, &mut answer).await.unwrap();
    assert_eq!(&answer, b"HTTP/1.1 413");
}

/// Announces a body that is never sent; returns the start of the response.
async fn half_a_request(s: &Served, uri: &str) -> String {
    let admin = s.authority.sign("admin", &["system:masters"], &[], false);
    let mut stream = s.connect(Some(&admin), false).await;
    let head = format!(
        "POST {uri} HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\ncontent-length: 100\r\n\r\n"
    );
    tokio::io::AsyncWriteExt::write_all(&mut stream, head.as_bytes()).await.unwrap();
    let mut answer = [0; 32];
    tokio::io::AsyncReadExt::read_exact(&mut stream, &mut answer).await.unwrap();
    String::from_utf8_lossy(&answer).into_owned()
}

#[tokio::test]
async fn slow_requests_time_out() {
    let s = serve_with(|config, _| config.request_timeout = std::time::Duration::from_millis(300)).await;
    let answer = half_a_request(&s, CONFIG_MAPS).await;
    assert!(answer.starts_with("HTTP/1.1 504"), "{answer}");
    let unused = s.server.unused_metrics();
    assert!(!unused.contains(&"apiserver_request_terminations_total"));
    assert!(!unused.contains(&"apiserver_request_aborts_total"));
}

#[tokio::test]
async fn clients_say_how_long_they_wait() {
    let s = serve().await;
    let answer = half_a_request(&s, &format!("{CONFIG_MAPS}?timeout=200ms")).await;
    assert!(answer.starts_with("HTTP/1.1 504"), "{answer}");
    let admin = s.authority.sign("admin", &["system:masters"], &[], false);
    for (uri, code, message) in [
        (
            "/api?timeout=soon",
            400,
            Some("invalid timeout specified in the request URL - time: invalid duration \"soon\""),
        ),
        (
            "/version?timeout=1",
            400,
            Some("invalid timeout specified in the request URL - time: missing unit in duration \"1\""),
        ),
        ("/api/v1/nodes?timeout=0s", 200, None),
        ("/api/v1/nodes?timeout=-1s", 200, None),
        ("/api/v1/nodes?timeout=100h", 200, None),
        ("/api/v1/nodes?timeout=", 200, None),
    ] {
        let (got, body) = s.ask(Some(&admin), false, http::Request::builder().uri(uri), "").await;
        assert_eq!((got, body["message"].as_str()), (code, message), "{uri}");
    }
}

#[tokio::test]
async fn head_is_answered_without_content() {
    let s = serve().await;
    let admin = s.authority.sign("admin", &["system:masters"], &[], false);
    for h2 in [false, true] {
        for (path, code) in [("/healthz", 200), ("/metrics", 200), ("/version", 405), (CONFIG_MAPS, 405)] {
            let request = if h2 { get(path) } else { get1(path) };
            let answer = s.open(Some(&admin), h2, request.method("HEAD"), "").await;
            assert_eq!(answer.status().as_u16(), code, "{path}");
            assert!(answer.headers().contains_key("content-length"), "{path}");
            assert!(answer.into_body().collect().await.unwrap().to_bytes().is_empty(), "{path}");
        }
    }
}
