//! Pods connected by CNI plugins: programs that get their task from their environment and a JSON text.
//!
//! Source: the CNI specification 1.1.0, as libcni and go-cni implement it.

mod attachment;
mod network_list;
mod plugin;
mod result;
mod watch;

use std::collections::BTreeSet;
use std::fs::File;
use std::net::IpAddr;
use std::path::{Path, PathBuf};

use serde_json::{Value, json};
use thiserror::Error;

use crate::cidr::Ipv4Cidr;
use crate::links::{Links, NamespaceError, in_namespace};
use crate::netlink::NetlinkError;
use crate::pods::POD_INTERFACE;
use attachment::Attachment;
pub use attachment::{PodRef, PortMapping};
pub use network_list::ConfigError;
use network_list::NetworkList;
pub use plugin::PluginError;
use plugin::{Command, Invocation};
pub use watch::watch;

/// The index of the loopback interface in every namespace.
const LOOPBACK_INDEX: u32 = 1;

/// Why a pod could not be connected or disconnected.
#[derive(Debug, Error)]
pub enum CniError {
    #[error(transparent)]
    Config(#[from] ConfigError),
    #[error("plugin type={plugin:?} failed ({command}): {source}")]
    Plugin { plugin: String, command: &'static str, source: PluginError },
    #[error("failed to find network info for sandbox {0:?}")]
    NoAddress(String),
    #[error("{path}: {source}", path = path.display())]
    State { path: PathBuf, source: std::io::Error },
    #[error("setting up loopback in {path}: {source}", path = path.display())]
    Namespace { path: PathBuf, source: NamespaceError },
    #[error("setting up loopback in {path}: {source}", path = path.display())]
    Loopback { path: PathBuf, source: NetlinkError },
    #[error("opening the pod's network namespace {path}: {source}", path = path.display())]
    OpenNamespace { path: PathBuf, source: std::io::Error },
}

/// The paths of plugins and their configuration.
#[derive(Debug, Clone)]
pub struct CniConfig {
    /// Searched for `*.conflist`, `*.conf` and `*.json`; the first valid file by name is the pod network.
    pub conf_dir: PathBuf,
    /// Searched for plugins, in order.
    pub bin_dirs: Vec<PathBuf>,
    /// Contains a file for each connected sandbox, with how it was connected.
    pub state_dir: PathBuf,
    /// Passed to plugins with the capability `ipRanges`.
    pub pod_cidr: Ipv4Cidr,
}

/// The pod network of a node that plugins manage.
pub struct Cni {
    config: CniConfig,
}

impl Cni {
    pub fn open(config: CniConfig) -> Result<Self, CniError> {
        std::fs::create_dir_all(&config.state_dir)
            .map_err(|source| CniError::State { path: config.state_dir.clone(), source })?;
        Ok(Self { config })
    }

    /// Connects a pod by running every plugin of the list in order. A sandbox that is already connected keeps
    /// its addresses. After an error the caller must call [`Cni::del`].
    pub async fn add(
        &self,
        pod: &PodRef,
        netns: &Path,
        ports: &[PortMapping],
    ) -> Result<Vec<IpAddr>, CniError> {
        if let Some(known) = Attachment::read(&self.config.state_dir, &pod.sandbox_id)?
            && known.netns == netns
            && let Some(result) = &known.result
        {
            return self.addresses_in(result, &pod.sandbox_id);
        }
        let list = NetworkList::load(&self.config.conf_dir)?;
        // If a plugin is missing, none is run: what the others set up could not be removed.
        for plugin in list.plugins() {
            let failed = |source| failure(Command::Add, plugin.kind(), source);
            plugin::find(plugin.kind(), &self.config.bin_dirs).map_err(failed)?;
        }
        loopback_up(netns)?;
        let mut attachment = Attachment {
            list: list.text.clone(),
            pod: pod.clone(),
            netns: netns.to_owned(),
            ports: ports.to_vec(),
            result: None,
        };
        // Recorded before the first plugin runs, so that what the plugins set up can be removed in any case.
        attachment.write(&self.config.state_dir)?;
        let mut result = None;
        for plugin in list.plugins() {
            let request = plugin.request(&list, &self.runtime(&attachment), result.as_ref());
            result = Some(self.run(Command::Add, &attachment, plugin.kind(), &request).await?);
        }
        let result = result.unwrap_or_default();
        let addresses = self.addresses_in(&result, &pod.sandbox_id)?;
        attachment.result = Some(result);
        attachment.write(&self.config.state_dir)?;
        Ok(addresses)
    }

    /// Disconnects a sandbox by running the plugins in reverse order; does nothing if it is unknown.
    pub async fn del(&self, sandbox_id: &str) -> Result<(), CniError> {
        let Some(attachment) = Attachment::read(&self.config.state_dir, sandbox_id)? else { return Ok(()) };
        // Uses the configuration that it was connected with, whatever the current one is.
        let list = NetworkList::parse(&attachment.list)?;
        for plugin in list.plugins().iter().rev() {
            let request = plugin.request(&list, &self.runtime(&attachment), attachment.result.as_ref());
            self.run(Command::Del, &attachment, plugin.kind(), &request).await?;
        }
        Attachment::remove(&self.config.state_dir, sandbox_id)
    }

    /// Returns the addresses of a connected sandbox; none if it is unknown.
    pub fn addresses(&self, sandbox_id: &str) -> Result<Vec<IpAddr>, CniError> {
        match Attachment::read(&self.config.state_dir, sandbox_id)?.and_then(|a| a.result) {
            Some(result) => self.addresses_in(&result, sandbox_id),
            None => Ok(Vec::new()),
        }
    }

    /// Disconnects every sandbox that is not in `live`.
    pub async fn retain(&self, live: &BTreeSet<String>) -> Result<(), CniError> {
        for sandbox_id in Attachment::all(&self.config.state_dir)? {
            if !live.contains(&sandbox_id) {
                self.del(&sandbox_id).await?;
            }
        }
        Ok(())
    }

    fn addresses_in(&self, result: &Value, sandbox_id: &str) -> Result<Vec<IpAddr>, CniError> {
        let addresses = result::addresses(result, POD_INTERFACE);
        if addresses.is_empty() { Err(CniError::NoAddress(sandbox_id.to_owned())) } else { Ok(addresses) }
    }

    /// Returns the runtime values for plugins with the capabilities.
    fn runtime(&self, attachment: &Attachment) -> Value {
        json!({
            "portMappings": attachment.ports,
            "ipRanges": [[{"subnet": self.config.pod_cidr.to_string()}]],
        })
    }

    async fn run(
        &self,
        command: Command,
        attachment: &Attachment,
        kind: &str,
        request: &Value,
    ) -> Result<Value, CniError> {
        let invocation = Invocation {
            command,
            container_id: &attachment.pod.sandbox_id,
            netns: &attachment.netns,
            interface: POD_INTERFACE,
            arguments: &attachment.pod.arguments(),
            paths: &self.config.bin_dirs,
        };
        invocation.run(kind, request).await.map_err(|source| failure(command, kind, source))
    }
}

fn failure(command: Command, kind: &str, source: PluginError) -> CniError {
    CniError::Plugin { plugin: kind.to_owned(), command: command.shown(), source }
}

/// Returns whether a pod network is configured; the error is the message for the node's condition.
pub fn state(conf_dir: &Path) -> Result<(), String> {
    match NetworkList::load(conf_dir) {
        Ok(_) => Ok(()),
        Err(error) => Err(format!("cni plugin not initialized: {error}")),
    }
}

fn loopback_up(netns: &Path) -> Result<(), CniError> {
    let path = || netns.to_owned();
    let namespace = File::open(netns).map_err(|source| CniError::OpenNamespace { path: path(), source })?;
    in_namespace(&namespace, || Links::open()?.set_up(LOOPBACK_INDEX))
        .map_err(|source| CniError::Namespace { path: path(), source })?
        .map_err(|source| CniError::Loopback { path: path(), source })
}
