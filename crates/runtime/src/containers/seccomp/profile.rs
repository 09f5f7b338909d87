//! A seccomp profile, and its reading from the JSON form that Kubernetes' Localhost profiles have.

use serde::Deserialize;

/// Stops a hostile profile from growing the filter without bound.
const MAX_RULES: usize = 4096;

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
    /// The value a filter returns.
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

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Arg {
    /// 0 to 5.
    pub index: u32,
    pub operator: Operator,
    /// The mask of `MaskedEqual`.
    pub value: u64,
    /// What the masked argument must be.
    pub value_two: u64,
}

/// All of `args` must hold.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Rule {
    pub names: Vec<String>,
    pub action: Action,
    pub args: Vec<Arg>,
}

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

/// Reads a profile's JSON.
pub fn parse(text: &str) -> Result<Profile, String> {
    let json: JsonProfile =
        serde_json::from_str(text).map_err(|error| format!("seccomp profile: {error}"))?;
    if json.syscalls.len() > MAX_RULES {
        return Err(format!("seccomp profile: more than {MAX_RULES} rules"));
    }
    let mut rules = Vec::with_capacity(json.syscalls.len());
    for rule in json.syscalls {
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

    #[test]
    fn reads_kubernetes_profiles() {
        let profile = parse(
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
        ] {
            assert!(parse(text).is_err(), "{text}");
        }
    }
}
