//! Policies and webhooks from files, tested by requests.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use knarr_apiserver::ApiServer;
use knarr_storage::{Embedded, Options, Store};
use knarr_testing::hook_server::{HookServer, Reply};
use serde_json::{Value, json};

use crate::harness::{CONFIG_MAPS, Harness, User, config, config_map};

const GROUP: &str = "/apis/admissionregistration.k8s.io/v1";
const PATIENCE: Duration = Duration::from_secs(60);

struct Folder(PathBuf);

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

impl Folder {
    /// Creates a directory of manifests for each plugin that supports them, and the configuration that names the
    /// directories.
    fn new() -> Self {
        let folder = Self(std::env::temp_dir().join(format!("manifests-{}", uuid::Uuid::new_v4())));
        let plugins: Vec<Value> = [
            ("MutatingAdmissionPolicy", "MutatingAdmissionPolicyConfiguration"),
            ("MutatingAdmissionWebhook", "WebhookAdmissionConfiguration"),
            ("ValidatingAdmissionPolicy", "ValidatingAdmissionPolicyConfiguration"),
            ("ValidatingAdmissionWebhook", "WebhookAdmissionConfiguration"),
        ]
        .into_iter()
        .map(|(name, kind)| {
            let path = folder.0.join(name);
            std::fs::create_dir_all(&path).unwrap();
            json!({"name": name, "configuration": {
                "apiVersion": "apiserver.config.k8s.io/v1", "kind": kind, "staticManifestsDir": path,
            }})
        })
        .collect();
        let file = json!({
            "apiVersion": "apiserver.config.k8s.io/v1", "kind": "AdmissionConfiguration", "plugins": plugins,
        });
        std::fs::write(folder.configuration(), file.to_string()).unwrap();
        folder
    }

    fn configuration(&self) -> PathBuf {
        self.0.join("admission.json")
    }

    /// Writes the objects to the plugin's directory, as one file.
    fn put(&self, plugin: &str, objects: &[Value]) {
        let texts: Vec<String> = objects.iter().map(Value::to_string).collect();
        let (folder, file) = (self.0.join(plugin), "all.yaml");
        std::fs::write(folder.join("all.new"), texts.join("\n---\n")).unwrap();
        std::fs::rename(folder.join("all.new"), folder.join(file)).unwrap();
    }

    async fn server(&self) -> Harness {
        let path = self.configuration();
        let store: Arc<dyn Store> = Arc::new(Embedded::memory(Options::default()));
        Harness::on(store, move |config| config.admission.control_config_file = Some(path)).await
    }
}

fn object(kind: &str, name: &str, spec: Value) -> Value {
    json!({
        "apiVersion": "admissionregistration.k8s.io/v1", "kind": kind, "metadata": {"name": name}, "spec": spec,
    })
}

/// Returns a policy and binding that deny objects for which the expression is false.
fn denying(name: &str, resources: (&str, &str), expression: &str) -> [Value; 2] {
    let rule = json!({"operations": ["CREATE", "UPDATE", "DELETE"], "apiGroups": [resources.0],
        "apiVersions": ["*"], "resources": [resources.1]});
    let spec =
        json!({"matchConstraints": {"resourceRules": [rule]}, "validations": [{"expression": expression}]});
    [
        object("ValidatingAdmissionPolicy", name, spec),
        object(
            "ValidatingAdmissionPolicyBinding",
            name,
            json!({"policyName": name, "validationActions": ["Deny"]}),
        ),
    ]
}

async fn until(what: &str, mut holds: impl AsyncFnMut() -> bool) {
    let end = Instant::now() + PATIENCE;
    while !holds().await {
        assert!(Instant::now() < end, "{what} did not come");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

async fn creates(user: &User, name: &str) -> u16 {
    user.post(&format!("{CONFIG_MAPS}?dryRun=All"), &config_map(name)).await.code
}

#[tokio::test]
async fn policies_of_files_are_in_force_and_follow_their_files() {
    let folder = Folder::new();
    let maps = denying("maps.static.k8s.io", ("", "configmaps"), "object.metadata.name != 'bad'");
    folder.put("ValidatingAdmissionPolicy", &maps);
    let harness = folder.server().await;
    let admin = harness.admin();
    let reply = admin.post(CONFIG_MAPS, &config_map("bad")).await;
    let message =
        "ValidatingAdmissionPolicy 'maps.static.k8s.io' with binding 'maps.static.k8s.io' denied request";
    assert!(reply.code == 422 && reply.message().contains(message), "{} {}", reply.code, reply.message());
    admin.post(CONFIG_MAPS, &config_map("good")).await.expect(201);

    // The API does not list them, and refuses objects with such names.
    let path = format!("{GROUP}/validatingadmissionpolicies");
    assert_eq!(admin.get(&path).await.expect(200)["items"], json!([]));
    let reply = admin.post(&path, &maps[0]).await;
    assert!(
        reply.message().contains("reserved for static manifest-based configurations"),
        "{}",
        reply.message()
    );

    // Policies of the API apply in addition.
    let more = denying("more", ("", "configmaps"), "object.metadata.name != 'worse'");
    admin.post(&path, &more[0]).await.expect(201);
    admin.post(&format!("{GROUP}/validatingadmissionpolicybindings"), &more[1]).await.expect(201);
    until("the policy of the API", async || creates(&admin, "worse").await == 422).await;
    assert_eq!((creates(&admin, "bad").await, creates(&admin, "fine").await), (422, 201));

    // They also apply to policies, but not to reviews.
    let protecting = denying("own.static.k8s.io", ("admissionregistration.k8s.io", "*"), "false");
    let reviews = denying("reviews.static.k8s.io", ("authorization.k8s.io", "*"), "false");
    folder.put("ValidatingAdmissionPolicy", &[&protecting[..], &reviews[..]].concat());
    until("the changed file", async || creates(&admin, "bad").await == 201).await;
    assert_eq!(admin.delete(&format!("{path}/more")).await.code, 422);
    assert_eq!(creates(&admin, "worse").await, 422);
    let review = json!({"apiVersion": "authorization.k8s.io/v1", "kind": "SelfSubjectAccessReview",
        "spec": {"nonResourceAttributes": {"path": "/", "verb": "get"}}});
    admin.post("/apis/authorization.k8s.io/v1/selfsubjectaccessreviews", &review).await.expect(201);

    std::fs::remove_file(folder.0.join("ValidatingAdmissionPolicy/all.yaml")).unwrap();
    until("no file", async || admin.delete(&format!("{path}/more?dryRun=All")).await.code == 200).await;
}

#[tokio::test]
async fn mutating_policies_of_files_change_objects() {
    let folder = Folder::new();
    let rule = json!({"operations": ["CREATE"], "apiGroups": [""], "apiVersions": ["v1"], "resources": ["configmaps"]});
    let marking = |expression: &str| {
        let spec = json!({"matchConstraints": {"resourceRules": [rule]}, "reinvocationPolicy": "Never",
            "mutations": [{"patchType": "ApplyConfiguration", "applyConfiguration": {"expression": expression}}]});
        [
            object("MutatingAdmissionPolicy", "mark.static.k8s.io", spec),
            object(
                "MutatingAdmissionPolicyBinding",
                "mark.static.k8s.io",
                json!({"policyName": "mark.static.k8s.io"}),
            ),
        ]
    };
    let set = |value: &str| format!("Object{{data: {{\"mark\": \"{value}\"}}}}");
    folder.put("MutatingAdmissionPolicy", &marking(&set("one")));
    let harness = folder.server().await;
    let admin = harness.admin();
    let mark = async || {
        let created = admin.post(&format!("{CONFIG_MAPS}?dryRun=All"), &config_map("a")).await.expect(201);
        created["data"]["mark"].clone()
    };
    assert_eq!(mark().await, "one");
    folder.put("MutatingAdmissionPolicy", &marking(&set("two")));
    until("the changed file", async || mark().await == "two").await;
}

#[tokio::test]
async fn webhooks_of_files_are_called() {
    let folder = Folder::new();
    let server = HookServer::start(&["127.0.0.1"], |received| {
        let request = &received.body["request"];
        let response = json!({"uid": request["uid"], "allowed": request["name"] != "bad"});
        Reply::Json(
            json!({"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "response": response}),
        )
    })
    .await
    .unwrap();
    let hook = |path: &str, group: &str, resource: &str| {
        json!({
            "name": format!("{resource}.example.com"), "admissionReviewVersions": ["v1"], "sideEffects": "None",
            "clientConfig": {"url": server.url(path), "caBundle": STANDARD.encode(&server.ca_pem)},
            "rules": [{"operations": ["CREATE"], "apiGroups": [group], "apiVersions": ["v1"], "resources": [resource]}],
        })
    };
    let configuration = |kind: &str, hooks: Value| {
        json!({"apiVersion": "admissionregistration.k8s.io/v1", "kind": kind,
            "metadata": {"name": "own.static.k8s.io"}, "webhooks": hooks})
    };
    let both = json!([
        hook("/maps", "", "configmaps"),
        hook("/own", "admissionregistration.k8s.io", "validatingwebhookconfigurations"),
    ]);
    folder.put("ValidatingAdmissionWebhook", &[configuration("ValidatingWebhookConfiguration", both)]);
    let mutating = json!([hook("/mutate", "", "configmaps")]);
    folder.put("MutatingAdmissionWebhook", &[configuration("MutatingWebhookConfiguration", mutating)]);
    let harness = folder.server().await;
    let admin = harness.admin();
    let paths = |server: &HookServer| -> Vec<String> {
        let mut received = server.received();
        // The server itself writes some at its start.
        received.retain(|r| r.body["request"]["name"] == "good");
        received.iter().map(|r| r.path.split('?').next().unwrap_or("").to_owned()).collect()
    };
    admin.post(CONFIG_MAPS, &config_map("good")).await.expect(201);
    assert_eq!(paths(&server), ["/mutate", "/maps"]);
    let reply = admin.post(CONFIG_MAPS, &config_map("bad")).await;
    assert_eq!(reply.code, 400, "{}", reply.message());
    assert!(reply.message().contains("admission webhook \"configmaps.example.com\" denied the request"));
    let named = json!({"apiVersion": "admissionregistration.k8s.io/v1", "kind": "ValidatingWebhookConfiguration",
        "metadata": {"name": "bad"}, "webhooks": []});
    let reply = admin.post(&format!("{GROUP}/validatingwebhookconfigurations"), &named).await;
    assert_eq!(reply.code, 400, "{}", reply.message());
}

#[tokio::test]
async fn a_server_does_not_start_without_what_its_files_say() {
    let folder = Folder::new();
    let lonely = object(
        "ValidatingAdmissionPolicyBinding",
        "a.static.k8s.io",
        json!({
            "policyName": "b.static.k8s.io", "validationActions": ["Deny"],
        }),
    );
    folder.put("ValidatingAdmissionPolicy", &[lonely]);
    let error = start(&folder.configuration()).await;
    let expected = "binding \"a.static.k8s.io\" references policy \"b.static.k8s.io\" which does not exist";
    assert!(error.contains("couldn't init admission plugin \"ValidatingAdmissionPolicy\""), "{error}");
    assert!(error.contains(expected), "{error}");
}

async fn start(file: &Path) -> String {
    let store: Arc<dyn Store> = Arc::new(Embedded::memory(Options::default()));
    let mut config = config(store);
    config.admission.control_config_file = Some(file.to_owned());
    match ApiServer::new(config).await {
        Ok(_) => "it started".to_owned(),
        Err(error) => error.to_string(),
    }
}
