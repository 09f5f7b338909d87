//! Pulls in different orders, with real files.

use std::path::PathBuf;

use knarr_client::clock::SystemClock;

use super::*;

/// A temporary folder, removed at the end.
pub(super) struct Folder(pub PathBuf);

impl Folder {
    pub(super) fn new() -> Self {
        Self(std::env::temp_dir().join(format!("knarr-pulled-{:016x}", fastrand::u64(..))))
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

const PRIVATE: &str = "r.io/team/app:1";

fn open(folder: &Folder) -> PulledImages {
    PulledImages::new(&folder.0, VerificationPolicy::default(), Arc::new(SystemClock))
}

fn image(id: &str, tags: &[&str]) -> Image {
    Image { id: id.into(), repo_tags: tags.iter().map(|t| (*t).to_owned()).collect(), ..Image::default() }
}

fn secret(hash: &str) -> ImagePullSecret {
    ImagePullSecret {
        namespace: "ns".into(),
        name: "s".into(),
        uid: "u".into(),
        credential_hash: hash.into(),
    }
}

fn by_secret() -> ImagePullCredentials {
    ImagePullCredentials { kubernetes_secrets: vec![secret("1")], node_pods_accessible: false }
}

fn by_nobody() -> ImagePullCredentials {
    ImagePullCredentials { node_pods_accessible: true, ..Default::default() }
}

fn intents(folder: &Folder) -> usize {
    std::fs::read_dir(folder.0.join("image_manager/pulling")).map_or(0, Iterator::count)
}

#[test]
fn a_private_image_needs_the_credentials_that_pulled_it() {
    let folder = Folder::new();
    let pulled = open(&folder);
    let app = image("sha256:a", &[PRIVATE]);
    assert_eq!(pulled.access(PRIVATE, &app), Access::Granted, "preloaded");
    pulled.begin(PRIVATE, None).unwrap();
    assert_eq!(pulled.access(PRIVATE, &app), Access::Refused, "a pull is under way");
    assert_eq!(pulled.access("r.io/team/app:2", &app), Access::Refused, "the same repository");
    pulled.pulled(PRIVATE, &app.id, by_secret());
    assert_eq!(intents(&folder), 0);
    let needed = Access::Secrets(vec![secret("1")]);
    assert_eq!(pulled.access(PRIVATE, &app), needed);
    assert_eq!(
        pulled.access(
            "r.io/team/app@sha256:0000000000000000000000000000000000000000000000000000000000000000",
            &app
        ),
        needed
    );
    // By its id, and after a restart.
    assert_eq!(pulled.access("0123456789ab", &app), Access::Refused);
    let again = open(&folder);
    again.take_up(std::slice::from_ref(&app)).unwrap();
    assert_eq!(again.access(PRIVATE, &app), needed);
    again.remember(PRIVATE, &app.id, secret("2"));
    assert_eq!(again.access(PRIVATE, &app), Access::Secrets(vec![secret("2")]));
    // A registry that needs no credentials.
    again.begin(PRIVATE, Some(&app)).unwrap();
    again.pulled(PRIVATE, &app.id, by_nobody());
    assert_eq!(again.access(PRIVATE, &app), Access::Granted);
    // The record is removed with its image.
    open(&folder).take_up(&[]).unwrap();
    assert_eq!(again.access(PRIVATE, &app), Access::Granted);
}

#[test]
fn a_preloaded_image_stays_one_when_a_copy_of_it_is_pulled() {
    let folder = Folder::new();
    let pulled = open(&folder);
    let both = image("sha256:a", &["docker.io/library/busybox:latest", PRIVATE]);
    pulled.begin(PRIVATE, None).unwrap();
    pulled.pulled(PRIVATE, &both.id, by_secret());
    assert_eq!(pulled.access("busybox", &both), Access::Granted);
    assert_eq!(pulled.access(PRIVATE, &both), Access::Secrets(vec![secret("1")]));
    // Pulls of the image's own name that bring nothing.
    pulled.begin("busybox", Some(&both)).unwrap();
    assert_eq!(pulled.access("busybox", &both), Access::Granted);
    assert_eq!(
        pulled.access(
            "busybox",
            &image("sha256:b", &both.repo_tags.iter().map(String::as_str).collect::<Vec<_>>())
        ),
        Access::Refused
    );
    pulled.failed("busybox");
    assert_eq!(pulled.access("busybox", &both), Access::Granted);
    assert_eq!(intents(&folder), 0);
}

#[test]
fn an_interrupted_pull_leaves_an_image_of_unknown_credentials() {
    let folder = Folder::new();
    let app = image("sha256:a", &[PRIVATE]);
    open(&folder).begin(PRIVATE, None).unwrap();
    let pulled = open(&folder);
    assert_eq!(pulled.access(PRIVATE, &app), Access::Refused, "the intent alone");
    pulled.take_up(std::slice::from_ref(&app)).unwrap();
    assert_eq!(intents(&folder), 0);
    assert_eq!(pulled.access(PRIVATE, &app), Access::Refused);
    pulled.begin(PRIVATE, Some(&app)).unwrap();
    pulled.pulled(PRIVATE, &app.id, by_secret());
    assert_eq!(pulled.access(PRIVATE, &app), Access::Secrets(vec![secret("1")]));
}

#[test]
fn a_pull_of_another_tag_takes_no_image_away() {
    let folder = Folder::new();
    let pulled = open(&folder);
    let app = image("sha256:1", &[PRIVATE]);
    assert_eq!(pulled.access(PRIVATE, &app), Access::Granted, "preloaded");
    let missing = format!("{}:missing", PRIVATE.parse::<Reference>().unwrap().repository());
    pulled.begin(&missing, None).unwrap();
    assert_eq!(pulled.access(PRIVATE, &app), Access::Granted);
    pulled.abandoned(&missing);
    assert_eq!(pulled.access(PRIVATE, &app), Access::Granted, "the pod was deleted while it pulled");
    // The image's tag has moved: any pull of the repository may have brought it.
    let by_digest = format!("r.io/team/app@sha256:{}", "a".repeat(64));
    let untagged = Image { repo_digests: vec![by_digest.clone()], ..image("sha256:2", &[]) };
    assert_eq!(pulled.access(&by_digest, &untagged), Access::Refused);
}

#[test]
fn pulls_side_by_side_and_given_up() {
    let folder = Folder::new();
    let pulled = open(&folder);
    let app = image("sha256:a", &[PRIVATE]);
    pulled.begin(PRIVATE, None).unwrap();
    pulled.begin(PRIVATE, None).unwrap();
    pulled.failed(PRIVATE);
    assert_eq!((intents(&folder), pulled.access(PRIVATE, &app)), (1, Access::Refused));
    pulled.abandoned(PRIVATE);
    assert_eq!((intents(&folder), pulled.access(PRIVATE, &app)), (1, Access::Refused));
    assert!(!pulled.crowded());
    for n in 0..MAX_IDLE_INTENTS {
        let name = format!("r.io/none:{n}");
        pulled.begin(&name, None).unwrap();
        pulled.abandoned(&name);
    }
    assert!(pulled.crowded());
    pulled.settle(std::slice::from_ref(&app)).unwrap();
    assert_eq!((intents(&folder), pulled.crowded()), (0, false));
    assert_eq!(pulled.access(PRIVATE, &app), Access::Refused);
}

#[test]
fn records_that_cannot_be_read_or_written_never_grant() {
    let folder = Folder::new();
    let pulled = open(&folder);
    let app = image("sha256:a", &[PRIVATE]);
    // A file in place of the folder: the record cannot be written.
    std::fs::create_dir_all(folder.0.join("image_manager")).unwrap();
    std::fs::write(folder.0.join("image_manager/pulled"), "").unwrap();
    pulled.begin(PRIVATE, None).unwrap();
    pulled.pulled(PRIVATE, &app.id, by_nobody());
    assert_eq!((intents(&folder), pulled.access(PRIVATE, &app)), (1, Access::Refused));
    std::fs::remove_file(folder.0.join("image_manager/pulled")).unwrap();
    pulled.begin(PRIVATE, None).unwrap();
    pulled.pulled(PRIVATE, &app.id, by_nobody());
    assert_eq!((intents(&folder), pulled.access(PRIVATE, &app)), (0, Access::Granted));
    for entry in std::fs::read_dir(folder.0.join("image_manager/pulled")).unwrap() {
        std::fs::write(entry.unwrap().path(), "{").unwrap();
    }
    assert_eq!(pulled.access(PRIVATE, &app), Access::Refused);
    pulled.begin(PRIVATE, None).unwrap();
    pulled.pulled(PRIVATE, &app.id, by_nobody());
    assert_eq!(pulled.access(PRIVATE, &app), Access::Granted);
}
