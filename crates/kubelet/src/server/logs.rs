//! /containerLogs: the output of a container.

use std::sync::Arc;

use http::StatusCode;
use knarr_api::kind::Kind;
use tokio::sync::{broadcast, mpsc};

use super::answer::{self, Answer};
use super::handler::Handler;
use super::log_options::{LogOptions, OptionsError};
use super::log_stream::{self, Running};
use super::route::Target;
use crate::pod;
use crate::pod_lookup::LookupError;
use crate::runtime::{ContainerRuntime, ContainerState, RuntimeEvent};

/// The number of log chunks that are queued for a slow client.
const QUEUE: usize = 4;

pub async fn container_logs(handler: &Handler, target: &Target, query: Option<&str>) -> Answer {
    let options = match LogOptions::parse(query.unwrap_or(""), handler.client.clock().now()) {
        Ok(options) => options,
        Err(error) => {
            let status = match error {
                OptionsError::Invalid => StatusCode::UNPROCESSABLE_ENTITY,
                _ => StatusCode::BAD_REQUEST,
            };
            return answer::text(status, error.to_string());
        }
    };
    let name = &target.container;
    let Some(pod) = handler.pod(target) else {
        return answer::text(StatusCode::NOT_FOUND, format!("pod {:?} does not exist", target.pod));
    };
    if pod::find_container(&pod, name).is_none() {
        return answer::text(
            StatusCode::NOT_FOUND,
            format!("container {name:?} not found in pod {:?}", pod.name()),
        );
    }
    let container = match handler.pods.container(&pod, name, options.previous).await {
        Ok(container) => container,
        Err(error @ LookupError::PodNotFound(_)) => {
            return answer::text(StatusCode::NOT_FOUND, error.to_string());
        }
        Err(error) => return answer::text(StatusCode::BAD_REQUEST, error.to_string()),
    };
    let (chunks, body) = mpsc::channel(QUEUE);
    let alive = Alive {
        runtime: Arc::clone(&handler.runtime),
        events: handler.runtime.events(),
        id: container.container_id,
        running: container.running,
    };
    tokio::spawn(async move {
        let path = container.log_path;
        if let Err(error) = log_stream::send(&path, &options, alive, &chunks).await {
            tracing::debug!(%error, path = %path.display(), "cannot read the log");
            let text =
                format!("failed to try resolving symlinks in path {:?}: {error}", path.display().to_string());
            let _ = chunks.send(text.into()).await;
        }
    });
    answer::streamed(body)
}

/// Tracks whether one container runs, by the runtime's events.
struct Alive {
    runtime: Arc<dyn ContainerRuntime>,
    events: broadcast::Receiver<RuntimeEvent>,
    id: String,
    running: bool,
}

impl Running for Alive {
    async fn is_running(&mut self) -> bool {
        if self.running {
            let status = self.runtime.container_status(&self.id).await;
            self.running = status.is_ok_and(|s| s.state != ContainerState::Exited);
        }
        self.running
    }

    async fn stopped(&mut self) {
        loop {
            match self.events.recv().await {
                Ok(event) if event.container_id == self.id || event.container_id.is_empty() => return,
                Ok(_) => {}
                // A missed event may have been that of the container's end.
                Err(broadcast::error::RecvError::Lagged(_)) => return,
                Err(broadcast::error::RecvError::Closed) => std::future::pending().await,
            }
        }
    }
}
