//! The server with real clients: a WebSocket client, a SPDY peer, HTTP over TLS.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use futures_util::{SinkExt, StreamExt};
use http::{Method, Request, StatusCode};
use http_body_util::{BodyExt, Empty};
use hyper_util::rt::TokioIo;
use k8s_openapi::api::authentication::v1::TokenReview;
use k8s_openapi::api::authorization::v1::SubjectAccessReview;
use k8s_openapi::api::core::v1::Pod;
use knarr_api::kind::Kind;
use knarr_client::Client;
use knarr_client::clock::SystemClock;
use knarr_client::reviews::{CertifiedUser, UserInfo};
use knarr_serving::{Limits, Protocol, speak};
use knarr_testing::FakeApi;
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt, DuplexStream};
use tokio_tungstenite::WebSocketStream;
use tokio_tungstenite::tungstenite::Message;
use tokio_tungstenite::tungstenite::client::IntoClientRequest;
use tokio_util::sync::CancellationToken;

use super::fake_runtime::{FakeRuntime, Leaked};
use super::handler::{Handler, Shown};
use super::serve::Node;
use crate::pod_lookup::{ContainerRef, LookupError, PodLookup};
use crate::runtime::{Control, Disk, RuntimeEvent, RuntimeEventKind, TerminalSize};

struct OnePod {
    pod: Arc<Pod>,
    log: PathBuf,
    tty: bool,
}

#[async_trait]
impl PodLookup for OnePod {
    fn pods(&self) -> Vec<Arc<Pod>> {
        vec![Arc::clone(&self.pod)]
    }

    fn pod(&self, namespace: &str, name: &str, uid: Option<&str>) -> Option<Arc<Pod>> {
        let same = self.pod.namespace() == namespace && self.pod.name() == name;
        (same && uid.is_none_or(|uid| uid == self.pod.uid())).then(|| Arc::clone(&self.pod))
    }

    async fn container(&self, _: &Pod, container: &str, previous: bool) -> Result<ContainerRef, LookupError> {
        let (pod, container) = ("p".to_owned(), container.to_owned());
        match (container.as_str(), previous) {
            ("c", true) => Err(LookupError::NoPrevious { pod, container }),
            ("c", false) => Ok(ContainerRef {
                container_id: "c1".into(),
                sandbox_id: "s1".into(),
                log_path: self.log.clone(),
                running: true,
                tty: self.tty,
                stdin: true,
            }),
            _ => Err(LookupError::Waiting { pod, container, reason: "ContainerCreating".into() }),
        }
    }

    async fn sandbox_id(&self, _: &Pod) -> Result<String, LookupError> {
        Ok("s1".into())
    }

    fn health(&self) -> Vec<super::Check> {
        let check = |name: &'static str, result| super::Check { name: name.into(), result };
        vec![check("syncloop", Ok(())), check("kubelet", Err("it panicked".to_owned()))]
    }
}

/// The TLS configuration of connections that begin after the handshake.
fn no_tls() -> Arc<rustls::ServerConfig> {
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let builder = rustls::ServerConfig::builder_with_provider(provider).with_safe_default_protocol_versions();
    let resolver = Arc::new(rustls::server::ResolvesServerCertUsingSni::new());
    Arc::new(builder.unwrap().with_no_client_auth().with_cert_resolver(resolver))
}

fn folders() -> super::Folders {
    super::Folders { local_path: std::env::temp_dir(), system_logs: "/nonexistent".into() }
}

pub(super) struct Lab {
    handler: Arc<Handler>,
    runtime: &'static FakeRuntime,
    log: PathBuf,
}

impl Drop for Lab {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(self.log.parent().unwrap());
    }
}

impl Lab {
    pub(super) fn new() -> Self {
        Self::with_tty(false)
    }

    fn with_tty(tty: bool) -> Self {
        let api =
            FakeApi::new(Arc::new(SystemClock), &[TokenReview::RESOURCE, SubjectAccessReview::RESOURCE]);
        Self::asking(api.client(), tty)
    }

    /// A server that uses this client for authorization.
    pub(super) fn asking(client: Client, tty: bool) -> Self {
        let dir = std::env::temp_dir().join(format!("knarr-server-{:016x}", fastrand::u64(..)));
        std::fs::create_dir_all(&dir).unwrap();
        let log = dir.join("0.log");
        let pod: Pod = serde_json::from_value(json!({
            "metadata": {"name": "p", "namespace": "ns", "uid": "u1"},
            "spec": {"containers": [{"name": "c"}, {"name": "late"}]},
            "status": {"phase": "Running", "containerStatuses": [{
                "name": "c", "containerID": "knarr://c1", "image": "", "imageID": "", "ready": true, "restartCount": 0,
                "state": {"running": {"startedAt": "1970-01-01T00:00:05Z"}}}]}
        }))
        .unwrap();
        let runtime = Leaked::new();
        let fake = runtime.0;
        let pods = OnePod { pod: Arc::new(pod), log: log.clone(), tty };
        let flags = vec![("kubelet-port".to_owned(), "10250".to_owned())];
        let shown = Shown::new(json!({"kubeletconfig": {"maxPods": 110}}), flags, client.clock());
        let handler = Handler::new("n1", shown, Arc::new(pods), Arc::new(runtime), client, folders());
        Self { handler: Arc::new(handler), runtime: fake, log }
    }

    /// A connection whose client certificate names the API server, or without one.
    fn connect(&self, known: bool) -> DuplexStream {
        let (near, far) = tokio::io::duplex(64 << 10);
        let user = UserInfo {
            name: "kube-apiserver-kubelet-client".into(),
            groups: vec!["system:masters".into()],
            ..UserInfo::default()
        };
        let user = known.then(|| CertifiedUser::until(user, i64::MAX));
        let stop = CancellationToken::new();
        let node = Node { tls: no_tls(), handler: Arc::clone(&self.handler), stop: stop.clone() };
        tokio::spawn(async move {
            speak(Arc::new(node), far, user, Protocol::Http1, &Limits::default(), stop).await;
        });
        near
    }

    pub(super) async fn request(&self, path: &str) -> (StatusCode, String) {
        let (status, body) = self.send(path, true, None).await;
        (status, String::from_utf8(body.to_vec()).unwrap())
    }

    pub(super) async fn send(&self, path: &str, known: bool, token: Option<&str>) -> (StatusCode, Bytes) {
        self.ask(Method::GET, path, known, token).await
    }

    async fn ask(&self, method: Method, path: &str, known: bool, token: Option<&str>) -> (StatusCode, Bytes) {
        let mut request = Request::builder().method(method).uri(path);
        if let Some(token) = token {
            request = request.header("authorization", format!("Bearer {token}"));
        }
        self.send_request(request.body(Empty::new()).unwrap(), known).await
    }

    pub(super) async fn send_request(
        &self,
        mut request: Request<Empty<Bytes>>,
        known: bool,
    ) -> (StatusCode, Bytes) {
        let (mut sender, connection) =
            hyper::client::conn::http1::handshake(TokioIo::new(self.connect(known))).await.unwrap();
        tokio::spawn(connection);
        request.headers_mut().insert("host", "n1".parse().unwrap());
        let response = sender.send_request(request).await.unwrap();
        let status = response.status();
        (status, response.into_body().collect().await.unwrap().to_bytes())
    }

    async fn websocket(&self, path: &str, protocol: &str) -> WebSocketStream<DuplexStream> {
        let mut request = format!("ws://n1{path}").into_client_request().unwrap();
        if !protocol.is_empty() {
            request.headers_mut().insert("sec-websocket-protocol", protocol.parse().unwrap());
        }
        let (socket, response) = tokio_tungstenite::client_async(request, self.connect(true)).await.unwrap();
        let chosen = response.headers().get("sec-websocket-protocol").map(|v| v.to_str().unwrap());
        assert_eq!(chosen.unwrap_or(""), protocol);
        socket
    }
}

/// Reads all messages until the end, by channel.
async fn collect(socket: &mut WebSocketStream<DuplexStream>) -> Vec<Vec<u8>> {
    let mut channels = vec![Vec::new(); 5];
    while let Ok(Some(message)) = tokio::time::timeout(Duration::from_secs(10), socket.next()).await {
        match message.unwrap() {
            Message::Binary(bytes) => channels[usize::from(bytes[0])].extend_from_slice(&bytes[1..]),
            Message::Close(frame) => {
                assert_eq!(u16::from(frame.unwrap().code), 1000);
                return channels;
            }
            other => panic!("{other:?}"),
        }
    }
    panic!("the connection did not end");
}

fn status(channel: &[u8]) -> Value {
    serde_json::from_slice(channel).unwrap()
}

#[tokio::test]
async fn exec_tells_output_and_exit_codes() {
    let lab = Lab::new();
    let mut socket = lab.websocket("/exec/ns/p/c?command=both&output=1&error=1", "v5.channel.k8s.io").await;
    let channels = collect(&mut socket).await;
    assert_eq!((channels[1].as_slice(), channels[2].as_slice()), (&b"to out"[..], &b"to err"[..]));
    assert_eq!(status(&channels[3])["status"], "Success");

    let mut socket =
        lab.websocket("/exec/ns/p/u1/c?command=exit&command=3&output=1", "v4.channel.k8s.io").await;
    let result = status(&collect(&mut socket).await[3]);
    assert_eq!(
        (&result["reason"], &result["details"]["causes"][0]["message"]),
        (&json!("NonZeroExitCode"), &json!("3"))
    );

    let mut socket = lab.websocket("/exec/ns/p/c?command=missing&output=1", "v5.channel.k8s.io").await;
    let result = status(&collect(&mut socket).await[3]);
    assert_eq!(
        result["message"],
        "Internal error occurred: error executing command in container: exec: \"missing\": not found"
    );

    let mut socket = lab.websocket("/exec/ns/p/c?command=exit&command=3&output=1", "").await;
    let channels = collect(&mut socket).await;
    assert_eq!(channels[3], b"error executing remote command: command terminated with exit code 3");
}

#[tokio::test]
async fn exec_with_input_that_ends() {
    let lab = Lab::new();
    let mut socket = lab.websocket("/exec/ns/p/c?command=echo&input=1&output=1", "v5.channel.k8s.io").await;
    for part in ["hello ", "world"] {
        let mut message = vec![0];
        message.extend_from_slice(part.as_bytes());
        socket.send(Message::Binary(message.into())).await.unwrap();
    }
    socket.send(Message::Ping(Bytes::from_static(b"x"))).await.unwrap();
    socket.send(Message::Binary(vec![255, 0].into())).await.unwrap();
    let mut out = Vec::new();
    let mut ponged = false;
    while let Some(Ok(message)) = socket.next().await {
        match message {
            Message::Binary(bytes) if bytes[0] == 1 => out.extend_from_slice(&bytes[1..]),
            Message::Binary(bytes) if bytes[0] == 3 => assert_eq!(status(&bytes[1..])["status"], "Success"),
            Message::Pong(_) => ponged = true,
            _ => {}
        }
    }
    assert_eq!(out, b"hello world");
    assert!(ponged);
}

#[tokio::test]
async fn a_command_ends_with_its_client_and_is_resized() {
    let lab = Lab::new();
    let mut socket =
        lab.websocket("/exec/ns/p/c?command=forever&input=1&output=1&tty=1", "v5.channel.k8s.io").await;
    let mut resize = vec![4];
    resize.extend_from_slice(br#"{"Width":80,"Height":24}"#);
    socket.send(Message::Binary(resize.into())).await.unwrap();
    socket.close(None).await.unwrap();
    let want = [Control::Resize(TerminalSize { columns: 80, rows: 24 }), Control::Signal(libc::SIGKILL)];
    for _ in 0..500 {
        if *lab.runtime.controls.lock().unwrap() == want {
            return;
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    panic!("{:?}", lab.runtime.controls.lock().unwrap());
}

#[tokio::test]
async fn attach_in_base64() {
    let lab = Lab::with_tty(true);
    let mut socket = lab.websocket("/attach/ns/p/c?input=1&output=1&tty=1", "base64.channel.k8s.io").await;
    assert_eq!(socket.next().await.unwrap().unwrap(), Message::Text("1".into()));
    socket.send(Message::Text("0aGk=".into())).await.unwrap();
    assert_eq!(socket.next().await.unwrap().unwrap(), Message::Text("1aGk=".into()));
    socket.close(None).await.unwrap();
    tokio::time::sleep(Duration::from_millis(50)).await;
    assert!(lab.runtime.controls.lock().unwrap().is_empty(), "a container does not end with its client");
}

#[tokio::test]
async fn requests_that_cannot_be_served() {
    let lab = Lab::new();
    let table = [
        ("/exec/ns/none/c?command=x&output=1", 404, "pod does not exist"),
        ("/exec/ns/p/late?command=x&output=1", 500, "container not found (\"late\")"),
        ("/exec/ns/p/c?command=x", 400, "you must specify at least 1 of stdin, stdout, stderr"),
        ("/exec/ns/p/c?command=x&output=1", 400, "unable to upgrade: missing upgrade headers in request"),
        ("/containerLogs/ns/none/c", 404, "pod \"none\" does not exist"),
        ("/containerLogs/ns/p/x", 404, "container \"x\" not found in pod \"p\""),
        (
            "/containerLogs/ns/p/late",
            400,
            "container \"late\" in pod \"p\" is waiting to start: ContainerCreating",
        ),
        (
            "/containerLogs/ns/p/c?previous=true",
            400,
            "previous terminated container \"c\" in pod \"p\" not found",
        ),
        ("/containerLogs/ns/p/c?tailLines=-1", 422, "{\"message\": \"Invalid request.\"}"),
        ("/nothing", 404, "404 page not found\n"),
        (
            "/healthz",
            500,
            "[+]ping ok\n[+]syncloop ok\n[-]kubelet failed: reason withheld\nhealthz check failed\n",
        ),
        ("/healthz?exclude=kubelet", 200, "ok"),
        (
            "/healthz/?exclude=kubelet&verbose",
            200,
            "[+]ping ok\n[+]syncloop ok\n[+]kubelet excluded: ok\nhealthz check passed\n",
        ),
        ("/healthz/syncloop", 200, "ok"),
        ("/healthz/ping", 200, "ok"),
        ("/healthz/kubelet", 500, "internal server error: it panicked\n"),
        ("/healthz/nothing", 404, "404 page not found\n"),
    ];
    for (path, code, text) in table {
        let (status, body) = lab.request(path).await;
        assert_eq!((status.as_u16(), body.as_str()), (code, text), "{path}");
    }
    for (known, token, code) in [(false, None, 401), (false, Some("x"), 401), (true, None, 200)] {
        assert_eq!(lab.send("/healthz/ping", known, token).await.0.as_u16(), code);
    }
    for (method, path, code) in [
        (Method::HEAD, "/healthz/ping", 200),
        (Method::HEAD, "/metrics", 200),
        (Method::HEAD, "/pods", 405),
        (Method::POST, "/healthz/ping", 405),
        (Method::DELETE, "/pods", 405),
    ] {
        let (status, body) = lab.ask(method.clone(), path, true, None).await;
        assert_eq!(status.as_u16(), code, "{method} {path}");
        assert!(method != Method::HEAD || body.is_empty(), "{path}");
    }
}

#[tokio::test]
async fn logs_are_followed_to_the_end_of_the_container() {
    let lab = Lab::new();
    std::fs::write(&lab.log, "2026-01-01T00:00:00Z stdout F one\n2026-01-01T00:00:01Z stdout F two\n")
        .unwrap();
    let (status, body) = lab.request("/containerLogs/ns/p/c?tailLines=1&timestamps=true").await;
    assert_eq!((status.as_u16(), body.as_str()), (200, "2026-01-01T00:00:01Z two\n"));
    let follow = lab.request("/containerLogs/ns/p/c?follow=true");
    let end = async {
        tokio::time::sleep(Duration::from_millis(100)).await;
        *lab.runtime.running.lock().unwrap() = false;
        let event = RuntimeEvent {
            pod_uid: "u1".into(),
            sandbox_id: "s1".into(),
            container_id: "c1".into(),
            kind: RuntimeEventKind::ContainerExited,
        };
        lab.runtime.events.send(event).unwrap();
    };
    let ((_, body), ()) =
        tokio::time::timeout(Duration::from_secs(5), async { tokio::join!(follow, end) }).await.unwrap();
    assert_eq!(body, "one\ntwo\n");
}

#[tokio::test]
async fn statistics() {
    let lab = Lab::new();
    let (_, body) = lab.request("/metrics/resource").await;
    for line in [
        "container_cpu_usage_seconds_total{container=\"c\",namespace=\"ns\",pod=\"p\"} 1.5 10000",
        "container_memory_working_set_bytes{container=\"c\",namespace=\"ns\",pod=\"p\"} 4096 10000",
        "container_start_time_seconds{container=\"c\",namespace=\"ns\",pod=\"p\"} 5",
        "pod_cpu_usage_seconds_total{namespace=\"ns\",pod=\"p\"} 2 10000",
        "resource_scrape_error 0",
    ] {
        assert!(body.lines().any(|l| l == line), "{line} in {body}");
    }
    assert_eq!(
        lab.runtime.disk_asked.lock().unwrap().as_slice(),
        [Disk::LeftOut],
        "no walk for what is not shown"
    );
    let (_, body) = lab.request("/stats/summary").await;
    let summary: Value = serde_json::from_str(&body).unwrap();
    assert_eq!(summary["pods"][0]["containers"][0]["rootfs"]["usedBytes"], 7);
    assert_eq!(summary["node"]["nodeName"], "n1");
    let pod = &summary["pods"][0];
    assert_eq!(pod["podRef"], json!({"name": "p", "namespace": "ns", "uid": "u1"}));
    assert_eq!(pod["containers"][0]["cpu"]["usageCoreNanoSeconds"], 1_500_000_000u64);
    assert_eq!(pod["memory"]["workingSetBytes"], 8192);
    let (_, body) = lab.request("/metrics").await;
    assert!(body.contains("kubelet_running_containers{container_state=\"running\"} 1\n"), "{body}");
    assert!(body.contains("kubelet_desired_pods{static=\"\"} 1\n"), "{body}");
    assert!(body.contains("kubernetes_build_info{") && body.contains("process_cpu_seconds_total "), "{body}");
    assert!(body.contains("path=\"stats\",server_type=\"readwrite\",long_running=\"false\"} 1\n"), "{body}");
    let (_, body) = lab.request("/metrics/cadvisor").await;
    assert!(body.contains("container_cpu_usage_seconds_total{container=\"c\",cpu=\"total\""), "{body}");
    assert!(body.contains("machine_memory_bytes{"), "{body}");
    let (_, body) = lab.request("/pods").await;
    assert_eq!(serde_json::from_str::<Value>(&body).unwrap()["items"][0]["metadata"]["name"], "p");
    let (_, body) = lab.request("/configz").await;
    assert!(body.contains("maxPods"));
}

#[tokio::test]
async fn ports_over_channels() {
    let lab = Lab::new();
    let mut socket = lab.websocket("/portForward/ns/p?port=80&port=81", "v4.channel.k8s.io").await;
    socket.send(Message::Binary(vec![0, b'h', b'i'].into())).await.unwrap();
    let mut channels = vec![Vec::new(); 4];
    while channels[0].len() < 4 || !channels[3].ends_with(b"refused") {
        let message =
            tokio::time::timeout(Duration::from_secs(5), socket.next()).await.unwrap().unwrap().unwrap();
        let bytes = message.into_data();
        channels[usize::from(bytes[0])].extend_from_slice(&bytes[1..]);
    }
    assert_eq!(channels[0], [80, 0, b'h', b'i']);
    assert_eq!(channels[1], [80, 0]);
    let text = String::from_utf8(channels[3][2..].to_vec()).unwrap();
    assert_eq!(text, "error forwarding port 81 to pod p_ns, uid u1: connection refused");
}

/// Builds the frames of a SPDY client. Header blocks are stored, not compressed.
struct SpdyClient {
    begun: bool,
}

impl SpdyClient {
    fn open(&mut self, id: u32, headers: &[(&str, &str)], fin: bool) -> Vec<u8> {
        let mut pairs = (headers.len() as u32).to_be_bytes().to_vec();
        for text in headers.iter().flat_map(|(n, v)| [n, v]) {
            pairs.extend_from_slice(&(text.len() as u32).to_be_bytes());
            pairs.extend_from_slice(text.as_bytes());
        }
        let mut block = if self.begun { vec![] } else { vec![0x78, 0x01] };
        self.begun = true;
        let length = pairs.len() as u16;
        block.push(0);
        block.extend_from_slice(&length.to_le_bytes());
        block.extend_from_slice(&(!length).to_le_bytes());
        block.extend_from_slice(&pairs);
        let mut frame = vec![0x80, 3, 0, 1, u8::from(fin)];
        frame.extend_from_slice(&((block.len() + 10) as u32).to_be_bytes()[1..]);
        frame.extend_from_slice(&id.to_be_bytes());
        frame.extend_from_slice(&[0; 6]);
        frame.extend_from_slice(&block);
        frame
    }
}

fn spdy_data(id: u32, fin: bool, data: &[u8]) -> Vec<u8> {
    let mut frame = id.to_be_bytes().to_vec();
    frame.push(u8::from(fin));
    frame.extend_from_slice(&(data.len() as u32).to_be_bytes()[1..]);
    frame.extend_from_slice(data);
    frame
}

/// Parses the data frames in a server's bytes: stream, whether it ended, data.
fn data_frames(mut bytes: &[u8]) -> Vec<(u32, bool, Vec<u8>)> {
    let mut found = Vec::new();
    while bytes.len() >= 8 {
        let length = u32::from_be_bytes([0, bytes[5], bytes[6], bytes[7]]) as usize;
        if bytes.len() < 8 + length {
            break;
        }
        if bytes[0] & 0x80 == 0 {
            let id = u32::from_be_bytes(bytes[..4].try_into().unwrap());
            found.push((id, bytes[4] == 1, bytes[8..8 + length].to_vec()));
        }
        bytes = &bytes[8 + length..];
    }
    found
}

#[tokio::test(start_paused = true)]
async fn an_idle_port_forward_ends() {
    let lab = Lab::new();
    for (path, protocol) in [
        ("/portForward/ns/p?port=80", "v4.channel.k8s.io"),
        ("/portForward/ns/p", "SPDY/3.1+portforward.k8s.io"),
    ] {
        let began = tokio::time::Instant::now();
        let mut socket = lab.websocket(path, protocol).await;
        while let Some(Ok(_)) = socket.next().await {}
        assert_eq!(began.elapsed().as_secs() / 3600, 4, "{protocol}");
    }
    let began = tokio::time::Instant::now();
    let mut stream = upgrade_to_spdy(&lab, "/portForward/ns/p", "portforward.k8s.io").await;
    while let Ok(1..) = stream.read(&mut [0; 64]).await {}
    assert_eq!(began.elapsed().as_secs() / 3600, 4);
}

fn port_forward_frames() -> Vec<u8> {
    let mut client = SpdyClient { begun: false };
    let mut bytes = Vec::new();
    for (id, port, request) in [(1, "80", "0"), (5, "81", "1")] {
        let headers = |kind| [("streamtype", kind), ("port", port), ("requestid", request)];
        bytes.extend(client.open(id, &headers("error"), true));
        bytes.extend(client.open(id + 2, &headers("data"), false));
    }
    bytes.extend(spdy_data(3, true, b"hi"));
    bytes
}

fn is_forwarded(bytes: &[u8]) -> bool {
    let frames = data_frames(bytes);
    let of = |id: u32| frames.iter().filter(move |f| f.0 == id);
    let ended = [1, 3, 5, 7].iter().all(|id| of(*id).any(|f| f.1));
    let text: Vec<u8> = of(5).flat_map(|f| f.2.clone()).collect();
    ended && of(3).any(|f| f.2 == b"hi") && String::from_utf8(text).unwrap().ends_with("connection refused")
}

#[tokio::test]
async fn ports_over_spdy_in_a_websocket() {
    let lab = Lab::new();
    let mut socket = lab.websocket("/portForward/ns/p", "SPDY/3.1+portforward.k8s.io").await;
    for part in port_forward_frames().chunks(50) {
        socket.send(Message::Binary(part.to_vec().into())).await.unwrap();
    }
    let mut got = Vec::new();
    while !is_forwarded(&got) {
        let message =
            tokio::time::timeout(Duration::from_secs(5), socket.next()).await.unwrap().unwrap().unwrap();
        got.extend_from_slice(&message.into_data());
    }
}

async fn upgrade_to_spdy(lab: &Lab, path: &str, protocol: &str) -> DuplexStream {
    let mut stream = lab.connect(true);
    let request = format!(
        "POST {path} HTTP/1.1\r\nhost: n1\r\nconnection: Upgrade\r\nupgrade: SPDY/3.1\r\n\
         x-stream-protocol-version: {protocol}\r\ncontent-length: 0\r\n\r\n"
    );
    stream.write_all(request.as_bytes()).await.unwrap();
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        head.push(stream.read_u8().await.unwrap());
    }
    let head = String::from_utf8(head).unwrap();
    assert!(head.starts_with("HTTP/1.1 101") && head.contains(protocol), "{head}");
    stream
}

#[tokio::test]
async fn ports_over_plain_spdy() {
    let lab = Lab::new();
    let mut stream = upgrade_to_spdy(&lab, "/portForward/ns/p", "portforward.k8s.io").await;
    stream.write_all(&port_forward_frames()).await.unwrap();
    let (mut got, mut buffer) = (Vec::new(), [0; 1024]);
    while !is_forwarded(&got) {
        let read =
            tokio::time::timeout(Duration::from_secs(5), stream.read(&mut buffer)).await.unwrap().unwrap();
        assert_ne!(read, 0);
        got.extend_from_slice(&buffer[..read]);
    }
}

#[tokio::test]
async fn exec_over_spdy() {
    let lab = Lab::new();
    let path = "/exec/ns/p/c?command=echo&input=1&output=1";
    let mut stream = upgrade_to_spdy(&lab, path, "v4.channel.k8s.io").await;
    let mut client = SpdyClient { begun: false };
    for (id, kind) in [(1, "error"), (3, "stdin"), (5, "stdout")] {
        stream.write_all(&client.open(id, &[("streamtype", kind)], false)).await.unwrap();
    }
    stream.write_all(&spdy_data(3, true, b"hello")).await.unwrap();
    let (mut got, mut buffer) = (Vec::new(), [0; 1024]);
    loop {
        let frames = data_frames(&got);
        if [1, 3, 5].iter().all(|id| frames.iter().any(|f| f.0 == *id && f.1)) {
            let of =
                |id: u32| frames.iter().filter(|f| f.0 == id).flat_map(|f| f.2.clone()).collect::<Vec<u8>>();
            assert_eq!(of(5), b"hello");
            assert_eq!(status(&of(1))["status"], "Success");
            return;
        }
        let read =
            tokio::time::timeout(Duration::from_secs(5), stream.read(&mut buffer)).await.unwrap().unwrap();
        assert_ne!(read, 0);
        got.extend_from_slice(&buffer[..read]);
    }
}

/// A CA and the certificates that it signs.
struct Pki {
    ca: rcgen::CertifiedIssuer<'static, rcgen::KeyPair>,
}

impl Pki {
    fn new() -> Self {
        let mut params = rcgen::CertificateParams::new(vec![]).unwrap();
        params.is_ca = rcgen::IsCa::Ca(rcgen::BasicConstraints::Unconstrained);
        Self { ca: rcgen::CertifiedIssuer::self_signed(params, rcgen::KeyPair::generate().unwrap()).unwrap() }
    }

    fn issue(&self, name: &str, usage: rcgen::ExtendedKeyUsagePurpose) -> (String, String) {
        self.issue_in(name, "", usage)
    }

    fn issue_in(&self, name: &str, group: &str, usage: rcgen::ExtendedKeyUsagePurpose) -> (String, String) {
        let key = rcgen::KeyPair::generate().unwrap();
        let mut params = rcgen::CertificateParams::new(vec!["localhost".to_owned()]).unwrap();
        params.distinguished_name = rcgen::DistinguishedName::new();
        params.distinguished_name.push(rcgen::DnType::CommonName, name);
        params.distinguished_name.push(rcgen::DnType::OrganizationName, group);
        params.extended_key_usages = vec![usage];
        (params.signed_by(&key, &self.ca).unwrap().pem(), key.serialize_pem())
    }
}

#[tokio::test]
async fn certificates_over_tls() {
    use rcgen::ExtendedKeyUsagePurpose::{ClientAuth, ServerAuth};
    use rustls::pki_types::pem::PemObject;
    use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};

    let (pki, foreign) = (Pki::new(), Pki::new());
    let lab = Lab::new();
    let (cert_pem, key_pem) = pki.issue("system:node:n1", ServerAuth);
    let serving = super::ServingCertificate::new(&cert_pem, &key_pem).unwrap();
    let clients = super::ClientAuthorities::new(&pki.ca.pem()).unwrap();
    let options = super::Options {
        address: "127.0.0.1:0".parse().unwrap(),
        serving: Arc::clone(&serving),
        client_not_after: Arc::new(|| None),
        clients: Arc::clone(&clients),
        node_name: "n1".into(),
        configz: json!({}),
        flags: Vec::new(),
        other_metrics: Arc::new(String::new),
        folders: folders(),
        open_files: 1024,
    };
    let handler = &lab.handler;
    let (pods, runtime) = (Arc::clone(&handler.pods), Arc::clone(&handler.runtime));
    let server = super::bind(options, pods, runtime, handler.client.clone()).await.unwrap();
    let (address, stop) = (server.address().unwrap(), CancellationToken::new());
    let running = tokio::spawn(server.serve(stop.clone()));

    let ask = async |identity: Option<(String, String)>| -> Option<u16> {
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let mut roots = rustls::RootCertStore::empty();
        roots.add(CertificateDer::from_pem_slice(pki.ca.pem().as_bytes()).unwrap()).unwrap();
        let config = rustls::ClientConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_root_certificates(roots);
        let config = match identity {
            None => config.with_no_client_auth(),
            Some((cert, key)) => {
                let chain = vec![CertificateDer::from_pem_slice(cert.as_bytes()).unwrap()];
                let key = PrivateKeyDer::from_pem_slice(key.as_bytes()).unwrap();
                config.with_client_auth_cert(chain, key).unwrap()
            }
        };
        let stream = tokio::net::TcpStream::connect(address).await.unwrap();
        let name = ServerName::try_from("localhost").unwrap();
        let stream = tokio_rustls::TlsConnector::from(Arc::new(config)).connect(name, stream).await.ok()?;
        let (mut sender, connection) =
            hyper::client::conn::http1::handshake(TokioIo::new(stream)).await.ok()?;
        tokio::spawn(connection);
        let request =
            Request::builder().uri("/healthz/ping").header("host", "localhost").body(Empty::<Bytes>::new());
        Some(sender.send_request(request.unwrap()).await.ok()?.status().as_u16())
    };
    assert_eq!(
        ask(Some(pki.issue_in("kube-apiserver-kubelet-client", "system:masters", ClientAuth))).await,
        Some(200)
    );
    // The user name of the API server alone gives no rights.
    assert_eq!(ask(Some(pki.issue("kube-apiserver-kubelet-client", ClientAuth))).await, Some(403));
    assert_eq!(ask(Some(pki.issue("somebody", ClientAuth))).await, Some(403));
    assert_eq!(ask(None).await, Some(401));
    assert_eq!(ask(Some(foreign.issue("kube-apiserver-kubelet-client", ClientAuth))).await, None);
    assert_eq!(ask(Some(pki.issue("kube-apiserver-kubelet-client", ServerAuth))).await, None);
    // The authorities are replaced: by both for a while, then by the new one alone.
    let ours = || pki.issue_in("kube-apiserver-kubelet-client", "system:masters", ClientAuth);
    let theirs = || foreign.issue_in("kube-apiserver-kubelet-client", "system:masters", ClientAuth);
    for (trusted, expected) in [
        (format!("{}{}", pki.ca.pem(), foreign.ca.pem()), [Some(200), Some(200)]),
        (foreign.ca.pem(), [None, Some(200)]),
    ] {
        clients.exchange(&trusted).unwrap();
        assert!(clients.exchange("").is_err(), "no client could connect any more");
        assert_eq!([ask(Some(ours())).await, ask(Some(theirs())).await], expected);
    }
    // Clients see the new certificate.
    let (chain, key) = foreign.issue("system:node:n1", ServerAuth);
    assert!(serving.exchange(&chain, &key_pem).is_err(), "of another key");
    assert_eq!(ask(None).await, Some(401));
    serving.exchange(&chain, &key).unwrap();
    assert_eq!(ask(None).await, None);
    stop.cancel();
    tokio::time::timeout(Duration::from_secs(5), running).await.unwrap().unwrap();
}
