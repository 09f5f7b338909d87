//! `knarr reset`: removes every trace of a node: containers, mounts, devices, tables, cgroups, files.

use std::io::{BufRead, IsTerminal, Write};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use clap::Args;
use knarr_kubelet::pod_cgroups;
use knarr_network::cleanup::{CleanupConfig, cleanup};
use knarr_runtime::containers::{PurgeCgroups, purge};
use knarr_runtime::remove_folder;

use crate::layout::{DEFAULT_CGROUP_ROOT, DEFAULT_DATA_DIR, Layout, shim_cgroup};
use crate::preflight;

#[derive(Args)]
#[command(after_help = "Examples:\n  knarr reset\n  knarr reset --yes --data-dir /srv/knarr")]
pub struct ResetArgs {
    /// The server's data folder
    #[arg(long, default_value = DEFAULT_DATA_DIR, value_name = "DIR")]
    data_dir: PathBuf,
    /// Do not ask for confirmation
    #[arg(short, long)]
    yes: bool,
}

pub fn run(args: ResetArgs) -> Result<()> {
    preflight::root("reset a node")?;
    let layout = Layout::at(&args.data_dir);
    if !layout.root().exists() {
        println!("nothing to do: {} does not exist", layout.root().display());
        return Ok(());
    }
    refuse_foreign(&layout)?;
    if !args.yes {
        confirm(&layout)?;
    }
    refuse_running(&layout)?;

    let kept = std::fs::read_to_string(layout.cgroup_root_file()).unwrap_or_default();
    let cgroup_root = if kept.trim().is_empty() { DEFAULT_CGROUP_ROOT } else { kept.trim() };
    let kubelet = kubelet_dir(&layout);
    let (shims, pods) = (shim_cgroup(cgroup_root), pod_cgroups_of(&kubelet));
    let cgroups = PurgeCgroups { root: cgroup_root, shims: &shims, pods: &pods };
    let report = purge(&layout.runtime(), cgroups)?;
    println!("removed {} pod sandboxes, {} processes", report.sandboxes, report.processes);

    // The parent folder, which the runtime folders of all data folders share, is removed with the last of
    // them.
    if let Some(parent) = layout.runtime().parent() {
        let _ = std::fs::remove_dir(parent);
    }

    let (removed, errors) = cleanup(&CleanupConfig::new(layout.network()));
    removed.iter().for_each(|line| println!("removed {line}"));

    let mounts = unmount_below(&[layout.root(), &kubelet])?;
    println!("removed {} mounts", mounts + report.mounts);
    empty_kubelet_dir(&kubelet)?;
    remove_root(layout.root())?;
    if let Some(error) = errors.into_iter().next() {
        return Err(anyhow::Error::new(error).context("some of the network could not be removed"));
    }
    Ok(())
}

/// Refuses a folder with files but none of a data folder, which must not be removed.
fn refuse_foreign(layout: &Layout) -> Result<()> {
    let ours = [layout.store(), layout.pki(), layout.images(), layout.kubelet()];
    let mut entries = std::fs::read_dir(layout.root())
        .with_context(|| format!("cannot read {}", layout.root().display()))?;
    if entries.next().is_some() && !ours.iter().any(|p| p.exists()) {
        bail!("{} is not a data folder of knarr", layout.root().display());
    }
    Ok(())
}

/// Refuses while a server runs: it holds the store's lock and would create again what is removed.
fn refuse_running(layout: &Layout) -> Result<()> {
    if !layout.store().exists() {
        return Ok(());
    }
    match knarr_storage::Embedded::open(layout.store(), knarr_storage::Options::default()) {
        Err(knarr_storage::OpenError::Locked(_)) => {
            bail!("a server is running on {}: stop it first", layout.root().display())
        }
        // Other faults of the store do not matter, because it is about to be removed.
        _ => Ok(()),
    }
}

fn confirm(layout: &Layout) -> Result<()> {
    if !std::io::stdin().is_terminal() {
        bail!("this removes the cluster in {}: confirm with --yes", layout.root().display());
    }
    print!("Remove the cluster in {} with all its containers and data? [y/N] ", layout.root().display());
    std::io::stdout().flush()?;
    let mut answer = String::new();
    std::io::stdin().lock().read_line(&mut answer)?;
    if !matches!(answer.trim(), "y" | "Y" | "yes") {
        bail!("nothing was removed");
    }
    Ok(())
}

/// Returns the kubelet's folder.
fn kubelet_dir(layout: &Layout) -> PathBuf {
    use std::os::unix::ffi::OsStringExt;
    match std::fs::read(layout.kubelet_dir_file()) {
        Ok(path) if path.starts_with(b"/") => PathBuf::from(std::ffi::OsString::from_vec(path)),
        _ => layout.kubelet(),
    }
}

/// Returns the cgroups of the pods that this kubelet knew. Pods of other data folders may have cgroups beside
/// them.
fn pod_cgroups_of(kubelet: &Path) -> Vec<String> {
    let pods = std::fs::read_dir(kubelet.join("pods")).into_iter().flatten().flatten();
    let uids = pods.filter_map(|pod| pod.file_name().into_string().ok());
    uids.flat_map(|uid| pod_cgroups::possible(&uid)).collect()
}

/// Removes the data folder, or only its contents if it is a mount point.
fn remove_root(root: &Path) -> Result<()> {
    let in_words = || format!("cannot remove {}", root.display());
    for entry in std::fs::read_dir(root).with_context(in_words)? {
        let path = entry.with_context(in_words)?.path();
        let is_folder = path.symlink_metadata().is_ok_and(|meta| meta.is_dir());
        let removed = if is_folder { remove_folder(&path) } else { std::fs::remove_file(&path) };
        removed.with_context(|| format!("cannot remove {}", path.display()))?;
    }
    match std::fs::remove_dir(root) {
        Err(error) if error.kind() == std::io::ErrorKind::ResourceBusy => {
            println!("emptied {}, on which a file system is mounted", root.display());
            Ok(())
        }
        other => {
            other.with_context(in_words)?;
            println!("removed {}", root.display());
            Ok(())
        }
    }
}

/// Empties a kubelet folder that the user chose; the folder and files of other programs in it stay.
fn empty_kubelet_dir(kubelet: &Path) -> Result<()> {
    for name in ["pods", "logs", "plugins/kubernetes.io"] {
        let folder = kubelet.join(name);
        remove_folder(&folder).with_context(|| format!("cannot remove {}", folder.display()))?;
    }
    Ok(())
}

/// Unmounts everything below these folders (volumes, root file systems), innermost first.
fn unmount_below(folders: &[&Path]) -> Result<usize> {
    let mounts = std::fs::read_to_string("/proc/self/mounts").context("cannot read the mount table")?;
    let mut targets: Vec<PathBuf> = mounts
        .lines()
        .filter_map(|line| line.split(' ').nth(1))
        .map(|path| PathBuf::from(path.replace("\\040", " ")))
        .filter(|path| folders.iter().any(|folder| path.starts_with(folder) && path != folder))
        .collect();
    targets.sort();
    for target in targets.iter().rev() {
        nix::mount::umount2(target, nix::mount::MntFlags::MNT_DETACH)
            .with_context(|| format!("cannot unmount {}", target.display()))?;
    }
    Ok(targets.len())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_folder_is_emptied_where_something_is_mounted() {
        // The test uses a mount namespace of this thread's own.
        let none = None::<&str>;
        nix::sched::unshare(nix::sched::CloneFlags::CLONE_NEWNS).unwrap();
        let private = nix::mount::MsFlags::MS_REC | nix::mount::MsFlags::MS_PRIVATE;
        nix::mount::mount(none, "/", none, private, none).unwrap();
        let root = std::env::temp_dir().join(format!("knarr-reset-{}", std::process::id()));
        let (plain, mounted) = (root.join("plain"), root.join("mounted"));
        for folder in [&plain, &mounted] {
            std::fs::create_dir_all(folder).unwrap();
        }
        let tmpfs = nix::mount::MsFlags::empty();
        nix::mount::mount(Some("tmpfs"), &mounted, Some("tmpfs"), tmpfs, none).unwrap();
        for folder in [&plain, &mounted] {
            std::fs::create_dir_all(folder.join("store/x")).unwrap();
            std::fs::write(folder.join("file"), "").unwrap();
            std::os::unix::fs::symlink("/", folder.join("link")).unwrap();
        }
        remove_root(&plain).unwrap();
        assert!(!plain.exists());
        let result = remove_root(&mounted);
        let left = std::fs::read_dir(&mounted).unwrap().count();
        nix::mount::umount(&mounted).unwrap();
        std::fs::remove_dir_all(&root).unwrap();
        result.unwrap();
        assert_eq!(left, 0);
    }

    #[test]
    fn a_pods_cgroups_are_those_of_all_classes() {
        let root = std::env::temp_dir().join(format!("knarr-reset-pods-{}", std::process::id()));
        std::fs::create_dir_all(root.join("pods/u1")).unwrap();
        let found = pod_cgroups_of(&root);
        std::fs::remove_dir_all(&root).unwrap();
        assert_eq!(found, ["podu1", "burstable/podu1", "besteffort/podu1"]);
        assert!(pod_cgroups_of(Path::new("/nonexistent")).is_empty());
    }
}
