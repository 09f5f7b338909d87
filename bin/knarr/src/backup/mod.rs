//! `knarr backup`: writes everything that cannot be recreated of a cluster to one file.

pub mod admin;
pub mod archive;
pub mod contents;
mod into_etcd;
mod output_file;
pub mod restore;
pub mod schedule;
mod seal;

use std::io::BufWriter;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use clap::Args;
use knarr_apimachinery::clock::Clock;
use knarr_client::clock::SystemClock;
use knarr_storage::{Embedded, OpenError, Options, Snapshot, Store, snapshot};

pub use admin::AdminSocket;
use archive::Manifest;
pub use contents::Source;
use output_file::OutputFile;
use seal::Passphrase;

use crate::layout::{DEFAULT_DATA_DIR, Layout};
use crate::store::{EtcdArgs, IDENTITY, OFFSET, RESTORING};
use crate::{pki, preflight};

/// The size of the output buffer.
pub const BUFFER_BYTES: usize = 256 * 1024;

#[derive(Args)]
#[command(after_help = "Examples:\n  knarr backup -o cluster.knarr\n  \
    knarr backup --data-dir /srv/knarr -o cluster.knarr --passphrase-file passphrase\n  \
    knarr backup -o cluster.knarr --etcd-servers http://10.0.0.5:2379")]
pub struct BackupArgs {
    /// Data folder of the server, which may run or not
    #[arg(long, default_value = DEFAULT_DATA_DIR, value_name = "DIR")]
    data_dir: PathBuf,
    /// File to write; an existing one is replaced
    #[arg(short, long, value_name = "FILE")]
    output: PathBuf,
    /// File with the passphrase to encrypt the backup with
    #[arg(long, value_name = "FILE")]
    passphrase_file: Option<PathBuf>,
    /// The server's --encryption-provider-config file, to include it; a running server adds it by itself
    #[arg(long, value_name = "FILE")]
    encryption_provider_config: Option<PathBuf>,
    #[command(flatten)]
    etcd: EtcdArgs,
}

pub fn run(args: BackupArgs) -> Result<()> {
    preflight::root("back up a cluster")?;
    let passphrase = passphrase(args.passphrase_file.as_deref())?;
    let layout = Layout::at(&args.data_dir);
    let output = BufWriter::with_capacity(BUFFER_BYTES, OutputFile::create(&args.output)?);
    let (manifest, output) = take(&args, &layout, passphrase.as_ref(), output)?;
    let output = output.into_inner().map_err(std::io::IntoInnerError::into_error);
    output.with_context(|| output_file::cannot_write(&args.output))?.commit()?;
    println!(
        "backed up {} keys and {} files at revision {} to {}",
        manifest.keys,
        manifest.files,
        manifest.revision,
        args.output.display()
    );
    if manifest.damaged > 0 {
        eprintln!(
            "warning: {} of the keys hold values that the store has found damaged: keep older backups that have them",
            manifest.damaged
        );
    }
    Ok(())
}

type Output = BufWriter<OutputFile>;

fn take(
    args: &BackupArgs,
    layout: &Layout,
    passphrase: Option<&Passphrase>,
    output: Output,
) -> Result<(Manifest, Output)> {
    if !args.etcd.shared()
        && let Some(running) = admin::connect(layout)?
    {
        return admin::receive(running, passphrase, output);
    }
    let runtime = crate::memory::runtime()?;
    let snapshot = runtime.block_on(read_store(args, layout))?;
    warn_of_encrypted(&snapshot, args.encryption_provider_config.as_deref());
    let source = Source {
        layout: layout.clone(),
        node: nix::unistd::gethostname()?.to_string_lossy().into_owned(),
        shared_store: args.etcd.shared(),
        encryption_config: args.encryption_provider_config.clone(),
    };
    contents::prepare(&source, snapshot, SystemClock.now())?.write(passphrase, output)
}

/// Reads the contents of etcd, or of the data folder of a server that does not run.
async fn read_store(args: &BackupArgs, layout: &Layout) -> Result<Snapshot> {
    if args.etcd.shared() {
        let mut taken = snapshot(&*args.etcd.connect_plain()?).await.context("cannot read etcd")?;
        check_marks(&taken, &pki::identity_in(&layout.pki())?, args.etcd.prefix())?;
        // The offset is read at the same revision as the marks, because a restore may just have ended.
        taken.revision = taken.revision.saturating_add(args.etcd.offset(value_of(&taken, OFFSET))?);
        return Ok(taken);
    }
    let folder = layout.store();
    if !Embedded::is_in(&folder) {
        bail!(
            "{} holds no store: name a server's data folder with --data-dir, or its etcd with --etcd-servers",
            layout.root().display()
        );
    }
    let store = Embedded::open(&folder, Options::default()).map_err(|error| match error {
        OpenError::Locked(path) => anyhow::anyhow!(
            "{} is in use, but no server answers at {}: is it still starting?",
            path.display(),
            layout.admin_socket().display()
        ),
        error => anyhow::Error::new(error),
    })?;
    let (taken, closed) = (snapshot(&store).await, store.close().await);
    let taken = taken?;
    if let Err(error) = closed {
        // Nothing was written: the snapshot is whole, and the next start checks the file.
        eprintln!("warning: {error}");
    }
    Ok(taken)
}

/// Refuses a snapshot that is not the whole cluster that the data folder's keys belong to.
fn check_marks(snapshot: &Snapshot, identity: &str, prefix: &str) -> Result<()> {
    if value_of(snapshot, RESTORING).is_some() {
        bail!("a backup is being restored into etcd below {prefix}, or was not restored whole");
    }
    match value_of(snapshot, IDENTITY) {
        None => bail!("etcd holds no cluster below {prefix}: is --etcd-prefix right?"),
        Some(found) if found != identity.as_bytes() => bail!(
            "etcd holds a cluster with other keys below {prefix} than those in the data folder: name the folder of one \
             of its servers with --data-dir"
        ),
        Some(_) => Ok(()),
    }
}

pub fn value_of<'a>(snapshot: &'a Snapshot, key: &[u8]) -> Option<&'a [u8]> {
    snapshot.kvs.iter().find(|kv| kv.key == key).map(|kv| &kv.value[..])
}

/// Warns of encrypted values: a server that does not run cannot provide the file with their keys.
fn warn_of_encrypted(snapshot: &Snapshot, config: Option<&Path>) {
    let encrypted = snapshot.kvs.iter().filter(|kv| kv.value.starts_with(b"k8s:enc:")).count();
    if encrypted > 0 && config.is_none() {
        eprintln!(
            "warning: {encrypted} values are encrypted, and the backup does not hold their keys: name the server's \
             --encryption-provider-config, or keep that file yourself"
        );
    }
}

/// Reads the passphrase from a file, if one is given.
pub fn passphrase(file: Option<&Path>) -> Result<Option<Passphrase>> {
    let Some(file) = file else { return Ok(None) };
    let content = std::fs::read(file).with_context(|| format!("cannot read {}", file.display()))?;
    match Passphrase::of_file(&content) {
        Some(passphrase) => Ok(Some(passphrase)),
        None => bail!("the passphrase file {} is empty", file.display()),
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use knarr_storage::KeyValue;

    use super::*;

    #[test]
    fn only_the_whole_cluster_of_these_keys_is_backed_up() {
        let kv = |key: &'static [u8], value: &'static str| KeyValue {
            key: key.into(),
            value: value.into(),
            create_revision: 1,
            mod_revision: 1,
            version: 1,
            lease: None,
        };
        let check = |kvs: Vec<KeyValue>| {
            let taken = Snapshot { revision: 2, kvs, leases: BTreeMap::new() };
            check_marks(&taken, "ours", "/k").map_err(|error| error.to_string())
        };
        assert_eq!(check(vec![kv(IDENTITY, "ours")]), Ok(()));
        assert!(check(Vec::new()).unwrap_err().starts_with("etcd holds no cluster below /k"));
        assert!(check(vec![kv(IDENTITY, "theirs")]).unwrap_err().contains("with other keys"));
        let restoring = check(vec![kv(IDENTITY, "ours"), kv(RESTORING, "")]);
        assert!(restoring.unwrap_err().contains("is being restored"));
    }
}
