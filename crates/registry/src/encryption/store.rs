//! A store that encrypts values before it passes them to the inner store, and decrypts what it reads.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use futures_util::StreamExt;
use knarr_apimachinery::clock::Clock;
use knarr_storage::{
    Compare, Error, KeyValue, LeaseId, Op, OpResult, RangeRequest, RangeResponse, Result, Status, Store,
    TxnResponse, Watch, WatchItem, WatchRequest,
};

use super::config::EncryptionConfig;
use super::health::KeyServices;
use knarr_reload::Reloaded;
use knarr_wire::metrics::{Metric, Metrics};

pub struct EncryptedStore {
    inner: Arc<dyn Store>,
    ciphers: Arc<Ciphers>,
}

pub struct Ciphers {
    config: Reloaded<EncryptionConfig>,
    clock: Arc<dyn Clock>,
    metrics: Arc<Metrics>,
}

impl Ciphers {
    pub fn config(&self) -> Arc<EncryptionConfig> {
        self.config.get(&*self.clock)
    }

    pub fn clock(&self) -> &dyn Clock {
        &*self.clock
    }

    async fn encrypt(&self, key: &Bytes, value: Bytes) -> Result<Bytes> {
        let config = self.config.get(&*self.clock);
        let Some((rule, resource)) = config.rule(key) else { return Ok(value) };
        let Some(provider) = rule.providers.first() else { return Ok(value) };
        let started = self.clock.monotonic();
        let done = provider.encrypt(&value, key).await;
        self.note("to_storage", provider.name, &resource, done.is_ok(), started);
        done.map(Bytes::from).map_err(|e| failed(key, &e))
    }

    async fn decrypt(&self, mut kv: KeyValue) -> Result<KeyValue> {
        if knarr_storage::damage(&kv.value).is_some() {
            // The store's placeholder for a damaged value is passed on unchanged.
            return Ok(kv);
        }
        let config = self.config.get(&*self.clock);
        // Encrypted values can only be read while a rule covers them. Without a rule, values may be plain text.
        let Some((rule, resource)) = config.rule(&kv.key) else { return Ok(kv) };
        let found = rule.providers.iter().enumerate().find(|(_, p)| p.wrote(&kv.value));
        let Some((at, provider)) = found else {
            self.note("from_storage", "unknown", &resource, false, self.clock.monotonic());
            return Err(failed(&kv.key, &"no matching prefix found"));
        };
        let started = self.clock.monotonic();
        let done = provider.decrypt(&kv.value, &kv.key).await;
        self.note("from_storage", provider.name, &resource, done.is_ok(), started);
        let mut plain = done.map_err(|e| failed(&kv.key, &e))?;
        if at > 0 {
            // The first provider did not write this value. The trailing space makes a write of the same content a
            // change, so that it is encrypted again.
            plain.push(b' ');
        }
        kv.value = plain.into();
        Ok(kv)
    }

    async fn decrypt_some(&self, kv: Option<KeyValue>) -> Result<Option<KeyValue>> {
        match kv {
            Some(kv) => self.decrypt(kv).await.map(Some),
            None => Ok(None),
        }
    }

    async fn item(&self, item: WatchItem) -> Result<WatchItem> {
        let WatchItem::Events(mut events) = item else { return Ok(item) };
        for event in &mut events.events {
            // A deletion has no value of its own.
            if !event.kv.value.is_empty() {
                event.kv = self.decrypt(event.kv.clone()).await?;
            }
            event.prev = self.decrypt_some(event.prev.take()).await?;
        }
        Ok(WatchItem::Events(events))
    }

    fn note(&self, direction: &str, provider: &str, resource: &str, fine: bool, started: Duration) {
        let status = if fine { "OK" } else { "Unknown" };
        self.metrics.increment(Metric::Transformations, &[resource, status, direction, provider]);
        let took = self.clock.monotonic().saturating_sub(started).as_secs_f64();
        self.metrics.record(Metric::TransformationDuration, &[direction, provider], took);
    }
}

fn failed(key: &[u8], why: &dyn std::fmt::Display) -> Error {
    Error::Backend(format!("unable to transform key {:?}: {why}", String::from_utf8_lossy(key)).into())
}

impl EncryptedStore {
    pub fn new(
        inner: Arc<dyn Store>,
        config: Reloaded<EncryptionConfig>,
        clock: Arc<dyn Clock>,
        metrics: Arc<Metrics>,
    ) -> Self {
        Self { inner, ciphers: Arc::new(Ciphers { config, clock, metrics }) }
    }

    /// Returns the key services for the health checks. As upstream, a configuration that may be reloaded has the
    /// check even without any.
    pub fn key_services(&self, may_change: bool) -> Option<KeyServices> {
        let any = self.ciphers.config().key_services().next().is_some();
        (any || may_change).then(|| KeyServices::new(Arc::clone(&self.ciphers)))
    }

    /// Decrypts the current value that a conflict carries.
    async fn plain_error(&self, error: Error) -> Error {
        let Error::Conflict(mut conflict) = error else { return error };
        match self.ciphers.decrypt_some(conflict.current.take()).await {
            Ok(current) => {
                conflict.current = current;
                Error::Conflict(conflict)
            }
            Err(error) => error,
        }
    }
}

#[async_trait]
impl Store for EncryptedStore {
    async fn get(&self, key: &[u8]) -> Result<Option<KeyValue>> {
        let found = self.inner.get(key).await?;
        self.ciphers.decrypt_some(found).await
    }

    async fn range(&self, request: RangeRequest) -> Result<RangeResponse> {
        let mut response = self.inner.range(request).await?;
        let mut plain = Vec::with_capacity(response.kvs.len());
        for kv in response.kvs {
            plain.push(self.ciphers.decrypt(kv).await?);
        }
        response.kvs = plain;
        Ok(response)
    }

    async fn txn(&self, compares: Vec<Compare>, ops: Vec<Op>) -> Result<TxnResponse> {
        let mut sealed = Vec::with_capacity(ops.len());
        for op in ops {
            sealed.push(match op {
                Op::Put { key, value, lease } => {
                    let value = self.ciphers.encrypt(&key, value).await?;
                    Op::Put { key, value, lease }
                }
                delete @ Op::Delete { .. } => delete,
            });
        }
        let mut response = match self.inner.txn(compares, sealed).await {
            Ok(response) => response,
            Err(error) => return Err(self.plain_error(error).await),
        };
        for result in &mut response.results {
            match result {
                OpResult::Put { kv, prev } => {
                    *kv = self.ciphers.decrypt(kv.clone()).await?;
                    *prev = self.ciphers.decrypt_some(prev.take()).await?;
                }
                OpResult::Delete { prev } => *prev = self.ciphers.decrypt_some(prev.take()).await?,
            }
        }
        Ok(response)
    }

    async fn watch(&self, request: WatchRequest) -> Result<Watch> {
        let watch = self.inner.watch(request).await?;
        let progress = watch.progress_requester();
        let ciphers = Arc::clone(&self.ciphers);
        let plain = watch.then(move |item| {
            let ciphers = Arc::clone(&ciphers);
            async move { ciphers.item(item?).await }
        });
        Ok(Watch::new(plain, progress))
    }

    async fn compact(&self, revision: u64) -> Result<()> {
        self.inner.compact(revision).await
    }

    async fn current_revision(&self) -> Result<u64> {
        self.inner.current_revision().await
    }

    async fn grant_lease(&self, ttl_seconds: u64) -> Result<LeaseId> {
        self.inner.grant_lease(ttl_seconds).await
    }

    async fn keep_alive_lease(&self, lease: LeaseId) -> Result<u64> {
        self.inner.keep_alive_lease(lease).await
    }

    async fn lease_ttl(&self, lease: LeaseId) -> Result<u64> {
        self.inner.lease_ttl(lease).await
    }

    async fn revoke_lease(&self, lease: LeaseId) -> Result<()> {
        self.inner.revoke_lease(lease).await
    }

    async fn expire_leases(&self) -> Result<Option<Duration>> {
        self.inner.expire_leases().await
    }

    async fn status(&self) -> Result<Status> {
        self.inner.status().await
    }

    async fn close(&self) -> Result<()> {
        self.inner.close().await
    }

    async fn closed(&self) {
        self.inner.closed().await;
    }
}
