//! Logs and exec through the server to a kubelet, which here is a small TLS server of the test.

use std::convert::Infallible;
use std::sync::Arc;

use bytes::Bytes;
use http::{Response, StatusCode};
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use knarr_apiserver::{Config, RequestHeader};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpListener;

use crate::harness::{PODS, User, default_account, pod};
use crate::tls::{Authority, Served, get1, serve_with};

/// Answers every request with its path; echoes on upgraded connections.
async fn kubelet(authority: &Authority) -> u16 {
    let pair = authority.sign("system:node:n", &["system:nodes"], &["127.0.0.1"], false);
    let mut roots = rustls::RootCertStore::empty();
    roots.add(CertificateDer::from_pem_slice(authority.pem.as_bytes()).unwrap()).unwrap();
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let clients =
        rustls::server::WebPkiClientVerifier::builder_with_provider(Arc::new(roots), Arc::clone(&provider))
            .build()
            .unwrap();
    let tls = rustls::ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_client_cert_verifier(clients)
        .with_single_cert(
            vec![CertificateDer::from_pem_slice(pair.certificate_pem.as_bytes()).unwrap()],
            PrivateKeyDer::from_pem_slice(pair.key_pem.as_bytes()).unwrap(),
        )
        .unwrap();
    let acceptor = tokio_rustls::TlsAcceptor::from(Arc::new(tls));
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    tokio::spawn(async move {
        loop {
            let (stream, _) = listener.accept().await.unwrap();
            let acceptor = acceptor.clone();
            tokio::spawn(async move {
                let Ok(stream) = acceptor.accept(stream).await else { return };
                let connection = hyper::server::conn::http1::Builder::new()
                    .serve_connection(TokioIo::new(stream), service_fn(echo));
                let _ = connection.with_upgrades().await;
            });
        }
    });
    port
}

async fn echo(mut request: http::Request<Incoming>) -> Result<Response<Full<Bytes>>, Infallible> {
    let path = request.uri().path_and_query().unwrap().to_string();
    assert!(request.headers().get("authorization").is_none());
    if path.contains("tailLines=7") {
        let mut response = Response::new(Full::from("container \"c\" in pod \"p\" is waiting to start"));
        *response.status_mut() = StatusCode::BAD_REQUEST;
        return Ok(response);
    }
    if request.headers().contains_key("upgrade") {
        let upgrade = hyper::upgrade::on(&mut request);
        tokio::spawn(async move {
            let mut stream = TokioIo::new(upgrade.await.unwrap());
            let mut buffer = [0; 64];
            while let Ok(n) = stream.read(&mut buffer).await {
                if n == 0 || stream.write_all(&buffer[..n]).await.is_err() {
                    break;
                }
            }
        });
        let mut response = Response::new(Full::default());
        *response.status_mut() = StatusCode::SWITCHING_PROTOCOLS;
        for (name, value) in [("connection", "Upgrade"), ("upgrade", "websocket"), ("x-path", path.as_str())]
        {
            response.headers_mut().insert(http::HeaderName::from_static(name), value.parse().unwrap());
        }
        return Ok(response);
    }
    Ok(Response::new(Full::from(path)))
}

/// Starts a server with a pod on a node whose kubelet answers.
async fn with_pod() -> (Served, knarr_apiserver::Keypair, User) {
    with_pod_and("").await
}

/// Does the same as `with_pod`, with these feature gates set.
async fn with_pod_and(gates: &str) -> (Served, knarr_apiserver::Keypair, User) {
    with_pod_on(gates, false).await
}

/// Does the same as `with_pod`, with proxies that connect to the test's kubelet.
async fn with_pod_to_proxy_to() -> (Served, knarr_apiserver::Keypair, User) {
    with_pod_on("", true).await
}

async fn with_pod_on(gates: &str, own_machine: bool) -> (Served, knarr_apiserver::Keypair, User) {
    with_pod_by(|config| {
        config.features.set(gates).unwrap();
        config.proxies_to_own_machine = own_machine;
    })
    .await
}

async fn with_pod_by(change: impl FnOnce(&mut Config)) -> (Served, knarr_apiserver::Keypair, User) {
    let s = serve_with(|config, _| change(config)).await;
    let port = kubelet(&s.authority).await;
    let admin = s.authority.sign("admin", &["system:masters"], &[], false);
    let user = User(s.server.transport(knarr_apiserver::UserInfo::new("admin", &["system:masters"])));
    default_account(&user).await;
    user.post("/api/v1/nodes", &json!({"metadata": {"name": "n"}})).await.expect(201);
    let status = json!({"status": {
        "addresses": [{"type": "InternalIP", "address": "127.0.0.1"}],
        "daemonEndpoints": {"kubeletEndpoint": {"Port": port}}}});
    user.patch("/api/v1/nodes/n/status", "merge-patch+json", &status).await.expect(200);
    user.post(PODS, &pod("p")).await.expect(201);
    (s, admin, user)
}

async fn bind(user: &User) {
    let binding = json!({"metadata": {"name": "p"}, "target": {"kind": "Node", "name": "n"}});
    user.post(&format!("{PODS}/p/binding"), &binding).await.expect(201);
}

#[tokio::test]
async fn logs_come_from_the_kubelet() {
    let (s, admin, user) = with_pod().await;
    let ask = |query: &'static str| {
        let (s, admin) = (&s, &admin);
        async move { s.ask(Some(admin), false, get1(&format!("{PODS}/p/log{query}")), "").await }
    };
    assert_eq!(ask("").await, (200, json!("")), "a pod without a node has no log");
    bind(&user).await;
    let (code, path) = ask("?follow=true&tailLines=5&container=c").await;
    assert_eq!((code, path), (200, json!("/containerLogs/default/p/c?follow=true&tailLines=5")));
    let (code, status) = ask("?tailLines=7").await;
    assert_eq!(
        (code, status["message"].as_str()),
        (400, Some("container \"c\" in pod \"p\" is waiting to start"))
    );
    let (code, status) = ask("?container=x").await;
    assert_eq!((code, status["message"].as_str()), (400, Some("container x is not valid for pod p")));
    assert_eq!(ask("?tailLines=-1").await.0, 422);
    let careless = user.get(&format!("{PODS}/p/log?insecureSkipTLSVerifyBackend=true")).await;
    let warning = "insecureSkipTLSVerifyBackend: the kubelet's certificate is verified all the same";
    assert!(careless.warnings.iter().any(|w| w.contains(warning)), "{:?}", careless.warnings);
}

#[tokio::test]
async fn tokens_are_not_passed_on_whoever_the_sender_is() {
    let front = Authority::new();
    let (s, admin, user) = with_pod_by(|config| {
        config.authentication.request_header =
            RequestHeader::usual(front.pem.clone(), vec!["front-proxy-client".into()]);
    })
    .await;
    bind(&user).await;
    let proxy = front.sign("front-proxy-client", &[], &[], false);
    let log = || get1(&format!("{PODS}/p/log?container=c")).header("authorization", "Bearer abc");
    let of_ann = log().header("x-remote-user", "ann").header("x-remote-group", "system:masters");
    // The kubelet of this test refuses requests with a token.
    for (client, request) in [(&admin, log()), (&proxy, of_ann)] {
        let (code, path) = s.ask(Some(client), false, request, "").await;
        assert_eq!((code, path), (200, json!("/containerLogs/default/p/c")));
    }
}

#[tokio::test]
async fn exec_is_a_tunnel() {
    let (s, admin, user) = with_pod().await;
    bind(&user).await;
    let uri = format!("{PODS}/p/exec?command=echo&command=a%20b&stdin=true&stdout=true&tty=false");
    let (code, status) = s.ask(Some(&admin), false, get1(&uri), "").await;
    assert_eq!((code, status["message"].as_str()), (400, Some("Upgrade request required")));
    let request = get1(&uri).header("connection", "Upgrade").header("upgrade", "websocket");
    let mut response = s.open_upgradable(&admin, request).await;
    assert_eq!(response.status(), StatusCode::SWITCHING_PROTOCOLS);
    assert_eq!(response.headers()["x-path"], "/exec/default/p/c?input=1&output=1&command=echo&command=a%20b");
    let mut stream = TokioIo::new(hyper::upgrade::on(&mut response).await.unwrap());
    stream.write_all(b"hello").await.unwrap();
    let mut buffer = [0; 5];
    stream.read_exact(&mut buffer).await.unwrap();
    assert_eq!(&buffer, b"hello");
}

#[tokio::test]
async fn kubelets_out_of_reach_are_an_error() {
    let (s, admin, user) = with_pod_to_proxy_to().await;
    bind(&user).await;
    let status = json!({"status": {"daemonEndpoints": {"kubeletEndpoint": {"Port": 1}}}});
    user.patch("/api/v1/nodes/n/status", "merge-patch+json", &status).await.expect(200);
    let (code, status) = s.ask(Some(&admin), false, get1(&format!("{PODS}/p/log")), "").await;
    assert_eq!((code, &status["reason"]), (500, &Value::Null));
    let why = r#"Get "https://127.0.0.1:1/containerLogs/default/p/c": dial tcp 127.0.0.1:1: connect: connection refused"#;
    assert_eq!(status["message"], why);
    let exec = get1(&format!("{PODS}/p/exec?command=true&stdout=true"));
    let exec = exec.header("connection", "Upgrade").header("upgrade", "websocket");
    let (code, status) = s.ask(Some(&admin), false, exec, "").await;
    let why = "error dialing backend: dial tcp 127.0.0.1:1: connect: connection refused";
    assert_eq!((code, status["message"].as_str()), (500, Some(why)));
    let (code, status) = s.ask(Some(&admin), false, get1("/api/v1/nodes/n:1/proxy/x"), "").await;
    let why = "error trying to reach service: dial tcp 127.0.0.1:1: connect: connection refused";
    assert_eq!((code, status["message"].as_str()), (503, Some(why)));
    let frame = s.open(Some(&admin), false, get1("/livez"), "").await;
    assert_eq!(frame.into_body().collect().await.unwrap().to_bytes(), "ok");
}

#[tokio::test]
async fn what_is_no_stream_is_refused() {
    let (s, admin, user) = with_pod_to_proxy_to().await;
    bind(&user).await;
    let exec = format!("{PODS}/p/exec?command=true&stdout=true");
    let (upgrade, dry) = (("upgrade", "websocket"), "dryRun is not supported");
    for (method, uri, headers, code, message) in [
        ("GET", exec.clone(), vec![upgrade], 400, "Upgrade request required"),
        (
            "GET",
            exec.clone(),
            vec![upgrade, ("connection", "close, upgrades")],
            400,
            "Upgrade request required",
        ),
        ("GET", format!("{exec}&dryRun=All"), vec![upgrade, ("connection", "upgrade")], 400, dry),
        ("DELETE", "/api/v1/nodes/n/proxy/x?dryRun=All".to_owned(), vec![], 400, dry),
        ("HEAD", exec.clone(), vec![upgrade, ("connection", "upgrade")], 405, ""),
    ] {
        let request = get1(&uri).method(method);
        let request = headers.iter().fold(request, |request, (name, value)| request.header(*name, *value));
        let (found, status) = s.ask(Some(&admin), false, request, "").await;
        let told = status["message"].as_str().unwrap_or("");
        assert_eq!((found, told), (code, message), "{method} {uri} {headers:?}");
    }
}

/// A clock whose sleeps take a hundredth of their time.
struct Hurried(knarr_client::clock::SystemClock);

impl knarr_apimachinery::clock::Clock for Hurried {
    fn now(&self) -> jiff::Timestamp {
        self.0.now()
    }

    fn monotonic(&self) -> std::time::Duration {
        self.0.monotonic()
    }

    fn sleep(&self, duration: std::time::Duration) -> knarr_apimachinery::clock::Sleep {
        self.0.sleep(duration / 100)
    }
}

#[tokio::test]
async fn a_kubelet_that_hangs_is_given_up_at_its_handshake() {
    let s = serve_with(|config, _| config.clock = Arc::new(Hurried(knarr_client::clock::SystemClock))).await;
    let admin = s.authority.sign("admin", &["system:masters"], &[], false);
    let user = User(s.server.transport(knarr_apiserver::UserInfo::new("admin", &["system:masters"])));
    default_account(&user).await;
    // It accepts connections and never answers.
    let hanging = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = hanging.local_addr().unwrap().port();
    user.post("/api/v1/nodes", &json!({"metadata": {"name": "n"}})).await.expect(201);
    let status = json!({"status": {
        "addresses": [{"type": "InternalIP", "address": "127.0.0.1"}],
        "daemonEndpoints": {"kubeletEndpoint": {"Port": port}}}});
    user.patch("/api/v1/nodes/n/status", "merge-patch+json", &status).await.expect(200);
    user.post(PODS, &pod("p")).await.expect(201);
    bind(&user).await;
    let (code, status) = s.ask(Some(&admin), false, get1(&format!("{PODS}/p/log")), "").await;
    let why = "net/http: TLS handshake timeout";
    let log = format!("Get \"https://127.0.0.1:{port}/containerLogs/default/p/c\": {why}");
    assert_eq!((code, status["message"].as_str()), (500, Some(log.as_str())));
    let exec = get1(&format!("{PODS}/p/exec?command=true&stdout=true"));
    let exec = exec.header("connection", "Upgrade").header("upgrade", "websocket");
    let (code, status) = s.ask(Some(&admin), false, exec, "").await;
    assert_eq!(
        (code, status["message"].as_str()),
        (500, Some(format!("error dialing backend: {why}").as_str()))
    );
    drop(hanging);
}

#[tokio::test]
async fn escaped_slashes_are_slashes() {
    let (s, admin, user) = with_pod_to_proxy_to().await;
    for (path, passed_on) in [
        ("nodes/n/proxy/stats%2Fsummary?x=a%2Fb", "/stats/summary?x=a%2Fb"),
        ("nodes%2Fn%2Fproxy%2Fstats%2fsummary", "/stats/summary"),
        ("nodes/n/proxy/a//b/../c%20d%3F/", "/a/c%20d%3F/"),
        ("nodes/n/proxy//", "/"),
        ("nodes/n/proxy/..%2F..%2Fx", "/x"),
    ] {
        let found = s.ask(Some(&admin), false, get1(&format!("/api/v1/{path}")), "").await;
        assert_eq!(found, (200, json!(passed_on)), "{path}");
    }
    let (code, list) = s.ask(Some(&admin), false, get1("/api%2Fv1/namespaces%2Fdefault/pods"), "").await;
    assert_eq!((code, list["items"][0]["metadata"]["name"].as_str()), (200, Some("p")));
    let (code, _) = s.ask(Some(&admin), false, get1("/api/v1/namespaces/default/pods//status"), "").await;
    assert_eq!(code, 404);

    // The authorized path is the routed path: a rule for non-resource paths grants nothing below the API.
    for (kind, object) in [
        (
            "clusterroles",
            json!({"metadata": {"name": "paths"},
                "rules": [{"verbs": ["get"], "nonResourceURLs": ["/metrics", "/api%2Fv1/*", "/healthz/*"]}]}),
        ),
        (
            "clusterrolebindings",
            json!({"metadata": {"name": "paths"}, "subjects": [{"kind": "User", "name": "jane"}],
                "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "paths"}}),
        ),
    ] {
        user.post(&format!("/apis/rbac.authorization.k8s.io/v1/{kind}"), &object).await.expect(201);
    }
    let jane = s.authority.sign("jane", &[], &[], false);
    for (path, code) in [
        ("/metrics", 200),
        ("/%6Detrics", 200),
        ("/healthz%2Fping", 200),
        ("/api%2Fv1/secrets", 403),
        ("/healthz%2F..%2Fapi%2Fv1%2Fsecrets", 404),
        ("/healthz/../api/v1/secrets", 404),
    ] {
        let (found, body) = s.ask(Some(&jane), false, get1(path), "").await;
        assert_eq!(found, code, "{path}: {body}");
    }
}

#[tokio::test]
async fn a_web_socket_needs_the_right_to_create() {
    for (gates, verbs, code) in [
        ("", &["get"][..], 403),
        ("", &["get", "create"], 101),
        ("AuthorizePodWebsocketUpgradeCreatePermission=false", &["get"], 101),
    ] {
        let (s, _, user) = with_pod_and(gates).await;
        bind(&user).await;
        let parts = ["pods/exec", "pods/attach", "pods/portforward"];
        let group = "rbac.authorization.k8s.io";
        let base = format!("/apis/{group}/v1/namespaces/default");
        let role = json!({"metadata": {"name": "r"}, "rules": [{"apiGroups": [""], "resources": parts, "verbs": verbs}]});
        user.post(&format!("{base}/roles"), &role).await.expect(201);
        let binding = json!({"metadata": {"name": "r"}, "roleRef": {"apiGroup": group, "kind": "Role", "name": "r"},
            "subjects": [{"apiGroup": group, "kind": "User", "name": "jane"}]});
        user.post(&format!("{base}/rolebindings"), &binding).await.expect(201);
        // A list is answered once the caches contain every earlier write, and the authorizer reads the caches.
        user.get(&format!("/apis/{group}/v1/rolebindings")).await.expect(200);
        let jane = s.authority.sign("jane", &[], &[], false);
        for part in parts {
            let uri = format!(
                "/api/v1/namespaces/default/{}?command=a&stdin=true",
                part.replace("pods/", "pods/p/")
            );
            let request = get1(&uri).header("connection", "Upgrade").header("upgrade", "websocket");
            let response = s.open_upgradable(&jane, request).await;
            assert_eq!(response.status(), code, "{part} with {verbs:?} and {gates:?}");
            let (code, status) = s.ask(Some(&jane), false, get1(&uri), "").await;
            if response.status() == 403 {
                assert_eq!((code, status["message"].as_str()), (403, Some("pods \"p\" is forbidden: ")));
            } else {
                assert_eq!(code, 400, "{status}");
            }
        }
    }
}

#[tokio::test]
async fn proxies_do_not_lead_into_the_own_machine() {
    let (s, admin, user) = with_pod().await;
    bind(&user).await;
    let refused = |uri: &'static str| {
        let (s, admin) = (&s, &admin);
        async move {
            let (code, status) = s.ask(Some(admin), false, get1(uri), "").await;
            format!("{code} {}", status["message"].as_str().unwrap_or(""))
        }
    };
    for uri in ["/api/v1/nodes/n/proxy/pods", "/api/v1/nodes/n:80/proxy/"] {
        assert_eq!(refused(uri).await, "400 address not allowed", "{uri}");
    }
    for address in ["127.0.0.1", "169.254.169.254"] {
        let status = json!({"status": {"podIP": address, "podIPs": [{"ip": address}]}});
        user.patch(&format!("{PODS}/p/status"), "merge-patch+json", &status).await.expect(200);
        let uri = "/api/v1/namespaces/default/pods/p:80/proxy/";
        assert_eq!(refused(uri).await, "400 address not allowed", "{address}");
    }
}

#[tokio::test]
async fn usage_is_not_read_from_the_own_machine() {
    let (_s, _, user) = with_pod().await;
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    listener.set_nonblocking(true).unwrap();
    let port = listener.local_addr().unwrap().port();
    let status = json!({"status": {"daemonEndpoints": {"kubeletEndpoint": {"Port": port}}}});
    user.patch("/api/v1/nodes/n/status", "merge-patch+json", &status).await.expect(200);
    // A list waits until the watch cache, which usage is read from, has the node.
    user.get("/api/v1/nodes").await.expect(200);
    let usage = user.get("/apis/metrics.k8s.io/v1beta1/nodes").await.expect(200);
    assert_eq!(usage["items"], json!([]));
    let connected = listener.accept().map(|(_, from)| from);
    assert_eq!(connected.unwrap_err().kind(), std::io::ErrorKind::WouldBlock);
}

#[tokio::test]
async fn services_lead_to_addresses_of_their_pods_only() {
    let (s, admin, user) = with_pod().await;
    bind(&user).await;
    let status = json!({"status": {"podIP": "203.0.113.1", "podIPs": [{"ip": "203.0.113.1"}]}});
    user.patch(&format!("{PODS}/p/status"), "merge-patch+json", &status).await.expect(200);
    let service = json!({"metadata": {"name": "s"}, "spec": {"ports": [{"port": 80}]}});
    user.post("/api/v1/namespaces/default/services", &service).await.expect(201);
    let slices = "/apis/discovery.k8s.io/v1/namespaces/default/endpointslices";
    for target in [
        json!(null),
        json!({"kind": "Pod", "namespace": "default", "name": "p"}),
        json!({"kind": "Pod", "namespace": "default", "name": "gone"}),
        json!({"kind": "Pod", "namespace": "kube-system", "name": "p"}),
    ] {
        let slice = json!({"metadata": {"generateName": "s-", "labels": {"kubernetes.io/service-name": "s"}},
            "addressType": "IPv4", "ports": [{"port": 80}],
            "endpoints": [{"addresses": ["203.0.113.9"], "targetRef": target}]});
        user.post(slices, &slice).await.expect(201);
    }
    user.get(slices).await.expect(200);
    let uri = "/api/v1/namespaces/default/services/s:80/proxy/";
    let (code, status) = s.ask(Some(&admin), false, get1(uri), "").await;
    assert_eq!(
        (code, status["message"].as_str()),
        (503, Some("no endpoints available for service \"s:80\""))
    );
}
