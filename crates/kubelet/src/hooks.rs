//! Lifecycle hooks: postStart and preStop.

use std::time::Duration;

use k8s_openapi::api::core::v1::{Container, LifecycleHandler, Pod};

use crate::http_get;
use crate::pod;
use crate::runtime::{ContainerRuntime, MAX_EXEC_OUTPUT};

/// The time limit of an HTTP hook; a preStop hook is also limited by the grace period.
const HTTP_TIMEOUT: Duration = Duration::from_secs(60);

/// Runs the hook to its end. The error is for the container's state; events do not contain it, as it may contain
/// secrets.
pub async fn run(
    runtime: &dyn ContainerRuntime,
    container_id: &str,
    pod: &Pod,
    container: &Container,
    pod_ip: &str,
    handler: &LifecycleHandler,
) -> Result<(), String> {
    let whose =
        || format!("for Container {:?} in Pod {:?} failed - error:", container.name, pod::format(pod));
    if let Some(exec) = &handler.exec {
        let command = exec.command.clone().unwrap_or_default();
        let shown = command.join(" ");
        return match runtime.exec_sync(container_id, &command, 0).await {
            Ok(output) if output.exit_code == 0 => Ok(()),
            Ok(output) => {
                let mut text = [output.stdout, output.stderr].concat();
                text.truncate(MAX_EXEC_OUTPUT);
                let text = String::from_utf8_lossy(&text).into_owned();
                Err(format!(
                    "Exec lifecycle hook ([{shown}]) {} command '{shown}' exited with {}: {}, message: {text:?}",
                    whose(),
                    output.exit_code,
                    text.trim_end()
                ))
            }
            Err(error) => Err(format!("Exec lifecycle hook ([{shown}]) {} {error}, message: \"\"", whose())),
        };
    }
    if let Some(action) = &handler.http_get {
        let path = action.path.as_deref().unwrap_or("");
        let failed = |error: String| format!("HTTP lifecycle hook ({path}) {} {error}", whose());
        let mut request = http_get::request(action, container, pod_ip, "lifecycle").map_err(failed)?;
        let mut sent = http_get::get(&request, HTTP_TIMEOUT).await;
        if sent.is_err() && request.tls {
            // Many hooks were written when the scheme was ignored.
            request.tls = false;
            request.headers.remove(http::header::AUTHORIZATION);
            sent = http_get::get(&request, HTTP_TIMEOUT).await.or(sent);
        }
        // Any response counts as success.
        return sent.map(drop).map_err(failed);
    }
    if let Some(sleep) = &handler.sleep {
        let seconds = u64::try_from(sleep.seconds).unwrap_or(0);
        tokio::time::sleep(Duration::from_secs(seconds)).await;
        return Ok(());
    }
    Err("Cannot run handler: invalid handler".to_owned())
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use k8s_openapi::api::core::v1::ExecAction;
    use knarr_client::clock::SystemClock;

    use super::*;
    use crate::pod_workers::fake_runtime::FakeRuntime;

    #[tokio::test]
    async fn a_talkative_hook_is_cut() {
        let runtime = FakeRuntime::new(Arc::new(SystemClock));
        runtime.lock().failing_commands.insert("talk".into(), (1, "x".repeat(1 << 20)));
        let command = Some(vec!["talk".to_owned()]);
        let handler = LifecycleHandler { exec: Some(ExecAction { command }), ..LifecycleHandler::default() };
        let (pod, container) = (Pod::default(), Container::default());
        let error = run(&*runtime, "web-0", &pod, &container, "", &handler).await.unwrap_err();
        assert!(error.contains("exited with 1: xxx") && error.len() < 3 * MAX_EXEC_OUTPUT, "{}", error.len());
    }
}
