//! The images of the examples, built from what the machine has: this program as a web server, and busybox.

use anyhow::{Context, Result};
use knarr_runtime::images::{ImageBuild, ImageStore, Reference, find_busybox};

/// Two releases of the web server, for examples of a rollout.
const WEB_RELEASES: [&str; 2] = ["v1", "v2"];

/// Builds the images that are missing; returns the names of all.
pub async fn build(store: &ImageStore) -> Result<Vec<String>> {
    let mut names = Vec::new();
    for release in WEB_RELEASES {
        names.push(build_one(store, web(release)?).await?);
    }
    if find_busybox().is_some() {
        for name in ["knarr.local/busybox:latest", "docker.io/library/busybox:latest"] {
            names.push(build_one(store, busybox(name)?).await?);
        }
    }
    Ok(names)
}

async fn build_one(store: &ImageStore, build: ImageBuild) -> Result<String> {
    let image = store.build(build).await?;
    Ok(image.repo_tags.first().cloned().unwrap_or_default())
}

fn reference(name: &str) -> Result<Reference> {
    name.parse().with_context(|| format!("image name {name}"))
}

fn web(release: &str) -> Result<ImageBuild> {
    let program = std::env::current_exe().context("cannot find this program's own file")?;
    let build = ImageBuild::new(reference(&format!("knarr.local/web:{release}"))?)
        .program(program, "/bin/knarr")
        .dir("/usr/share/web", 0o755)
        .entrypoint(["/bin/knarr", "web"])
        .env("WEB_VERSION", release)
        .port("80/tcp");
    Ok(build.shell()?)
}

fn busybox(name: &str) -> Result<ImageBuild> {
    let program = find_busybox().context("this machine has no busybox")?;
    Ok(ImageBuild::new(reference(name)?).busybox(&program)?.cmd(["sh"]))
}
