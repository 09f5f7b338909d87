//! Authentication: proxies, static and bootstrap tokens, impersonation, rotated CAs.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use http::request::Builder;
use http_body_util::{BodyExt, Empty};
use hyper_util::rt::TokioIo;
use knarr_apiserver::{Anonymous, RequestHeader};
use serde_json::{Value, json};

use crate::harness::User;
use crate::tls::{Authority, Served, serve_with};

const REVIEWS: &str = "/apis/authentication.k8s.io/v1/selfsubjectreviews";

fn who_am_i() -> Builder {
    http::Request::builder().method("POST").uri(REVIEWS).header("content-type", "application/json")
}

async fn who(served: &Served, client: Option<&knarr_apiserver::Keypair>, request: Builder) -> (u16, Value) {
    let (code, mut body) = served.ask(client, false, request, "{}").await;
    (code, body.pointer_mut("/status/userInfo").map(Value::take).unwrap_or_default())
}

fn admin(served: &Served) -> User {
    User(served.server.transport(knarr_apiserver::UserInfo::new("admin", &["system:masters"])))
}

/// Waits until the default roles are cached, which allow every authenticated user a SelfSubjectReview.
async fn until_ready(served: &Served, request: impl Fn() -> Builder) -> (u16, Value) {
    for _ in 0..100 {
        let answer = who(served, None, request()).await;
        if answer.0 != 403 {
            return answer;
        }
        tokio::time::sleep(std::time::Duration::from_millis(20)).await;
    }
    who(served, None, request()).await
}

#[tokio::test]
async fn a_proxy_speaks_for_its_users() {
    let front = Authority::new();
    let served = serve_with(|config, _| {
        config.authentication.request_header =
            RequestHeader::usual(front.pem.clone(), vec!["front-proxy-client".into()]);
    })
    .await;
    let proxy = front.sign("front-proxy-client", &[], &[], false);
    let named = || who_am_i().header("x-remote-user", "ann").header("x-remote-group", "team");
    let (code, user) = who(&served, Some(&proxy), named()).await;
    assert_eq!((code, &user["username"]), (201, &json!("ann")), "{user}");
    assert_eq!(user["groups"], json!(["team", "system:authenticated"]));
    // Without user headers the proxy is not authenticated: its certificate is not a client certificate.
    assert_eq!(who(&served, Some(&proxy), who_am_i()).await.0, 401);
    let other = front.sign("somebody-else", &[], &[], false);
    assert_eq!(who(&served, Some(&other), named()).await.0, 401);
    // The proxy headers of an ordinary client are ignored.
    let client = served.authority.sign("bob", &[], &[], false);
    let (_, user) = who(&served, Some(&client), named()).await;
    assert_eq!(user["username"], "bob");
    let map = "/api/v1/namespaces/kube-system/configmaps/extension-apiserver-authentication";
    let map = admin(&served).get(map).await.expect(200);
    assert_eq!(map["data"]["requestheader-client-ca-file"], front.pem.as_str());
    assert_eq!(map["data"]["requestheader-allowed-names"], "[\"front-proxy-client\"]");
    assert_eq!(map["data"]["client-ca-file"], served.authority.pem.as_str());
}

#[tokio::test]
async fn tokens_of_files_and_of_bootstrapping_nodes() {
    let folder = std::env::temp_dir().join(format!("tokens-{}", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    let file = folder.join("tokens.csv");
    std::fs::write(&file, "static-token,ann,7,\"team\"\n").unwrap();
    let path = file.clone();
    let served = serve_with(move |config, _| config.authentication.token_file = Some(path)).await;
    let with = |token: &'static str| move || who_am_i().header("authorization", format!("Bearer {token}"));
    let (code, user) = until_ready(&served, with("static-token")).await;
    assert_eq!((code, &user["username"]), (201, &json!("ann")));
    assert_eq!(user["groups"], json!(["team", "system:authenticated"]));
    assert_eq!(who(&served, None, with("wrong")()).await.0, 401);

    let encode = |text: &str| STANDARD.encode(text);
    let secret = json!({
        "metadata": {"name": "bootstrap-token-abcdef", "namespace": "kube-system"},
        "type": "bootstrap.kubernetes.io/token",
        "data": {"token-id": encode("abcdef"), "token-secret": encode("0123456789abcdef"),
            "usage-bootstrap-authentication": encode("true")},
    });
    assert_eq!(who(&served, None, with("abcdef.0123456789abcdef")()).await.0, 401);
    admin(&served).post("/api/v1/namespaces/kube-system/secrets", &secret).await.expect(201);
    let (_, user) = until_ready(&served, with("abcdef.0123456789abcdef")).await;
    assert_eq!(user["username"], "system:bootstrap:abcdef");
    assert_eq!(user["groups"], json!(["system:bootstrappers", "system:authenticated"]));
    let review = json!({"spec": {"token": "static-token"}});
    let review =
        admin(&served).post("/apis/authentication.k8s.io/v1/tokenreviews", &review).await.expect(201);
    assert_eq!(review["status"]["user"]["username"], "ann");
    std::fs::remove_dir_all(&folder).unwrap();
}

#[tokio::test]
async fn nobody_comes_in_where_the_conditions_allow_it() {
    let ask = |served: Served| async move {
        let get = |path: &str| http::Request::builder().uri(path.to_owned());
        let health = served.ask(None, false, get("/livez"), "").await.0;
        let api = served.ask(None, false, get("/api/v1/namespaces/default/pods"), "").await.0;
        (health, api)
    };
    assert_eq!(ask(serve_with(|_, _| {}).await).await, (200, 401));
    assert_eq!(ask(serve_with(|c, _| c.authentication.anonymous = Anonymous::On).await).await, (200, 403));
    assert_eq!(ask(serve_with(|c, _| c.authentication.anonymous = Anonymous::Off).await).await, (401, 401));
}

#[tokio::test]
async fn constrained_impersonation() {
    let served = serve_with(|_, _| {}).await;
    let admin = admin(&served);
    let role = json!({"metadata": {"name": "lister"}, "rules": [
        {"verbs": ["impersonate:user-info"], "apiGroups": ["authentication.k8s.io"], "resources": ["users"], "resourceNames": ["ann"]},
        {"verbs": ["impersonate-on:user-info:create"], "apiGroups": ["authentication.k8s.io"], "resources": ["selfsubjectreviews"]}]});
    admin.post("/apis/rbac.authorization.k8s.io/v1/clusterroles", &role).await.expect(201);
    let binding = json!({"metadata": {"name": "lister"},
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "lister"},
        "subjects": [{"kind": "User", "apiGroup": "rbac.authorization.k8s.io", "name": "agent"}]});
    admin.post("/apis/rbac.authorization.k8s.io/v1/clusterrolebindings", &binding).await.expect(201);
    let agent = served.authority.sign("agent", &[], &[], false);
    let mut answer = (0, Value::Null);
    for _ in 0..100 {
        answer = who(&served, Some(&agent), who_am_i().header("impersonate-user", "ann")).await;
        if answer.0 == 201 {
            break;
        }
        tokio::time::sleep(std::time::Duration::from_millis(20)).await;
    }
    assert_eq!((answer.0, &answer.1["username"]), (201, &json!("ann")));
    let list = http::Request::builder().uri("/api/v1/namespaces").header("impersonate-user", "ann");
    let (code, body) = served.ask(Some(&agent), false, list, "").await;
    assert_eq!(code, 403);
    let message = body["message"].as_str().unwrap();
    assert!(message.contains("cannot impersonate-on:user-info:list resource \"namespaces\""), "{message}");
}

#[tokio::test]
async fn authorities_are_rotated_without_a_restart() {
    let folder = std::env::temp_dir().join(format!("rotation-{}", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    let file = folder.join("clients.pem");
    let (old, new) = (Authority::new(), Authority::new());
    std::fs::write(&file, &old.pem).unwrap();
    let path = file.clone();
    let served = serve_with(move |config, _| config.client_ca_file = Some(path)).await;
    let (before, after) = (old.sign("ann", &[], &[], false), new.sign("ann", &[], &[], false));
    let health = || http::Request::builder().uri("/livez");
    assert_ne!(served.ask(Some(&before), false, health(), "").await.0, 401);
    assert_eq!(served.ask(Some(&after), false, health(), "").await.0, 401);
    let stream = TokioIo::new(served.connect(Some(&before), false).await);
    let (mut open, connection) = hyper::client::conn::http1::handshake(stream).await.unwrap();
    tokio::spawn(connection);
    let mut over_open = async || {
        let request = health().header("host", "127.0.0.1").body(Empty::<Bytes>::new()).unwrap();
        let response = open.send_request(request).await.unwrap();
        let code = response.status().as_u16();
        response.into_body().collect().await.unwrap();
        code
    };
    assert_ne!(over_open().await, 401);
    std::fs::write(&file, format!("{}\n", new.pem)).unwrap();
    let mut code = 0;
    for _ in 0..100 {
        code = served.ask(Some(&after), false, health(), "").await.0;
        if code != 401 {
            break;
        }
        tokio::time::sleep(std::time::Duration::from_millis(100)).await;
    }
    assert_ne!(code, 401);
    assert_eq!(served.ask(Some(&before), false, health(), "").await.0, 401);
    assert_eq!(over_open().await, 401, "a connection that was there is no better");
    std::fs::remove_dir_all(&folder).unwrap();
}

#[tokio::test]
async fn legacy_tokens_are_counted_and_marked() {
    let key = rcgen::KeyPair::generate().unwrap();
    let pem = key.serialize_pem();
    let served = serve_with(move |config, _| config.service_accounts.key_pem = pem).await;
    let admin = admin(&served);
    let accounts = "/api/v1/namespaces/default/serviceaccounts";
    let account = json!({"metadata": {"name": "runner"}});
    let account = admin.post(accounts, &account).await.expect(201);
    let uid = account["metadata"]["uid"].as_str().unwrap();
    let claims = json!({
        "iss": "kubernetes/serviceaccount", "sub": "system:serviceaccount:default:runner",
        "kubernetes.io/serviceaccount/namespace": "default",
        "kubernetes.io/serviceaccount/secret.name": "runner-token",
        "kubernetes.io/serviceaccount/service-account.name": "runner",
        "kubernetes.io/serviceaccount/service-account.uid": uid,
    });
    let token = sign(&key, &claims);
    let secret = json!({
        "metadata": {"name": "runner-token", "annotations": {"kubernetes.io/service-account.name": "runner"}},
        "type": "kubernetes.io/service-account-token", "stringData": {"token": token},
    });
    let secrets = "/api/v1/namespaces/default/secrets";
    admin.post(secrets, &secret).await.expect(201);
    let with = || who_am_i().header("authorization", format!("Bearer {token}"));
    let (code, user) = until_ready(&served, with).await;
    assert_eq!((code, &user["username"]), (201, &json!("system:serviceaccount:default:runner")));
    let held = admin.get(&format!("{secrets}/runner-token")).await.expect(200);
    let used = held["metadata"]["labels"]["kubernetes.io/legacy-token-last-used"].as_str().unwrap();
    assert_eq!(used.len(), "2026-01-01".len());
    let listed = json!({"secrets": [{"name": "runner-token"}]});
    admin.patch(&format!("{accounts}/runner"), crate::harness::MERGE, &listed).await.expect(200);
    let mark = json!({"metadata": {"labels": {"kubernetes.io/legacy-token-invalid-since": "2026-01-01"}}});
    until_unused(&served, &with, "serviceaccount_legacy_auto_token_uses_total").await;
    admin.patch(&format!("{secrets}/runner-token"), crate::harness::MERGE, &mark).await.expect(200);
    until_unused(&served, &with, "serviceaccount_invalid_legacy_auto_token_uses_total").await;
    let unused = served.server.unused_metrics();
    for family in ["serviceaccount_legacy_manual_token_uses_total", "serviceaccount_legacy_tokens_total"] {
        assert!(!unused.contains(&family), "{family}");
    }
}

/// Repeats the request until the metric family has a value.
async fn until_unused(served: &Served, request: &impl Fn() -> Builder, family: &str) {
    for _ in 0..100 {
        who(served, None, request()).await;
        if !served.server.unused_metrics().contains(&family) {
            return;
        }
        tokio::time::sleep(std::time::Duration::from_millis(20)).await;
    }
    panic!("nothing was recorded in {family}");
}

/// Returns a token signed with ES256.
fn sign(key: &rcgen::KeyPair, claims: &Value) -> String {
    use base64::engine::general_purpose::URL_SAFE_NO_PAD;
    let encode = |v: &Value| URL_SAFE_NO_PAD.encode(v.to_string());
    let text = format!("{}.{}", encode(&json!({"alg": "ES256"})), encode(claims));
    let random = ring::rand::SystemRandom::new();
    let algorithm = &ring::signature::ECDSA_P256_SHA256_FIXED_SIGNING;
    let pair = ring::signature::EcdsaKeyPair::from_pkcs8(algorithm, key.serialized_der(), &random).unwrap();
    let signature = pair.sign(&random, text.as_bytes()).unwrap();
    format!("{text}.{}", URL_SAFE_NO_PAD.encode(signature.as_ref()))
}

#[tokio::test]
async fn projected_tokens_are_counted_by_their_age() {
    let key = rcgen::KeyPair::generate().unwrap();
    let pem = key.serialize_pem();
    let served = serve_with(move |config, _| config.service_accounts.key_pem = pem).await;
    let admin = admin(&served);
    let account = json!({"metadata": {"name": "runner"}});
    let account = admin.post("/api/v1/namespaces/default/serviceaccounts", &account).await.expect(201);
    let token = |warn_after: i64| {
        let claims = json!({
            "iss": "https://kubernetes.default.svc.cluster.local", "sub": "system:serviceaccount:default:runner",
            "aud": ["https://kubernetes.default.svc.cluster.local"], "exp": 9_999_999_999_i64,
            "kubernetes.io": {"namespace": "default", "warnafter": warn_after,
                "serviceaccount": {"name": "runner", "uid": account["metadata"]["uid"]}},
        });
        let token = sign(&key, &claims);
        move || who_am_i().header("authorization", format!("Bearer {token}"))
    };
    until_unused(&served, &token(9_999_999_999), "serviceaccount_valid_tokens_total").await;
    until_unused(&served, &token(1), "serviceaccount_stale_tokens_total").await;
}
