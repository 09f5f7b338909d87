//! Webhooks for authentication and authorization: their requests, the effect of their responses, and caching.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use http_body_util::{BodyExt, Full};
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use knarr_apiserver::{Authorization, AuthorizationMode};
use serde_json::{Value, json};

use crate::tls::{get1, serve_with};

/// Starts a webhook that answers reviews over plain HTTP and counts them.
async fn webhook(answer: fn(&Value) -> Value) -> (PathBuf, Arc<AtomicUsize>) {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let asked = Arc::new(AtomicUsize::new(0));
    let count = Arc::clone(&asked);
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            let count = Arc::clone(&count);
            let service = service_fn(move |request: http::Request<hyper::body::Incoming>| {
                count.fetch_add(1, Ordering::SeqCst);
                async move {
                    let body = request.into_body().collect().await.unwrap().to_bytes();
                    let mut review: Value = serde_json::from_slice(&body).unwrap();
                    review["status"] = answer(&review["spec"]);
                    Ok::<_, std::convert::Infallible>(http::Response::new(Full::new(bytes::Bytes::from(
                        review.to_string(),
                    ))))
                }
            });
            tokio::spawn(
                hyper::server::conn::http1::Builder::new().serve_connection(TokioIo::new(stream), service),
            );
        }
    });
    let file = std::env::temp_dir().join(format!("webhook-{}.yaml", address.port()));
    let text = format!(
        "apiVersion: v1\nkind: Config\nclusters: [{{name: c, cluster: {{server: 'http://{address}/review'}}}}]\nusers: [{{name: u, user: {{}}}}]\ncontexts: [{{name: x, context: {{cluster: c, user: u}}}}]\ncurrent-context: x\n"
    );
    std::fs::write(&file, text).unwrap();
    (file, asked)
}

#[tokio::test]
async fn tokens_are_reviewed_and_answers_kept() {
    let (file, asked) = webhook(|spec| match spec["token"].as_str() {
        Some("good") => {
            json!({"authenticated": true, "user": {"username": "ann", "groups": ["system:masters"]}})
        }
        _ => json!({"authenticated": false}),
    })
    .await;
    let config_file = file.clone();
    let s = serve_with(move |config, _| config.authentication.webhook_config_file = Some(config_file)).await;
    let with = |token: &str| get1("/api/v1/namespaces").header("authorization", format!("Bearer {token}"));
    assert_eq!(s.ask(None, false, with("good"), "").await.0, 200);
    assert_eq!(s.ask(None, false, with("good"), "").await.0, 200);
    assert_eq!(asked.load(Ordering::SeqCst), 1);
    assert_eq!(s.ask(None, false, with("bad"), "").await.0, 401);
    let unused = s.server.unused_metrics();
    assert!(!unused.contains(&"authentication_token_cache_request_total"));
    assert!(!unused.contains(&"authentication_token_cache_fetch_total"));
    std::fs::remove_file(&file).unwrap();
}

#[tokio::test]
async fn authorization_is_asked_for_and_a_denial_is_final() {
    let (file, asked) = webhook(|spec| match spec["user"].as_str() {
        Some("ann") => json!({"allowed": true}),
        Some("eve") => json!({"allowed": false, "denied": true, "reason": "not eve"}),
        _ => json!({"allowed": false, "reason": "no idea"}),
    })
    .await;
    let config_file = file.clone();
    let s = serve_with(move |config, _| {
        config.authorization = Authorization {
            modes: vec![AuthorizationMode::Webhook, AuthorizationMode::Rbac],
            webhook_config_file: Some(config_file),
            ..Authorization::default()
        };
    })
    .await;
    let ask = |name: &str| s.authority.sign(name, &[], &[], false);
    let (ann, eve, bob) = (ask("ann"), ask("eve"), ask("bob"));
    let pods = "/api/v1/namespaces/default/pods";
    assert_eq!(s.ask(Some(&ann), false, get1(pods), "").await.0, 200);
    assert_eq!(s.ask(Some(&ann), false, get1(pods), "").await.0, 200);
    assert_eq!(asked.load(Ordering::SeqCst), 1);
    let (code, body) = s.ask(Some(&eve), false, get1("/version"), "").await;
    assert_eq!(
        (code, body["message"].as_str()),
        (403, Some("forbidden: User \"eve\" cannot get path \"/version\": not eve"))
    );
    let (_, body) = s.ask(Some(&bob), false, get1(pods), "").await;
    assert!(
        body["message"].as_str().unwrap().ends_with("in the namespace \"default\": default: no idea"),
        "{body}"
    );
    std::fs::remove_file(&file).unwrap();
}
