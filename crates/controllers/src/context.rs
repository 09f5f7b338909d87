//! What a controller is given, and how it is described to whoever starts it.

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

/// A controller at work; it ends with the context's stop.
pub type Running = Pin<Box<dyn Future<Output = ()> + Send>>;

/// How a controller is started.
pub struct Descriptor {
    /// Upstream's name, `deployment-controller`.
    pub name: &'static str,
    /// Sets up handlers and runs the workers until the context's stop.
    pub run: fn(Arc<Context>) -> Running,
}

/// Settings of the cluster that controllers read.
#[derive(Debug, Clone)]
pub struct Options {
    /// Pod addresses of the whole cluster, such as `10.42.0.0/16`; every node gets a part.
    pub cluster_cidr: String,
    /// The prefix length of a node's part.
    pub node_cidr_mask_size: u8,
    /// Addresses of Services, such as `10.43.0.0/16`: nodes get none of them.
    pub service_cidr: Option<String>,
    /// The certificate that clients in pods check the API server's against, PEM.
    pub root_ca: String,
    /// Signs approved certificate requests; without it nobody does.
    pub certificate_signer: Option<Arc<dyn CertificateSigner>>,
    /// Signs the tokens in Secrets of service accounts; without it these stay empty.
    pub token_signer: Option<Arc<dyn TokenSigner>>,
    pub settings: Settings,
}

/// What every controller gets.
pub struct Context {
    /// The controller's name.
    pub name: &'static str,
    /// Shared by all controllers, under the manager's own identity.
    pub informers: Arc<Informers>,
    /// The controller's own access, for writes.
    pub client: Client,
    pub recorder: EventRecorder,
    pub clock: Arc<dyn Clock>,
    pub options: Arc<Options>,
    pub stop: CancellationToken,
}

impl Context {
    /// What is set about controllers.
    pub fn settings(&self) -> &Settings {
        &self.options.settings
    }

    /// How many objects this controller works on at once, if it is one whose number can be set; else one.
    pub fn workers(&self) -> usize {
        self.settings().workers.get(self.name).copied().unwrap_or(1)
    }
}

/// Makes the access of one controller from its name: in upstream's clusters a service account in kube-system.
pub type ClientOf = Arc<dyn Fn(&str) -> Client + Send + Sync>;
