//! The admission chain: the enabled plugins, and how they run.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use knarr_api::admissionregistration::{mutatingwebhookconfiguration, validatingwebhookconfiguration};
use knarr_apimachinery::status::StatusError;

use super::event_rate_limit::Buckets;
use super::metrics::{Metrics, Step};
use super::policy::definitions::Policies;
use super::policy::{Mutations, Validations};
use super::webhooks::Configurations;
use super::{AdmissionConfig, Attributes, PLUGINS, Plugin, Runs};
use knarr_api::features::Features;
use knarr_auth::authz::Authorizer;
use knarr_registry::{Admission, Registry};

/// Why the plugins cannot run as configured.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ChainError {
    #[error("enable-admission-plugins plugin \"{0}\" is unknown")]
    UnknownEnabled(String),
    #[error("disable-admission-plugins plugin \"{0}\" is unknown")]
    UnknownDisabled(String),
    #[error("[\"{0}\"] in enable-admission-plugins and disable-admission-plugins overlapped")]
    Both(String),
    /// Policies or webhooks from files could not be loaded.
    #[error("couldn't init admission plugin \"{plugin}\": {why}")]
    Manifests { plugin: &'static str, why: String },
}

/// The enabled plugins of one server, with their state.
pub struct Chain {
    plugins: Vec<(usize, &'static dyn Plugin)>,
    pub settings: AdmissionConfig,
    pub features: Features,
    pub authorizer: Arc<Authorizer>,
    pub metrics: Metrics,
    /// The token buckets of EventRateLimit.
    pub events: Buckets,
    pub mutating: Configurations,
    pub validating: Configurations,
    pub mutating_policies: Policies<Mutations>,
    pub validating_policies: Policies<Validations>,
}

impl Chain {
    /// Creates the chain of all plugins that are on by default or enabled, without those that are disabled.
    pub fn new(
        settings: AdmissionConfig,
        features: Features,
        authorizer: Arc<Authorizer>,
    ) -> Result<Self, ChainError> {
        let plugins: Vec<_> =
            chosen(&settings.enabled, &settings.disabled)?.into_iter().enumerate().collect();
        let metrics = Metrics::new(plugins.iter().map(|(_, p)| p.name()).collect());
        let failed = |plugin| move |why| ChainError::Manifests { plugin, why };
        let folders = &settings.manifests;
        Ok(Self {
            plugins,
            features,
            authorizer,
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
            settings,
        })
    }
}

/// Returns the enabled plugins, in their order.
fn chosen(enabled: &[String], disabled: &[String]) -> Result<Vec<&'static dyn Plugin>, ChainError> {
    check_names(enabled, disabled)?;
    let on = PLUGINS.iter().filter(|(default, plugin)| runs(*default, plugin.name(), enabled, disabled));
    Ok(on.map(|(_, plugin)| *plugin).collect())
}

/// Checks that the names are those of plugins that can be enabled and disabled.
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

/// Returns whether the plugin of this name is enabled; `None` if no such plugin can be enabled and disabled.
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

/// The context of plugins: the calling registry and the chain.
#[derive(Clone, Copy)]
pub struct Context<'a> {
    pub registry: &'a Registry,
    pub chain: &'a Chain,
}

/// Measures the time of each plugin.
struct Laps(Duration);

impl Laps {
    fn begin(registry: &Registry) -> Self {
        Self(registry.clock.monotonic())
    }

    fn next(&mut self, registry: &Registry) -> Duration {
        let now = registry.clock.monotonic();
        now.saturating_sub(std::mem::replace(&mut self.0, now))
    }
}

impl Chain {
    async fn round(&self, registry: &Registry, attributes: &mut Attributes<'_>) -> Result<(), StatusError> {
        let (context, operation) = (Context { registry, chain: self }, attributes.operation);
        let mut laps = Laps::begin(registry);
        for (index, plugin) in self.plugins.iter().filter(|(_, p)| p.handles(operation)) {
            let done = plugin.mutate(attributes, &context).await;
            self.metrics.plugin(*index, Step::Admit, operation, done.is_err(), laps.next(registry));
            done?;
        }
        Ok(())
    }
}

#[async_trait]
impl Admission for Chain {
    async fn mutate(&self, registry: &Registry, attributes: &mut Attributes<'_>) -> Result<(), StatusError> {
        let started = registry.clock.monotonic();
        let mut done = self.round(registry, attributes).await;
        if done.is_ok() && attributes.reinvoke {
            attributes.reinvoking = true;
            done = self.round(registry, attributes).await;
        }
        let took = registry.clock.monotonic().saturating_sub(started);
        self.metrics.step(Step::Admit, attributes.operation, done.is_err(), took);
        done
    }

    fn complete(&self, registry: &Registry, attributes: &mut Attributes<'_>) {
        let (context, operation) = (Context { registry, chain: self }, attributes.operation);
        for (_, plugin) in self.plugins.iter().filter(|(_, p)| p.handles(operation)) {
            plugin.complete(attributes, &context);
        }
    }

    async fn validate(&self, registry: &Registry, attributes: &Attributes<'_>) -> Result<(), StatusError> {
        let context = Context { registry, chain: self };
        let begun = registry.clock.monotonic();
        let mut laps = Laps(begun);
        let mut done = Ok(());
        for (index, plugin) in self.plugins.iter().filter(|(_, p)| p.handles(attributes.operation)) {
            done = plugin.validate(attributes, &context).await;
            let took = laps.next(registry);
            self.metrics.plugin(*index, Step::Validate, attributes.operation, done.is_err(), took);
            if done.is_err() {
                break;
            }
        }
        let took = laps.0.saturating_sub(begun);
        self.metrics.step(Step::Validate, attributes.operation, done.is_err(), took);
        done
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(enabled: &[&str], disabled: &[&str]) -> Result<Vec<&'static str>, String> {
        let owned = |list: &[&str]| list.iter().map(|n| (*n).to_owned()).collect::<Vec<_>>();
        let chosen = chosen(&owned(enabled), &owned(disabled)).map_err(|e| e.to_string())?;
        Ok(chosen.iter().map(|plugin| plugin.name()).collect())
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
