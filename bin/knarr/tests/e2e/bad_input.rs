//! Invalid requests get upstream's status codes and messages, and change nothing.

use serde_json::{Value, json};

use crate::cluster::{Cluster, shared};
use crate::objects::{config_map, sleeper, web};

struct Answer {
    code: u64,
    status: Value,
    headers: Value,
}

fn raw(cluster: &Cluster, arguments: &[&str]) -> Answer {
    let text = cluster.python("raw.py", arguments);
    let answer: Value = serde_json::from_str(&text).expect("JSON from raw.py");
    let body = answer["body"].as_str().unwrap_or_default();
    Answer {
        code: answer["code"].as_u64().unwrap_or_default(),
        status: serde_json::from_str(body).unwrap_or_else(|_| json!({"message": body})),
        headers: answer["headers"].clone(),
    }
}

impl Answer {
    #[track_caller]
    fn is(&self, code: u64, reason: &str, message: &str) {
        let said = self.status["message"].as_str().unwrap_or_default();
        assert_eq!((self.code, self.status["reason"].as_str().unwrap_or_default()), (code, reason), "{said}");
        assert!(said.starts_with(message), "`{said}` does not start with `{message}`");
        assert_eq!(self.status["kind"], "Status");
        assert_eq!(self.status["status"], "Failure");
        assert_eq!(self.status["code"], code);
    }
}

const CONFIG_MAPS: &str = "/api/v1/namespaces/bad-input/configmaps";

#[test]
fn a3_bodies_that_do_not_parse() {
    let cluster = shared();
    let kubectl = cluster.namespace("bad-input");
    let post =
        |type_: &str, body: &str| raw(cluster, &["POST", CONFIG_MAPS, "--type", type_, "--body", body]);
    let json = "application/json";

    post(json, "{\"apiVersion\":").is(
        400,
        "BadRequest",
        "the object provided is unrecognized (must be of type ConfigMap): couldn't get version/kind; json parse error: ",
    );
    post("application/yaml", "a: [1,\n  b: }").is(400, "BadRequest", "");
    post(json, r#"{"metadata":{"name":"a"},"data":{"x":1}}"#).is(
        400,
        "BadRequest",
        "ConfigMap in version \"v1\" cannot be handled as a ConfigMap: json: cannot unmarshal number into Go struct field ConfigMap.data of type string",
    );
    post(json, r#"{"apiVersion":"v1","kind":"Secret","metadata":{"name":"a"}}"#).is(
        400,
        "BadRequest",
        "Secret in version \"v1\" cannot be handled as a ConfigMap",
    );
    post("text/plain", "{}").is(
        415,
        "UnsupportedMediaType",
        "the body of the request was in an unknown format - accepted media types include: application/json",
    );
    let patch =
        raw(cluster, &["PATCH", &format!("{CONFIG_MAPS}/kube-root-ca.crt"), "--type", json, "--body", "{}"]);
    patch.is(415, "UnsupportedMediaType", "415: Unsupported Media Type");
    let large = raw(cluster, &["POST", CONFIG_MAPS, "--type", json, "--body-size", "4000000"]);
    large.is(413, "RequestEntityTooLarge", "Request entity too large: limit is 3145728");
    let big = raw(cluster, &["POST", CONFIG_MAPS, "--type", json, "--body-size", "2000000"]);
    big.is(422, "Invalid", "ConfigMap \"big\" is invalid: []: Too long: may not be more than 1048576 bytes");
    assert_eq!(kubectl.run("get configmaps -o name"), "configmap/kube-root-ca.crt\n", "nothing is half done");

    let unknown =
        json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "warned"}, "datum": {}})
            .to_string();
    let warned = raw(
        cluster,
        &["POST", &format!("{CONFIG_MAPS}?fieldValidation=Warn"), "--type", json, "--body", &unknown],
    );
    assert_eq!(warned.code, 201);
    assert_eq!(warned.headers["warning"], "299 - \"unknown field \\\"datum\\\"\"");
    raw(cluster, &["POST", &format!("{CONFIG_MAPS}?fieldValidation=Strict"), "--type", json, "--body", &unknown]).is(
        400,
        "BadRequest",
        "ConfigMap in version \"v1\" cannot be handled as a ConfigMap: strict decoding error: unknown field \"datum\"",
    );
    let twice = r#"{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"x","name":"y"}}"#;
    raw(
        cluster,
        &["POST", &format!("{CONFIG_MAPS}?fieldValidation=Strict"), "--type", json, "--body", twice],
    )
    .is(
        400,
        "BadRequest",
        "ConfigMap in version \"v1\" cannot be handled as a ConfigMap: strict decoding error: ",
    );
    raw(
        cluster,
        &["POST", &format!("{CONFIG_MAPS}?fieldValidation=Maybe"), "--type", json, "--body", &unknown],
    )
    .is(422, "Invalid", "");
}

#[test]
fn a3_paths_methods_and_parameters() {
    let cluster = shared();
    let get = |path: &str| raw(cluster, &["GET", path]);
    get("/api/v1/namespaces/default/configmaps/none").is(404, "NotFound", "configmaps \"none\" not found");
    assert_eq!(get("/api/v1/nothings").code, 404);
    assert_eq!(get("/apis/example.com/v1/things").code, 404);
    assert_eq!(get("/nothing").code, 404);
    get("/api/v1/pods?limit=many").is(400, "BadRequest", "");
    get("/api/v1/pods?labelSelector=%3D%3D").is(
        400,
        "BadRequest",
        "found '==', expected: !, identifier, or 'end of string'",
    );
    get("/api/v1/pods?resourceVersion=abc").is(400, "BadRequest", "");
    get("/api/v1/pods?continue=garbage").is(
        400,
        "BadRequest",
        "invalid continue token: continue key is not valid",
    );
    assert_eq!(raw(cluster, &["PATCH", "/api/v1/pods"]).code, 405);
    let gone = get("/api/v1/pods?watch=true&resourceVersion=999999999&timeoutSeconds=1");
    assert!([200, 504].contains(&gone.code), "{}", gone.status);
    let ahead = get("/api/v1/pods?resourceVersion=999999999&resourceVersionMatch=NotOlderThan");
    ahead.is(504, "Timeout", "Timeout: Too large resource version: 999999999, current: ");
}

#[test]
fn a3_invalid_objects_name_their_fields() {
    let kubectl = shared().namespace("a3-invalid");
    let refused = |object: &Value| kubectl.with_fails("create -f -", &object.to_string());
    let error = refused(&config_map("Bad_Name", json!({})));
    assert!(
        error.contains("The ConfigMap \"Bad_Name\" is invalid: metadata.name: Invalid value: \"Bad_Name\": a lowercase RFC 1123 subdomain must consist of"),
        "{error}"
    );
    let error = refused(&config_map("a", json!({"bad key": "x"})));
    assert!(
        error.contains("data[bad key]: Invalid value: \"bad key\": a valid config key must consist of"),
        "{error}"
    );

    let mut pod = sleeper("p");
    pod["spec"]["restartPolicy"] = json!("Sometimes");
    pod["spec"]["containers"][0]["image"] = json!("");
    let error = refused(&pod);
    assert!(
        error.contains("spec.restartPolicy: Unsupported value: \"Sometimes\": supported values: "),
        "{error}"
    );
    assert!(error.contains("spec.containers[0].image: Required value"), "{error}");

    let mut deployment = web("web", 1);
    deployment["spec"]["selector"]["matchLabels"] = json!({"app": "other"});
    let error = refused(&deployment);
    assert!(
        error.contains("spec.template.metadata.labels: Invalid value: {\"app\":\"web\"}: `selector` does not match template `labels`"),
        "{error}"
    );
    kubectl.apply(&web("web", 0));
    let error = kubectl.fails([
        "patch",
        "deployment",
        "web",
        "-p",
        r#"{"spec": {"selector": {"matchLabels": {"x": "y"}}}}"#,
    ]);
    assert!(error.contains("field is immutable"), "{error}");

    let mut unknown = sleeper("p");
    unknown["spec"]["containers"][0]["imagee"] = json!("x");
    let error = refused(&unknown);
    assert!(error.contains("strict decoding error: unknown field \"spec.containers[0].imagee\""), "{error}");
    let mut wrong = sleeper("p");
    wrong["spec"]["terminationGracePeriodSeconds"] = json!("soon");
    let error = refused(&wrong);
    assert!(error.contains("Pod in version \"v1\" cannot be handled as a Pod: json: cannot unmarshal string into Go struct field"), "{error}");
    assert!(error.contains("terminationGracePeriodSeconds of type int64"), "{error}");

    kubectl.apply(&sleeper("fixed"));
    let error = kubectl.fails(["patch", "pod", "fixed", "-p", r#"{"spec": {"nodeName": "other"}}"#]);
    assert!(error.contains("pod updates may not change fields other than"), "{error}");
    let error = kubectl.with_fails("apply -f -", "apiVersion: v1\nkind: Pod\n  metadata: [");
    assert!(
        error.contains("error parsing STDIN") || error.contains("error converting YAML to JSON"),
        "{error}"
    );
    let error = kubectl.with_fails(
        "apply --validate=false -f -",
        "apiVersion: example.com/v1\nkind: Thing\nmetadata: {name: x}",
    );
    assert!(error.contains("no matches for kind \"Thing\" in version \"example.com/v1\""), "{error}");
}

#[test]
fn a3_conflicts() {
    let cluster = shared();
    let kubectl = cluster.namespace("a3-conflicts");
    kubectl.apply(&config_map("a", json!({"x": "1"})));
    let mut old = kubectl.json("configmap a");
    kubectl.apply(&config_map("a", json!({"x": "2"})));
    old["data"]["x"] = json!("3");
    let path = "/api/v1/namespaces/a3-conflicts/configmaps/a";
    let put = |object: &Value| {
        raw(cluster, &["PUT", path, "--type", "application/json", "--body", &object.to_string()])
    };
    put(&old).is(
        409,
        "Conflict",
        "Operation cannot be fulfilled on configmaps \"a\": the object has been modified; please apply your changes to the latest version and try again",
    );
    let mut renamed = config_map("b", json!({}));
    renamed["metadata"]["namespace"] = json!("a3-conflicts");
    put(&renamed).is(400, "BadRequest", "the name of the object (b) does not match the name on the URL (a)");
    let mut other = config_map("a", json!({}));
    other["metadata"]["namespace"] = json!("elsewhere");
    put(&other).is(
        400,
        "BadRequest",
        "the namespace of the provided object does not match the namespace sent on the request",
    );
    let create = raw(
        cluster,
        &[
            "POST",
            "/api/v1/namespaces/a3-conflicts/configmaps",
            "--type",
            "application/json",
            "--body",
            &config_map("a", json!({})).to_string(),
        ],
    );
    create.is(409, "AlreadyExists", "configmaps \"a\" already exists");
    assert_eq!(create.status["details"], json!({"name": "a", "kind": "configmaps"}));
    let precondition =
        json!({"kind": "DeleteOptions", "apiVersion": "v1", "preconditions": {"uid": "other"}}).to_string();
    raw(cluster, &["DELETE", path, "--type", "application/json", "--body", &precondition]).is(
        409,
        "Conflict",
        "Operation cannot be fulfilled on ConfigMap \"a\": the UID in the precondition (other) does not match the UID in record (",
    );
    assert_eq!(kubectl.path("configmap a", "{.data.x}"), "2");
    let nowhere = raw(
        cluster,
        &[
            "POST",
            "/api/v1/namespaces/nowhere/configmaps",
            "--type",
            "application/json",
            "--body",
            &config_map("a", json!({})).to_string(),
        ],
    );
    nowhere.is(404, "NotFound", "namespaces \"nowhere\" not found");
}

#[test]
fn a3_credentials() {
    let cluster = shared();
    let pods = "/api/v1/pods";
    let unauthorized = |who: &[&str]| {
        let mut arguments = vec!["GET", pods];
        arguments.extend(who);
        raw(cluster, &arguments).is(401, "Unauthorized", "Unauthorized");
    };
    unauthorized(&["--as", "nobody"]);
    unauthorized(&["--token", "nonsense"]);
    assert_eq!(raw(cluster, &["GET", "/readyz", "--as", "nobody"]).code, 200, "health is open");
    let folder = cluster.sandbox.path("certificates");
    std::fs::create_dir_all(&folder).expect("folder");
    for (name, make) in
        [("foreign", certificates::foreign as certificates::Make), ("expired", certificates::expired)]
    {
        let (certificate, key) = make(&cluster.data_dir().join("pki"));
        let (certificate_file, key_file) =
            (folder.join(format!("{name}.crt")), folder.join(format!("{name}.key")));
        std::fs::write(&certificate_file, certificate).expect("file");
        std::fs::write(&key_file, key).expect("file");
        unauthorized(&["--cert", &certificate_file.to_string_lossy(), "--key", &key_file.to_string_lossy()]);
    }
}

/// Client certificates that have to be rejected.
mod certificates {
    use std::path::Path;
    use std::time::{Duration, SystemTime};

    use rcgen::{
        CertificateParams, DistinguishedName, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair,
    };

    pub type Make = fn(&Path) -> (String, String);

    fn administrator() -> CertificateParams {
        let mut params = CertificateParams::new(Vec::new()).expect("parameters");
        params.distinguished_name = DistinguishedName::new();
        params.distinguished_name.push(DnType::OrganizationName, "system:masters");
        params.distinguished_name.push(DnType::CommonName, "intruder");
        params.extended_key_usages.push(ExtendedKeyUsagePurpose::ClientAuth);
        params
    }

    /// Signs with another CA that has the same name as the cluster's.
    pub fn foreign(_: &Path) -> (String, String) {
        let ca_key = KeyPair::generate().expect("key");
        let mut ca = CertificateParams::new(Vec::new()).expect("parameters");
        ca.distinguished_name = DistinguishedName::new();
        ca.distinguished_name.push(DnType::CommonName, "kubernetes");
        ca.is_ca = IsCa::Ca(rcgen::BasicConstraints::Unconstrained);
        let key = KeyPair::generate().expect("key");
        let certificate = administrator().signed_by(&key, &Issuer::new(ca, ca_key)).expect("certificate");
        (certificate.pem(), key.serialize_pem())
    }

    /// Signs with the cluster's CA a certificate that expired an hour ago.
    pub fn expired(pki: &Path) -> (String, String) {
        let read = |name: &str| std::fs::read_to_string(pki.join(name)).expect("the CA");
        let ca_key = KeyPair::from_pem(&read("ca.key")).expect("key");
        let ca = Issuer::from_ca_cert_pem(&read("ca.crt"), ca_key).expect("certificate");
        let mut params = administrator();
        let now = SystemTime::now();
        params.not_before = (now - Duration::from_secs(7200)).into();
        params.not_after = (now - Duration::from_secs(3600)).into();
        let key = KeyPair::generate().expect("key");
        (params.signed_by(&key, &ca).expect("certificate").pem(), key.serialize_pem())
    }
}
