//! Starts a server on its open store, and ends one that was stopped.

use std::fs::File;
use std::net::{IpAddr, Ipv4Addr};
use std::sync::Arc;

use anyhow::{Context, Result};
use futures_util::future::join_all;
use knarr_api::gates;
use knarr_apimachinery::clock::Clock;
use knarr_apiserver::steps::LEADER_ELECTION;
use knarr_apiserver::{ApiServer, ConfigError};
use knarr_client::Supervisor;
use knarr_client::events::EventRecorder;
use knarr_kubelet::server::{ClientAuthorities, ServingCertificate};
use knarr_storage::Store;
use nix::fcntl::Flock;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

use super::{LEFT_BEHIND, ServerArgs};
use crate::api_flags::API_SERVER_IDENTITY;
use crate::backup::schedule::Scheduled;
use crate::certificates::authorities::plan::Rotation;
use crate::certificates::authorities::served;
use crate::control_plane::IdentitySteps;
use crate::layout::Layout;
use crate::node::{NodeAccess, NodeOptions, RunningNode};
use crate::pki::Pki;
use crate::progress::Progress;
use crate::renewal::Renewal;
use crate::scrub::Scrub;
use crate::shown_flags::ShownFlags;
use crate::{addons, backup, control_plane, kubeconfig, leading, node};

/// What a server is started from.
pub(super) struct Ground<'a> {
    pub args: &'a ServerArgs,
    pub options: &'a control_plane::Options,
    pub layout: &'a Layout,
    pub clock: &'a Arc<dyn Clock>,
    pub pki: &'a Arc<Pki>,
    pub store: &'a Arc<dyn Store>,
    pub progress: &'a Progress,
    pub stop: &'a CancellationToken,
}

/// A running server with its tasks.
pub(super) struct Running {
    server: ApiServer,
    pub serving: JoinHandle<Result<(), ConfigError>>,
    /// Hands out backups.
    admin: JoinHandle<()>,
    components: Vec<JoinHandle<()>>,
    identity: Option<JoinHandle<()>>,
    node: Option<RunningNode>,
}

impl Ground<'_> {
    pub async fn start(
        &self,
        source: backup::Source,
        scheduled: Option<Scheduled>,
        listener: std::net::TcpListener,
        rotation: Option<Rotation>,
        lock: Flock<File>,
    ) -> Result<Running> {
        let Ground { args, options, clock, pki, store, progress, stop, .. } = *self;
        let server = self.api_server().await?;
        let listener =
            tokio::net::TcpListener::from_std(listener).context("cannot use the listening socket")?;
        // The steps are registered before serving, so that the first health answer includes them.
        let shows = args.api.features()?.is_on(API_SERVER_IDENTITY);
        let steps = shows.then(|| IdentitySteps::of(&server));
        let serving = tokio::spawn({
            let server = server.clone();
            async move { server.serve(listener).await }
        });
        let backups = Backups { source: &source, server: &server, store, clock };
        let admin = backups.start(scheduled, &options.supervisor, stop)?;
        if !options.shared_store {
            start_scrub(&server, store, options, clock, stop);
        }
        let components = start_components(args, &server, clock, pki, options, stop);
        let access = (!args.disable_node).then(|| node_access(&server, clock, pki, options)).transpose()?;
        // This start has read and written everything. Authorities may be replaced from here on.
        drop(lock);
        if let Some(rotation) = rotation {
            follow_rotation(rotation, &server, clock, pki, options, stop);
        }
        let identity = steps.map(|steps| {
            let client = control_plane::own_client(&server, clock, &options.supervisor);
            let of = options.clone();
            let identity = move |stop| control_plane::identity(client.clone(), &of, steps.clone(), stop);
            options.supervisor.spawn("apiserver-identity", stop.clone(), identity)
        });
        progress
            .step("scheduler, controllers", async {
                let client = control_plane::client(&server, clock, control_plane::ADDONS, &[], "knarr");
                addons::ensure_dns_service(&client, options.service_ip(10)).await?;
                addons::ensure_storage_class(&client).await?;
                Ok(((), String::new()))
            })
            .await?;
        let kubelet = access.as_ref().map(|access| Arc::clone(&access.serving));
        let node = match access {
            None => None,
            Some(access) => {
                let options = node_options(args, options, self.layout)?;
                Some(node::start(options, access, progress, stop.clone()).await?)
            }
        };
        self.renew(&server, kubelet);
        Ok(Running { server, serving, admin, components, identity, node })
    }

    fn url(&self) -> String {
        let address = self.args.bind_address;
        let address = if address.is_unspecified() { IpAddr::V4(Ipv4Addr::LOCALHOST) } else { address };
        format!("https://{address}:{}", self.args.port)
    }

    async fn api_server(&self) -> Result<ApiServer> {
        let start = async {
            let (store, clock) = (Arc::clone(self.store), Arc::clone(self.clock));
            let server =
                control_plane::api_server(store, clock, self.pki, self.options, &self.args.api).await?;
            let url = self.url();
            kubeconfig::write_admin(self.layout, self.pki, &url)?;
            Ok((server, url))
        };
        self.progress.step("API server", start).await
    }

    /// Starts the renewal of certificates.
    fn renew(&self, server: &ApiServer, kubelet: Option<Arc<ServingCertificate>>) {
        let renewal = Arc::new(Renewal {
            server: server.clone(),
            pki: Arc::clone(self.pki),
            options: self.options.clone(),
            layout: self.layout.clone(),
            url: self.url(),
            kubelet,
            external: [self.args.api.certificate_files(), self.args.store.certificate_files()].concat(),
        });
        let clock = Arc::clone(self.clock);
        self.options.supervisor.spawn("certificate-renewal", self.stop.clone(), move |stop| {
            let (renewal, clock) = (Arc::clone(&renewal), Arc::clone(&clock));
            async move { renewal.run(&clock, stop).await }
        });
    }
}

impl Running {
    /// Ends a server that was stopped.
    pub async fn stopped(self, store: &Arc<dyn Store>, clock: &dyn Clock) -> Result<()> {
        if let Some(node) = self.node {
            node.stopped().await;
        }
        // The components release their leases through this server, so that those of another one need not
        // wait.
        tokio::select! {
            _ = join_all(self.components) => {}
            () = clock.sleep(LEFT_BEHIND) => tracing::warn!("scheduler and controllers do not end"),
        }
        let identity = match self.identity {
            Some(identity) => identity.await.context("the API server's lease is no longer renewed"),
            None => Ok(()),
        };
        let admin = self.admin.await.context("the administrator's socket ended unexpectedly");
        self.server.shut_down().await;
        let served = self.serving.await.context("the API server ended unexpectedly");
        let served = served.and_then(|served| served.context("the API server could not serve"));
        // The store is closed whatever failed before, and an error of that is the one to return.
        if let Err(error) = store.close().await {
            for other in [&identity, &admin, &served].into_iter().filter_map(|ended| ended.as_ref().err()) {
                tracing::error!("{other:#}");
            }
            return Err(error.into());
        }
        identity.and(admin).and(served)
    }
}

/// What backups are taken from.
struct Backups<'a> {
    source: &'a backup::Source,
    server: &'a ApiServer,
    store: &'a Arc<dyn Store>,
    clock: &'a Arc<dyn Clock>,
}

impl Backups<'_> {
    /// Starts the tasks that hand out and take backups; they end some time after `stop`.
    fn start(
        &self,
        scheduled: Option<Scheduled>,
        supervisor: &Supervisor,
        stop: &CancellationToken,
    ) -> Result<JoinHandle<()>> {
        let socket = backup::AdminSocket::bind(&self.source.layout)?;
        let (store, clock) = (Arc::clone(self.store), Arc::clone(self.clock));
        if let Some(scheduled) = scheduled {
            self.server.show_metrics("backups", scheduled.metrics());
            let scheduled = Arc::new(scheduled);
            let client = control_plane::own_client(self.server, &clock, supervisor);
            let node = self.source.node.clone();
            supervisor.spawn("scheduled-backups", stop.clone(), {
                let (store, clock) = (Arc::clone(&store), Arc::clone(&clock));
                move |stop| {
                    let events = EventRecorder::new(client.clone(), "knarr", &node, stop.clone());
                    Arc::clone(&scheduled).run(Arc::clone(&store), events, Arc::clone(&clock), stop)
                }
            });
        }
        let socket = Arc::new(socket);
        let source = self.source.clone();
        Ok(supervisor.spawn("admin-socket", stop.clone(), move |stop| {
            Arc::clone(&socket).serve(Arc::clone(&store), source.clone(), Arc::clone(&clock), stop)
        }))
    }
}

/// Starts the check of the store's file for damage.
fn start_scrub(
    server: &ApiServer,
    store: &Arc<dyn Store>,
    options: &control_plane::Options,
    clock: &Arc<dyn Clock>,
    stop: &CancellationToken,
) {
    let scrub = Scrub::default();
    server.show_metrics("scrub", scrub.metrics());
    let client = control_plane::own_client(server, clock, &options.supervisor);
    let (node, store, clock) = (options.node_name.clone(), Arc::clone(store), Arc::clone(clock));
    options.supervisor.spawn("store-scrub", stop.clone(), move |stop| {
        let events = EventRecorder::new(client.clone(), "knarr", &node, stop.clone());
        scrub.clone().run(Arc::clone(&store), node.clone(), events, Arc::clone(&clock), stop)
    });
}

/// Starts the task that records that the authorities of the phase in which the server has started are
/// published.
fn follow_rotation(
    rotation: Rotation,
    server: &ApiServer,
    clock: &Arc<dyn Clock>,
    pki: &Arc<Pki>,
    options: &control_plane::Options,
    stop: &CancellationToken,
) {
    let client = control_plane::own_client(server, clock, &options.supervisor);
    let (pki, clock) = (Arc::clone(pki), Arc::clone(clock));
    let followed = options.supervisor.run_until_done("rotation-of-authorities", stop.clone(), move |stop| {
        let (client, rotation) = (client.clone(), rotation.clone());
        let (pki, clock) = (Arc::clone(&pki), Arc::clone(&clock));
        async move { served::follow(&client, pki.ca_pem(), pki.folder(), &rotation, &*clock, stop).await }
    });
    tokio::spawn(followed);
}

/// Starts the components of the control plane, as far as they are not disabled. The tasks end after `stop`.
fn start_components(
    args: &ServerArgs,
    server: &ApiServer,
    clock: &Arc<dyn Clock>,
    pki: &Arc<Pki>,
    options: &control_plane::Options,
    stop: &CancellationToken,
) -> Vec<JoinHandle<()>> {
    let identity = leading::identity(&options.node_name);
    let supervisor = &options.supervisor;
    let mut tasks = Vec::new();
    if gates::COORDINATED_LEADER_ELECTION.is_on() {
        let client = control_plane::own_client(server, clock, supervisor);
        let (step, identity) = (server.step(LEADER_ELECTION), identity.clone());
        let elections = move |stop| {
            step.finish();
            control_plane::elections(client.clone(), &identity, stop)
        };
        tasks.push(supervisor.spawn("lease-elections", stop.clone(), elections));
    }
    if !args.disable_scheduler {
        let scheduler = control_plane::scheduler(server, clock, options, &identity, stop.clone());
        tasks.push(tokio::spawn(scheduler));
    }
    if !args.disable_controller_manager {
        let controllers = control_plane::controllers(server, clock, pki, options, &identity, stop.clone());
        tasks.push(tokio::spawn(controllers));
    }
    tasks
}

fn node_options(args: &ServerArgs, options: &control_plane::Options, layout: &Layout) -> Result<NodeOptions> {
    Ok(NodeOptions {
        name: options.node_name.clone(),
        ip: options.node_ip,
        layout: layout.clone(),
        kubelet_dir: args.node.kubelet_dir(layout)?,
        cgroup_root: args.node.cgroup_root(),
        cluster_cidr: options.cluster_cidr.clone(),
        service_cidr: options.service_cidr,
        cluster_dns: options.service_ip(10),
        cluster_domain: options.cluster_domain.clone(),
        control_plane: true,
        labels: args.node.labels()?,
        resolv_conf: args.node.resolv_conf(),
        kubelet_port: args.node.kubelet_port(),
        healthz: args.node.healthz(),
        api_port: Some(options.port),
        thresholds: args.node.thresholds(),
        pod_max_pids: args.node.pod_max_pids(),
        reservation: args.node.reservation(true),
        allowed_unsafe_sysctls: args.node.allowed_unsafe_sysctls(),
        seccomp_default: args.node.seccomp_default(),
        image_verification: args.node.image_verification()?,
        mirrors: args.node.mirrors(),
        runtime: args.node.runtime(),
        network: args.node.network(),
        flags: ShownFlags::of_process().of::<node::NodeArgs>(),
    })
}

/// Returns the access of the node in this process: it calls the API server directly, under the node's own
/// identities.
fn node_access(
    server: &knarr_apiserver::ApiServer,
    clock: &Arc<dyn Clock>,
    pki: &Pki,
    options: &control_plane::Options,
) -> Result<NodeAccess> {
    let name = &options.node_name;
    let node_user = format!("system:node:{name}");
    let serving = control_plane::node_serving(pki, options)?;
    let serving = ServingCertificate::new(&serving.certificate, &serving.key)
        .context("the kubelet's certificate cannot be used")?;
    // The node has a supervisor of its own, so that failures of the scheduler or a controller do not affect
    // the kubelet's health.
    let supervisor = Supervisor::new(Arc::clone(clock));
    server.show_tasks(&supervisor);
    let client = |user: &str, groups: &[&str], manager: &str| {
        control_plane::client(server, clock, user, groups, manager).supervised_by(&supervisor)
    };
    Ok(NodeAccess {
        kubelet: client(&node_user, &["system:nodes"], "kubelet"),
        network: client("system:kube-proxy", &[], "kube-proxy"),
        serving,
        // It calls the API server inside the process, without a client certificate.
        client_not_after: Arc::new(|| None),
        clients: ClientAuthorities::new(pki.ca_pem()).context("the cluster's authorities cannot be used")?,
        supervisor,
    })
}
