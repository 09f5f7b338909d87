//! Tests of pulling, from Debian's registry and from a scripted one that misbehaves.

use std::collections::BTreeMap;
use std::fs;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

use crate::images::fixture::{Tar, TempDir, TestImage, gzip, is_root, zstd};
use crate::images::oci::OCI_INDEX;
use crate::images::*;

/// The htpasswd line of user `alice`, password `s3cret`.
const HTPASSWD: &str = "alice:$2b$04$abcdefghijklmnopqrstuuLZYjhNQAOdpbzt4WxWlUHjv1wsyH5DG\n";

/// The distribution's registry with a configuration and storage of its own.
struct Registry {
    child: Child,
    host: String,
    auth: Option<&'static str>,
    _dir: TempDir,
}

impl Registry {
    async fn start(with_auth: bool) -> Registry {
        Registry::start_with(with_auth, TempDir::new(), "").await
    }

    /// `http` is added to the http section of the configuration.
    async fn start_with(with_auth: bool, dir: TempDir, http: &str) -> Registry {
        let port = free_port().await;
        let root = dir.path().display();
        let mut config = format!(
            "version: 0.1\nlog: {{level: error}}\nstorage:\n  filesystem: {{rootdirectory: {root}/data}}\n\
             http: {{addr: \"127.0.0.1:{port}\"{http}}}\n"
        );
        if with_auth {
            fs::write(dir.path().join("htpasswd"), HTPASSWD).unwrap();
            config += &format!("auth:\n  htpasswd: {{realm: test, path: {root}/htpasswd}}\n");
        }
        fs::write(dir.path().join("config.yml"), config).unwrap();
        let host = format!("127.0.0.1:{port}");
        let child = Command::new("docker-registry")
            .args(["serve", &format!("{root}/config.yml")])
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .expect("docker-registry is needed: apt-get install docker-registry");
        let registry = Registry { child, host, auth: with_auth.then_some("YWxpY2U6czNjcmV0"), _dir: dir };
        for _ in 0..500 {
            if TcpStream::connect(&registry.host).await.is_ok() {
                return registry;
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        panic!("docker-registry does not listen on {}", registry.host);
    }

    async fn call(&self, method: &str, path: &str, media_type: &str, body: &[u8]) -> (u16, String) {
        let auth = self.auth.map(|a| format!("Authorization: Basic {a}\r\n")).unwrap_or_default();
        let head = format!(
            "{method} {path} HTTP/1.1\r\nHost: {}\r\nConnection: close\r\nContent-Type: {media_type}\r\n\
             {auth}Content-Length: {}\r\n\r\n",
            self.host,
            body.len()
        );
        let mut stream = TcpStream::connect(&self.host).await.unwrap();
        stream.write_all(head.as_bytes()).await.unwrap();
        stream.write_all(body).await.unwrap();
        let mut answer = Vec::new();
        stream.read_to_end(&mut answer).await.unwrap();
        let answer = String::from_utf8_lossy(&answer).into_owned();
        (answer.split(' ').nth(1).unwrap().parse().unwrap(), answer)
    }

    async fn push_blob(&self, repository: &str, digest: &Digest, bytes: &[u8]) {
        let (status, answer) = self.call("POST", &format!("/v2/{repository}/blobs/uploads/"), "", b"").await;
        assert_eq!(status, 202, "{answer}");
        let location = answer
            .lines()
            .find_map(|l| l.strip_prefix("Location: "))
            .and_then(|l| l.trim().split_once(&self.host))
            .map(|(_, path)| path.to_owned())
            .unwrap();
        let path = format!("{location}&digest={digest}");
        let (status, answer) = self.call("PUT", &path, "application/octet-stream", bytes).await;
        assert_eq!(status, 201, "{answer}");
    }

    async fn push_manifest(&self, repository: &str, tag: &str, media_type: &str, bytes: &[u8]) {
        let path = format!("/v2/{repository}/manifests/{tag}");
        let (status, answer) = self.call("PUT", &path, media_type, bytes).await;
        assert_eq!(status, 201, "{answer}");
    }

    async fn push(&self, repository: &str, tag: &str, image: &TestImage) {
        let (manifest, blobs) = image.blobs.split_last().unwrap();
        for (digest, bytes) in blobs {
            self.push_blob(repository, digest, bytes).await;
        }
        self.push_manifest(repository, tag, &image.manifest.media_type, &manifest.1).await;
    }

    fn reference(&self, rest: &str) -> Reference {
        format!("{}/{rest}", self.host).parse().unwrap()
    }
}

impl Drop for Registry {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

async fn free_port() -> u16 {
    TcpListener::bind("127.0.0.1:0").await.unwrap().local_addr().unwrap().port()
}

fn big_layer(name: &str, bytes: usize) -> Vec<u8> {
    // The content hardly compresses.
    let mut state = 1u32;
    let content: Vec<u8> = std::iter::repeat_with(|| {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        (state >> 24) as u8
    })
    .take(bytes)
    .collect();
    Tar::new().file(name, content).bytes()
}

fn sample() -> TestImage {
    let (a, b, c) = (big_layer("a", 3_000_000), big_layer("b", 1000), big_layer("c", 2000));
    TestImage::new(&[(a.clone(), a), (gzip(&b), b), (zstd(&c), c)], ImageConfig::default())
}

#[tokio::test]
async fn pulls_from_a_real_registry() {
    if !is_root() {
        return;
    }
    let registry = Registry::start(false).await;
    let image = sample();
    registry.push("team/app", "v1", &image).await;
    let platform = Platform::host();
    let index = serde_json::json!({"schemaVersion": 2, "mediaType": OCI_INDEX, "manifests": [
        {"mediaType": image.manifest.media_type, "digest": image.manifest.digest, "size": image.manifest.size,
         "platform": {"os": "linux", "architecture": platform.architecture}},
    ]})
    .to_string();
    registry.push_manifest("team/app", "multi", OCI_INDEX, index.as_bytes()).await;
    let index_digest = Digest::of(index.as_bytes());

    let dir = TempDir::new();
    let store = ImageStore::open(dir.path()).await.unwrap();
    let seen: Arc<Mutex<BTreeMap<Digest, (u64, u64)>>> = Arc::default();
    let record = seen.clone();
    let options = PullOptions {
        progress: Some(Arc::new(move |p: &Progress| {
            record.lock().unwrap().insert(p.layer, (p.done_bytes, p.total_bytes));
        })),
        ..Default::default()
    };
    let pulled = store.pull(&registry.reference("team/app:v1"), &options).await.unwrap();
    assert_eq!(pulled.id, image.id);
    assert_eq!(pulled.layers.len(), 3);
    assert_eq!(pulled.repo_tags, [format!("{}/team/app:v1", registry.host)]);
    assert_eq!(pulled.repo_digests, [format!("{}/team/app@{}", registry.host, image.manifest.digest)]);
    let seen = seen.lock().unwrap().clone();
    assert_eq!(seen.len(), 4, "three layers and the configuration");
    assert!(seen.values().all(|(done, total)| done == total), "{seen:?}");

    let multi = store.pull(&registry.reference("team/app:multi"), &options).await.unwrap();
    assert_eq!((multi.id, multi.repo_tags.len(), multi.repo_digests.len()), (image.id, 2, 2));
    let by_digest = format!("team/app:ignored@{index_digest}");
    let pulled = store.pull(&registry.reference(&by_digest), &options).await.unwrap();
    assert_eq!((pulled.id, pulled.repo_tags.len()), (image.id, 2), "a digest makes no tag");
    store.remove(&image.id.to_string()).await.unwrap();
    assert_eq!(store.fs_info().await.unwrap().used.inodes, 0);

    let missing = registry.reference("team/app:v9");
    let error = store.pull(&missing, &options).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::NotFound);
    assert_eq!(
        error.chain(),
        format!(
            "failed to pull and unpack image \"{missing}\": failed to resolve reference \"{missing}\": \
             {missing}: not found"
        )
    );
    let vax = Platform { architecture: "vax".into(), ..platform };
    let options = PullOptions { platform: vax, ..Default::default() };
    let error = store.pull(&registry.reference("team/app:multi"), &options).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::NotFound);
    assert!(error.chain().ends_with("no match for platform in manifest: not found"), "{}", error.chain());
}

#[tokio::test]
async fn a_private_registry_wants_credentials() {
    if !is_root() {
        return;
    }
    let registry = Registry::start(true).await;
    let image = sample();
    registry.push("private/app", "v1", &image).await;
    let dir = TempDir::new();
    let store = ImageStore::open(dir.path()).await.unwrap();
    let reference = registry.reference("private/app:v1");
    let error = store.pull(&reference, &PullOptions::default()).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unauthorized);
    assert!(error.chain().contains("no basic auth credentials"), "{}", error.chain());

    let mut keyring = Keyring::new();
    keyring.add(&registry.host, Credential::basic("alice", "wrong"));
    let options = PullOptions { keyring: keyring.clone(), ..Default::default() };
    let error = store.pull(&reference, &options).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unauthorized);
    assert!(error.chain().contains("pull access denied"), "{}", error.chain());

    let secret = format!(r#"{{"auths":{{"{}":{{"auth":"YWxpY2U6czNjcmV0"}}}}}}"#, registry.host);
    keyring.add_docker_config_json(secret.as_bytes()).unwrap();
    let options = PullOptions { keyring, ..Default::default() };
    let pulled = store.pull(&reference, &options).await.unwrap();
    assert_eq!(pulled.id, image.id, "the second credential was tried after the first");
}

/// A request as the scripted server receives it.
struct Asked {
    path: String,
    head: String,
}

impl Asked {
    fn header(&self, name: &str) -> Option<&str> {
        self.head
            .lines()
            .filter_map(|l| l.split_once(':'))
            .find(|(key, _)| key.eq_ignore_ascii_case(name))
            .map(|(_, value)| value.trim())
    }
}

/// A header that makes the scripted server send the answer byte by byte.
const TRICKLES: &str = "X-Trickles: yes\r\n";

/// Answers are raw HTTP; if the body is shorter than announced, the connection breaks after it.
type Script = dyn Fn(&Asked) -> Vec<u8> + Send + Sync;

async fn scripted(script: impl Fn(&str, &Asked) -> Vec<u8> + Send + Sync + 'static) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let host = listener.local_addr().unwrap().to_string();
    let own = host.clone();
    let script: Arc<Script> = Arc::new(move |asked: &Asked| script(&own, asked));
    tokio::spawn(async move {
        while let Ok((mut stream, _)) = listener.accept().await {
            let script = script.clone();
            tokio::spawn(async move {
                let mut head = Vec::new();
                while !head.windows(4).any(|w| w == b"\r\n\r\n") {
                    let mut buffer = [0; 4096];
                    match stream.read(&mut buffer).await {
                        Ok(n) if n > 0 => head.extend_from_slice(&buffer[..n]),
                        _ => return,
                    }
                }
                let head = String::from_utf8_lossy(&head).into_owned();
                let path = head.split(' ').nth(1).unwrap_or_default().to_owned();
                let answer = script(&Asked { path, head });
                if answer.windows(TRICKLES.len()).any(|w| w == TRICKLES.as_bytes()) {
                    for byte in answer {
                        let _ = stream.write_all(&[byte]).await;
                        tokio::time::sleep(Duration::from_millis(5)).await;
                    }
                    return;
                }
                let _ = stream.write_all(&answer).await;
                let _ = stream.shutdown().await;
            });
        }
    });
    host
}

fn answer(status: &str, headers: &str, body: &[u8]) -> Vec<u8> {
    let mut out =
        format!("HTTP/1.1 {status}\r\n{headers}Content-Length: {}\r\n\r\n", body.len()).into_bytes();
    out.extend_from_slice(body);
    out
}

/// Serves an image's manifest and blobs as a registry does.
fn serve(image: &TestImage, path: &str) -> Vec<u8> {
    let identifier = path.rsplit('/').next().unwrap_or_default();
    let found = if identifier == "v1" {
        image.blobs.last()
    } else {
        image.blobs.iter().find(|(digest, _)| digest.to_string() == identifier)
    };
    match found {
        Some((_, bytes)) if path.contains("/manifests/") => {
            answer("200 OK", &format!("Content-Type: {}\r\n", image.manifest.media_type), bytes)
        }
        Some((_, bytes)) => answer("200 OK", "", bytes),
        None => answer("404 Not Found", "", b"{}"),
    }
}

async fn pull(host: &str, options: &PullOptions) -> Result<Image, ImageError> {
    let dir = TempDir::new();
    let store = ImageStore::open(dir.path()).await.unwrap();
    store.pull(&format!("{host}/app:v1").parse().unwrap(), options).await
}

#[tokio::test]
async fn bearer_tokens_are_fetched_and_do_not_follow_redirects() {
    if !is_root() {
        return;
    }
    let image = Arc::new(sample());
    let served = image.clone();
    let cdn = scripted(move |_, asked| {
        assert_eq!(asked.header("authorization"), None, "the token stays with the registry");
        serve(&served, &asked.path)
    })
    .await;
    let (served, tokens) = (image.clone(), Arc::new(AtomicUsize::new(0)));
    let issued = tokens.clone();
    let host = scripted(move |host, asked| {
        if asked.path.starts_with("/token") {
            assert_eq!(asked.path, "/token?service=test&scope=repository%3Aapp%3Apull");
            assert!(asked.header("authorization").is_none_or(|a| a == "Basic Ym9iOnB3"), "bob:pw or none");
            if asked.header("authorization").is_none() {
                return answer("401 Unauthorized", "", b"");
            }
            issued.fetch_add(1, Ordering::SeqCst);
            return answer("200 OK", "", br#"{"token":"t0ken","expires_in":60}"#);
        }
        if asked.header("authorization") != Some("Bearer t0ken") {
            let challenge =
                format!("WWW-Authenticate: Bearer realm=\"http://{host}/token\",service=\"test\"\r\n");
            return answer("401 Unauthorized", &challenge, b"{}");
        }
        if asked.path.contains("/blobs/") {
            return answer(
                "307 Temporary Redirect",
                &format!("Location: http://{cdn}{}\r\n", asked.path),
                b"",
            );
        }
        serve(&served, &asked.path)
    })
    .await;
    let error = pull(&host, &PullOptions::default()).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unauthorized);
    assert!(
        error
            .chain()
            .contains("failed to authorize: failed to fetch anonymous token: unexpected status from GET"),
        "{}",
        error.chain()
    );
    let mut keyring = Keyring::new();
    keyring.add(&host, Credential::basic("bob", "pw"));
    let pulled = pull(&host, &PullOptions { keyring, ..Default::default() }).await.unwrap();
    assert_eq!(pulled.id, image.id);
    assert_eq!(tokens.load(Ordering::SeqCst), 1, "one token serves the whole pull");
}

#[tokio::test]
async fn broken_downloads_go_on_where_they_broke() {
    if !is_root() {
        return;
    }
    let image = Arc::new(sample());
    let (served, requests) = (image.clone(), Arc::new(Mutex::new(Vec::new())));
    let log = requests.clone();
    let (big, bytes) = image.blobs[0].clone();
    let host = scripted(move |_, asked| {
        let mut log = log.lock().unwrap();
        log.push(asked.path.clone());
        let times = log.iter().filter(|path| **path == asked.path).count();
        if times == 1 {
            return answer("503 Service Unavailable", "", b"");
        }
        if !asked.path.ends_with(&big.to_string()) {
            return serve(&served, &asked.path);
        }
        let from =
            asked.header("range").and_then(|r| r.strip_prefix("bytes=")?.strip_suffix('-')?.parse().ok());
        let rest = &bytes[from.unwrap_or(0)..];
        let status = if from.is_some() { "206 Partial Content" } else { "200 OK" };
        let mut whole = answer(status, "", rest);
        if times < 4 {
            whole.truncate(whole.len() - rest.len() / 2);
        }
        whole
    })
    .await;
    let pulled = pull(&host, &PullOptions::default()).await.unwrap();
    assert_eq!(pulled.id, image.id);
    let big = image.blobs[0].0.to_string();
    assert_eq!(requests.lock().unwrap().iter().filter(|path| path.ends_with(&big)).count(), 4);
}

#[tokio::test]
async fn a_registry_that_trickles_is_given_up() {
    let image = sample();
    let host = scripted(move |_, asked| match asked.path.contains("/blobs/") {
        true => answer("200 OK", TRICKLES, &vec![0; 1 << 20]),
        false => serve(&image, &asked.path),
    })
    .await;
    let pace = Pace { span: Duration::from_millis(300), min_bytes: 1000 };
    let options = PullOptions { pace, ..Default::default() };
    let pulling = tokio::time::timeout(Duration::from_secs(20), pull(&host, &options));
    let error = pulling.await.expect("the pull does not time out");
    let error = error.expect_err("the pull succeeded");
    assert_eq!(error.kind(), ErrorKind::Network);
    assert!(error.chain().contains(" bytes in 0 s"), "{}", error.chain());
}

#[tokio::test]
async fn lies_and_failures_are_told_apart() {
    let image = Arc::new(sample());
    let port = free_port().await;
    let error = pull(&format!("127.0.0.1:{port}"), &PullOptions::default()).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Network);
    let wanted = format!(
        "failed to do request: Get \"http://127.0.0.1:{port}/v2/app/manifests/v1\": dial tcp 127.0.0.1:{port}: "
    );
    assert!(error.chain().contains(&wanted), "{}", error.chain());

    type Case = (&'static str, ErrorKind, &'static str, fn(&str, &Asked, &TestImage) -> Vec<u8>);
    let cases: [Case; 7] = [
        ("wrong content", ErrorKind::DigestMismatch, "digest mismatch", |_, asked, image| {
            let mut bytes = serve(image, &asked.path);
            if asked.path.contains("/blobs/") {
                *bytes.last_mut().unwrap() ^= 1;
            }
            bytes
        }),
        ("too long", ErrorKind::DigestMismatch, "expected", |_, asked, image| {
            match image.blobs.iter().find(|(digest, _)| asked.path.ends_with(&digest.to_string())) {
                Some((_, bytes)) => answer("200 OK", "", &[&bytes[..], b"more"].concat()),
                None => serve(image, &asked.path),
            }
        }),
        ("endless redirects", ErrorKind::Network, "stopped after 10 redirects", |_, _, _| {
            answer("302 Found", "Location: /again\r\n", b"")
        }),
        ("huge manifest", ErrorKind::InvalidImage, "larger than the limit", |_, _, _| {
            answer("200 OK", "", &vec![b' '; 5 << 20])
        }),
        ("no manifest", ErrorKind::InvalidImage, "malformed manifest", |_, _, _| {
            answer("200 OK", "", b"<html>")
        }),
        ("old schema", ErrorKind::InvalidImage, "schema version 1", |_, _, _| {
            answer("200 OK", "", br#"{"schemaVersion":1}"#)
        }),
        ("forbidden", ErrorKind::Unauthorized, "server message: denied: no rights", |_, _, _| {
            answer("403 Forbidden", "", br#"{"errors":[{"code":"DENIED","message":"no rights"}]}"#)
        }),
    ];
    for (name, kind, message, script) in cases {
        let image = image.clone();
        let host = scripted(move |host, asked| script(host, asked, &image)).await;
        let error = pull(&host, &PullOptions::default()).await.unwrap_err();
        assert_eq!(error.kind(), kind, "{name}: {}", error.chain());
        assert!(error.chain().contains(message), "{name}: {}", error.chain());
        assert!(error.chain().starts_with("failed to pull and unpack image \"127.0.0.1:"), "{name}");
    }
}

#[tokio::test]
async fn pulls_at_the_same_time_fetch_each_layer_once() {
    if !is_root() {
        return;
    }
    let image = Arc::new(sample());
    let (served, blobs) = (image.clone(), Arc::new(Mutex::new(Vec::new())));
    let log = blobs.clone();
    let host = scripted(move |_, asked| {
        if asked.path.contains("/blobs/") {
            log.lock().unwrap().push(asked.path.clone());
        }
        serve(&served, &asked.path)
    })
    .await;
    let dir = TempDir::new();
    let store = ImageStore::open(dir.path()).await.unwrap();
    let reference: Reference = format!("{host}/app:v1").parse().unwrap();
    let pulls = (0..8).map(|_| {
        let (store, reference) = (store.clone(), reference.clone());
        tokio::spawn(async move { store.pull(&reference, &PullOptions::default()).await })
    });
    for pull in futures_util::future::join_all(pulls).await {
        assert_eq!(pull.unwrap().unwrap().id, image.id);
    }
    let mut fetched = blobs.lock().unwrap().clone();
    assert_eq!(fetched.len(), 4, "{fetched:?}");
    fetched.sort();
    fetched.dedup();
    assert_eq!(fetched.len(), 4);
}

#[tokio::test]
async fn a_cancelled_pull_leaves_nothing_half_done() {
    if !is_root() {
        return;
    }
    let image = Arc::new(sample());
    let served = image.clone();
    let host = scripted(move |_, asked| {
        let whole = serve(&served, &asked.path);
        if asked.path.contains("/blobs/") {
            // The client waits for more content than ever arrives.
            let head =
                String::from_utf8_lossy(&whole[..200.min(whole.len())]).replace("Content-Length: ", "X: ");
            return head.replace("\r\n\r\n", "\r\nContent-Length: 9999999999\r\n\r\n").into_bytes();
        }
        whole
    })
    .await;
    let dir = TempDir::new();
    let store = ImageStore::open(dir.path()).await.unwrap();
    let reference: Reference = format!("{host}/app:v1").parse().unwrap();
    let options = PullOptions::default();
    let pull = tokio::time::timeout(Duration::from_millis(150), store.pull(&reference, &options));
    let _ = pull.await;
    for _ in 0..200 {
        let idle = fs::read_dir(dir.path().join("ingest")).unwrap().count() == 0;
        if idle && store.collect().await.unwrap().is_some() {
            assert!(store.list().await.unwrap().is_empty());
            assert_eq!(store.fs_info().await.unwrap().used.inodes, 0);
            return;
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    panic!("the cancelled pull still holds a lease");
}

const TLS_REFERENCE: &str = "KNARR_TEST_TLS_REFERENCE";

/// Not a test of its own: the process that [`tls_is_verified`] runs with other root certificates.
#[test]
fn tls_child() {
    let Ok(reference) = std::env::var(TLS_REFERENCE) else { return };
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let dir = TempDir::new();
        let store = ImageStore::open(dir.path()).await.unwrap();
        match store.pull(&reference.parse().unwrap(), &PullOptions::default()).await {
            Err(error) => println!("result: {:?} {}", error.kind(), error.chain()),
            Ok(_) => println!("result: pulled"),
        }
    });
}

#[tokio::test]
async fn tls_is_verified() {
    // An address that reaches loopback, but not one that is contacted in plain text.
    const ADDRESS: &str = "0.0.0.0";
    let signed = rcgen::generate_simple_self_signed([ADDRESS.to_owned()]).unwrap();
    let dir = TempDir::new();
    let file = |name: &str| dir.path().join(name);
    let (cert, key, strange) = (file("cert.pem"), file("key.pem"), file("strange.pem"));
    fs::write(&cert, signed.cert.pem()).unwrap();
    fs::write(&key, signed.signing_key.serialize_pem()).unwrap();
    let other = rcgen::generate_simple_self_signed([ADDRESS.to_owned()]).unwrap();
    fs::write(&strange, other.cert.pem()).unwrap();
    let tls = format!(", tls: {{certificate: {}, key: {}}}", cert.display(), key.display());
    let registry = Registry::start_with(false, dir, &tls).await;
    let port = registry.host.rsplit(':').next().unwrap();
    let pull = |roots: &std::path::Path| {
        let output = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "--nocapture", "images::registry::tests::tls_child"])
            .env(TLS_REFERENCE, format!("{ADDRESS}:{port}/app:v1"))
            .env("SSL_CERT_FILE", roots)
            .output()
            .unwrap();
        String::from_utf8_lossy(&output.stdout).into_owned()
    };
    let trusted = pull(&cert);
    assert!(trusted.contains("result: NotFound") && trusted.contains("app:v1: not found"), "{trusted}");
    let refused = pull(&strange);
    assert!(refused.contains("result: Network") && refused.contains("certificate"), "{refused}");
}

#[tokio::test]
async fn a_mirror_is_asked_before_the_registry() {
    if !is_root() {
        return;
    }
    let registry = Registry::start(false).await;
    let image = sample();
    registry.push("team/app", "v1", &image).await;
    let dir = TempDir::new();
    let store = ImageStore::open(dir.path()).await.unwrap();
    // The first mirror has no images, the second does not exist, and the third is of another registry.
    let empty = Registry::start(false).await;
    let mirrors = [
        format!("app.invalid=http://{}", empty.host),
        "other.invalid=http://127.0.0.1:1".to_owned(),
        format!("*=http://{}", registry.host),
    ];
    let mirrors: Vec<Mirror> = mirrors.iter().map(|text| text.parse().unwrap()).collect();
    let options = PullOptions { mirrors, ..PullOptions::default() };
    let reference: Reference = "app.invalid/team/app:v1".parse().unwrap();
    let pulled = store.pull(&reference, &options).await.unwrap();
    assert_eq!(pulled.repo_tags, ["app.invalid/team/app:v1"]);

    // What no mirror has is requested from the registry, whose error is the one that is reported.
    let reference: Reference = "app.invalid/team/app:v2".parse().unwrap();
    let error = store.pull(&reference, &options).await.unwrap_err();
    let text = format!("{error:?}");
    assert!(text.contains("https://app.invalid/v2/team/app/manifests/v2\""), "{text}");
}
