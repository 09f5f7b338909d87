//! Keeps the plugins registered whose sockets are there.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use knarr_apimachinery::clock::Clock;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

use super::PluginHandler;
use super::registration::{Handlers, register};
use super::sockets::{Identity, Sockets};

const FIRST_PAUSE: Duration = Duration::from_millis(500);
const LONGEST_PAUSE: Duration = Duration::from_secs(122);

/// Looks after the registry folder.
pub struct PluginManager {
    folder: PathBuf,
    handlers: Arc<Handlers>,
    clock: Arc<dyn Clock>,
}

/// A socket that is looked after.
struct Served {
    identity: Identity,
    gone: CancellationToken,
    task: JoinHandle<()>,
}

impl PluginManager {
    pub fn new(folder: PathBuf, handlers: Vec<Arc<dyn PluginHandler>>, clock: Arc<dyn Clock>) -> Self {
        let handlers = handlers.into_iter().map(|handler| (handler.kind(), handler)).collect();
        Self { folder, handlers: Arc::new(handlers), clock }
    }

    /// Works until `stop`; plugins stay registered then.
    pub async fn run(self, stop: CancellationToken) {
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

    /// Ends what has gone or was replaced, begins what is new.
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
                // The old one is gone before a new one of its name comes.
                if let Err(error) = old.task.await {
                    tracing::warn!(socket = %path.display(), %error, "looking after a plugin failed");
                }
            }
        }
        for (path, identity) in found {
            served.entry(path.clone()).or_insert_with(|| {
                let gone = CancellationToken::new();
                let (handlers, clock) = (Arc::clone(&self.handlers), Arc::clone(&self.clock));
                let task = tokio::spawn(serve(path, handlers, clock, gone.clone(), stop.clone()));
                Served { identity, gone, task }
            });
        }
    }
}

/// One socket from its appearance to its end.
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
            Err(error) => tracing::warn!(socket = %socket.display(), error, "plugin not registered"),
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
