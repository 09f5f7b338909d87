//! Programs built from the published Go modules: the suite, its runner, kubectl, and the programs of the test
//! images.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail};

/// The release of Kubernetes whose suite is run.
pub const VERSION: &str = "1.37.0";

/// Modules that `k8s.io/kubernetes` replaces by its own folders, and that other modules must name
/// explicitly.
const STAGING: &[&str] = &[
    "api",
    "apiextensions-apiserver",
    "apimachinery",
    "apiserver",
    "cli-runtime",
    "client-go",
    "cloud-provider",
    "cluster-bootstrap",
    "code-generator",
    "component-base",
    "component-helpers",
    "controller-manager",
    "cri-api",
    "cri-client",
    "cri-streaming",
    "csi-translation-lib",
    "dynamic-resource-allocation",
    "endpointslice",
    "externaljwt",
    "kms",
    "kube-aggregator",
    "kube-controller-manager",
    "kube-proxy",
    "kube-scheduler",
    "kubectl",
    "kubelet",
    "metrics",
    "mount-utils",
    "pod-security-admission",
    "sample-apiserver",
    "streaming",
];

/// Programs by name, with their Go package; the suite itself is a test binary.
const PROGRAMS: &[(&str, &str)] = &[
    ("kubectl", "k8s.io/kubernetes/cmd/kubectl"),
    ("e2e.test", "k8s.io/kubernetes/test/e2e"),
    ("ginkgo", "github.com/onsi/ginkgo/v2/ginkgo"),
    ("agnhost", "k8s.io/kubernetes/test/images/agnhost"),
    ("nnp", "k8s.io/kubernetes/test/images/nonewprivs"),
    ("consumer", "k8s.io/kubernetes/test/images/resource-consumer"),
    ("consume-cpu", "k8s.io/kubernetes/test/images/resource-consumer/consume-cpu"),
    ("regression-issue-74839", "k8s.io/kubernetes/test/images/regression-issue-74839"),
    ("sample-apiserver", "k8s.io/sample-apiserver"),
];

/// The folder of the built programs, and that of the sources.
pub struct Programs {
    folder: PathBuf,
    /// `k8s.io/kubernetes` in Go's module cache.
    pub sources: PathBuf,
}

impl Programs {
    /// Builds the programs that the cache does not have in this version.
    pub fn build(cache: &Path) -> Result<Self> {
        let folder = cache.join("bin");
        let stamp = folder.join("VERSION");
        if fs::read_to_string(&stamp).unwrap_or_default().trim() != VERSION {
            let _ = fs::remove_dir_all(&folder);
        }
        fs::create_dir_all(&folder)?;
        fs::write(&stamp, VERSION)?;
        let module = module(cache)?;
        for (name, package) in PROGRAMS {
            if !folder.join(name).exists() {
                println!("building {name}");
                build(&module, package, &folder.join(name))?;
            }
        }
        let programs = Self { sources: sources(&module)?, folder };
        programs.build_pause()?;
        Ok(programs)
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.folder.join(name)
    }

    /// Builds the one program of the images that is not Go.
    fn build_pause(&self) -> Result<()> {
        let output = self.path("pause");
        if output.exists() {
            return Ok(());
        }
        let mut command = Command::new("cc");
        command.args(["-Os", "-static", "-DVERSION=3.10", "-o"]).arg(&output);
        command.arg(self.sources.join("build/pause/linux/pause.c"));
        crate::run(command)
    }
}

/// Creates a Go module outside of the repository that requires Kubernetes and its staging modules.
fn module(cache: &Path) -> Result<PathBuf> {
    let folder = cache.join("module");
    fs::create_dir_all(&folder)?;
    let file = folder.join("go.mod");
    let text = go_mod(VERSION);
    // Go itself adds to the file, so it is only rewritten for another version.
    let wanted = format!("k8s.io/kubernetes v{VERSION}");
    if !fs::read_to_string(&file).unwrap_or_default().contains(&wanted) {
        fs::write(&file, text)?;
    }
    Ok(folder)
}

fn go_mod(version: &str) -> String {
    let staging = version.strip_prefix("1.").unwrap_or(version);
    let mut text = format!(
        "module conformance.local/suite\n\ngo 1.26.0\n\nrequire (\n\tk8s.io/kubernetes v{version}\n\t\
        k8s.io/sample-apiserver v0.{staging}\n"
    );
    for name in STAGING.iter().filter(|name| **name != "sample-apiserver") {
        text.push_str(&format!("\tk8s.io/{name} v0.{staging}\n"));
    }
    text.push_str(")\n");
    text
}

fn go(module: &Path) -> Command {
    let mut command = Command::new("go");
    command.current_dir(module).env("GOFLAGS", "-mod=mod -buildvcs=false").env("CGO_ENABLED", "0");
    command
}

fn build(module: &Path, package: &str, output: &Path) -> Result<()> {
    let (major, minor) = VERSION
        .rsplit_once('.')
        .map_or((VERSION, ""), |(front, _)| front.split_once('.').unwrap_or((front, "")));
    let mut flags = "-s -w".to_owned();
    for path in ["k8s.io/component-base/version", "k8s.io/client-go/pkg/version"] {
        flags.push_str(&format!(
            " -X {path}.gitVersion=v{VERSION} -X {path}.gitMajor={major} -X {path}.gitMinor={minor}"
        ));
    }
    // The output has another name until it is complete.
    let unfinished = output.with_extension("unfinished");
    let mut command = go(module);
    if package.ends_with("/test/e2e") {
        command.args(["test", "-c", "-vet=off"]);
    } else {
        command.arg("build");
    }
    command.args(["-trimpath", "-ldflags", &flags, "-o"]).arg(&unfinished).arg(package);
    crate::run(command)?;
    fs::rename(&unfinished, output).with_context(|| format!("{} was not built", output.display()))
}

fn sources(module: &Path) -> Result<PathBuf> {
    let output = go(module)
        .args(["list", "-m", "-f", "{{.Dir}}", "k8s.io/kubernetes"])
        .output()
        .context("running go (is it installed?)")?;
    let folder = PathBuf::from(String::from_utf8_lossy(&output.stdout).trim());
    if !output.status.success() || !folder.is_dir() {
        bail!("go list: {}", String::from_utf8_lossy(&output.stderr));
    }
    Ok(folder)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_module_requires_kubernetes_and_its_staging_modules() {
        let text = go_mod("1.37.2");
        assert!(text.contains("\tk8s.io/kubernetes v1.37.2\n"), "{text}");
        assert!(text.contains("\tk8s.io/api v0.37.2\n"), "{text}");
        assert_eq!(text.matches("k8s.io/sample-apiserver").count(), 1, "{text}");
        assert_eq!(text.matches("\tk8s.io/").count(), STAGING.len() + 1, "{text}");
    }
}
