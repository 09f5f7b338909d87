//! The state of a rotation on disk: a folder of `pki/` with both authorities of each kind, and the phase. The
//! phase is written first; the files of `pki/` are derived from it, now or at the server's next start.

use std::fs;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use rcgen::KeyPair;

use super::plan::{self, NAMES, Pair, Phase, Rotation, SERVICE_ACCOUNTS};
use super::served;
use super::standing::Taken;
use crate::pki::{self, Pki, read, write_private};

const FOLDER: &str = "rotation";
const STATE: &str = "state.json";
/// Public keys that verify service account tokens signed by former keys.
const FORMER: &str = "sa.former.pub";
/// The last step that was taken; servers on one etcd compare their progress by it.
const LAST: &str = "rotation.last";

/// Reads the rotation in the folder `pki`, if one is in progress.
pub fn load(pki: &Path) -> Result<Option<Rotation>> {
    let path = pki.join(FOLDER).join(STATE);
    if !path.try_exists().with_context(|| format!("cannot read {}", path.display()))? {
        return Ok(None);
    }
    let rotation = serde_json::from_str(&read(&path)?);
    rotation.map(Some).with_context(|| format!("{} is damaged: restore it from a backup", path.display()))
}

/// Creates the new authorities and stores the old ones beside them. Nothing in use changes yet.
pub fn prepare(pki: &Pki, folder: &Path, names: &[String]) -> Result<()> {
    pki.keep_identity()?;
    for name in names {
        let (certificate, key) = paths(folder, name);
        let old = Pair { certificates: read_certificates(&certificate)?, key: read(&key)? };
        let new = match certificate {
            Some(_) => pki.new_authority(name)?,
            None => Pair { certificates: String::new(), key: KeyPair::generate()?.serialize_pem() },
        };
        write_pair(folder, name, "old", &old)?;
        write_pair(folder, name, "new", &new)?;
    }
    Ok(())
}

/// Enters a phase.
pub fn enter(folder: &Path, rotation: &Rotation) -> Result<()> {
    let text = serde_json::to_vec_pretty(rotation)?;
    write_private(&folder.join(FOLDER).join(STATE), &text)?;
    apply(folder, rotation)
}

/// Updates the files of `pki/` to the phase of a rotation, if one is in progress. This completes what a
/// killed process left undone.
pub fn resume(folder: &Path) -> Result<()> {
    match load(folder)? {
        Some(rotation) => apply(folder, &rotation),
        None => Ok(()),
    }
}

fn apply(folder: &Path, rotation: &Rotation) -> Result<()> {
    for name in &rotation.names {
        // An authority that was finished before a process died has no folder any more.
        let Some((old, new)) = pairs(folder, name)? else { continue };
        let wanted = plan::files(rotation.phase, &old, &new);
        let (certificate, key) = paths(folder, name);
        if name == SERVICE_ACCOUNTS && rotation.phase == Phase::Finish {
            keep_former(folder, &old.key)?;
        }
        write_private(&key, wanted.key.as_bytes())?;
        if let Some(certificate) = certificate {
            write_private(&certificate, wanted.certificates.as_bytes())?;
        }
        if rotation.phase.is_last() {
            remove(&folder_of(folder, name))?;
        }
    }
    if rotation.phase.is_last() {
        served::forget(folder)?;
        let taken = Taken { begun: rotation.begun, phase: rotation.phase };
        write_private(&folder.join(LAST), &serde_json::to_vec_pretty(&taken)?)?;
        remove(&folder.join(FOLDER))?;
    }
    Ok(())
}

/// Returns the keys (PEM) that verify tokens besides the one that signs: of the rotation in progress, and of
/// former ones.
pub fn further_token_keys(folder: &Path) -> Result<Vec<String>> {
    let mut keys: Vec<String> = other_token_key(folder)?.into_iter().collect();
    let former = folder.join(FORMER);
    if former.exists() {
        keys.push(read(&former)?);
    }
    Ok(keys)
}

/// Returns the key (PEM) of the rotation in progress that does not sign tokens.
pub fn other_token_key(folder: &Path) -> Result<Option<String>> {
    let Some(rotation) = load(folder)? else { return Ok(None) };
    if !rotation.names.iter().any(|name| name == SERVICE_ACCOUNTS) {
        return Ok(None);
    }
    let Some((old, new)) = pairs(folder, SERVICE_ACCOUNTS)? else { return Ok(None) };
    public(&if rotation.phase == Phase::Sign { old.key } else { new.key }).map(Some)
}

/// Reads the last step that was taken in this folder.
pub fn taken(folder: &Path) -> Result<Option<Taken>> {
    if let Some(rotation) = load(folder)? {
        return Ok(Some(Taken { begun: rotation.begun, phase: rotation.phase }));
    }
    let path = folder.join(LAST);
    if !path.try_exists().with_context(|| format!("cannot read {}", path.display()))? {
        return Ok(None);
    }
    let taken = serde_json::from_str(&read(&path)?);
    taken.map(Some).with_context(|| format!("{} is damaged: restore it from a backup", path.display()))
}

fn keep_former(folder: &Path, key: &str) -> Result<()> {
    let path = folder.join(FORMER);
    let before = if path.exists() { read(&path)? } else { String::new() };
    let key = public(key)?;
    if before.contains(key.trim()) {
        return Ok(());
    }
    write_private(&path, format!("{before}{key}").as_bytes())
}

/// Returns the public key (PEM) of a private key.
pub fn public(key: &str) -> Result<String> {
    Ok(KeyPair::from_pem(key).context("a key of service accounts is damaged")?.public_key_pem())
}

/// Returns the files of an authority: certificate, if it has one, and key.
fn paths(folder: &Path, name: &str) -> (Option<PathBuf>, PathBuf) {
    match name {
        SERVICE_ACCOUNTS => (None, folder.join("sa.key")),
        name => (Some(folder.join(format!("{name}.crt"))), folder.join(format!("{name}.key"))),
    }
}

/// Returns the folder with both authorities of a name.
fn folder_of(folder: &Path, name: &str) -> PathBuf {
    folder.join(FOLDER).join(name.replace('/', "-"))
}

fn read_certificates(path: &Option<PathBuf>) -> Result<String> {
    path.as_deref().map_or(Ok(String::new()), pki::read)
}

fn write_pair(folder: &Path, name: &str, which: &str, pair: &Pair) -> Result<()> {
    let to = folder_of(folder, name);
    let made = fs::DirBuilder::new().recursive(true).mode(0o700).create(&to);
    made.with_context(|| format!("cannot create the folder {}", to.display()))?;
    write_private(&to.join(format!("{which}.key")), pair.key.as_bytes())?;
    write_private(&to.join(format!("{which}.pem")), pair.certificates.as_bytes())
}

fn pairs(folder: &Path, name: &str) -> Result<Option<(Pair, Pair)>> {
    if !NAMES.contains(&name) {
        anyhow::bail!("a rotation is under way of {name:?}, which this version of knarr does not know");
    }
    let from = folder_of(folder, name);
    if !from.exists() {
        return Ok(None);
    }
    let pair = |which: &str| -> Result<Pair> {
        let file = |extension: &str| read(&from.join(format!("{which}.{extension}")));
        Ok(Pair { certificates: file("pem")?, key: file("key")? })
    };
    Ok(Some((pair("old")?, pair("new")?)))
}

/// Removes a folder: it is renamed first, so that a partly removed folder is never taken for a complete one.
fn remove(folder: &Path) -> Result<()> {
    let gone = folder.with_extension("gone");
    let remove = || -> std::io::Result<()> {
        if gone.exists() {
            fs::remove_dir_all(&gone)?;
        }
        if folder.exists() {
            fs::rename(folder, &gone)?;
            fs::remove_dir_all(&gone)?;
        }
        folder.parent().map_or(Ok(()), |parent| fs::File::open(parent)?.sync_all())
    };
    remove().with_context(|| format!("cannot remove {}", folder.display()))
}
