//! Sandboxes: creation, stop, removal, lists, and the state of a whole pod in the runtime.

use std::collections::BTreeMap;

use knarr_grpc::Code;

use super::events::{Picture, Seen, State};
use super::messages as cri;
use super::{Cri, client, config, lock, status};
use crate::labels;
use crate::runtime::*;

const RUN: &str = "/runtime.v1.RuntimeService/RunPodSandbox";
const STOP: &str = "/runtime.v1.RuntimeService/StopPodSandbox";
const REMOVE: &str = "/runtime.v1.RuntimeService/RemovePodSandbox";
const STATUS: &str = "/runtime.v1.RuntimeService/PodSandboxStatus";
const LIST: &str = "/runtime.v1.RuntimeService/ListPodSandbox";

fn one(id: &str) -> cri::PodSandboxRequest {
    cri::PodSandboxRequest { pod_sandbox_id: id.to_owned() }
}

impl Cri {
    /// Returns the configuration for CRI, with the full path of the pod's cgroup.
    pub(super) fn sandbox_config(&self, config: &PodSandboxConfig) -> cri::PodSandboxConfig {
        config::sandbox(config, &format!("/{}", self.inner.cgroups.full_path(&config.cgroup_parent)))
    }

    pub(super) async fn run_sandbox(&self, config: &PodSandboxConfig) -> Result<String> {
        let request = cri::RunPodSandboxRequest {
            config: Some(self.sandbox_config(config)),
            runtime_handler: config.runtime_handler.clone(),
        };
        // Setting up the network may be slow: the limit is twice that of other calls.
        let made = self.inner.runtime.call_within(RUN, &request, Some(client::TIMEOUT * 2)).await;
        let made: cri::RunPodSandboxResponse = made.map_err(client::error)?;
        if made.pod_sandbox_id.is_empty() {
            let name = &config.name;
            return Err(RuntimeError::Failed(format!("PodSandboxId is not set for sandbox {name:?}")));
        }
        Ok(made.pod_sandbox_id)
    }

    pub(super) async fn stop_sandbox(&self, id: &str) -> Result<()> {
        client::fine_if_missing(self.inner.runtime.call::<cri::Done>(STOP, &one(id)).await)
    }

    pub(super) async fn remove_sandbox(&self, id: &str) -> Result<()> {
        // A runtime removes stopped sandboxes only.
        self.stop_sandbox(id).await?;
        client::fine_if_missing(self.inner.runtime.call::<cri::Done>(REMOVE, &one(id)).await)
    }

    /// Returns the sandboxes with all these labels, without addresses.
    pub(super) async fn sandboxes(
        &self,
        label_selector: BTreeMap<String, String>,
    ) -> Result<Vec<PodSandboxStatus>> {
        let filter = Some(cri::PodSandboxFilter { label_selector });
        let request = cri::ListPodSandboxRequest { filter };
        let answer: cri::ListPodSandboxResponse =
            self.inner.runtime.call(LIST, &request).await.map_err(client::error)?;
        answer.items.into_iter().map(status::listed_sandbox).collect()
    }

    /// Returns the status of a listed sandbox; `None` if it was removed since.
    async fn sandbox(&self, id: &str) -> Result<Option<PodSandboxStatus>> {
        let answer: Result<cri::PodSandboxStatusResponse, _> =
            self.inner.runtime.call(STATUS, &one(id)).await;
        match answer {
            Ok(answer) => {
                let missing = || RuntimeError::Failed("pod sandbox status is nil".to_owned());
                status::sandbox(answer.status.ok_or_else(missing)?).map(Some)
            }
            Err(error) if error.code() == Code::NOT_FOUND => Ok(None),
            Err(error) => Err(client::error(error)),
        }
    }

    pub(super) async fn status_of_pod(&self, uid: &str) -> Result<PodRuntimeStatus> {
        let selector = BTreeMap::from([(labels::POD_UID.to_owned(), uid.to_owned())]);
        let mut found = PodRuntimeStatus::default();
        for listed in self.sandboxes(selector.clone()).await? {
            found.sandboxes.extend(self.sandbox(&listed.id).await?);
        }
        for listed in self.listed_containers(selector).await? {
            found.containers.extend(self.container_of(&listed.id, listed.pod_sandbox_id).await?);
        }
        found.sandboxes.sort_by(|a, b| b.created_at.cmp(&a.created_at).then(b.attempt.cmp(&a.attempt)));
        found.containers.sort_by(|a, b| b.created_at.cmp(&a.created_at).then(b.attempt.cmp(&a.attempt)));
        Ok(found)
    }

    /// Returns the states of all sandboxes and containers, for the comparison with earlier ones.
    pub(super) async fn picture(&self) -> Result<Picture> {
        let mut picture = Picture::new();
        for sandbox in self.sandboxes(BTreeMap::new()).await? {
            let seen = Seen {
                pod_uid: sandbox.uid,
                sandbox_id: sandbox.id.clone(),
                state: State::Sandbox(sandbox.state),
            };
            picture.insert(sandbox.id, seen);
        }
        for container in self.listed_containers(BTreeMap::new()).await? {
            let seen = Seen {
                pod_uid: container.labels.get(labels::POD_UID).cloned().unwrap_or_default(),
                sandbox_id: container.pod_sandbox_id,
                state: State::Container(status::container_state(container.state)),
            };
            picture.insert(container.id, seen);
        }
        lock(&self.inner.logs).retain(|id, _| picture.contains_key(id));
        Ok(picture)
    }
}
