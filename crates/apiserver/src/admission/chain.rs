//! The plugins that are switched on, and how they run.

use std::time::Duration;

use knarr_api::admissionregistration::{mutatingwebhookconfiguration, validatingwebhookconfiguration};
use knarr_apimachinery::status::StatusError;
use serde_json::Value;

use super::event_rate_limit::Buckets;
use super::metrics::{Metrics, Step};
use super::policy::definitions::Policies;
use super::policy::{Mutations, Validations};
use super::webhooks::Configurations;
use super::{AdmissionConfig, Attributes, PLUGINS, Plugin, Runs};
use crate::server::Inner;

/// Why the plugins cannot run as they are wanted.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ChainError {
    #[error("enable-admission-plugins plugin \"{0}\" is unknown")]
    UnknownEnabled(String),
    #[error("disable-admission-plugins plugin \"{0}\" is unknown")]
    UnknownDisabled(String),
    #[error("[\"{0}\"] in enable-admission-plugins and disable-admission-plugins overlapped")]
    Both(String),
    /// Policies or webhooks of files.
    #[error("couldn't init admission plugin \"{plugin}\": {why}")]
    Manifests { plugin: &'static str, why: String },
}

/// The plugins of one server, with what they remember.
pub struct Admission {
    chain: Vec<(usize, &'static dyn Plugin)>,
    pub metrics: Metrics,
    /// The budgets of EventRateLimit.
    pub events: Buckets,
    pub mutating: Configurations,
    pub validating: Configurations,
    pub mutating_policies: Policies<Mutations>,
    pub validating_policies: Policies<Validations>,
}

impl Admission {
    /// All plugins that are on by default or enabled, less those that are disabled.
    pub fn new(settings: &AdmissionConfig) -> Result<Self, ChainError> {
        let (enabled, disabled) = (&settings.enabled[..], &settings.disabled[..]);
        check_names(enabled, disabled)?;
        let plugins = PLUGINS.iter().filter(|(d, p)| runs(*d, p.name(), enabled, disabled)).map(|(_, p)| *p);
        let chain: Vec<_> = plugins.enumerate().collect();
        let metrics = Metrics::new(chain.iter().map(|(_, p)| p.name()).collect());
        let failed = |plugin| move |why| ChainError::Manifests { plugin, why };
        let folders = &settings.manifests;
        Ok(Self {
            chain,
            metrics,
            events: Buckets::default(),
            mutating: Configurations::new(
                &mutatingwebhookconfiguration::RESOURCE,
                settings.mutating_webhook_users.clone(),
                folders.mutating_webhooks.as_deref(),
            )
            .map_err(failed("MutatingAdmissionWebhook"))?,
            validating: Configurations::new(
                &validatingwebhookconfiguration::RESOURCE,
                settings.validating_webhook_users.clone(),
                folders.validating_webhooks.as_deref(),
            )
            .map_err(failed("ValidatingAdmissionWebhook"))?,
            mutating_policies: Policies::new(folders.mutating_policies.as_deref())
                .map_err(failed("MutatingAdmissionPolicy"))?,
            validating_policies: Policies::new(folders.validating_policies.as_deref())
                .map_err(failed("ValidatingAdmissionPolicy"))?,
        })
    }

    /// The names of the plugins that run, in their order.
    #[cfg(test)]
    fn names(&self) -> impl Iterator<Item = &'static str> {
        self.chain.iter().map(|(_, p)| p.name())
    }
}

/// Whether the names are those of plugins that can be switched on and off.
pub fn check_names(enabled: &[String], disabled: &[String]) -> Result<(), ChainError> {
    let known = |name: &String| is_enabled(name, &[], &[]).is_some();
    if let Some(name) = enabled.iter().find(|n| !known(n)) {
        return Err(ChainError::UnknownEnabled(name.clone()));
    }
    if let Some(name) = disabled.iter().find(|n| !known(n)) {
        return Err(ChainError::UnknownDisabled(name.clone()));
    }
    match enabled.iter().find(|n| disabled.contains(n)) {
        Some(name) => Err(ChainError::Both(name.clone())),
        None => Ok(()),
    }
}

/// Whether a plugin of this name runs; `None` if there is none that can be switched on and off.
pub fn is_enabled(name: &str, enabled: &[String], disabled: &[String]) -> Option<bool> {
    let found = PLUGINS.iter().find(|(d, p)| *d != Runs::Always && p.name() == name);
    found.map(|(default, _)| runs(*default, name, enabled, disabled))
}

fn runs(default: Runs, name: &str, enabled: &[String], disabled: &[String]) -> bool {
    match default {
        Runs::Always => true,
        Runs::On => !disabled.iter().any(|n| n == name),
        Runs::Off => enabled.iter().any(|n| n == name),
    }
}

/// Runs all mutating plugins; again where a webhook or policy changed something that others may want to see.
pub async fn mutate(attributes: &mut Attributes<'_>, server: &Inner) -> Result<(), StatusError> {
    let started = server.clock.monotonic();
    let mut done = round(attributes, server).await;
    if done.is_ok() && attributes.reinvoke {
        attributes.reinvoking = true;
        done = round(attributes, server).await;
    }
    let took = server.clock.monotonic().saturating_sub(started);
    server.admission.metrics.step(Step::Admit, attributes.operation, done.is_err(), took);
    done
}

/// Where the last plugin ended and the next begins.
struct Laps(Duration);

impl Laps {
    fn begin(server: &Inner) -> Self {
        Self(server.clock.monotonic())
    }

    fn next(&mut self, server: &Inner) -> Duration {
        let now = server.clock.monotonic();
        now.saturating_sub(std::mem::replace(&mut self.0, now))
    }
}

async fn round(attributes: &mut Attributes<'_>, server: &Inner) -> Result<(), StatusError> {
    let (admission, operation) = (&server.admission, attributes.operation);
    let mut laps = Laps::begin(server);
    for (index, plugin) in admission.chain.iter().filter(|(_, p)| p.handles(operation)) {
        let done = plugin.mutate(attributes, server).await;
        admission.metrics.plugin(*index, Step::Admit, operation, done.is_err(), laps.next(server));
        done?;
    }
    Ok(())
}

/// After all mutating plugins, and after the strategy prepared what they made of the object.
pub fn complete(attributes: &mut Attributes<'_>, server: &Inner) {
    let operation = attributes.operation;
    for (_, plugin) in server.admission.chain.iter().filter(|(_, p)| p.handles(operation)) {
        plugin.complete(attributes, server);
    }
}

/// Runs all validating plugins.
pub async fn validate(attributes: &Attributes<'_>, server: &Inner) -> Result<(), StatusError> {
    let admission = &server.admission;
    let begun = server.clock.monotonic();
    let mut laps = Laps(begun);
    let mut done = Ok(());
    for (index, plugin) in admission.chain.iter().filter(|(_, p)| p.handles(attributes.operation)) {
        done = plugin.validate(attributes, server).await;
        let took = laps.next(server);
        admission.metrics.plugin(*index, Step::Validate, attributes.operation, done.is_err(), took);
        if done.is_err() {
            break;
        }
    }
    let took = laps.0.saturating_sub(begun);
    admission.metrics.step(Step::Validate, attributes.operation, done.is_err(), took);
    done
}

/// Both phases of a write that no strategy stands between: subresources that are only posted, connects, deletions.
pub async fn admit(attributes: &mut Attributes<'_>, server: &Inner) -> Result<Value, StatusError> {
    mutate(attributes, server).await?;
    validate(attributes, server).await?;
    Ok(attributes.object.take())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(enabled: &[&str], disabled: &[&str]) -> Result<Vec<&'static str>, String> {
        let owned = |list: &[&str]| list.iter().map(|n| (*n).to_owned()).collect::<Vec<_>>();
        let settings = AdmissionConfig {
            enabled: owned(enabled),
            disabled: owned(disabled),
            ..AdmissionConfig::default()
        };
        let admission = Admission::new(&settings).map_err(|e| e.to_string())?;
        Ok(admission.names().collect())
    }

    #[test]
    fn plugins_are_switched_on_and_off() {
        assert!(names(&[], &[]).unwrap().contains(&"Priority"));
        assert!(!names(&[], &["Priority"]).unwrap().contains(&"Priority"));
        for (enabled, disabled, expected) in [
            (&["Nope"][..], &[][..], "enable-admission-plugins plugin \"Nope\" is unknown"),
            (&[], &["Nope"], "disable-admission-plugins plugin \"Nope\" is unknown"),
            (
                &["Priority"],
                &["Priority"],
                "[\"Priority\"] in enable-admission-plugins and disable-admission-plugins overlapped",
            ),
        ] {
            assert_eq!(names(enabled, disabled).unwrap_err(), expected);
        }
    }
}
