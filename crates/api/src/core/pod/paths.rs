//! Finds files of one volume whose paths overlap.

use k8s_openapi::api::core::v1::{DownwardAPIVolumeFile, KeyToPath, Volume, VolumeProjection};

/// A file and, in projected volumes, its source.
#[derive(PartialEq)]
struct File {
    path: String,
    source: String,
}

impl File {
    fn new(path: &str, source: &str) -> Self {
        Self { path: path.trim_end_matches('/').to_owned(), source: source.to_owned() }
    }

    fn overlaps(&self, other: &Self) -> bool {
        let below = |a: &str, b: &str| format!("{a}/").starts_with(&format!("{b}/"));
        !self.path.is_empty()
            && !other.path.is_empty()
            && (below(&self.path, &other.path) || below(&other.path, &self.path))
    }
}

impl std::fmt::Display for File {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        if self.source.is_empty() {
            write!(f, "{:?}", self.path)
        } else {
            write!(f, "{:?} ({})", self.path, self.source)
        }
    }
}

/// Returns a warning for each pair of files of a volume of which one hides the other.
pub fn overlaps(volumes: &[Volume]) -> Vec<String> {
    let mut warnings = Vec::new();
    for volume in volumes {
        let mut add = |what: &str, files: Vec<File>| {
            for (i, file) in files.iter().enumerate() {
                for other in files[..i].iter().filter(|other| file.overlaps(other)) {
                    warnings.push(format!(
                        "volume {:?} ({what}): overlapping paths: {file} with {other}",
                        volume.name
                    ));
                }
            }
        };
        if let Some(map) = &volume.config_map {
            add(&format!("ConfigMap {:?}", map.name), keys(map.items.as_deref(), ""));
        }
        if let Some(secret) = &volume.secret {
            let name = secret.secret_name.as_deref().unwrap_or("");
            add(&format!("Secret {name:?}"), keys(secret.items.as_deref(), ""));
        }
        if let Some(downward) = &volume.downward_api {
            add("DownwardAPI", downward_files(downward.items.as_deref(), ""));
        }
        let Some(projected) = &volume.projected else { continue };
        let sources = projected.sources.as_deref().unwrap_or_default();
        add("Projected", sources.iter().flat_map(projection).collect());
        for _ in sources.iter().filter(|s| **s == VolumeProjection::default()) {
            warnings.push(format!("volume {:?} (Projected) has no sources provided", volume.name));
        }
    }
    warnings
}

fn keys(items: Option<&[KeyToPath]>, source: &str) -> Vec<File> {
    items.into_iter().flatten().map(|item| File::new(&item.path, source)).collect()
}

fn downward_files(items: Option<&[DownwardAPIVolumeFile]>, source: &str) -> Vec<File> {
    items.into_iter().flatten().map(|item| File::new(&item.path, source)).collect()
}

fn projection(source: &VolumeProjection) -> Vec<File> {
    if let Some(map) = source.config_map.as_ref().filter(|m| m.items.is_some()) {
        return keys(map.items.as_deref(), &format!("ConfigMap {:?}", map.name));
    }
    if let Some(secret) = source.secret.as_ref().filter(|s| s.items.is_some()) {
        return keys(secret.items.as_deref(), &format!("Secret {:?}", secret.name));
    }
    if let Some(downward) = source.downward_api.as_ref().filter(|d| d.items.is_some()) {
        return downward_files(downward.items.as_deref(), "DownwardAPI");
    }
    if let Some(token) = &source.service_account_token {
        return vec![File::new(&token.path, "ServiceAccountToken")];
    }
    if let Some(bundle) = &source.cluster_trust_bundle {
        let name = bundle.name.as_deref().or(bundle.signer_name.as_deref()).unwrap_or("");
        return vec![File::new(&bundle.path, &format!("ClusterTrustBundle {name:?}"))];
    }
    let Some(certificate) = &source.pod_certificate else { return Vec::new() };
    [
        (&certificate.certificate_chain_path, "PodCertificate chain"),
        (&certificate.key_path, "PodCertificate key"),
        (&certificate.credential_bundle_path, "PodCertificate credential bundle"),
    ]
    .into_iter()
    .filter_map(|(path, what)| path.as_deref().filter(|p| !p.is_empty()).map(|p| File::new(p, what)))
    .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_cannot_lie_in_a_file() {
        let volume: Volume =
            serde_json::from_value(serde_json::json!({"name": "v", "configMap": {"name": "m",
            "items": [{"key": "a", "path": "x"}, {"key": "b", "path": "x/y"}, {"key": "c", "path": "xy"}]}}))
            .unwrap();
        assert_eq!(overlaps(&[volume]), [r#"volume "v" (ConfigMap "m"): overlapping paths: "x/y" with "x""#]);
    }
}
