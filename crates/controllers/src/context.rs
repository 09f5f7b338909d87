//! What a controller receives, and the descriptor by which it is started.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;

use knarr_apimachinery::clock::Clock;
use knarr_client::events::EventRecorder;
use knarr_client::{Client, Informers};
use tokio_util::sync::CancellationToken;

use crate::certificates::CertificateSigner;
use crate::service_account_tokens::TokenSigner;
use crate::settings::Settings;

/// A running controller; the future ends after the context's stop is cancelled.
pub type Running = Pin<Box<dyn Future<Output = ()> + Send>>;

/// Names a controller and starts it.
pub struct Descriptor {
    /// Upstream's name of the controller, such as `deployment-controller`.
    pub name: &'static str,
    /// Sets up handlers and runs the workers until the context's stop.
    pub run: fn(Arc<Context>) -> Running,
}

/// Settings of the cluster that controllers read.
#[derive(Debug, Clone)]
pub struct Options {
    /// The pod addresses of the whole cluster, such as `10.42.0.0/16`; each node gets a part of them.
    pub cluster_cidr: String,
    /// The prefix length of a node's part.
    pub node_cidr_mask_size: u8,
    /// The addresses of Services, such as `10.43.0.0/16`; no node gets a part that overlaps them.
    pub service_cidr: Option<String>,
    /// The CA certificate by which clients in pods verify the API server's certificate, PEM.
    pub root_ca: String,
    /// Signs approved certificate requests; without it no request is signed.
    pub certificate_signer: Option<Arc<dyn CertificateSigner>>,
    /// Signs the tokens in Secrets of service accounts; without it such Secrets get no token.
    pub token_signer: Option<Arc<dyn TokenSigner>>,
    pub settings: Settings,
}

/// Everything a controller works with.
pub struct Context {
    /// The controller's name.
    pub name: &'static str,
    /// The informers that all controllers share, under the manager's own identity.
    pub informers: Arc<Informers>,
    /// The client with the controller's own identity, for writes.
    pub client: Client,
    pub recorder: EventRecorder,
    pub clock: Arc<dyn Clock>,
    pub options: Arc<Options>,
    pub stop: CancellationToken,
}

impl Context {
    /// Returns the settings of all controllers.
    pub fn settings(&self) -> &Settings {
        &self.options.settings
    }

    /// Returns how many objects this controller reconciles concurrently: the configured number, or 1 if it has no
    /// such setting.
    pub fn workers(&self) -> usize {
        self.settings().workers.get(self.name).copied().unwrap_or(1)
    }
}

/// Makes the client of one controller from its name. In upstream's clusters each has a service account in
/// kube-system.
pub type ClientOf = Arc<dyn Fn(&str) -> Client + Send + Sync>;
