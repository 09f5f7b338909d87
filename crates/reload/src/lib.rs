//! Configuration files that are read again whenever one of them changes.

use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, TryLockError};
use std::time::{Duration, SystemTime};

use arc_swap::ArcSwap;
use knarr_apimachinery::clock::Clock;

/// The minimum interval between two checks of the files; checks are only made when the value is requested.
const LOOK_EVERY: Duration = Duration::from_secs(1);
/// The maximum size of a configuration file, in bytes.
const MAX_FILE: u64 = 16 << 20;
/// The maximum number of files in a configuration directory.
const MAX_FILES: usize = 1000;

/// The metadata by which a change of a file is detected.
type Stamp = Option<(SystemTime, u64, [i64; 4])>;

/// A file with its content.
pub type Content = (PathBuf, Vec<u8>);

type Parse<T> = Box<dyn Fn(&[Content]) -> Result<T, String> + Send + Sync>;

/// The files from which a value is parsed.
enum Source {
    Nothing,
    Files(Vec<PathBuf>),
    /// The files of a directory with one of these extensions, sorted by name; subdirectories are ignored.
    Folder(PathBuf, &'static [&'static str]),
}

impl Source {
    fn files(&self) -> Result<Vec<PathBuf>, String> {
        let (folder, extensions) = match self {
            Self::Nothing => return Ok(Vec::new()),
            Self::Files(files) => return Ok(files.clone()),
            Self::Folder(folder, extensions) => (folder, extensions),
        };
        let failed = |e| format!("cannot read {}: {e}", folder.display());
        let mut files = Vec::new();
        for entry in std::fs::read_dir(folder).map_err(failed)? {
            let path = entry.map_err(failed)?.path();
            let extension = path.extension().and_then(|e| e.to_str()).unwrap_or("").to_lowercase();
            if extensions.contains(&extension.as_str()) && path.is_file() {
                files.push(path);
            }
        }
        if files.len() > MAX_FILES {
            return Err(format!("{} has more than {MAX_FILES} files", folder.display()));
        }
        files.sort();
        Ok(files)
    }
}

/// A value parsed from files. Requests for it check the files' metadata from time to time. If changed content does
/// not parse, an error is logged and the value is kept.
pub struct Reloaded<T> {
    source: Source,
    parse: Parse<T>,
    current: ArcSwap<T>,
    seen: Mutex<Seen>,
}

struct Seen {
    looked: Option<Duration>,
    stamps: Vec<(PathBuf, Stamp)>,
}

impl<T: Send + Sync> Reloaded<T> {
    /// Creates a value that never changes.
    pub fn fixed(value: T) -> Self {
        Self {
            source: Source::Nothing,
            parse: Box::new(|_| Err("it is fixed".into())),
            current: ArcSwap::from_pointee(value),
            seen: Mutex::new(Seen { looked: None, stamps: Vec::new() }),
        }
    }

    /// Reads the files, which must exist and parse.
    pub fn open(
        files: Vec<PathBuf>,
        parse: impl Fn(&[Vec<u8>]) -> Result<T, String> + Send + Sync + 'static,
    ) -> Result<Self, String> {
        let parse = move |contents: &[Content]| {
            let texts: Vec<Vec<u8>> = contents.iter().map(|(_, text)| text.clone()).collect();
            parse(&texts)
        };
        Self::of(Source::Files(files), Box::new(parse))
    }

    /// Reads the files of a directory that have one of these extensions, sorted by name; they must parse.
    pub fn open_folder(
        folder: PathBuf,
        extensions: &'static [&'static str],
        parse: impl Fn(&[Content]) -> Result<T, String> + Send + Sync + 'static,
    ) -> Result<Self, String> {
        Self::of(Source::Folder(folder, extensions), Box::new(parse))
    }

    fn of(source: Source, parse: Parse<T>) -> Result<Self, String> {
        let files = source.files()?;
        let stamps = stamps(&files);
        let value = parse(&read(&files)?)?;
        Ok(Self {
            source,
            parse,
            current: ArcSwap::from_pointee(value),
            seen: Mutex::new(Seen { looked: None, stamps }),
        })
    }

    /// Stops following the files; the current value never changes.
    pub fn frozen(mut self) -> Self {
        self.source = Source::Nothing;
        self
    }

    /// Returns the current value, after checking the files for changes if a check is due.
    pub fn get(&self, clock: &dyn Clock) -> Arc<T> {
        if !matches!(self.source, Source::Nothing) {
            self.look(clock.monotonic());
        }
        self.current.load_full()
    }

    fn look(&self, now: Duration) {
        // Another task is checking already; until it has finished, the current value stays.
        let mut seen = match self.seen.try_lock() {
            Ok(seen) => seen,
            Err(TryLockError::WouldBlock) => return,
            Err(TryLockError::Poisoned(seen)) => seen.into_inner(),
        };
        if seen.looked.is_some_and(|at| now.saturating_sub(at) < LOOK_EVERY) {
            return;
        }
        seen.looked = Some(now);
        let files = match self.source.files() {
            Ok(files) => files,
            Err(error) => {
                tracing::error!(error, "cannot check the configuration for changes, keeping the old one");
                return;
            }
        };
        let stamps = stamps(&files);
        if stamps == seen.stamps {
            return;
        }
        let shown = || files.iter().map(|f| f.display().to_string()).collect::<Vec<_>>().join(", ");
        let texts = match read(&files) {
            Ok(texts) => texts,
            // The file may be in the middle of a change, or the machine short of a resource; the next check tries
            // again.
            Err(error) => {
                tracing::error!(
                    files = shown(),
                    error,
                    "cannot read the changed configuration, keeping the old one"
                );
                return;
            }
        };
        match (self.parse)(&texts) {
            Ok(value) => {
                tracing::info!(files = shown(), "configuration reloaded");
                self.current.store(Arc::new(value));
            }
            Err(error) => {
                tracing::error!(files = shown(), error, "changed configuration refused, keeping the old one");
            }
        }
        seen.stamps = stamps;
    }
}

fn stamps(files: &[PathBuf]) -> Vec<(PathBuf, Stamp)> {
    files.iter().map(|file| (file.clone(), stamp(file))).collect()
}

fn stamp(path: &PathBuf) -> Stamp {
    let metadata = std::fs::metadata(path).ok()?;
    // A copied file may have the same modification time and length.
    let own =
        [metadata.dev().cast_signed(), metadata.ino().cast_signed(), metadata.ctime(), metadata.ctime_nsec()];
    Some((metadata.modified().ok()?, metadata.len(), own))
}

fn read(files: &[PathBuf]) -> Result<Vec<Content>, String> {
    files.iter().map(|file| Ok((file.clone(), read_one(file)?))).collect()
}

fn read_one(path: &PathBuf) -> Result<Vec<u8>, String> {
    let shown = path.display();
    let size = std::fs::metadata(path).map_err(|e| format!("cannot read {shown}: {e}"))?.len();
    if size > MAX_FILE {
        return Err(format!("{shown} is larger than {MAX_FILE} bytes"));
    }
    std::fs::read(path).map_err(|e| format!("cannot read {shown}: {e}"))
}

/// Returns a file's content as text.
pub fn text(bytes: &[u8]) -> Result<&str, String> {
    std::str::from_utf8(bytes).map_err(|e| format!("not UTF-8: {e}"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use knarr_client::clock::SystemClock;

    struct Manual(Mutex<Duration>);

    impl Clock for Manual {
        fn now(&self) -> jiff::Timestamp {
            SystemClock.now()
        }
        fn monotonic(&self) -> Duration {
            *self.0.lock().unwrap()
        }
        fn sleep(&self, duration: Duration) -> knarr_apimachinery::clock::Sleep {
            SystemClock.sleep(duration)
        }
    }

    #[test]
    fn a_folder_is_read_again_when_its_files_change() {
        let folder = std::env::temp_dir().join(format!("reload-{}", uuid::Uuid::new_v4()));
        std::fs::create_dir_all(folder.join("within.yaml")).unwrap();
        let parse = |contents: &[Content]| -> Result<Vec<String>, String> {
            contents.iter().map(|(_, bytes)| text(bytes).map(str::to_owned)).collect()
        };
        let open = || Reloaded::open_folder(folder.clone(), &["yaml", "json"], parse);
        let clock = Manual(Mutex::default());
        let value = open().unwrap();
        let now = || {
            *clock.0.lock().unwrap() += LOOK_EVERY;
            value.get(&clock).join(" ")
        };
        assert_eq!(now(), "");
        for (name, text) in [("b.yaml", "b"), ("a.JSON", "a"), ("c.txt", "c")] {
            std::fs::write(folder.join(name), text).unwrap();
        }
        assert_eq!(now(), "a b");
        std::fs::write(folder.join("c.yaml"), [0xff]).unwrap();
        assert_eq!(now(), "a b", "a broken one is not taken");
        std::fs::remove_file(folder.join("c.yaml")).unwrap();
        std::fs::remove_file(folder.join("b.yaml")).unwrap();
        assert_eq!(now(), "a");
        std::fs::remove_dir_all(&folder).unwrap();
        assert_eq!(now(), "a");
        assert!(open().is_err());
    }

    #[test]
    fn a_changed_file_is_read_again_and_a_broken_one_is_not_taken() {
        let folder = std::env::temp_dir().join(format!("reload-{}", uuid::Uuid::new_v4()));
        std::fs::create_dir_all(&folder).unwrap();
        let file = folder.join("number");
        std::fs::write(&file, "1").unwrap();
        let parse = |texts: &[Vec<u8>]| text(&texts[0])?.trim().parse::<u64>().map_err(|e| e.to_string());
        let value = Reloaded::open(vec![file.clone()], parse).unwrap();
        let clock = Manual(Mutex::default());
        let later = |clock: &Manual| *clock.0.lock().unwrap() += LOOK_EVERY;
        assert_eq!(*value.get(&clock), 1);
        std::fs::write(&file, "22").unwrap();
        assert_eq!(*value.get(&clock), 1, "looked at only now and then");
        later(&clock);
        assert_eq!(*value.get(&clock), 22);
        std::fs::write(&file, "broken").unwrap();
        later(&clock);
        assert_eq!(*value.get(&clock), 22);
        std::fs::remove_file(&file).unwrap();
        later(&clock);
        assert_eq!(*value.get(&clock), 22);
        assert!(Reloaded::open(vec![file], parse).is_err());
        std::fs::remove_dir_all(&folder).unwrap();
    }
}
