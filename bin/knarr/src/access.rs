//! Asks the API server which user it takes this process for, and what that user may do.

use std::path::Path;
use std::sync::Arc;

use anyhow::{Context, Result, bail};
use k8s_openapi::api::authentication::v1::SelfSubjectReview;
use k8s_openapi::api::authorization::v1::{
    ResourceAttributes, SelfSubjectAccessReview, SelfSubjectAccessReviewSpec,
};
use knarr_api::certificates::signers::{NODE_USER_PREFIX, NODES_GROUP};
use knarr_apimachinery::clock::Clock;
use knarr_client::http::HttpTransport;
use knarr_client::kubeconfig::Access;
use knarr_client::{Client, Error};

/// A user as the API server authenticated it.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct User {
    pub name: String,
    pub groups: Vec<String>,
}

impl User {
    /// Returns the node's name if the user is a node.
    pub fn node(&self) -> Option<&str> {
        let node = self.name.strip_prefix(NODE_USER_PREFIX).filter(|n| !n.is_empty());
        node.filter(|_| self.groups.iter().any(|g| g == NODES_GROUP))
    }
}

pub fn client(access: &Access, clock: &Arc<dyn Clock>, manager: &str) -> Result<Client> {
    let transport = HttpTransport::new(access).context("cannot use the kubeconfig")?;
    Ok(Client::new(Arc::new(transport), Arc::clone(clock), manager))
}

/// Asks the API server which user the client's credentials belong to.
pub async fn who_am_i(client: &Client) -> Result<User, Error> {
    let review: SelfSubjectReview = client.create(&SelfSubjectReview::default()).await?;
    let info = review.status.and_then(|s| s.user_info).unwrap_or_default();
    Ok(User { name: info.username.unwrap_or_default(), groups: info.groups.unwrap_or_default() })
}

/// Explains why the first request failed, and what to do about it.
pub fn explained(error: Error, access: &Access, file: &Path) -> anyhow::Error {
    let file = file.display();
    let advice = match &error {
        Error::Connection { .. } if is_loopback(&access.server) => format!(
            "{file} names this machine itself as server: is `knarr server` running here? For another machine write \
             one with `knarr kubeconfig --node NAME --server https://ADDRESS:6443`"
        ),
        Error::Connection { .. } => {
            format!("check that the server runs, and that {} is reachable from here", access.server)
        }
        Error::Status(status) if status.code() == 401 => {
            format!(
                "the server does not accept the credentials in {file}: they are expired, or of another cluster"
            )
        }
        Error::Status(status) if status.code() == 403 => format!("the user of {file} may do next to nothing"),
        _ => format!("{file} does not lead to a Kubernetes API server"),
    };
    anyhow::Error::new(error).context(advice)
}

fn is_loopback(server: &str) -> bool {
    let rest = server.trim_start_matches("https://");
    rest.starts_with("127.") || rest.starts_with("localhost") || rest.starts_with("[::1]")
}

/// Asks the API server whether the client may do this in all namespaces.
pub async fn may(client: &Client, verb: &str, group: &str, resource: &str) -> Result<bool> {
    let attributes = ResourceAttributes {
        group: Some(group.to_owned()),
        resource: Some(resource.to_owned()),
        verb: Some(verb.to_owned()),
        ..ResourceAttributes::default()
    };
    let spec = SelfSubjectAccessReviewSpec { resource_attributes: Some(attributes), ..Default::default() };
    let review = SelfSubjectAccessReview { spec, ..SelfSubjectAccessReview::default() };
    let review = client.create(&review).await.context("cannot ask what this access may do")?;
    Ok(review.status.is_some_and(|s| s.allowed))
}

/// Fails if the node may not read what the service proxy, the name server and the routes need.
pub async fn check_rights(client: &Client, node: &str) -> Result<()> {
    for (group, resource) in [("", "services"), ("", "nodes"), ("discovery.k8s.io", "endpointslices")] {
        if !may(client, "list", group, resource).await? {
            bail!(
                "node {node} may not list {resource}, which service proxy and routes need: let nodes with `kubectl \
                 create clusterrolebinding knarr:node-proxier --clusterrole system:node-proxier --group {NODES_GROUP}`"
            );
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use knarr_apimachinery::status::StatusError;

    #[test]
    fn nodes_are_known_by_name_and_group() {
        let user = |name: &str, group: &str| User { name: name.into(), groups: vec![group.into()] };
        assert_eq!(user("system:node:a", "system:nodes").node(), Some("a"));
        assert_eq!(user("system:node:a", "others").node(), None);
        assert_eq!(user("system:node:", "system:nodes").node(), None);
        assert_eq!(user("admin", "system:nodes").node(), None);
    }

    #[test]
    fn failures_say_what_to_do() {
        let unreachable = |server: &str| {
            let error = Error::Connection { server: server.into(), source: "refused".into() };
            let access = Access { server: server.into(), ..Access::default() };
            format!("{:#}", explained(error, &access, Path::new("f")))
        };
        assert!(unreachable("https://127.0.0.1:6443").contains("knarr kubeconfig --node NAME"));
        let far = unreachable("https://10.0.0.1:6443");
        assert!(far.contains("https://10.0.0.1:6443 is reachable") && far.ends_with(": refused"), "{far}");
        let refused = Error::Status(StatusError::new(401, "Unauthorized", "Unauthorized"));
        let words = format!("{:#}", explained(refused, &Access::default(), Path::new("f")));
        assert!(words.starts_with("the server does not accept the credentials in f"), "{words}");
    }
}
