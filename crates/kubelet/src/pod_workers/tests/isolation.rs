//! Isolation that a pod asks for is given or refused, never left out silently.

use super::*;

fn with(field: &str, value: Value) -> Value {
    let mut spec = web(json!({}));
    spec[field] = value;
    spec
}

#[tokio::test(start_paused = true)]
async fn user_namespaces_that_the_runtime_does_not_have_are_refused() {
    let lab = Lab::new().await;
    lab.add(with("hostUsers", json!(false)));
    tokio::time::sleep(Duration::from_secs(5)).await;
    let told = "FailedCreatePodSandBox: Failed to create pod sandbox: can't set `spec.hostUsers: false`, runtime \
                does not support user namespaces";
    assert!(lab.events().await.contains(&told.to_owned()), "{:?}", lab.events().await);
    assert_eq!(lab.phase(), "Pending");
    assert_eq!(lab.runtime.calls(), Vec::<String>::new());
}
