//! Calls to a service on a unix socket: one connection, made anew when it breaks, with a back-off.

use std::path::{Path, PathBuf};
use std::time::Duration;

use knarr_grpc::{Answers, CallError, Code, Connection};
use prost::Message;
use tokio::sync::Mutex;
use tokio::time::Instant;

use crate::runtime::RuntimeError;

/// Upstream's `runtimeRequestTimeout`.
pub const TIMEOUT: Duration = Duration::from_secs(120);
/// Between attempts to connect, as upstream's client waits.
const FIRST_BACK_OFF: Duration = Duration::from_millis(100);
const LONGEST_BACK_OFF: Duration = Duration::from_secs(3);

/// One service's socket.
pub struct Client {
    socket: PathBuf,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    connection: Option<Connection>,
    failures: u32,
    /// Why the last attempt failed, and when to try again.
    refused: Option<(CallError, Instant)>,
}

/// The socket of `unix:///run/containerd/containerd.sock`, or of a bare path.
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

    /// The connection there is, or a new one unless the last attempt failed a moment ago.
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

    /// One call, given up after `limit`.
    pub async fn call_within<A: Message + Default>(
        &self,
        path: &'static str,
        request: &impl Message,
        limit: Option<Duration>,
    ) -> Result<A, CallError> {
        let call = async {
            let connection = self.connection().await?;
            match connection.unary(path, request).await {
                // The connection had ended unseen; nothing can have happened.
                Err(CallError::NotSent(_)) => self.connection().await?.unary(path, request).await,
                other => other,
            }
        };
        match limit {
            Some(limit) => tokio::time::timeout(limit, call).await.unwrap_or(Err(CallError::Timeout)),
            None => call.await,
        }
    }

    /// One call within the usual time.
    pub async fn call<A: Message + Default>(
        &self,
        path: &'static str,
        request: &impl Message,
    ) -> Result<A, CallError> {
        self.call_within(path, request, Some(TIMEOUT)).await
    }

    /// One request; answers come for as long as the runtime likes, the first one when it likes.
    pub async fn stream(&self, path: &'static str, request: &impl Message) -> Result<Answers, CallError> {
        self.connection().await?.server_stream(path, request).await
    }
}

/// The error as the kubelet knows it; its text is what users read in events.
pub fn error(error: CallError) -> RuntimeError {
    match error.code() {
        Code::NOT_FOUND => RuntimeError::NotFound(error.to_string()),
        _ => RuntimeError::Failed(error.to_string()),
    }
}

/// What is gone needs no stopping and no removing.
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
