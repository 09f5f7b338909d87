//! Containers: creation, start, stop, removal, lists, and commands in them.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Duration;

use knarr_grpc::Code;

use super::messages as cri;
use super::{Cri, client, config, lock, status, streaming};
use crate::runtime::*;

const CREATE: &str = "/runtime.v1.RuntimeService/CreateContainer";
const START: &str = "/runtime.v1.RuntimeService/StartContainer";
const STOP: &str = "/runtime.v1.RuntimeService/StopContainer";
const REMOVE: &str = "/runtime.v1.RuntimeService/RemoveContainer";
const LIST: &str = "/runtime.v1.RuntimeService/ListContainers";
const STATUS: &str = "/runtime.v1.RuntimeService/ContainerStatus";
const UPDATE: &str = "/runtime.v1.RuntimeService/UpdateContainerResources";
const REOPEN_LOG: &str = "/runtime.v1.RuntimeService/ReopenContainerLog";
const EXEC_SYNC: &str = "/runtime.v1.RuntimeService/ExecSync";
const EXEC: &str = "/runtime.v1.RuntimeService/Exec";
const ATTACH: &str = "/runtime.v1.RuntimeService/Attach";
const PORT_FORWARD: &str = "/runtime.v1.RuntimeService/PortForward";

fn one(id: &str) -> cri::ContainerRequest {
    cri::ContainerRequest { container_id: id.to_owned() }
}

/// Returns the address of a streaming server.
fn address(answer: Result<cri::StreamingResponse, knarr_grpc::CallError>) -> Result<String> {
    let url = answer.map_err(client::error)?.url;
    if url.is_empty() { Err(RuntimeError::Failed("URL is not set".to_owned())) } else { Ok(url) }
}

fn folder_error(path: &std::path::Path, error: &std::io::Error) -> RuntimeError {
    RuntimeError::Failed(format!(
        "create container log directory for container {} failed: {error}",
        path.display()
    ))
}

impl Cri {
    pub(super) async fn make_container(
        &self,
        sandbox_id: &str,
        container: &ContainerConfig,
        sandbox: &PodSandboxConfig,
    ) -> Result<String> {
        let user = match container.user.uid {
            Some(_) => None,
            // An image without a user runs as root; the runtime needs an explicit user if the pod sets a group.
            None => {
                let image = self.find_image(&container.image).await?;
                Some(image.and_then(|image| image.user).unwrap_or(ImageUser::Uid(0)))
            }
        };
        if let Some(folder) = container.log_path.parent() {
            let made = tokio::fs::create_dir_all(folder).await;
            made.map_err(|error| folder_error(folder, &error))?;
        }
        let request = cri::CreateContainerRequest {
            pod_sandbox_id: sandbox_id.to_owned(),
            config: Some(config::container(container, sandbox, user.as_ref())),
            sandbox_config: Some(self.sandbox_config(sandbox)),
        };
        let made: cri::CreateContainerResponse =
            self.inner.runtime.call(CREATE, &request).await.map_err(client::error)?;
        if made.container_id.is_empty() {
            let name = &container.name;
            return Err(RuntimeError::Failed(format!("ContainerId is not set for container {name:?}")));
        }
        Ok(made.container_id)
    }

    pub(super) async fn start(&self, id: &str) -> Result<()> {
        let done = self.inner.runtime.call::<cri::Done>(START, &one(id)).await;
        done.map(drop).map_err(client::error)
    }

    pub(super) async fn stop(&self, id: &str, grace_seconds: u64) -> Result<()> {
        let timeout = i64::try_from(grace_seconds).unwrap_or(i64::MAX);
        let request = cri::StopContainerRequest { container_id: id.to_owned(), timeout };
        let limit = client::TIMEOUT.saturating_add(Duration::from_secs(grace_seconds));
        let runtime = &self.inner.runtime;
        client::fine_if_missing(runtime.call_within::<cri::Done>(STOP, &request, Some(limit)).await)
    }

    pub(super) async fn drop_container(&self, id: &str) -> Result<()> {
        client::fine_if_missing(self.inner.runtime.call::<cri::Done>(REMOVE, &one(id)).await)
    }

    pub(super) async fn listed_containers(
        &self,
        label_selector: BTreeMap<String, String>,
    ) -> Result<Vec<cri::Container>> {
        let filter = Some(cri::ContainerFilter { label_selector });
        let request = cri::ListContainersRequest { filter };
        let answer: cri::ListContainersResponse =
            self.inner.runtime.call(LIST, &request).await.map_err(client::error)?;
        Ok(answer.containers)
    }

    /// Returns the status of a listed container; `None` if it was removed since.
    pub(super) async fn container_of(&self, id: &str, sandbox_id: String) -> Result<Option<ContainerStatus>> {
        let answer: Result<cri::ContainerStatusResponse, _> = self.inner.runtime.call(STATUS, &one(id)).await;
        match answer {
            Ok(answer) => {
                let missing = || RuntimeError::Failed("container status is nil".to_owned());
                let found = status::container(answer.status.ok_or_else(missing)?, sandbox_id)?;
                lock(&self.inner.logs).insert(found.id.clone(), found.log_path.clone());
                Ok(Some(found))
            }
            Err(error) if error.code() == Code::NOT_FOUND => Ok(None),
            Err(error) => Err(client::error(error)),
        }
    }

    pub(super) async fn status_with_sandbox(&self, id: &str) -> Result<ContainerStatus> {
        let listed = self.listed_containers(BTreeMap::new()).await?;
        let listed = listed.into_iter().find(|container| container.id == id);
        let found = match listed {
            Some(listed) => self.container_of(id, listed.pod_sandbox_id).await?,
            None => None,
        };
        found.ok_or_else(|| RuntimeError::NotFound(format!("container {id:?} not found")))
    }

    /// Returns all containers, with their log paths; times and exit codes are not set.
    pub(super) async fn containers(&self) -> Result<Vec<ContainerStatus>> {
        let mut all = Vec::new();
        for listed in self.listed_containers(BTreeMap::new()).await? {
            let known: Option<PathBuf> = lock(&self.inner.logs).get(&listed.id).cloned();
            match known {
                Some(log_path) => all.push(status::listed_container(listed, log_path)?),
                None => all.extend(self.container_of(&listed.id, listed.pod_sandbox_id).await?),
            }
        }
        Ok(all)
    }

    pub(super) async fn update_resources(&self, id: &str, resources: &Resources) -> Result<()> {
        let linux = Some(config::resources(resources, None));
        let request = cri::UpdateContainerResourcesRequest { container_id: id.to_owned(), linux };
        let done = self.inner.runtime.call::<cri::Done>(UPDATE, &request).await;
        done.map(drop).map_err(client::error)
    }

    /// Returns the limits in force. Source: `toKubeContainerResources` of
    /// `k8s.io/kubernetes/pkg/kubelet/kuberuntime`: 0 means no limit.
    pub(super) async fn limits_of(&self, id: &str) -> Result<Resources> {
        let answer: cri::ContainerStatusResponse =
            self.inner.runtime.call(STATUS, &one(id)).await.map_err(client::error)?;
        let reported = answer.status.and_then(|status| status.resources?.linux);
        let limit = |value: i64| if value > 0 { value } else { -1 };
        Ok(Resources {
            cpu_quota: reported.as_ref().map(|linux| limit(linux.cpu_quota)),
            memory_limit: reported.as_ref().map(|linux| limit(linux.memory_limit_in_bytes)),
            ..Resources::default()
        })
    }

    pub(super) async fn reopen_log(&self, id: &str) -> Result<()> {
        let done = self.inner.runtime.call::<cri::Done>(REOPEN_LOG, &one(id)).await;
        done.map(drop).map_err(client::error)
    }

    pub(super) async fn run_command(&self, id: &str, command: &[String], seconds: u64) -> Result<ExecOutput> {
        let request = cri::ExecSyncRequest {
            container_id: id.to_owned(),
            cmd: command.to_vec(),
            timeout: i64::try_from(seconds).unwrap_or(0),
        };
        let limit = (seconds > 0).then(|| client::TIMEOUT.saturating_add(Duration::from_secs(seconds)));
        let ended = self.inner.runtime.call_within(EXEC_SYNC, &request, limit).await;
        let mut output: cri::ExecSyncResponse = ended.map_err(|error| match error.code() {
            Code::DEADLINE_EXCEEDED => RuntimeError::ExecTimeout { command: command.join(" "), seconds },
            _ => client::error(error),
        })?;
        output.stdout.truncate(MAX_EXEC_OUTPUT);
        output.stderr.truncate(MAX_EXEC_OUTPUT);
        Ok(ExecOutput { exit_code: output.exit_code, stdout: output.stdout, stderr: output.stderr })
    }

    pub(super) async fn open_exec(&self, id: &str, request: &ExecRequest) -> Result<Session> {
        let ExecRequest { stdin, stdout, tty, size, .. } = *request;
        // A terminal has no separate error output.
        let stderr = request.stderr && !tty;
        let container_id = id.to_owned();
        let asked =
            cri::ExecRequest { container_id, cmd: request.command.clone(), tty, stdin, stdout, stderr };
        let url = address(self.inner.runtime.call(EXEC, &asked).await)?;
        streaming::session(&url, streaming::Wanted { stdin, stdout, stderr, tty, size }).await
    }

    pub(super) async fn open_attach(&self, id: &str, request: &AttachRequest) -> Result<Session> {
        let AttachRequest { stdin, stdout, tty, .. } = *request;
        let stderr = request.stderr && !tty;
        let asked = cri::AttachRequest { container_id: id.to_owned(), stdin, tty, stdout, stderr };
        let url = address(self.inner.runtime.call(ATTACH, &asked).await)?;
        streaming::session(&url, streaming::Wanted { stdin, stdout, stderr, tty, size: None }).await
    }

    pub(super) async fn open_port(&self, sandbox_id: &str, port: u16) -> Result<Box<dyn Connection>> {
        let request =
            cri::PortForwardRequest { pod_sandbox_id: sandbox_id.to_owned(), port: vec![i32::from(port)] };
        let url = address(self.inner.runtime.call(PORT_FORWARD, &request).await)?;
        streaming::forward(&url, port).await
    }
}
