//! Records since when a server has served the authorities of a phase; the wait for the next phase starts
//! then.
//!
//! A phase is entered on disk. Clients see it only after a server was restarted, and after the new
//! authorities are published.

use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result};
use jiff::Timestamp;
use knarr_apimachinery::clock::Clock;
use knarr_client::Client;
use serde::{Deserialize, Serialize};
use tokio_util::sync::CancellationToken;

use super::plan::{Phase, Rotation};
use crate::certificates::published;
use crate::pki::{read, write_private};

/// A file beside the folder of the rotation, not in it: a server that gets a copy of that folder has
/// published nothing yet.
const FILE: &str = "rotation.served";
const LOOK_EVERY: Duration = Duration::from_secs(5);

#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Served {
    /// The phase, and when the rotation entered it.
    phase: Phase,
    since: Timestamp,
    /// When its authorities were published.
    at: Timestamp,
}

/// Returns since when the authorities of this phase are published; `None` if they are not. A record that
/// cannot be read is written again at the next start.
pub fn at(folder: &Path, rotation: &Rotation) -> Option<Timestamp> {
    let served: Served = serde_json::from_str(&read(&folder.join(FILE)).ok()?).ok()?;
    (served.phase == rotation.phase && served.since == rotation.since).then_some(served.at)
}

fn record(folder: &Path, rotation: &Rotation, now: Timestamp) -> Result<()> {
    if at(folder, rotation).is_some() {
        return Ok(());
    }
    let served = Served { phase: rotation.phase, since: rotation.since, at: now };
    write_private(&folder.join(FILE), &serde_json::to_vec_pretty(&served)?)
}

/// Removes the record, when a rotation is over.
pub fn forget(folder: &Path) -> Result<()> {
    let path = folder.join(FILE);
    match std::fs::remove_file(&path) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
            Err(error).with_context(|| format!("cannot remove {}", path.display()))
        }
        _ => Ok(()),
    }
}

/// Waits until the cluster publishes exactly the authorities that this server trusts (`ca`), then records it
/// for the phase in which the server has started.
pub async fn follow(
    client: &Client,
    ca: &str,
    folder: &Path,
    rotation: &Rotation,
    clock: &dyn Clock,
    stop: CancellationToken,
) {
    loop {
        let recorded = match published::bundles(client).await {
            Ok(bundles) if is_published(&bundles, ca) => record(folder, rotation, clock.now()).map(|()| true),
            Ok(_) => Ok(false),
            Err(error) => Err(error.into()),
        };
        match recorded {
            Ok(true) => return tracing::info!("the authorities of this phase of the rotation are published"),
            Ok(false) => {}
            Err(error) => tracing::warn!("whether the new authorities are published is not known: {error:#}"),
        }
        tokio::select! {
            () = stop.cancelled() => return,
            () = clock.sleep(LOOK_EVERY) => {}
        }
    }
}

fn is_published(bundles: &[String], ca: &str) -> bool {
    matches!(bundles, [bundle] if bundle.trim() == ca.trim())
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;
    use std::sync::Arc;

    use k8s_openapi::api::certificates::v1::{ClusterTrustBundle, ClusterTrustBundleSpec};
    use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
    use knarr_apiserver::{ApiServer, Config};
    use knarr_client::clock::SystemClock;
    use knarr_storage::{Embedded, Options};

    use super::*;
    use crate::control_plane;
    use crate::pki::Pki;

    fn folder(name: &str) -> PathBuf {
        let folder = std::env::temp_dir().join(format!("knarr-served-{name}-{}", std::process::id()));
        let _ = std::fs::remove_dir_all(&folder);
        std::fs::create_dir_all(&folder).unwrap();
        folder
    }

    fn rotation(phase: Phase, second: i64) -> Rotation {
        let since = Timestamp::from_second(second).unwrap();
        Rotation { phase, begun: since, since, names: vec!["ca".to_owned()] }
    }

    #[test]
    fn a_record_is_of_one_phase_and_keeps_its_time() {
        let folder = folder("record");
        let (first, next) = (rotation(Phase::Distribute, 1), rotation(Phase::Sign, 2));
        let times = [7, 8].map(|second| Timestamp::from_second(second).unwrap());
        assert_eq!(at(&folder, &first), None);
        times.iter().for_each(|time| record(&folder, &first, *time).unwrap());
        assert_eq!(
            (at(&folder, &first), at(&folder, &next)),
            (Some(times[0]), None),
            "a restart changes nothing"
        );
        assert_eq!(at(&folder, &rotation(Phase::Distribute, 3)), None, "of a later rotation");
        record(&folder, &next, times[1]).unwrap();
        assert_eq!((at(&folder, &first), at(&folder, &next)), (None, Some(times[1])));
        std::fs::write(folder.join(FILE), "damaged").unwrap();
        assert_eq!(at(&folder, &next), None);
        forget(&folder).unwrap();
        forget(&folder).unwrap();
        std::fs::remove_dir_all(&folder).unwrap();
    }

    /// The phase is not recorded while another server, or a separate controller manager, publishes the
    /// previous authorities.
    #[tokio::test]
    async fn a_phase_is_recorded_once_its_authorities_are_published() {
        let folder = folder("follow");
        let pki = |name: &str| Pki::open(folder.join(name)).unwrap().ca_pem().to_owned();
        let (old, both) = (pki("old"), format!("{}{}", pki("old"), pki("new")));
        let clock: Arc<dyn Clock> = Arc::new(SystemClock);
        let store = Arc::new(Embedded::memory(Options::default()));
        let mut config = Config::new(store, Arc::clone(&clock), knarr_api::resources::all().to_vec());
        config.advertise = "10.0.0.1:6443".parse().unwrap();
        let server = ApiServer::new(config).await.unwrap();
        let admin = control_plane::client(&server, &clock, "admin", &["system:masters"], "knarr");
        let publish = async |bundle: &str, name: &str| {
            let spec = ClusterTrustBundleSpec {
                signer_name: Some("kubernetes.io/kube-apiserver-serving".to_owned()),
                trust_bundle: bundle.to_owned(),
            };
            let name = Some(format!("kubernetes.io:kube-apiserver-serving:{name}"));
            let metadata = ObjectMeta { name, ..ObjectMeta::default() };
            admin.create(&ClusterTrustBundle { metadata, spec }).await.unwrap();
        };
        let rotation = rotation(Phase::Distribute, 1);
        let follow = || {
            let stop = CancellationToken::new();
            let followed = super::follow(&admin, &both, &folder, &rotation, &*clock, stop);
            tokio::time::timeout(LOOK_EVERY / 5, followed)
        };
        assert!(follow().await.is_err() && at(&folder, &rotation).is_none(), "no controller publishes");
        publish(&old, "a").await;
        assert!(follow().await.is_err() && at(&folder, &rotation).is_none(), "the old one alone");
        publish(&both, "b").await;
        assert!(follow().await.is_err() && at(&folder, &rotation).is_none(), "the old one beside them");
        let name = "kubernetes.io:kube-apiserver-serving:a";
        admin.delete::<ClusterTrustBundle>("", name, &Default::default()).await.unwrap();
        follow().await.unwrap();
        assert!(at(&folder, &rotation).is_some());
        server.stop();
        std::fs::remove_dir_all(&folder).unwrap();
    }
}
