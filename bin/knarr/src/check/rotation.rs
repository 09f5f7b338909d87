//! Checks the files of rotations in `pki/`: the one in progress with both pairs of each authority, and what
//! former ones have left. A server does not start if any of them is damaged.

use rustls::pki_types::SubjectPublicKeyInfoDer;
use rustls::pki_types::pem::PemObject;
use x509_parser::prelude::FromDer;
use x509_parser::x509::SubjectPublicKeyInfo;

use super::certificates::{Files, misfit};
use super::finding::Finding;
use crate::certificates::authorities::plan::{NAMES, Rotation, SERVICE_ACCOUNTS};
use crate::certificates::authorities::standing::Taken;
use crate::certificates::facts;
use crate::signer::TokenKey;

const STATE: &str = "pki/rotation/state.json";
const LAST: &str = "pki/rotation.last";
const FORMER: &str = "pki/sa.former.pub";
const IDENTITY: &str = "pki/identity";
/// The problem of an authority of which a step has not written all files.
pub const BROKEN_OFF: &str = "a step of a rotation was interrupted while it was written: start the server, or run \
    `knarr certificates rotate-ca status`, which goes on with it";

/// Checks the files of a server's folder.
pub fn check(files: &Files) -> Vec<Finding> {
    let damaged =
        |name: &str, what: &str| Finding::error("file", name, format!("{what}: restore it from a backup"));
    let mut findings = Vec::new();
    match rotation(files) {
        None => {}
        Some(Err(error)) => findings.push(damaged(STATE, &format!("it cannot be read: {error}"))),
        Some(Ok(rotation)) => {
            for name in &rotation.names {
                if !NAMES.contains(&name.as_str()) {
                    let problem = format!("it is of {name:?}, which this version of knarr does not know");
                    findings.push(Finding::error("file", STATE, problem));
                // In a last step that was interrupted, some pairs may have been removed.
                } else if has_pairs(files, name) || !rotation.phase.is_last() {
                    let wrong = pairs(files, name).into_iter();
                    findings.extend(wrong.map(|(file, what)| damaged(&file, what)));
                }
            }
        }
    }
    if let Some(content) = files.get(FORMER)
        && !are_public_keys(content)
    {
        findings.push(damaged(FORMER, "not all in it are public keys"));
    }
    if let Some(content) = files.get(IDENTITY)
        && !is_digest(content)
    {
        findings.push(damaged(IDENTITY, "it is not the identity of a cluster"));
    }
    if files.get(LAST).is_some_and(|content| serde_json::from_slice::<Taken>(content).is_err()) {
        findings.push(damaged(LAST, "it cannot be read"));
    }
    findings
}

/// Returns whether a rotation is in progress that rewrites an authority's certificates (`pki/ca.crt`) and
/// key.
pub fn goes_on_with(files: &Files, certificates: &str) -> bool {
    let Some(Ok(rotation)) = rotation(files) else { return false };
    let name = certificates.strip_prefix("pki/").and_then(|path| path.strip_suffix(".crt"));
    let Some(name) = name.filter(|name| rotation.names.iter().any(|n| n == name)) else { return false };
    has_pairs(files, name) && pairs(files, name).is_empty()
}

fn rotation(files: &Files) -> Option<serde_json::Result<Rotation>> {
    files.get(STATE).map(|content| serde_json::from_slice(content))
}

/// Returns the folder with both pairs of an authority.
fn folder(name: &str) -> String {
    format!("pki/rotation/{}/", name.replace('/', "-"))
}

fn has_pairs(files: &Files, name: &str) -> bool {
    let folder = folder(name);
    files.keys().any(|path| path.starts_with(&folder))
}

/// Returns the files of an authority's pairs that are wrong, and why.
fn pairs(files: &Files, name: &str) -> Vec<(String, &'static str)> {
    let mut wrong = Vec::new();
    for which in ["old", "new"] {
        let [certificates, key] = ["pem", "key"].map(|end| format!("{}{which}.{end}", folder(name)));
        match (files.get(&certificates), files.get(&key)) {
            (None, _) => wrong.push((certificates, "it is missing")),
            (_, None) => wrong.push((key, "it is missing")),
            (Some(_), Some(content)) if name == SERVICE_ACCOUNTS => {
                let parsed = std::str::from_utf8(content).ok().map(TokenKey::new);
                if parsed.is_none_or(|parsed| parsed.is_err()) {
                    wrong.push((key, "it is no key to sign tokens with"));
                }
            }
            (Some(content), Some(of_key)) => {
                if facts::chain(content).is_err() {
                    wrong.push((certificates, "it cannot be read"));
                } else if let Some(problem) = misfit(content, of_key) {
                    wrong.push((certificates, problem));
                }
            }
        }
    }
    wrong
}

fn are_public_keys(pem: &[u8]) -> bool {
    let mut count = 0;
    for key in SubjectPublicKeyInfoDer::pem_slice_iter(pem) {
        let Ok(key) = key else { return false };
        let read = SubjectPublicKeyInfo::from_der(&key);
        if !read.is_ok_and(|(rest, key)| rest.is_empty() && key.parsed().is_ok()) {
            return false;
        }
        count += 1;
    }
    count > 0
}

fn is_digest(content: &[u8]) -> bool {
    let content = content.trim_ascii();
    content.len() == 64 && content.iter().all(u8::is_ascii_hexdigit)
}

#[cfg(test)]
mod tests {
    use jiff::Timestamp;
    use rcgen::KeyPair;

    use super::super::certificates;
    use super::*;
    use crate::certificates::authorities::plan::Phase;

    fn insert(files: &mut Files, path: &str, content: impl Into<Vec<u8>>) {
        files.insert(path.to_owned(), content.into());
    }

    /// Builds a server's files in a phase in which both authorities are trusted, after an earlier rotation.
    fn server(phase: Phase) -> Files {
        let mut files = certificates::tests::server();
        let begun = Timestamp::from_second(1).unwrap();
        let names = NAMES.map(str::to_owned).to_vec();
        let state = Rotation { phase, begun, since: begun, names };
        insert(&mut files, STATE, serde_json::to_vec(&state).unwrap());
        insert(&mut files, LAST, serde_json::to_vec(&Taken { begun, phase: Phase::Finish }).unwrap());
        insert(&mut files, IDENTITY, "ab".repeat(32));
        let keys = [(); 2].map(|()| KeyPair::generate().unwrap().public_key_pem());
        insert(&mut files, FORMER, keys.concat());
        let other = certificates::tests::server();
        for (which, from) in [("old", files.clone()), ("new", other)] {
            for name in NAMES {
                let (certificates, key) = match name {
                    SERVICE_ACCOUNTS => (Vec::new(), from["pki/sa.key"].clone()),
                    name => {
                        (from[&format!("pki/{name}.crt")].clone(), from[&format!("pki/{name}.key")].clone())
                    }
                };
                insert(&mut files, &format!("{}{which}.pem", folder(name)), certificates);
                insert(&mut files, &format!("{}{which}.key", folder(name)), key);
            }
        }
        files
    }

    fn found(files: &Files) -> Vec<(String, String)> {
        let findings = certificates::check(files, Timestamp::now());
        findings.into_iter().map(|finding| (finding.name, finding.problem)).collect()
    }

    #[test]
    fn what_a_rotation_keeps_is_looked_at() {
        let sound = server(Phase::Distribute);
        assert_eq!(found(&sound), []);
        type Damage = fn(&mut Files);
        let cases: [(&str, Damage, &str); 10] = [
            (STATE, |f| insert(f, STATE, "{"), "it cannot be read"),
            (
                STATE,
                |f| {
                    let text =
                        String::from_utf8(f[STATE].clone()).unwrap().replace("front-proxy/ca", "etcd/ca");
                    insert(f, STATE, text);
                },
                "which this version",
            ),
            ("pki/rotation/ca/new.key", |f| drop(f.remove("pki/rotation/ca/new.key")), "it is missing"),
            (
                "pki/rotation/front-proxy-ca/old.pem",
                |f| f.retain(|path, _| !path.starts_with("pki/rotation/front-proxy-ca/old")),
                "it is missing",
            ),
            (
                "pki/rotation/ca/new.pem",
                |f| {
                    let old = f["pki/rotation/ca/old.key"].clone();
                    insert(f, "pki/rotation/ca/new.key", old);
                },
                "belongs to another",
            ),
            ("pki/rotation/ca/old.pem", |f| insert(f, "pki/rotation/ca/old.pem", ""), "it cannot be read"),
            (
                "pki/rotation/service-accounts/old.key",
                |f| insert(f, "pki/rotation/service-accounts/old.key", "x"),
                "no key to sign tokens",
            ),
            (FORMER, |f| insert(f, FORMER, ""), "not all in it"),
            (FORMER, |f| f.get_mut(FORMER).unwrap().truncate(250), "not all in it"),
            (IDENTITY, |f| insert(f, IDENTITY, ""), "identity"),
        ];
        for (name, damage, problem) in cases {
            let mut files = sound.clone();
            damage(&mut files);
            let found = found(&files);
            assert!(found.len() == 1 && found[0].0 == name, "{name}: {found:?}");
            assert!(found[0].1.contains(problem), "{name}: {found:?}");
        }
        let mut files = sound.clone();
        insert(&mut files, LAST, "{}");
        assert_eq!(
            found(&files),
            [(LAST.to_owned(), "it cannot be read: restore it from a backup".to_owned())]
        );
        // The last step removes one pair after the other.
        let mut files = server(Phase::Finish);
        files.retain(|path, _| !path.starts_with("pki/rotation/ca/"));
        assert_eq!(found(&files), []);
    }

    #[test]
    fn an_interrupted_step_is_distinguished_from_damage() {
        let mut files = server(Phase::Sign);
        let new = files["pki/rotation/ca/new.key"].clone();
        insert(&mut files, "pki/ca.key", new);
        assert_eq!(found(&files), [("pki/ca.crt".to_owned(), BROKEN_OFF.to_owned())]);
        // Nothing is left to continue with.
        let mut lost = files.clone();
        lost.retain(|path, _| !path.starts_with("pki/rotation"));
        assert!(found(&lost).iter().any(|(_, problem)| problem.contains("belongs to another certificate")));
        insert(&mut files, "pki/rotation/ca/new.key", "x");
        let found = found(&files);
        assert!(
            found
                .iter()
                .any(|(name, problem)| name == "pki/ca.crt" && problem.contains("belongs to another"))
        );
    }
}
