//! Converts a profile to the form that OCI runtimes read.

use serde_json::{Value, json};

use super::profile::{Action, Arg, Operator, Profile, Rule};

fn action(action: Action) -> (&'static str, Option<u16>) {
    match action {
        Action::Allow => ("SCMP_ACT_ALLOW", None),
        Action::Errno(errno) => ("SCMP_ACT_ERRNO", Some(errno)),
        Action::KillThread => ("SCMP_ACT_KILL_THREAD", None),
        Action::KillProcess => ("SCMP_ACT_KILL_PROCESS", None),
        Action::Trap => ("SCMP_ACT_TRAP", None),
        Action::Trace(data) => ("SCMP_ACT_TRACE", Some(data)),
        Action::Log => ("SCMP_ACT_LOG", None),
    }
}

fn operator(operator: Operator) -> &'static str {
    match operator {
        Operator::NotEqual => "SCMP_CMP_NE",
        Operator::Less => "SCMP_CMP_LT",
        Operator::LessOrEqual => "SCMP_CMP_LE",
        Operator::Equal => "SCMP_CMP_EQ",
        Operator::GreaterOrEqual => "SCMP_CMP_GE",
        Operator::Greater => "SCMP_CMP_GT",
        Operator::MaskedEqual => "SCMP_CMP_MASKED_EQ",
    }
}

fn arg(arg: &Arg) -> Value {
    json!({"index": arg.index, "value": arg.value, "valueTwo": arg.value_two, "op": operator(arg.operator)})
}

fn rule(rule: &Rule) -> Value {
    let (name, errno) = action(rule.action);
    let mut json = json!({"names": rule.names, "action": name});
    if !rule.args.is_empty() {
        json["args"] = rule.args.iter().map(arg).collect();
    }
    if let Some(errno) = errno {
        json["errnoRet"] = errno.into();
    }
    json
}

/// Returns the only architecture whose calls are allowed, as in the built-in filter.
fn architecture() -> Option<&'static str> {
    match std::env::consts::ARCH {
        "x86_64" => Some("SCMP_ARCH_X86_64"),
        "aarch64" => Some("SCMP_ARCH_AARCH64"),
        _ => None,
    }
}

/// Returns the content of `linux.seccomp` of a container's configuration.
pub fn json(profile: &Profile) -> Value {
    let (name, errno) = action(profile.default_action);
    let mut json = json!({
        "defaultAction": name,
        "architectures": architecture().into_iter().collect::<Vec<_>>(),
        "syscalls": profile.rules.iter().filter(|rule| !rule.names.is_empty()).map(self::rule).collect::<Vec<_>>(),
    });
    if let Some(errno) = errno {
        json["defaultErrnoRet"] = errno.into();
    }
    json
}

#[cfg(test)]
mod tests {
    use super::super::profile::{Circumstances, parse};
    use super::*;

    #[test]
    fn what_is_written_is_what_was_read() {
        let text = r#"{"defaultAction":"SCMP_ACT_ERRNO","defaultErrnoRet":38,"syscalls":[
            {"names":["read","write"],"action":"SCMP_ACT_ALLOW"},
            {"names":["clone"],"action":"SCMP_ACT_TRACE","errnoRet":5,
             "args":[{"index":0,"value":1,"valueTwo":2,"op":"SCMP_CMP_MASKED_EQ"}]}]}"#;
        let profile = parse(text, &Circumstances::here(0)).unwrap();
        let again = parse(&json(&profile).to_string(), &Circumstances::here(0)).unwrap();
        assert_eq!(again, profile);
    }
}
