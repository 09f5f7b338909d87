//! Encryption at rest: the stored form, rotated keys, unreadable values.

use std::path::PathBuf;
use std::sync::Arc;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use knarr_apiserver::{ApiServer, Encryption, UserInfo};
use knarr_storage::{Embedded, Options, Store};
use serde_json::json;

use crate::harness::{User, config};

const SECRETS: &str = "/api/v1/namespaces/default/secrets";
const KEY: &[u8] = b"/registry/core/secrets/default/s";

async fn server(store: &Arc<dyn Store>, file: &PathBuf, providers: &str) -> Option<(ApiServer, User)> {
    let text = format!(
        "apiVersion: apiserver.config.k8s.io/v1\nkind: EncryptionConfiguration\nresources:\n- resources: [secrets]\n  providers:\n{providers}"
    );
    std::fs::write(file, text).unwrap();
    let mut config = config(Arc::clone(store));
    config.encryption = Encryption { config_file: Some(file.clone()), reload: true };
    let server = ApiServer::new(config).await.ok()?;
    let user = User(server.transport(UserInfo::new("admin", &["system:masters"])));
    Some((server, user))
}

fn key(kind: &str, name: &str, byte: u8) -> String {
    format!("  - {kind}: {{keys: [{{name: {name}, secret: {}}}]}}\n", STANDARD.encode([byte; 32]))
}

#[tokio::test]
async fn secrets_are_stored_encrypted_and_keys_rotate() {
    let store: Arc<dyn Store> = Arc::new(Embedded::memory(Options::default()));
    let file = std::env::temp_dir().join(format!("encryption-{}.yaml", std::process::id()));
    let held = || async { store.get(KEY).await.unwrap().unwrap().value };
    let secret = json!({"metadata": {"name": "s"}, "stringData": {"password": "hunter2"}});

    let (one, admin) = server(&store, &file, &key("aescbc", "old", 1)).await.unwrap();
    admin.post(SECRETS, &secret).await.expect(201);
    assert!(held().await.starts_with(b"k8s:enc:aescbc:v1:old:"));
    let password = STANDARD.encode("hunter2");
    assert!(!held().await.windows(password.len()).any(|w| w == password.as_bytes()));
    let map = json!({"metadata": {"name": "m"}, "data": {"k": "v"}});
    admin.post("/api/v1/namespaces/default/configmaps", &map).await.expect(201);
    let plain = store.get(b"/registry/core/configmaps/default/m").await.unwrap().unwrap().value;
    assert!(plain.starts_with(b"{"));
    one.stop();

    // The new key encrypts, the old one still decrypts; a write of the same content re-encrypts the object with the
    // new key.
    let both = key("secretbox", "new", 2) + &key("aescbc", "old", 1);
    let (two, admin) = server(&store, &file, &both).await.unwrap();
    let read = admin.get(&format!("{SECRETS}/s")).await.expect(200);
    assert_eq!(read["data"]["password"], password.as_str());
    let list = admin.get(SECRETS).await.expect(200);
    assert_eq!(list["items"][0]["data"]["password"], password.as_str());
    admin.put(&format!("{SECRETS}/s"), &read).await.expect(200);
    assert!(held().await.starts_with(b"k8s:enc:secretbox:v1:new:"));
    let revision =
        admin.get(&format!("{SECRETS}/s")).await.expect(200)["metadata"]["resourceVersion"].clone();
    admin
        .put(&format!("{SECRETS}/s"), &admin.get(&format!("{SECRETS}/s")).await.expect(200))
        .await
        .expect(200);
    let after = admin.get(&format!("{SECRETS}/s")).await.expect(200)["metadata"]["resourceVersion"].clone();
    assert_eq!(revision, after, "nothing more to change");
    two.stop();

    // Without the key nothing can be read, and the server refuses to start.
    assert!(server(&store, &file, &key("aescbc", "old", 1)).await.is_none());
    std::fs::remove_file(&file).unwrap();
    let without = ApiServer::new(config(Arc::clone(&store))).await.err().expect("it does not start");
    let why = std::error::Error::source(&without).map_or_else(|| without.to_string(), ToString::to_string);
    assert!(why.starts_with("core/secrets/default/s is stored encrypted"), "{why}");
}
