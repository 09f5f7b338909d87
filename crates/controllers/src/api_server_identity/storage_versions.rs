//! StorageVersions: each API server records in which version it stores each resource (gate StorageVersionAPI).
//!
//! Source: KEP-2339, and the behaviour of `k8s.io/apiserver/pkg/storageversion`.

use k8s_openapi::api::apiserverinternal::v1alpha1::{
    ServerStorageVersion, StorageVersion, StorageVersionCondition, StorageVersionStatus,
};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, Time};
use knarr_client::{Client, Result};

/// How an API server stores one resource.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StoredAs {
    /// The object's name: the group (`core` for the empty one) and the plural, such as `apps.deployments`.
    pub name: String,
    /// The version in which objects are written, such as `apps/v1`.
    pub encoding_version: String,
    pub decodable_versions: Vec<String>,
    pub served_versions: Vec<String>,
}

/// Records how this server stores all these resources; returns whether every write succeeded.
pub async fn record(client: &Client, server: &str, stored: &[StoredAs]) -> bool {
    let mut all = true;
    for resource in stored {
        if let Err(error) = record_one(client, server, resource).await {
            tracing::warn!(%error, resource = resource.name, "the storage version could not be recorded");
            all = false;
        }
    }
    all
}

async fn record_one(client: &Client, server: &str, stored: &StoredAs) -> Result<()> {
    let new = ServerStorageVersion {
        api_server_id: server.to_owned(),
        encoding_version: stored.encoding_version.clone(),
        decodable_versions: stored.decodable_versions.clone(),
        served_versions: Some(stored.served_versions.clone()),
    };
    let mut object = match client.get::<StorageVersion>("", &stored.name).await {
        Err(error) if error.is_not_found() => {
            let metadata = ObjectMeta { name: Some(stored.name.clone()), ..ObjectMeta::default() };
            client.create(&StorageVersion { metadata, ..StorageVersion::default() }).await?
        }
        other => other?,
    };
    let before = object.clone();
    let mut servers = servers(&object).to_vec();
    match servers.iter_mut().find(|s| s.api_server_id == server) {
        Some(there) => *there = new,
        None => servers.push(new),
    }
    set_servers(&mut object, servers, Time(client.clock().now()));
    if object == before { Ok(()) } else { client.update_status(&object).await.map(drop) }
}

/// Returns the entries of all servers.
pub fn servers(object: &StorageVersion) -> &[ServerStorageVersion] {
    object.status.as_ref().and_then(|status| status.storage_versions.as_deref()).unwrap_or_default()
}

/// Sets the entries of the servers, and the condition that reports whether all of them use the same encoding version.
pub fn set_servers(object: &mut StorageVersion, servers: Vec<ServerStorageVersion>, now: Time) {
    let generation = object.metadata.generation;
    let status = object.status.get_or_insert_default();
    let common = servers.first().map(|first| first.encoding_version.clone());
    let common = common.filter(|common| servers.iter().all(|s| s.encoding_version == *common));
    let (value, reason, message) = match common {
        Some(_) => ("True", "CommonEncodingVersionSet", "Common encoding version set"),
        None => ("False", "CommonEncodingVersionUnset", "Common encoding version unset"),
    };
    let conditions = status.conditions.get_or_insert_default();
    let there = conditions.iter().position(|c| c.type_ == "AllEncodingVersionsEqual");
    let since = there.and_then(|at| conditions.get(at)).filter(|c| {
        // A change of the common version is a transition, too.
        let is_other = common.is_some() && common != status.common_encoding_version;
        c.status == value && !(is_other && status.common_encoding_version.is_some())
    });
    let condition = StorageVersionCondition {
        type_: "AllEncodingVersionsEqual".to_owned(),
        status: value.to_owned(),
        observed_generation: generation,
        last_transition_time: since.map_or(Some(now), |c| c.last_transition_time.clone()),
        reason: reason.to_owned(),
        message: message.to_owned(),
    };
    match there.and_then(|at| conditions.get_mut(at)) {
        Some(there) => *there = condition,
        None => conditions.push(condition),
    }
    let conditions = status.conditions.take();
    *status = StorageVersionStatus {
        common_encoding_version: common,
        conditions,
        storage_versions: Some(servers).filter(|servers| !servers.is_empty()),
    };
}
