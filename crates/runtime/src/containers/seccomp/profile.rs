//! A seccomp profile, and parsing the JSON form of Kubernetes' Localhost profiles.

use serde::Deserialize;

use crate::containers::capabilities;

/// Prevents a hostile profile from growing the filter without bound.
const MAX_RULES: usize = 4096;

/// What happens to a system call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Action {
    Allow,
    Errno(u16),
    KillThread,
    KillProcess,
    Trap,
    Trace(u16),
    Log,
}

impl Action {
    /// Returns the value that the filter returns for this action.
    pub fn code(self) -> u32 {
        match self {
            Self::Allow => 0x7fff_0000,
            Self::Log => 0x7ffc_0000,
            Self::Trace(data) => 0x7ff0_0000 | u32::from(data),
            Self::Errno(errno) => 0x0005_0000 | u32::from(errno),
            Self::Trap => 0x0003_0000,
            Self::KillThread => 0,
            Self::KillProcess => 0x8000_0000,
        }
    }
}

/// How an argument is compared.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Operator {
    NotEqual,
    Less,
    LessOrEqual,
    Equal,
    GreaterOrEqual,
    Greater,
    MaskedEqual,
}

/// A condition on one argument of a system call.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Arg {
    /// The index of the argument, 0 to 5.
    pub index: u32,
    pub operator: Operator,
    /// The value to compare with; the mask for `MaskedEqual`.
    pub value: u64,
    /// The value that the masked argument must have.
    pub value_two: u64,
}

/// Applies if all of `args` match.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Rule {
    pub names: Vec<String>,
    pub action: Action,
    pub args: Vec<Arg>,
}

/// The rules for system calls, and the action for all others.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Profile {
    pub default_action: Action,
    pub rules: Vec<Rule>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct JsonProfile {
    default_action: String,
    default_errno_ret: Option<u16>,
    #[serde(default)]
    syscalls: Vec<JsonRule>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct JsonRule {
    #[serde(default)]
    names: Vec<String>,
    name: Option<String>,
    action: String,
    errno_ret: Option<u16>,
    #[serde(default)]
    args: Option<Vec<JsonArg>>,
    #[serde(default)]
    includes: Option<Conditions>,
    #[serde(default)]
    excludes: Option<Conditions>,
}

/// When a rule applies, as in profiles of Docker and CRI-O; OCI profiles have no conditions. An unknown
/// condition is refused: a rule without it could allow more than its author intended.
#[derive(Deserialize, Default)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct Conditions {
    #[serde(default)]
    caps: Option<Vec<String>>,
    /// In Go's names, for example `amd64`.
    #[serde(default)]
    arches: Option<Vec<String>>,
    /// For example `5.8`.
    #[serde(default)]
    min_kernel: Option<String>,
}

/// The facts that conditions are compared with.
#[derive(Debug, Clone, Copy)]
pub struct Circumstances {
    /// The container's bounding set.
    pub capabilities: u64,
    pub arch: &'static str,
    /// Major and minor version.
    pub kernel: (u32, u32),
}

impl Circumstances {
    /// Returns the circumstances on this machine.
    pub fn here(capabilities: u64) -> Self {
        let arch = match std::env::consts::ARCH {
            "x86_64" => "amd64",
            "aarch64" => "arm64",
            other => other,
        };
        let release = nix::sys::utsname::uname().map(|name| name.release().to_string_lossy().into_owned());
        let kernel = release.ok().and_then(|release| version(&release)).unwrap_or_default();
        Self { capabilities, arch, kernel }
    }
}

/// Parses the first two numbers of a version like `6.1.0-22-amd64`.
fn version(text: &str) -> Option<(u32, u32)> {
    let mut numbers = text.split(|c: char| !c.is_ascii_digit());
    Some((numbers.next()?.parse().ok()?, numbers.next()?.parse().ok()?))
}

/// Returns whether every condition of `includes` holds, and none of `excludes`.
fn applies(rule: &JsonRule, here: &Circumstances) -> Result<bool, String> {
    let held = |name: &String| capabilities::holds(here.capabilities, name);
    let is_arch = |name: &String| name == here.arch;
    let reached = |text: &Option<String>| match text.as_deref().filter(|text| !text.is_empty()) {
        Some(text) => version(text)
            .map(|wanted| Some(here.kernel >= wanted))
            .ok_or_else(|| format!("seccomp profile: {text:?} is not a kernel version")),
        None => Ok(None),
    };
    if let Some(wanted) = &rule.includes {
        let arches = wanted.arches.as_deref().unwrap_or_default();
        let caps = wanted.caps.as_deref().unwrap_or_default();
        if !caps.iter().all(held)
            || !arches.is_empty() && !arches.iter().any(is_arch)
            || reached(&wanted.min_kernel)? == Some(false)
        {
            return Ok(false);
        }
    }
    let Some(unwanted) = &rule.excludes else { return Ok(true) };
    let excluded = unwanted.caps.iter().flatten().any(held)
        || unwanted.arches.iter().flatten().any(is_arch)
        || reached(&unwanted.min_kernel)? == Some(true);
    Ok(!excluded)
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct JsonArg {
    index: u32,
    value: u64,
    #[serde(default)]
    value_two: u64,
    op: String,
}

fn action(name: &str, errno: Option<u16>) -> Result<Action, String> {
    let errno = errno.unwrap_or(libc::EPERM as u16).min(4095);
    Ok(match name {
        "SCMP_ACT_ALLOW" => Action::Allow,
        "SCMP_ACT_ERRNO" => Action::Errno(errno),
        "SCMP_ACT_KILL" | "SCMP_ACT_KILL_THREAD" => Action::KillThread,
        "SCMP_ACT_KILL_PROCESS" => Action::KillProcess,
        "SCMP_ACT_TRAP" => Action::Trap,
        "SCMP_ACT_TRACE" => Action::Trace(errno),
        "SCMP_ACT_LOG" => Action::Log,
        other => return Err(format!("seccomp action {other:?} is not supported")),
    })
}

fn operator(name: &str) -> Result<Operator, String> {
    Ok(match name {
        "SCMP_CMP_NE" => Operator::NotEqual,
        "SCMP_CMP_LT" => Operator::Less,
        "SCMP_CMP_LE" => Operator::LessOrEqual,
        "SCMP_CMP_EQ" => Operator::Equal,
        "SCMP_CMP_GE" => Operator::GreaterOrEqual,
        "SCMP_CMP_GT" => Operator::Greater,
        "SCMP_CMP_MASKED_EQ" => Operator::MaskedEqual,
        other => return Err(format!("seccomp operator {other:?} is not supported")),
    })
}

/// Parses a profile's JSON and keeps the rules that apply on this machine.
pub fn parse(text: &str, here: &Circumstances) -> Result<Profile, String> {
    let json: JsonProfile =
        serde_json::from_str(text).map_err(|error| format!("seccomp profile: {error}"))?;
    if json.syscalls.len() > MAX_RULES {
        return Err(format!("seccomp profile: more than {MAX_RULES} rules"));
    }
    let mut rules = Vec::with_capacity(json.syscalls.len());
    for rule in json.syscalls {
        if !applies(&rule, here)? {
            continue;
        }
        let mut args = Vec::new();
        for arg in rule.args.unwrap_or_default() {
            if arg.index > 5 {
                return Err(format!("seccomp profile: argument index {}", arg.index));
            }
            args.push(Arg {
                index: arg.index,
                operator: operator(&arg.op)?,
                value: arg.value,
                value_two: arg.value_two,
            });
        }
        let names = rule.names.into_iter().chain(rule.name).collect();
        rules.push(Rule { names, action: action(&rule.action, rule.errno_ret)?, args });
    }
    Ok(Profile { default_action: action(&json.default_action, json.default_errno_ret)?, rules })
}

#[cfg(test)]
mod tests {
    use super::*;

    const HERE: Circumstances = Circumstances { capabilities: 1 << 21, arch: "amd64", kernel: (6, 1) };

    fn read(text: &str) -> Result<Profile, String> {
        parse(text, &HERE)
    }

    #[test]
    fn rules_apply_under_their_conditions() {
        for (conditions, applies) in [
            (r#""includes":{}"#, true),
            (r#""includes":{"caps":["CAP_SYS_ADMIN"]}"#, true),
            (r#""includes":{"caps":["CAP_SYS_ADMIN","CAP_BPF"]}"#, false),
            (r#""includes":{"arches":["arm64","amd64"],"minKernel":"6.1"}"#, true),
            (r#""includes":{"arches":["arm64"]}"#, false),
            (r#""includes":{"minKernel":"6.2"}"#, false),
            (r#""excludes":{"caps":["CAP_SYS_ADMIN"]}"#, false),
            (r#""excludes":{"caps":["CAP_BPF"],"arches":["arm64"],"minKernel":"6.10"}"#, true),
            (r#""excludes":{"arches":["amd64"]}"#, false),
            (r#""excludes":{"minKernel":"4.8"}"#, false),
            (r#""includes":null,"excludes":{"caps":null}"#, true),
        ] {
            let text = format!(
                r#"{{"defaultAction":"SCMP_ACT_ERRNO","syscalls":[
                    {{"names":["bpf"],"action":"SCMP_ACT_ALLOW",{conditions}}}]}}"#
            );
            assert_eq!(
                read(&text).map(|profile| profile.rules.len()),
                Ok(usize::from(applies)),
                "{conditions}"
            );
        }
        assert!(Circumstances::here(0).kernel >= (5, 12));
    }

    #[test]
    fn reads_kubernetes_profiles() {
        let profile = read(
            r#"{"defaultAction":"SCMP_ACT_LOG","architectures":["SCMP_ARCH_X86_64"],"syscalls":[
                {"names":["mkdir"],"action":"SCMP_ACT_ERRNO","errnoRet":38},
                {"names":["socket"],"action":"SCMP_ACT_KILL_PROCESS",
                 "args":[{"index":0,"value":40,"op":"SCMP_CMP_EQ"}]}]}"#,
        );
        let Ok(profile) = profile else { panic!("{profile:?}") };
        assert_eq!(profile.default_action, Action::Log);
        assert_eq!(profile.rules[0].action, Action::Errno(38));
        assert_eq!(profile.rules[1].args[0].operator, Operator::Equal);
    }

    #[test]
    fn refuses_what_it_cannot_enforce() {
        for text in [
            "{}",
            r#"{"defaultAction":"SCMP_ACT_NOTIFY"}"#,
            r#"{"defaultAction":"SCMP_ACT_ALLOW","syscalls":[{"names":["a"],"action":"SCMP_ACT_ALLOW",
                "args":[{"index":6,"value":0,"op":"SCMP_CMP_EQ"}]}]}"#,
            r#"{"defaultAction":"SCMP_ACT_ALLOW","syscalls":[{"names":["a"],"action":"SCMP_ACT_ALLOW",
                "includes":{"moon":"full"}}]}"#,
            r#"{"defaultAction":"SCMP_ACT_ALLOW","syscalls":[{"names":["a"],"action":"SCMP_ACT_ALLOW",
                "includes":{"minKernel":"new"}}]}"#,
        ] {
            assert!(read(text).is_err(), "{text}");
        }
    }
}
