//! Kernel settings of the network; their previous values are kept in a file so that a reset can restore them.

use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};

use thiserror::Error;

/// Why a kernel setting could not be changed or its previous value stored.
#[derive(Debug, Error)]
pub enum SysctlError {
    #[error("reading /proc/sys/{name}")]
    Read { name: String, source: io::Error },
    #[error("writing /proc/sys/{name}")]
    Write { name: String, source: io::Error },
    #[error("storing previous kernel settings in {}", path.display())]
    State { path: PathBuf, source: io::Error },
}

/// The settings changed so far, by their names below `/proc/sys`, and the file with their previous values.
pub struct Sysctls {
    path: PathBuf,
    previous: BTreeMap<String, String>,
}

impl Sysctls {
    /// Reads the values that an earlier run stored. A file that cannot be decoded counts as empty.
    pub fn open(path: PathBuf) -> Result<Self, SysctlError> {
        let previous = match std::fs::read(&path) {
            Ok(bytes) => serde_json::from_slice(&bytes).unwrap_or_default(),
            Err(error) if error.kind() == io::ErrorKind::NotFound => BTreeMap::new(),
            Err(source) => return Err(SysctlError::State { path, source }),
        };
        Ok(Self { path, previous })
    }

    /// Sets `name` to `value` if it exists and differs; its first previous value is stored before that.
    pub fn set(&mut self, name: &str, value: &str) -> Result<(), SysctlError> {
        let Some(current) = read(name)? else { return Ok(()) };
        if current == value {
            return Ok(());
        }
        if !self.previous.contains_key(name) {
            self.previous.insert(name.to_owned(), current);
            self.save()?;
        }
        write(name, value)
    }

    /// Like [`Sysctls::set`], for a number, which is changed only if it is below `at_least`.
    pub fn raise(&mut self, name: &str, at_least: u64) -> Result<(), SysctlError> {
        let current = read(name)?.and_then(|text| text.parse::<u64>().ok());
        if current.is_some_and(|current| current < at_least) {
            self.set(name, &at_least.to_string())?;
        }
        Ok(())
    }

    /// Restores every stored value and removes the file.
    pub fn restore(self) -> Result<(), SysctlError> {
        for (name, value) in &self.previous {
            // A setting of a device that does not exist any more needs no restore.
            if read(name)?.is_some() {
                write(name, value)?;
            }
        }
        match std::fs::remove_file(&self.path) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => {
                Err(SysctlError::State { path: self.path, source: error })
            }
            _ => Ok(()),
        }
    }

    fn save(&self) -> Result<(), SysctlError> {
        let state = |source| SysctlError::State { path: self.path.clone(), source };
        let bytes = serde_json::to_vec_pretty(&self.previous).map_err(|e| state(e.into()))?;
        let temporary = self.path.with_extension("new");
        std::fs::write(&temporary, bytes).map_err(state)?;
        std::fs::rename(&temporary, &self.path).map_err(state)
    }
}

fn read(name: &str) -> Result<Option<String>, SysctlError> {
    match std::fs::read_to_string(Path::new("/proc/sys").join(name)) {
        Ok(text) => Ok(Some(text.trim().to_owned())),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(source) => Err(SysctlError::Read { name: name.to_owned(), source }),
    }
}

fn write(name: &str, value: &str) -> Result<(), SysctlError> {
    std::fs::write(Path::new("/proc/sys").join(name), value)
        .map_err(|source| SysctlError::Write { name: name.to_owned(), source })
}
