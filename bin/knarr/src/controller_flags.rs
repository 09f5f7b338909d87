//! The controllers' flags, under upstream's names and with its defaults, and the settings that they select.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use clap::parser::ArgMatches;
use clap::{Arg, Args, Command, FromArgMatches};
use k8s_openapi::api::core::v1::Pod;
use knarr_controllers::{AutoscalerSettings, NodeSettings, RecyclerSettings, Scrubbing, Settings};

use crate::api_flags::duration;
use crate::picture;

#[derive(Args, Clone, Debug)]
#[command(next_help_heading = "Controllers")]
pub struct ControllerArgs {
    /// How long a node may be unresponsive before it is marked unhealthy
    #[arg(long, value_name = "DURATION", default_value = "50s", value_parser = duration)]
    node_monitor_grace_period: Duration,
    /// How long a starting node may be unresponsive before it is marked unhealthy
    #[arg(long, value_name = "DURATION", default_value = "1m0s", value_parser = duration)]
    node_startup_grace_period: Duration,
    /// Nodes per second from which pods are evicted on node failure in a healthy zone; 0 for none
    #[arg(long, value_name = "RATE", default_value_t = 0.1)]
    node_eviction_rate: f64,
    /// Nodes per second from which pods are evicted in an unhealthy zone that is large; small ones evict none
    #[arg(long, value_name = "RATE", default_value_t = 0.01)]
    secondary_node_eviction_rate: f64,
    /// Fraction of a zone's nodes, at least three, that are not ready when the zone counts as unhealthy
    #[arg(long, value_name = "PART", default_value_t = 0.55)]
    unhealthy_zone_threshold: f64,
    /// Number of nodes above which a zone is large
    #[arg(long, value_name = "COUNT", default_value_t = 50)]
    large_cluster_size_threshold: usize,
    /// Number of terminated pods above which the oldest are deleted; 0 keeps all
    #[arg(long, value_name = "COUNT", default_value_t = 12_500)]
    terminated_pod_gc_threshold: usize,
    /// Never detach a volume from an unresponsive node before it is tainted as out of service
    #[arg(long, value_name = "BOOL", default_value_t = false, action = clap::ArgAction::Set, num_args = 0..=1, require_equals = true, default_missing_value = "true")]
    disable_force_detach_on_timeout: bool,
    /// How often autoscalers read metrics
    #[arg(long, value_name = "DURATION", default_value = "15s", value_parser = duration)]
    horizontal_pod_autoscaler_sync_period: Duration,
    /// How long autoscalers hold the highest recommendation
    #[arg(long, value_name = "DURATION", default_value = "5m0s", value_parser = duration)]
    horizontal_pod_autoscaler_downscale_stabilization: Duration,
    /// How far the ratio of actual to desired metrics may be from 1 before autoscalers scale
    #[arg(long, value_name = "PART", default_value_t = 0.1)]
    horizontal_pod_autoscaler_tolerance: f64,
    /// How long after a pod's start its CPU samples may be skipped
    #[arg(long, value_name = "DURATION", default_value = "5m0s", value_parser = duration)]
    horizontal_pod_autoscaler_cpu_initialization_period: Duration,
    /// How long after a pod's start a readiness change counts as the initial one
    #[arg(long, value_name = "DURATION", default_value = "30s", value_parser = duration)]
    horizontal_pod_autoscaler_initial_readiness_delay: Duration,
    /// Longest lifetime of issued certificates
    #[arg(long, value_name = "DURATION", default_value = "8760h0m0s", value_parser = duration)]
    cluster_signing_duration: Duration,
    /// How long tokens in Secrets may stay unused before they are deleted
    #[arg(long, value_name = "DURATION", default_value = "8760h0m0s", value_parser = duration)]
    legacy_service_account_token_clean_up_period: Duration,
    /// How often quota usage is recalculated
    #[arg(long, value_name = "DURATION", default_value = "5m0s", value_parser = duration)]
    resource_quota_sync_period: Duration,
    /// Most endpoints in one EndpointSlice, 1 to 1000
    #[arg(long, value_name = "COUNT", default_value_t = 100, value_parser = clap::builder::RangedU64ValueParser::<usize>::new().range(1..=1000))]
    max_endpoints_per_slice: usize,
    /// Most endpoints of one subset that are mirrored, 1 to 1000
    #[arg(long, value_name = "COUNT", default_value_t = 1000, value_parser = clap::builder::RangedU64ValueParser::<usize>::new().range(1..=1000))]
    mirroring_max_endpoints_per_subset: usize,
    /// Pod, as YAML or JSON, that scrubs hostPath volumes with the policy Recycle; its first volume is
    /// replaced
    #[arg(long, value_name = "FILE")]
    pv_recycler_pod_template_filepath_hostpath: Option<PathBuf>,
    /// Pod, as YAML or JSON, that scrubs NFS volumes with the policy Recycle; its first volume is replaced
    #[arg(long, value_name = "FILE")]
    pv_recycler_pod_template_filepath_nfs: Option<PathBuf>,
    /// Least time in seconds that scrubbing a hostPath volume may take
    #[arg(long, value_name = "SECONDS", default_value_t = 60, value_parser = clap::value_parser!(i64).range(1..))]
    pv_recycler_minimum_timeout_hostpath: i64,
    /// Least time in seconds that scrubbing an NFS volume may take
    #[arg(long, value_name = "SECONDS", default_value_t = 300, value_parser = clap::value_parser!(i64).range(1..))]
    pv_recycler_minimum_timeout_nfs: i64,
    /// Seconds per GiB that scrubbing a hostPath volume may take
    #[arg(long, value_name = "SECONDS", default_value_t = 30, value_parser = clap::value_parser!(i64).range(0..))]
    pv_recycler_timeout_increment_hostpath: i64,
    /// Seconds per GiB that scrubbing an NFS volume may take
    #[arg(long, value_name = "SECONDS", default_value_t = 30, value_parser = clap::value_parser!(i64).range(0..))]
    pv_recycler_increment_timeout_nfs: i64,
    #[command(flatten)]
    workers: Workers,
}

/// The flags that set how many objects a controller syncs concurrently, each with its controller.
const WORKERS: &[(&str, &str)] = &[
    ("concurrent-cron-job-syncs", "cronjob-controller"),
    ("concurrent-daemonset-syncs", "daemonset-controller"),
    ("concurrent-deployment-syncs", "deployment-controller"),
    ("concurrent-device-taint-eviction-syncs", "device-taint-eviction-controller"),
    ("concurrent-endpoint-syncs", "endpoints-controller"),
    ("concurrent-ephemeralvolume-syncs", "ephemeral-volume-controller"),
    ("concurrent-gc-syncs", "garbage-collector-controller"),
    ("concurrent-horizontal-pod-autoscaler-syncs", "horizontal-pod-autoscaler-controller"),
    ("concurrent-job-syncs", "job-controller"),
    ("concurrent-namespace-syncs", "namespace-controller"),
    ("concurrent-rc-syncs", "replicationcontroller-controller"),
    ("concurrent-replicaset-syncs", "replicaset-controller"),
    ("concurrent-resource-quota-syncs", "resourcequota-controller"),
    ("concurrent-resourceclaim-syncs", "resourceclaim-controller"),
    ("concurrent-service-endpoint-syncs", "endpointslice-controller"),
    ("concurrent-serviceaccount-token-syncs", "serviceaccount-token-controller"),
    ("concurrent-statefulset-syncs", "statefulset-controller"),
    ("concurrent-ttl-after-finished-syncs", "ttl-after-finished-controller"),
    ("concurrent-validating-admission-policy-status-syncs", "validatingadmissionpolicy-status-controller"),
    ("mirroring-concurrent-service-endpoint-syncs", "endpointslice-mirroring-controller"),
];

/// The given numbers, by controller.
#[derive(Clone, Debug, Default)]
struct Workers(BTreeMap<&'static str, usize>);

impl Args for Workers {
    fn augment_args(command: Command) -> Command {
        let usual = Settings::default().workers;
        command.args(WORKERS.iter().map(|(flag, controller)| {
            let usual = usual.get(controller).copied().unwrap_or(1);
            Arg::new(*flag)
                .long(*flag)
                .value_name("COUNT")
                .value_parser(clap::builder::RangedU64ValueParser::<usize>::new().range(1..=1000))
                .help(format!("Objects that {controller} works on at once [default: {usual}]"))
                .hide_short_help(true)
        }))
    }

    fn augment_args_for_update(command: Command) -> Command {
        Self::augment_args(command)
    }
}

impl FromArgMatches for Workers {
    fn from_arg_matches(matches: &ArgMatches) -> Result<Self, clap::Error> {
        let given = |(flag, controller): &(&'static str, &'static str)| {
            matches.get_one::<usize>(flag).map(|count| (*controller, *count))
        };
        Ok(Self(WORKERS.iter().filter_map(given).collect()))
    }

    fn update_from_arg_matches(&mut self, matches: &ArgMatches) -> Result<(), clap::Error> {
        self.0.extend(Self::from_arg_matches(matches)?.0);
        Ok(())
    }
}

impl ControllerArgs {
    /// Returns the settings, or an error if they make no sense.
    pub fn settings(&self) -> Result<Settings> {
        for (flag, rate) in [
            ("--node-eviction-rate", self.node_eviction_rate),
            ("--secondary-node-eviction-rate", self.secondary_node_eviction_rate),
            ("--horizontal-pod-autoscaler-tolerance", self.horizontal_pod_autoscaler_tolerance),
        ] {
            if !rate.is_finite() || rate < 0.0 {
                bail!("{flag}: {rate} is negative: it must be 0 or more");
            }
        }
        if !(0.0..=1.0).contains(&self.unhealthy_zone_threshold) {
            bail!("--unhealthy-zone-threshold: {} is no part of 1", self.unhealthy_zone_threshold);
        }
        for (flag, period) in [
            ("--horizontal-pod-autoscaler-sync-period", self.horizontal_pod_autoscaler_sync_period),
            ("--resource-quota-sync-period", self.resource_quota_sync_period),
            ("--cluster-signing-duration", self.cluster_signing_duration),
        ] {
            if period < Duration::from_secs(1) {
                bail!("{flag} must be at least one second");
            }
        }
        Ok(Settings {
            workers: Settings::default().workers.into_iter().chain(self.workers.0.clone()).collect(),
            nodes: NodeSettings {
                monitor_grace: self.node_monitor_grace_period,
                startup_grace: self.node_startup_grace_period,
                eviction_rate: self.node_eviction_rate,
                secondary_eviction_rate: self.secondary_node_eviction_rate,
                unhealthy_zone_threshold: self.unhealthy_zone_threshold,
                large_cluster_size: self.large_cluster_size_threshold,
            },
            autoscaler: AutoscalerSettings {
                sync_period: self.horizontal_pod_autoscaler_sync_period,
                tolerance: self.horizontal_pod_autoscaler_tolerance,
                downscale_stabilization: self.horizontal_pod_autoscaler_downscale_stabilization,
                cpu_initialization: self.horizontal_pod_autoscaler_cpu_initialization_period,
                initial_readiness: self.horizontal_pod_autoscaler_initial_readiness_delay,
            },
            terminated_pods_kept: (self.terminated_pod_gc_threshold > 0)
                .then_some(self.terminated_pod_gc_threshold),
            certificate_lifetime: self.cluster_signing_duration,
            never_force_detach: self.disable_force_detach_on_timeout,
            max_endpoints_per_slice: self.max_endpoints_per_slice,
            max_mirrored_per_subset: self.mirroring_max_endpoints_per_subset,
            quota_resync: self.resource_quota_sync_period,
            legacy_token_unused_for: self.legacy_service_account_token_clean_up_period,
            recyclers: RecyclerSettings {
                host_path: Scrubbing {
                    template: pod_template(
                        "--pv-recycler-pod-template-filepath-hostpath",
                        self.pv_recycler_pod_template_filepath_hostpath.as_deref(),
                    )?,
                    minimum_seconds: self.pv_recycler_minimum_timeout_hostpath,
                    seconds_per_gi: self.pv_recycler_timeout_increment_hostpath,
                },
                nfs: Scrubbing {
                    template: pod_template(
                        "--pv-recycler-pod-template-filepath-nfs",
                        self.pv_recycler_pod_template_filepath_nfs.as_deref(),
                    )?,
                    minimum_seconds: self.pv_recycler_minimum_timeout_nfs,
                    seconds_per_gi: self.pv_recycler_increment_timeout_nfs,
                },
            },
        })
    }
}

/// Reads the one pod of the file, which must have a volume.
fn pod_template(flag: &str, file: Option<&Path>) -> Result<Option<Arc<Pod>>> {
    let Some(file) = file else { return Ok(None) };
    let named = || format!("{flag}: {}", file.display());
    let mut objects = picture::objects(file).with_context(|| flag.to_owned())?;
    let (Some(object), true) = (objects.pop(), objects.is_empty()) else {
        bail!("{}: one pod is wanted", named());
    };
    let pod: Pod = serde_json::from_value(object).with_context(named)?;
    if pod.spec.as_ref().and_then(|spec| spec.volumes.as_ref()).is_none_or(Vec::is_empty) {
        bail!("{}: does not contain any volume(s)", named());
    }
    Ok(Some(Arc::new(pod)))
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use clap::Parser;
    use knarr_controllers::names;

    use super::*;

    #[derive(Parser)]
    struct Given {
        #[command(flatten)]
        args: ControllerArgs,
    }

    fn settings(flags: &[&str]) -> Result<Settings> {
        Given::try_parse_from([&["knarr"], flags].concat())?.args.settings()
    }

    #[test]
    fn templates_of_recyclers_are_pods_with_a_volume() {
        let file = std::env::temp_dir().join(format!("knarr-recycler-{}-pod.yaml", std::process::id()));
        let read = |text: &str| {
            std::fs::write(&file, text).unwrap();
            settings(&["--pv-recycler-pod-template-filepath-nfs", &file.display().to_string()])
        };
        let pod = "apiVersion: v1\nkind: Pod\nmetadata: {namespace: a}\nspec: {volumes: [{name: v}]}\n";
        let template = read(pod).unwrap().recyclers.nfs.template.unwrap();
        assert_eq!(template.metadata.namespace.as_deref(), Some("a"));
        let error = read("apiVersion: v1\nkind: Pod\n").unwrap_err().to_string();
        assert!(error.contains("pod.yaml: does not contain any volume(s)"), "{error}");
        assert!(settings(&["--pv-recycler-pod-template-filepath-nfs", "/nowhere"]).is_err());
        std::fs::remove_file(&file).unwrap();
    }

    #[test]
    fn without_flags_everything_is_as_usual() {
        assert_eq!(settings(&[]).unwrap(), Settings::default());
    }

    #[test]
    fn flags_say_otherwise() {
        let given = settings(&["--concurrent-job-syncs", "9", "--terminated-pod-gc-threshold=0"]).unwrap();
        let workers = |controller: &str| given.workers.get(controller).copied();
        assert_eq!((workers("job-controller"), workers("cronjob-controller")), (Some(9), Some(5)));
        assert_eq!(given.terminated_pods_kept, None);
        for wrong in [
            "--concurrent-job-syncs=0",
            "--node-eviction-rate=-1",
            "--unhealthy-zone-threshold=1.5",
            "--horizontal-pod-autoscaler-sync-period=0",
            "--max-endpoints-per-slice=1001",
        ] {
            assert!(settings(&[wrong]).is_err(), "{wrong}");
        }
    }

    #[test]
    fn every_controller_of_the_table_is_one() {
        let settable: BTreeSet<&str> = WORKERS.iter().map(|(_, controller)| *controller).collect();
        assert!(settable.iter().all(|controller| names().any(|name| name == *controller)), "{settable:?}");
        assert_eq!(
            settable,
            Settings::default().workers.into_keys().collect(),
            "each has a flag and a default"
        );
    }
}
