//! The log backend: a file with one event per line, rotated by size.

use std::fs::{File, OpenOptions};
use std::io::Write;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

use jiff::Timestamp;
use serde_json::Value;

use super::legacy;
use super::options::{Format, LogOptions};

/// The size at which a file is rotated by default, in bytes.
const DEFAULT_MAX: u64 = 100 << 20;
const DAY_SECONDS: i64 = 24 * 3600;

pub struct Log {
    options: LogOptions,
    open: Mutex<Option<(File, u64)>>,
}

impl Log {
    pub fn new(options: &LogOptions) -> Self {
        Self { options: options.clone(), open: Mutex::new(None) }
    }

    /// Writes the events in one write: all or none of them.
    pub fn write(&self, events: &[Value], now: Timestamp) -> std::io::Result<()> {
        let mut text = String::new();
        for event in events {
            match self.options.format {
                Format::Json => text.push_str(&event.to_string()),
                Format::Legacy => text.push_str(&legacy::line(event)),
            }
            text.push('\n');
        }
        if self.options.path == Path::new("-") {
            return std::io::stdout().write_all(text.as_bytes());
        }
        let mut open = self.open.lock().unwrap_or_else(PoisonError::into_inner);
        let most = if self.options.max_size_mb == 0 { DEFAULT_MAX } else { self.options.max_size_mb << 20 };
        let grown = open.as_ref().is_some_and(|(_, size)| *size > 0 && size + text.len() as u64 > most);
        if grown {
            *open = None;
            self.set_aside(now)?;
        }
        if open.is_none() {
            let file = OpenOptions::new().create(true).append(true).mode(0o600).open(&self.options.path)?;
            let size = file.metadata()?.len();
            *open = Some((file, size));
        }
        if let Some((file, size)) = open.as_mut() {
            file.write_all(text.as_bytes())?;
            *size += text.len() as u64;
        }
        Ok(())
    }

    /// Rotates the file: `audit.log` becomes `audit-2026-01-01T00-00-00.000.log`. Removes rotated files beyond the
    /// configured number and age.
    fn set_aside(&self, now: Timestamp) -> std::io::Result<()> {
        let path = &self.options.path;
        let millis = now.as_millisecond();
        let seconds = Timestamp::from_second(millis.div_euclid(1000)).unwrap_or(now);
        let time = seconds.to_string().replace(':', "-");
        let stamp = format!("{}.{:03}", time.trim_end_matches('Z'), millis.rem_euclid(1000));
        let (stem, extension) = self.parts();
        let aside = path.with_file_name(format!("{stem}-{stamp}{extension}"));
        std::fs::rename(path, &aside)?;
        if self.options.compress {
            compress(&aside)?;
        }
        let mut old = self.old_ones()?;
        old.sort();
        let too_many = match self.options.max_backups {
            0 => 0,
            most => old.len().saturating_sub(most),
        };
        for gone in old.drain(..too_many) {
            std::fs::remove_file(gone)?;
        }
        if self.options.max_age_days > 0 {
            let oldest = now.as_second() - i64::from(self.options.max_age_days) * DAY_SECONDS;
            for file in old {
                let modified = std::fs::metadata(&file)?.modified()?;
                let modified = Timestamp::try_from(modified).map_or(i64::MAX, Timestamp::as_second);
                if modified < oldest {
                    std::fs::remove_file(file)?;
                }
            }
        }
        Ok(())
    }

    fn parts(&self) -> (String, String) {
        let path = &self.options.path;
        let text = |part: Option<&std::ffi::OsStr>| part.and_then(|p| p.to_str()).unwrap_or("").to_owned();
        let extension = text(path.extension());
        let extension = if extension.is_empty() { extension } else { format!(".{extension}") };
        (text(path.file_stem()), extension)
    }

    fn old_ones(&self) -> std::io::Result<Vec<PathBuf>> {
        let folder =
            self.options.path.parent().filter(|p| !p.as_os_str().is_empty()).unwrap_or(Path::new("."));
        let (stem, extension) = self.parts();
        let is_old = |path: &PathBuf| {
            let name = path.file_name().and_then(|n| n.to_str()).unwrap_or("");
            let name = name.strip_suffix(".gz").unwrap_or(name);
            name.strip_prefix(&format!("{stem}-")).is_some_and(|rest| rest.ends_with(&extension))
        };
        Ok(std::fs::read_dir(folder)?.flatten().map(|e| e.path()).filter(is_old).collect())
    }
}

fn compress(path: &Path) -> std::io::Result<()> {
    let mut packed = path.as_os_str().to_owned();
    packed.push(".gz");
    let out = OpenOptions::new().create(true).write(true).truncate(true).mode(0o600).open(packed)?;
    let mut encoder = flate2::write::GzEncoder::new(out, flate2::Compression::fast());
    std::io::copy(&mut File::open(path)?, &mut encoder)?;
    encoder.finish()?;
    std::fs::remove_file(path)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn files_are_set_aside_and_only_some_are_kept() {
        let folder = std::env::temp_dir().join(format!("audit-{}", uuid::Uuid::new_v4()));
        std::fs::create_dir_all(&folder).unwrap();
        let options = LogOptions {
            path: folder.join("audit.log"),
            max_size_mb: 1,
            max_backups: 2,
            ..LogOptions::default()
        };
        let log = Log::new(&options);
        let event = json!({"text": "x".repeat(400 << 10)});
        let start: Timestamp = "2026-01-01T00:00:00Z".parse().unwrap();
        for n in 0..12 {
            log.write(std::slice::from_ref(&event), start + jiff::SignedDuration::from_secs(n)).unwrap();
        }
        let mut names: Vec<String> = std::fs::read_dir(&folder)
            .unwrap()
            .map(|e| e.unwrap().file_name().into_string().unwrap())
            .collect();
        names.sort();
        assert_eq!(
            names,
            ["audit-2026-01-01T00-00-08.000.log", "audit-2026-01-01T00-00-10.000.log", "audit.log"]
        );
        for name in names {
            assert_eq!(std::fs::read_to_string(folder.join(name)).unwrap().lines().count(), 2);
        }
        std::fs::remove_dir_all(&folder).unwrap();
    }
}
