//! Registers plugins whose sockets appear, and deregisters those whose sockets are removed.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::BoxFuture;
use knarr_apimachinery::clock::Clock;
use knarr_client::Supervisor;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

use super::PluginHandler;
use super::registration::{Handlers, register};
use super::sockets::{Identity, Sockets};

const FIRST_PAUSE: Duration = Duration::from_millis(500);
const LONGEST_PAUSE: Duration = Duration::from_secs(122);

/// Follows the registry folder.
pub struct PluginManager {
    folder: PathBuf,
    handlers: Arc<Handlers>,
    clock: Arc<dyn Clock>,
    supervisor: Supervisor,
}

/// A socket whose plugin has a task.
struct Served {
    identity: Identity,
    gone: CancellationToken,
    task: JoinHandle<()>,
}

impl PluginManager {
    /// Creates the manager. Each plugin has a task of the supervisor.
    pub fn new(
        folder: PathBuf,
        handlers: Vec<Arc<dyn PluginHandler>>,
        clock: Arc<dyn Clock>,
        supervisor: Supervisor,
    ) -> Arc<Self> {
        let handlers = handlers.into_iter().map(|handler| (handler.kind(), handler)).collect();
        Arc::new(Self { folder, handlers: Arc::new(handlers), clock, supervisor })
    }

    /// Runs until `stop` is cancelled; plugins stay registered then.
    pub fn run(self: Arc<Self>, stop: CancellationToken) -> BoxFuture<'static, ()> {
        Box::pin(self.work(stop))
    }

    async fn work(self: Arc<Self>, stop: CancellationToken) {
        let mut pause = FIRST_PAUSE;
        let mut served = BTreeMap::new();
        loop {
            match self.watch(&mut served, &stop).await {
                Ok(()) => return,
                Err(error) => {
                    tracing::warn!(folder = %self.folder.display(), %error, "cannot watch for plugins");
                    tokio::select! {
                        () = stop.cancelled() => return,
                        () = self.clock.sleep(pause) => pause = (pause * 2).min(LONGEST_PAUSE),
                    }
                }
            }
        }
    }

    async fn watch(
        &self,
        served: &mut BTreeMap<PathBuf, Served>,
        stop: &CancellationToken,
    ) -> std::io::Result<()> {
        let mut sockets = Sockets::open(self.folder.clone())?;
        loop {
            self.follow(served, sockets.look()?.sockets, stop).await;
            tokio::select! {
                () = stop.cancelled() => return Ok(()),
                changed = sockets.changed() => changed?,
            }
        }
    }

    /// Ends the tasks of removed or replaced sockets, and starts those of new ones.
    async fn follow(
        &self,
        served: &mut BTreeMap<PathBuf, Served>,
        found: BTreeMap<PathBuf, Identity>,
        stop: &CancellationToken,
    ) {
        let over: Vec<PathBuf> = served
            .iter()
            .filter(|(path, s)| found.get(*path) != Some(&s.identity))
            .map(|(p, _)| p.clone())
            .collect();
        for path in over {
            if let Some(old) = served.remove(&path) {
                old.gone.cancel();
                // The old plugin is deregistered before a new one of its name is registered.
                if let Err(error) = old.task.await {
                    tracing::warn!(socket = %path.display(), %error, "the task of a plugin failed");
                }
            }
        }
        for (path, identity) in found {
            served.entry(path.clone()).or_insert_with(|| {
                let gone = CancellationToken::new();
                let (handlers, clock) = (Arc::clone(&self.handlers), Arc::clone(&self.clock));
                let until = gone.clone();
                let task = self.supervisor.run_until_done("plugin-registration", stop.clone(), move |stop| {
                    serve(path.clone(), Arc::clone(&handlers), Arc::clone(&clock), until.clone(), stop)
                });
                let task = tokio::spawn(task);
                Served { identity, gone, task }
            });
        }
    }
}

/// Handles one socket from its appearance to its removal.
async fn serve(
    socket: PathBuf,
    handlers: Arc<Handlers>,
    clock: Arc<dyn Clock>,
    gone: CancellationToken,
    stop: CancellationToken,
) {
    let mut pause = FIRST_PAUSE;
    let registered = loop {
        match register(&socket, &handlers, &clock).await {
            Ok(registered) => break registered,
            Err(error) => tracing::warn!(socket = %socket.display(), error, "cannot register the plugin"),
        }
        tokio::select! {
            () = gone.cancelled() => return,
            () = stop.cancelled() => return,
            () = clock.sleep(pause) => pause = (pause * 2).min(LONGEST_PAUSE),
        }
    };
    tracing::info!(plugin = registered.plugin.name, socket = %socket.display(), "plugin registered");
    tokio::select! {
        () = stop.cancelled() => {}
        () = gone.cancelled() => {
            registered.handler.deregister(&registered.plugin).await;
            tracing::info!(plugin = registered.plugin.name, "plugin deregistered");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plugins::Plugin;
    use crate::plugins::messages::{PluginInfo, RegistrationStatus, RegistrationStatusResponse};
    use async_trait::async_trait;
    use knarr_client::clock::SystemClock;
    use knarr_grpc::Answer;
    use prost::Message;
    use std::path::Path;
    use std::sync::Mutex;
    use tokio::net::UnixListener;

    type Log = Arc<Mutex<Vec<String>>>;

    fn note(log: &Log, line: String) {
        log.lock().unwrap().push(line);
    }

    struct Handler(Log);

    #[async_trait]
    impl PluginHandler for Handler {
        fn kind(&self) -> &'static str {
            "CSIPlugin"
        }

        fn validate(&self, plugin: &Plugin) -> Result<(), String> {
            if plugin.versions.is_empty() { Err("no version".to_owned()) } else { Ok(()) }
        }

        async fn register(&self, plugin: &Plugin) -> Result<(), String> {
            note(&self.0, format!("register {} {}", plugin.name, plugin.endpoint.display()));
            Ok(())
        }

        async fn deregister(&self, plugin: &Plugin) {
            note(&self.0, format!("deregister {}", plugin.name));
        }
    }

    /// A plugin that records the kubelet's calls in the log.
    fn plugin(socket: &Path, info: PluginInfo, log: &Log) -> JoinHandle<()> {
        let (listener, log) = (UnixListener::bind(socket).unwrap(), Arc::clone(log));
        let call = move |path: String, message: bytes::Bytes| {
            let (info, log) = (info.clone(), Arc::clone(&log));
            async move {
                if path.ends_with("/GetInfo") {
                    return Answer::new(Ok(info));
                }
                let status = RegistrationStatus::decode(message).unwrap();
                note(&log, format!("told {} {} {}", info.name, status.plugin_registered, status.error));
                Answer::new(Ok(RegistrationStatusResponse {}))
            }
        };
        tokio::spawn(knarr_grpc::serve(listener, call))
    }

    fn info(kind: &str, name: &str, endpoint: &str, versions: &[&str]) -> PluginInfo {
        PluginInfo {
            kind: kind.to_owned(),
            name: name.to_owned(),
            endpoint: endpoint.to_owned(),
            supported_versions: versions.iter().map(|v| (*v).to_owned()).collect(),
        }
    }

    async fn until(log: &Log, line: &str) {
        for _ in 0..1000 {
            if log.lock().unwrap().iter().any(|l| l == line) {
                return;
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        panic!("never {line:?}: {:?}", log.lock().unwrap());
    }

    #[tokio::test]
    async fn plugins_register_and_go_with_their_sockets() {
        let folder = std::env::temp_dir().join(format!("knarr-registry-{:016x}", fastrand::u64(..)));
        std::fs::create_dir_all(&folder).unwrap();
        let (log, stop): (Log, _) = (Log::default(), CancellationToken::new());
        let early = folder.join("early.sock");
        let first = plugin(&early, info("CSIPlugin", "early", "/run/early", &["1.0.0"]), &log);
        let handler: Arc<dyn PluginHandler> = Arc::new(Handler(Arc::clone(&log)));
        let supervisor = Supervisor::new(Arc::new(SystemClock));
        let manager = PluginManager::new(folder.clone(), vec![handler], Arc::new(SystemClock), supervisor);
        let running = tokio::spawn(manager.run(stop.clone()));
        until(&log, "told early true ").await;
        until(&log, "register early /run/early").await;

        let own = folder.join("own.sock");
        let _own = plugin(&own, info("CSIPlugin", "own", "", &["1.0.0"]), &log);
        until(&log, &format!("register own {}", own.display())).await;
        let strange = folder.join("strange.sock");
        let _strange = plugin(&strange, info("Other", "strange", "", &["1.0.0"]), &log);
        let at = strange.display();
        until(
            &log,
            &format!(
                "told strange false RegisterPlugin error -- no handler registered for plugin type: Other at socket {at}"
            ),
        )
        .await;
        let _bare = plugin(&folder.join("bare.sock"), info("CSIPlugin", "bare", "", &[]), &log);
        until(&log, "told bare false RegisterPlugin error -- plugin validation failed with err: no version")
            .await;

        // A replaced plugin is deregistered before the new one is registered.
        first.abort();
        std::fs::remove_file(&early).unwrap();
        let _second = plugin(&early, info("CSIPlugin", "later", "/run/later", &["1.0.0"]), &log);
        until(&log, "told later true ").await;
        until(&log, "deregister early").await;
        stop.cancel();
        running.await.unwrap();
        assert!(!log.lock().unwrap().iter().any(|l| l == "deregister own"), "a stop deregisters nothing");
        std::fs::remove_dir_all(&folder).unwrap();
    }
}
