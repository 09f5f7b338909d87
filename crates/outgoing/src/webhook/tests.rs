//! Tests of calls to a real HTTPS server.

use std::sync::atomic::{AtomicUsize, Ordering};

use knarr_apimachinery::gvk::GroupResource;
use knarr_apimachinery::status::StatusError;
use knarr_client::clock::SystemClock;
use knarr_testing::hook_server::{HookServer, Reply};
use serde_json::{Value, json};

use super::*;

/// Resolves to one endpoint: this server.
struct One(u16);

impl Services for One {
    fn resolve(&self, namespace: &str, name: &str, port: u16) -> Result<(String, u16), StatusError> {
        match (namespace, name, port) {
            ("n", "s", 443) => Ok(("127.0.0.1".into(), self.0)),
            _ => Err(StatusError::not_found(&GroupResource::new("", "services"), name)),
        }
    }
}

fn call(body: &Value) -> Call {
    Call::new(body.to_string().into(), Duration::from_secs(30))
}

async fn post(hooks: &Webhooks, server: &HookServer, target: &Target, call: &Call) -> Result<Value, String> {
    let answer = hooks.post(&One(server.address.port()), target, call).await.map_err(|e| e.to_string())?;
    serde_json::from_slice(&answer).map_err(|e| e.to_string())
}

fn service(server: &HookServer, name: &str) -> Target {
    let address =
        Address::Service { namespace: "n".into(), name: name.into(), path: "/validate".into(), port: 443 };
    Target { address, ..Target::url("", server.ca_pem.clone()) }
}

#[tokio::test]
async fn posts_and_reuses_connections() {
    let server = HookServer::start(&["s.n.svc", "127.0.0.1"], |r| Reply::Json(json!({"got": r.body})));
    let server = server.await.unwrap();
    let hooks = Webhooks::new(Arc::new(SystemClock));
    for n in 0..3 {
        let by_service = service(&server, "s");
        let answer = post(&hooks, &server, &by_service, &call(&json!({"n": n}))).await;
        assert_eq!(answer, Ok(json!({"got": {"n": n}})));
    }
    assert_eq!(server.connections(), 1);
    let by_url = Target::url(server.url("/x?a=b"), server.ca_pem.clone());
    assert!(post(&hooks, &server, &by_url, &call(&json!(1))).await.is_ok());
    assert_eq!(server.connections(), 2);
    let received = server.received();
    assert_eq!(received[0].path, "/validate?timeout=30s");
    assert_eq!(received[3].path, "/x?a=b&timeout=30s");
}

#[tokio::test]
async fn a_certificate_that_is_its_own_authority_is_trusted() {
    let names = ["s.n.svc", "127.0.0.1"];
    let answer = |_: &knarr_testing::hook_server::Received| Reply::Json(json!({}));
    let server = HookServer::start_under_own_authority(&names, answer).await.unwrap();
    let other = HookServer::start_under_own_authority(&names, answer).await.unwrap();
    let hooks = Webhooks::new(Arc::new(SystemClock));
    let by_url = Target::url(server.url("/"), server.ca_pem.clone());
    for target in [&service(&server, "s"), &by_url] {
        assert_eq!(post(&hooks, &server, target, &call(&json!(1))).await, Ok(json!({})));
    }
    let unknown = "tls: failed to verify certificate: x509: certificate signed by unknown authority";
    let not_trusted = Target::url(server.url("/"), other.ca_pem.clone());
    let error = post(&hooks, &server, &not_trusted, &call(&json!(1))).await;
    assert_eq!(error, Err(format!("Post \"{}?timeout=30s\": {unknown}", server.url("/"))));
}

#[tokio::test]
async fn a_connection_that_was_closed_is_opened_anew() {
    let count = AtomicUsize::new(0);
    let server = HookServer::start(&["127.0.0.1"], move |_| match count.fetch_add(1, Ordering::SeqCst) {
        1 => Reply::HangUp,
        n => Reply::Json(n.into()),
    });
    let server = server.await.unwrap();
    let hooks = Webhooks::new(Arc::new(SystemClock));
    let target = Target::url(server.url("/"), server.ca_pem.clone());
    assert_eq!(post(&hooks, &server, &target, &call(&json!(0))).await, Ok(json!(0)));
    let url = format!("{}?timeout=30s", server.url("/"));
    // A request that was sent is not sent again, because the webhook may have received it.
    let error = post(&hooks, &server, &target, &call(&json!(0))).await;
    assert_eq!(error, Err(format!("Post {url:?}: EOF")));
    assert_eq!(post(&hooks, &server, &target, &call(&json!(0))).await, Ok(json!(2)));
    assert_eq!(server.connections(), 2);
}

#[tokio::test]
async fn failures_are_told_in_upstreams_words() {
    let status =
        json!({"kind": "Status", "apiVersion": "v1", "status": "Failure", "message": "no", "code": 400});
    let server = HookServer::start(&["s.n.svc", "127.0.0.1"], move |r| match r.path.split('?').next() {
        Some("/status") => Reply::Raw(400, status.to_string().into_bytes()),
        Some("/500") => Reply::Raw(500, b"broken".to_vec()),
        Some("/404") => Reply::Raw(404, Vec::new()),
        Some("/large") => Reply::Raw(200, vec![b' '; 5000]),
        Some("/never") => Reply::Never,
        _ => Reply::Json(json!({})),
    });
    let server = server.await.unwrap();
    let other = HookServer::start(&["127.0.0.1"], |_| Reply::Json(json!({}))).await.unwrap();
    let hooks = Webhooks::new(Arc::new(SystemClock));
    let url = |path: &str| Target::url(server.url(path), server.ca_pem.clone());
    let at = |path: &str, why: &str| format!("Post \"{}?timeout=1s\": {why}", server.url(path));
    let unknown = "tls: failed to verify certificate: x509: certificate signed by unknown authority";
    let mut wrong_name = url("/");
    wrong_name.server_name = Some("elsewhere".into());
    let closed = {
        let gone = HookServer::start(&["127.0.0.1"], |_| Reply::Never).await.unwrap();
        let address = gone.address;
        drop(gone);
        tokio::task::yield_now().await;
        address
    };
    // The error has the address, not the name.
    let refused = format!(
        "Post \"https://localhost:{0}/?timeout=1s\": dial tcp 127.0.0.1:{0}: connect: connection refused",
        closed.port()
    );
    for (target, expected) in [
        (url("/status"), "no".to_owned()),
        (
            url("/500"),
            "an error on the server (\"broken\") has prevented the request from succeeding".to_owned(),
        ),
        (url("/404"), "the server could not find the requested resource".to_owned()),
        (url("/large"), at("/large", "the response is larger than 1000 bytes")),
        (url("/never"), at("/never", "context deadline exceeded")),
        (Target::url(server.url("/"), other.ca_pem.clone()), at("/", unknown)),
        (
            Target::url(server.url("/"), "nonsense"),
            at("/", "unable to load root certificates: unable to parse bytes as PEM block"),
        ),
        (
            wrong_name,
            at(
                "/",
                "tls: failed to verify certificate: x509: certificate is valid for s.n.svc, not elsewhere",
            ),
        ),
        (
            service(&server, "missing"),
            "Post \"https://missing.n.svc:443/validate?timeout=1s\": services \"missing\" not found"
                .to_owned(),
        ),
        (Target::url(format!("https://localhost:{}/", closed.port()), ""), refused),
    ] {
        let call = Call { timeout: Duration::from_millis(700), limit: 1000, ..call(&json!({})) };
        assert_eq!(post(&hooks, &server, &target, &call).await, Err(expected));
    }
    let insecure = Target { insecure: true, ..Target::url(server.url("/"), "") };
    assert_eq!(post(&hooks, &server, &insecure, &call(&json!({}))).await, Ok(json!({})));
}
