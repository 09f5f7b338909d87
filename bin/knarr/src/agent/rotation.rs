//! Renews certificates while the node runs: requests a new client certificate before the old one expires, and
//! makes connections use it.

use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Result, bail};
use knarr_apimachinery::clock::Clock;
use knarr_client::Client;
use knarr_client::events::{EventRecorder, EventType};
use knarr_client::kubeconfig::Access;
use knarr_client::rotating::Rotating;
use knarr_kubelet::server::{ClientAuthorities, ServingCertificate};
use tokio_util::sync::CancellationToken;

use super::certificates::{Applicant, CLIENT, SERVING, Store, renew_at};
use super::{access, trust, with_credentials};
use crate::certificates::folder_watch::{self, FolderWatch};
use crate::certificates::rotate;
use crate::node_reference::node_reference;

/// How often the cluster's authorities are checked, at least. In between, the machine's clock may be set, or
/// the machine may sleep.
const LONGEST_WAIT: Duration = Duration::from_secs(600);
const RETRY: Duration = Duration::from_secs(3600);
const SOON: Duration = Duration::from_secs(1);

/// Renews a node's certificates before they expire.
pub struct Renewal {
    pub node: String,
    pub given: Access,
    pub user: access::User,
    pub clock: Arc<dyn Clock>,
    pub store: Store,
    pub identity: Access,
    /// The node's address, for its serving certificate.
    pub ip: IpAddr,
    pub transport: Arc<Rotating>,
    /// When the certificate was last renewed because its authority was superseded.
    pub superseded: trust::Superseded,
    /// The kubelet's serving certificate.
    pub serving: Arc<ServingCertificate>,
    /// The digest of the kubeconfig.
    pub kubeconfig: String,
    /// The authorities of the kubelet's clients; `None` if a flag's file sets them.
    pub clients: Option<Arc<ClientAuthorities>>,
}

impl Renewal {
    /// Renews certificates when they are due or requested (`knarr certificates rotate`), until `stop`.
    pub async fn run(&mut self, stop: CancellationToken) {
        let client = Client::new(Arc::clone(&self.transport) as _, Arc::clone(&self.clock), "knarr-agent");
        let events = EventRecorder::new(client, "knarr", &self.node, stop.clone());
        let watch = FolderWatch::new(&[self.store.folder().to_owned()]);
        let watch = watch.inspect_err(|error| tracing::warn!("{error:#}")).ok();
        loop {
            let stepped = self.step(&events).await;
            // Files that the step wrote are not changes to react to. A rotation that was requested meanwhile
            // is read from its file.
            watch.iter().for_each(FolderWatch::forget);
            let wait = match stepped {
                Ok(_) if self.is_requested() => SOON,
                Ok(wait) => wait,
                Err(error) => {
                    tracing::warn!("the node's certificates were not renewed: {error:#}");
                    let text = format!("Certificates are not renewed: {error:#}");
                    events.event_about(
                        node_reference(&self.node),
                        EventType::Warning,
                        "CertificateRenewalFailed",
                        text,
                    );
                    RETRY
                }
            };
            tokio::select! {
                () = stop.cancelled() => return,
                () = self.clock.sleep(wait) => {}
                () = folder_watch::changed(watch.as_ref(), &self.clock) => {}
            }
        }
    }

    fn is_requested(&self) -> bool {
        [CLIENT, SERVING].iter().any(|name| rotate::is_requested(self.store.folder(), name))
    }

    fn publish_renewal(&self, events: &EventRecorder, name: &str) {
        tracing::info!(name, "certificate renewed");
        let text = format!("The certificate {name} was renewed");
        events.event_about(node_reference(&self.node), EventType::Normal, "CertificateRenewed", text);
    }

    /// Renews the certificates that are due or requested; returns the time until the next check.
    async fn step(&mut self, events: &EventRecorder) -> Result<Duration> {
        if let Err(error) = self.follow().await {
            tracing::warn!("the cluster's authorities cannot be followed: {error:#}");
        }
        // An access by token has no certificate to renew.
        let due = self.identity.client_certificate.as_deref().and_then(renew_at);
        let now = self.clock.now();
        let left = due.map_or(LONGEST_WAIT, |due| {
            Duration::try_from(due.duration_since(now)).unwrap_or(Duration::ZERO)
        });
        let folder = self.store.folder().to_owned();
        let superseded = self.superseded.is_due(&self.identity, now);
        if superseded && self.store.has_no_serving() {
            // The old client certificate also served; the next one will not.
            rotate::request(&folder, SERVING)?;
        }
        if left.is_zero() || superseded || rotate::is_requested(&folder, CLIENT) {
            let node = access::User {
                name: format!("{}{}", knarr_api::certificates::signers::NODE_USER_PREFIX, self.node),
                groups: vec![knarr_api::certificates::signers::NODES_GROUP.to_owned()],
            };
            let credentials = self.applicant(&node).request_identity(&self.identity).await?;
            self.identity = with_credentials(&self.given, &credentials);
            self.superseded.renewed(&self.identity, now);
            self.transport.exchange(&self.identity)?;
            rotate::done(&folder, CLIENT)?;
            self.publish_renewal(events, CLIENT);
        }
        // A request that is never approved must not delay the renewal of the client certificate.
        let applicant = self.applicant(&self.user);
        let authorities = self.given.certificate_authority.as_deref().unwrap_or_default();
        let now = rotate::is_requested(&folder, SERVING) || !self.store.serving_is_of(authorities);
        let renewed = tokio::select! {
            renewed = applicant.renew_serving(&self.identity, self.ip, now) => renewed?,
            () = self.clock.sleep(RETRY) => bail!("the serving certificate was not approved in time"),
        };
        if let Some(serving) = renewed {
            self.serving.exchange(&serving.certificate, &serving.key)?;
            rotate::done(&folder, SERVING)?;
            self.publish_renewal(events, SERVING);
        }
        Ok(left.clamp(Duration::from_secs(60), LONGEST_WAIT))
    }

    /// Switches to the authorities that the cluster publishes.
    async fn follow(&mut self) -> Result<()> {
        let client = Client::new(Arc::clone(&self.transport) as _, Arc::clone(&self.clock), "knarr-agent");
        let Some(bundle) = trust::news(&client, &self.given).await? else { return Ok(()) };
        self.store.trust(&self.kubeconfig, &bundle)?;
        if let Some(clients) = &self.clients {
            clients.exchange(&bundle)?;
        }
        for access in [&mut self.given, &mut self.identity] {
            access.certificate_authority = Some(bundle.clone().into_bytes());
        }
        self.transport.exchange(&self.identity)?;
        tracing::info!("the cluster's authorities have changed");
        Ok(())
    }

    fn applicant<'a>(&'a self, user: &'a access::User) -> Applicant<'a> {
        Applicant { node: &self.node, given: &self.given, user, clock: &self.clock, store: &self.store }
    }
}
