//! Checks the files of `pki/`: whether keys match certificates, whether authorities signed them, and when
//! they expire.

use std::collections::BTreeMap;

use jiff::Timestamp;
use rcgen::KeyPair;

use super::finding::{Finding, Severity};
use super::rotation;
use crate::certificate;
use crate::certificates::facts::{self, Facts};
use crate::signer::TokenKey;

/// The files by their paths below the data folder, such as `pki/ca.crt`.
pub type Files = BTreeMap<String, Vec<u8>>;

const AREA: &str = "certificate";
/// Certificates that `knarr kubeconfig` has issued, whose keys are elsewhere.
const ISSUED: &str = "pki/issued/";
/// Days before the expiry of an authority at which warnings begin.
const AUTHORITY_DAYS: i64 = 180;
/// The certificates that a server issues by itself, and how they are renewed.
const OWN: [&str; 5] = [
    "pki/apiserver.crt",
    "pki/apiserver-kubelet-client.crt",
    "pki/admin.crt",
    "pki/front-proxy/front-proxy-client.crt",
    "pki/kubelet-serving/kubelet.crt",
];
const MADE_ANEW: &str = "it is removed; the server makes a new one at its next start";
/// The authorities of a cluster.
const AUTHORITIES: [&str; 3] = ["pki/ca.crt", "pki/front-proxy/ca.crt", "pki/kubelet-serving/ca.crt"];

/// Checks the files of a server's or an agent's folder.
pub fn check(files: &Files, now: Timestamp) -> Vec<Finding> {
    let is_server =
        ["ca.crt", "ca.key", "sa.key"].iter().any(|name| files.contains_key(&format!("pki/{name}")));
    let mut findings = Vec::new();
    if is_server {
        for name in
            ["pki/ca.crt", "pki/ca.key", "pki/sa.key"].iter().filter(|name| !files.contains_key(**name))
        {
            findings.push(Finding::error("file", *name, "it is missing: restore it from a backup"));
        }
    }
    for (path, content) in files {
        if path == "pki/sa.key" {
            let key = std::str::from_utf8(content).ok().map(TokenKey::new);
            if key.is_none_or(|key| key.is_err()) {
                let problem = "it is no key to sign tokens with: restore it from a backup";
                findings.push(Finding::error("file", path, problem));
            }
        } else if path.starts_with("pki/") && path.ends_with(".crt") && !path.starts_with(ISSUED) {
            findings.extend(certificate(files, path, content, is_server, now));
        } else if path.ends_with("/ca.key") && !files.contains_key(&path.replace(".key", ".crt")) {
            let certificate = path.replace(".key", ".crt");
            if certificate != "pki/ca.crt" {
                findings.push(Finding::error("file", certificate, "it is missing, but its key exists"));
            }
        }
    }
    findings.extend(rotation::check(files));
    findings
}

fn certificate(
    files: &Files,
    path: &str,
    content: &[u8],
    is_server: bool,
    now: Timestamp,
) -> Option<Finding> {
    let stem = path.trim_end_matches(".crt");
    let is_authority = stem.ends_with("/ca");
    let remade = OWN.contains(&path).then_some(MADE_ANEW).filter(|_| is_server);
    // A certificate that a user has put there, for a flag of the server or for another purpose.
    let is_foreign = is_server && remade.is_none() && !AUTHORITIES.contains(&path);
    let wrong = |problem: String| {
        let error = Finding::error(AREA, path, problem).repair(remade);
        Some(if is_foreign { Finding { severity: Severity::Warning, ..error } } else { error })
    };
    let chain = match facts::chain(content) {
        Ok(chain) => chain,
        Err(error) => return wrong(format!("it cannot be read: {error:#}")),
    };
    let first = chain.first()?;
    let facts = match Facts::of(first) {
        Ok(facts) => facts,
        Err(error) => return wrong(format!("it cannot be read: {error:#}")),
    };
    match (files.get(&format!("{stem}.key")), is_authority) {
        // The CA's key may be kept elsewhere, or lost; nothing can be signed without it.
        (None, true) if path == "pki/ca.crt" => {}
        (None, _) if is_foreign => {}
        (None, _) => return wrong("its key is missing".to_owned()),
        (Some(key), _) => {
            if let Some(problem) = misfit(content, key) {
                if is_authority && rotation::goes_on_with(files, path) {
                    return Some(Finding::error(AREA, path, rotation::BROKEN_OFF));
                }
                return wrong(problem.to_owned());
            }
        }
    }
    if facts.expires <= now {
        return wrong(format!("it expired at {}", facts.expires));
    }
    if is_authority {
        let left = (facts.expires.as_second() - now.as_second()).div_euclid(86_400);
        let soon =
            || Finding::warning(AREA, path, format!("it expires at {}, in {left} days", facts.expires));
        return (left < AUTHORITY_DAYS).then(soon);
    }
    if !is_server || is_foreign {
        // An agent does not have the authorities of its certificates.
        return None;
    }
    let folder = path.rsplit_once('/').map_or("", |(folder, _)| folder);
    let authority = format!("{folder}/ca.crt");
    let authorities = files.get(&authority).and_then(|pem| facts::chain(pem).ok()).unwrap_or_default();
    if authorities.iter().any(|authority| facts::is_signed_by(first, authority)) {
        return None;
    }
    wrong(format!("{authority} has not signed it"))
}

/// Returns why a key (PEM) does not match a certificate.
pub fn misfit(certificate: &[u8], key: &[u8]) -> Option<&'static str> {
    let text = |bytes| std::str::from_utf8(bytes).unwrap_or_default();
    match KeyPair::from_pem(text(key)) {
        Err(_) => Some("its key cannot be read"),
        Ok(key) if certificate::check_pair(text(certificate), &key).is_err() => {
            Some("its key belongs to another certificate")
        }
        Ok(_) => None,
    }
}

#[cfg(test)]
pub mod tests {
    use std::path::PathBuf;
    use std::sync::atomic::{AtomicU32, Ordering};

    use super::*;
    use crate::pki::{Pki, Subject};

    /// Builds the files of a server with three authorities and a certificate of each.
    pub fn server() -> Files {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let n = NEXT.fetch_add(1, Ordering::Relaxed);
        let folder = std::env::temp_dir().join(format!("knarr-check-pki-{}-{n}", std::process::id()));
        let _ = std::fs::remove_dir_all(&folder);
        let pki = Pki::open(folder.join("pki")).unwrap();
        pki.service_account_key().unwrap();
        let subject = Subject {
            common_name: "x",
            organizations: &[],
            names: &["x".to_owned()],
            addresses: &[],
            server: true,
            client: true,
        };
        pki.credentials("apiserver", &subject).unwrap();
        pki.front_proxy().unwrap().credentials("front-proxy-client", &subject).unwrap();
        pki.kubelet_serving().unwrap().credentials("kubelet", &subject).unwrap();
        let mut files = Files::new();
        collect(&folder, &folder, &mut files);
        std::fs::remove_dir_all(&folder).unwrap();
        files
    }

    fn collect(root: &PathBuf, folder: &PathBuf, files: &mut Files) {
        for entry in std::fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                collect(root, &path, files);
            } else {
                let name = path.strip_prefix(root).unwrap().to_str().unwrap().to_owned();
                files.insert(name, std::fs::read(path).unwrap());
            }
        }
    }

    #[test]
    fn every_way_to_be_wrong_is_named() {
        let sound = server();
        let (now, day) = (Timestamp::now(), std::time::Duration::from_secs(86_400));
        assert_eq!(check(&sound, now), []);
        type Damage = fn(&mut Files, &Files);
        let remove: fn(&mut Files, &str) = |files, name| drop(files.remove(name).unwrap());
        let cases: [(&str, Damage, &str, bool); 9] = [
            ("pki/ca.key", |f, _| drop(f.remove("pki/ca.key")), "it is missing", false),
            ("pki/sa.key", |f, _| drop(f.remove("pki/sa.key")), "it is missing", false),
            ("pki/sa.key", |f, _| f.get_mut("pki/sa.key").unwrap().truncate(40), "no key to sign", false),
            (
                "pki/ca.crt",
                |f, o| drop(f.insert("pki/ca.key".into(), o["pki/apiserver.key"].clone())),
                "belongs to another",
                false,
            ),
            (
                "pki/kubelet-serving/ca.crt",
                |f, _| drop(f.remove("pki/kubelet-serving/ca.key")),
                "its key is missing",
                false,
            ),
            ("pki/apiserver.crt", |f, _| drop(f.remove("pki/apiserver.key")), "its key is missing", true),
            (
                "pki/apiserver.crt",
                |f, _| drop(f.insert("pki/apiserver.key".into(), b"x".to_vec())),
                "cannot be read",
                true,
            ),
            (
                "pki/apiserver.crt",
                |f, _| drop(f.insert("pki/apiserver.crt".into(), b"x".to_vec())),
                "cannot be read",
                true,
            ),
            (
                "pki/front-proxy/front-proxy-client.crt",
                |f, o| {
                    for end in ["crt", "key"] {
                        let other = o[&format!("pki/apiserver.{end}")].clone();
                        f.insert(format!("pki/front-proxy/front-proxy-client.{end}"), other);
                    }
                },
                "pki/front-proxy/ca.crt has not signed it",
                true,
            ),
        ];
        for (name, damage, problem, repaired) in cases {
            let mut files = sound.clone();
            damage(&mut files, &sound);
            let found = check(&files, now);
            assert_eq!(found.len(), 1, "{name}: {found:?}");
            assert_eq!((found[0].name.as_str(), found[0].repair.is_some()), (name, repaired), "{found:?}");
            assert!(found[0].problem.contains(problem), "{name}: {found:?}");
        }
        let mut files = sound.clone();
        remove(&mut files, "pki/front-proxy/ca.crt");
        let found = check(&files, now);
        assert!(found.iter().any(|f| f.name == "pki/front-proxy/ca.crt" && f.is_left()), "{found:?}");

        let later = check(&sound, now + 366 * day);
        assert_eq!(later.len(), 3, "{later:?}");
        assert!(later.iter().all(|f| f.problem.contains("it expired at") && f.repair.is_some()));
        let soon = check(&sound, now + 3500 * day);
        assert!(soon.iter().any(|f| f.name == "pki/ca.crt" && f.problem.contains(", in 1") && !f.is_left()));
        assert!(check(&Files::new(), now).is_empty());
    }

    #[test]
    fn what_others_have_put_there_is_not_removed() {
        let sound = server();
        let now = Timestamp::now();
        let other = |name: &str, from: &str| (name.to_owned(), sound[from].clone());
        let mut files = sound.clone();
        // Files with other authorities, without keys, with authorities of their own.
        files.extend([
            other("pki/tls/web.crt", "pki/front-proxy/front-proxy-client.crt"),
            other("pki/tls/web.key", "pki/front-proxy/front-proxy-client.key"),
            other("pki/oidc.crt", "pki/kubelet-serving/ca.crt"),
            other("pki/etcd/ca.crt", "pki/front-proxy/ca.crt"),
        ]);
        assert_eq!(check(&files, now), []);
        files.insert("pki/tls/web.key".to_owned(), sound["pki/apiserver.key"].clone());
        files.insert("pki/oidc.crt".to_owned(), b"x".to_vec());
        let found = check(&files, now);
        let names: Vec<_> = found.iter().map(|f| (f.name.as_str(), f.severity, f.repair)).collect();
        let warned = |name| (name, Severity::Warning, None);
        assert_eq!(names, [warned("pki/oidc.crt"), warned("pki/tls/web.crt")]);
    }

    #[test]
    fn agents_have_certificates_without_authorities() {
        let sound = server();
        let agent = |key: &str| -> Files {
            let of = |name: &str, from: &str| (name.to_owned(), sound[from].clone());
            [of("pki/kubelet-client.crt", "pki/apiserver.crt"), of("pki/kubelet-client.key", key)].into()
        };
        let now = Timestamp::now();
        assert_eq!(check(&agent("pki/apiserver.key"), now), []);
        let found = check(&agent("pki/ca.key"), now);
        assert_eq!((found.len(), found[0].repair), (1, None), "only the cluster can give it another one");
    }
}
