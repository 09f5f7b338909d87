//! `/healthz` over plain HTTP, for monitors on the machine itself.
//!
//! Source: upstream's `--healthz-port` and `--healthz-bind-address`. Upstream serves the check `ping` alone; here
//! the checks are those of the kubelet's own port. If the port is in use, for instance by another kubelet of the
//! machine, the node works without this server, and retries to bind.

use std::collections::VecDeque;
use std::convert::Infallible;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::BoxFuture;
use http::{Method, Request, StatusCode};
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use knarr_apimachinery::clock::Clock;
use tokio::net::{TcpListener, TcpStream};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use super::answer::{self, Answer};
use super::{health, route};
use crate::pod_lookup::PodLookup;

/// The maximum of concurrent connections; above it the oldest are closed, as they are idle: requests are answered
/// at once.
const MAX_CONNECTIONS: usize = 16;
/// The time limit of a connection, which serves one request.
const WITHIN: Duration = Duration::from_secs(10);
/// The first pause before the next attempt to bind the port, or to accept.
const PAUSE: Duration = Duration::from_secs(5);
const LONGEST_PAUSE: Duration = Duration::from_secs(300);

/// Serves until `stop` is cancelled.
pub fn serve(
    address: SocketAddr,
    pods: Arc<dyn PodLookup>,
    clock: Arc<dyn Clock>,
    stop: CancellationToken,
) -> BoxFuture<'static, ()> {
    Box::pin(async move {
        let Some(listener) = listen(address, clock.as_ref(), &stop).await else { return };
        accept(listener, pods, clock, stop).await;
    })
}

async fn listen(address: SocketAddr, clock: &dyn Clock, stop: &CancellationToken) -> Option<TcpListener> {
    let mut pause = PAUSE;
    loop {
        match TcpListener::bind(address).await {
            Ok(listener) => return Some(listener),
            Err(error) if pause == PAUSE => {
                tracing::warn!(%address, %error, "no healthz server: see --healthz-port; it will be tried again");
            }
            Err(error) => tracing::debug!(%address, %error, "no healthz server"),
        }
        tokio::select! {
            () = stop.cancelled() => return None,
            () = clock.sleep(pause) => pause = (pause * 2).min(LONGEST_PAUSE),
        }
    }
}

async fn accept(
    listener: TcpListener,
    pods: Arc<dyn PodLookup>,
    clock: Arc<dyn Clock>,
    stop: CancellationToken,
) {
    let connections = TaskTracker::new();
    let mut open: VecDeque<CancellationToken> = VecDeque::new();
    loop {
        let accepted = tokio::select! {
            () = stop.cancelled() => return,
            accepted = listener.accept() => accepted,
        };
        match accepted {
            Ok((stream, _)) => {
                open.retain(|connection| !connection.is_cancelled());
                if open.len() >= MAX_CONNECTIONS
                    && let Some(oldest) = open.pop_front()
                {
                    oldest.cancel();
                }
                let (pods, clock, end) = (Arc::clone(&pods), Arc::clone(&clock), stop.child_token());
                open.push_back(end.clone());
                connections.spawn(async move {
                    // The guard cancels the token also when the connection ends by itself.
                    let ended = end.clone().drop_guard();
                    tokio::select! {
                        () = end.cancelled() => {}
                        () = clock.sleep(WITHIN) => {}
                        () = speak(stream, pods) => {}
                    }
                    drop(ended);
                });
            }
            Err(error) => {
                tracing::warn!(%error, "the healthz server cannot accept");
                tokio::select! {
                    () = stop.cancelled() => return,
                    () = clock.sleep(PAUSE) => {}
                }
            }
        }
    }
}

async fn speak(stream: TcpStream, pods: Arc<dyn PodLookup>) {
    let answering = service_fn(move |request: Request<Incoming>| {
        let answer = answer(&request, pods.as_ref());
        async move { Ok::<_, Infallible>(answer) }
    });
    let connection =
        http1::Builder::new().keep_alive(false).serve_connection(TokioIo::new(stream), answering);
    if let Err(error) = connection.await {
        tracing::debug!(%error, "healthz");
    }
}

fn answer<B>(request: &Request<B>, pods: &dyn PodLookup) -> Answer {
    let path = route::decoded(request.uri().path()).unwrap_or_default();
    let below = path.strip_prefix("/healthz").filter(|rest| rest.is_empty() || rest.starts_with('/'));
    let Some(below) = below else {
        return answer::text(StatusCode::NOT_FOUND, "404 page not found\n");
    };
    if !matches!(*request.method(), Method::GET | Method::HEAD) {
        return answer::text(StatusCode::METHOD_NOT_ALLOWED, "405: Method Not Allowed");
    }
    health::answer(below, &route::query(request.uri().query().unwrap_or("")), pods.health())
}

#[cfg(test)]
mod tests {
    use async_trait::async_trait;
    use k8s_openapi::api::core::v1::Pod;
    use knarr_client::clock::SystemClock;
    use tokio::io::{AsyncReadExt, AsyncWriteExt};

    use super::*;
    use crate::pod_lookup::{ContainerRef, LookupError};
    use crate::server::health::Check;

    struct Ill;

    #[async_trait]
    impl PodLookup for Ill {
        fn pods(&self) -> Vec<Arc<Pod>> {
            Vec::new()
        }
        fn pod(&self, _: &str, _: &str, _: Option<&str>) -> Option<Arc<Pod>> {
            None
        }
        async fn container(&self, _: &Pod, _: &str, _: bool) -> Result<ContainerRef, LookupError> {
            Err(LookupError::PodNotFound(String::new()))
        }
        async fn sandbox_id(&self, _: &Pod) -> Result<String, LookupError> {
            Err(LookupError::PodNotFound(String::new()))
        }
        fn health(&self) -> Vec<Check> {
            vec![Check { name: "kubelet".into(), result: Err("it panicked".into()) }]
        }
    }

    async fn get(address: SocketAddr, path: &str) -> String {
        let mut stream = TcpStream::connect(address).await.unwrap();
        stream.write_all(format!("GET {path} HTTP/1.1\r\nhost: n\r\n\r\n").as_bytes()).await.unwrap();
        let mut text = String::new();
        stream.read_to_string(&mut text).await.unwrap();
        let (head, body) = text.split_once("\r\n\r\n").unwrap();
        format!("{} {body}", head.split(' ').nth(1).unwrap())
    }

    #[tokio::test]
    async fn health_is_served_plainly_and_a_taken_port_is_no_fault() {
        let clock: Arc<dyn Clock> = Arc::new(SystemClock);
        let first = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = first.local_addr().unwrap();
        let stop = CancellationToken::new();
        let running = tokio::spawn(accept(first, Arc::new(Ill), Arc::clone(&clock), stop.clone()));
        let failed = "500 [+]ping ok\n[-]kubelet failed: reason withheld\nhealthz check failed\n";
        for (path, want) in [
            ("/healthz", failed),
            ("/healthz?verbose", failed),
            ("/healthz?exclude=kubelet", "200 ok"),
            ("/healthz/ping", "200 ok"),
            ("/healthz/kubelet", "500 internal server error: it panicked\n"),
            ("/healthz/nothing", "404 404 page not found\n"),
            ("/metrics", "404 404 page not found\n"),
        ] {
            assert_eq!(get(address, path).await, want, "{path}");
        }
        // Clients that hold connections open do not keep others from an answer.
        let mut idle = Vec::new();
        for _ in 0..3 * MAX_CONNECTIONS {
            idle.push(TcpStream::connect(address).await.unwrap());
        }
        assert_eq!(get(address, "/healthz/ping").await, "200 ok");
        let mut nothing = [0; 1];
        assert_eq!(idle[0].read(&mut nothing).await.unwrap_or(0), 0, "the oldest has ended");
        // A second server waits for the port, and ends when it is stopped.
        let end = CancellationToken::new();
        let second = tokio::spawn(serve(address, Arc::new(Ill), clock, end.clone()));
        end.cancel();
        second.await.unwrap();
        assert_eq!(get(address, "/healthz/ping").await, "200 ok");
        stop.cancel();
        running.await.unwrap();
    }
}
