//! The parameters for a driver about a volume and its pod: pure functions.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::api::storage::v1::CSIDriver;
use knarr_api::kind::Kind;

use crate::csi::Capabilities;
use crate::csi::messages::{AccessMode, AccessType, Empty, MountVolume, VolumeCapability};

/// How a volume is mounted, both when it is staged and when it is published.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Form {
    pub fs_type: String,
    pub mount_options: Vec<String>,
    /// The access modes of Kubernetes; the first one counts. `None` means ReadWriteOnce.
    pub access_modes: Option<Vec<String>>,
    pub block: bool,
}

impl Form {
    pub fn capability(&self, can: &Capabilities, group: Option<u32>) -> VolumeCapability {
        let first = self.access_modes.as_ref().and_then(|modes| modes.first());
        let mode = can.access_mode(first.map_or("ReadWriteOnce", String::as_str));
        let access_type = if self.block {
            AccessType::Block(Empty {})
        } else {
            AccessType::Mount(MountVolume {
                fs_type: self.fs_type.clone(),
                mount_flags: self.mount_options.clone(),
                volume_mount_group: group.map(|g| g.to_string()).unwrap_or_default(),
            })
        };
        VolumeCapability { access_type: Some(access_type), access_mode: Some(AccessMode { mode }) }
    }

    /// Returns whether the kubelet applies fsGroup, by the driver's policy.
    pub fn applies_fs_group(&self, policy: &str, read_only: bool, inline: bool) -> bool {
        let once =
            |modes: &Vec<String>| modes.iter().any(|m| m == "ReadWriteOnce" || m == "ReadWriteOncePod");
        match policy {
            _ if read_only => false,
            "None" => false,
            "File" => true,
            _ => !self.fs_type.is_empty() && (inline || self.access_modes.as_ref().is_some_and(once)),
        }
    }
}

/// The fields of a driver's CSIDriver object that matter for pods' volumes, or their defaults without an object.
#[derive(Debug, Clone, PartialEq)]
pub struct Policy {
    pub attach_required: bool,
    pub pod_info: bool,
    pub requires_republish: bool,
    pub fs_group_policy: String,
    /// `None` without a CSIDriver object: then only persistent volumes are supported.
    pub lifecycle_modes: Option<Vec<String>>,
    /// Audiences, each with a lifetime in seconds.
    pub token_requests: Vec<(String, Option<i64>)>,
    pub tokens_in_secrets: bool,
}

impl Policy {
    pub fn of(driver: Option<&CSIDriver>) -> Self {
        let spec = driver.map(|d| d.spec.clone()).unwrap_or_default();
        let policy = spec.fs_group_policy.filter(|p| !p.is_empty());
        let modes = spec.volume_lifecycle_modes.filter(|modes| !modes.is_empty());
        let requests = spec.token_requests.into_iter().flatten();
        Self {
            attach_required: spec.attach_required != Some(false),
            pod_info: spec.pod_info_on_mount == Some(true),
            requires_republish: spec.requires_republish == Some(true),
            fs_group_policy: policy.unwrap_or_else(|| "ReadWriteOnceWithFSType".to_owned()),
            lifecycle_modes: driver.map(|_| modes.unwrap_or_else(|| vec!["Persistent".to_owned()])),
            token_requests: requests.map(|r| (r.audience, r.expiration_seconds)).collect(),
            tokens_in_secrets: spec.service_account_token_in_secrets == Some(true),
        }
    }

    /// Returns the map in which the driver finds the tokens of pods: the secrets of the publish request, which are
    /// not logged, if its CSIDriver asks for that, or else the volume's attributes.
    ///
    /// Source: `podServiceAccountTokenAttrs` of `k8s.io/kubernetes/pkg/volume/csi/csi_mounter.go`, KEP-5538.
    pub fn place_of_tokens<'a>(
        &self,
        secrets: &'a mut BTreeMap<String, String>,
        attributes: &'a mut BTreeMap<String, String>,
    ) -> &'a mut BTreeMap<String, String> {
        if self.tokens_in_secrets { secrets } else { attributes }
    }

    /// Returns an error if the driver does not support volumes of this lifecycle mode.
    pub fn check_mode(&self, driver: &str, mode: &str) -> Result<(), String> {
        match &self.lifecycle_modes {
            None if mode == "Persistent" => Ok(()),
            None => {
                Err(format!("volume mode {mode:?} not supported by driver {driver} (no CSIDriver object)"))
            }
            Some(modes) if modes.iter().any(|m| m == mode) => Ok(()),
            Some(modes) => {
                let listed: Vec<String> = modes.iter().map(|m| format!("{m:?}")).collect();
                let listed = listed.join(" ");
                Err(format!(
                    "volume mode {mode:?} not supported by driver {driver} (only supports [{listed}])"
                ))
            }
        }
    }
}

/// Returns the pod's facts for a driver with `podInfoOnMount`.
pub fn pod_info(pod: &Pod, ephemeral: bool) -> BTreeMap<String, String> {
    let account = pod.spec.as_ref().and_then(|s| s.service_account_name.clone()).unwrap_or_default();
    let facts = [
        ("pod.name", pod.name().to_owned()),
        ("pod.namespace", pod.namespace().to_owned()),
        ("pod.uid", pod.uid().to_owned()),
        ("serviceAccount.name", account),
        ("ephemeral", ephemeral.to_string()),
    ];
    facts.into_iter().map(|(key, value)| (format!("csi.storage.k8s.io/{key}"), value)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    fn policy(spec: Value) -> Policy {
        Policy::of(Some(&serde_json::from_value(json!({"metadata": {"name": "d"}, "spec": spec})).unwrap()))
    }

    #[test]
    fn lifecycle_modes() {
        let none = Policy::of(None);
        assert!(none.attach_required && none.check_mode("d", "Persistent").is_ok());
        assert_eq!(
            none.check_mode("d", "Ephemeral").unwrap_err(),
            "volume mode \"Ephemeral\" not supported by driver d (no CSIDriver object)"
        );
        let persistent = policy(json!({"volumeLifecycleModes": ["Persistent"], "attachRequired": false}));
        assert!(!persistent.attach_required);
        assert_eq!(
            persistent.check_mode("d", "Ephemeral").unwrap_err(),
            "volume mode \"Ephemeral\" not supported by driver d (only supports [\"Persistent\"])"
        );
        assert!(policy(json!({"volumeLifecycleModes": ["Ephemeral"]})).check_mode("d", "Ephemeral").is_ok());
    }

    #[test]
    fn whose_files_are_given_to_the_group() {
        let form = |fs_type: &str, modes: Option<&[&str]>| Form {
            fs_type: fs_type.into(),
            access_modes: modes.map(|m| m.iter().map(|m| (*m).to_owned()).collect()),
            ..Form::default()
        };
        let once: Option<&[&str]> = Some(&["ReadWriteOnce"]);
        let default = "ReadWriteOnceWithFSType";
        let table = [
            (form("ext4", once), default, false, false, true),
            (form("ext4", Some(&["ReadWriteMany"])), default, false, false, false),
            (form("", once), default, false, false, false),
            (form("ext4", None), default, false, false, false),
            (form("ext4", None), default, false, true, true),
            (form("ext4", once), default, true, false, false),
            (form("", Some(&["ReadWriteMany"])), "File", false, false, true),
            (form("ext4", once), "None", false, false, false),
        ];
        for (form, policy, read_only, inline, want) in table {
            assert_eq!(form.applies_fs_group(policy, read_only, inline), want, "{form:?} {policy}");
        }
    }

    #[test]
    fn tokens_are_secrets_for_drivers_that_say_so() {
        let requests = json!([{"audience": "vault"}]);
        for (in_secrets, want) in [(Some(true), (1, 0)), (Some(false), (0, 1)), (None, (0, 1))] {
            let policy =
                policy(json!({"tokenRequests": requests, "serviceAccountTokenInSecrets": in_secrets}));
            let (mut secrets, mut attributes) = (BTreeMap::new(), BTreeMap::new());
            policy.place_of_tokens(&mut secrets, &mut attributes).insert("tokens".into(), "{}".into());
            assert_eq!((secrets.len(), attributes.len()), want, "{in_secrets:?}");
        }
    }

    #[test]
    fn a_capability_says_how_to_mount() {
        let form = Form { fs_type: "xfs".into(), mount_options: vec!["ro".into()], ..Form::default() };
        let capability = form.capability(&Capabilities::default(), Some(7));
        assert_eq!(capability.access_mode.unwrap().mode, 1);
        let Some(AccessType::Mount(mount)) = capability.access_type else { panic!("not mounted") };
        assert_eq!((mount.fs_type.as_str(), mount.volume_mount_group.as_str()), ("xfs", "7"));
        let block = Form { block: true, ..form }.capability(&Capabilities::default(), None);
        assert!(matches!(block.access_type, Some(AccessType::Block(_))));
    }
}
