//! One probe: a command, an HTTP request, a connection, a gRPC health check.

use std::time::Duration;

use k8s_openapi::api::core::v1::{Container, Probe};

use super::grpc;
use crate::container_config::expansion::expand_all;
use crate::http_get::{self, resolve_port};
use crate::runtime::{ContainerRuntime, MAX_EXEC_OUTPUT, RuntimeError};

/// How many redirects on the same host an HTTP probe follows.
const MAX_REDIRECTS: usize = 10;

/// The result of a probe.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Outcome {
    Success,
    /// A success with a warning for the user.
    Warning(String),
    Failure(String),
}

/// Carries out a probe. An `Err` means that it could not be carried out; it does not concern the container.
pub async fn probe(
    runtime: &dyn ContainerRuntime,
    container_id: &str,
    container: &Container,
    pod_ip: &str,
    probe: &Probe,
) -> Result<Outcome, String> {
    let seconds = u64::try_from(probe.timeout_seconds.unwrap_or(1)).unwrap_or(1).max(1);
    let timeout = Duration::from_secs(seconds);
    if let Some(exec) = &probe.exec {
        return command(
            runtime,
            container_id,
            container,
            exec.command.as_deref().unwrap_or_default(),
            seconds,
        )
        .await;
    }
    if let Some(action) = &probe.http_get {
        let request = http_get::request(action, container, pod_ip, "probe")?;
        return Ok(http(request, timeout).await);
    }
    if let Some(tcp) = &probe.tcp_socket {
        let port = resolve_port(&tcp.port, container)?;
        let host = tcp.host.as_deref().filter(|h| !h.is_empty()).unwrap_or(pod_ip);
        return Ok(match tokio::time::timeout(timeout, http_get::connect(host, port)).await {
            Ok(Ok(_)) => Outcome::Success,
            Ok(Err(error)) => Outcome::Failure(error),
            Err(_) => Outcome::Failure(format!("dial tcp {}: i/o timeout", http_get::authority(host, port))),
        });
    }
    if let Some(action) = &probe.grpc {
        let port = u16::try_from(action.port).map_err(|_| format!("invalid port number: {}", action.port))?;
        let service = action.service.as_deref().unwrap_or("");
        return Ok(match grpc::check(pod_ip, port, service, timeout).await {
            Ok(()) => Outcome::Success,
            Err(error) => Outcome::Failure(error),
        });
    }
    Err(format!("missing probe handler for {}", container.name))
}

/// Runs the command; it may refer to the container's plain variables.
async fn command(
    runtime: &dyn ContainerRuntime,
    container_id: &str,
    container: &Container,
    command: &[String],
    seconds: u64,
) -> Result<Outcome, String> {
    let value_of = |name: &str| {
        let found = container.env.iter().flatten().rev().find(|e| e.name == name && e.value_from.is_none());
        found.and_then(|e| e.value.as_deref())
    };
    let command = expand_all(command, value_of)?;
    match runtime.exec_sync(container_id, &command, seconds).await {
        Ok(output) if output.exit_code == 0 => Ok(Outcome::Success),
        Ok(output) => {
            let mut text = [output.stdout, output.stderr].concat();
            text.truncate(MAX_EXEC_OUTPUT);
            Ok(Outcome::Failure(String::from_utf8_lossy(&text).into_owned()))
        }
        Err(error @ RuntimeError::ExecTimeout { .. }) => Ok(Outcome::Failure(error.to_string())),
        Err(error) => Err(error.to_string()),
    }
}

async fn http(mut request: http_get::GetRequest, timeout: Duration) -> Outcome {
    let end = tokio::time::Instant::now() + timeout;
    for _ in 0..MAX_REDIRECTS {
        let left = end.saturating_duration_since(tokio::time::Instant::now());
        let answer = match http_get::get(&request, left).await {
            Ok(answer) => answer,
            Err(error) => return Outcome::Failure(error),
        };
        match answer.status {
            200..=299 => return Outcome::Success,
            300..=399 => match answer.location.as_deref().and_then(|l| redirected(&request, l)) {
                Some(next) => request = next,
                None => {
                    let body = String::from_utf8_lossy(&answer.body);
                    return Outcome::Warning(format!("Probe terminated redirects, Response body: {body}"));
                }
            },
            status => return Outcome::Failure(format!("HTTP probe failed with statuscode: {status}")),
        }
    }
    Outcome::Failure(format!("stopped after {MAX_REDIRECTS} redirects"))
}

/// Returns the next request of a redirect, if it stays on the host.
fn redirected(request: &http_get::GetRequest, location: &str) -> Option<http_get::GetRequest> {
    let mut next = request.clone();
    if location.starts_with('/') && !location.starts_with("//") {
        location.clone_into(&mut next.path);
        return Some(next);
    }
    let uri: http::Uri = location.parse().ok()?;
    next.tls = uri.scheme_str()? == "https";
    let host = uri.host()?.trim_matches(['[', ']']);
    if host != request.host {
        return None;
    }
    next.port = uri.port_u16().unwrap_or(if next.tls { 443 } else { 80 });
    next.path = uri.path_and_query().map_or_else(|| "/".to_owned(), ToString::to_string);
    Some(next)
}

#[cfg(test)]
mod tests {
    use super::*;
    use http::HeaderMap;
    use tokio::io::{AsyncReadExt, AsyncWriteExt};

    /// Serves each connection with the next text, and returns the requests.
    async fn serve(answers: Vec<&'static str>) -> (u16, tokio::task::JoinHandle<Vec<String>>) {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let server = tokio::spawn(async move {
            let mut requests = Vec::new();
            for answer in answers {
                let (mut stream, _) = listener.accept().await.unwrap();
                let mut text = Vec::new();
                while !text.ends_with(b"\r\n\r\n") {
                    let mut byte = [0];
                    stream.read_exact(&mut byte).await.unwrap();
                    text.push(byte[0]);
                }
                stream.write_all(answer.as_bytes()).await.unwrap();
                requests.push(String::from_utf8(text).unwrap());
            }
            requests
        });
        (port, server)
    }

    fn request(port: u16) -> http_get::GetRequest {
        let headers = HeaderMap::new();
        http_get::GetRequest { tls: false, host: "127.0.0.1".into(), port, path: "/ready".into(), headers }
    }

    #[tokio::test]
    async fn http_answers() {
        let table: [(&str, Outcome); 4] = [
            ("HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok", Outcome::Success),
            (
                "HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n",
                Outcome::Failure("HTTP probe failed with statuscode: 404".into()),
            ),
            (
                "HTTP/1.1 302 Found\r\nLocation: http://elsewhere/\r\nContent-Length: 1\r\n\r\nx",
                Outcome::Warning("Probe terminated redirects, Response body: x".into()),
            ),
            ("HTTP/1.1 503 No\r\n\r\n", Outcome::Failure("HTTP probe failed with statuscode: 503".into())),
        ];
        for (answer, expected) in table {
            let (port, server) = serve(vec![answer]).await;
            assert_eq!(http(request(port), Duration::from_secs(5)).await, expected);
            let requests = server.await.unwrap();
            assert!(requests[0].starts_with("GET /ready HTTP/1.1\r\n"), "{requests:?}");
        }
        let (port, server) = serve(vec![
            "HTTP/1.1 301 Moved\r\nLocation: /other\r\nContent-Length: 0\r\n\r\n",
            "HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n",
        ])
        .await;
        assert_eq!(http(request(port), Duration::from_secs(5)).await, Outcome::Success);
        assert!(server.await.unwrap()[1].starts_with("GET /other "));
    }

    #[tokio::test]
    async fn nobody_listens() {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        drop(listener);
        let expected = format!(
            "Get \"http://127.0.0.1:{port}/ready\": dial tcp 127.0.0.1:{port}: connect: connection refused"
        );
        assert_eq!(http(request(port), Duration::from_secs(5)).await, Outcome::Failure(expected));
    }
}
