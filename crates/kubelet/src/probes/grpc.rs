//! The gRPC health check (`grpc.health.v1.Health/Check`), by hand over HTTP/2.
//!
//! Source: <https://github.com/grpc/grpc/blob/master/doc/health-checking.md>, PROTOCOL-HTTP2.md.

use std::time::Duration;

use bytes::Bytes;
use http::{HeaderMap, Request};
use http_body_util::{BodyExt, Full};
use hyper_util::rt::{TokioExecutor, TokioIo};

use crate::http_get::{authority, connect};

const MAX_ANSWER: usize = 4 << 10;
const UNIMPLEMENTED: &str = "12";

/// `Ok` if the service is healthy, else upstream's words for what is wrong.
pub async fn check(host: &str, port: u16, service: &str, timeout: Duration) -> Result<(), String> {
    let address = authority(host, port);
    let end = tokio::time::Instant::now() + timeout;
    let stream = match tokio::time::timeout_at(end, connect(host, port)).await {
        Ok(Ok(stream)) => stream,
        Ok(Err(error)) => return Err(format!("error: failed to connect service at {address:?}: {error}")),
        Err(_) => {
            return Err(format!(
                "timeout: failed to connect service {address:?} within {}s: context deadline exceeded",
                timeout.as_secs()
            ));
        }
    };
    match tokio::time::timeout_at(end, call(stream, &address, service)).await {
        Ok(answer) => answer,
        Err(_) => Err(format!("timeout: health rpc did not complete within {}s", timeout.as_secs())),
    }
}

async fn call(stream: tokio::net::TcpStream, address: &str, service: &str) -> Result<(), String> {
    let failed = |error: &dyn std::fmt::Display| format!("error: health rpc probe failed: {error}");
    let (mut sender, connection) =
        hyper::client::conn::http2::handshake(TokioExecutor::new(), TokioIo::new(stream))
            .await
            .map_err(|e| failed(&e))?;
    let driver = tokio::spawn(connection);
    let answer = async {
        let request = Request::post(format!("http://{address}/grpc.health.v1.Health/Check"))
            .header("content-type", "application/grpc")
            .header("te", "trailers")
            .header("user-agent", "kube-probe/1.37")
            .body(Full::new(message(service)))
            .map_err(|e| failed(&e))?;
        let response = sender.send_request(request).await.map_err(|e| failed(&e))?;
        let headers = response.headers().clone();
        let mut body = response.into_body();
        let (mut data, mut trailers) = (Vec::new(), HeaderMap::new());
        while let Some(frame) = body.frame().await {
            match frame.map_err(|e| failed(&e))?.into_data() {
                Ok(bytes) if data.len() + bytes.len() <= MAX_ANSWER => data.extend_from_slice(&bytes),
                Ok(_) => return Err(failed(&"the answer is too long")),
                Err(frame) => trailers = frame.into_trailers().unwrap_or_default(),
            }
        }
        // An error may come without a body, and its status then among the headers.
        verdict(if trailers.contains_key("grpc-status") { &trailers } else { &headers }, &data)
    }
    .await;
    driver.abort();
    answer
}

/// A length-prefixed HealthCheckRequest: field 1 is the service's name.
fn message(service: &str) -> Bytes {
    let mut body = Vec::with_capacity(service.len() + 8);
    if !service.is_empty() {
        body.push(0x0a);
        let mut length = service.len();
        while length >= 0x80 {
            body.push((length as u8 & 0x7f) | 0x80);
            length >>= 7;
        }
        body.push(length as u8);
        body.extend_from_slice(service.as_bytes());
    }
    let mut out = vec![0];
    out.extend_from_slice(&(body.len() as u32).to_be_bytes());
    out.extend_from_slice(&body);
    out.into()
}

fn verdict(headers: &HeaderMap, data: &[u8]) -> Result<(), String> {
    let text = |name: &str| headers.get(name).and_then(|v| v.to_str().ok()).unwrap_or("");
    let message = text("grpc-message");
    match text("grpc-status") {
        "0" => {}
        UNIMPLEMENTED => {
            return Err(format!(
                "error: this server does not implement the grpc health protocol (grpc.health.v1.Health): {message}"
            ));
        }
        code => {
            return Err(format!("error: health rpc probe failed: rpc error: code = {code} desc = {message}"));
        }
    }
    // Field 1, an enum; left out when 0.
    let status = match data.get(5..) {
        Some([0x08, status, ..]) => *status,
        _ => 0,
    };
    let name = ["UNKNOWN", "SERVING", "NOT_SERVING", "SERVICE_UNKNOWN"]
        .get(usize::from(status))
        .unwrap_or(&"UNKNOWN");
    match status {
        1 => Ok(()),
        _ => Err(format!("service unhealthy (responded with {name:?})")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_and_verdicts() {
        assert_eq!(message("").as_ref(), [0, 0, 0, 0, 0]);
        assert_eq!(message("ab").as_ref(), [0, 0, 0, 0, 4, 0x0a, 2, b'a', b'b']);
        let headers = |status: &'static str| {
            HeaderMap::from_iter([(
                http::HeaderName::from_static("grpc-status"),
                http::HeaderValue::from_static(status),
            )])
        };
        for (status, data, expected) in [
            ("0", &[0u8, 0, 0, 0, 2, 8, 1][..], ""),
            ("0", &[0, 0, 0, 0, 2, 8, 2], "NOT_SERVING"),
            ("0", &[0, 0, 0, 0, 0], "UNKNOWN"),
            ("12", &[], "does not implement the grpc health protocol"),
            ("5", &[], "code = 5"),
        ] {
            let error = verdict(&headers(status), data).err().unwrap_or_default();
            assert_eq!(error.is_empty(), expected.is_empty(), "{error}");
            assert!(error.contains(expected), "{error}");
        }
    }
}
