//! Calls to a driver's node service, each on its own connection, as in upstream.

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use knarr_apimachinery::clock::Clock;
use knarr_grpc::{CallError, Code, Connection};

use super::messages::{
    self as m, Empty, NodeExpandVolumeRequest, NodeExpandVolumeResponse, NodeGetCapabilitiesResponse,
    NodeGetInfoResponse, NodeGetVolumeStatsRequest, NodeGetVolumeStatsResponse, NodePublishVolumeRequest,
    NodeStageVolumeRequest, NodeUnpublishVolumeRequest, NodeUnstageVolumeRequest, access_mode, capability,
};

/// The time limit of one call.
const TIMEOUT: Duration = Duration::from_secs(120);

/// Returns whether the driver has certainly stopped working on the failed call.
pub fn is_final(error: &CallError) -> bool {
    !matches!(
        error.code(),
        Code::CANCELED
            | Code::DEADLINE_EXCEEDED
            | Code::RESOURCE_EXHAUSTED
            | Code::ABORTED
            | Code::UNAVAILABLE
    )
}

/// The capabilities of a driver's node service.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Capabilities(BTreeSet<i32>);

impl Capabilities {
    pub fn stage_unstage(&self) -> bool {
        self.0.contains(&capability::STAGE_UNSTAGE_VOLUME)
    }

    pub fn volume_stats(&self) -> bool {
        self.0.contains(&capability::GET_VOLUME_STATS)
    }

    pub fn expand(&self) -> bool {
        self.0.contains(&capability::EXPAND_VOLUME)
    }

    pub fn mount_group(&self) -> bool {
        self.0.contains(&capability::VOLUME_MOUNT_GROUP)
    }

    /// Returns CSI's access mode for one of Kubernetes.
    pub fn access_mode(&self, mode: &str) -> i32 {
        let fine = self.0.contains(&capability::SINGLE_NODE_MULTI_WRITER);
        match mode {
            "ReadWriteOnce" if fine => access_mode::SINGLE_NODE_MULTI_WRITER,
            "ReadWriteOncePod" if fine => access_mode::SINGLE_NODE_SINGLE_WRITER,
            "ReadWriteOnce" | "ReadWriteOncePod" => access_mode::SINGLE_NODE_WRITER,
            "ReadOnlyMany" => access_mode::MULTI_NODE_READER_ONLY,
            "ReadWriteMany" => access_mode::MULTI_NODE_MULTI_WRITER,
            _ => access_mode::UNKNOWN,
        }
    }
}

/// The client of a driver's node service.
#[derive(Clone)]
pub struct DriverClient {
    endpoint: PathBuf,
    clock: Arc<dyn Clock>,
}

type Result<T> = std::result::Result<T, CallError>;

impl DriverClient {
    pub fn new(endpoint: PathBuf, clock: Arc<dyn Clock>) -> Self {
        Self { endpoint, clock }
    }

    async fn call<A: prost::Message + Default>(
        &self,
        path: &'static str,
        request: &impl prost::Message,
    ) -> Result<A> {
        let call = async {
            let connection = Connection::unix(&self.endpoint).await?;
            connection.unary(path, request).await
        };
        tokio::select! {
            answer = call => answer,
            () = self.clock.sleep(TIMEOUT) => Err(CallError::Timeout),
        }
    }

    pub async fn info(&self) -> Result<NodeGetInfoResponse> {
        self.call(m::NODE_GET_INFO, &Empty {}).await
    }

    pub async fn capabilities(&self) -> Result<Capabilities> {
        let answer: NodeGetCapabilitiesResponse = self.call(m::NODE_GET_CAPABILITIES, &Empty {}).await?;
        Ok(Capabilities(answer.capabilities.into_iter().filter_map(|c| c.rpc).map(|r| r.kind).collect()))
    }

    pub async fn stage(&self, request: &NodeStageVolumeRequest) -> Result<()> {
        self.call::<Empty>(m::NODE_STAGE_VOLUME, request).await.map(drop)
    }

    pub async fn unstage(&self, volume_id: &str, staging_target_path: &str) -> Result<()> {
        let request = NodeUnstageVolumeRequest {
            volume_id: volume_id.to_owned(),
            staging_target_path: staging_target_path.to_owned(),
        };
        self.call::<Empty>(m::NODE_UNSTAGE_VOLUME, &request).await.map(drop)
    }

    pub async fn publish(&self, request: &NodePublishVolumeRequest) -> Result<()> {
        self.call::<Empty>(m::NODE_PUBLISH_VOLUME, request).await.map(drop)
    }

    pub async fn unpublish(&self, volume_id: &str, target_path: &str) -> Result<()> {
        let request = NodeUnpublishVolumeRequest {
            volume_id: volume_id.to_owned(),
            target_path: target_path.to_owned(),
        };
        self.call::<Empty>(m::NODE_UNPUBLISH_VOLUME, &request).await.map(drop)
    }

    /// Expands the volume; returns its size in bytes, 0 if the driver does not report it.
    pub async fn expand(&self, request: &NodeExpandVolumeRequest) -> Result<i64> {
        let answer: NodeExpandVolumeResponse = self.call(m::NODE_EXPAND_VOLUME, request).await?;
        Ok(answer.capacity_bytes)
    }

    pub async fn stats(&self, request: &NodeGetVolumeStatsRequest) -> Result<NodeGetVolumeStatsResponse> {
        self.call(m::NODE_GET_VOLUME_STATS, request).await
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn access_modes_follow_what_the_driver_can() {
        let plain = Capabilities::default();
        let fine = Capabilities([capability::SINGLE_NODE_MULTI_WRITER].into());
        let table = [
            ("ReadWriteOnce", 1, 7),
            ("ReadWriteOncePod", 1, 6),
            ("ReadOnlyMany", 3, 3),
            ("ReadWriteMany", 5, 5),
            ("", 0, 0),
        ];
        for (mode, simple, exact) in table {
            assert_eq!((plain.access_mode(mode), fine.access_mode(mode)), (simple, exact), "{mode}");
        }
    }

    #[test]
    fn some_failures_may_go_on() {
        let error = |code: u32| CallError::Status { code: Code(code), message: String::new() };
        let lasting: Vec<u32> = (1..=16).filter(|code| is_final(&error(*code))).collect();
        assert_eq!(lasting, [2, 3, 5, 6, 7, 9, 11, 12, 13, 15, 16]);
        assert!(!is_final(&CallError::Timeout));
    }
}
