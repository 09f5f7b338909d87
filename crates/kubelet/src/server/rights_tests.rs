//! Authorization of requests by the subresources that the API server allows.

use std::sync::Arc;

use async_trait::async_trait;
use bytes::Bytes;
use knarr_api::kind::ResourceType;
use knarr_client::clock::SystemClock;
use knarr_client::transport::{List, ListOptions, Transport, WatchStream};
use knarr_client::{Client, Result};
use serde_json::{Value, json};

use super::tests::Lab;

/// An API server that allows the bearer of a token the subresource of nodes that the token names.
struct Rights;

#[async_trait]
impl Transport for Rights {
    async fn send(&self, request: http::Request<Bytes>) -> Result<http::Response<Bytes>> {
        let mut review: Value = serde_json::from_slice(request.body()).unwrap();
        review["status"] = if request.uri().path().ends_with("/tokenreviews") {
            json!({"authenticated": true, "user": {"username": review["spec"]["token"]}})
        } else {
            let (spec, asked) = (&review["spec"], &review["spec"]["resourceAttributes"]);
            assert_eq!((&asked["resource"], &asked["name"]), (&json!("nodes"), &json!("n1")));
            json!({"allowed": asked["verb"] == "get" && asked["subresource"] == spec["user"]})
        };
        Ok(http::Response::new(Bytes::from(review.to_string())))
    }

    async fn list(&self, _: &ResourceType, _: Option<&str>, _: &ListOptions) -> Result<List> {
        unreachable!("nothing is listed")
    }

    async fn watch(&self, _: &ResourceType, _: Option<&str>, _: &ListOptions) -> Result<WatchStream> {
        unreachable!("nothing is watched")
    }
}

/// KEP-2862: monitors of the nodes' health do not need the right to run commands on them.
#[tokio::test]
async fn fine_rights_are_enough_for_what_they_are_for() {
    let lab = Lab::asking(Client::new(Arc::new(Rights), Arc::new(SystemClock), "test"), false);
    let logs = "/containerLogs/ns/p/c";
    let table = [
        ("healthz", "/healthz/ping", 200),
        ("healthz", "/pods", 403),
        ("healthz", "/configz", 403),
        ("healthz", logs, 403),
        ("configz", "/configz", 200),
        ("configz", "/healthz/ping", 403),
        ("configz", "/flagz", 200),
        ("configz", "/statusz", 403),
        ("statusz", "/statusz", 200),
        ("statusz", "/flagz", 403),
        ("proxy", "/flagz", 403),
        ("proxy", "/statusz", 403),
        ("pods", "/pods", 200),
        ("pods", "/runningpods/", 200),
        ("pods", "/metrics", 403),
        ("pods", logs, 403),
        ("metrics", "/metrics", 200),
        // The old right to everything still suffices, except for paths that always had a right of their own.
        ("proxy", "/healthz/ping", 200),
        ("proxy", "/configz", 200),
        ("proxy", "/pods", 200),
        ("proxy", "/metrics", 403),
    ];
    for (right, path, code) in table {
        let (status, body) = lab.send(path, false, Some(right)).await;
        assert_eq!(status.as_u16(), code, "{right} {path}: {body:?}");
    }
    let (_, body) = lab.send("/pods", false, Some("healthz")).await;
    assert_eq!(body, "Forbidden (user=healthz, verb=get, resource=nodes, subresource(s)=[pods proxy])\n");
}
