//! `projected` volumes: ConfigMaps, Secrets, fields of the pod, tokens and certificates in one folder.

use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use k8s_openapi::api::core::v1::{
    ClusterTrustBundleProjection, ConfigMap, ConfigMapProjection, Container, Pod, PodCertificateProjection,
    Secret, SecretProjection, ServiceAccountTokenProjection, Volume, VolumeProjection,
};

use super::content::{self, Medium};
use super::error::{Error, Result};
use super::payload::{self, DEFAULT_MODE, FileProjection, Payload};
use super::plugin::{Ready, SetUp, VolumePlugin};
use super::pod_certificates::Place;
use knarr_api::kind::Kind;

/// The mode of a token: only its owner, or the pod's group, may read it.
const PRIVATE_MODE: u32 = 0o600;

pub struct ProjectedPlugin;

#[async_trait]
impl VolumePlugin for ProjectedPlugin {
    fn name(&self) -> &'static str {
        "projected"
    }

    fn supports(&self, volume: &Volume) -> bool {
        volume.projected.is_some()
    }

    fn refreshes(&self) -> bool {
        true
    }

    async fn set_up(&self, task: &SetUp<'_>) -> Result<Ready> {
        let Some(projected) = &task.volume.projected else {
            return Err(Error::failed("Spec does not reference a projected volume type"));
        };
        let mode = projected.default_mode.unwrap_or(DEFAULT_MODE);
        let (mut files, mut causes, mut renew_after) = (Payload::new(), Vec::new(), None);
        let mut room = payload::Room::default();
        for (at, source) in projected.sources.as_deref().unwrap_or_default().iter().enumerate() {
            match collect(task, at, source, mode).await {
                Ok((more, renew)) => {
                    room.take_all(&more)?;
                    files.extend(more);
                    renew_after = earlier(renew_after, renew);
                }
                Err(error) => causes.push(error.to_string()),
            }
        }
        if let Some(error) = Error::aggregate(causes) {
            return Err(error);
        }
        content::write(task, files, Medium::Memory, renew_after).await
    }
}

fn earlier(a: Option<Duration>, b: Option<Duration>) -> Option<Duration> {
    match (a, b) {
        (Some(a), Some(b)) => Some(a.min(b)),
        (a, b) => a.or(b),
    }
}

async fn collect(
    task: &SetUp<'_>,
    at: usize,
    source: &VolumeProjection,
    mode: i32,
) -> Result<(Payload, Option<Duration>)> {
    if let Some(secret) = &source.secret {
        return Ok((from_secret(task, secret, mode).await?, None));
    }
    if let Some(config_map) = &source.config_map {
        return Ok((from_config_map(task, config_map, mode).await?, None));
    }
    if let Some(downward) = &source.downward_api {
        let items = downward.items.as_deref().unwrap_or_default();
        let files = payload::downward_api(task.pod, items, mode, &task.host.options.allocatable)?;
        return Ok((files, None));
    }
    if let Some(token) = &source.service_account_token {
        let (files, renew) = from_token(task, token, mode).await?;
        return Ok((files, Some(renew)));
    }
    if let Some(bundle) = &source.cluster_trust_bundle {
        return Ok((from_trust_bundle(task, bundle, mode).await?, None));
    }
    if let Some(certificate) = &source.pod_certificate {
        let (files, renew) = from_pod_certificate(task, at, certificate, mode).await?;
        return Ok((files, Some(renew)));
    }
    Ok((Payload::new(), None))
}

async fn from_secret(task: &SetUp<'_>, source: &SecretProjection, mode: i32) -> Result<Payload> {
    let optional = source.optional.unwrap_or(false);
    let object = match task.host.objects.secret(task.namespace(), &source.name).await {
        Err(error) if optional && error.is_not_found() => Secret::default().into(),
        other => other?,
    };
    payload::secret(&object, source.items.as_deref(), mode, optional)
}

async fn from_config_map(task: &SetUp<'_>, source: &ConfigMapProjection, mode: i32) -> Result<Payload> {
    let optional = source.optional.unwrap_or(false);
    let object = match task.host.objects.config_map(task.namespace(), &source.name).await {
        Err(error) if optional && error.is_not_found() => ConfigMap::default().into(),
        other => other?,
    };
    payload::config_map(&object, source.items.as_deref(), mode, optional)
}

async fn from_token(
    task: &SetUp<'_>,
    source: &ServiceAccountTokenProjection,
    mode: i32,
) -> Result<(Payload, Duration)> {
    let audience = source.audience.as_deref().filter(|a| !a.is_empty());
    let token = task.host.tokens.get(task.pod, audience, source.expiration_seconds).await?;
    let file = private(task, token.token.into_bytes(), mode);
    Ok((Payload::from([(source.path.clone(), file)]), token.renew_after))
}

async fn from_trust_bundle(
    task: &SetUp<'_>,
    source: &ClusterTrustBundleProjection,
    mode: i32,
) -> Result<Payload> {
    let optional = source.optional.unwrap_or(false);
    let (bundles, uid) = (&task.host.trust_bundles, task.pod.uid());
    let anchors = match (&source.name, &source.signer_name) {
        (Some(name), _) => bundles.by_name(uid, name, optional).await?,
        (None, Some(signer)) => {
            bundles.by_signer(uid, signer, source.label_selector.as_ref(), optional).await?
        }
        (None, None) => {
            let neither = "ClusterTrustBundle projection requires either name or signerName to be set";
            return Err(Error::failed(neither));
        }
    };
    Ok(Payload::from([(source.path.clone(), private(task, anchors, mode))]))
}

async fn from_pod_certificate(
    task: &SetUp<'_>,
    at: usize,
    source: &PodCertificateProjection,
    mode: i32,
) -> Result<(Payload, Duration)> {
    let place = Place { volume: &task.volume.name, source: at };
    let credential = task.host.pod_certificates.get(task.pod, place, source).await?;
    let bundle = [credential.key.as_slice(), credential.chain.as_slice()].concat();
    let mut files = Payload::new();
    for (path, data) in [
        (&source.credential_bundle_path, bundle),
        (&source.key_path, credential.key),
        (&source.certificate_chain_path, credential.chain),
    ] {
        if let Some(path) = path.as_ref().filter(|p| !p.is_empty()) {
            files.insert(path.clone(), private(task, data, mode));
        }
    }
    Ok((files, credential.renew_after))
}

/// Returns a file that belongs to the user of the pod's containers, if all run as one user, or to the pod's group.
fn private(task: &SetUp<'_>, data: impl Into<Bytes>, mode: i32) -> FileProjection {
    let uid = common_user(task.pod);
    let private = uid.is_some() || task.fs_group().is_some();
    let mode = if private { PRIVATE_MODE } else { (mode as u32) & 0o777 };
    FileProjection { data: data.into(), mode, uid }
}

/// Returns the user that all containers run as, if the spec sets the same one for each.
fn common_user(pod: &Pod) -> Option<u32> {
    let spec = pod.spec.as_ref()?;
    let of_pod = spec.security_context.as_ref().and_then(|c| c.run_as_user);
    let user_of = |c: &Container| c.security_context.as_ref().and_then(|s| s.run_as_user).or(of_pod);
    let mut users = spec.containers.iter().chain(spec.init_containers.iter().flatten()).map(user_of);
    let first = users.next()??;
    users.all(|user| user == Some(first)).then_some(first).and_then(|user| u32::try_from(user).ok())
}

#[cfg(test)]
mod tests {
    use super::*;
    use k8s_openapi::api::core::v1::{PodSecurityContext, PodSpec, SecurityContext};

    #[test]
    fn token_owner() {
        let pod = |of_pod: Option<i64>, users: &[Option<i64>]| {
            let container = |user: &Option<i64>| Container {
                security_context: Some(SecurityContext { run_as_user: *user, ..SecurityContext::default() }),
                ..Container::default()
            };
            let context = PodSecurityContext { run_as_user: of_pod, ..PodSecurityContext::default() };
            Pod {
                spec: Some(PodSpec {
                    containers: users.iter().map(container).collect(),
                    security_context: Some(context),
                    ..PodSpec::default()
                }),
                ..Pod::default()
            }
        };
        let table = [
            (None, vec![None], None),
            (Some(7), vec![None, None], Some(7)),
            (None, vec![Some(5), Some(5)], Some(5)),
            (None, vec![Some(5), None], None),
            (Some(7), vec![Some(5), None], None),
            (Some(-1), vec![None], None),
        ];
        for (of_pod, users, want) in table {
            assert_eq!(common_user(&pod(of_pod, &users)), want, "{of_pod:?} {users:?}");
        }
    }
}
