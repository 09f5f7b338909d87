//! Validation of security contexts of pods and containers.

use std::collections::BTreeSet;

use k8s_openapi::api::core::v1::{
    AppArmorProfile, PodSecurityContext, PodSpec, SeccompProfile, SecurityContext,
};
use knarr_apimachinery::field::{Error, ErrorList, Path};
use knarr_apimachinery::names;

use crate::validate::{self, shown};

const SYSCTL_SEGMENT: &str = "[a-z0-9]([-_a-z0-9]*[a-z0-9])?";
const SYSCTL_MAX: usize = 253;
const APP_ARMOR_PROFILE_MAX: usize = 4095;

fn id(errors: &mut ErrorList, path: &Path, id: Option<i64>) {
    if let Some(id) = id {
        validate::number_problems(errors, path, id, names::user_or_group_id(id));
    }
}

pub fn of_pod(errors: &mut ErrorList, path: &Path, spec: &PodSpec) {
    let Some(context) = &spec.security_context else { return };
    id(errors, &path.child("fsGroup"), context.fs_group);
    id(errors, &path.child("runAsUser"), context.run_as_user);
    id(errors, &path.child("runAsGroup"), context.run_as_group);
    for (i, group) in context.supplemental_groups.iter().flatten().enumerate() {
        id(errors, &path.child("supplementalGroups").index(i), Some(*group));
    }
    sysctls(errors, &path.child("sysctls"), context, spec);
    for (field, value, supported) in [
        ("fsGroupChangePolicy", &context.fs_group_change_policy, ["Always", "OnRootMismatch"]),
        ("supplementalGroupsPolicy", &context.supplemental_groups_policy, ["Merge", "Strict"]),
        ("seLinuxChangePolicy", &context.se_linux_change_policy, ["MountOption", "Recursive"]),
    ] {
        if let Some(value) = value {
            validate::supported_value(errors, &path.child(field), value, &supported);
        }
    }
    seccomp(errors, &path.child("seccompProfile"), context.seccomp_profile.as_ref());
    app_armor(errors, &path.child("appArmorProfile"), context.app_armor_profile.as_ref());
    if spec.os.as_ref().is_some_and(|os| os.name == "linux") && context.windows_options.is_some() {
        let why = "windows options cannot be set for a linux pod";
        errors.push(Error::forbidden(&path.child("windowsOptions"), why));
    }
}

fn sysctls(errors: &mut ErrorList, path: &Path, context: &PodSecurityContext, spec: &PodSpec) {
    let mut seen = BTreeSet::new();
    for (i, sysctl) in context.sysctls.iter().flatten().enumerate() {
        let path = path.index(i).child("name");
        let name = sysctl.name.as_str();
        if name.is_empty() {
            errors.push(Error::required(&path, ""));
        } else if !is_sysctl_name(name) {
            let problem = format!(
                "must have at most {SYSCTL_MAX} characters and match regex ^({SYSCTL_SEGMENT}[\\./])*{SYSCTL_SEGMENT}$"
            );
            errors.push(Error::invalid(&path, name, problem));
        } else if !seen.insert(name) {
            errors.push(Error::duplicate(&path, name));
        }
        let dotted = name.replace('/', ".");
        let of_network = dotted.starts_with("net.");
        let of_ipc = dotted.starts_with("kernel.shm")
            || dotted.starts_with("kernel.msg")
            || dotted == "kernel.sem"
            || dotted.starts_with("fs.mqueue.");
        if spec.host_network == Some(true) && of_network {
            let problem = "may not be specified when 'hostNetwork' is true";
            errors.push(Error::invalid(&path, name, problem));
        } else if spec.host_ipc == Some(true) && of_ipc {
            errors.push(Error::invalid(&path, name, "may not be specified when 'hostIPC' is true"));
        }
    }
}

fn is_sysctl_name(name: &str) -> bool {
    let edge = |b: Option<&u8>| b.is_some_and(|b| b.is_ascii_lowercase() || b.is_ascii_digit());
    name.len() <= SYSCTL_MAX
        && name.split(['.', '/']).all(|segment| {
            let bytes = segment.as_bytes();
            edge(bytes.first())
                && edge(bytes.last())
                && bytes.iter().all(|b| edge(Some(b)) || matches!(b, b'-' | b'_'))
        })
}

fn seccomp(errors: &mut ErrorList, path: &Path, profile: Option<&SeccompProfile>) {
    let Some(profile) = profile else { return };
    let at = path.child("type");
    match profile.type_.as_str() {
        "" => errors.push(Error::required(&at, "type is required when seccompProfile is set")),
        kind => {
            let kinds = ["Localhost", "RuntimeDefault", "Unconfined"];
            validate::supported_value(errors, &at, kind, &kinds);
        }
    }
    let at = path.child("localhostProfile");
    match (profile.type_.as_str(), &profile.localhost_profile) {
        ("Localhost", None) => {
            errors.push(Error::required(&at, "must be set when seccomp type is Localhost"));
        }
        ("Localhost", Some(file)) => validate::descending_path(errors, &at, file),
        (_, Some(_)) => {
            let problem = "can only be set when seccomp type is Localhost";
            errors.push(validate::invalid_text(&at, &seccomp_text(profile), problem));
        }
        (_, None) => {}
    }
}

fn app_armor(errors: &mut ErrorList, path: &Path, profile: Option<&AppArmorProfile>) {
    let Some(profile) = profile else { return };
    let at = path.child("localhostProfile");
    match (profile.type_.as_str(), &profile.localhost_profile) {
        ("Localhost", None) => {
            errors.push(Error::required(&at, "must be set when AppArmor type is Localhost"));
        }
        ("Localhost", Some(file)) => {
            if file.trim() != file {
                errors.push(Error::invalid(&at, file.as_str(), "must not be padded with whitespace"));
            } else if file.is_empty() {
                errors.push(Error::required(&at, "must be set when AppArmor type is Localhost"));
            }
            if file.len() > APP_ARMOR_PROFILE_MAX {
                errors.push(Error::too_long(&at, APP_ARMOR_PROFILE_MAX));
            }
        }
        ("RuntimeDefault" | "Unconfined", Some(file)) => {
            let problem = "can only be set when AppArmor type is Localhost";
            errors.push(Error::invalid(&at, file.as_str(), problem));
        }
        ("RuntimeDefault" | "Unconfined", None) => {}
        ("", _) => {
            let why = "type is required when appArmorProfile is set";
            errors.push(Error::required(&path.child("type"), why));
        }
        (other, _) => {
            let kinds = ["Localhost", "RuntimeDefault", "Unconfined"];
            errors.push(validate::not_supported(&path.child("type"), other, &kinds));
        }
    }
}

pub fn of_container(errors: &mut ErrorList, path: &Path, context: &SecurityContext, host_users: bool) {
    id(errors, &path.child("runAsUser"), context.run_as_user);
    id(errors, &path.child("runAsGroup"), context.run_as_group);
    if let Some(mount) = &context.proc_mount {
        let at = path.child("procMount");
        validate::supported_value(errors, &at, mount, &["Default", "Unmasked"]);
        if host_users && mount == "Unmasked" {
            let problem = "`hostUsers` must be false to use `Unmasked`";
            errors.push(Error::invalid(&at, mount.as_str(), problem));
        }
    }
    seccomp(errors, &path.child("seccompProfile"), context.seccomp_profile.as_ref());
    if context.allow_privilege_escalation == Some(false) && context.privileged == Some(true) {
        let problem = "cannot set `allowPrivilegeEscalation` to false and `privileged` to true";
        errors.push(validate::invalid_text(path, &context_text(context), problem));
    }
    app_armor(errors, &path.child("appArmorProfile"), context.app_armor_profile.as_ref());
}

/// Returns a profile in upstream's internal Go type, as messages show it.
fn seccomp_text(profile: &SeccompProfile) -> String {
    format!(
        r#"{{"Type":{},"LocalhostProfile":{}}}"#,
        shown(&profile.type_),
        shown(&profile.localhost_profile)
    )
}

/// Returns a container's security context in upstream's internal Go type, as messages show it.
fn context_text(context: &SecurityContext) -> String {
    let none = || "null".to_owned();
    let capabilities = context
        .capabilities
        .as_ref()
        .map_or_else(none, |c| format!(r#"{{"Add":{},"Drop":{}}}"#, shown(&c.add), shown(&c.drop)));
    let selinux = context.se_linux_options.as_ref().map_or_else(none, |s| {
        let text = |field: &Option<String>| shown(&field.as_deref().unwrap_or(""));
        let (user, role) = (text(&s.user), text(&s.role));
        format!(r#"{{"User":{user},"Role":{role},"Type":{},"Level":{}}}"#, text(&s.type_), text(&s.level))
    });
    let windows = context.windows_options.as_ref().map_or_else(none, |w| {
        let (name, spec) = (shown(&w.gmsa_credential_spec_name), shown(&w.gmsa_credential_spec));
        let (user, host) = (shown(&w.run_as_user_name), shown(&w.host_process));
        format!(
            r#"{{"GMSACredentialSpecName":{name},"GMSACredentialSpec":{spec},"RunAsUserName":{user},"HostProcess":{host}}}"#
        )
    });
    let seccomp = context.seccomp_profile.as_ref().map_or_else(none, seccomp_text);
    let app_armor = context.app_armor_profile.as_ref().map_or_else(none, |a| {
        format!(r#"{{"Type":{},"LocalhostProfile":{}}}"#, shown(&a.type_), shown(&a.localhost_profile))
    });
    let fields = [
        ("Capabilities", capabilities),
        ("Privileged", shown(&context.privileged).to_string()),
        ("SELinuxOptions", selinux),
        ("WindowsOptions", windows),
        ("RunAsUser", shown(&context.run_as_user).to_string()),
        ("RunAsGroup", shown(&context.run_as_group).to_string()),
        ("RunAsNonRoot", shown(&context.run_as_non_root).to_string()),
        ("ReadOnlyRootFilesystem", shown(&context.read_only_root_filesystem).to_string()),
        ("AllowPrivilegeEscalation", shown(&context.allow_privilege_escalation).to_string()),
        ("ProcMount", shown(&context.proc_mount).to_string()),
        ("SeccompProfile", seccomp),
        ("AppArmorProfile", app_armor),
    ];
    let fields: Vec<String> = fields.iter().map(|(name, text)| format!("\"{name}\":{text}")).collect();
    format!("{{{}}}", fields.join(","))
}
