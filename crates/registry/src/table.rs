//! The table of served resources: an immutable list that is replaced as a whole when custom resources are added or
//! removed.

use std::sync::{Arc, Mutex, PoisonError};

use arc_swap::ArcSwap;
use knarr_api::resource::Resource;
use tokio::sync::Notify;

use super::served::Served;
use crate::cache::Caches;

type Names = (&'static str, &'static str, &'static str);

/// All resources served at one time, built-in ones first, in the order of the resource table.
#[derive(Default)]
pub struct Table {
    list: Vec<Arc<Served>>,
    /// Sorted by plural, group and version; the plural differs most and is compared first.
    by_name: Vec<(Names, Arc<Served>)>,
}

fn names(served: &Served) -> Names {
    let types = &served.resource.types;
    (types.plural, types.group, types.version)
}

impl Table {
    fn new(list: Vec<Arc<Served>>) -> Self {
        let mut by_name: Vec<_> = list.iter().map(|s| (names(s), Arc::clone(s))).collect();
        // The sort is stable, so that of two entries with the same name the built-in one is kept.
        by_name.sort_by_key(|(names, _)| *names);
        by_name.dedup_by_key(|(names, _)| *names);
        Self { list, by_name }
    }

    pub fn find(&self, group: &str, version: &str, plural: &str) -> Option<&Arc<Served>> {
        let found = self.by_name.binary_search_by(|(names, _)| names.cmp(&(plural, group, version)));
        found.ok().map(|i| &self.by_name[i].1)
    }

    pub fn iter(&self) -> impl Iterator<Item = &Arc<Served>> {
        self.list.iter()
    }

    pub fn has_group_version(&self, group: &str, version: &str) -> bool {
        self.list.iter().any(|s| s.resource.types.group == group && s.resource.types.version == version)
    }
}

/// The current table. A request that reads it more than once takes a [`LiveTable::snapshot`].
pub struct LiveTable {
    current: ArcSwap<Table>,
    /// Held while the table is being replaced.
    changing: Mutex<()>,
    changed: Notify,
}

impl LiveTable {
    /// Creates a table of these built-in resources.
    pub fn new(resources: &[&'static Resource], caches: &Caches) -> Self {
        let list = resources.iter().map(|r| Arc::new(Served::built_in(r, resources, caches))).collect();
        Self {
            current: ArcSwap::from_pointee(Table::new(list)),
            changing: Mutex::default(),
            changed: Notify::new(),
        }
    }

    /// Returns the current table, which does not change for its holder.
    pub fn snapshot(&self) -> Arc<Table> {
        self.current.load_full()
    }

    pub fn find(&self, group: &str, version: &str, plural: &str) -> Option<Arc<Served>> {
        self.current.load().find(group, version, plural).cloned()
    }

    /// Finds a resource of a group in its version `v1`.
    pub fn v1(&self, group: &str, plural: &str) -> Option<Arc<Served>> {
        self.find(group, "v1", plural)
    }

    pub fn has_group_version(&self, group: &str, version: &str) -> bool {
        self.current.load().has_group_version(group, version)
    }

    /// Waits until the table has been replaced since the previous call.
    pub async fn changed(&self) {
        self.changed.notified().await;
    }

    /// Replaces all versions of one custom resource. An empty list removes it.
    pub fn replace(&self, group: &str, plural: &str, versions: Vec<Arc<Served>>) {
        let _changing = self.changing.lock().unwrap_or_else(PoisonError::into_inner);
        let before = self.current.load();
        let stays = |s: &&Arc<Served>| {
            let types = &s.resource.types;
            s.resource.custom().is_none() || (types.group, types.plural) != (group, plural)
        };
        let mut list: Vec<Arc<Served>> = before.list.iter().filter(stays).cloned().collect();
        list.extend(versions);
        self.current.store(Arc::new(Table::new(list)));
        self.changed.notify_one();
    }
}
