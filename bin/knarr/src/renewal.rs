//! Renews the certificates of a server while it runs, and shows when they expire.

use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use anyhow::Result;
use jiff::Timestamp;
use knarr_apimachinery::clock::Clock;
use knarr_apiserver::ApiServer;
use knarr_client::events::{EventRecorder, EventType};
use knarr_kubelet::server::ServingCertificate;
use tokio_util::sync::CancellationToken;

use crate::certificates::folder_watch::{self, FolderWatch};
use crate::certificates::inventory::{self, Entry};
use crate::certificates::{expiry, issued};
use crate::control_plane::{self, Options};
use crate::kubeconfig;
use crate::layout::Layout;
use crate::node_reference::node_reference;
use crate::pki::Pki;

/// Certificates are renewed weeks before they expire, so one check a day is enough.
const CHECK_EVERY: Duration = Duration::from_secs(86_400);
const RETRY: Duration = Duration::from_secs(3600);
/// After a failure, changes of files are ignored for this long: this process may have caused them.
const CALM: Duration = Duration::from_secs(10);
const METRIC: &str = "knarr_certificate_expiration_timestamp_seconds";

/// The certificates of a server that are kept valid, and what depends on them.
pub struct Renewal {
    pub server: ApiServer,
    pub pki: Arc<Pki>,
    pub options: Options,
    pub layout: Layout,
    pub url: String,
    /// The serving certificate of this process's kubelet, if it has one.
    pub kubelet: Option<Arc<ServingCertificate>>,
    /// Certificate files that an external process renews.
    pub external: Vec<PathBuf>,
}

impl Renewal {
    /// Checks the certificates once a day, and when a file changes, until `stop`.
    pub async fn run(&self, clock: &Arc<dyn Clock>, stop: CancellationToken) {
        let known: Arc<Mutex<Vec<Entry>>> = Arc::default();
        self.server.show_metrics("certificates", {
            let known = Arc::clone(&known);
            move || metrics(&lock(&known))
        });
        let client = control_plane::own_client(&self.server, clock, &self.options.supervisor);
        let events = EventRecorder::new(client, "knarr", &self.options.node_name, stop.clone());
        let watch = FolderWatch::new(&self.folders()).inspect_err(|error| tracing::warn!("{error:#}")).ok();
        loop {
            let checked = self.step(clock.now());
            let failed = checked.is_err();
            match checked {
                Ok(now) => {
                    self.report(&events, &lock(&known), &now, clock.now());
                    *lock(&known) = now;
                }
                Err(error) => {
                    tracing::error!("certificates are not renewed: {error:#}");
                    let text = format!("Certificates are not renewed: {error:#}");
                    events.event_about(
                        node_reference(&self.options.node_name),
                        EventType::Warning,
                        "CertificateRenewalFailed",
                        text,
                    );
                }
            }
            if failed {
                tokio::select! {
                    () = stop.cancelled() => return,
                    () = clock.sleep(CALM) => {}
                }
            }
            tokio::select! {
                () = stop.cancelled() => return,
                () = clock.sleep(if failed { RETRY } else { CHECK_EVERY }) => {}
                () = folder_watch::changed(watch.as_ref(), clock) => {}
            }
        }
    }

    fn folders(&self) -> Vec<PathBuf> {
        let pki = self.layout.pki();
        ["", "front-proxy", "kubelet-serving", issued::FOLDER].map(|folder| pki.join(folder)).to_vec()
    }

    /// Emits events about certificates that were renewed since the last check, and about external ones that
    /// expire soon.
    fn report(&self, events: &EventRecorder, before: &[Entry], now: &[Entry], at: Timestamp) {
        for name in replaced(before, now) {
            tracing::info!(name, "certificate renewed");
            let text = format!("The certificate {name} was renewed");
            events.event_about(
                node_reference(&self.options.node_name),
                EventType::Normal,
                "CertificateRenewed",
                text,
            );
        }
        for text in expiry::warnings(now, at) {
            tracing::warn!("{text}");
            events.event_about(
                node_reference(&self.options.node_name),
                EventType::Warning,
                expiry::REASON,
                text,
            );
        }
    }

    /// Renews certificates that expire soon and takes over those that other processes renewed; returns all.
    fn step(&self, now: Timestamp) -> Result<Vec<Entry>> {
        let _lock = self.pki.lock()?;
        control_plane::renewed(&self.pki, &self.options)?;
        kubeconfig::write_admin(&self.layout, &self.pki, &self.url)?;
        if let Some(kubelet) = &self.kubelet {
            let serving = control_plane::node_serving(&self.pki, &self.options)?;
            kubelet.exchange(&serving.certificate, &serving.key)?;
        }
        issued::prune(&self.layout.pki(), now)?;
        let mut entries = inventory::read(&self.layout)?;
        entries.extend(inventory::external(&self.external));
        Ok(entries)
    }
}

fn lock(known: &Mutex<Vec<Entry>>) -> std::sync::MutexGuard<'_, Vec<Entry>> {
    known.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Returns the names of the certificates that have replaced others.
fn replaced<'a>(before: &[Entry], now: &'a [Entry]) -> Vec<&'a str> {
    let is_new = |entry: &&Entry| before.iter().any(|old| old.name == entry.name && !old.is_same(entry));
    now.iter().filter(is_new).map(|entry| entry.name.as_str()).collect()
}

fn metrics(known: &[Entry]) -> String {
    let mut text = format!("# HELP {METRIC} When a certificate expires.\n# TYPE {METRIC} gauge\n");
    for entry in known {
        if let Ok(facts) = &entry.facts {
            let (name, end) = (escaped(&entry.name), facts.expires.as_second());
            text.push_str(&format!("{METRIC}{{certificate=\"{name}\"}} {end}\n"));
        }
    }
    text
}

/// Escapes a label value for the text format of Prometheus.
fn escaped(value: &str) -> String {
    value.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n")
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicI64, Ordering};

    use knarr_apimachinery::clock::Sleep;
    use knarr_client::clock::SystemClock;

    use super::*;
    use crate::pki::{self, Subject};

    /// A clock that shows the present time plus some days.
    struct Later(AtomicI64);

    impl Clock for Later {
        fn now(&self) -> jiff::Timestamp {
            let days = self.0.load(Ordering::Relaxed);
            SystemClock.now() + Duration::from_secs(days.unsigned_abs() * 86_400)
        }
        fn monotonic(&self) -> Duration {
            SystemClock.monotonic()
        }
        fn sleep(&self, duration: Duration) -> Sleep {
            SystemClock.sleep(duration)
        }
    }

    #[test]
    fn certificates_are_renewed_before_their_end_without_a_restart() {
        let folder = std::env::temp_dir().join(format!("knarr-renewal-{}", std::process::id()));
        let clock = Arc::new(Later(AtomicI64::new(0)));
        let _ = std::fs::remove_dir_all(&folder);
        let pki = Pki::open_at(folder.join("pki"), Arc::clone(&clock) as _).unwrap();
        let subject = Subject {
            common_name: "x",
            organizations: &[],
            names: &["x".to_owned()],
            addresses: &[],
            server: true,
            client: false,
        };
        let layout = Layout::at(&folder);
        let mut known = Vec::new();
        let mut look = |days: i64| {
            clock.0.store(days, Ordering::Relaxed);
            let made = pki.credentials("apiserver", &subject).unwrap();
            let (certificate, key) = pki.files("apiserver");
            assert_eq!(pki::read(&certificate).unwrap(), made.certificate);
            assert_eq!(pki::read(&key).unwrap(), made.key);
            let before = std::mem::replace(&mut known, inventory::read(&layout).unwrap());
            let renewed: Vec<String> = replaced(&before, &known).into_iter().map(str::to_owned).collect();
            (renewed, metrics(&known))
        };
        let (renewed, first) = look(0);
        assert!(renewed.is_empty() && first.contains("{certificate=\"apiserver\"} 1"), "{first}");
        assert!(first.contains("{certificate=\"ca\"} 2"), "{first}");
        assert_eq!(look(330), (Vec::new(), first.clone()));
        let (renewed, second) = look(340);
        assert_eq!(renewed, ["apiserver"]);
        assert_ne!(first, second);
        assert!(look(600).0.is_empty());
        // A crash between the writes of key and certificate: both are issued again.
        let key = pki.files("apiserver").1;
        std::fs::write(&key, rcgen::KeyPair::generate().unwrap().serialize_pem()).unwrap();
        assert_eq!(look(600).0, ["apiserver"]);
        std::fs::remove_dir_all(&folder).unwrap();
    }

    #[test]
    fn labels_are_escaped() {
        assert_eq!(escaped("a\\b\"c\nd"), "a\\\\b\\\"c\\nd");
    }
}
