//! Plugins of the kubelet: whoever puts a socket into the registry folder is asked who it is, and handed to the
//! handler of its kind; once the socket has gone, the plugin has gone.
//!
//! [`PluginManager`] looks after the folder. A kind of plugin is a [`PluginHandler`] in its list.

mod manager;
mod messages;
mod registration;
mod sockets;

use std::path::PathBuf;

use async_trait::async_trait;

pub use manager::PluginManager;

/// A plugin that has said who it is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Plugin {
    pub name: String,
    /// Where it serves.
    pub endpoint: PathBuf,
    pub versions: Vec<String>,
}

/// One kind of plugin. Errors are told to the plugin.
#[async_trait]
pub trait PluginHandler: Send + Sync + 'static {
    /// The type that plugins of this kind name: `CSIPlugin`.
    fn kind(&self) -> &'static str;

    /// Whether such a plugin could be registered now.
    fn validate(&self, plugin: &Plugin) -> Result<(), String>;

    async fn register(&self, plugin: &Plugin) -> Result<(), String>;

    /// The plugin has removed its socket. Not called when the kubelet itself stops.
    async fn deregister(&self, plugin: &Plugin);
}
