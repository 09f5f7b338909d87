//! The settings of a kubelet, and the paths of its files.

use std::net::IpAddr;
use std::path::{Path, PathBuf};

use serde_json::{Value, json};

use crate::node_status::{Enforce, Reserved, lease};
use crate::pulled_images::VerificationPolicy;
use crate::sysctls::SysctlPattern;

/// The default limit of processes and threads per pod, far above what pods need. Upstream has no limit unless one
/// is configured: a pod could use up the process ids of the node.
pub const DEFAULT_POD_PIDS: i64 = 4096;

/// Settings of one node. Field names follow KubeletConfiguration where it has them.
#[derive(Debug, Clone)]
pub struct Config {
    pub node_name: String,
    /// The node's addresses, the primary one first; at least one.
    pub node_ips: Vec<IpAddr>,
    /// The parent folder of all the kubelet's files.
    pub data_dir: PathBuf,
    /// Nameservers for pods with `dnsPolicy: ClusterFirst`; empty means that there is no cluster DNS.
    pub cluster_dns: Vec<IpAddr>,
    pub cluster_domain: String,
    /// The path of the host's resolver configuration.
    pub resolv_conf: PathBuf,
    pub max_pods: u32,
    /// The limit of processes and threads per pod; 0 or less means no limit.
    pub pod_pids_limit: i64,
    /// Resources that are reserved for Kubernetes' own processes and for the system's: pods do not get them.
    pub kube_reserved: Reserved,
    pub system_reserved: Reserved,
    /// Whether all pods together are limited.
    pub enforce_node_allocatable: Enforce,
    /// The cgroup above all pods, such as `/kubepods`.
    pub cgroup_root: String,
    pub container_log_max_size: u64,
    pub container_log_max_files: u32,
    /// The namespace whose `kubernetes` service is added to the environment of containers, as in upstream.
    pub master_service_namespace: String,
    /// Whether images are pulled one at a time.
    pub serialize_image_pulls: bool,
    /// The sysctls that pods may set beside the safe ones.
    pub allowed_unsafe_sysctls: Vec<SysctlPattern>,
    /// Whether containers without a seccomp profile get the runtime's default one.
    pub seccomp_default: bool,
    /// When pods must present credentials for images that are on the node.
    pub image_verification: VerificationPolicy,
}

impl Config {
    pub fn new(node_name: &str, node_ip: IpAddr, data_dir: impl Into<PathBuf>) -> Self {
        Self {
            node_name: node_name.to_owned(),
            node_ips: vec![node_ip],
            data_dir: data_dir.into(),
            cluster_dns: Vec::new(),
            cluster_domain: "cluster.local".to_owned(),
            resolv_conf: PathBuf::from("/etc/resolv.conf"),
            max_pods: 110,
            pod_pids_limit: DEFAULT_POD_PIDS,
            kube_reserved: Reserved::default(),
            system_reserved: Reserved::default(),
            enforce_node_allocatable: Enforce::default(),
            cgroup_root: "/kubepods".to_owned(),
            container_log_max_size: 10 << 20,
            container_log_max_files: 5,
            master_service_namespace: "default".to_owned(),
            serialize_image_pulls: false,
            allowed_unsafe_sysctls: Vec::new(),
            seccomp_default: true,
            image_verification: VerificationPolicy::default(),
        }
    }

    pub fn dirs(&self) -> PodDirs {
        PodDirs { root: self.data_dir.clone() }
    }

    /// Returns the content of `/configz`: these settings as a KubeletConfiguration
    /// (kubelet.config.k8s.io/v1beta1).
    pub fn configz(&self) -> Value {
        let allowed_unsafe_sysctls: Vec<String> =
            self.allowed_unsafe_sysctls.iter().map(ToString::to_string).collect();
        json!({"kubeletconfig": {
            "kind": "KubeletConfiguration",
            "apiVersion": "kubelet.config.k8s.io/v1beta1",
            "clusterDNS": self.cluster_dns,
            "clusterDomain": self.cluster_domain,
            "resolvConf": self.resolv_conf,
            "maxPods": self.max_pods,
            "podPidsLimit": self.pod_pids_limit,
            "kubeReserved": self.kube_reserved.to_map(),
            "systemReserved": self.system_reserved.to_map(),
            "enforceNodeAllocatable": [self.enforce_node_allocatable.to_string()],
            "cgroupRoot": self.cgroup_root,
            "containerLogMaxSize": binary_quantity(self.container_log_max_size),
            "containerLogMaxFiles": self.container_log_max_files,
            "serializeImagePulls": self.serialize_image_pulls,
            "allowedUnsafeSysctls": allowed_unsafe_sysctls,
            "seccompDefault": self.seccomp_default,
            "imagePullCredentialsVerificationPolicy": self.image_verification.name().to_string(),
            "preloadedImagesVerificationAllowlist": self.image_verification.allowlist(),
            // These values do not depend on the settings; checks of managed clusters read them.
            "authentication": {
                "anonymous": {"enabled": false},
                "webhook": {"enabled": true, "cacheTTL": "2m0s"},
                "x509": {},
            },
            "authorization": {
                "mode": "Webhook",
                "webhook": {"cacheAuthorizedTTL": "5m0s", "cacheUnauthorizedTTL": "30s"},
            },
            "readOnlyPort": 0,
            "healthzPort": 0,
            "rotateCertificates": true,
            "streamingConnectionIdleTimeout": "4h0m0s",
            "tlsMinVersion": "VersionTLS12",
            "cgroupDriver": "cgroupfs",
            "cgroupsPerQOS": true,
            "failSwapOn": false,
            "nodeLeaseDurationSeconds": lease::DURATION_SECONDS,
            "nodeStatusReportFrequency": "5m0s",
            "nodeStatusUpdateFrequency": "10s",
        }})
    }

    /// Returns the node's addresses as in the API, such as `10.0.0.1` and `fd00::1`.
    pub fn host_ips(&self) -> Vec<String> {
        self.node_ips.iter().map(IpAddr::to_string).collect()
    }
}

/// Formats bytes in the largest unit without a remainder, such as `10Mi`.
fn binary_quantity(bytes: u64) -> String {
    let units = [(1 << 30, "Gi"), (1 << 20, "Mi"), (1 << 10, "Ki")];
    let fits = units.iter().find(|(size, _)| bytes >= *size && bytes.is_multiple_of(*size));
    fits.map_or_else(|| bytes.to_string(), |(size, unit)| format!("{}{unit}", bytes / size))
}

/// The paths of the pods' files.
///
/// ```text
/// DIR/pods/<uid>/etc-hosts
/// DIR/pods/<uid>/containers/<container>/<id>        termination message
/// DIR/pods/<uid>/volumes/kubernetes.io~<plugin>/<volume>
/// DIR/pods/<uid>/volume-subpaths/<volume>/<container>/<index>
/// DIR/logs/<namespace>_<name>_<uid>/<container>/<restart count>.log
/// ```
#[derive(Debug, Clone)]
pub struct PodDirs {
    root: PathBuf,
}

impl PodDirs {
    pub fn new(root: impl Into<PathBuf>) -> Self {
        Self { root: root.into() }
    }

    pub fn root(&self) -> &Path {
        &self.root
    }

    pub fn pods(&self) -> PathBuf {
        self.root.join("pods")
    }

    pub fn pod_dir(&self, uid: &str) -> PathBuf {
        self.pods().join(uid)
    }

    pub fn volumes_dir(&self, uid: &str) -> PathBuf {
        self.pod_dir(uid).join("volumes")
    }

    /// Returns the folder of a volume; `plugin` has no group, such as `empty-dir`.
    pub fn volume_dir(&self, uid: &str, plugin: &str, volume: &str) -> PathBuf {
        self.volumes_dir(uid).join(format!("kubernetes.io~{plugin}")).join(volume)
    }

    pub fn container_dir(&self, uid: &str, container: &str) -> PathBuf {
        self.pod_dir(uid).join("containers").join(container)
    }

    pub fn logs(&self) -> PathBuf {
        self.root.join("logs")
    }

    pub fn pod_logs_dir(&self, namespace: &str, name: &str, uid: &str) -> PathBuf {
        self.logs().join(format!("{namespace}_{name}_{uid}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn configz_says_who_may_ask() {
        let shown = Config::new("n", [192, 0, 2, 1].into(), "/k").configz();
        let shown = &shown["kubeletconfig"];
        assert_eq!(shown["authentication"]["anonymous"]["enabled"], false);
        assert_eq!(shown["authorization"]["mode"], "Webhook");
        assert_eq!((shown["readOnlyPort"].as_u64(), shown["maxPods"].as_u64()), (Some(0), Some(110)));
        assert_eq!(shown["nodeLeaseDurationSeconds"], 40);
    }

    #[test]
    fn sizes_are_shown_as_quantities() {
        for (bytes, shown) in
            [(10 << 20, "10Mi"), (1 << 30, "1Gi"), (1536, "1536"), (3 << 10, "3Ki"), (0, "0")]
        {
            assert_eq!(binary_quantity(bytes), shown);
        }
    }
}
