//! Compares how the containers of a pod have ended with the expected ends.

use serde_json::Value;

use super::cases::{Attack, End};

/// Waiting reasons of a container that cannot be created or started.
const CANNOT: [&str; 4] =
    ["CreateContainerError", "CreateContainerConfigError", "RunContainerError", "CreatePodSandboxError"];

enum Outcome {
    Refused(String),
    Ended { code: i64, words: String },
}

/// Returns how a container ended; `None` while it runs or may still start.
fn outcome(pod: &Value, container: &str) -> Option<Outcome> {
    let lists = ["containerStatuses", "initContainerStatuses"].map(|list| pod["status"][list].as_array());
    let status = lists.into_iter().flatten().flatten().find(|status| status["name"] == container)?;
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let (waiting, terminated) = (&status["state"]["waiting"], &status["state"]["terminated"]);
    if CANNOT.iter().any(|reason| waiting["reason"] == *reason) {
        return Some(Outcome::Refused(text(&waiting["message"])));
    }
    let words = text(&terminated["message"]);
    match terminated["reason"].as_str()? {
        "StartError" | "ContainerCannotRun" => Some(Outcome::Refused(words)),
        _ => Some(Outcome::Ended { code: terminated["exitCode"].as_i64()?, words }),
    }
}

/// Returns the containers that have not ended yet.
pub fn unfinished<'a>(attack: &'a Attack, pod: &Value) -> Vec<&'a str> {
    let open = attack.ends.iter().filter(|(container, _)| outcome(pod, container).is_none());
    open.map(|(container, _)| container.as_str()).collect()
}

/// Returns the unexpected ends of a pod's containers, one line each.
pub fn faults(attack: &Attack, pod: &Value) -> Vec<String> {
    let judged = attack.ends.iter().filter_map(|(container, end)| {
        let fault = judge(end, outcome(pod, container))?;
        Some(format!("{} {container}: {fault}", attack.name))
    });
    judged.collect()
}

fn judge(end: &End, outcome: Option<Outcome>) -> Option<String> {
    let (refused, words) = match outcome {
        None => return Some("has not ended".to_owned()),
        Some(Outcome::Refused(message)) => (true, message),
        Some(Outcome::Ended { code, words }) if matches!(end, End::Prepares) => {
            return (code != 0).then(|| format!("ended with {code}: {words}"));
        }
        Some(Outcome::Ended { words, .. }) => (false, words),
    };
    let good = match end {
        End::Refused(reason) => refused && words.contains(reason),
        End::Says(expected) => !refused && words.trim_end() == *expected,
        End::Contained(expected) => refused || words.trim_end() == *expected,
        End::Prepares => false,
    };
    let what = if refused { "was refused" } else { "said" };
    (!good).then(|| format!("{what} {words:?}, expected {end:?}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn escapes_are_faults() {
        let refused = |words: &str| Some(Outcome::Refused(words.to_owned()));
        let ended = |words: &str| Some(Outcome::Ended { code: 0, words: words.to_owned() });
        for (end, outcome, good) in [
            (End::Refused("by this"), refused("refused by this rule"), true),
            (End::Refused("by this"), refused("for want of memory"), false),
            (End::Refused("by this"), ended("by this"), false),
            (End::Says("looked"), ended("looked\n"), true),
            (End::Says("looked"), ended("escaped: x\nlooked\n"), false),
            (End::Says("looked"), ended(""), false),
            (End::Says("looked"), refused("looked"), false),
            (End::Contained("looked"), refused("whatever"), true),
            (End::Contained("looked"), ended("looked\n"), true),
            (End::Contained("looked"), ended("escaped: x\nlooked\n"), false),
            (End::Prepares, refused("x"), false),
            (End::Prepares, ended(""), true),
            (End::Says("looked"), None, false),
        ] {
            assert_eq!(judge(&end, outcome).is_none(), good, "{end:?}");
        }
    }
}
