//! The choice of a container's AppArmor profile, and loading of the default profile.
//!
//! Source: containerd's `generateApparmorSpecOpts`, for the choice and the texts.

use knarr_runtime::app_armor::{DEFAULT_PROFILE, is_loaded, load_default};

use crate::host_security::HostSecurity;
use crate::runtime::{AppArmorProfile, ContainerConfig, Result, RuntimeError};

/// The host's AppArmor support.
#[derive(Debug, Clone, Copy)]
struct Host<L> {
    enabled: bool,
    has_default: bool,
    /// Whether a profile of this name is loaded.
    loaded: L,
}

/// Loads the default profile on hosts with AppArmor; returns whether containers can use it. Blocks.
pub(super) fn prepare(host: HostSecurity) -> bool {
    if !host.app_armor {
        return false;
    }
    match load_default() {
        Ok(()) => true,
        Err(error) => {
            tracing::warn!(
                %error,
                source = std::error::Error::source(&error).map(tracing::field::display),
                "the default AppArmor profile cannot be loaded: containers that name no profile are unconfined, \
                 and those that name RuntimeDefault are refused"
            );
            false
        }
    }
}

/// Returns the profile; `None` leaves the container unconfined.
fn choose<L: Fn(&str) -> std::io::Result<bool>>(
    named: Option<&AppArmorProfile>,
    privileged: bool,
    host: &Host<L>,
) -> std::result::Result<Option<String>, String> {
    let missing = |name: &str| {
        format!(
            "failed to get container spec opts: failed to generate apparmor spec opts: apparmor profile not found {name}"
        )
    };
    match named {
        Some(AppArmorProfile::Unconfined) => Ok(None),
        None if !host.enabled => Ok(None),
        Some(_) if !host.enabled => {
            Err("failed to get container spec opts: failed to generate apparmor spec opts: apparmor is not supported".to_owned())
        }
        None => Ok((host.has_default && !privileged).then(|| DEFAULT_PROFILE.to_owned())),
        Some(AppArmorProfile::RuntimeDefault) if privileged => Ok(None),
        Some(AppArmorProfile::RuntimeDefault) if host.has_default => Ok(Some(DEFAULT_PROFILE.to_owned())),
        Some(AppArmorProfile::RuntimeDefault) => Err(missing(DEFAULT_PROFILE)),
        Some(AppArmorProfile::Localhost(name)) => match (host.loaded)(name) {
            Ok(true) => Ok(Some(name.clone())),
            Ok(false) => Err(missing(name)),
            Err(error) => Err(format!("failed to get container spec opts: failed to generate apparmor spec opts: {error}")),
        },
    }
}

/// Returns the profile of a container; `has_default` says whether containers can use the default one.
///
/// # Errors
/// The host has no AppArmor, or not that profile.
pub(super) fn profile(
    config: &ContainerConfig,
    host: HostSecurity,
    has_default: bool,
) -> Result<Option<String>> {
    let host = Host { enabled: host.app_armor, has_default, loaded: is_loaded };
    choose(config.app_armor.as_ref(), config.privileged, &host).map_err(RuntimeError::Failed)
}

#[cfg(test)]
mod tests {
    use super::*;

    const PREFIX: &str = "failed to get container spec opts: failed to generate apparmor spec opts: ";

    fn chosen(
        named: Option<AppArmorProfile>,
        privileged: bool,
        enabled: bool,
        has_default: bool,
    ) -> std::result::Result<Option<String>, String> {
        let host = Host { enabled, has_default, loaded: |name: &str| Ok(name == "web") };
        let chosen = choose(named.as_ref(), privileged, &host);
        chosen.map_err(|error| error.strip_prefix(PREFIX).expect("containerd's words").to_owned())
    }

    #[test]
    fn profiles_of_containers() {
        use AppArmorProfile::{Localhost, RuntimeDefault, Unconfined};
        let (default, web) = (Ok(Some("knarr-default".to_owned())), Ok(Some("web".to_owned())));
        let local = |name: &str| Some(Localhost(name.to_owned()));
        let missing = |name: &str| Err(format!("apparmor profile not found {name}"));
        let unsupported = || Err("apparmor is not supported".to_owned());
        for (named, privileged, enabled, has_default, want) in [
            (None, false, true, true, default.clone()),
            (None, true, true, true, Ok(None)),
            (None, false, true, false, Ok(None)),
            (None, false, false, false, Ok(None)),
            (Some(RuntimeDefault), false, true, true, default),
            (Some(RuntimeDefault), true, true, true, Ok(None)),
            (Some(RuntimeDefault), false, true, false, missing("knarr-default")),
            (Some(RuntimeDefault), false, false, false, unsupported()),
            (Some(Unconfined), false, true, true, Ok(None)),
            (Some(Unconfined), false, false, false, Ok(None)),
            (local("web"), false, true, false, web.clone()),
            (local("web"), true, true, true, web),
            (local("wob"), false, true, true, missing("wob")),
            (local("web"), false, false, false, unsupported()),
        ] {
            assert_eq!(
                chosen(named.clone(), privileged, enabled, has_default),
                want,
                "{named:?} {privileged}"
            );
        }
        let unreadable =
            Host { enabled: true, has_default: true, loaded: |_: &str| Err(std::io::Error::other("x")) };
        assert_eq!(choose(local("web").as_ref(), false, &unreadable), Err(format!("{PREFIX}x")));
    }
}
