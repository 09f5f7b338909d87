//! `knarr check`: checks a data folder, etcd or a backup for damage, and repairs what can be repaired.

mod archive;
mod certificates;
mod finding;
mod folder;
mod keep;
mod objects;
mod quiet;
mod rotation;

#[cfg(test)]
mod tests;

use std::fs::File;
use std::io::BufReader;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use clap::Args;
use knarr_apimachinery::clock::Clock;
use knarr_client::clock::SystemClock;
use knarr_storage::{Embedded, snapshot};

use finding::{Finding, Report};

use crate::backup::archive::Reader;
use crate::backup::contents::ENCRYPTION_CONFIG;
use crate::backup::{self, admin};
use crate::layout::{DEFAULT_DATA_DIR, Layout};
use crate::picture::Output;
use crate::pki;
use crate::preflight;
use crate::store::{EtcdArgs, OFFSET};

#[derive(Args)]
#[command(after_help = "Examples:\n  knarr check\n  knarr check --repair\n  knarr check -o json\n  \
    knarr check cluster.knarr --passphrase-file passphrase\n  \
    knarr check --etcd-servers http://10.0.0.5:2379\n\n\
    Ends with code 1 where something is wrong. Nothing is changed without --repair.")]
pub struct CheckArgs {
    /// Backup to check, instead of a data folder
    #[arg(value_name = "FILE", conflicts_with_all = ["repair", "etcd_servers"])]
    file: Option<PathBuf>,
    /// Data folder to check; while its server runs, everything but the store's file
    #[arg(long, default_value = DEFAULT_DATA_DIR, value_name = "DIR")]
    data_dir: PathBuf,
    /// Repair what can be repaired, while the server is stopped; the data is copied first
    #[arg(long, conflicts_with = "etcd_servers")]
    repair: bool,
    /// The server's --encryption-provider-config file; a running server and a backup include it
    #[arg(long, value_name = "FILE")]
    encryption_provider_config: Option<PathBuf>,
    /// File with the passphrase of the backup
    #[arg(long, value_name = "FILE", requires = "file")]
    passphrase_file: Option<PathBuf>,
    #[arg(short, long, default_value = "table")]
    output: Output,
    #[command(flatten)]
    etcd: EtcdArgs,
}

pub fn run(args: CheckArgs) -> Result<()> {
    preflight::root("look into a cluster's data")?;
    let runtime = crate::memory::runtime()?;
    let report = runtime.block_on(check(&args))?;
    report.print(args.output)?;
    match report.left() {
        0 => Ok(()),
        1 => bail!("one thing is wrong"),
        left => bail!("{left} things are wrong"),
    }
}

async fn check(args: &CheckArgs) -> Result<Report> {
    let config = args
        .encryption_provider_config
        .as_deref()
        .map(|file| std::fs::read(file).with_context(|| format!("cannot read {}", file.display())));
    let config = config.transpose()?;
    if let Some(file) = &args.file {
        let passphrase = backup::passphrase(args.passphrase_file.as_deref())?;
        let opened = File::open(file).with_context(|| format!("cannot open {}", file.display()))?;
        let reader = Reader::new(BufReader::with_capacity(backup::BUFFER_BYTES, opened), passphrase.as_ref());
        let contents = archive::read(&file.display().to_string(), reader);
        return Ok(of_contents(contents, config, true).await);
    }
    let layout = Layout::at(&args.data_dir);
    if args.etcd.shared() {
        return of_etcd(args, &layout, config).await;
    }
    match admin::connect(&layout)? {
        Some(_) if args.repair => bail!("a server runs on {}: stop it first", layout.root().display()),
        Some(running) => {
            let contents = archive::read("the running server", admin::ask(running)?);
            let mut report = of_contents(contents, config, false).await;
            report
                .looked_at
                .push("not the store's file, which the running server uses: stop it for that".into());
            report.findings.extend(folder::modes(&layout));
            Ok(report)
        }
        None => of_folder(args, &layout, config).await,
    }
}

/// Checks the contents of a backup. Unless `whole`, they are a running server's, whose folder has files that
/// no finished backup contains.
async fn of_contents(contents: archive::Contents, config: Option<Vec<u8>>, whole: bool) -> Report {
    let mut report = Report::default();
    let (keys, files) = (contents.kvs.len(), contents.files.len());
    report.looked_at.push(format!("{keys} keys at revision {}, {files} files", contents.revision));
    let encryption = config.as_deref().or(contents.encryption());
    report.findings = objects::check(&contents.kvs, encryption).await;
    // If the backup is truncated, missing files are not reported one by one.
    if contents.findings.is_empty() || !whole {
        report.findings.extend(certificates::check(&contents.files, SystemClock.now()));
        report.findings.iter_mut().for_each(|finding| finding.repair = finding.repair.filter(|_| !whole));
    }
    report.findings.extend(contents.findings);
    report
}

async fn of_etcd(args: &CheckArgs, layout: &Layout, config: Option<Vec<u8>>) -> Result<Report> {
    let mut taken = snapshot(&*args.etcd.connect_plain()?).await.context("cannot read etcd")?;
    taken.revision = taken.revision.saturating_add(args.etcd.offset(backup::value_of(&taken, OFFSET))?);
    let kvs: Vec<_> = taken.kvs.iter().map(|kv| (kv.key.clone(), kv.value.clone())).collect();
    let mut report = of_files(layout);
    report.looked_at.push(format!("etcd: {} keys at revision {}", kvs.len(), taken.revision));
    report.findings.extend(objects::check(&kvs, config.as_deref()).await);
    Ok(report)
}

/// Checks keys, certificates and modes of a data folder.
fn of_files(layout: &Layout) -> Report {
    let mut report = Report::default();
    let (files, unread) = folder::files(layout);
    if !files.is_empty() {
        report.looked_at.push(format!("{}: {} files", layout.pki().display(), files.len()));
    }
    report.findings = unread;
    report.findings.extend(certificates::check(&files, SystemClock.now()));
    report.findings.extend(folder::modes(layout));
    report
}

async fn of_folder(args: &CheckArgs, layout: &Layout, config: Option<Vec<u8>>) -> Result<Report> {
    // From the check to the repair, no server starts and no authorities are replaced.
    let _locked = (args.repair && layout.pki().exists()).then(|| pki::lock(&layout.pki())).transpose()?;
    let mut report = of_files(layout);
    let is_store = Embedded::is_in(layout.store());
    if !is_store && report.looked_at.is_empty() {
        bail!("{} is no data folder: name one with --data-dir", layout.root().display());
    }
    if layout.restoring().exists() {
        let problem = "a backup was not restored whole: empty the folder and restore it again";
        report.findings.push(Finding::error("file", ".restoring", problem));
    }
    if is_store {
        let store = folder::store(layout)?;
        let found = format!("store: {} keys at revision {}", store.kvs.len(), store.revision);
        report.looked_at.push(found);
        let restored = || std::fs::read(layout.root().join(ENCRYPTION_CONFIG)).ok();
        let config = config.or_else(restored);
        report.findings.extend(store.findings);
        report.findings.extend(objects::check(&store.kvs, config.as_deref()).await);
    }
    if args.repair && report.findings.iter().any(|finding| finding.repair.is_some()) {
        let kept = kept(layout.root());
        if folder::repair(layout, &mut report.findings, &kept)? {
            report.kept = Some(kept.display().to_string());
        }
    }
    Ok(report)
}

/// Returns the folder for the copies from before a repair.
fn kept(root: &Path) -> PathBuf {
    root.join(format!("before-repair-{}", SystemClock.now().strftime("%Y%m%dT%H%M%S")))
}
