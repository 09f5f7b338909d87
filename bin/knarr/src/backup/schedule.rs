//! Scheduled backups of a server, in a folder in which the newest ones are kept.

use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use anyhow::{Context, Result, bail};
use clap::Args;
use jiff::Timestamp;
use jiff::tz::TimeZone;
use knarr_api::batch::schedule::Schedule;
use knarr_apimachinery::clock::Clock;
use knarr_client::events::{EventRecorder, EventType};
use knarr_storage::{Store, snapshot};
use nix::sys::statvfs::statvfs;
use tokio_util::sync::CancellationToken;

use super::archive::Manifest;
use super::contents::{self, Source};
use super::output_file::OutputFile;
use super::passphrase;
use crate::node_reference::node_reference;

/// Every twelve hours, the same as k3s's snapshots of etcd.
const DEFAULT_SCHEDULE: &str = "0 */12 * * *";
/// The maximum time between two reads of the clock: it may be set meanwhile, and timers stop while the machine
/// is suspended.
const CHECK_EVERY: Duration = Duration::from_secs(600);
const SUFFIX: &str = ".knarr";
/// `20261125T120000Z`
const TIME_FORMAT: &str = "%Y%m%dT%H%M%SZ";

#[derive(Args)]
pub struct ScheduleArgs {
    /// Schedule of backups in the form of a CronJob, in UTC unless TZ= is given; empty for never [default: '0
    /// */12 * * *'; never with --etcd-servers]
    #[arg(long, value_name = "CRON")]
    backup_schedule: Option<String>,
    /// Folder to write backups to [default: the folder backups in the data folder]
    #[arg(long, value_name = "DIR")]
    backup_dir: Option<PathBuf>,
    /// Number of backups to keep
    #[arg(long, value_name = "COUNT", default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..))]
    backup_retention: u32,
    /// File with the passphrase to encrypt backups with; read for each backup
    #[arg(long, value_name = "FILE")]
    backup_passphrase_file: Option<PathBuf>,
}

/// The schedule, and where its backups are written.
pub struct Scheduled {
    pub source: Source,
    schedule: Schedule,
    folder: PathBuf,
    retention: usize,
    passphrase_file: Option<PathBuf>,
    counts: Arc<Mutex<Counts>>,
}

/// The values of the metrics.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
struct Counts {
    succeeded: u64,
    failed: u64,
    last_success: Option<i64>,
    last_bytes: u64,
}

impl ScheduleArgs {
    /// Returns the schedule; `None` if no backups are taken.
    pub fn scheduled(&self, source: Source) -> Result<Option<Scheduled>> {
        let default = if source.shared_store { "" } else { DEFAULT_SCHEDULE };
        let text = self.backup_schedule.as_deref().unwrap_or(default);
        if text.is_empty() {
            return Ok(None);
        }
        let schedule =
            Schedule::parse(text).map_err(|why| anyhow::anyhow!("--backup-schedule: {text:?}: {why}"))?;
        if schedule.next(Timestamp::UNIX_EPOCH, &TimeZone::UTC).is_none() {
            bail!("--backup-schedule: {text:?}: no time matches it");
        }
        let folder = self.backup_dir.clone().unwrap_or_else(|| source.layout.root().join("backups"));
        let retention = usize::try_from(self.backup_retention)?;
        let passphrase_file = self.backup_passphrase_file.clone();
        // The server does not start with an unusable passphrase file: its backups would not be protected.
        passphrase(passphrase_file.as_deref()).context("--backup-passphrase-file")?;
        let scheduled =
            Scheduled { source, schedule, folder, retention, passphrase_file, counts: Arc::default() };
        let last = scheduled.newest();
        scheduled.count(|counts| counts.last_success = last.map(Timestamp::as_second));
        Ok(Some(scheduled))
    }
}

impl Scheduled {
    /// Returns a function that renders the metrics.
    pub fn metrics(&self) -> impl Fn() -> String + Send + Sync + 'static {
        let counts = Arc::clone(&self.counts);
        move || metrics(*counts.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Takes backups until `stop`.
    pub async fn run(
        self: Arc<Self>,
        store: Arc<dyn Store>,
        events: EventRecorder,
        clock: Arc<dyn Clock>,
        stop: CancellationToken,
    ) {
        let warn = |reason: &'static str, text: String| {
            tracing::error!("{text}");
            events.event_about(node_reference(&self.source.node), EventType::Warning, reason, text);
        };
        loop {
            tokio::select! {
                () = stop.cancelled() => return,
                () = self.until_due(&*clock) => {}
            }
            match self.take(&*store, clock.now()).await {
                Ok(Taken { path, manifest: Manifest { damaged: 0, .. } }) => {
                    tracing::info!(file = %path.display(), "backup taken");
                    if let Err(error) = self.remove_old(&path, clock.now()) {
                        let folder = self.folder.display();
                        warn(
                            "BackupsNotRemoved",
                            format!("Cannot remove old backups from {folder}: {error}"),
                        );
                    }
                }
                Ok(Taken { path, manifest }) => warn(
                    "BackupOfDamagedKeys",
                    format!(
                        "The backup {} holds {} keys with damaged values: older backups are kept",
                        path.display(),
                        manifest.damaged
                    ),
                ),
                Err(error) => {
                    self.count(|counts| counts.failed += 1);
                    warn("BackupFailed", format!("The scheduled backup failed: {error:#}"));
                }
            }
        }
    }

    /// Waits until the next backup is due, even if the clock is set meanwhile.
    async fn until_due(&self, clock: &dyn Clock) {
        let next = |now| self.schedule.next(now, &TimeZone::UTC).unwrap_or(Timestamp::MAX);
        let mut due = next(clock.now());
        while let Ok(left) = Duration::try_from(clock.now().duration_until(due))
            && !left.is_zero()
        {
            clock.sleep(left.min(CHECK_EVERY)).await;
            due = due.min(next(clock.now()));
        }
    }

    fn count(&self, change: impl FnOnce(&mut Counts)) {
        change(&mut self.counts.lock().unwrap_or_else(PoisonError::into_inner));
    }

    async fn take(self: &Arc<Self>, store: &dyn Store, now: Timestamp) -> Result<Taken> {
        let taken = snapshot(store).await.context("cannot read the store")?;
        let own = Arc::clone(self);
        tokio::task::spawn_blocking(move || own.write(taken, now)).await?
    }

    fn write(&self, taken: knarr_storage::Snapshot, now: Timestamp) -> Result<Taken> {
        use std::os::unix::fs::DirBuilderExt;
        let folder = &self.folder;
        std::fs::DirBuilder::new()
            .recursive(true)
            .mode(0o700)
            .create(folder)
            .with_context(|| format!("cannot create the folder {}", folder.display()))?;
        let passphrase = passphrase(self.passphrase_file.as_deref())?;
        check_room(folder, taken.kvs.iter().map(|kv| (kv.key.len() + kv.value.len()) as u64).sum())?;
        let path = folder.join(format!("{}{}{SUFFIX}", self.prefix(), now.strftime(TIME_FORMAT)));
        let output = std::io::BufWriter::with_capacity(super::BUFFER_BYTES, OutputFile::create(&path)?);
        let (manifest, output) =
            contents::prepare(&self.source, taken, now)?.write(passphrase.as_ref(), output)?;
        let output = output.into_inner().map_err(std::io::IntoInnerError::into_error);
        output.with_context(|| super::output_file::cannot_write(&path))?.commit()?;
        let bytes = std::fs::metadata(&path).map_or(0, |of| of.len());
        self.count(|counts| {
            counts.succeeded += 1;
            counts.last_success = Some(now.as_second());
            counts.last_bytes = bytes;
        });
        Ok(Taken { path, manifest })
    }

    /// Returns the prefix of the names of this server's backups.
    fn prefix(&self) -> String {
        format!("scheduled-{}-", self.source.node)
    }

    /// Removes all but the newest backups, always keeping `taken`, and the partial files of killed writers.
    fn remove_old(&self, taken: &Path, now: Timestamp) -> std::io::Result<()> {
        let names = self.names()?;
        let partial = format!(".{}", self.prefix());
        let abandoned =
            names.iter().filter(|name| name.starts_with(&partial) && name.ends_with(".partial")).cloned();
        let abandoned: Vec<String> = abandoned.collect();
        let taken = taken.file_name().and_then(|name| name.to_str()).unwrap_or_default();
        for name in surplus(names, &self.prefix(), self.retention, taken, now).into_iter().chain(abandoned) {
            std::fs::remove_file(self.folder.join(name))?;
        }
        Ok(())
    }

    fn names(&self) -> std::io::Result<Vec<String>> {
        let entries = std::fs::read_dir(&self.folder)?.collect::<Result<Vec<_>, _>>()?;
        Ok(entries.iter().filter_map(|entry| entry.file_name().into_string().ok()).collect())
    }

    /// Returns when the newest backup in the folder was taken.
    fn newest(&self) -> Option<Timestamp> {
        self.names().ok()?.iter().filter_map(|name| time_of(name, &self.prefix())).max()
    }
}

/// A backup that was taken.
struct Taken {
    path: PathBuf,
    manifest: Manifest,
}

/// Returns when a backup of this prefix was taken; `None` for other file names.
fn time_of(name: &str, prefix: &str) -> Option<Timestamp> {
    let text = name.strip_prefix(prefix)?.strip_suffix(SUFFIX)?;
    let at = jiff::civil::DateTime::strptime(TIME_FORMAT, text).ok()?.to_zoned(TimeZone::UTC).ok()?;
    (at.strftime(TIME_FORMAT).to_string() == text).then(|| at.timestamp())
}

/// Returns the names of backups of this prefix that are beyond the newest ones; never that of the one just
/// taken. A backup with a time in the future was taken while the clock was wrong, and counts as older than
/// all others.
fn surplus(names: Vec<String>, prefix: &str, keep: usize, taken: &str, now: Timestamp) -> Vec<String> {
    let age = |name: &String| {
        let at = time_of(name, prefix)?;
        Some((if at > now { Timestamp::MIN } else { at }, at))
    };
    let mut of_ours: Vec<_> =
        names.into_iter().filter(|name| name != taken).filter_map(|name| Some((age(&name)?, name))).collect();
    of_ours.sort_unstable();
    of_ours.truncate(of_ours.len().saturating_sub(keep.saturating_sub(1)));
    of_ours.into_iter().map(|(_, name)| name).collect()
}

/// Fails if the backup would fill the disk that the store may be on.
fn check_room(folder: &Path, bytes: u64) -> Result<()> {
    let of = statvfs(folder).with_context(|| format!("cannot check the disk of {}", folder.display()))?;
    #[allow(clippy::unnecessary_cast, reason = "the types differ between machines")]
    let free = (of.blocks_available() as u64).saturating_mul(of.fragment_size() as u64);
    if free < bytes.saturating_mul(2) {
        bail!("{} has {free} bytes free, and twice the {bytes} of the state are wanted", folder.display());
    }
    Ok(())
}

fn metrics(counts: Counts) -> String {
    let mut text = format!(
        "# HELP knarr_scheduled_backups_total Scheduled backups by result.\n\
         # TYPE knarr_scheduled_backups_total counter\n\
         knarr_scheduled_backups_total{{result=\"success\"}} {}\n\
         knarr_scheduled_backups_total{{result=\"error\"}} {}\n",
        counts.succeeded, counts.failed
    );
    if let Some(last) = counts.last_success {
        text.push_str(&format!(
            "# HELP knarr_scheduled_backup_last_success_timestamp_seconds When the last one was taken.\n\
             # TYPE knarr_scheduled_backup_last_success_timestamp_seconds gauge\n\
             knarr_scheduled_backup_last_success_timestamp_seconds {last}\n\
             # HELP knarr_scheduled_backup_size_bytes The size of the last one.\n\
             # TYPE knarr_scheduled_backup_size_bytes gauge\n\
             knarr_scheduled_backup_size_bytes {}\n",
            counts.last_bytes
        ));
    }
    text
}

#[cfg(test)]
mod tests {
    use knarr_apimachinery::clock::Sleep;
    use knarr_storage::{Embedded, Options, Precondition};

    use super::*;
    use crate::layout::Layout;
    use crate::pki::Pki;

    #[test]
    fn the_newest_are_kept_and_what_is_not_ours_is() {
        let names = [
            "scheduled-n-20260102T000000Z.knarr",
            "scheduled-n-20260101T000000Z.knarr",
            "scheduled-n-20260103T000000Z.knarr",
            "scheduled-n-2-20260101T000000Z.knarr",
            "scheduled-n-keep.knarr",
            "mine.knarr",
        ];
        let gone = |keep, taken: &str, now: &str| {
            let names = names.map(ToOwned::to_owned).to_vec();
            surplus(names, "scheduled-n-", keep, taken, now.parse().unwrap())
        };
        let [second, first, third, ..] = names;
        let later = "2027-01-01T00:00:00Z";
        assert_eq!(gone(2, third, later), [first]);
        assert_eq!(gone(5, third, later), Vec::<String>::new());
        // The clock was ahead when the others were taken.
        let corrected = "2026-01-01T00:00:00Z";
        assert_eq!(gone(2, first, corrected), [second]);
        assert_eq!(gone(1, first, corrected), [second, third]);
    }

    #[tokio::test]
    async fn a_clock_that_is_set_back_does_not_put_backups_off() {
        let source = Source {
            layout: Layout::at(Path::new("/nowhere")),
            node: "n".to_owned(),
            shared_store: false,
            encryption_config: None,
        };
        let args = ScheduleArgs {
            backup_schedule: None,
            backup_dir: None,
            backup_retention: 5,
            backup_passphrase_file: None,
        };
        let scheduled = args.scheduled(source).unwrap().unwrap();
        let clock = SetClock::new("2030-01-01T00:30:00Z");
        clock.set_at_sleep("2026-01-01T00:30:00Z");
        scheduled.until_due(&clock).await;
        assert_eq!(clock.now().to_string(), "2026-01-01T12:00:00Z");
    }

    /// A clock whose sleeps take no time; the first sleep may end at another time of day.
    struct SetClock {
        now: Mutex<Timestamp>,
        set: Mutex<Option<Timestamp>>,
    }

    impl SetClock {
        fn new(now: &str) -> Self {
            Self { now: Mutex::new(now.parse().unwrap()), set: Mutex::default() }
        }

        fn set_at_sleep(&self, to: &str) {
            *self.set.lock().unwrap() = Some(to.parse().unwrap());
        }
    }

    impl Clock for SetClock {
        fn now(&self) -> Timestamp {
            *self.now.lock().unwrap()
        }

        fn monotonic(&self) -> Duration {
            Duration::ZERO
        }

        fn sleep(&self, duration: Duration) -> Sleep {
            let mut now = self.now.lock().unwrap();
            *now = self.set.lock().unwrap().take().unwrap_or(*now + duration);
            Box::pin(std::future::ready(()))
        }
    }

    #[test]
    fn schedules_are_those_of_cron_jobs() {
        let source = |shared_store| Source {
            layout: Layout::at(Path::new("/nowhere")),
            node: "n".to_owned(),
            shared_store,
            encryption_config: None,
        };
        let args = |schedule: Option<&str>| ScheduleArgs {
            backup_schedule: schedule.map(ToOwned::to_owned),
            backup_dir: None,
            backup_retention: 5,
            backup_passphrase_file: None,
        };
        for (schedule, shared, taken) in
            [(None, false, true), (None, true, false), (Some(""), false, false), (Some("@daily"), true, true)]
        {
            assert_eq!(args(schedule).scheduled(source(shared)).unwrap().is_some(), taken, "{schedule:?}");
        }
        let never = args(Some("0 0 31 2 *")).scheduled(source(false)).err().unwrap().to_string();
        assert!(never.starts_with("--backup-schedule: \"0 0 31 2 *\": "), "{never}");
        let refused = args(Some("61 * * * *")).scheduled(source(false)).err().unwrap().to_string();
        assert!(refused.starts_with("--backup-schedule: \"61 * * * *\": "), "{refused}");
        let default = args(None).scheduled(source(false)).unwrap().unwrap();
        let at = |text: &str| text.parse::<Timestamp>().unwrap();
        let next = default.schedule.next(at("2026-01-01T00:30:00Z"), &TimeZone::UTC);
        assert_eq!(next, Some(at("2026-01-01T12:00:00Z")));
        assert_eq!(default.folder, Path::new("/nowhere/backups"));
    }

    #[tokio::test]
    async fn backups_are_taken_and_failures_counted() {
        let root = std::env::temp_dir().join(format!("knarr-scheduled-{}", std::process::id()));
        let layout = Layout::create(&root).unwrap();
        Pki::open(layout.pki()).unwrap().service_account_key().unwrap();
        let store = Embedded::memory(Options::default());
        store.put("/registry/a".into(), "1".into(), Precondition::Any, None).await.unwrap();
        let source = Source { layout, node: "n".into(), shared_store: false, encryption_config: None };
        let args = ScheduleArgs {
            backup_schedule: None,
            backup_dir: None,
            backup_retention: 2,
            backup_passphrase_file: None,
        };
        let scheduled = Arc::new(args.scheduled(source).unwrap().unwrap());
        for day in 1..=3 {
            let now = format!("2026-01-0{day}T00:00:00Z").parse().unwrap();
            let taken = scheduled.take(&store, now).await.unwrap();
            super::super::restore::Backup::open(&taken.path, None).unwrap();
            std::fs::write(root.join("backups/.scheduled-n-x.knarr.7.partial"), "").unwrap();
            scheduled.remove_old(&taken.path, now).unwrap();
        }
        let mut left: Vec<_> =
            std::fs::read_dir(root.join("backups")).unwrap().map(|e| e.unwrap().file_name()).collect();
        left.sort();
        assert_eq!(left, ["scheduled-n-20260102T000000Z.knarr", "scheduled-n-20260103T000000Z.knarr"]);
        let text = scheduled.metrics()();
        assert!(text.contains("_total{result=\"success\"} 3\n"), "{text}");
        assert!(text.contains("last_success_timestamp_seconds 1767398400\n"), "{text}");
        assert!(check_room(&root, u64::MAX / 4).is_err());
        std::fs::remove_dir_all(&root).unwrap();
    }

    #[tokio::test]
    async fn backups_are_encrypted_if_that_is_wanted() {
        let root = std::env::temp_dir().join(format!("knarr-scheduled-sealed-{}", std::process::id()));
        let layout = Layout::create(&root).unwrap();
        Pki::open(layout.pki()).unwrap().service_account_key().unwrap();
        let store = Embedded::memory(Options::default());
        let file = root.join("passphrase");
        let scheduled = || {
            let source = Source {
                layout: Layout::at(&root),
                node: "n".into(),
                shared_store: false,
                encryption_config: None,
            };
            let args = ScheduleArgs {
                backup_schedule: None,
                backup_dir: None,
                backup_retention: 2,
                backup_passphrase_file: Some(file.clone()),
            };
            args.scheduled(source)
        };
        assert!(
            format!("{:#}", scheduled().err().unwrap()).starts_with("--backup-passphrase-file: cannot read ")
        );
        std::fs::write(&file, "secret\n").unwrap();
        let scheduled = Arc::new(scheduled().unwrap().unwrap());
        let taken = scheduled.take(&store, "2026-01-01T00:00:00Z".parse().unwrap()).await.unwrap();
        let open = |words: Option<&str>| {
            let passphrase =
                words.and_then(|words| crate::backup::seal::Passphrase::of_file(words.as_bytes()));
            super::super::restore::Backup::open(&taken.path, passphrase).map(drop)
        };
        assert!(format!("{:#}", open(None).unwrap_err()).contains("it is encrypted"));
        open(Some("secret")).unwrap();
        std::fs::remove_file(&file).unwrap();
        let failed = scheduled.take(&store, "2026-01-02T00:00:00Z".parse().unwrap()).await;
        assert!(failed.is_err(), "never without");
        std::fs::remove_dir_all(&root).unwrap();
    }
}
