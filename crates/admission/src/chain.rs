//! The admission chain: the enabled plugins, and how they run.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use knarr_api::features::Features;
use knarr_apimachinery::status::StatusError;
use knarr_auth::authz::Authorizer;
use knarr_registry::attributes::Attributes;
use knarr_registry::{Admission, Registry};

use crate::config::AdmissionConfig;
use crate::context::Context;
use crate::metrics::{Metrics, Step};
use crate::plugin::Plugin;
use crate::plugins::{PLUGINS, Runs, names};

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
    /// Each with its place in `metrics`.
    plugins: Vec<(usize, Box<dyn Plugin>)>,
    settings: AdmissionConfig,
    features: Features,
    authorizer: Arc<Authorizer>,
    pub metrics: Metrics,
}

impl Chain {
    /// Creates the chain of all plugins that are on by default or enabled, without those that are disabled.
    pub fn new(
        settings: AdmissionConfig,
        features: Features,
        authorizer: Arc<Authorizer>,
    ) -> Result<Self, ChainError> {
        let plugins = chosen(&settings)?;
        let metrics = Metrics::new(plugins.iter().map(|p| p.name()).collect());
        Ok(Self {
            plugins: plugins.into_iter().enumerate().collect(),
            settings,
            features,
            authorizer,
            metrics,
        })
    }

    fn context<'a>(&'a self, registry: &'a Registry) -> Context<'a> {
        Context {
            registry,
            settings: &self.settings,
            features: &self.features,
            authorizer: &self.authorizer,
            metrics: &self.metrics,
        }
    }
}

/// Makes the enabled plugins, in their order.
fn chosen(settings: &AdmissionConfig) -> Result<Vec<Box<dyn Plugin>>, ChainError> {
    let (enabled, disabled) = (&settings.enabled[..], &settings.disabled[..]);
    check_names(enabled, disabled)?;
    let on = names()
        .into_iter()
        .zip(PLUGINS)
        .filter(|((runs_by_default, name), _)| runs(*runs_by_default, name, enabled, disabled));
    on.map(|((_, plugin), (_, make))| make(settings).map_err(|why| ChainError::Manifests { plugin, why }))
        .collect()
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
    let found = names().into_iter().find(|(default, known)| *default != Runs::Always && *known == name);
    found.map(|(default, _)| runs(default, name, enabled, disabled))
}

fn runs(default: Runs, name: &str, enabled: &[String], disabled: &[String]) -> bool {
    match default {
        Runs::Always => true,
        Runs::On => !disabled.iter().any(|n| n == name),
        Runs::Off => enabled.iter().any(|n| n == name),
    }
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
        let (context, operation) = (self.context(registry), attributes.operation);
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
        let (context, operation) = (self.context(registry), attributes.operation);
        for (_, plugin) in self.plugins.iter().filter(|(_, p)| p.handles(operation)) {
            plugin.complete(attributes, &context);
        }
    }

    async fn validate(&self, registry: &Registry, attributes: &Attributes<'_>) -> Result<(), StatusError> {
        let context = self.context(registry);
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

    fn chosen_names(enabled: &[&str], disabled: &[&str]) -> Result<Vec<&'static str>, String> {
        let owned = |list: &[&str]| list.iter().map(|n| (*n).to_owned()).collect::<Vec<_>>();
        let settings = AdmissionConfig {
            enabled: owned(enabled),
            disabled: owned(disabled),
            ..AdmissionConfig::default()
        };
        let chosen = chosen(&settings).map_err(|e| e.to_string())?;
        Ok(chosen.iter().map(|plugin| plugin.name()).collect())
    }

    #[test]
    fn plugins_are_switched_on_and_off() {
        assert!(chosen_names(&[], &[]).unwrap().contains(&"Priority"));
        assert!(!chosen_names(&[], &["Priority"]).unwrap().contains(&"Priority"));
        for (enabled, disabled, expected) in [
            (&["Nope"][..], &[][..], "enable-admission-plugins plugin \"Nope\" is unknown"),
            (&[], &["Nope"], "disable-admission-plugins plugin \"Nope\" is unknown"),
            (
                &["Priority"],
                &["Priority"],
                "[\"Priority\"] in enable-admission-plugins and disable-admission-plugins overlapped",
            ),
        ] {
            assert_eq!(chosen_names(enabled, disabled).unwrap_err(), expected);
        }
    }
}
