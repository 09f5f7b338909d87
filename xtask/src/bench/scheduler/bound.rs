//! Records when pods are bound, with a watch of the pods that have a node.

use std::collections::HashMap;
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};

use crate::http::Access;

/// Only the metadata of pods is requested: what the watch costs the server is part of the measurement.
const METADATA: &str = "application/json;as=PartialObjectMetadata;g=meta.k8s.io;v=v1";
/// How often a watch may end before that is an error.
const RESTARTS: usize = 1000;
const PATH: &str = "/api/v1/pods?watch=true&fieldSelector=spec.nodeName%21%3D&resourceVersion=";

#[derive(Default)]
struct Seen {
    /// By `namespace/name`.
    pods: HashMap<String, Instant>,
    failed: Option<String>,
}

/// The pods that were bound since the watch began.
#[derive(Clone, Default)]
pub struct Bound {
    seen: Arc<(Mutex<Seen>, Condvar)>,
}

impl Bound {
    /// Begins to watch, from now on.
    pub fn watch(access: &Access) -> Result<Self> {
        let list = access.connect()?.json("GET", "/api/v1/pods?limit=1&resourceVersion=0", None)?;
        let version = list["metadata"]["resourceVersion"].as_str().context("a resourceVersion")?.to_owned();
        let own = Self::default();
        own.follow(access, &version)?;
        Ok(own)
    }

    /// Watches from the beginning: the pods that are bound already count as bound now.
    pub fn since_start(access: &Access) -> Result<Self> {
        let own = Self::default();
        own.follow(access, "0")?;
        Ok(own)
    }

    fn follow(&self, access: &Access, version: &str) -> Result<()> {
        let mut watch = access.connect()?.watch_as(&format!("{PATH}{version}"), METADATA)?;
        let (own, access, mut version) = (self.clone(), access.clone(), version.to_owned());
        std::thread::spawn(move || {
            for _ in 0..RESTARTS {
                // An API server may end a watch at any time, and kube-apiserver does so under load: the watch
                // resumes at its revision.
                while let Ok(event) = watch.next() {
                    version = own.take(&event).unwrap_or_else(|| "0".to_owned());
                    if version == "0" {
                        break;
                    }
                }
                match access.connect().and_then(|c| c.watch_as(&format!("{PATH}{version}"), METADATA)) {
                    Ok(anew) => watch = anew,
                    Err(error) => return own.fail(format!("{error:#}")),
                }
            }
            own.fail("it ended again and again".to_owned());
        });
        Ok(())
    }

    /// Records an event; returns its resourceVersion, or `None` for an error, after which the watch must
    /// start again.
    fn take(&self, event: &serde_json::Value) -> Option<String> {
        let metadata = &event["object"]["metadata"];
        let text = |key: &str| metadata[key].as_str().unwrap_or_default();
        match event["type"].as_str() {
            Some("ADDED" | "MODIFIED") => {
                let name = format!("{}/{}", text("namespace"), text("name"));
                let now = Instant::now();
                let (seen, changed) = &*self.seen;
                seen.lock().unwrap_or_else(PoisonError::into_inner).pods.entry(name).or_insert(now);
                changed.notify_all();
            }
            Some("ERROR") | None => return None,
            Some(_) => {}
        }
        Some(text("resourceVersion").to_owned())
    }

    fn fail(&self, why: String) {
        let (seen, changed) = &*self.seen;
        seen.lock().unwrap_or_else(PoisonError::into_inner).failed = Some(why);
        changed.notify_all();
    }

    /// Waits until all of these pods are bound; returns the time at which each was bound. Fails if no further pod
    /// is bound for `patience`.
    pub fn wait(&self, names: &[String], patience: Duration) -> Result<Vec<Instant>> {
        let (seen, changed) = &*self.seen;
        let mut seen = seen.lock().unwrap_or_else(PoisonError::into_inner);
        // The pods up to this index are bound, and not checked again.
        let (mut times, mut last) = (Vec::with_capacity(names.len()), Instant::now());
        loop {
            let before = times.len();
            while let Some(at) = names.get(times.len()).and_then(|name| seen.pods.get(name)) {
                times.push(*at);
            }
            if times.len() == names.len() {
                return Ok(times);
            }
            if let Some(why) = &seen.failed {
                bail!("the watch of bound pods ended: {why}");
            }
            if times.len() > before {
                last = Instant::now();
            } else if last.elapsed() > patience {
                bail!("{} of {} pods are bound, and no more for {patience:?}", times.len(), names.len());
            }
            seen =
                changed.wait_timeout(seen, Duration::from_secs(1)).unwrap_or_else(PoisonError::into_inner).0;
        }
    }
}
