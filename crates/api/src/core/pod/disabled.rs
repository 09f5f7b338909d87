//! Fields of features that are off by default in 1.37: they are dropped wherever a pod spec stands.

use crate::defaults::{Fields, existing, items};
use crate::gates::GENERIC_WORKLOAD;

const CONTAINERS: [&str; 3] = ["containers", "initContainers", "ephemeralContainers"];
/// Volumes of files that come with a mode, and maybe an owner.
const WRITTEN: [&str; 4] = ["secret", "configMap", "downwardAPI", "projected"];
/// Sources of such files.
const PROJECTED: [&str; 6] =
    ["secret", "configMap", "downwardAPI", "serviceAccountToken", "clusterTrustBundle", "podCertificate"];

pub fn drop_fields(spec: &mut Fields) {
    if !GENERIC_WORKLOAD.is_on() {
        spec.remove("schedulingGroup");
    }
    spec.remove("evictionResponders");
    for volume in items(spec, "volumes") {
        self::volume(volume);
    }
    for list in CONTAINERS {
        for container in items(spec, list) {
            self::container(container);
        }
    }
}

/// Who owns the files of a volume, and the mode of an empty one.
fn volume(volume: &mut Fields) {
    if let Some(empty) = existing(volume, "emptyDir") {
        empty.remove("mode");
    }
    for source in WRITTEN {
        let Some(source) = existing(volume, source) else { continue };
        source.remove("defaultUser");
        items(source, "items").for_each(|file| drop(file.remove("user")));
        for projection in items(source, "sources") {
            for source in PROJECTED {
                let Some(source) = existing(projection, source) else { continue };
                source.remove("user");
                items(source, "items").for_each(|file| drop(file.remove("user")));
            }
        }
    }
}

/// Stop signals, other protocols of probes, options of mounts.
fn container(container: &mut Fields) {
    items(container, "volumeMounts").for_each(|mount| drop(mount.remove("bindMountOptions")));
    for probe in ["livenessProbe", "readinessProbe", "startupProbe"] {
        let Some(probe) = existing(container, probe) else { continue };
        if let Some(get) = existing(probe, "httpGet") {
            get.remove("protocol");
        }
        if let Some(call) = existing(probe, "grpc") {
            call.remove("mode");
        }
    }
    if let Some(lifecycle) = existing(container, "lifecycle") {
        lifecycle.remove("stopSignal");
        for hook in ["postStart", "preStop"] {
            if let Some(get) = existing(lifecycle, hook).and_then(|hook| existing(hook, "httpGet")) {
                get.remove("protocol");
            }
        }
    }
}
