//! The handshake with a plugin: the kubelet asks it for its description, and notifies it of the result.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use knarr_apimachinery::clock::Clock;
use knarr_grpc::{CallError, Connection};

use super::messages::{
    GET_INFO, InfoRequest, NOTIFY_REGISTRATION_STATUS, PluginInfo, RegistrationStatus,
    RegistrationStatusResponse,
};
use super::{Plugin, PluginHandler};

const DIAL_TIMEOUT: Duration = Duration::from_secs(10);
const INFO_TIMEOUT: Duration = Duration::from_secs(1);
const NOTIFY_TIMEOUT: Duration = Duration::from_secs(5);

/// Handlers by the type of their plugins.
pub type Handlers = BTreeMap<&'static str, Arc<dyn PluginHandler>>;

/// A registered plugin and its handler.
pub struct Registered {
    pub plugin: Plugin,
    pub handler: Arc<dyn PluginHandler>,
}

/// Carries out the whole handshake on a socket; the error text is for the log.
pub async fn register(
    socket: &Path,
    handlers: &Handlers,
    clock: &Arc<dyn Clock>,
) -> Result<Registered, String> {
    let at = socket.display();
    let connected = within(clock, DIAL_TIMEOUT, Connection::unix(socket)).await;
    let connection =
        connected.map_err(|e| format!("RegisterPlugin error -- dial failed at socket {at}, err: {e}"))?;
    let asked = connection.unary::<PluginInfo>(GET_INFO, &InfoRequest {});
    let info = within(clock, INFO_TIMEOUT, asked).await.map_err(|e| {
        format!(
            "RegisterPlugin error -- failed to get plugin info using RPC GetInfo at socket {at}, err: {e}"
        )
    })?;
    let Some(handler) = handlers.get(info.kind.as_str()) else {
        let text = format!(
            "RegisterPlugin error -- no handler registered for plugin type: {} at socket {at}",
            info.kind
        );
        return Err(refuse(&connection, clock, text).await);
    };
    let plugin = plugin(info, socket);
    if let Err(why) = handler.validate(&plugin) {
        let text = format!("RegisterPlugin error -- plugin validation failed with err: {why}");
        return Err(refuse(&connection, clock, text).await);
    }
    if let Err(why) = handler.register(&plugin).await {
        let text = format!("RegisterPlugin error -- plugin registration failed with err: {why}");
        return Err(refuse(&connection, clock, text).await);
    }
    if let Err(error) = notify(&connection, clock, String::new()).await {
        handler.deregister(&plugin).await;
        return Err(format!(
            "RegisterPlugin error -- failed to send registration status at socket {at}, err: {error}"
        ));
    }
    Ok(Registered { plugin, handler: Arc::clone(handler) })
}

fn plugin(info: PluginInfo, socket: &Path) -> Plugin {
    let endpoint = if info.endpoint.is_empty() { socket.to_owned() } else { PathBuf::from(info.endpoint) };
    Plugin { name: info.name, endpoint, versions: info.supported_versions }
}

/// Notifies the plugin of the error; returns the text for the log.
async fn refuse(connection: &Connection, clock: &Arc<dyn Clock>, text: String) -> String {
    match notify(connection, clock, text.clone()).await {
        Ok(()) => text,
        Err(error) => format!("{text}: {error}"),
    }
}

async fn notify(connection: &Connection, clock: &Arc<dyn Clock>, error: String) -> Result<(), String> {
    let status = RegistrationStatus { plugin_registered: error.is_empty(), error };
    let notified = connection.unary::<RegistrationStatusResponse>(NOTIFY_REGISTRATION_STATUS, &status);
    within(clock, NOTIFY_TIMEOUT, notified).await.map(drop)
}

async fn within<T>(
    clock: &Arc<dyn Clock>,
    time: Duration,
    call: impl Future<Output = Result<T, CallError>>,
) -> Result<T, String> {
    tokio::select! {
        result = call => result.map_err(|e| e.to_string()),
        () = clock.sleep(time) => Err("context deadline exceeded".to_owned()),
    }
}
