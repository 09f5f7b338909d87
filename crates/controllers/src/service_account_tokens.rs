//! Tokens in Secrets: gives each Secret of type `kubernetes.io/service-account-token` a token for the ServiceAccount
//! that its annotation names, and deletes the Secret when that account is deleted.

use std::collections::BTreeMap;
use std::sync::Arc;

use k8s_openapi::ByteString;
use k8s_openapi::api::core::v1::{Secret, ServiceAccount};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{DeleteOptions, Preconditions};
use knarr_api::kind::{Kind, ObjectKey};
use knarr_client::work_queue::WorkQueue;
use knarr_client::{Error, Lister, Result};
use serde_json::{Value, json};

use crate::context::{Context, Descriptor};

pub const DESCRIPTOR: Descriptor =
    Descriptor { name: "serviceaccount-token-controller", run: |cx| Box::pin(async move { run(cx).await }) };

const TYPE: &str = "kubernetes.io/service-account-token";
const ACCOUNT_NAME: &str = "kubernetes.io/service-account.name";
const ACCOUNT_UID: &str = "kubernetes.io/service-account.uid";
const CA: &str = "ca.crt";
const NAMESPACE: &str = "namespace";
const TOKEN: &str = "token";

/// Signs claims with the cluster's service-account key.
pub trait TokenSigner: std::fmt::Debug + Send + Sync {
    /// Returns a JSON Web Token in compact form; `None` if signing fails.
    fn sign(&self, claims: &Value) -> Option<String>;
}

/// What to do with a Secret.
#[derive(Debug, PartialEq)]
enum Verdict {
    Leave,
    /// The ServiceAccount does not exist.
    Delete,
    /// Fields are missing; with `token`, the token is missing too.
    Fill {
        token: bool,
    },
}

async fn run(cx: Arc<Context>) {
    let Some(signer) = cx.options.token_signer.clone() else { return };
    let queue: Arc<WorkQueue<ObjectKey>> = WorkQueue::new(Arc::clone(&cx.clock));
    let secrets = cx.informers.informer::<Secret>();
    let accounts = cx.informers.informer::<ServiceAccount>();
    let on_secret = Arc::clone(&queue);
    secrets.add_handler(move |event| {
        if account_of(event.object()).is_some() {
            on_secret.add(event.object().key());
        }
    });
    let (on_account, of_account) = (Arc::clone(&queue), secrets.lister());
    accounts.add_handler(move |event| {
        let account = event.object();
        let mine = of_account.list_namespace(account.namespace());
        for secret in mine.iter().filter(|s| account_of(s) == Some(account.name())) {
            on_account.add(secret.key());
        }
    });
    if !(secrets.wait_synced().await && accounts.wait_synced().await) {
        return;
    }
    let (secrets, stop) = (secrets.lister(), cx.stop.clone());
    let workers = cx.workers();
    let reconcile = move |key: ObjectKey| {
        let (cx, secrets, signer) = (Arc::clone(&cx), secrets.clone(), Arc::clone(&signer));
        async move { reconcile(&cx, &secrets, &*signer, &key).await }
    };
    queue.run(DESCRIPTOR.name, workers, stop, reconcile).await;
}

/// Returns the name of the ServiceAccount that the Secret belongs to, if it is a token Secret.
fn account_of(secret: &Secret) -> Option<&str> {
    let typed = secret.type_.as_deref() == Some(TYPE);
    annotation(secret, ACCOUNT_NAME).filter(|name| typed && !name.is_empty())
}

fn annotation<'s>(secret: &'s Secret, key: &str) -> Option<&'s str> {
    secret.metadata.annotations.as_ref()?.get(key).map(String::as_str)
}

async fn reconcile(
    cx: &Context,
    secrets: &Lister<Secret>,
    signer: &dyn TokenSigner,
    key: &ObjectKey,
) -> Result<()> {
    let Some(secret) = secrets.get(&key.namespace, &key.name) else { return remove_reference(cx, key).await };
    let Some(name) = account_of(&secret) else { return Ok(()) };
    // The account is read from the API server, not the informer: a Secret must not be deleted because the informer
    // lags.
    let account = match cx.client.get::<ServiceAccount>(secret.namespace(), name).await {
        Ok(account) => Some(account),
        Err(error) if error.is_not_found() => None,
        Err(error) => return Err(error),
    };
    let done = match verdict(&secret, account.as_ref(), &cx.options.root_ca) {
        Verdict::Leave => return Ok(()),
        Verdict::Delete => {
            let uid = Preconditions { uid: secret.metadata.uid.clone(), ..Preconditions::default() };
            let options = DeleteOptions { preconditions: Some(uid), ..DeleteOptions::default() };
            cx.client.delete::<Secret>(secret.namespace(), secret.name(), &options).await
        }
        Verdict::Fill { token } => {
            let Some(account) = account else { return Ok(()) };
            let token = if token { Some(sign(signer, &account, &secret)?) } else { None };
            cx.client.update(&filled(&secret, &account, &cx.options.root_ca, token)).await.map(drop)
        }
    };
    match done {
        Err(e) if e.is_conflict() || e.is_not_found() => Ok(()),
        other => other,
    }
}

/// Removes a deleted Secret from its account's list.
async fn remove_reference(cx: &Context, key: &ObjectKey) -> Result<()> {
    let accounts = cx.informers.informer::<ServiceAccount>().lister();
    let refers =
        |a: &ServiceAccount| a.secrets.iter().flatten().any(|r| r.name.as_deref() == Some(key.name.as_ref()));
    for account in accounts.list_namespace(&key.namespace).iter().filter(|a| refers(a)) {
        let mut next = ServiceAccount::clone(account);
        next.secrets.get_or_insert_default().retain(|r| r.name.as_deref() != Some(key.name.as_ref()));
        match cx.client.update(&next).await {
            Err(e) if !e.is_not_found() => return Err(e),
            _ => {}
        }
    }
    Ok(())
}

fn verdict(secret: &Secret, account: Option<&ServiceAccount>, root_ca: &str) -> Verdict {
    let Some(account) = account else { return Verdict::Delete };
    let uid = annotation(secret, ACCOUNT_UID).unwrap_or("");
    if !uid.is_empty() && uid != account.uid() {
        return Verdict::Delete;
    }
    let held = |key: &str| secret.data.as_ref().and_then(|d| d.get(key)).map_or(&[][..], |v| &v.0);
    let token = held(TOKEN).is_empty();
    let ca = !root_ca.is_empty() && held(CA) != root_ca.as_bytes();
    if token || ca || held(NAMESPACE).is_empty() || uid.is_empty() {
        Verdict::Fill { token }
    } else {
        Verdict::Leave
    }
}

fn filled(secret: &Secret, account: &ServiceAccount, root_ca: &str, token: Option<String>) -> Secret {
    let mut next = secret.clone();
    let data: &mut BTreeMap<String, ByteString> = next.data.get_or_insert_default();
    if !root_ca.is_empty() {
        data.insert(CA.into(), ByteString(root_ca.as_bytes().to_vec()));
    }
    data.entry(NAMESPACE.into()).or_insert_with(|| ByteString(secret.namespace().as_bytes().to_vec()));
    if let Some(token) = token {
        data.insert(TOKEN.into(), ByteString(token.into_bytes()));
    }
    let annotations = next.metadata.annotations.get_or_insert_default();
    annotations.insert(ACCOUNT_NAME.into(), account.name().to_owned());
    annotations.insert(ACCOUNT_UID.into(), account.uid().to_owned());
    next
}

/// Signs the claims of a token in a Secret: they name the account and the Secret, and the token does not expire.
fn sign(signer: &dyn TokenSigner, account: &ServiceAccount, secret: &Secret) -> Result<String> {
    let claims = json!({
        "iss": "kubernetes/serviceaccount",
        "kubernetes.io/serviceaccount/namespace": account.namespace(),
        "kubernetes.io/serviceaccount/secret.name": secret.name(),
        "kubernetes.io/serviceaccount/service-account.name": account.name(),
        "kubernetes.io/serviceaccount/service-account.uid": account.uid(),
        "sub": format!("system:serviceaccount:{}:{}", account.namespace(), account.name()),
    });
    signer.sign(&claims).ok_or_else(|| Error::Protocol("failed to generate token for service account".into()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::World;

    #[derive(Debug)]
    struct Plain;

    impl TokenSigner for Plain {
        fn sign(&self, claims: &Value) -> Option<String> {
            Some(claims["kubernetes.io/serviceaccount/secret.name"].as_str()?.to_owned())
        }
    }

    fn account(name: &str) -> ServiceAccount {
        let mut account = ServiceAccount::default();
        (account.metadata.name, account.metadata.namespace) = (Some(name.into()), Some("ns".into()));
        account
    }

    fn secret(name: &str, account: &str) -> Secret {
        let mut secret = Secret { type_: Some(TYPE.into()), ..Secret::default() };
        (secret.metadata.name, secret.metadata.namespace) = (Some(name.into()), Some("ns".into()));
        secret.metadata.annotations = Some(BTreeMap::from([(ACCOUNT_NAME.to_owned(), account.to_owned())]));
        secret
    }

    #[test]
    fn a_secret_is_filled_once_and_deleted_with_its_account() {
        let mut owner = account("a");
        owner.metadata.uid = Some("u1".into());
        let empty = secret("s", "a");
        assert_eq!(verdict(&empty, None, "ca"), Verdict::Delete);
        assert_eq!(verdict(&empty, Some(&owner), "ca"), Verdict::Fill { token: true });
        let full = filled(&empty, &owner, "ca", Some("t".into()));
        assert_eq!(verdict(&full, Some(&owner), "ca"), Verdict::Leave);
        assert_eq!(verdict(&full, Some(&owner), "new ca"), Verdict::Fill { token: false });
        let mut other = owner.clone();
        other.metadata.uid = Some("u2".into());
        assert_eq!(verdict(&full, Some(&other), "ca"), Verdict::Delete);
    }

    #[tokio::test(start_paused = true)]
    async fn tokens_follow_their_accounts() {
        let mut world = World::new(&[Secret::RESOURCE, ServiceAccount::RESOURCE]);
        world.token_signer = Some(Arc::new(Plain));
        let client = world.api.client();
        client.create(&account("a")).await.unwrap();
        client.create(&secret("s", "a")).await.unwrap();
        client.create(&secret("lost", "nobody")).await.unwrap();
        client.create(&Secret { type_: Some("Opaque".into()), ..secret("plain", "nobody") }).await.unwrap();
        world.start(&DESCRIPTOR);
        world.pass(5.0).await;
        let filled = client.get::<Secret>("ns", "s").await.unwrap();
        assert_eq!(filled.data.as_ref().unwrap()[TOKEN].0, b"s");
        assert!(client.get::<Secret>("ns", "lost").await.is_err());
        assert!(client.get::<Secret>("ns", "plain").await.is_ok());
        client.delete::<ServiceAccount>("ns", "a", &DeleteOptions::default()).await.unwrap();
        world.pass(5.0).await;
        assert!(client.get::<Secret>("ns", "s").await.is_err());
    }
}
