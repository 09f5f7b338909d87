//! The gRPC health check (`grpc.health.v1.Health/Check`).
//!
//! Source: <https://github.com/grpc/grpc/blob/master/doc/health-checking.md>.

use std::time::Duration;

use http::HeaderValue;
use http::header::USER_AGENT;
use knarr_grpc::{CallError, Code, Connection, Options};
use prost::Message;
use tokio::net::TcpStream;

use crate::http_get::{authority, connect};

const MAX_ANSWER: usize = 4 << 10;

#[derive(Clone, PartialEq, Message)]
struct HealthCheckRequest {
    #[prost(string, tag = "1")]
    service: String,
}

#[derive(Clone, PartialEq, Message)]
struct HealthCheckResponse {
    #[prost(int32, tag = "1")]
    status: i32,
}

/// Calls the health check. Returns `Ok` if the service is healthy, else upstream's text of the error.
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
        Ok(answer) => verdict(answer),
        Err(_) => Err(format!("timeout: health rpc did not complete within {}s", timeout.as_secs())),
    }
}

async fn call(stream: TcpStream, address: &str, service: &str) -> Result<HealthCheckResponse, CallError> {
    let options = Options {
        max_message: MAX_ANSWER,
        headers: vec![(USER_AGENT, HeaderValue::from_static("kube-probe/1.37"))],
        ..Options::default()
    };
    let connection = Connection::handshake(stream, address, options).await?;
    let request = HealthCheckRequest { service: service.to_owned() };
    connection.unary("/grpc.health.v1.Health/Check", &request).await
}

fn verdict(answer: Result<HealthCheckResponse, CallError>) -> Result<(), String> {
    let status = match answer {
        Ok(answer) => answer.status,
        Err(CallError::Status { code: Code::UNIMPLEMENTED, message }) => {
            return Err(format!(
                "error: this server does not implement the grpc health protocol (grpc.health.v1.Health): {message}"
            ));
        }
        Err(error) => return Err(format!("error: health rpc probe failed: {error}")),
    };
    let name = match status {
        1 => return Ok(()),
        2 => "NOT_SERVING",
        3 => "SERVICE_UNKNOWN",
        _ => "UNKNOWN",
    };
    Err(format!("service unhealthy (responded with {name:?})"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn verdicts() {
        let status = |code, message: &str| Err(CallError::Status { code, message: message.to_owned() });
        for (answer, expected) in [
            (Ok(1), ""),
            (Ok(2), "NOT_SERVING"),
            (Ok(0), "UNKNOWN"),
            (Ok(9), "UNKNOWN"),
            (status(Code::UNIMPLEMENTED, "x"), "does not implement the grpc health protocol"),
            (
                status(Code::NOT_FOUND, "unknown service"),
                "error: health rpc probe failed: rpc error: code = NotFound desc = unknown service",
            ),
        ] {
            let error =
                verdict(answer.map(|status| HealthCheckResponse { status })).err().unwrap_or_default();
            assert_eq!(error.is_empty(), expected.is_empty(), "{error}");
            assert!(error.contains(expected), "{error}");
        }
    }

    #[test]
    fn a_service_without_a_name_is_an_empty_message() {
        assert!(HealthCheckRequest::default().encode_to_vec().is_empty());
    }
}
