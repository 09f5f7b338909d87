//! The user of a container, and its capabilities and security profiles.

use std::path::{Path, PathBuf};

use k8s_openapi::api::core::v1::{Container, Pod, SeccompProfile as ApiProfile};

use crate::runtime::{CapabilityChange, ContainerConfig, ContainerUser, Image, ImageUser, SeccompProfile};
use crate::{app_armor, pod, se_linux};

/// The maximal size of a seccomp profile, in bytes.
const MAX_PROFILE_BYTES: u64 = 4 << 20;

/// Returns a setting of the container, or of the pod if the container has none.
macro_rules! effective {
    ($pod:expr, $container:expr, $field:ident) => {
        $container
            .security_context
            .as_ref()
            .and_then(|s| s.$field.clone())
            .or_else(|| pod::spec($pod).security_context.as_ref().and_then(|s| s.$field.clone()))
    };
}

fn id(value: i64) -> Result<u32, String> {
    u32::try_from(value).map_err(|_| format!("user or group id {value} is out of range"))
}

/// The sources of seccomp profiles.
#[derive(Debug, Clone, Copy)]
pub struct Seccomp<'a> {
    /// The folder of profiles of type Localhost.
    pub root: &'a Path,
    /// Whether the default is RuntimeDefault rather than Unconfined, if neither container nor pod sets a profile.
    pub by_default: bool,
}

/// Sets the security fields.
pub fn apply(
    config: &mut ContainerConfig,
    pod: &Pod,
    container: &Container,
    image: &Image,
    seccomp: Seccomp<'_>,
) -> Result<(), String> {
    verify_non_root(pod, container, image)?;
    let own = container.security_context.clone().unwrap_or_default();
    config.user = user(pod, container)?;
    config.privileged = own.privileged == Some(true);
    config.readonly_rootfs = own.read_only_root_filesystem == Some(true);
    let adds_admin = own
        .capabilities
        .iter()
        .flat_map(|c| c.add.iter().flatten())
        .any(|name| matches!(name.as_str(), "CAP_SYS_ADMIN" | "SYS_ADMIN"));
    config.no_new_privileges =
        own.allow_privilege_escalation == Some(false) && !config.privileged && !adds_admin;
    config.capabilities = own.capabilities.map_or_else(CapabilityChange::default, |c| CapabilityChange {
        add: c.add.unwrap_or_default(),
        drop: c.drop.unwrap_or_default(),
        ambient: Vec::new(),
    });
    config.app_armor = app_armor::profile(pod, container)?;
    config.se_linux = se_linux::of_container(pod, container);
    config.unmasked_proc = own.proc_mount.as_deref() == Some("Unmasked");
    (config.seccomp, config.seccomp_file) = if config.privileged {
        (SeccompProfile::Unconfined, PathBuf::new())
    } else {
        seccomp_profile(effective!(pod, container, seccomp_profile).as_ref(), seccomp)?
    };
    Ok(())
}

pub(super) fn user(pod: &Pod, container: &Container) -> Result<ContainerUser, String> {
    let context = pod::spec(pod).security_context.clone().unwrap_or_default();
    let mut groups = Vec::new();
    for group in context.fs_group.iter().chain(context.supplemental_groups.iter().flatten()) {
        groups.push(id(*group)?);
    }
    Ok(ContainerUser {
        uid: effective!(pod, container, run_as_user).map(id).transpose()?,
        gid: effective!(pod, container, run_as_group).map(id).transpose()?,
        supplemental_groups: groups,
        strict_groups: context.supplemental_groups_policy.as_deref() == Some("Strict"),
    })
}

fn verify_non_root(pod: &Pod, container: &Container, image: &Image) -> Result<(), String> {
    if effective!(pod, container, run_as_non_root) != Some(true) {
        return Ok(());
    }
    let which = format!("(pod: {:?}, container: {})", pod::format(pod), container.name);
    if let Some(uid) = effective!(pod, container, run_as_user) {
        return match uid {
            0 => Err(format!("container's runAsUser breaks non-root policy {which}")),
            _ => Ok(()),
        };
    }
    match &image.user {
        Some(ImageUser::Name(name)) => Err(format!(
            "container has runAsNonRoot and image has non-numeric user ({name}), cannot verify user is non-root {which}"
        )),
        None | Some(ImageUser::Uid(0)) => {
            Err(format!("container has runAsNonRoot and image will run as root {which}"))
        }
        Some(ImageUser::Uid(_)) => Ok(()),
    }
}

/// Returns the profile, and its path if it is a file.
fn seccomp_profile(
    profile: Option<&ApiProfile>,
    seccomp: Seccomp<'_>,
) -> Result<(SeccompProfile, PathBuf), String> {
    let Some(profile) = profile else {
        let unset =
            if seccomp.by_default { SeccompProfile::RuntimeDefault } else { SeccompProfile::Unconfined };
        return Ok((unset, PathBuf::new()));
    };
    match profile.type_.as_str() {
        "RuntimeDefault" => Ok((SeccompProfile::RuntimeDefault, PathBuf::new())),
        "Unconfined" => Ok((SeccompProfile::Unconfined, PathBuf::new())),
        "Localhost" => {
            let name = profile.localhost_profile.as_deref().unwrap_or("");
            let inside = !name.is_empty()
                && Path::new(name).components().all(|c| matches!(c, std::path::Component::Normal(_)));
            if !inside {
                return Err(format!("localhostProfile {name:?} must be a relative path without \"..\""));
            }
            let path = seccomp.root.join(name);
            let cannot = |e: std::io::Error| {
                format!(
                    "failed to generate seccomp spec opts: cannot load seccomp profile {:?}: {e}",
                    path.display()
                )
            };
            if std::fs::metadata(&path).map_err(cannot)?.len() > MAX_PROFILE_BYTES {
                return Err(format!("seccomp profile {name:?} is too large"));
            }
            let text = std::fs::read_to_string(&path).map_err(cannot)?;
            Ok((SeccompProfile::Localhost(text), path))
        }
        other => Err(format!("unknown seccomp profile type {other:?}")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use k8s_openapi::api::core::v1::{Capabilities, PodSecurityContext, PodSpec, SecurityContext};

    fn run(
        own: SecurityContext,
        of_pod: PodSecurityContext,
        user: Option<ImageUser>,
    ) -> Result<ContainerConfig, String> {
        run_with(own, of_pod, user, true)
    }

    fn run_with(
        own: SecurityContext,
        of_pod: PodSecurityContext,
        user: Option<ImageUser>,
        by_default: bool,
    ) -> Result<ContainerConfig, String> {
        let container = Container { name: "web".into(), security_context: Some(own), ..Container::default() };
        let spec = PodSpec { security_context: Some(of_pod), ..PodSpec::default() };
        let mut pod = Pod { spec: Some(spec), ..Pod::default() };
        pod.metadata.name = Some("p".into());
        pod.metadata.namespace = Some("n".into());
        pod.metadata.uid = Some("u".into());
        let image = Image { user, ..Image::default() };
        let mut config = ContainerConfig::default();
        let seccomp = Seccomp { root: Path::new("/nonexistent"), by_default };
        apply(&mut config, &pod, &container, &image, seccomp).map(|()| config)
    }

    #[test]
    fn non_root() {
        let non_root = || PodSecurityContext { run_as_non_root: Some(true), ..Default::default() };
        let none = SecurityContext::default;
        let as_user = |uid| SecurityContext { run_as_user: Some(uid), ..Default::default() };
        let table = [
            (none(), PodSecurityContext::default(), None, None),
            (none(), non_root(), None, Some("image will run as root")),
            (none(), non_root(), Some(ImageUser::Uid(0)), Some("image will run as root")),
            (none(), non_root(), Some(ImageUser::Uid(7)), None),
            (
                none(),
                non_root(),
                Some(ImageUser::Name("web".into())),
                Some("non-numeric user (web), cannot verify"),
            ),
            (
                as_user(0),
                non_root(),
                Some(ImageUser::Uid(7)),
                Some("runAsUser breaks non-root policy (pod: \"p_n(u)\""),
            ),
            (as_user(5), non_root(), None, None),
        ];
        for (own, of_pod, user, expected) in table {
            let error = run(own, of_pod, user).err();
            assert_eq!(error.is_some(), expected.is_some(), "{error:?}");
            assert!(error.unwrap_or_default().contains(expected.unwrap_or("")));
        }
    }

    #[test]
    fn seccomp_profiles() {
        use SeccompProfile::{RuntimeDefault, Unconfined};
        let profile = |kind: &str| Some(ApiProfile { type_: kind.into(), localhost_profile: None });
        for (of_pod, own, privileged, by_default, expected) in [
            (None, None, false, true, RuntimeDefault),
            (None, None, false, false, Unconfined),
            (None, None, true, true, Unconfined),
            (profile("Unconfined"), None, false, true, Unconfined),
            (profile("RuntimeDefault"), None, false, false, RuntimeDefault),
            (profile("RuntimeDefault"), profile("Unconfined"), false, true, Unconfined),
            (profile("Unconfined"), profile("RuntimeDefault"), false, false, RuntimeDefault),
        ] {
            let own = SecurityContext {
                seccomp_profile: own,
                privileged: Some(privileged),
                ..SecurityContext::default()
            };
            let of_pod = PodSecurityContext { seccomp_profile: of_pod, ..PodSecurityContext::default() };
            assert_eq!(run_with(own, of_pod, None, by_default).unwrap().seccomp, expected);
        }
    }

    #[test]
    fn the_container_goes_before_the_pod() {
        let own = SecurityContext {
            run_as_user: Some(5),
            allow_privilege_escalation: Some(false),
            capabilities: Some(Capabilities { add: Some(vec!["NET_ADMIN".into()]), drop: None }),
            ..Default::default()
        };
        let of_pod = PodSecurityContext {
            run_as_user: Some(1),
            run_as_group: Some(2),
            fs_group: Some(3),
            supplemental_groups: Some(vec![4]),
            seccomp_profile: Some(ApiProfile { type_: "RuntimeDefault".into(), localhost_profile: None }),
            ..Default::default()
        };
        let config = run(own, of_pod, None).unwrap();
        assert_eq!((config.user.uid, config.user.gid), (Some(5), Some(2)));
        assert_eq!(config.user.supplemental_groups, [3, 4]);
        assert!(config.no_new_privileges);
        assert_eq!(config.capabilities.add, ["NET_ADMIN"]);
        assert_eq!(config.seccomp, SeccompProfile::RuntimeDefault);
    }
}
