//! `knarr restore`: restores a cluster from a backup into an empty data folder or an empty etcd prefix.
//!
//! The file is read twice: first to the end, so that nothing of a damaged file is written, then to write it.
//! In a data folder everything is collected in a folder `.restoring`, with which no server starts, and moved
//! to its place at the end.

use std::fs::{self, File};
use std::io::{BufReader, ErrorKind, Seek, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use clap::Args;
use jiff::Timestamp;
use knarr_apimachinery::clock::Clock;
use knarr_client::clock::SystemClock;
use knarr_storage::{Embedded, Entry, WriteError};

use super::archive::{ArchiveError, Manifest, Reader, Record};
use super::contents::{ENCRYPTION_CONFIG, is_allowed, is_mark};
use super::into_etcd;
use super::seal::Passphrase;
use crate::layout::{DEFAULT_DATA_DIR, Layout};
use crate::store::EtcdArgs;
use crate::{pki, preflight};

/// How far the restored store's revision is above that of the backup: more writes than happen between a
/// backup and a loss. Source: etcd's documentation of `etcdutl snapshot restore --bump-revision`.
const BUMP: u64 = 1_000_000_000;
/// The highest revision that a bump may lead to: clients parse revisions as signed numbers.
const MOST_REVISION: u64 = i64::MAX as u64 / 2;
/// The most bytes of all files of a backup together.
const FILES_BYTES: usize = 64 * 1024 * 1024;

#[derive(Args)]
#[command(after_help = "Examples:\n  knarr restore cluster.knarr\n  \
    knarr restore cluster.knarr --data-dir /srv/knarr --passphrase-file passphrase\n  \
    knarr restore cluster.knarr --etcd-servers http://10.0.0.5:2379")]
pub struct RestoreArgs {
    /// Backup to restore
    #[arg(value_name = "FILE")]
    file: PathBuf,
    /// Data folder of the restored server, an empty or missing folder
    #[arg(long, default_value = DEFAULT_DATA_DIR, value_name = "DIR")]
    data_dir: PathBuf,
    /// File with the passphrase of the backup
    #[arg(long, value_name = "FILE")]
    passphrase_file: Option<PathBuf>,
    /// How far to raise the revision above the backup's, in addition to one for each microsecond since it was
    /// taken; must exceed the number of writes after the backup
    #[arg(long, value_name = "COUNT", default_value_t = BUMP)]
    bump_revision: u64,
    #[command(flatten)]
    etcd: EtcdArgs,
}

/// A backup that is known to be complete.
pub struct Backup {
    file: File,
    passphrase: Option<Passphrase>,
    pub manifest: Manifest,
}

pub fn run(args: RestoreArgs) -> Result<()> {
    preflight::root("restore a cluster")?;
    let passphrase = super::passphrase(args.passphrase_file.as_deref())?;
    let backup = Backup::open(&args.file, passphrase)?;
    let revision = revision(&backup.manifest, args.bump_revision, SystemClock.now())?;
    let target = Target::new(&args.data_dir)?;
    let written = target.fill(&backup, revision, &args.etcd);
    let encrypted = written.with_context(|| format!("{} was not restored", args.file.display()))?;
    println!(
        "restored {} keys of {}, as of {}, to {}: revisions begin above {revision}",
        backup.manifest.keys,
        backup.manifest.node,
        backup.manifest.time,
        if args.etcd.shared() { "etcd".to_owned() } else { args.data_dir.display().to_string() },
    );
    if args.etcd.shared() {
        println!("{} holds the keys that each server needs in its data folder", args.data_dir.display());
    }
    if encrypted {
        println!(
            "start the server with --encryption-provider-config {}",
            args.data_dir.join(ENCRYPTION_CONFIG).display()
        );
    }
    Ok(())
}

/// Returns the restored store's revision. It grows with time, faster than a store can write, so that a later
/// restore, of this backup or an older one, begins above all writes since an earlier restore.
fn revision(manifest: &Manifest, bump: u64, now: Timestamp) -> Result<u64> {
    let taken: Timestamp = manifest.time.parse().context("the backup does not say when it was taken")?;
    let since = u64::try_from(now.as_microsecond() - taken.as_microsecond()).unwrap_or(0);
    match manifest.revision.checked_add(bump).and_then(|revision| revision.checked_add(since)) {
        Some(revision) if bump > 0 && revision <= MOST_REVISION => Ok(revision),
        _ => bail!("--bump-revision: {bump} is too much or nothing above revision {}", manifest.revision),
    }
}

impl Backup {
    /// Reads the file to its end to verify it.
    pub fn open(path: &Path, passphrase: Option<Passphrase>) -> Result<Self> {
        let file = File::open(path).with_context(|| format!("cannot open {}", path.display()))?;
        let refused = || format!("{} cannot be restored", path.display());
        let mut reader = read(&file, passphrase.as_ref()).with_context(refused)?;
        let mut bytes = 0;
        while let Some(record) = reader.next().with_context(refused)? {
            match record {
                Record::File { path, .. } if !is_allowed(&path) => {
                    bail!("{}: it holds a file {path:?}, which no data folder has", refused());
                }
                Record::File { content, .. } => bytes += content.len(),
                Record::Key { key, .. } if is_mark(&key) => {
                    bail!("{}: it holds the key {:?}", refused(), String::from_utf8_lossy(&key));
                }
                Record::Key { .. } | Record::Lease { .. } => {}
            }
            if bytes > FILES_BYTES {
                bail!("{}: its files are too large", refused());
            }
        }
        let manifest = reader.manifest().clone();
        Ok(Self { file, passphrase, manifest })
    }

    fn again(&self) -> Result<Reader<BufReader<&File>>> {
        (&self.file).rewind().context("cannot read the backup again")?;
        Ok(read(&self.file, self.passphrase.as_ref())?)
    }

    /// Returns the files by their paths. They precede all other records.
    fn files(&self) -> Result<Vec<(String, Vec<u8>)>> {
        let mut reader = self.again()?;
        let mut files = Vec::new();
        while let Some(Record::File { path, content }) = reader.next()? {
            if !is_allowed(&path) {
                bail!("the backup was changed while it was read");
            }
            files.push((path, content));
        }
        if files.len() as u64 != self.manifest.files {
            bail!("the backup's files do not precede its keys, or it was changed while it was read");
        }
        Ok(files)
    }

    /// Returns the keys and leases for the store, one after the other.
    fn entries(&self) -> Result<impl Iterator<Item = Result<Entry, ArchiveError>>> {
        let mut reader = self.again()?;
        Ok(std::iter::from_fn(move || reader.next().transpose()).filter_map(|record| match record {
            Ok(Record::File { .. }) => None,
            Ok(Record::Lease { id, ttl_seconds }) => Some(Ok(Entry::Lease { id, ttl_seconds })),
            Ok(Record::Key { key, .. }) if is_mark(&key) => {
                Some(Err(ArchiveError::Damaged("it was changed while it was read")))
            }
            Ok(Record::Key { key, value, lease }) => Some(Ok(Entry::Key { key, value, lease })),
            Err(error) => Some(Err(error)),
        }))
    }
}

fn read<'a>(
    file: &'a File,
    passphrase: Option<&Passphrase>,
) -> Result<Reader<BufReader<&'a File>>, ArchiveError> {
    Reader::new(BufReader::with_capacity(super::BUFFER_BYTES, file), passphrase)
}

/// What an empty data folder may contain: `lost+found` if it is the root of a file system, and `backups` if
/// the server keeps its scheduled backups there.
const EMPTY_WITH: [&str; 2] = ["lost+found", "backups"];

/// An empty data folder, which is emptied again if it was not filled completely.
struct Target {
    layout: Layout,
    made: bool,
    /// The paths that have been moved to their places.
    published: Vec<PathBuf>,
    done: bool,
}

impl Target {
    /// Claims the folder for this restore: `.restoring` keeps servers and other restores out.
    fn new(folder: &Path) -> Result<Self> {
        let made = !folder.exists();
        let private = || {
            let mut builder = fs::DirBuilder::new();
            builder.mode(0o700);
            builder
        };
        private().recursive(true).create(folder).with_context(|| cannot_create(folder))?;
        let layout = Layout::at(folder);
        let staging = layout.restoring();
        match private().create(&staging) {
            Ok(()) => {}
            Err(error) if error.kind() == ErrorKind::AlreadyExists => bail!(
                "{} holds a backup that another restore writes, or that was not restored whole: remove what it holds \
                 but {} and try again",
                folder.display(),
                EMPTY_WITH.join(" and ")
            ),
            Err(error) => return Err(error).with_context(|| cannot_create(&staging)),
        }
        let target = Self { layout, made, published: Vec::new(), done: false };
        let entries = fs::read_dir(folder).with_context(|| format!("cannot read {}", folder.display()))?;
        let names = entries.map(|entry| Ok(entry?.file_name())).collect::<std::io::Result<Vec<_>>>()?;
        let foreign = names.iter().find(|name| {
            let empty = EMPTY_WITH.iter().any(|known| *name == known);
            !empty && staging.file_name() != Some(name)
        });
        if let Some(name) = foreign {
            bail!(
                "{} is not empty, it holds {}: a backup is restored into an empty folder alone",
                folder.display(),
                name.display()
            );
        }
        fs::set_permissions(folder, fs::Permissions::from_mode(0o700))
            .with_context(|| format!("cannot close {} to others", folder.display()))?;
        Ok(target)
    }

    /// Fills the folder; returns whether the backup has an encryption configuration.
    fn fill(mut self, backup: &Backup, revision: u64, etcd: &EtcdArgs) -> Result<bool> {
        let staging = self.layout.restoring();
        let files = backup.files()?;
        files.iter().try_for_each(|(path, content)| write_file(&staging, path, content))?;
        let identity =
            pki::identity_in(&staging.join("pki")).context("the backup lacks keys of its cluster")?;
        if identity != backup.manifest.cluster_identity {
            bail!("the backup holds other keys than those of its cluster");
        }
        let records = backup.entries()?;
        if etcd.shared() {
            into_etcd::restore(etcd, records, &backup.manifest, revision)?;
        } else {
            Embedded::write(staging.join("store"), revision, records).map_err(|error| match error {
                WriteError::Source(error) => anyhow::Error::new(error),
                error => anyhow::Error::new(error),
            })?;
        }
        self.publish(&staging).context("cannot put the restored files in their place")?;
        self.done = true;
        Ok(files.iter().any(|(path, _)| path == ENCRYPTION_CONFIG))
    }

    fn publish(&mut self, staging: &Path) -> std::io::Result<()> {
        sync(staging)?;
        for entry in fs::read_dir(staging)?.collect::<Result<Vec<_>, _>>()? {
            let place = self.layout.root().join(entry.file_name());
            fs::rename(entry.path(), &place)?;
            self.published.push(place);
        }
        File::open(self.layout.root())?.sync_all()?;
        fs::remove_dir(staging)?;
        File::open(self.layout.root())?.sync_all()
    }
}

impl Drop for Target {
    fn drop(&mut self) {
        if self.done {
            return;
        }
        // `.restoring` is removed last: if anything before it cannot be removed, no server starts.
        for path in self.published.iter().chain([&self.layout.restoring()]) {
            let removed = if path.is_dir() { fs::remove_dir_all(path) } else { fs::remove_file(path) };
            if removed.is_err() {
                return;
            }
        }
        if self.made {
            let _ = fs::remove_dir(self.layout.root());
        }
    }
}

fn write_file(staging: &Path, path: &str, content: &[u8]) -> Result<()> {
    let path = staging.join(path);
    let write = || -> std::io::Result<()> {
        if let Some(folder) = path.parent() {
            fs::DirBuilder::new().recursive(true).mode(0o700).create(folder)?;
        }
        let mut file = fs::OpenOptions::new().write(true).create_new(true).mode(0o600).open(&path)?;
        file.write_all(content)?;
        file.sync_all()
    };
    write().with_context(|| super::output_file::cannot_write(&path))
}

/// Syncs a folder and its subfolders, which makes the names in them durable.
fn sync(folder: &Path) -> std::io::Result<()> {
    for entry in fs::read_dir(folder)? {
        let entry = entry?;
        if entry.file_type()?.is_dir() {
            sync(&entry.path())?;
        }
    }
    File::open(folder)?.sync_all()
}

fn cannot_create(folder: &Path) -> String {
    format!("cannot create the folder {}", folder.display())
}

#[cfg(test)]
mod tests {
    use knarr_storage::{Options, Precondition, Store, snapshot};

    use super::super::contents::{self, Source};
    use super::*;
    use crate::pki::Pki;

    struct Folder(PathBuf);

    impl Folder {
        fn new(name: &str) -> Self {
            let folder = std::env::temp_dir().join(format!("knarr-restore-{name}-{}", std::process::id()));
            fs::create_dir_all(&folder).unwrap();
            Self(folder)
        }
    }

    impl Drop for Folder {
        fn drop(&mut self) {
            let _ = fs::remove_dir_all(&self.0);
        }
    }

    fn options() -> Options {
        Options { reserve_bytes: 0, ..Options::default() }
    }

    /// Creates a cluster in `from` and its backup in `file`; returns its identity and revision.
    async fn backed_up(folder: &Folder, passphrase: Option<&Passphrase>) -> (PathBuf, String, u64) {
        let layout = Layout::create(&folder.0.join("from")).unwrap();
        let identity = Pki::open(layout.pki()).unwrap().identity().unwrap();
        let store = Embedded::open(layout.store(), options()).unwrap();
        let lease = store.grant_lease(60).await.unwrap();
        for (key, lease) in [("/registry/a", None), ("/registry/b", Some(lease)), ("/cluster/identity", None)]
        {
            store.put(key.into(), key.into(), Precondition::Any, lease).await.unwrap();
        }
        let taken = snapshot(&store).await.unwrap();
        store.close().await.unwrap();
        let config = folder.0.join("enc.yaml");
        fs::write(&config, "kind: EncryptionConfiguration").unwrap();
        let source =
            Source { layout, node: "n".into(), shared_store: false, encryption_config: Some(config) };
        let revision = taken.revision;
        let contents = contents::prepare(&source, taken, jiff::Timestamp::UNIX_EPOCH).unwrap();
        let (_, archive) = contents.write(passphrase, Vec::new()).unwrap();
        let file = folder.0.join("backup");
        fs::write(&file, archive).unwrap();
        (file, identity, revision)
    }

    #[tokio::test]
    async fn a_restored_cluster_has_the_same_keys_above_the_old_revisions() {
        let folder = Folder::new("whole");
        for passphrase in [false, true] {
            let secret = || passphrase.then(|| Passphrase::cheap("secret"));
            let (file, identity, old) = backed_up(&folder, secret().as_ref()).await;
            let backup = Backup::open(&file, secret()).unwrap();
            assert_eq!((backup.manifest.revision, &backup.manifest.cluster_identity), (old, &identity));
            let revision = revision(&backup.manifest, BUMP, jiff::Timestamp::UNIX_EPOCH).unwrap();
            let to = folder.0.join("to");
            assert!(Target::new(&to).unwrap().fill(&backup, revision, &EtcdArgs::none()).unwrap());
            let layout = Layout::create(&to).unwrap();
            assert_eq!(Pki::open(layout.pki()).unwrap().identity().unwrap(), identity);
            let config = fs::read_to_string(to.join(ENCRYPTION_CONFIG)).unwrap();
            assert_eq!(config, "kind: EncryptionConfiguration");
            let store = Embedded::open(layout.store(), options()).unwrap();
            let taken = snapshot(&store).await.unwrap();
            assert_eq!(taken.revision, old + BUMP);
            let keys: Vec<_> = taken.kvs.iter().map(|kv| (&kv.key[..], kv.lease.is_some())).collect();
            assert_eq!(keys, [(&b"/registry/a"[..], false), (b"/registry/b", true)]);
            assert_eq!(taken.leases.values().collect::<Vec<_>>(), [&60]);
            store.close().await.unwrap();
            assert!(Target::new(&to).is_err(), "it is not empty any more");
            fs::remove_dir_all(folder.0.join("from")).unwrap();
            fs::remove_dir_all(&to).unwrap();
        }
    }

    #[tokio::test]
    async fn what_cannot_be_restored_changes_nothing() {
        let folder = Folder::new("refused");
        let (file, _, _) = backed_up(&folder, None).await;
        let whole = fs::read(&file).unwrap();
        fs::write(&file, &whole[..whole.len() - 1]).unwrap();
        let refused = Backup::open(&file, None).err().unwrap();
        assert!(format!("{refused:#}").ends_with("cannot be restored: it ends too early: it was cut off"));

        // A file that is truncated after it was verified.
        fs::write(&file, &whole).unwrap();
        let to = folder.0.join("to");
        for exists in [false, true] {
            if exists {
                fs::create_dir(&to).unwrap();
            }
            fs::write(&file, &whole).unwrap();
            let backup = Backup::open(&file, None).unwrap();
            fs::File::options().write(true).open(&file).unwrap().set_len(whole.len() as u64 - 50).unwrap();
            assert!(Target::new(&to).unwrap().fill(&backup, 1 << 40, &EtcdArgs::none()).is_err());
            assert_eq!(to.exists(), exists);
            assert!(!exists || fs::read_dir(&to).unwrap().next().is_none());
        }
        fs::create_dir(to.join(".restoring")).unwrap();
        assert!(Layout::create(&to).is_err(), "no server starts on half a restore");
    }

    #[test]
    fn revisions_only_go_up() {
        let manifest = |revision| Manifest {
            knarr_version: String::new(),
            cluster_identity: String::new(),
            node: String::new(),
            store: String::new(),
            revision,
            time: "2026-01-01T00:00:00Z".to_owned(),
            keys: 0,
            damaged: 0,
            leases: 0,
            files: 0,
        };
        let at = |text: &str| text.parse::<Timestamp>().unwrap();
        let now = at("2026-01-01T00:00:01Z");
        assert_eq!(revision(&manifest(7), BUMP, now).unwrap(), 1_001_000_007);
        // A clock that is behind does not lower the revision.
        assert_eq!(revision(&manifest(7), BUMP, at("2025-01-01T00:00:00Z")).unwrap(), 1_000_000_007);
        // An older backup, restored a minute after a newer one that contains another hour of writes.
        let older = Manifest { time: "2025-12-31T23:00:00Z".to_owned(), ..manifest(7) };
        let first = revision(&manifest(3_000_000), BUMP, now).unwrap();
        assert!(revision(&older, BUMP, at("2026-01-01T00:01:01Z")).unwrap() > first + 1_000_000);
        for (from, bump) in [(7, 0), (u64::MAX, 1), (7, u64::MAX), (MOST_REVISION, 1)] {
            assert!(revision(&manifest(from), bump, now).is_err(), "{from} {bump}");
        }
        assert!(revision(&Manifest { time: "x".to_owned(), ..manifest(7) }, BUMP, now).is_err());
    }

    #[tokio::test]
    async fn a_restore_removes_only_what_is_its_own() {
        let folder = Folder::new("own");
        let (file, _, _) = backed_up(&folder, None).await;
        let to = folder.0.join("to");
        fs::create_dir_all(to.join("backups")).unwrap();
        let first = Target::new(&to).unwrap();
        let second = Target::new(&to).err().unwrap().to_string();
        assert!(second.contains("another restore"), "{second}");
        assert!(Layout::create(&to).is_err(), "a server stays out, too");
        // A server that started in between has created a folder of this name.
        fs::create_dir_all(to.join("pki/theirs")).unwrap();
        let backup = Backup::open(&file, None).unwrap();
        assert!(first.fill(&backup, 1 << 40, &EtcdArgs::none()).is_err());
        assert!(to.join("pki/theirs").exists() && to.join("backups").exists());
        assert!(!to.join("store").exists() && !to.join(".restoring").exists());
    }

    #[tokio::test]
    async fn keys_of_another_cluster_are_refused() {
        let folder = Folder::new("keys");
        let (file, _, _) = backed_up(&folder, None).await;
        let mut backup = Backup::open(&file, None).unwrap();
        backup.manifest.cluster_identity = "other".to_owned();
        let refused = Target::new(&folder.0.join("to")).unwrap().fill(&backup, 1 << 40, &EtcdArgs::none());
        assert!(refused.unwrap_err().to_string().contains("other keys"));
        assert!(!folder.0.join("to").exists());
    }
}
