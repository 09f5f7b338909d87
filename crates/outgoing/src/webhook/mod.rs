//! Calls of webhooks: from a `clientConfig` to a POST and its response, with pooled connections and limits on time
//! and size.
//!
//! Admission, conversion of custom resources, token and authorization webhooks and audit share one [`Webhooks`].

mod connect;
mod error;
mod pool;
mod services;
mod target;

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::header::{ACCEPT, AUTHORIZATION, CONTENT_TYPE, HOST, USER_AGENT};
use http::{Method, Request, Response};
use http_body_util::{BodyExt, Full, LengthLimitError, Limited};
use hyper::body::Incoming;
use knarr_apimachinery::clock::Clock;
use knarr_client::metrics;

pub use error::CallError;
pub use services::{Services, endpoint};
#[allow(unused_imports, reason = "used by webhooks that a configuration file names")]
pub use target::{Address, Target};

use error::Failure;
use pool::{Connection, Pool};
use target::Place;

/// The User-Agent with which upstream's API server calls webhooks.
const AGENT: &str = "kube-apiserver-admission";

/// One POST to a webhook.
pub struct Call {
    /// The JSON body.
    pub body: Bytes,
    pub timeout: Duration,
    /// Whether the timeout, in whole seconds, is sent as the query parameter `timeout`.
    pub tell_timeout: bool,
    /// The maximum size of the response, in bytes.
    pub limit: usize,
}

impl Call {
    /// The default of `limit`, in bytes: enough for an object and its patch.
    pub const LIMIT: usize = 16 << 20;

    pub fn new(body: Bytes, timeout: Duration) -> Self {
        Self { body, timeout, tell_timeout: true, limit: Self::LIMIT }
    }
}

/// The client of all webhooks; keeps TLS configurations and idle connections.
pub struct Webhooks {
    clock: Arc<dyn Clock>,
    pool: Pool,
}

impl Webhooks {
    pub fn new(clock: Arc<dyn Clock>) -> Self {
        Self { clock, pool: Pool::default() }
    }

    /// Sends the body, and returns the body of a 2xx response.
    ///
    /// # Errors
    /// Upstream's texts for connection errors and timeouts, or the Status of the response.
    pub async fn post(
        &self,
        services: &dyn Services,
        target: &Target,
        call: &Call,
    ) -> Result<Bytes, CallError> {
        let place = target.place()?;
        let query = call.tell_timeout.then(|| format!("timeout={}s", whole_seconds(call.timeout)));
        let path = match query {
            Some(query) if place.path.contains('?') => format!("{}&{query}", place.path),
            Some(query) => format!("{}?{query}", place.path),
            None => place.path.clone(),
        };
        let url = format!("{}{path}", place.origin);
        let started = self.clock.monotonic();
        let work = self.exchange(services, target, &place, &path, call);
        let outcome = tokio::select! {
            outcome = work => outcome,
            () = self.clock.sleep(call.timeout) => Err(Failure::Timeout),
        };
        let code = match &outcome {
            Ok(_) => Some(200),
            Err(Failure::Status(status)) => Some(status.code()),
            Err(_) => None,
        };
        let host = place.origin.split_once("://").map_or("", |(_, host)| host);
        metrics::called(&Method::POST, host, code, self.clock.monotonic().saturating_sub(started));
        outcome.map_err(|failure| failure.about(url))
    }

    async fn exchange(
        &self,
        services: &dyn Services,
        target: &Target,
        place: &Place,
        path: &str,
        call: &Call,
    ) -> Result<Bytes, Failure> {
        let (host, port) = match &target.address {
            Address::Url(_) => (place.host.clone(), place.port),
            Address::Service { namespace, name, port, .. } => services
                .resolve(namespace, name, *port)
                .map_err(|e| Failure::Connect(e.message().to_owned()))?,
        };
        let mut request = request(target, place, path, call)?;
        // The server may have closed an idle connection; a request that was not sent is then sent on another one.
        while let Some(mut kept) = self.pool.take(target, place, &host, port, self.clock.monotonic()) {
            match kept.sender.try_send_request(request).await {
                Ok(response) => {
                    return self.read(target, place, &host, port, kept, response, call.limit).await;
                }
                Err(mut error) => match error.take_message() {
                    Some(unsent) => request = unsent,
                    None => return Err(Failure::broken(error.error())),
                },
            }
        }
        let mut new = connect::connect(&self.pool.tls(target, place.secure)?, place, &host, port).await?;
        let response = new.sender.send_request(request).await.map_err(|e| Failure::broken(&e))?;
        self.read(target, place, &host, port, new, response, call.limit).await
    }

    #[allow(clippy::too_many_arguments, reason = "the last part of `exchange`")]
    async fn read(
        &self,
        target: &Target,
        place: &Place,
        host: &str,
        port: u16,
        connection: Connection,
        response: Response<Incoming>,
        limit: usize,
    ) -> Result<Bytes, Failure> {
        let status = response.status();
        let body = match Limited::new(response.into_body(), limit).collect().await {
            Ok(all) => all.to_bytes(),
            Err(error) if error.is::<LengthLimitError>() => return Err(Failure::TooLarge(limit)),
            Err(error) => return Err(Failure::Connect(error.to_string())),
        };
        self.pool.keep(target, place, host, port, connection, self.clock.monotonic());
        if status.is_success() { Ok(body) } else { Err(Failure::status(status.as_u16(), &body)) }
    }
}

fn whole_seconds(timeout: Duration) -> u64 {
    timeout.as_secs() + u64::from(timeout.subsec_nanos() > 0)
}

fn request(target: &Target, place: &Place, path: &str, call: &Call) -> Result<Request<Full<Bytes>>, Failure> {
    let mut request = Request::builder()
        .method(Method::POST)
        .uri(path)
        .header(HOST, &place.authority)
        .header(USER_AGENT, AGENT)
        .header(CONTENT_TYPE, "application/json")
        .header(ACCEPT, "application/json, */*");
    if let Some(token) = target.identity.as_ref().and_then(|identity| identity.token.as_ref()) {
        request = request.header(AUTHORIZATION, format!("Bearer {token}"));
    }
    request.body(Full::new(call.body.clone())).map_err(|e| Failure::Connect(e.to_string()))
}

#[cfg(test)]
mod tests;
