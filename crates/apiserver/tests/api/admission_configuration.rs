//! An admission configuration file, tested by requests.

use std::sync::Arc;

use knarr_apiserver::{ApiServer, UserInfo};
use knarr_storage::{Embedded, Options, Store};
use serde_json::json;

use crate::harness::{PODS, User, config, default_account, pod};

const FILE: &str = "
apiVersion: apiserver.config.k8s.io/v1
kind: AdmissionConfiguration
plugins:
- name: PodSecurity
  configuration:
    apiVersion: pod-security.admission.config.k8s.io/v1
    kind: PodSecurityConfiguration
    defaults: {enforce: baseline}
    exemptions: {usernames: [operator]}
- name: EventRateLimit
  configuration:
    apiVersion: eventratelimit.admission.k8s.io/v1alpha1
    kind: Configuration
    limits: [{type: Namespace, qps: 1, burst: 1}]
";

#[tokio::test]
async fn the_file_holds_for_requests() {
    let path = std::env::temp_dir().join(format!("admission-{}.yaml", uuid::Uuid::new_v4()));
    std::fs::write(&path, FILE).unwrap();
    let store: Arc<dyn Store> = Arc::new(Embedded::memory(Options::default()));
    let mut config = config(store);
    config.admission.enabled = vec!["EventRateLimit".into()];
    config.admission.control_config_file = Some(path.clone());
    let server = ApiServer::new(config.clone()).await.unwrap();
    let as_user = |name: &str| User(server.transport(UserInfo::new(name, &["system:masters"])));
    let (admin, operator) = (as_user("admin"), as_user("operator"));
    default_account(&admin).await;
    let mut privileged = pod("a");
    privileged["spec"]["containers"][0]["securityContext"] = json!({"privileged": true});
    let reply = admin.post(PODS, &privileged).await;
    assert_eq!(reply.code, 403);
    assert!(reply.message().contains("violates PodSecurity \"baseline:latest\""), "{}", reply.message());
    operator.post(PODS, &privileged).await.expect(201);

    let event = |name: &str| {
        let object = json!({"kind": "Pod", "namespace": "default", "name": "a"});
        json!({"apiVersion": "v1", "kind": "Event", "metadata": {"name": name}, "involvedObject": object})
    };
    let events = "/api/v1/namespaces/default/events";
    admin.post(events, &event("a")).await.expect(201);
    let reply = admin.post(events, &event("b")).await;
    assert_eq!(reply.code, 429);
    assert!(
        reply.message().contains("limit reached on type Namespace for key default"),
        "{}",
        reply.message()
    );

    std::fs::write(&path, FILE.replace("enforce:", "enforced:")).unwrap();
    let error = ApiServer::new(config).await.err().map(|e| e.to_string());
    let expected = "admission: couldn't init admission plugin \"PodSecurity\": strict decoding error: unknown field \"defaults.enforced\"";
    assert_eq!(error.as_deref(), Some(expected));
    std::fs::remove_file(&path).unwrap();
}
