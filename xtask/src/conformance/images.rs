//! The test images: the layers and the configuration of each, under the names that the suite uses.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail};

use super::archive::{self, Image};
use super::layers::Layer;
use super::registry;
use super::upstream::Programs;

struct Recipe {
    /// The last part of the image's name, without the tag.
    name: &'static str,
    layers: &'static [Layer],
    entrypoint: &'static [&'static str],
    cmd: &'static [&'static str],
    user: &'static str,
}

const RECIPES: &[Recipe] = &[
    Recipe {
        name: "agnhost",
        layers: &[Layer::Debian, Layer::Accounts, Layer::Agnhost],
        entrypoint: &["/agnhost"],
        cmd: &["pause"],
        user: "",
    },
    Recipe {
        name: "busybox",
        layers: &[Layer::Shell, Layer::Busybox],
        entrypoint: &[],
        cmd: &["sh"],
        user: "",
    },
    Recipe {
        name: "distroless-iptables",
        layers: &[Layer::Debian, Layer::Accounts],
        entrypoint: &[],
        cmd: &["sh"],
        user: "",
    },
    Recipe {
        name: "etcd",
        layers: &[Layer::Debian, Layer::Accounts, Layer::Etcd],
        entrypoint: &[],
        cmd: &[],
        user: "",
    },
    Recipe {
        name: "glibc-dns-testing",
        layers: &[Layer::Debian, Layer::Accounts],
        entrypoint: &[],
        cmd: &["bash"],
        user: "",
    },
    Recipe {
        name: "ipc-utils",
        layers: &[Layer::Debian, Layer::Accounts],
        entrypoint: &[],
        cmd: &["sh"],
        user: "",
    },
    Recipe {
        name: "kitten",
        layers: &[Layer::Debian, Layer::Accounts, Layer::Agnhost, Layer::Pages("kitten")],
        entrypoint: &["/agnhost"],
        cmd: &["test-webserver"],
        user: "",
    },
    Recipe {
        name: "nautilus",
        layers: &[Layer::Debian, Layer::Accounts, Layer::Agnhost, Layer::Pages("nautilus")],
        entrypoint: &["/agnhost"],
        cmd: &["test-webserver"],
        user: "",
    },
    Recipe {
        name: "nginx",
        layers: &[Layer::Debian, Layer::Nginx, Layer::Accounts, Layer::NginxSite],
        entrypoint: &[],
        cmd: &["nginx", "-g", "daemon off;"],
        user: "",
    },
    Recipe {
        name: "nonewprivs",
        layers: &[Layer::Shell, Layer::Busybox, Layer::Nnp],
        entrypoint: &[],
        cmd: &["nnp"],
        user: "",
    },
    Recipe {
        name: "nonroot",
        layers: &[Layer::Shell, Layer::Busybox],
        entrypoint: &[],
        cmd: &["sh"],
        user: "1234",
    },
    Recipe {
        name: "pause",
        layers: &[Layer::Program("pause")],
        entrypoint: &["/pause"],
        cmd: &[],
        user: "65535:65535",
    },
    Recipe {
        name: "regression-issue-74839",
        layers: &[Layer::Program("regression-issue-74839")],
        entrypoint: &["/regression-issue-74839"],
        cmd: &[],
        user: "",
    },
    Recipe {
        name: "resource-consumer",
        layers: &[Layer::Debian, Layer::Accounts, Layer::Program("consumer"), Layer::Program("consume-cpu")],
        entrypoint: &["/consumer"],
        cmd: &[],
        user: "",
    },
    Recipe {
        name: "sample-apiserver",
        layers: &[Layer::Program("sample-apiserver")],
        entrypoint: &["/sample-apiserver"],
        cmd: &[],
        user: "",
    },
];

/// All images that have a recipe, under each name that the suite uses.
pub struct Images {
    /// The archive that each node imports.
    pub archive: PathBuf,
    /// The storage of a registry, for the specs that always pull.
    pub registry: PathBuf,
    /// The registries in the images' names.
    pub hosts: BTreeSet<String>,
}

pub fn make(programs: &Programs, cache: &Path) -> Result<Images> {
    let output = Command::new(programs.path("e2e.test")).arg("--list-images").output();
    let output = output.context("the suite does not run")?;
    if !output.status.success() {
        bail!("the suite does not list its images: {}", String::from_utf8_lossy(&output.stderr));
    }
    let mut images = Vec::new();
    for (name, recipe) in wanted(&String::from_utf8_lossy(&output.stdout)) {
        let layers: Result<Vec<_>> = recipe.layers.iter().map(|layer| layer.build(programs, cache)).collect();
        images.push(Image {
            name,
            layers: layers?,
            entrypoint: recipe.entrypoint,
            cmd: recipe.cmd,
            user: recipe.user,
        });
    }
    let digests = archive::digests(&images)?;
    let host = |image: &Image| image.name.split_once('/').map(|(host, _)| host.to_owned());
    Ok(Images {
        archive: archive::write(&images, &digests, cache)?,
        registry: registry::store(&images, &digests, cache)?,
        hosts: images.iter().filter_map(host).collect(),
    })
}

/// Returns the listed names that have a recipe. Two kinds stay absent: images that a test expects to be
/// refused, and images that a test expects not to exist.
fn wanted(list: &str) -> Vec<(String, &'static Recipe)> {
    let absent = |name: &str| name.contains("authenticated") || name.contains("invalid");
    let recipe = |name: &str| {
        let (path, _tag) = name.rsplit_once(':')?;
        let last = path.rsplit('/').next()?;
        RECIPES.iter().find(|recipe| recipe.name == last)
    };
    let names = list.lines().map(str::trim).filter(|name| !absent(name));
    let mut wanted: Vec<_> = names.filter_map(|name| Some((name.to_owned(), recipe(name)?))).collect();
    // The suite lists them in another order each time.
    wanted.sort_by(|a, b| a.0.cmp(&b.0));
    wanted
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn recipes_are_found_by_the_last_part_of_the_name() {
        let list = "registry.example/tests/agnhost:2.1\nregistry.example/authenticated-test/agnhost:2.0\n\
            invalid.example/invalid/pause:3.1\nregistry.example/pause:3.10\nregistry.example/unknown:1\nnonsense\n";
        let found: Vec<(String, &str)> = wanted(list).into_iter().map(|(n, r)| (n, r.name)).collect();
        assert_eq!(
            found,
            [
                ("registry.example/pause:3.10".to_owned(), "pause"),
                ("registry.example/tests/agnhost:2.1".to_owned(), "agnhost")
            ]
        );
    }
}
