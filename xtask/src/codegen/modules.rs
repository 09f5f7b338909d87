//! Fetches the Go modules with `go mod download`.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail};

/// The modules that hold API packages.
const API_MODULES: [&str; 5] = [
    "k8s.io/api",
    "k8s.io/apimachinery",
    "k8s.io/apiextensions-apiserver",
    "k8s.io/kube-aggregator",
    "k8s.io/metrics",
];

/// The folders of the modules on this machine.
pub struct Modules {
    /// By module path.
    pub api: BTreeMap<&'static str, PathBuf>,
    /// `k8s.io/kubernetes`.
    pub server: PathBuf,
}

impl Modules {
    /// Returns the folder of a Go package, by its import path.
    pub fn package_dir(&self, import: &str) -> Option<PathBuf> {
        self.api.iter().find_map(|(module, dir)| {
            let rest = import.strip_prefix(module)?.strip_prefix('/')?;
            Some(dir.join(rest))
        })
    }
}

pub fn fetch(api_version: &str, server_version: &str) -> Result<Modules> {
    let mut api = BTreeMap::new();
    for module in API_MODULES {
        api.insert(module, download(module, api_version)?);
    }
    Ok(Modules { api, server: download("k8s.io/kubernetes", server_version)? })
}

fn download(module: &str, version: &str) -> Result<PathBuf> {
    let output = Command::new("go")
        .args(["mod", "download", "-json", &format!("{module}@{version}")])
        // It runs outside of any Go module, so that the caller's go.mod is not used.
        .current_dir(std::env::temp_dir())
        .env("GO111MODULE", "on")
        .output()
        .context("running go (is it installed?)")?;
    let answer: serde_json::Value = serde_json::from_slice(&output.stdout).with_context(|| {
        format!("go mod download {module}@{version}: {}", String::from_utf8_lossy(&output.stderr))
    })?;
    if let Some(error) = answer.get("Error").and_then(|e| e.as_str()) {
        bail!("go mod download {module}@{version}: {error}");
    }
    let dir = answer.get("Dir").and_then(|d| d.as_str()).context("go mod download named no folder")?;
    Ok(Path::new(dir).to_path_buf())
}
