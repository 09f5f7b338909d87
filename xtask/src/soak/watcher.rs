//! A watcher that follows one resource across lost connections, and records every event.

use std::sync::atomic::Ordering;

use anyhow::{Context, Result};
use fastrand::Rng;
use serde_json::Value;

use super::client::{BACK_OFF, Shared};
use super::history::{Change, Event, Revision, Stream};
use super::objects::{self, Resource};
use crate::http::Refused;

/// The name of the objects that are written last.
pub const FENCE: &str = "fence";

/// What a watcher saw.
#[derive(Default)]
pub struct Seen {
    pub streams: Vec<Stream>,
    /// How many times the revision to resume at was too old.
    pub expired: usize,
    /// Whether the last write of the round was seen.
    pub fence: bool,
}

pub struct Watcher<'a> {
    pub id: u32,
    pub shared: &'a Shared,
    pub resource: &'static Resource,
    /// Whether it closes its connections by itself, and resumes at any earlier point.
    pub hops: bool,
}

/// A revision that was current, and how many times the server had been started by then.
type Point = (Revision, u64);

enum Line {
    Event(Event),
    /// An event of an object that the soak did not write: only its revision matters.
    Foreign(Revision),
    Expired,
    /// An error, which ends the stream.
    Ended,
}

impl Watcher<'_> {
    /// Follows the resource from a revision until the fence, or until all give up.
    pub fn run(&self, from: Revision, mut rng: Rng) -> Seen {
        let generation = self.shared.generation.load(Ordering::Relaxed);
        let mut points: Vec<Point> = vec![(from, generation)];
        let mut seen = Seen::default();
        while !seen.fence && !self.shared.give_up.load(Ordering::Relaxed) {
            let hops = self.hops && !self.shared.stop.load(Ordering::Relaxed);
            let at = if hops { rng.usize(..points.len()) } else { points.len() - 1 };
            let most = if hops { rng.usize(1..60) } else { usize::MAX };
            if self.stream(points[at], most, &mut points, &mut seen).is_err() {
                std::thread::sleep(BACK_OFF);
            }
        }
        seen
    }

    fn stream(&self, from: Point, most: usize, points: &mut Vec<Point>, seen: &mut Seen) -> Result<()> {
        let collection = self.resource.path(Some(&self.shared.namespace));
        let path = format!("{collection}?watch=true&allowWatchBookmarks=true&resourceVersion={}", from.0);
        let generation = self.shared.generation.load(Ordering::Relaxed);
        let mut watch = match self.shared.access.connect()?.watch(&path) {
            Err(error) if error.downcast_ref::<Refused>().is_some_and(|r| r.code == 410) => {
                return self.expired(points, seen);
            }
            other => other?,
        };
        seen.streams.push(Stream {
            watcher: self.id,
            resource: self.resource.plural.into(),
            from: from.0,
            older_than_server: from.1 != generation,
            events: Vec::new(),
        });
        let stream = seen.streams.len() - 1;
        for _ in 0..most {
            // A connection without events ends here, too.
            let Ok(line) = watch.next() else { break };
            match self.line(&line)? {
                Line::Event(event) => {
                    points.push((event.revision(), generation));
                    seen.fence |= matches!(&event, Event::Changed { key, .. } if key.contains(FENCE));
                    seen.streams[stream].events.push(event);
                }
                Line::Foreign(revision) => points.push((revision, generation)),
                Line::Expired => return self.expired(points, seen),
                Line::Ended => break,
            }
            if seen.fence {
                break;
            }
        }
        Ok(())
    }

    fn line(&self, line: &Value) -> Result<Line> {
        let object = &line["object"];
        let change = match line["type"].as_str() {
            Some("ADDED") => Change::Added,
            Some("MODIFIED") => Change::Modified,
            Some("DELETED") => Change::Deleted,
            Some("BOOKMARK") => {
                let revision = objects::revision(object).context("a bookmark without a resourceVersion")?;
                return Ok(Line::Event(Event::Bookmark(revision)));
            }
            _ => return Ok(if object["code"] == 410 { Line::Expired } else { Line::Ended }),
        };
        let Some(state) = objects::state(object) else {
            return Ok(Line::Foreign(
                objects::revision(object).context("an event without a resourceVersion")?,
            ));
        };
        Ok(Line::Event(Event::Changed { change, key: self.resource.key(objects::name(object)), state }))
    }

    /// Starts again from a list of the present state.
    fn expired(&self, points: &mut Vec<Point>, seen: &mut Seen) -> Result<()> {
        let generation = self.shared.generation.load(Ordering::Relaxed);
        let path = self.resource.path(Some(&self.shared.namespace));
        let list = self.shared.access.connect()?.json("GET", &path, None)?;
        *points = vec![(objects::revision(&list).context("a list without a resourceVersion")?, generation)];
        seen.expired += 1;
        Ok(())
    }
}
