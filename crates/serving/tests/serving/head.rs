//! Tests of HEAD: the headers of the answer to GET, and no content.

use http::header::CONTENT_LENGTH;
use http::{Method, StatusCode};

use crate::harness::{Server, limits, request, text};

#[tokio::test]
async fn answers_to_head_have_no_content() {
    let server = Server::start(limits()).await;
    for (path, code) in [("/", StatusCode::OK), ("/unknown", StatusCode::UNAUTHORIZED)] {
        let (mut sender, _) = server.http1().await.unwrap();
        let over_http1 = sender.send_request(request(Method::HEAD, path)).await.unwrap();
        let (mut sender, _) = server.http2().await;
        let over_http2 = sender.send_request(request(Method::HEAD, path)).await.unwrap();
        for answer in [over_http1, over_http2] {
            assert_eq!(answer.status(), code);
            assert_eq!(answer.headers()[CONTENT_LENGTH], "5", "{:?}", answer.version());
            assert_eq!(text(answer).await, "");
        }
    }
}
