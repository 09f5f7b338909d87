//! `/healthz`: all checks, or a single one by name.
//!
//! Texts and paths are upstream's. Source: `k8s.io/apiserver/pkg/server/healthz`, and the kubelet's checks `ping`
//! and `syncloop`. Upstream's check `log` is left out, as the log writer of this process is checked by its API
//! server's `/healthz`. Instead, each supervised task of the node is a check: it fails once restarts of the task
//! have not helped for a while, so that a restart of the process may help.

use std::borrow::Cow;

use http::StatusCode;
use knarr_client::supervisor::Health;

use super::answer::{self, Answer};

/// A named check; `Err` contains the cause.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Check {
    pub name: Cow<'static, str>,
    pub result: Result<(), String>,
}

/// Returns the checks of the sync loop and of the node's tasks.
pub fn checks(sync_loop: Result<(), String>, tasks: Vec<Health>) -> Vec<Check> {
    let mut all = vec![Check { name: "syncloop".into(), result: sync_loop }];
    all.extend(tasks.into_iter().map(|task| Check { name: task.name, result: task.lasting }));
    all
}

/// Answers a request. `path` is the part after `/healthz`; `kubelet` are the checks beside `ping`.
pub fn answer(path: &str, query: &[(String, String)], kubelet: Vec<Check>) -> Answer {
    // This check passes whenever the server answers.
    let mut all = vec![Check { name: "ping".into(), result: Ok(()) }];
    all.extend(kubelet);
    let name = path.trim_start_matches('/');
    if !name.is_empty() {
        return match all.into_iter().find(|check| check.name == name).map(|check| check.result) {
            None => answer::text(StatusCode::NOT_FOUND, "404 page not found\n"),
            Some(Ok(())) => answer::text(StatusCode::OK, "ok"),
            Some(Err(why)) => {
                answer::text(StatusCode::INTERNAL_SERVER_ERROR, format!("internal server error: {why}\n"))
            }
        };
    }
    let excluded: Vec<&str> =
        query.iter().filter(|(name, _)| name == "exclude").map(|(_, value)| value.as_str()).collect();
    let verbose = query.iter().any(|(name, _)| name == "verbose");
    let (status, text, log) = report(&all, &excluded, verbose);
    if !log.is_empty() {
        // The client learns only which checks failed; the log has the cause.
        tracing::info!(failed = log, "health checks failed");
    }
    answer::text(status, text)
}

/// Returns the status, the body, which is always verbose on failure, and the causes for the log.
fn report(checks: &[Check], excluded: &[&str], verbose: bool) -> (StatusCode, String, String) {
    let (mut lines, mut log) = (String::new(), Vec::new());
    for Check { name, result } in checks {
        match result {
            _ if excluded.contains(&&**name) => lines.push_str(&format!("[+]{name} excluded: ok\n")),
            Ok(()) => lines.push_str(&format!("[+]{name} ok\n")),
            Err(why) => {
                lines.push_str(&format!("[-]{name} failed: reason withheld\n"));
                log.push(format!("{name}: {why}"));
            }
        }
    }
    let mut unknown: Vec<String> =
        excluded.iter().filter(|e| !checks.iter().any(|c| c.name == **e)).map(|e| format!("{e:?}")).collect();
    unknown.sort();
    unknown.dedup();
    if !unknown.is_empty() {
        let names = unknown.join(",");
        lines.push_str(&format!("warn: some health checks cannot be excluded: no matches for {names}\n"));
    }
    let (status, text) = match (log.is_empty(), verbose) {
        (false, _) => (StatusCode::INTERNAL_SERVER_ERROR, format!("{lines}healthz check failed\n")),
        (true, true) => (StatusCode::OK, format!("{lines}healthz check passed\n")),
        (true, false) => (StatusCode::OK, "ok".to_owned()),
    };
    (status, text, log.join("; "))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn task(name: &'static str, result: Result<(), &str>, lasting: Result<(), &str>) -> Health {
        let text = |result: Result<(), &str>| result.map_err(str::to_owned);
        Health { name: name.into(), result: text(result), lasting: text(lasting) }
    }

    #[test]
    fn tasks_that_are_lastingly_down_count() {
        let tasks = vec![
            task("kubelet", Ok(()), Ok(())),
            task("node-status", Err("now"), Ok(())),
            task("pod-workers", Ok(()), Err("again and again")),
        ];
        let well = checks(Ok(()), tasks[..2].to_vec());
        let mut all = vec![Check { name: "ping".into(), result: Ok(()) }];
        all.extend(well);
        assert_eq!(report(&all, &[], false), (StatusCode::OK, "ok".into(), String::new()));
        let lines = "[+]ping ok\n[+]syncloop ok\n[+]kubelet ok\n[+]node-status ok\nhealthz check passed\n";
        assert_eq!(report(&all, &[], true).1, lines);

        all.extend(checks(Err("it stands".into()), tasks).into_iter().filter(|c| c.result.is_err()));
        let (status, text, log) = report(&all, &[], false);
        assert_eq!(status, StatusCode::INTERNAL_SERVER_ERROR);
        assert!(text.ends_with(
            "[-]syncloop failed: reason withheld\n[-]pod-workers failed: reason withheld\nhealthz check failed\n"
        ));
        assert_eq!(log, "syncloop: it stands; pod-workers: again and again");
        let (status, text, _) = report(&all, &["syncloop", "pod-workers", "b"], true);
        assert_eq!(status, StatusCode::OK);
        assert!(text.contains("[+]syncloop excluded: ok\n"));
        assert!(text.contains("warn: some health checks cannot be excluded: no matches for \"b\"\n"));
    }
}
