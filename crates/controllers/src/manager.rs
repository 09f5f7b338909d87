//! Starts the controllers of a list, each with its own identity and work queue.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;

use knarr_apimachinery::clock::Clock;
use knarr_client::events::EventRecorder;
use knarr_client::{Client, Informers};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::certificates::CertificateSigner;
use crate::health;
use crate::names::{event_source, service_account};
use crate::service_account_tokens::TokenSigner;
use crate::settings::Settings;

/// The controllers of this build, in alphabetical order.
pub static ALL: &[Descriptor] = &[
    crate::attach_detach::DESCRIPTOR,
    crate::bootstrap_tokens::cleaner::DESCRIPTOR,
    crate::bootstrap_tokens::signer::DESCRIPTOR,
    crate::certificates::approver::DESCRIPTOR,
    crate::certificates::cleaner::DESCRIPTOR,
    crate::certificates::pod_request_cleaner::DESCRIPTOR,
    crate::certificates::signer::DESCRIPTOR,
    crate::certificates::trust_bundle_publisher::DESCRIPTOR,
    crate::cluster_role_aggregation::DESCRIPTOR,
    crate::cron_job::DESCRIPTOR,
    crate::daemon_set::DESCRIPTOR,
    crate::deployment::DESCRIPTOR,
    crate::device_taint_eviction::DESCRIPTOR,
    crate::disruption::DESCRIPTOR,
    crate::endpoint_slice::DESCRIPTOR,
    crate::endpoint_slice_mirroring::DESCRIPTOR,
    crate::endpoints::DESCRIPTOR,
    crate::ephemeral_volume::DESCRIPTOR,
    crate::garbage_collector::DESCRIPTOR,
    crate::horizontal_pod_autoscaler::DESCRIPTOR,
    crate::job::DESCRIPTOR,
    crate::legacy_token_cleaner::DESCRIPTOR,
    crate::local_path::DESCRIPTOR,
    crate::namespace::DESCRIPTOR,
    crate::node_ipam::DESCRIPTOR,
    crate::node_lifecycle::DESCRIPTOR,
    crate::node_ttl::DESCRIPTOR,
    crate::persistent_volumes::binder::DESCRIPTOR,
    crate::persistent_volumes::expander::DESCRIPTOR,
    crate::persistent_volumes::protection::CLAIMS,
    crate::persistent_volumes::protection::VOLUMES,
    crate::persistent_volumes::class_protection::DESCRIPTOR,
    crate::pod_garbage_collector::DESCRIPTOR,
    crate::pod_group_protection::DESCRIPTOR,
    crate::replicas::REPLICA_SET,
    crate::replicas::REPLICATION_CONTROLLER,
    crate::resource_claim::DESCRIPTOR,
    crate::resource_quota::DESCRIPTOR,
    crate::root_ca_publisher::DESCRIPTOR,
    crate::service_account_tokens::DESCRIPTOR,
    crate::service_accounts::DESCRIPTOR,
    crate::service_cidr::DESCRIPTOR,
    crate::stateful_set::DESCRIPTOR,
    crate::storage_version_gc::DESCRIPTOR,
    crate::storage_version_migrator::DESCRIPTOR,
    crate::taint_eviction::DESCRIPTOR,
    crate::ttl_after_finished::DESCRIPTOR,
    crate::validating_admission_policy_status::DESCRIPTOR,
];

/// A controller at work; it ends with the context's stop.
pub type Running = Pin<Box<dyn Future<Output = ()> + Send>>;

/// How a controller is started.
pub struct Descriptor {
    /// Upstream's name, `deployment-controller`.
    pub name: &'static str,
    /// Sets up handlers and runs the workers until the context's stop.
    pub run: fn(Arc<Context>) -> Running,
}

/// What the controllers are told about the cluster.
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

/// Runs all controllers until `stop`. `shared` is the access of the informers that all of them share.
pub fn run(
    client_of: ClientOf,
    shared: Client,
    clock: Arc<dyn Clock>,
    options: Options,
    stop: CancellationToken,
) -> Running {
    run_chosen(&|_| true, client_of, shared, clock, options, stop)
}

/// As [`run`], of the controllers whose names are chosen.
pub fn run_chosen(
    chosen: &dyn Fn(&str) -> bool,
    client_of: ClientOf,
    shared: Client,
    clock: Arc<dyn Clock>,
    options: Options,
    stop: CancellationToken,
) -> Running {
    let chosen: Vec<&Descriptor> = ALL.iter().filter(|d| chosen(d.name)).collect();
    Box::pin(async move {
        let tracker = TaskTracker::new();
        let informers = Arc::new(Informers::new(shared.clone(), stop.clone()));
        let options = Arc::new(options);
        for descriptor in chosen {
            let account = service_account(descriptor.name);
            // Tokens are handed out under the manager's own identity, as upstream does: no account could be used before.
            let of_manager = descriptor.name == crate::service_account_tokens::DESCRIPTOR.name;
            let client = if of_manager { shared.clone() } else { client_of(account) };
            let context = Context {
                name: descriptor.name,
                informers: Arc::clone(&informers),
                recorder: EventRecorder::new(client.clone(), event_source(descriptor.name), "", stop.clone()),
                client,
                clock: Arc::clone(&clock),
                options: Arc::clone(&options),
                stop: stop.clone(),
            };
            let controller = (descriptor.run)(Arc::new(context));
            let name = descriptor.name;
            health::begins(name);
            tracker.spawn(async move {
                let mut fallen = health::Fallen::unless_it_ends(name);
                controller.await;
                fallen.has_ended();
            });
        }
        tracker.close();
        tracker.wait().await;
    })
}

/// Whether a create was refused because its namespace is being deleted: what is asked for will go with it.
pub fn namespace_is_terminating(error: &knarr_client::Error) -> bool {
    let causes = error.status().and_then(|s| s.0.details.as_ref()?.causes.as_ref());
    causes.into_iter().flatten().any(|c| c.reason.as_deref() == Some("NamespaceTerminating"))
}
