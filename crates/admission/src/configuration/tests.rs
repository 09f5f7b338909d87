//! Tests of admission configuration files, valid and invalid.

use serde_json::json;

use super::*;
use crate::config::{EventLimit, LimitType};
use crate::pod_security::{Level, Version};

/// A directory that is removed with its files.
struct Folder(PathBuf);

impl Folder {
    fn new() -> Self {
        let path = std::env::temp_dir().join(format!("admission-{}", uuid::Uuid::new_v4()));
        std::fs::create_dir_all(&path).unwrap();
        Self(path)
    }

    fn write(&self, name: &str, text: &str) -> PathBuf {
        let path = self.0.join(name);
        std::fs::write(&path, text).unwrap();
        path
    }

    /// Reads this file as the server does, with EventRateLimit and PodNodeSelector enabled.
    fn read(&self, text: &str) -> Result<AdmissionConfig, String> {
        let settings = AdmissionConfig {
            enabled: vec!["PodNodeSelector".into()],
            control_config_file: Some(self.write("admission.yaml", text)),
            ..AdmissionConfig::default()
        };
        read(settings).map_err(|e| e.to_string())
    }

    /// Reads one plugin's inline configuration.
    fn plugin(&self, name: &str, configuration: &Value) -> Result<AdmissionConfig, String> {
        let file = json!({
            "apiVersion": "apiserver.config.k8s.io/v1", "kind": "AdmissionConfiguration",
            "plugins": [{"name": name, "configuration": configuration}],
        });
        let settings = AdmissionConfig {
            enabled: ["PodNodeSelector", "EventRateLimit"].iter().map(|n| (*n).to_owned()).collect(),
            control_config_file: Some(self.write("plugin.json", &file.to_string())),
            event_limits: vec![EventLimit { type_: LimitType::Server, qps: 1, burst: 1, cache_size: 0 }],
            ..AdmissionConfig::default()
        };
        read(settings).map_err(|e| e.to_string())
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

const HEAD: &str = "apiVersion: apiserver.config.k8s.io/v1\nkind: AdmissionConfiguration\n";

#[test]
fn settings_come_inline_or_from_files_beside() {
    let folder = Folder::new();
    folder.write("nodes.yaml", "podNodeSelectorPluginConfig: {clusterDefaultNodeSelector: a=b, team: c=d}");
    let settings = folder
        .read(&format!(
            "{HEAD}plugins:\n- name: PodNodeSelector\n  path: nodes.yaml\n- name: PodSecurity\n  configuration:\n    \
             apiVersion: pod-security.admission.config.k8s.io/v1\n    kind: PodSecurityConfiguration\n    \
             defaults: {{enforce: baseline, enforce-version: v1.30, warn: restricted}}\n    \
             exemptions: {{usernames: [root], namespaces: [kube-system], runtimeClasses: [kata]}}\n"
        ))
        .unwrap();
    assert_eq!(settings.node_selectors["team"], "c=d");
    let policy = settings.pod_security_defaults;
    assert_eq!((policy.enforce.level, policy.enforce.version), (Level::Baseline, Version::Minor(30)));
    assert_eq!((policy.warn.level, policy.audit.level), (Level::Restricted, Level::Privileged));
    assert_eq!(settings.pod_security_exemptions.runtime_classes, ["kata"]);
    // The legacy form: the plugin's own file.
    let settings = folder.read("podNodeSelectorPluginConfig: {team: x=y}").unwrap();
    assert_eq!(settings.node_selectors["team"], "x=y");
}

#[test]
fn what_cannot_be_followed_is_refused() {
    let folder = Folder::new();
    for (text, expected) in [
        ("kind: AdmissionConfiguration", "Object 'apiVersion' is missing in"),
        (
            "apiVersion: apiserver.config.k8s.io/v2\nkind: AdmissionConfiguration",
            "no kind \"AdmissionConfiguration\" is registered for version \"apiserver.config.k8s.io/v2\"",
        ),
        (&format!("{HEAD}plugin: []"), "strict decoding error: unknown field \"plugin\""),
        (
            &format!("{HEAD}plugins: [{{name: PodSecurity, config: {{}}}}]"),
            "strict decoding error: unknown field \"plugins[0].config\"",
        ),
        (&format!("{HEAD}plugins: [{{name: PodSecurty}}]"), "unknown admission plugin: PodSecurty"),
        (
            &format!("{HEAD}plugins: [{{name: PodSecurity, path: none.yaml}}]"),
            "couldn't init admission plugin \"PodSecurity\": Couldn't open admission plugin configuration",
        ),
        ("a: [", "error converting YAML to JSON"),
        (&format!("{HEAD}{HEAD}"), "error converting YAML to JSON"),
        (&format!("{HEAD}plugin: []"), "failed to read plugin config: strict decoding error"),
    ] {
        let error = folder.read(text).unwrap_err();
        assert!(error.contains(expected), "{text}: {error}");
    }
    let missing =
        AdmissionConfig { control_config_file: Some(folder.0.join("absent")), ..AdmissionConfig::default() };
    let error = read(missing).unwrap_err().to_string();
    assert!(
        error
            .starts_with("failed to read plugin config: unable to read admission control configuration from"),
        "{error}"
    );
}

#[test]
fn plugins_refuse_what_they_cannot_follow() {
    let folder = Folder::new();
    let security = |more: Value| {
        let mut value = json!({"apiVersion": "pod-security.admission.config.k8s.io/v1", "kind": "PodSecurityConfiguration"});
        value.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        ("PodSecurity", value)
    };
    let events = |limits: Value| {
        let version = "eventratelimit.admission.k8s.io/v1alpha1";
        ("EventRateLimit", json!({"apiVersion": version, "kind": "Configuration", "limits": limits}))
    };
    let quota = |limited: Value| {
        let version = "apiserver.config.k8s.io/v1";
        let kind = "ResourceQuotaConfiguration";
        ("ResourceQuota", json!({"apiVersion": version, "kind": kind, "limitedResources": limited}))
    };
    for ((name, value), expected) in [
        (
            security(json!({"defaults": {"enforcement": "x"}})),
            "strict decoding error: unknown field \"defaults.enforcement\"",
        ),
        (
            security(json!({"apiVersion": "pod-security.admission.config.k8s.io/v2"})),
            "no kind \"PodSecurityConfiguration\" is registered for version \"pod-security.admission.config.k8s.io/v2\"",
        ),
        (
            security(json!({"defaults": {"enforce": "strict"}})),
            "defaults.enforce: Invalid value: \"strict\": must be one of privileged, baseline, restricted",
        ),
        (
            security(json!({"defaults": {"audit-version": "1.2"}})),
            "defaults.audit-version: Invalid value: \"1.2\": must be \"latest\" or \"v1.x\"",
        ),
        (
            security(json!({"exemptions": {"usernames": ["a", "", "a"]}})),
            "[exemptions.usernames[1]: Invalid value: \"\": username must not be empty, exemptions.usernames[2]: Duplicate value: \"a\"]",
        ),
        (events(json!([])), "limits: Invalid value: []: must not be empty"),
        (
            events(json!([{"type": "User", "qps": 0, "burst": -1, "cacheSize": -1}])),
            "[limits[0].burst: Invalid value: -1: must be positive, limits[0].qps: Invalid value: 0: must be positive, limits[0].cacheSize: Invalid value: -1: must not be negative]",
        ),
        (
            events(json!([{"type": "Pod", "qps": 1, "burst": 1}])),
            "limits[0].type: Unsupported value: \"Pod\": supported values: \"Server\", \"Namespace\", \"User\", \"SourceAndObject\"",
        ),
        (quota(json!([{"apiGroup": "apps"}])), "limitedResources[0].resource: Required value"),
        (
            quota(json!([{"resource": "pods", "matchScopes": [{"scope": "x"}]}])),
            "strict decoding error: unknown field \"limitedResources[0].matchScopes[0].scope\"",
        ),
    ] {
        let error = folder.plugin(name, &value).unwrap_err();
        assert_eq!(error, format!("couldn't init admission plugin \"{name}\": {expected}"));
    }
    let version = "apiserver.config.k8s.io/v1";
    for (name, kind, more, expected) in [
        (
            "ValidatingAdmissionWebhook",
            "WebhookAdmissionConfiguration",
            json!({"kubeConfigFile": "relative"}),
            "kubeConfigFile: Invalid value: \"relative\": must be an absolute file path",
        ),
        (
            "MutatingAdmissionWebhook",
            "WebhookAdmissionConfiguration",
            json!({"kubeConfigFile": "/nowhere"}),
            "cannot read /nowhere",
        ),
        (
            "MutatingAdmissionWebhook",
            "WebhookAdmission",
            json!({}),
            "no kind \"WebhookAdmission\" is registered",
        ),
        (
            "ValidatingAdmissionPolicy",
            "ValidatingAdmissionPolicyConfiguration",
            json!({"staticManifestsDir": "/x"}),
            "staticManifestsDir: Invalid value: \"/x\": unable to read",
        ),
        (
            "MutatingAdmissionWebhook",
            "WebhookAdmissionConfiguration",
            json!({"staticManifestsDir": "x"}),
            "staticManifestsDir: Invalid value: \"x\": must be an absolute file path",
        ),
        (
            "MutatingAdmissionPolicy",
            "MutatingAdmissionPolicyConfiguration",
            json!({"staticManifestsDir": "/proc/self/stat"}),
            "must be a directory",
        ),
        ("MutatingAdmissionPolicy", "ValidatingAdmissionPolicyConfiguration", json!({}), "no kind"),
    ] {
        let mut value = json!({"apiVersion": version, "kind": kind});
        value.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        let error = folder.plugin(name, &value).unwrap_err();
        assert!(error.contains(expected), "{name}: {error}");
    }
    let error = folder.plugin("PodNodeSelector", &json!({"podNodeSelectorPluginConfig": {"x": "a"}}));
    assert!(error.unwrap_err().contains("podNodeSelectorPluginConfig.x: invalid selector: [a]"));
    let (name, value) = events(json!([{"type": "SourceAndObject", "qps": 2, "burst": 3, "cacheSize": 4}]));
    let limit = EventLimit { type_: LimitType::SourceAndObject, qps: 2, burst: 3, cache_size: 4 };
    assert_eq!(folder.plugin(name, &value).unwrap().event_limits, [limit]);
    let (name, value) = quota(json!([{"resource": "pods", "matchContains": ["cpu"]}]));
    assert_eq!(folder.plugin(name, &value).unwrap().limited_resources[0].match_contains, ["cpu"]);
}

#[test]
fn event_rate_limit_does_not_run_without_limits() {
    let settings = AdmissionConfig { enabled: vec!["EventRateLimit".into()], ..AdmissionConfig::default() };
    assert_eq!(
        read(settings).unwrap_err().to_string(),
        "couldn't init admission plugin \"EventRateLimit\": limits: Invalid value: null: must not be empty"
    );
}
