//! Runs one controller against an in-memory API server, in simulated time.

use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::api::core::v1::Event;
use knarr_api::kind::ResourceType;
use knarr_apimachinery::clock::Clock;
use knarr_client::clock::TokioClock;
use knarr_client::events::EventRecorder;
use knarr_client::{Client, Informers};
use knarr_testing::FakeApi;
use tokio_util::sync::CancellationToken;

use crate::certificates::CertificateSigner;
use crate::context::{Context, Descriptor, Options};
use crate::names::event_source;
use crate::service_account_tokens::TokenSigner;
use crate::settings::Settings;

/// The time at which every test starts: 2026-01-01T00:00:00Z.
pub const START: i64 = 1_767_225_600;

pub struct World {
    pub api: Arc<FakeApi>,
    pub certificate_signer: Option<Arc<dyn CertificateSigner>>,
    pub token_signer: Option<Arc<dyn TokenSigner>>,
    pub settings: Settings,
    clock: Arc<dyn Clock>,
    stop: CancellationToken,
}

impl World {
    /// Makes a world whose API server serves these resources. The tokio runtime must be paused.
    pub fn new(resources: &[ResourceType]) -> Self {
        let clock: Arc<dyn Clock> = Arc::new(TokioClock::starting_at(at(0)));
        let api = FakeApi::new(Arc::clone(&clock), resources);
        Self {
            api,
            certificate_signer: None,
            token_signer: None,
            settings: Settings::default(),
            clock,
            stop: CancellationToken::new(),
        }
    }

    pub fn start(&self, descriptor: &Descriptor) {
        self.start_with(descriptor, self.api.client());
    }

    /// Starts the controller with a given client.
    pub fn start_with(&self, descriptor: &Descriptor, client: Client) {
        let options = Options {
            cluster_cidr: "10.42.0.0/16".into(),
            node_cidr_mask_size: 24,
            service_cidr: None,
            root_ca: String::new(),
            certificate_signer: self.certificate_signer.clone(),
            token_signer: self.token_signer.clone(),
            settings: self.settings.clone(),
        };
        let context = Context {
            name: descriptor.name,
            informers: Arc::new(Informers::new(client.clone(), self.stop.clone())),
            recorder: EventRecorder::new(
                client.clone(),
                event_source(descriptor.name),
                "",
                self.stop.clone(),
            ),
            client,
            clock: Arc::clone(&self.clock),
            options: Arc::new(options),
            stop: self.stop.clone(),
        };
        tokio::spawn((descriptor.run)(Arc::new(context)));
    }

    /// Advances the simulated time.
    pub async fn pass(&self, seconds: f64) {
        tokio::time::sleep(Duration::from_secs_f64(seconds)).await;
    }

    /// Returns the events recorded so far as `object reason message`, sorted.
    pub fn events(&self) -> Vec<String> {
        let all = self.api.all::<Event>().into_iter().map(|e| {
            let text = |s: Option<String>| s.unwrap_or_default();
            format!("{} {} {}", text(e.involved_object.name), text(e.reason), text(e.message))
        });
        let mut all: Vec<String> = all.collect();
        all.sort();
        all
    }
}

impl Drop for World {
    fn drop(&mut self) {
        self.stop.cancel();
    }
}

/// Returns the time this many seconds after the start.
pub fn at(second: i64) -> Timestamp {
    Timestamp::from_second(START + second).unwrap()
}
