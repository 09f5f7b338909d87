//! Keeps the certificates of a server from ending while it runs, and shows when they end.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use anyhow::Result;
use k8s_openapi::api::core::v1::ObjectReference;
use knarr_apimachinery::clock::Clock;
use knarr_apiserver::ApiServer;
use knarr_client::events::{EventRecorder, EventType};
use knarr_kubelet::server::ServingCertificate;
use tokio_util::sync::CancellationToken;

use crate::control_plane::{self, Options};
use crate::layout::Layout;
use crate::pki::{self, Credentials, Pki};
use crate::{kubeconfig, server};

/// Certificates are renewed weeks before their end: a look a day is plenty.
const LOOK_EVERY: Duration = Duration::from_secs(86_400);
const RETRY: Duration = Duration::from_secs(3600);
const METRIC: &str = "knarr_certificate_expiration_timestamp_seconds";

/// Certificates by name, as they were at the last look.
type Known = BTreeMap<&'static str, String>;

/// What is kept up.
pub struct Renewal {
    server: ApiServer,
    pki: Arc<Pki>,
    options: Options,
    layout: Layout,
    url: String,
    /// What the kubelet of this process shows, if there is one.
    pub kubelet: Option<Arc<ServingCertificate>>,
    known: Arc<Mutex<Known>>,
}

impl Renewal {
    pub fn new(server: &ApiServer, pki: &Arc<Pki>, options: &Options, layout: &Layout, url: &str) -> Self {
        Self {
            server: server.clone(),
            pki: Arc::clone(pki),
            options: options.clone(),
            layout: layout.clone(),
            url: url.to_owned(),
            kubelet: None,
            known: Arc::default(),
        }
    }

    /// Looks once a day until `stop`.
    pub async fn run(self, clock: Arc<dyn Clock>, stop: CancellationToken) {
        let known = Arc::clone(&self.known);
        self.server.show_metrics("certificates", move || metrics(&lock(&known)));
        let client = control_plane::own_client(&self.server, &clock);
        let events = EventRecorder::new(client, "knarr", &self.options.node_name, stop.clone());
        loop {
            let wait = match self.step() {
                Ok(renewed) => {
                    for name in renewed {
                        tracing::info!(name, "certificate renewed");
                        let text = format!("The certificate {name} was renewed before its end");
                        events.event_about(self.node(), EventType::Normal, "CertificateRenewed", text);
                    }
                    LOOK_EVERY
                }
                Err(error) => {
                    tracing::error!("certificates are not renewed: {error:#}");
                    let text = format!("Certificates are not renewed: {error:#}");
                    events.event_about(self.node(), EventType::Warning, "CertificateRenewalFailed", text);
                    RETRY
                }
            };
            tokio::select! {
                () = stop.cancelled() => return,
                () = clock.sleep(wait) => {}
            }
        }
    }

    fn node(&self) -> ObjectReference {
        let name = Some(self.options.node_name.clone());
        ObjectReference {
            kind: Some("Node".to_owned()),
            uid: name.clone(),
            name,
            ..ObjectReference::default()
        }
    }

    /// Renews what is near its end; returns the names of what is new since the last look.
    fn step(&self) -> Result<Vec<&'static str>> {
        let mut now = control_plane::renewed(&self.pki, &self.options)?;
        now.push(("admin", kubeconfig::write_admin(&self.layout, &self.pki, &self.url)?));
        if let Some(kubelet) = &self.kubelet {
            let serving = server::node_serving(&self.pki, &self.options)?;
            kubelet.exchange(&serving.certificate, &serving.key)?;
            now.push(("kubelet", serving));
        }
        Ok(changes(&mut lock(&self.known), now))
    }
}

fn lock(known: &Mutex<Known>) -> std::sync::MutexGuard<'_, Known> {
    known.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Takes note of certificates; returns the names of those that have taken the place of others.
fn changes(known: &mut Known, now: Vec<(&'static str, Credentials)>) -> Vec<&'static str> {
    let replaced = now.into_iter().filter_map(|(name, credentials)| {
        let before = known.insert(name, credentials.certificate.clone());
        before.is_some_and(|before| before != credentials.certificate).then_some(name)
    });
    replaced.collect()
}

fn metrics(known: &Known) -> String {
    let mut text =
        format!("# HELP {METRIC} When the server's own certificates end.\n# TYPE {METRIC} gauge\n");
    for (name, certificate) in known {
        if let Some(end) = pki::not_after(certificate) {
            text.push_str(&format!("{METRIC}{{certificate=\"{name}\"}} {}\n", end.as_second()));
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicI64, Ordering};

    use knarr_apimachinery::clock::Sleep;
    use knarr_client::clock::SystemClock;

    use super::*;
    use crate::pki::Subject;

    /// Today, some days later.
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
        let pki = Pki::open_at(folder.clone(), Arc::clone(&clock) as _).unwrap();
        let subject = Subject {
            common_name: "x",
            organizations: &[],
            names: &["x".to_owned()],
            addresses: &[],
            server: true,
            client: false,
        };
        let mut known = Known::new();
        let mut look = |days: i64| {
            clock.0.store(days, Ordering::Relaxed);
            let made = pki.credentials("apiserver", &subject).unwrap();
            let (certificate, key) = pki.files("apiserver");
            assert_eq!(pki::read(&certificate).unwrap(), made.certificate);
            assert_eq!(pki::read(&key).unwrap(), made.key);
            let renewed = changes(&mut known, vec![("apiserver", made)]);
            (renewed, metrics(&known))
        };
        let (renewed, first) = look(0);
        assert!(renewed.is_empty() && first.contains("{certificate=\"apiserver\"} 1"), "{first}");
        assert_eq!(look(330), (Vec::new(), first.clone()));
        let (renewed, second) = look(340);
        assert_eq!(renewed, ["apiserver"]);
        assert_ne!(first, second);
        assert!(look(600).0.is_empty());
        std::fs::remove_dir_all(&folder).unwrap();
    }
}
