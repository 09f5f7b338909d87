//! Calls to a gRPC service on a unix socket, over one connection that is re-established with a back-off after it
//! breaks.

use std::path::{Path, PathBuf};
use std::time::Duration;

use knarr_grpc::{Answers, CallError, Code, Connection};
use prost::Message;
use tokio::sync::Mutex;
use tokio::time::Instant;

use crate::runtime::RuntimeError;

/// Upstream's `runtimeRequestTimeout`.
pub const TIMEOUT: Duration = Duration::from_secs(120);
/// The first pause between attempts to connect, as in upstream's client.
const FIRST_BACK_OFF: Duration = Duration::from_millis(100);
const LONGEST_BACK_OFF: Duration = Duration::from_secs(3);

/// The client of one service's socket.
pub struct Client {
    socket: PathBuf,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    connection: Option<Connection>,
    failures: u32,
    /// The last error, and the earliest time of the next attempt.
    refused: Option<(CallError, Instant)>,
}

/// Parses the socket's path from `unix:///run/containerd/containerd.sock`, or from a bare path.
pub fn socket(endpoint: &str) -> Result<PathBuf, String> {
    let path = endpoint.strip_prefix("unix://").unwrap_or(endpoint);
    if Path::new(path).is_absolute() {
        return Ok(PathBuf::from(path));
    }
    Err(format!("protocol of endpoint {endpoint:?} not supported: it is to be unix:///path"))
}

impl Client {
    pub fn new(socket: PathBuf) -> Self {
        Self { socket, state: Mutex::default() }
    }

    /// Returns the current connection, or a new one unless the last attempt failed a moment ago.
    async fn connection(&self) -> Result<Connection, CallError> {
        let mut state = self.state.lock().await;
        if let Some(connection) = state.connection.as_ref().filter(|c| !c.is_closed()) {
            return Ok(connection.clone());
        }
        state.connection = None;
        if let Some((error, until)) = &state.refused
            && Instant::now() < *until
        {
            return Err(error.clone());
        }
        match Connection::unix(&self.socket).await {
            Ok(connection) => {
                *state = State { connection: Some(connection.clone()), ..State::default() };
                Ok(connection)
            }
            Err(error) => {
                let wait = FIRST_BACK_OFF.saturating_mul(1 << state.failures.min(8)).min(LONGEST_BACK_OFF);
                state.failures = state.failures.saturating_add(1);
                state.refused = Some((error.clone(), Instant::now() + wait));
                Err(error)
            }
        }
    }

    /// Makes one call; it fails after `limit`.
    pub async fn call_within<A: Message + Default>(
        &self,
        path: &'static str,
        request: &impl Message,
        limit: Option<Duration>,
    ) -> Result<A, CallError> {
        let call = async {
            let connection = self.connection().await?;
            match connection.unary(path, request).await {
                // The connection had ended before the call was sent, so the call has had no effect and is sent
                // again.
                Err(CallError::NotSent(_)) => self.connection().await?.unary(path, request).await,
                other => other,
            }
        };
        match limit {
            Some(limit) => tokio::time::timeout(limit, call).await.unwrap_or(Err(CallError::Timeout)),
            None => call.await,
        }
    }

    /// Makes one call with the usual time limit.
    pub async fn call<A: Message + Default>(
        &self,
        path: &'static str,
        request: &impl Message,
    ) -> Result<A, CallError> {
        self.call_within(path, request, Some(TIMEOUT)).await
    }

    /// Sends one request; the answers arrive without a time limit.
    pub async fn stream(&self, path: &'static str, request: &impl Message) -> Result<Answers, CallError> {
        self.connection().await?.server_stream(path, request).await
    }
}

/// Converts the error for the kubelet; its text appears in events.
pub fn error(error: CallError) -> RuntimeError {
    match error.code() {
        Code::NOT_FOUND => RuntimeError::NotFound(error.to_string()),
        _ => RuntimeError::Failed(error.to_string()),
    }
}

/// Treats `NotFound` as success: a missing object needs no stop and no removal.
pub fn fine_if_missing<T>(result: Result<T, CallError>) -> Result<(), RuntimeError> {
    match result {
        Ok(_) => Ok(()),
        Err(e) if e.code() == Code::NOT_FOUND => Ok(()),
        Err(e) => Err(error(e)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn endpoints() {
        for (text, path) in [
            ("unix:///run/containerd/containerd.sock", Some("/run/containerd/containerd.sock")),
            ("/run/crio/crio.sock", Some("/run/crio/crio.sock")),
            ("tcp://127.0.0.1:1", None),
            ("unix://relative", None),
            ("", None),
        ] {
            assert_eq!(socket(text).ok().as_deref(), path.map(Path::new), "{text}");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_refused_connection_is_not_tried_again_at_once() {
        let path = std::env::temp_dir().join(format!("knarr-cri-client-{}.sock", std::process::id()));
        let client = Client::new(path.clone());
        let first = client.connection().await.err().map(|e| e.to_string()).unwrap_or_default();
        assert!(first.contains("no such file or directory"), "{first}");
        let _listener = tokio::net::UnixListener::bind(&path).unwrap();
        assert_eq!(client.connection().await.err().map(|e| e.to_string()), Some(first));
        tokio::time::advance(FIRST_BACK_OFF).await;
        assert!(client.connection().await.is_ok());
        std::fs::remove_file(path).unwrap();
    }
}
