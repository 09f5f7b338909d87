//! Pooled connections and TLS configurations.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use http_body_util::Full;
use hyper::client::conn::http1::SendRequest;
use knarr_client::kubeconfig::Identity;
use rustls::ClientConfig;

use super::connect;
use super::error::Failure;
use super::target::{Place, Target};

/// The maximum number of TLS configurations; a further one replaces the least recently used.
const MAX_CLIENTS: usize = 128;
/// The maximum number of idle connections per address.
const MAX_IDLE: usize = 25;
/// The maximum number of addresses with idle connections, per TLS configuration.
const MAX_ADDRESSES: usize = 64;
const IDLE_FOR: Duration = Duration::from_secs(90);

/// A connection ready for one request.
pub struct Connection {
    pub sender: SendRequest<Full<Bytes>>,
}

/// The key of a TLS configuration.
#[derive(PartialEq, Eq, Hash)]
struct Trust {
    secure: bool,
    ca_pem: Vec<u8>,
    insecure: bool,
    identity: Option<Identity>,
}

type Endpoint = (String, String, u16);

#[derive(Default)]
struct Client {
    /// `None` until it is first needed.
    tls: Option<Arc<ClientConfig>>,
    idle: HashMap<Endpoint, Vec<(Connection, Duration)>>,
    used: u64,
}

#[derive(Default)]
struct State {
    clients: HashMap<Trust, Client>,
    uses: u64,
}

#[derive(Default)]
pub struct Pool(Mutex<State>);

fn endpoint(place: &Place, host: &str, port: u16) -> Endpoint {
    (place.server_name.clone(), host.to_owned(), port)
}

impl Pool {
    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the TLS configuration for this target; `None` without TLS.
    pub fn tls(&self, target: &Target, secure: bool) -> Result<Option<Arc<ClientConfig>>, Failure> {
        if !secure {
            return Ok(None);
        }
        if let Some(tls) = self.state().client(target, true).tls.clone() {
            return Ok(Some(tls));
        }
        let tls = Arc::new(connect::tls_config(target)?);
        self.state().client(target, true).tls = Some(Arc::clone(&tls));
        Ok(Some(tls))
    }

    /// Returns an idle connection, the most recently used first.
    pub fn take(
        &self,
        target: &Target,
        place: &Place,
        host: &str,
        port: u16,
        now: Duration,
    ) -> Option<Connection> {
        let mut state = self.state();
        let idle = state.client(target, place.secure).idle.get_mut(&endpoint(place, host, port))?;
        idle.retain(|(c, since)| !c.sender.is_closed() && now.saturating_sub(*since) < IDLE_FOR);
        idle.pop().map(|(connection, _)| connection)
    }

    /// Puts a connection back into the pool after its response was read completely.
    pub fn keep(
        &self,
        target: &Target,
        place: &Place,
        host: &str,
        port: u16,
        connection: Connection,
        now: Duration,
    ) {
        if connection.sender.is_closed() {
            return;
        }
        let mut state = self.state();
        let idle = &mut state.client(target, place.secure).idle;
        if idle.len() >= MAX_ADDRESSES {
            idle.retain(|_, list| {
                list.retain(|(c, since)| !c.sender.is_closed() && now.saturating_sub(*since) < IDLE_FOR);
                !list.is_empty()
            });
        }
        let address = endpoint(place, host, port);
        if idle.len() < MAX_ADDRESSES || idle.contains_key(&address) {
            let list = idle.entry(address).or_default();
            if list.len() < MAX_IDLE {
                list.push((connection, now));
            }
        }
    }
}

impl State {
    fn client(&mut self, target: &Target, secure: bool) -> &mut Client {
        self.uses += 1;
        let uses = self.uses;
        let (ca_pem, identity) = (target.ca_pem.clone(), target.identity.clone());
        let trust = Trust { secure, ca_pem, insecure: target.insecure, identity };
        if self.clients.len() >= MAX_CLIENTS && !self.clients.contains_key(&trust) {
            let oldest = self.clients.values().map(|c| c.used).min();
            self.clients.retain(|_, c| Some(c.used) != oldest);
        }
        let client = self.clients.entry(trust).or_default();
        client.used = uses;
        client
    }
}
