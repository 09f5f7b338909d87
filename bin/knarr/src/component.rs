//! A part of the control plane in a process of its own: its access to the API server, and the lease that lets one of
//! several such processes act.

use std::future::Future;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use clap::Args;
use knarr_api::gates;
use knarr_apimachinery::clock::Clock;
use knarr_client::Client;
use knarr_client::clock::SystemClock;
use knarr_client::kubeconfig::Access;
use knarr_client::leader_election::LeaderElection;
use serde_json::{Value, json};
use tokio_util::sync::CancellationToken;

use crate::api_flags::GENERIC_WORKLOAD;
use crate::progress::Progress;
use crate::serving::{Bound, Check, Pages, ServingArgs};
use crate::{access, api_flags, leading, preflight, signals};

#[derive(Args)]
pub struct ComponentArgs {
    /// Access to the API server
    #[arg(long, value_name = "FILE")]
    kubeconfig: PathBuf,
    /// Act only while holding a lease, so that several of these may run
    #[arg(long, default_value_t = true, num_args = 0..=1, require_equals = true, default_missing_value = "true", action = clap::ArgAction::Set)]
    leader_elect: bool,
    /// Namespace of the lease
    #[arg(long, default_value = "kube-system", value_name = "NAME")]
    leader_elect_resource_namespace: String,
    /// Name of the lease [default: the component's]
    #[arg(long, value_name = "NAME")]
    leader_elect_resource_name: Option<String>,
    /// After how long without a sign others take a lease over
    #[arg(long, default_value = "15s", value_name = "DURATION", value_parser = api_flags::duration)]
    leader_elect_lease_duration: Duration,
    /// For how long the holder tries to renew its lease before it gives up
    #[arg(long, default_value = "10s", value_name = "DURATION", value_parser = api_flags::duration)]
    leader_elect_renew_deadline: Duration,
    /// How long to wait between two attempts to take or to renew the lease
    #[arg(long, default_value = "2s", value_name = "DURATION", value_parser = api_flags::duration)]
    leader_elect_retry_period: Duration,
    /// Features to switch on or off, as the API server has them: `GenericWorkload=true`
    #[arg(long, default_value = "", value_name = "NAME=BOOL,...")]
    feature_gates: String,
    #[command(flatten)]
    serving: ServingArgs,
}

/// What a component is, to those who look at it.
#[derive(Clone, Copy)]
pub struct Identity {
    /// Its name towards the API, `kube-scheduler` for instance.
    pub name: &'static str,
    /// The port of its pages where none is given.
    pub port: u16,
}

/// What a component shows of itself.
pub struct Shown {
    /// Checks of its health beside that of its lease.
    pub checks: Box<dyn Fn() -> Vec<Check> + Send + Sync>,
    /// Where the check of its lease counts.
    pub lease_counts_at: &'static [&'static str],
    pub metrics: Box<dyn Fn() -> String + Send + Sync>,
    pub config: Value,
}

/// A component that has reached its API server.
pub struct Component {
    pub access: Access,
    pub clock: Arc<dyn Clock>,
    /// Under the kubeconfig's identity.
    pub client: Client,
    name: &'static str,
    election: Option<LeaderElection>,
    port: Option<Bound>,
    progress: Progress,
}

impl Component {
    /// Takes the port and makes the first contact.
    pub async fn start(args: &ComponentArgs, Identity { name, port }: Identity) -> Result<Self> {
        let election = args.election(name)?;
        gates::GENERIC_WORKLOAD.set(api_flags::features(&args.feature_gates)?.is_on(GENERIC_WORKLOAD));
        let access = Access::load(&args.kubeconfig)
            .with_context(|| format!("cannot use {}", args.kubeconfig.display()))?;
        let clock: Arc<dyn Clock> = Arc::new(SystemClock);
        let client = access::client(&access, &clock, name)?;
        let port = args.serving.bind(port, &clock)?;
        let progress = Progress::start();
        progress
            .step("API server", async {
                let user = access::who_am_i(&client).await;
                let user = user.map_err(|error| access::explained(error, &access, &args.kubeconfig))?;
                Ok(((), format!("{} as {}", access.server, user.name)))
            })
            .await?;
        Ok(Self { access, clock, client, name, election, port, progress })
    }

    /// Runs `work` until a signal: all the time, or while holding the lease. `work` ends with the token it is given.
    pub async fn run<F, Fut>(mut self, shown: Shown, work: F) -> Result<()>
    where
        F: Fn(CancellationToken) -> Fut + Send + Sync + 'static,
        Fut: Future<Output = ()> + Send,
    {
        let stop = CancellationToken::new();
        if let Some(port) = self.port.take() {
            port.serve(self.pages(shown), stop.clone())?;
        }
        let lease =
            self.election.as_ref().map(|e| format!("acts while it holds lease {}/{}", e.namespace, e.name));
        let (client, election, until) = (self.client.clone(), self.election, stop.clone());
        let running = tokio::spawn(async move {
            match election {
                Some(election) => leading::while_holding(client, election, until, work).await,
                None => work(until).await,
            }
        });
        self.progress
            .ready(&[lease.unwrap_or_else(|| "acts beside any other: --leader-elect=false".to_owned())]);
        signals::wait_for_stop().await;
        stop.cancel();
        running.await.with_context(|| format!("{} ended unexpectedly", self.name))
    }

    fn pages(&self, shown: Shown) -> Pages {
        let (election, clock) = (self.election.clone(), Arc::clone(&self.clock));
        let Shown { checks, lease_counts_at, metrics, config } = shown;
        let checks = move || {
            let now = clock.monotonic();
            let lease = election.as_ref().map(|election| Check {
                name: "leaderElection",
                endpoints: lease_counts_at,
                result: election.health(now),
            });
            lease.into_iter().chain(checks()).collect()
        };
        let metrics = move || {
            let (own, process) = (metrics(), knarr_apiserver::process_metrics());
            format!("{own}{}{process}", knarr_client::metrics::render())
        };
        Pages::new(self.name, Arc::clone(&self.clock), checks, metrics, config)
    }
}

impl ComponentArgs {
    /// The lease and the way to the API, as component configurations show them.
    pub fn lease_config(&self, name: &str) -> Value {
        let text = |duration: Duration| format!("{}s", duration.as_secs_f64());
        json!({
            "leaderElect": self.leader_elect,
            "leaseDuration": text(self.leader_elect_lease_duration),
            "renewDeadline": text(self.leader_elect_renew_deadline),
            "retryPeriod": text(self.leader_elect_retry_period),
            "resourceLock": "leases",
            "resourceName": self.leader_elect_resource_name.as_deref().unwrap_or(name),
            "resourceNamespace": self.leader_elect_resource_namespace,
        })
    }

    pub fn connection_config(&self) -> Value {
        json!({"kubeconfig": self.kubeconfig, "acceptContentTypes": "", "contentType": "application/json"})
    }

    fn election(&self, name: &str) -> Result<Option<LeaderElection>> {
        let (lease, renew, retry) = (
            self.leader_elect_lease_duration,
            self.leader_elect_renew_deadline,
            self.leader_elect_retry_period,
        );
        if lease <= renew || renew <= retry {
            bail!(
                "--leader-elect-lease-duration ({lease:?}) must be longer than --leader-elect-renew-deadline ({renew:?}), \
                 and that longer than --leader-elect-retry-period ({retry:?})"
            );
        }
        let lease_name = self.leader_elect_resource_name.as_deref().unwrap_or(name);
        let identity = leading::identity(&preflight::node_name()?);
        let election = LeaderElection {
            lease_duration: lease,
            renew_deadline: renew,
            retry_period: retry,
            ..LeaderElection::new(&self.leader_elect_resource_namespace, lease_name, &identity)
        };
        Ok(self.leader_elect.then_some(election))
    }
}
