//! The health of the key services (KMS plugins) on which the store's encryption depends.
//!
//! Source: `kmsv2PluginProbe` in `k8s.io/apiserver/pkg/server/options/encryptionconfig`.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::Mutex;

use super::store::Ciphers;

/// How long a successful result is reused.
const WELL_FOR: Duration = Duration::from_secs(20);
const ILL_FOR: Duration = Duration::from_secs(3);

/// Checks the health of each key service of the configuration, and reuses recent results.
pub struct KeyServices {
    ciphers: Arc<Ciphers>,
    answers: Mutex<BTreeMap<String, Answer>>,
}

struct Answer {
    at: Duration,
    result: Result<(), String>,
}

impl Answer {
    fn holds(&self, now: Duration) -> bool {
        let time = if self.result.is_ok() { WELL_FOR } else { ILL_FOR };
        now.saturating_sub(self.at) < time
    }
}

impl KeyServices {
    pub fn new(ciphers: Arc<Ciphers>) -> Self {
        Self { ciphers, answers: Mutex::default() }
    }

    /// Checks all key services; `Err` has the reasons of those that failed. Concurrent calls run one after the other.
    pub async fn check(&self) -> Result<(), String> {
        let mut answers = self.answers.lock().await;
        let (config, clock) = (self.ciphers.config(), self.ciphers.clock());
        let mut asked = BTreeMap::new();
        for kms in config.key_services() {
            let answer = match answers.remove(kms.name()) {
                Some(answer) if answer.holds(clock.monotonic()) => answer,
                _ => {
                    let result = kms.health().await;
                    Answer { at: clock.monotonic(), result }
                }
            };
            asked.insert(kms.name().to_owned(), answer);
        }
        *answers = asked;
        let wrong: Vec<&str> =
            answers.values().filter_map(|a| a.result.as_ref().err()).map(String::as_str).collect();
        if wrong.is_empty() { Ok(()) } else { Err(wrong.join(", ")) }
    }
}
