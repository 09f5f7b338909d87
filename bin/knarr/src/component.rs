//! A component of the control plane in its own process: its access to the API server, and the lease that
//! makes one of several such processes active.

use std::future::Future;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use clap::Args;
use knarr_api::gates;
use knarr_apimachinery::clock::Clock;
use knarr_apimachinery::zpages;
use knarr_apiserver::SYSTEM_VERSION;
use knarr_client::clock::SystemClock;
use knarr_client::kubeconfig::Access;
use knarr_client::leader_election::LeaderElection;
use knarr_client::leadership::Leadership;
use knarr_client::rotating::Rotating;
use knarr_client::{Client, Supervisor};
use knarr_scheduler::config::go_duration::GoDuration;
use knarr_scheduler::config::process::{ClientConnection, LeaderElection as ConfiguredLease};
use serde_json::{Value, json};
use tokio_util::sync::CancellationToken;

use crate::api_flags::{COORDINATED_LEADER_ELECTION, GENERIC_WORKLOAD, STORAGE_VERSION_API};
use crate::followed_kubeconfig::FollowedKubeconfig;
use crate::progress::Progress;
use crate::serving::{Bound, Check, Pages, ServingArgs};
use crate::shown_flags::ShownFlags;
use crate::{access, api_flags, leading, preflight, signals};

#[derive(Args)]
pub struct ComponentArgs {
    /// Access to the API server
    #[arg(long, value_name = "FILE")]
    kubeconfig: Option<PathBuf>,
    /// Act only while holding a lease, so that several replicas may run [default: true]
    #[arg(long, num_args = 0..=1, require_equals = true, default_missing_value = "true", action = clap::ArgAction::Set)]
    leader_elect: Option<bool>,
    /// Namespace of the lease [default: kube-system]
    #[arg(long, value_name = "NAME")]
    leader_elect_resource_namespace: Option<String>,
    /// Name of the lease [default: the component's]
    #[arg(long, value_name = "NAME")]
    leader_elect_resource_name: Option<String>,
    /// How long others wait for a renewal before they take the lease over [default: 15s]
    #[arg(long, value_name = "DURATION", value_parser = api_flags::duration)]
    leader_elect_lease_duration: Option<Duration>,
    /// How long the holder tries to renew its lease before it gives up [default: 10s]
    #[arg(long, value_name = "DURATION", value_parser = api_flags::duration)]
    leader_elect_renew_deadline: Option<Duration>,
    /// How long to wait between attempts to acquire or renew the lease [default: 2s]
    #[arg(long, value_name = "DURATION", value_parser = api_flags::duration)]
    leader_elect_retry_period: Option<Duration>,
    /// Feature gates, the same as those of the API server: `GenericWorkload=true`
    #[arg(long, default_value = "", value_name = "NAME=BOOL,...")]
    feature_gates: String,
    #[command(flatten)]
    serving: ServingArgs,
}

/// How a component identifies itself.
#[derive(Clone, Copy)]
pub struct Identity {
    /// The name that it uses at the API, such as `kube-scheduler`.
    pub name: &'static str,
    /// The default port of its pages.
    pub port: u16,
}

/// What the pages of a component serve.
pub struct Shown {
    /// Health checks besides that of the lease.
    pub checks: Box<dyn Fn() -> Vec<Check> + Send + Sync>,
    /// The endpoints in which the checks of the lease and of the tasks take part.
    pub count_at: &'static [&'static str],
    pub metrics: Box<dyn Fn() -> String + Send + Sync>,
    pub config: Value,
}

/// A component that has contacted its API server.
pub struct Component {
    pub access: Access,
    pub clock: Arc<dyn Clock>,
    /// A client with the kubeconfig's identity.
    pub client: Client,
    /// The supervisor whose tasks are among the health checks.
    pub supervisor: Supervisor,
    name: &'static str,
    election: Option<LeaderElection>,
    port: Option<Bound>,
    progress: Progress,
    kubeconfig: FollowedKubeconfig,
}

impl Component {
    /// Binds the port and makes the first request to the API server.
    pub async fn start(args: &ComponentArgs, Identity { name, port }: Identity) -> Result<Self> {
        let features = api_flags::features(&args.feature_gates)?;
        features.notes().iter().for_each(|note| tracing::warn!("{note}"));
        gates::GENERIC_WORKLOAD.set(features.is_on(GENERIC_WORKLOAD));
        gates::STORAGE_VERSION_API.set(features.is_on(STORAGE_VERSION_API));
        let coordinated = features.is_on(COORDINATED_LEADER_ELECTION);
        let election = args.election(name)?.map(|election| LeaderElection { coordinated, ..election });
        let kubeconfig =
            args.kubeconfig.as_deref().context("--kubeconfig FILE says where the API server is")?;
        let access =
            Access::load(kubeconfig).with_context(|| format!("cannot use {}", kubeconfig.display()))?;
        let clock: Arc<dyn Clock> = Arc::new(SystemClock);
        let supervisor = Supervisor::new(Arc::clone(&clock));
        let followed = FollowedKubeconfig::new(kubeconfig, access.clone())?;
        let client = followed.client(&clock, name).supervised_by(&supervisor);
        let port = args.serving.bind(port, &clock)?;
        let progress = Progress::start();
        progress
            .step("API server", async {
                let user = access::who_am_i(&client).await;
                let user = user.map_err(|error| access::explained(error, &access, kubeconfig))?;
                Ok(((), format!("{} as {}", access.server, user.name)))
            })
            .await?;
        Ok(Self { access, clock, client, supervisor, name, election, port, progress, kubeconfig: followed })
    }

    /// Returns the transport to the API server for clients that bring their own identity.
    pub fn without_identity(&self) -> Arc<Rotating> {
        self.kubeconfig.without_identity()
    }

    /// Runs `work` until a signal arrives: all the time, or only while this process holds the lease. `work`
    /// ends when `until` of its leadership is cancelled, and writes through clients that are bound to that
    /// leadership.
    pub async fn run<F, Fut>(mut self, shown: Shown, work: F) -> Result<()>
    where
        F: Fn(Leadership) -> Fut + Send + Sync + 'static,
        Fut: Future<Output = ()> + Send,
    {
        let stop = CancellationToken::new();
        let (kubeconfig, clock) = (self.kubeconfig.clone(), Arc::clone(&self.clock));
        let follow = move |stop| kubeconfig.clone().follow(Arc::clone(&clock), stop);
        self.supervisor.spawn("kubeconfig", stop.clone(), follow);
        if let Some(port) = self.port.take() {
            port.serve(self.pages(shown), &self.supervisor, stop.clone());
        }
        let lease =
            self.election.as_ref().map(|e| format!("acts while it holds lease {}/{}", e.namespace, e.name));
        if let Some(election) = self.election.as_ref().filter(|election| election.coordinated) {
            let (client, election, name) = (self.client.clone(), election.clone(), self.name);
            let stand = move |stop| leading::stand(client.clone(), &election, name, stop);
            self.supervisor.spawn("lease-candidate", stop.clone(), stand);
        }
        let (client, election, until) = (self.client.clone(), self.election, stop.clone());
        let work = Arc::new(work);
        // Parts of the work are supervised tasks of their own; this task surrounds them.
        let running = self.supervisor.spawn(self.name, until, move |until| {
            let (client, election, work) = (client.clone(), election.clone(), Arc::clone(&work));
            async move {
                match election {
                    Some(election) => election.while_leading(client, until, |leading| work(leading)).await,
                    None => work(Leadership::unelected(until)).await,
                }
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
        let Shown { checks, count_at, metrics, config } = shown;
        let supervisor = self.supervisor.clone();
        let checks = move || {
            let now = clock.monotonic();
            let tasks = supervisor.health().into_iter().map(|task| Check {
                name: task.name,
                endpoints: count_at,
                result: task.result,
            });
            let lease = election.as_ref().map(|election| Check {
                name: "leaderElection".into(),
                endpoints: count_at,
                result: election.health(now),
            });
            lease.into_iter().chain(checks()).chain(tasks).collect()
        };
        let metrics = move || {
            let (own, process) = (metrics(), knarr_apiserver::process_metrics());
            format!("{own}{}{process}", knarr_client::metrics::render())
        };
        let (flags, clock) = (ShownFlags::of_process().all(), Arc::clone(&self.clock));
        let component = zpages::Component::new(self.name, SYSTEM_VERSION, flags, clock);
        Pages::new(component, checks, metrics, config)
    }
}

/// The default durations of a lease, in the order of `--leader-elect-lease-duration`, `-renew-deadline`,
/// `-retry-period`.
const LEASE: [Duration; 3] = [Duration::from_secs(15), Duration::from_secs(10), Duration::from_secs(2)];

impl ComponentArgs {
    /// Takes values from a configuration file for flags that were not given.
    pub fn fill(&mut self, connection: &ClientConnection, lease: &ConfiguredLease) {
        let text = |text: &str| (!text.is_empty()).then(|| text.to_owned());
        let duration = |duration: GoDuration| Some(duration.get()).filter(|d| !d.is_zero());
        self.kubeconfig = self.kubeconfig.take().or_else(|| text(&connection.kubeconfig).map(PathBuf::from));
        self.leader_elect = self.leader_elect.or(lease.leader_elect);
        let namespace = &mut self.leader_elect_resource_namespace;
        *namespace = namespace.take().or_else(|| text(&lease.resource_namespace));
        let name = &mut self.leader_elect_resource_name;
        *name = name.take().or_else(|| text(&lease.resource_name));
        let held = &mut self.leader_elect_lease_duration;
        *held = held.or_else(|| duration(lease.lease_duration));
        let renew = &mut self.leader_elect_renew_deadline;
        *renew = renew.or_else(|| duration(lease.renew_deadline));
        let retry = &mut self.leader_elect_retry_period;
        *retry = retry.or_else(|| duration(lease.retry_period));
    }

    fn is_elected(&self) -> bool {
        self.leader_elect.unwrap_or(true)
    }

    fn namespace(&self) -> &str {
        self.leader_elect_resource_namespace.as_deref().unwrap_or("kube-system")
    }

    fn durations(&self) -> [Duration; 3] {
        [
            self.leader_elect_lease_duration.unwrap_or(LEASE[0]),
            self.leader_elect_renew_deadline.unwrap_or(LEASE[1]),
            self.leader_elect_retry_period.unwrap_or(LEASE[2]),
        ]
    }

    /// Returns the lease settings in the form of component configurations.
    pub fn lease_config(&self, name: &str) -> Value {
        let [lease, renew, retry] = self.durations().map(|duration| format!("{}s", duration.as_secs_f64()));
        json!({
            "leaderElect": self.is_elected(),
            "leaseDuration": lease,
            "renewDeadline": renew,
            "retryPeriod": retry,
            "resourceLock": "leases",
            "resourceName": self.leader_elect_resource_name.as_deref().unwrap_or(name),
            "resourceNamespace": self.namespace(),
        })
    }

    pub fn connection_config(&self) -> Value {
        json!({"kubeconfig": self.kubeconfig, "acceptContentTypes": "", "contentType": "application/json"})
    }

    fn election(&self, name: &str) -> Result<Option<LeaderElection>> {
        if !self.is_elected() {
            return Ok(None);
        }
        let [lease, renew, retry] = self.durations();
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
            ..LeaderElection::new(self.namespace(), lease_name, &identity)
        };
        Ok(Some(election))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;
    use knarr_scheduler::config::Configuration;

    #[derive(Parser)]
    struct Command {
        #[command(flatten)]
        component: ComponentArgs,
    }

    #[test]
    fn flags_come_before_the_file_and_the_file_before_the_defaults() {
        let file = "apiVersion: kubescheduler.config.k8s.io/v1\nkind: KubeSchedulerConfiguration\n\
            clientConnection: {kubeconfig: /etc/file}\n\
            leaderElection: {leaderElect: false, leaseDuration: 1m, resourceName: mine}\n";
        let file = Configuration::from_yaml(file).unwrap();
        let filled = |words: &[&str]| {
            let mut args = Command::parse_from([&["x"], words].concat()).component;
            args.fill(&file.client_connection, &file.leader_election);
            (args.connection_config()["kubeconfig"].clone(), args.lease_config("own"))
        };
        let (kubeconfig, lease) = filled(&[]);
        assert_eq!(kubeconfig, "/etc/file");
        assert_eq!(
            (&lease["leaderElect"], &lease["leaseDuration"], &lease["renewDeadline"]),
            (&json!(false), &json!("60s"), &json!("10s"))
        );
        assert_eq!(
            (&lease["resourceName"], &lease["resourceNamespace"]),
            (&json!("mine"), &json!("kube-system"))
        );
        let (kubeconfig, lease) =
            filled(&["--kubeconfig=/etc/flag", "--leader-elect", "--leader-elect-lease-duration=20s"]);
        assert_eq!((kubeconfig, &lease["leaderElect"]), (json!("/etc/flag"), &json!(true)));
        assert_eq!(lease["leaseDuration"], "20s");
    }

    #[test]
    fn who_is_not_elected_may_have_any_durations() {
        let election =
            |words: &[&str]| Command::parse_from([&["x"], words].concat()).component.election("own");
        assert!(election(&["--leader-elect=false", "--leader-elect-lease-duration=5s"]).unwrap().is_none());
        assert!(election(&["--leader-elect-lease-duration=5s"]).is_err());
    }
}
