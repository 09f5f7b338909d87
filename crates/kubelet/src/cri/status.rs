//! Converts CRI's types to the kubelet's: statuses of sandboxes and containers, and images.

use std::net::IpAddr;
use std::path::PathBuf;

use jiff::Timestamp;

use super::messages as cri;
use crate::runtime::{
    ContainerState, ContainerStatus, Image, ImageUser, PodSandboxStatus, RuntimeError, SandboxState,
};

/// Converts nanoseconds since 1970; `None` for 0, which means never.
pub fn time(nanos: i64) -> Option<Timestamp> {
    if nanos <= 0 { None } else { Timestamp::from_nanosecond(i128::from(nanos)).ok() }
}

fn incomplete(what: &str) -> RuntimeError {
    RuntimeError::Failed(format!("the runtime's answer is incomplete: {what} is not set"))
}

fn created(nanos: i64) -> Result<Timestamp, RuntimeError> {
    time(nanos).ok_or_else(|| incomplete("status.CreatedAt"))
}

pub fn sandbox_state(state: i32) -> SandboxState {
    match cri::PodSandboxState::try_from(state) {
        Ok(cri::PodSandboxState::Ready) => SandboxState::Ready,
        _ => SandboxState::NotReady,
    }
}

/// A container whose state is unknown counts as exited: it is removed and started anew.
pub fn container_state(state: i32) -> ContainerState {
    match cri::ContainerState::try_from(state) {
        Ok(cri::ContainerState::Created) => ContainerState::Created,
        Ok(cri::ContainerState::Running) => ContainerState::Running,
        _ => ContainerState::Exited,
    }
}

/// Converts an item of a list. Items contain neither addresses nor namespace options: the result has no IPs, and
/// its `host_network` is always false.
pub fn listed_sandbox(item: cri::PodSandbox) -> Result<PodSandboxStatus, RuntimeError> {
    sandbox(cri::PodSandboxStatus {
        id: item.id,
        metadata: item.metadata,
        state: item.state,
        created_at: item.created_at,
        labels: item.labels,
        annotations: item.annotations,
        ..cri::PodSandboxStatus::default()
    })
}

pub fn sandbox(status: cri::PodSandboxStatus) -> Result<PodSandboxStatus, RuntimeError> {
    let metadata = status.metadata.ok_or_else(|| incomplete("status.Metadata"))?;
    let modes = status.linux.and_then(|linux| linux.namespaces?.options).unwrap_or_default();
    let host_network = modes.network == i32::from(cri::NamespaceMode::Node);
    let network = status.network.filter(|_| !host_network).unwrap_or_default();
    let additional = network.additional_ips.into_iter().map(|ip| ip.ip);
    let ips = std::iter::once(network.ip).chain(additional).filter_map(|ip| ip.parse::<IpAddr>().ok());
    Ok(PodSandboxStatus {
        id: status.id,
        namespace: metadata.namespace,
        name: metadata.name,
        uid: metadata.uid,
        attempt: metadata.attempt,
        state: sandbox_state(status.state),
        created_at: created(status.created_at)?,
        ips: ips.collect(),
        labels: status.labels,
        annotations: status.annotations,
        host_network,
        runtime_handler: status.runtime_handler,
    })
}

fn user(user: cri::LinuxContainerUser) -> Option<(u32, u32, Vec<u32>)> {
    let id = |n: i64| u32::try_from(n).ok();
    let groups = user.supplemental_groups.into_iter().filter_map(id).collect();
    Some((id(user.uid)?, id(user.gid)?, groups))
}

/// Converts a status; `sandbox_id` comes from the list, as the status does not contain it.
pub fn container(status: cri::ContainerStatus, sandbox_id: String) -> Result<ContainerStatus, RuntimeError> {
    let metadata = status.metadata.ok_or_else(|| incomplete("status.Metadata"))?;
    let unknown = status.state == i32::from(cri::ContainerState::Unknown);
    let state = container_state(status.state);
    let ended = state == ContainerState::Exited;
    let (exit_code, reason) = match unknown {
        true => (137, "ContainerStatusUnknown".to_owned()),
        false => (status.exit_code, status.reason),
    };
    Ok(ContainerStatus {
        sandbox_id,
        name: metadata.name,
        attempt: metadata.attempt,
        state,
        created_at: created(status.created_at)?,
        started_at: time(status.started_at),
        finished_at: time(status.finished_at),
        exit_code: ended.then_some(exit_code),
        signal: None,
        reason,
        message: status.message,
        image: status.image.map(|image| image.image).unwrap_or_default(),
        image_id: status.image_ref,
        labels: status.labels,
        annotations: status.annotations,
        log_path: PathBuf::from(status.log_path),
        user: status.user.and_then(|u| u.linux).and_then(user),
        id: status.id,
    })
}

/// Converts an item of a list, which has neither times nor exit codes.
pub fn listed_container(item: cri::Container, log_path: PathBuf) -> Result<ContainerStatus, RuntimeError> {
    let status = cri::ContainerStatus {
        id: item.id,
        metadata: item.metadata,
        state: item.state,
        created_at: item.created_at,
        image: item.image,
        image_ref: item.image_ref,
        labels: item.labels,
        annotations: item.annotations,
        ..cri::ContainerStatus::default()
    };
    container(status, item.pod_sandbox_id).map(|found| ContainerStatus { log_path, ..found })
}

pub fn image(image: cri::Image) -> Image {
    let user = match (image.uid, image.username) {
        (Some(uid), _) => Some(ImageUser::Uid(uid.value)),
        (None, name) if !name.is_empty() => Some(ImageUser::Name(name)),
        _ => None,
    };
    Image {
        id: image.id,
        repo_tags: image.repo_tags,
        repo_digests: image.repo_digests,
        size: image.size,
        user,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn metadata() -> Option<cri::PodSandboxMetadata> {
        Some(cri::PodSandboxMetadata { name: "p".into(), uid: "u".into(), namespace: "n".into(), attempt: 1 })
    }

    #[test]
    fn addresses_are_the_pods_own() {
        let network = cri::PodSandboxNetworkStatus {
            ip: "10.0.0.5".into(),
            additional_ips: vec![cri::PodIp { ip: "fd00::5".into() }, cri::PodIp { ip: "nonsense".into() }],
        };
        let status = cri::PodSandboxStatus {
            metadata: metadata(),
            created_at: 1_000_000_000,
            network: Some(network),
            ..Default::default()
        };
        let found = sandbox(status.clone()).unwrap();
        assert_eq!(found.ips, ["10.0.0.5".parse::<IpAddr>().unwrap(), "fd00::5".parse().unwrap()]);
        assert_eq!((found.uid.as_str(), found.attempt, found.state), ("u", 1, SandboxState::Ready));
        let options = cri::NamespaceOption { network: 2, ..Default::default() };
        let linux =
            cri::LinuxPodSandboxStatus { namespaces: Some(cri::Namespace { options: Some(options) }) };
        let found = sandbox(cri::PodSandboxStatus { linux: Some(linux), ..status.clone() }).unwrap();
        assert!(found.host_network && found.ips.is_empty());
        assert!(sandbox(cri::PodSandboxStatus { metadata: None, ..status }).is_err());
    }

    #[test]
    fn states_of_containers() {
        let status = |state: i32| cri::ContainerStatus {
            metadata: Some(cri::ContainerMetadata { name: "c".into(), attempt: 2 }),
            state,
            created_at: 1,
            exit_code: 3,
            reason: "Error".into(),
            ..Default::default()
        };
        for (number, state, code, reason) in [
            (0, ContainerState::Created, None, "Error"),
            (1, ContainerState::Running, None, "Error"),
            (2, ContainerState::Exited, Some(3), "Error"),
            (3, ContainerState::Exited, Some(137), "ContainerStatusUnknown"),
        ] {
            let found = container(status(number), "s".into()).unwrap();
            assert_eq!((found.state, found.exit_code, found.reason.as_str()), (state, code, reason));
            assert_eq!((found.attempt, found.finished_at), (2, None));
        }
    }

    #[test]
    fn whom_an_image_runs_as() {
        let uid = Some(cri::Int64Value { value: 5 });
        for (uid, username, expected) in [
            (uid, "", Some(ImageUser::Uid(5))),
            (None, "web", Some(ImageUser::Name("web".into()))),
            (None, "", None),
        ] {
            let found = image(cri::Image { uid, username: username.into(), ..Default::default() });
            assert_eq!(found.user, expected);
        }
    }
}
