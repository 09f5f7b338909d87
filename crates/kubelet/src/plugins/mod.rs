//! Plugins of the kubelet. A plugin puts a socket into the registry folder; the kubelet asks it for its name and
//! type, and hands it to the handler of that type. When the socket is removed, the plugin is deregistered.
//!
//! [`PluginManager`] follows the folder. Each type of plugin is a [`PluginHandler`] in its list.

mod manager;
mod messages;
mod registration;
mod sockets;

use std::path::PathBuf;

use async_trait::async_trait;

pub use manager::PluginManager;

/// A plugin, as it has described itself.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Plugin {
    pub name: String,
    /// The path of its socket.
    pub endpoint: PathBuf,
    pub versions: Vec<String>,
}

/// One type of plugin. Errors are sent to the plugin.
#[async_trait]
pub trait PluginHandler: Send + Sync + 'static {
    /// The type that plugins name, such as `CSIPlugin`.
    fn kind(&self) -> &'static str;

    /// Checks whether the plugin can be registered.
    fn validate(&self, plugin: &Plugin) -> Result<(), String>;

    async fn register(&self, plugin: &Plugin) -> Result<(), String>;

    /// Called when the plugin has removed its socket. Not called when the kubelet itself stops.
    async fn deregister(&self, plugin: &Plugin);
}
