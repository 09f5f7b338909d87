//! The control plane in one process: store, API server, scheduler, controllers, each with its own identity.

use std::collections::BTreeMap;
use std::future::Future;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::pin::Pin;
use std::sync::Arc;

use anyhow::{Context, Result};
use knarr_api::resource::Resource;
use knarr_api::{gates, resources};
use knarr_apimachinery::clock::Clock;
use knarr_apimachinery::gvk::api_version;
use knarr_apiserver::steps::{self, Step};
use knarr_apiserver::{AdmissionConfig, ApiServer, Config, Keypair, RequestHeader, UserInfo};
use knarr_client::leader_election::LeaderElection;
use knarr_client::leadership::Leadership;
use knarr_client::service_account::user_name;
use knarr_client::{Client, Supervisor};
use knarr_controllers::api_server_identity::storage_versions::StoredAs;
use knarr_controllers::api_server_identity::{ApiServerIdentity, Done};
use knarr_controllers::{ClientOf, Settings};
use knarr_storage::Store;
use tokio_util::sync::CancellationToken;

use crate::api_flags::ApiArgs;
use crate::certificates::authorities;
use crate::leading;
use crate::pki::{Credentials, Pki, Subject};
use crate::scheduler::{self, NAME, Stage};
use crate::scheduling_questions::{LiveHealth, Questions};

/// The user that reads the data for answers about scheduling; the ClusterRole `knarr:questions` has its
/// rights.
pub const QUESTIONS: &str = "system:knarr:questions";
/// The user that creates the objects that every cluster starts with; the roles `knarr:addons` have its
/// rights.
pub const ADDONS: &str = "system:knarr:addons";

/// The name of the files of the API server's serving certificate.
const SERVING: &str = "apiserver";
const KUBELET_CLIENT: &str = "apiserver-kubelet-client";
const FRONT_PROXY_CLIENT: &str = "front-proxy-client";

/// The settings of the control plane.
#[derive(Clone)]
pub struct Options {
    pub node_name: String,
    pub node_ip: IpAddr,
    pub port: u16,
    pub service_cidr: (Ipv4Addr, u8),
    pub cluster_cidr: String,
    pub node_cidr_mask_size: u8,
    pub cluster_domain: String,
    /// Additional names and addresses of the serving certificate.
    pub tls_san: Vec<String>,
    /// API versions that are served besides, or removed from, the default ones.
    pub runtime_config: BTreeMap<String, String>,
    /// Whether other servers use the same store.
    pub shared_store: bool,
    /// Admission plugins that are enabled besides the default ones, or disabled.
    pub admission: AdmissionConfig,
    pub scheduler: knarr_scheduler::config::Configuration,
    /// The settings of the controllers.
    pub controllers: Settings,
    /// The health of nodes as this server's scheduler judges it, for answers about scheduling.
    pub health: Arc<LiveHealth>,
    /// Runs the tasks of the control plane; they are among the API server's health checks.
    pub supervisor: Supervisor,
}

impl Options {
    /// Returns the n-th address of the service range: 1 is the API server's, 10 the cluster DNS's.
    pub fn service_ip(&self, n: u32) -> Ipv4Addr {
        Ipv4Addr::from(u32::from(self.service_cidr.0) + n)
    }
}

fn keypair(credentials: Credentials) -> Keypair {
    Keypair { certificate_pem: credentials.certificate, key_pem: credentials.key }
}

/// Builds the API server over the store. It does not serve yet.
pub async fn api_server(
    store: Arc<dyn Store>,
    clock: Arc<dyn Clock>,
    pki: &Pki,
    options: &Options,
    flags: &ApiArgs,
) -> Result<ApiServer> {
    let serving = serving_certificate(pki, options)?;
    let kubelet_client = kubelet_client(pki)?;
    let mut config = Config::new(store, clock, knarr_api::resources::enabled(&options.runtime_config));
    config.serving = keypair(serving);
    config.serving_files = Some(pki.files(SERVING));
    config.client_ca_pem = pki.ca_pem().to_owned();
    config.service_accounts.key_pem = pki.service_account_key()?;
    config.service_accounts.public_keys_pem = authorities::further_token_keys(pki.folder())?;
    config.service_accounts.issuer = format!("https://kubernetes.default.svc.{}", options.cluster_domain);
    config.kubelet_client = Some(keypair(kubelet_client));
    config.kubelet_client_files = Some(pki.files(KUBELET_CLIENT));
    config.kubelet_ca_pem = pki.kubelet_trust()?;
    config.proxy_client = Some(keypair(front_proxy_client(pki)?));
    config.proxy_client_files = Some(pki.front_proxy()?.files(FRONT_PROXY_CLIENT));
    config.authentication.request_header =
        RequestHeader::usual(pki.front_proxy()?.ca_pem().to_owned(), vec!["front-proxy-client".to_owned()]);
    config.service_cidr = options.service_cidr;
    config.advertise = SocketAddr::new(options.node_ip, options.port);
    config.cluster_domain.clone_from(&options.cluster_domain);
    config.shared_store = options.shared_store;
    config.admission.clone_from(&options.admission);
    config.version.git_version = version();
    flags.apply(&mut config)?;
    let questions = Questions::new(options.scheduler.clone(), Arc::clone(&options.health));
    config.local_apis.push(Arc::clone(&questions) as _);
    let server_clock = Arc::clone(&config.clock);
    let server = ApiServer::new(config).await.context("the API server does not start")?;
    server.show_tasks(&options.supervisor);
    questions.read_with(client(&server, &server_clock, QUESTIONS, &[], "knarr"));
    Ok(server)
}

/// Renews certificates that expire soon, in the files that the API server follows.
pub fn renewed(pki: &Pki, options: &Options) -> Result<()> {
    serving_certificate(pki, options)?;
    kubelet_client(pki)?;
    front_proxy_client(pki)?;
    Ok(())
}

/// Returns the client certificate with which the API server calls kubelets.
fn kubelet_client(pki: &Pki) -> Result<Credentials> {
    pki.credentials(
        KUBELET_CLIENT,
        &Subject {
            common_name: "kube-apiserver-kubelet-client",
            organizations: &["system:masters"],
            names: &[],
            addresses: &[],
            server: false,
            client: true,
        },
    )
}

/// Returns the serving certificate of this process's kubelet.
pub fn node_serving(pki: &Pki, options: &Options) -> Result<Credentials> {
    let name = &options.node_name;
    pki.kubelet_serving()?.credentials(
        "kubelet",
        &Subject {
            common_name: &format!("system:node:{name}"),
            organizations: &["system:nodes"],
            names: std::slice::from_ref(name),
            addresses: &[options.node_ip],
            server: true,
            client: false,
        },
    )
}

/// Returns the client certificate with which the API server calls aggregated API servers. Its authority signs
/// nothing else, because the holder of such a certificate may assert any user's identity.
fn front_proxy_client(pki: &Pki) -> Result<Credentials> {
    pki.front_proxy()?.credentials(
        FRONT_PROXY_CLIENT,
        &Subject {
            common_name: "front-proxy-client",
            organizations: &[],
            names: &[],
            addresses: &[],
            server: false,
            client: true,
        },
    )
}

/// Returns what `kubectl version` shows: the Kubernetes version that is served, and the version of this
/// program.
pub fn version() -> String {
    format!("{}+knarr.{}", knarr_apiserver::SYSTEM_VERSION, env!("CARGO_PKG_VERSION"))
}

fn serving_certificate(pki: &Pki, options: &Options) -> Result<Credentials> {
    let mut names = vec![
        "kubernetes".to_owned(),
        "kubernetes.default".to_owned(),
        "kubernetes.default.svc".to_owned(),
        format!("kubernetes.default.svc.{}", options.cluster_domain),
        "localhost".to_owned(),
        options.node_name.clone(),
    ];
    let mut addresses = vec![
        IpAddr::V4(Ipv4Addr::LOCALHOST),
        IpAddr::V6(std::net::Ipv6Addr::LOCALHOST),
        options.node_ip,
        IpAddr::V4(options.service_ip(1)),
    ];
    for extra in &options.tls_san {
        match extra.parse() {
            Ok(address) => addresses.push(address),
            Err(_) => names.push(extra.clone()),
        }
    }
    addresses.dedup();
    pki.credentials(
        SERVING,
        &Subject {
            common_name: "kube-apiserver",
            organizations: &[],
            names: &names,
            addresses: &addresses,
            server: true,
            client: false,
        },
    )
}

/// Returns a client of the API server in this process that acts under the given name.
pub fn client(
    server: &ApiServer,
    clock: &Arc<dyn Clock>,
    user: &str,
    groups: &[&str],
    manager: &str,
) -> Client {
    Client::new(server.transport(UserInfo::new(user, groups)), Arc::clone(clock), manager)
}

/// Returns the API server's own client, for its identity lease and for the elections that it decides.
pub fn own_client(server: &ApiServer, clock: &Arc<dyn Clock>, supervisor: &Supervisor) -> Client {
    let client = client(server, clock, "system:apiserver", &["system:masters"], "kube-apiserver");
    client.supervised_by(supervisor)
}

/// Elects the holders of leases among the candidates until `stop`, on one server at a time.
pub fn elections(
    client: Client,
    identity: &str,
    stop: CancellationToken,
) -> impl Future<Output = ()> + use<> {
    let election = LeaderElection::new("kube-system", "leader-election-controller", identity);
    let elect = {
        let client = client.clone();
        move |leading: Leadership| {
            knarr_controllers::lease_election::run(client.clone().under(&leading), leading.until)
        }
    };
    async move { election.while_leading(client, stop, elect).await }
}

/// The steps of the API server's start that [`identity`] finishes.
#[derive(Clone)]
pub struct IdentitySteps {
    lease: Step,
    cleanup: Step,
    storage_versions: Option<Step>,
}

impl IdentitySteps {
    /// Registers the steps; the API server is not ready before they are finished.
    pub fn of(server: &ApiServer) -> Self {
        Self {
            lease: server.step(steps::IDENTITY_LEASE),
            cleanup: server.step(steps::IDENTITY_LEASE_CLEANUP),
            storage_versions: gates::STORAGE_VERSION_API
                .is_on()
                .then(|| server.step(steps::STORAGE_VERSIONS)),
        }
    }

    fn done(&self, what: Done) {
        match what {
            Done::Renewed => self.lease.finish(),
            Done::Cleared => self.cleanup.finish(),
            Done::Recorded => self.storage_versions.iter().for_each(Step::finish),
        }
    }
}

/// Renews this API server's identity lease until `stop` and, if the feature is on, records in which versions
/// it stores resources.
pub fn identity(
    client: Client,
    options: &Options,
    steps: IdentitySteps,
    stop: CancellationToken,
) -> impl Future<Output = ()> + use<> {
    let stored =
        if gates::STORAGE_VERSION_API.is_on() { stored(&options.runtime_config) } else { Vec::new() };
    let identity = ApiServerIdentity::of(&options.node_name);
    identity.telling(move |what| steps.done(what)).run(client, stored, stop)
}

fn stored(runtime_config: &BTreeMap<String, String>) -> Vec<StoredAs> {
    let served = resources::enabled(runtime_config);
    let known = resources::all().iter().chain(resources::on_request());
    let is_same =
        |a: &Resource, b: &Resource| a.types.group == b.types.group && a.types.plural == b.types.plural;
    let mut all: Vec<StoredAs> = Vec::new();
    for resource in served.iter().filter(|r| r.is_stored()) {
        let types = resource.types;
        let group = if types.group.is_empty() { "core" } else { types.group };
        let versions = |among: &[&'static Resource]| -> Vec<String> {
            among.iter().filter(|r| is_same(r, resource)).map(|r| r.types.api_version()).collect()
        };
        let (stored_group, stored_version, _) = resource
            .stored_as
            .as_ref()
            .map_or((types.group, types.version, types.plural), |form| form.resource);
        let one = StoredAs {
            name: format!("{group}.{}", types.plural),
            encoding_version: api_version(stored_group, stored_version),
            decodable_versions: versions(&known.clone().copied().collect::<Vec<_>>()),
            served_versions: versions(&served),
        };
        if !all.iter().any(|other| other.name == one.name) {
            all.push(one);
        }
    }
    all
}

/// Runs the scheduler until `stop`. With several servers, it is active on one at a time.
pub fn scheduler(
    server: &ApiServer,
    clock: &Arc<dyn Clock>,
    options: &Options,
    identity: &str,
    stop: CancellationToken,
) -> Component {
    let client = client(server, clock, "system:kube-scheduler", &[], NAME).supervised_by(&options.supervisor);
    let (server, of, access) = (server.clone(), options.clone(), client.clone());
    let component =
        move |leading: Leadership| schedule(&server, access.clone().under(&leading), &of, leading.until);
    if !options.shared_store {
        return component(Leadership::unelected(stop));
    }
    in_turn(client, NAME, identity, component, &options.supervisor, stop)
}

type Component = Pin<Box<dyn Future<Output = ()> + Send>>;

/// Runs a component whenever this process holds its lease. The component's own tasks are supervised
/// separately.
fn in_turn(
    client: Client,
    name: &'static str,
    identity: &str,
    component: impl Fn(Leadership) -> Component + Send + Sync + 'static,
    supervisor: &Supervisor,
    stop: CancellationToken,
) -> Component {
    let (identity, component, task) = (identity.to_owned(), Arc::new(component), format!("{name}-lease"));
    supervisor.run(task, stop, move |stop| {
        let (client, identity, component) = (client.clone(), identity.clone(), Arc::clone(&component));
        async move {
            leading::while_leading(client, name, &identity, stop, |leading| component(leading)).await;
        }
    })
}

fn schedule(server: &ApiServer, client: Client, options: &Options, stop: CancellationToken) -> Component {
    let (health, server) = (Arc::clone(&options.health), server.clone());
    let observe = move |stage: Stage<'_>| {
        let Stage::Started(scheduler) = stage else { return };
        health.is_of(scheduler);
        let counted = Arc::downgrade(scheduler);
        server.show_metrics(NAME, move || counted.upgrade().map(|s| s.metrics()).unwrap_or_default());
    };
    scheduler::schedule(client, options.scheduler.clone(), &options.supervisor, observe, stop)
}

/// Runs the controllers until `stop`, each under its own service account, as upstream does. With several
/// servers, they are active on one at a time.
pub fn controllers(
    server: &ApiServer,
    clock: &Arc<dyn Clock>,
    pki: &Pki,
    options: &Options,
    identity: &str,
    stop: CancellationToken,
) -> Component {
    use crate::controller_manager::{ACCOUNTS_IN, NAME};
    server.show_metrics(NAME, knarr_controllers::metrics::render);
    let shared = client(server, clock, "system:kube-controller-manager", &[], NAME);
    let shared = shared.supervised_by(&options.supervisor);
    let (of_server, of_clock) = (server.clone(), Arc::clone(clock));
    let client_of: ClientOf = Arc::new(move |name| {
        let user = user_name(ACCOUNTS_IN, name);
        let groups = ["system:serviceaccounts", "system:serviceaccounts:kube-system"];
        client(&of_server, &of_clock, &user, &groups, NAME).on_behalf_of(&user)
    });
    let wanted = knarr_controllers::Options {
        cluster_cidr: options.cluster_cidr.clone(),
        node_cidr_mask_size: options.node_cidr_mask_size,
        service_cidr: Some(format!("{}/{}", options.service_cidr.0, options.service_cidr.1)),
        root_ca: pki.ca_pem().to_owned(),
        token_signer: signer("tokens", pki.token_signer()).map(|s| Arc::new(s) as _),
        certificate_signer: signer("certificates", pki.certificate_signer()).map(|s| Arc::new(s) as _),
        settings: options.controllers.clone(),
    };
    let (access, supervisor) = (shared.clone(), options.supervisor.clone());
    let component = move |leading: Leadership| {
        let client_of = leading::clients_under(&leading, &client_of);
        let access = access.clone().under(&leading);
        knarr_controllers::run(client_of, access, supervisor.clone(), wanted.clone(), leading.until)
    };
    if !options.shared_store {
        return component(Leadership::unelected(stop));
    }
    in_turn(shared, NAME, identity, component, &options.supervisor, stop)
}

fn signer<T>(what: &str, opened: Result<T>) -> Option<T> {
    opened.map_err(|error| tracing::error!(%error, "{what} are not signed")).ok()
}
