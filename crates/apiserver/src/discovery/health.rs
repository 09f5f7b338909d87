//! `/livez`, `/readyz`, `/healthz`: one check after another, all or by name.

use std::time::Duration;

use knarr_storage::NoSpace;

use crate::http::output::Answer;
use crate::metrics::Metric;
use crate::registry::Request;
use crate::server::Inner;

/// A store that does not answer in this time is not healthy.
const STORE_WITHIN: Duration = Duration::from_secs(2);

/// A named check; `Err` says what is wrong.
struct Check {
    name: &'static str,
    /// Only asked by `readyz`.
    readiness: bool,
    /// Shown, and failing when asked for by name, but of no effect on the whole: what it says is not mended by a restart,
    /// nor by taking away from clients the one server where they can delete something.
    informs: bool,
    result: Result<(), String>,
}

async fn checks(server: &Inner) -> Vec<Check> {
    let (store, space) = tokio::select! {
        status = server.store.status() => match status {
            Ok(status) => (status.failure.map_or(Ok(()), Err), space(status.no_space)),
            Err(error) => (Err(error.to_string()), Ok(())),
        },
        () = server.clock.sleep(STORE_WITHIN) => (Err("context deadline exceeded".to_owned()), Ok(())),
    };
    let stopping =
        if server.leaving.is_cancelled() { Err("process is shutting down".to_owned()) } else { Ok(()) };
    let check = |name, readiness, result| Check { name, readiness, informs: false, result };
    vec![
        check("ping", false, Ok(())),
        check("log", false, Ok(())),
        check("etcd", false, store.clone()),
        check("etcd-readiness", true, store),
        Check { name: "storage-space", readiness: false, informs: true, result: space },
        check("informer-sync", true, Ok(())),
        check("poststarthook/rbac/bootstrap-roles", false, Ok(())),
        check("poststarthook/scheduling/bootstrap-system-priority-classes", false, Ok(())),
        check("shutdown", true, stopping),
    ]
}

/// The store takes deletions alone when there is no room.
fn space(no_space: Option<NoSpace>) -> Result<(), String> {
    let place = match no_space {
        None => return Ok(()),
        Some(NoSpace::Disk) => "the disk is full",
        Some(NoSpace::Quota) => "the quota (--quota-backend-bytes) is used up",
        Some(NoSpace::Backend) => "etcd has raised its alarm",
    };
    Err(format!("database space exceeded: {place}; delete objects, or make room"))
}

/// `parts` is the path: the endpoint, then perhaps one check.
pub async fn answer(server: &Inner, request: &Request, parts: &[&str]) -> Answer {
    let endpoint = parts.first().copied().unwrap_or("healthz");
    let all = checks(server).await;
    for check in &all {
        let (fine, word) = if check.result.is_ok() { (1.0, "success") } else { (0.0, "error") };
        server.metrics.set(Metric::HealthCheck, &[check.name, endpoint], fine);
        server.metrics.increment(Metric::HealthChecks, &[check.name, word, endpoint]);
    }
    let mut relevant: Vec<&Check> = all.iter().filter(|c| endpoint == "readyz" || !c.readiness).collect();
    let one = parts.get(1..).unwrap_or_default().join("/");
    if !one.is_empty() {
        relevant.retain(|c| c.name == one);
        return match relevant.first() {
            None => Answer::text(404, "404 page not found\n"),
            Some(Check { result: Ok(()), .. }) => Answer::text(200, "ok"),
            Some(Check { result: Err(why), .. }) => {
                Answer::text(500, format!("internal server error: {why}\n"))
            }
        };
    }
    let excluded: Vec<&str> = request.query.all("exclude").collect();
    let mut lines = String::new();
    let mut failed = false;
    for check in &relevant {
        if excluded.contains(&check.name) {
            lines.push_str(&format!("[+]{} excluded: ok\n", check.name));
        } else if check.result.is_ok() {
            lines.push_str(&format!("[+]{} ok\n", check.name));
        } else if check.informs {
            lines.push_str(&format!("[-]{} failed, which is not counted: reason withheld\n", check.name));
        } else {
            // Whoever may ask need not be told more; the log has it.
            failed = true;
            lines.push_str(&format!("[-]{} failed: reason withheld\n", check.name));
        }
    }
    let unknown: Vec<String> = excluded
        .iter()
        .filter(|e| !relevant.iter().any(|c| c.name == **e))
        .map(|e| format!("\"{e}\""))
        .collect();
    if !unknown.is_empty() {
        lines.push_str(&format!(
            "warn: some health checks cannot be excluded: no matches for {}\n",
            unknown.join(",")
        ));
    }
    if failed {
        return Answer::text(500, format!("{lines}{endpoint} check failed\n"));
    }
    if request.query.get("verbose").is_some() {
        return Answer::text(200, format!("{lines}{endpoint} check passed\n"));
    }
    Answer::text(200, "ok")
}
