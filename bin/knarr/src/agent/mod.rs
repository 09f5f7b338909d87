//! `knarr agent`: runs a node alone, in the cluster of any API server, or many simulated nodes.

mod certificates;
pub mod names;
mod request;
mod rotation;
mod simulate;
mod trust;

use std::net::Ipv4Addr;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::{Context, Result, bail};
use clap::Args;
use knarr_apimachinery::clock::Clock;
use knarr_client::clock::SystemClock;
use knarr_client::kubeconfig::Access;
use knarr_client::rotating::Rotating;
use knarr_client::{Client, Error, Supervisor};
use knarr_kubelet::server::{ClientAuthorities, NotAfter, ServingCertificate};
use knarr_network::cidr::Ipv4Cidr;
use tokio_util::sync::CancellationToken;

use crate::layout::Layout;
use crate::node::{self, NodeAccess, NodeArgs, NodeOptions};
use crate::pki::Credentials;
use crate::progress::Progress;
use crate::shown_flags::ShownFlags;
use crate::{access, preflight, signals};

const DEFAULT_DATA_DIR: &str = "/var/lib/knarr-agent";

#[derive(Args)]
#[command(after_help = "Examples:\n  \
    knarr kubeconfig --node worker-1 --server https://10.0.0.1:6443 > worker-1.kubeconfig   # on the server\n  \
    knarr agent --kubeconfig worker-1.kubeconfig                                            # on worker-1\n  \
    knarr agent --kubeconfig admin.kubeconfig --node-name worker-2\n  \
    knarr agent --kubeconfig admin.kubeconfig --simulate 100\n\n\
    With a node's kubeconfig the agent is that node. With an administrator's it first requests a certificate for the \
    node and approves it, and keeps it in its data folder.")]
pub struct AgentArgs {
    /// Access to the API server: a node's, as written by `knarr kubeconfig --node`, or an administrator's
    #[arg(long, value_name = "FILE")]
    kubeconfig: PathBuf,
    /// Data folder of the node
    #[arg(long, default_value = DEFAULT_DATA_DIR, value_name = "DIR")]
    data_dir: PathBuf,
    /// Address of the cluster DNS
    #[arg(long, default_value = "10.43.0.10", value_name = "IP")]
    cluster_dns: Ipv4Addr,
    /// Domain of the cluster DNS
    #[arg(long, default_value = "cluster.local", value_name = "NAME")]
    cluster_domain: String,
    /// Address range of pods, for all nodes together
    #[arg(long, default_value = "10.42.0.0/16", value_name = "CIDR")]
    cluster_cidr: String,
    /// Address range of Services
    #[arg(long, default_value = "10.43.0.0/16", value_name = "CIDR")]
    service_cidr: String,
    /// Authorities of the kubelet's clients [default: those of the kubeconfig]
    #[arg(long, value_name = "FILE")]
    client_ca_file: Option<PathBuf>,
    /// Register this many simulated nodes, which report pods as running without running them
    #[arg(long, value_name = "NUMBER", value_parser = clap::value_parser!(u32).range(1..=16_384))]
    simulate: Option<u32>,
    #[command(flatten)]
    node: NodeArgs,
}

pub fn run(args: AgentArgs) -> Result<()> {
    let runtime = crate::memory::runtime()?;
    runtime.block_on(run_async(args))
}

async fn run_async(args: AgentArgs) -> Result<()> {
    if args.simulate.is_none() {
        preflight::node()?;
    }
    let given = Access::load(&args.kubeconfig).with_context(|| {
        format!(
            "cannot use {}: `knarr kubeconfig --node NAME` on the server writes one for this node",
            args.kubeconfig.display()
        )
    })?;
    let clock: Arc<dyn Clock> = Arc::new(SystemClock);
    let progress = Progress::start();
    let kubeconfig = trust::kubeconfig(&given);
    let own = given.certificate_authority.clone();
    let given = trust::kept(&certificates::Store::at(Layout::at(&args.data_dir).pki()), given);
    let is_own = own == given.certificate_authority;
    let (given, user) = progress
        .step("API server", async {
            let (access, user) = first_contact(&args, given, is_own, &clock).await?;
            let shown = format!("{} as {}", access.server, user.name);
            Ok(((access, user), shown))
        })
        .await?;
    match args.simulate {
        Some(count) => simulate::run(&args, &given, &clock, &progress, count).await,
        None => run_node(&args, &given, kubeconfig, &user, clock, &progress).await,
    }
}

/// Makes the first request. Returns the access to start with and its user: the kubeconfig's, or that of an
/// earlier start if the kubeconfig's certificate has expired since. `is_own` is true if the authorities are
/// those of the kubeconfig.
async fn first_contact(
    args: &AgentArgs,
    given: Access,
    is_own: bool,
    clock: &Arc<dyn Clock>,
) -> Result<(Access, access::User)> {
    let refused = match access::who_am_i(&access::client(&given, clock, "knarr-agent")?).await {
        Ok(user) => return Ok((given, user)),
        Err(error) => error,
    };
    let store = certificates::Store::at(Layout::at(&args.data_dir).pki());
    let unauthorized = refused.status().is_some_and(|s| s.code() == 401);
    if let Some(kept) = store.identity(&given)
        && unauthorized
        && args.simulate.is_none()
        && let Ok(user) = access::who_am_i(&access::client(&kept, clock, "knarr-agent")?).await
    {
        return Ok((kept, user));
    }
    let followed = (!is_own).then(|| store.trust_file());
    Err(explained(refused, &given, &args.kubeconfig, followed.as_deref()))
}

/// Explains the error like [`access::explained`]; `followed` is the file of authorities that replaced the
/// kubeconfig's.
fn explained(error: Error, given: &Access, kubeconfig: &Path, followed: Option<&Path>) -> anyhow::Error {
    let unreachable = matches!(error, Error::Connection { .. });
    let explained = access::explained(error, given, kubeconfig);
    match followed {
        Some(file) if unreachable => explained.context(format!(
            "the authorities that the cluster has published since are trusted ({}), not those of {}: if the cluster \
             was brought back from an older backup, write a new kubeconfig on its server (`knarr kubeconfig --node \
             NAME`)",
            file.display(),
            kubeconfig.display()
        )),
        _ => explained,
    }
}

async fn run_node(
    args: &AgentArgs,
    given: &Access,
    kubeconfig: String,
    user: &access::User,
    clock: Arc<dyn Clock>,
    progress: &Progress,
) -> Result<()> {
    let stop = CancellationToken::new();
    let options = node_options(args, user)?;
    let clients = ClientAuthorities::new(&client_ca(args, given)?)
        .context("the authorities of the kubelet's clients cannot be used")?;
    let name = options.name.clone();
    let store = certificates::Store::create(options.layout.pki())?;
    let applicant = certificates::Applicant { node: &name, given, user, clock: &clock, store: &store };
    let identity = progress.step("node certificate", applicant.client_identity()).await?;
    let client = access::client(&identity, &clock, "kubelet")?;
    let serving =
        progress.step("serving certificate", applicant.serving_certificate(&identity, options.ip)).await?;
    access::check_rights(&client, &name).await?;

    let serving = ServingCertificate::new(&serving.certificate, &serving.key)
        .context("the kubelet's certificate cannot be used")?;
    let transport = Rotating::new(&identity)?;
    let supervisor = Supervisor::new(Arc::clone(&clock));
    let of = |manager: &str| {
        Client::new(Arc::clone(&transport) as _, Arc::clone(&clock), manager).supervised_by(&supervisor)
    };
    let renewal = rotation::Renewal {
        node: name.clone(),
        given: given.clone(),
        user: user.clone(),
        clock: Arc::clone(&clock),
        store: store.clone(),
        identity: identity.clone(),
        superseded: trust::Superseded::default(),
        ip: options.ip,
        transport: Arc::clone(&transport),
        serving: Arc::clone(&serving),
        kubeconfig,
        clients: args.client_ca_file.is_none().then(|| Arc::clone(&clients)),
    };
    let renewal = Arc::new(tokio::sync::Mutex::new(renewal));
    supervisor.spawn("certificate-renewal", stop.clone(), move |stop| {
        let renewal = Arc::clone(&renewal);
        async move { renewal.lock().await.run(stop).await }
    });
    let (kubelet, network) = (of("kubelet"), of("kube-proxy"));
    let client_not_after: NotAfter = Arc::new(move || transport.not_after());
    let access = NodeAccess { kubelet, network, serving, client_not_after, clients, supervisor };
    let node = node::start(options, access, progress, stop.clone()).await?;
    progress.ready(&[format!("node        {name}, in the cluster of {}", given.server)]);

    signals::wait_for_stop().await;
    println!("\nStopping; containers keep running, and the next start takes them over");
    stop.cancel();
    node.stopped().await;
    Ok(())
}

fn node_options(args: &AgentArgs, user: &access::User) -> Result<NodeOptions> {
    let name = match (args.node.given_name(), user.node()) {
        (None, Some(node)) => node.to_owned(),
        _ => args.node.name()?,
    };
    if let Some(other) = user.node().filter(|node| *node != name) {
        bail!(
            "{} is the access of node {other}, but this node is called {name}: leave --node-name out, or take \
             another kubeconfig",
            args.kubeconfig.display()
        );
    }
    let cidr = |option: &str, text: &str| {
        text.parse::<Ipv4Cidr>()
            .map_err(|_| anyhow::anyhow!("{option}: {text} is not an IPv4 range such as 10.42.0.0/16"))
    };
    cidr("--cluster-cidr", &args.cluster_cidr)?;
    let services = cidr("--service-cidr", &args.service_cidr)?;
    let layout = Layout::create(&args.data_dir)?;
    Ok(NodeOptions {
        name,
        ip: args.node.ip()?,
        kubelet_dir: args.node.kubelet_dir(&layout)?,
        layout,
        cgroup_root: args.node.cgroup_root(),
        cluster_cidr: args.cluster_cidr.clone(),
        service_cidr: (services.network(), services.prefix_len()),
        cluster_dns: args.cluster_dns,
        cluster_domain: args.cluster_domain.clone(),
        control_plane: false,
        labels: args.node.labels()?,
        resolv_conf: args.node.resolv_conf(),
        kubelet_port: args.node.kubelet_port(),
        healthz: args.node.healthz(),
        api_port: None,
        thresholds: args.node.thresholds(),
        pod_max_pids: args.node.pod_max_pids(),
        reservation: args.node.reservation(false),
        allowed_unsafe_sysctls: args.node.allowed_unsafe_sysctls(),
        seccomp_default: args.node.seccomp_default(),
        image_verification: args.node.image_verification()?,
        mirrors: args.node.mirrors(),
        runtime: args.node.runtime(),
        network: args.node.network(),
        flags: ShownFlags::of_process().all(),
    })
}

/// Returns the authority of the kubelet's clients. It is required: without one, the kubelet would accept no
/// client or every client.
fn client_ca(args: &AgentArgs, given: &Access) -> Result<String> {
    let pem = match &args.client_ca_file {
        Some(file) => std::fs::read(file).with_context(|| format!("cannot read {}", file.display()))?,
        None => given.certificate_authority.clone().with_context(|| {
            format!(
                "{} names no certificate authority: give the one that signs clients' certificates with --client-ca-file",
                args.kubeconfig.display()
            )
        })?,
    };
    String::from_utf8(pem).context("the certificate authority is not PEM")
}

/// Returns the access with this certificate and key.
fn with_credentials(given: &Access, credentials: &Credentials) -> Access {
    Access {
        client_certificate: Some(credentials.certificate.clone().into_bytes()),
        client_key: Some(credentials.key.clone().into_bytes()),
        token: None,
        ..given.clone()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn authorities_that_took_the_place_of_the_kubeconfigs_are_named() {
        let error =
            || Error::Connection { server: "https://10.0.0.1:6443".into(), source: "unknown issuer".into() };
        let access = Access { server: "https://10.0.0.1:6443".into(), ..Access::default() };
        let words = |followed: Option<&Path>| {
            format!("{:#}", explained(error(), &access, Path::new("worker.kubeconfig"), followed))
        };
        assert!(words(None).starts_with("check that the server runs"));
        let followed = words(Some(Path::new("/d/pki/cluster-ca.pem")));
        assert!(followed.contains("(/d/pki/cluster-ca.pem), not those of worker.kubeconfig"), "{followed}");
        assert!(
            followed.contains("knarr kubeconfig --node") && followed.ends_with("unknown issuer"),
            "{followed}"
        );
    }
}
