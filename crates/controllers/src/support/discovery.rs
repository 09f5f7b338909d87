//! Discovery of the resources that the API server serves, for controllers that work on all of them.

use std::collections::{BTreeMap, BTreeSet};

use bytes::Bytes;
use http::Method;
use knarr_api::intern;
use knarr_api::kind::ResourceType;
use knarr_client::{Client, Error, Result};
use serde::Deserialize;

const ACCEPT: &str = "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList,application/json";

/// A served resource and the verbs it supports.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Served {
    pub resource: ResourceType,
    verbs: BTreeSet<String>,
    /// Whether this is the version to use of the resource.
    preferred: bool,
}

impl Served {
    pub fn supports(&self, verb: &str) -> bool {
        self.verbs.contains(verb)
    }
}

/// The result of discovery.
#[derive(Debug, Clone, Default)]
pub struct Discovery {
    served: Vec<Served>,
    /// Group versions whose resources could not be read, with the error.
    failed: BTreeMap<String, String>,
    /// The error about a group version that does not parse.
    malformed: Option<String>,
}

impl Discovery {
    /// Reads discovery from the API server. A group version that cannot be read (an aggregated API that is down) is
    /// recorded as failed.
    pub async fn fetch(client: &Client) -> Result<Self> {
        let (core, groups) = (ask(client, "/api").await?, ask(client, "/apis").await?);
        let mut found = Self::default();
        match (core, groups) {
            (Answer::Whole(core), Answer::Whole(groups)) => {
                core.items.iter().chain(&groups.items).for_each(|group| found.add_group(group));
            }
            (_, Answer::Groups(groups)) => found.read_all(client, &groups).await,
            (Answer::Groups(_), Answer::Whole(groups)) => {
                found.read(client, "v1", true).await;
                groups.items.iter().for_each(|group| found.add_group(group));
            }
        }
        found.prefer_the_only_ones();
        Ok(found)
    }

    /// Adds a group from an aggregated discovery document.
    fn add_group(&mut self, group: &GroupDiscovery) {
        let name = group.metadata.name.as_str();
        let mut preferred = true;
        for version in &group.versions {
            let group_version =
                if name.is_empty() { version.version.clone() } else { format!("{name}/{}", version.version) };
            if version.freshness == "Stale" {
                let why = format!("stale GroupVersion discovery: {group_version}");
                self.failed.insert(group_version, why);
                continue;
            }
            let resources = version.resources.iter().filter_map(|r| {
                let kind = r.response_kind.as_ref().map(|k| k.kind.clone()).filter(|k| !k.is_empty())?;
                let (name, verbs) = (r.resource.clone(), r.verbs.clone());
                Some(Entry { name, kind, namespaced: r.scope == "Namespaced", verbs })
            });
            self.add(&group_version, &ResourceList { resources: resources.collect() }, preferred);
            // Only the first readable version is preferred.
            preferred = false;
        }
    }

    /// Reads each group version separately, from a server without aggregated discovery.
    async fn read_all(&mut self, client: &Client, groups: &GroupList) {
        self.read(client, "v1", true).await;
        for group in &groups.groups {
            let preferred = group.preferred_version.as_ref().or(group.versions.first());
            for version in &group.versions {
                let is_preferred = preferred.is_some_and(|p| p.group_version == version.group_version);
                self.read(client, &version.group_version, is_preferred).await;
            }
        }
    }

    async fn read(&mut self, client: &Client, group_version: &str, preferred: bool) {
        let path = if group_version.contains('/') { "/apis/" } else { "/api/" };
        match get::<ResourceList>(client, &format!("{path}{group_version}")).await {
            Ok(list) => self.add(group_version, &list, preferred),
            Err(error) => {
                self.failed.insert(group_version.to_owned(), error.to_string());
            }
        }
    }

    fn add(&mut self, group_version: &str, list: &ResourceList, preferred: bool) {
        let Some((group, version)) = split(group_version) else {
            self.malformed = Some(format!("unexpected GroupVersion string: {group_version}"));
            return;
        };
        for entry in list.resources.iter().filter(|r| !r.name.contains('/')) {
            let names = [group, version, &entry.kind, &entry.name].map(intern::name);
            let [Some(group), Some(version), Some(kind), Some(plural)] = names else {
                tracing::warn!(resource = entry.name, "the resource is ignored: too many distinct names");
                continue;
            };
            let resource = ResourceType { group, version, kind, plural, namespaced: entry.namespaced };
            let verbs = entry.verbs.iter().cloned().collect();
            self.served.push(Served { resource, verbs, preferred });
        }
    }

    /// Marks the first version that serves a resource as preferred if the group's preferred version does not serve
    /// it.
    fn prefer_the_only_ones(&mut self) {
        let mut covered: BTreeSet<(&str, &str)> = self
            .served
            .iter()
            .filter(|s| s.preferred)
            .map(|s| (s.resource.group, s.resource.plural))
            .collect();
        for served in &mut self.served {
            if covered.insert((served.resource.group, served.resource.plural)) {
                served.preferred = true;
            }
        }
    }

    /// Returns the resource of a kind in that version, or else in the group's preferred version.
    pub fn of_kind(&self, version: &str, kind: &str) -> Option<&ResourceType> {
        let group = version.rsplit_once('/').map_or("", |(group, _)| group);
        self.find(version, kind).or_else(|| {
            let mut preferred = self.preferred().map(|s| &s.resource);
            preferred.find(|r| r.group == group && r.kind == kind)
        })
    }

    /// Returns each resource once, in its preferred version.
    pub fn preferred(&self) -> impl Iterator<Item = &Served> {
        self.served.iter().filter(|s| s.preferred)
    }

    /// Returns the resource that serves objects of this kind and version.
    pub fn find(&self, api_version: &str, kind: &str) -> Option<&ResourceType> {
        let (group, version) = split(api_version)?;
        let mut all = self.served.iter().map(|s| &s.resource);
        all.find(|r| (r.group, r.version, r.kind) == (group, version, kind))
    }

    /// Returns whether the resource's group version could not be read, so that it may or may not exist.
    pub fn is_unknown(&self, resource: &ResourceType) -> bool {
        self.failed.contains_key(&resource.api_version())
    }

    /// Returns upstream's error text about the group versions that could not be read.
    pub fn failure(&self) -> Option<String> {
        if self.failed.is_empty() {
            return None;
        }
        let all: Vec<String> = self.failed.iter().map(|(gv, error)| format!("{gv}: {error}")).collect();
        let all = all.join(", ");
        let count = self.failed.len();
        Some(format!(
            "Discovery failed for some groups, {count} failing: unable to retrieve the complete list of server \
             APIs: {all}"
        ))
    }

    /// Returns the error about a group version that does not parse.
    pub fn malformed(&self) -> Option<&str> {
        self.malformed.as_deref()
    }
}

fn split(group_version: &str) -> Option<(&str, &str)> {
    let (group, version) = group_version.split_once('/').unwrap_or(("", group_version));
    (!version.contains('/')).then_some((group, version))
}

/// Reads aggregated discovery where the server supports it, otherwise the list of groups.
async fn ask(client: &Client, path: &str) -> Result<Answer> {
    let body = client.get_as(path.to_owned(), ACCEPT).await?;
    serde_json::from_slice(&body).map_err(|e| Error::Protocol(format!("{path}: {e}")))
}

async fn get<T: for<'de> Deserialize<'de>>(client: &Client, path: &str) -> Result<T> {
    let body = client.call(Method::GET, path.to_owned(), None, Bytes::new()).await?;
    serde_json::from_slice(&body).map_err(|e| Error::Protocol(format!("{path}: {e}")))
}

/// An answer to discovery: a document with `items` is aggregated discovery, with all resources of the groups.
#[derive(Deserialize)]
#[serde(untagged)]
enum Answer {
    Whole(GroupDiscoveryList),
    Groups(GroupList),
}

#[derive(Deserialize)]
struct GroupDiscoveryList {
    items: Vec<GroupDiscovery>,
}

#[derive(Deserialize)]
struct GroupDiscovery {
    #[serde(default)]
    metadata: GroupMeta,
    #[serde(default)]
    versions: Vec<VersionDiscovery>,
}

#[derive(Deserialize, Default)]
struct GroupMeta {
    #[serde(default)]
    name: String,
}

#[derive(Deserialize)]
struct VersionDiscovery {
    version: String,
    #[serde(default)]
    freshness: String,
    #[serde(default)]
    resources: Vec<ResourceDiscovery>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct ResourceDiscovery {
    resource: String,
    response_kind: Option<ResponseKind>,
    #[serde(default)]
    scope: String,
    #[serde(default)]
    verbs: Vec<String>,
}

#[derive(Deserialize)]
struct ResponseKind {
    #[serde(default)]
    kind: String,
}

#[derive(Deserialize)]
struct GroupList {
    #[serde(default)]
    groups: Vec<Group>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Group {
    #[serde(default)]
    versions: Vec<Version>,
    preferred_version: Option<Version>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Version {
    group_version: String,
}

#[derive(Deserialize)]
struct ResourceList {
    #[serde(default)]
    resources: Vec<Entry>,
}

#[derive(Deserialize)]
struct Entry {
    name: String,
    kind: String,
    #[serde(default)]
    namespaced: bool,
    #[serde(default)]
    verbs: Vec<String>,
}

#[cfg(test)]
mod tests {
    use super::*;

    fn list(entries: &[(&str, &str)]) -> ResourceList {
        let resources = entries.iter().map(|(name, kind)| Entry {
            name: (*name).into(),
            kind: (*kind).into(),
            namespaced: true,
            verbs: vec!["delete".into(), "list".into()],
        });
        ResourceList { resources: resources.collect() }
    }

    #[test]
    fn each_resource_is_preferred_once() {
        let mut found = Discovery::default();
        found.add("v1", &list(&[("pods", "Pod"), ("pods/status", "Pod")]), true);
        found.add("batch/v1", &list(&[("jobs", "Job")]), true);
        found.add("batch/v1beta1", &list(&[("jobs", "Job"), ("cronjobs", "CronJob")]), false);
        found.prefer_the_only_ones();
        let preferred: Vec<_> =
            found.preferred().map(|s| (s.resource.api_version(), s.resource.plural)).collect();
        let expected = [("v1", "pods"), ("batch/v1", "jobs"), ("batch/v1beta1", "cronjobs")];
        assert_eq!(preferred, expected.map(|(v, p)| (v.to_owned(), p)));
        assert_eq!(found.find("batch/v1beta1", "Job").map(|r| r.version), Some("v1beta1"));
        assert_eq!(found.find("batch/v2", "Job"), None);
        assert_eq!(found.failure(), None);
    }

    #[test]
    fn groups_are_described_whole() {
        let text = r#"{"kind": "APIGroupDiscoveryList", "items": [{"metadata": {"name": "x.io"}, "versions": [
            {"version": "v2", "freshness": "Stale", "resources": []},
            {"version": "v1", "freshness": "Current", "resources": [
                {"resource": "as", "responseKind": {"kind": "A"}, "scope": "Namespaced", "verbs": ["list"]},
                {"resource": "unnamed", "verbs": ["list"]}]}]}]}"#;
        let Answer::Whole(list) = serde_json::from_str(text).unwrap() else { panic!("not aggregated") };
        let mut found = Discovery::default();
        list.items.iter().for_each(|group| found.add_group(group));
        let preferred: Vec<_> = found.preferred().map(|s| s.resource).collect();
        let of = |version| ResourceType { group: "x.io", version, kind: "A", plural: "as", namespaced: true };
        assert_eq!(preferred, [of("v1")]);
        assert!(found.is_unknown(&of("v2")) && !found.is_unknown(&of("v1")));
        assert!(found.failure().unwrap().ends_with("x.io/v2: stale GroupVersion discovery: x.io/v2"));
    }

    #[test]
    fn failures_have_upstreams_text() {
        let mut found = Discovery::default();
        found.failed.insert("metrics.k8s.io/v1beta1".into(), "down".into());
        assert_eq!(
            found.failure().unwrap(),
            "Discovery failed for some groups, 1 failing: unable to retrieve the complete list of server APIs: \
             metrics.k8s.io/v1beta1: down"
        );
        found.add("a/b/c", &list(&[("x", "X")]), true);
        assert_eq!(found.malformed(), Some("unexpected GroupVersion string: a/b/c"));
    }
}
