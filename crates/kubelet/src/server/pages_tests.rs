//! The kubelet's pages about itself, as text and as objects.

use http::Request;
use http_body_util::Empty;
use serde_json::{Value, json};

use super::tests::Lab;

#[tokio::test]
async fn the_kubelet_shows_its_flags_and_its_state() {
    let lab = Lab::new();
    let (_, body) = lab.request("/flagz").await;
    assert!(body.starts_with("\nkubelet flagz\n") && body.ends_with("\nkubelet-port=10250\n"), "{body}");
    let (_, body) = lab.request("/statusz").await;
    assert!(body.ends_with("\nPaths: /configz /flagz /healthz /metrics\n"), "{body}");
    let (_, metrics) = lab.request("/metrics").await;
    for page in ["flagz", "statusz"] {
        assert!(metrics.contains(&format!("method=\"GET\",path=\"{page}\"")), "{metrics}");
        let kind = if page == "flagz" { "Flagz" } else { "Statusz" };
        let accept = format!("application/json;as={kind};v=v1beta1;g=config.k8s.io");
        let request = Request::builder().uri(format!("/{page}")).header("accept", accept);
        let (_, body) = lab.send_request(request.body(Empty::new()).unwrap(), true).await;
        let object: Value = serde_json::from_slice(&body).unwrap();
        assert_eq!((&object["kind"], &object["metadata"]["name"]), (&json!(kind), &json!("kubelet")));
    }
}
