//! Registers CSI drivers: the handler of plugins of type `CSIPlugin`.

use std::sync::Arc;

use async_trait::async_trait;

use super::drivers::{Driver, Drivers, Version, highest_supported};
use super::node_info::NodeInfo;
use crate::plugins::{Plugin, PluginHandler};

/// The handler that registers and deregisters CSI drivers.
pub struct CsiPlugins {
    drivers: Arc<Drivers>,
    node_info: Arc<NodeInfo>,
}

impl CsiPlugins {
    pub fn new(drivers: Arc<Drivers>, node_info: Arc<NodeInfo>) -> Self {
        Self { drivers, node_info }
    }

    fn version(&self, caller: &str, plugin: &Plugin) -> Result<Version, String> {
        let (name, versions) = (&plugin.name, &plugin.versions);
        if versions.is_empty() {
            return Err(format!(
                "kubernetes.io/csi: {caller} for CSI driver {name:?} failed. Plugin returned an empty list for \
                 supported versions"
            ));
        }
        let version = highest_supported(versions).map_err(|e| {
            format!(
                "kubernetes.io/csi: {caller} for CSI driver {name:?} failed. None of the versions specified \
                 {versions:?} are supported. err={e}"
            )
        })?;
        match self.drivers.get(name) {
            Some(known) if known.version >= version => Err(format!(
                "kubernetes.io/csi: {caller} for CSI driver {name:?} failed. Another driver with the same name is \
                 already registered with a higher supported version: {:?}",
                known.version.to_string()
            )),
            _ => Ok(version),
        }
    }

    async fn unregister(&self, name: &str) -> Result<(), String> {
        self.drivers.remove(name);
        self.node_info.uninstall(name).await
    }
}

#[async_trait]
impl PluginHandler for CsiPlugins {
    fn kind(&self) -> &'static str {
        "CSIPlugin"
    }

    fn validate(&self, plugin: &Plugin) -> Result<(), String> {
        self.version("ValidatePlugin", plugin).map(drop).map_err(|e| {
            format!(
                "validation failed for CSI Driver {} at endpoint {}: {e}",
                plugin.name,
                plugin.endpoint.display()
            )
        })
    }

    async fn register(&self, plugin: &Plugin) -> Result<(), String> {
        let version = self.version("RegisterPlugin", plugin)?;
        self.drivers.set(&plugin.name, Driver { endpoint: plugin.endpoint.clone(), version });
        let published = async {
            let info = self.drivers.client(&plugin.name)?.info().await.map_err(|e| e.to_string())?;
            self.node_info.install(&plugin.name, info.into()).await
        };
        match published.await {
            Ok(()) => {
                self.drivers.announce(&plugin.name);
                Ok(())
            }
            Err(error) => {
                if let Err(why) = self.unregister(&plugin.name).await {
                    tracing::warn!(driver = plugin.name, error = why, "cannot remove its CSINode entry");
                }
                Err(error)
            }
        }
    }

    async fn deregister(&self, plugin: &Plugin) {
        if let Err(error) = self.unregister(&plugin.name).await {
            tracing::warn!(driver = plugin.name, error, "cannot remove its CSINode entry");
        }
    }
}
