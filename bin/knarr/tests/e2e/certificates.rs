//! Certificates: their list, their expiry and their renewal.

use std::process::Output;
use std::time::{Duration, SystemTime};

use serde_json::Value;

use crate::cluster::{Cluster, shared};
use crate::kubectl::PATIENCE;
use crate::objects::sleeper;
use crate::sandbox::{succeeded, wait_for};

fn certificates(cluster: &Cluster, words: &[&str]) -> Output {
    cluster.knarr(&[&["certificates"], words].concat()).output().expect("nsenter(1) of util-linux")
}

/// Returns the entries of `knarr certificates -o json` by name.
fn listed(cluster: &Cluster) -> Vec<(String, Value)> {
    let text = succeeded("knarr certificates", &certificates(cluster, &["-o", "json"]));
    let list: Value = serde_json::from_str(&text).expect("JSON");
    let all = list["certificates"].as_array().cloned().expect("a list");
    all.into_iter().map(|one| (one["name"].as_str().expect("a name").to_owned(), one)).collect()
}

fn of(cluster: &Cluster, name: &str) -> Value {
    let found = listed(cluster).into_iter().find(|(n, _)| n == name);
    found.unwrap_or_else(|| panic!("no certificate {name}")).1
}

#[test]
fn h6_certificates_are_listed() {
    let cluster = shared();
    let table = succeeded("knarr certificates", &certificates(cluster, &[]));
    let header: Vec<&str> = table.lines().next().unwrap_or_default().split_whitespace().collect();
    assert_eq!(header, ["NAME", "SUBJECT", "USE", "AUTHORITY", "EXPIRES", "DAYS", "LEFT"], "{table}");
    let row = |name: &str| table.lines().find(|l| l.starts_with(&format!("{name} "))).unwrap_or_default();
    for (name, wanted) in [
        ("ca", "kubernetes"),
        ("front-proxy/ca", "kubernetes-front-proxy"),
        ("kubelet-serving/ca", "authority"),
        ("apiserver", "kube-apiserver"),
        ("apiserver-kubelet-client", "client"),
        ("front-proxy/front-proxy-client", "front-proxy/ca"),
        ("kubelet-serving/kubelet", "kubelet-serving/ca"),
        ("admin.kubeconfig", "kubernetes-admin"),
    ] {
        assert!(row(name).contains(wanted), "{name}, {wanted}:\n{table}");
    }
    let admin = of(cluster, "admin.kubeconfig");
    assert_eq!(admin["groups"], serde_json::json!(["system:masters"]));
    assert!((360..=365).contains(&admin["daysLeft"].as_i64().unwrap_or_default()), "{admin}");
    assert!(of(cluster, "ca")["daysLeft"].as_i64().unwrap_or_default() > 3600);

    // A damaged file is listed with an error.
    let damaged = cluster.data_dir().join("pki/damaged.crt");
    std::fs::write(&damaged, "nonsense").expect("a file");
    let output = certificates(cluster, &[]);
    std::fs::remove_file(&damaged).expect("the file");
    let (shown, said) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert_eq!(output.status.code(), Some(1));
    assert!(shown.contains("damaged") && shown.contains("<unreadable>"), "{shown}");
    assert!(said.starts_with("error: damaged cannot be read: ") && said.contains("no certificate"), "{said}");
}

/// Returns the serving certificate of this port of the node, PEM.
fn shown_on(cluster: &Cluster, port: u16) -> String {
    let script = format!("import ssl; print(ssl.get_server_certificate(('127.0.0.1', {port})))");
    let output = cluster.sandbox.command("python3").args(["-c", &script]).output();
    succeeded("a handshake", &output.expect("nsenter(1) of util-linux")).trim().to_owned()
}

fn file(cluster: &Cluster, name: &str) -> String {
    let path = cluster.data_dir().join("pki").join(name);
    std::fs::read_to_string(&path).unwrap_or_else(|e| panic!("{}: {e}", path.display())).trim().to_owned()
}

/// Creates an authority's certificate that expires in `days` days, PEM.
fn authority_for(days: u64) -> String {
    let mut params = rcgen::CertificateParams::new(Vec::new()).expect("no names");
    params.is_ca = rcgen::IsCa::Ca(rcgen::BasicConstraints::Unconstrained);
    params.distinguished_name.push(rcgen::DnType::CommonName, "corporate");
    params.not_after = (SystemTime::now() + Duration::from_secs(days * 86_400)).into();
    let key = rcgen::KeyPair::generate().expect("a key");
    params.self_signed(&key).expect("a certificate").pem()
}

#[test]
fn h6_certificates_are_renewed_at_once_and_expiring_ones_are_warned_of() {
    let mut cluster = Cluster::new();
    let corporate = cluster.sandbox.path("corporate.crt");
    std::fs::write(&corporate, authority_for(100)).expect("a file");
    cluster.start_server_with(&["--client-ca-file", corporate.to_str().expect("a path")]);
    let kubectl = cluster.namespace("rotated");
    kubectl.apply(&sleeper("stays"));
    kubectl.ready("stays");
    let container = kubectl.path("pod stays", "{.status.containerStatuses[0].containerID}");
    let before: Vec<String> = [6443, 10250].map(|port| shown_on(&cluster, port)).to_vec();
    let old_admin = cluster.sandbox.path("old-admin.kubeconfig");
    std::fs::copy(cluster.kubeconfig(), &old_admin).expect("the kubeconfig");
    let watch = kubectl.background("get configmaps --watch -o name");
    kubectl.run("create configmap first");
    watch.until(|out| out.contains("configmap/first"));

    let rotated = certificates(&cluster, &["rotate", "--all"]);
    let said = succeeded("knarr certificates rotate", &rotated);
    for name in ["apiserver", "apiserver-kubelet-client", "front-proxy/front-proxy-client", "admin"] {
        assert!(said.contains(&format!("{name}: renewed\n")), "{said}");
    }
    for (port, name) in [(6443, "apiserver.crt"), (10250, "kubelet-serving/kubelet.crt")] {
        let new = file(&cluster, name);
        assert!(!before.contains(&new), "{name}");
        wait_for(name, PATIENCE, || (shown_on(&cluster, port) == new).then_some(()));
    }
    let admin_now = std::fs::read_to_string(cluster.kubeconfig()).expect("the kubeconfig");
    assert_ne!(std::fs::read_to_string(&old_admin).expect("the old one"), admin_now);
    // Old and new credentials, the kubelet behind the API server, the watch and the pod all keep working.
    kubectl.run("create configmap second");
    watch.until(|out| out.contains("configmap/second"));
    kubectl.run("exec stays -- true");
    kubectl.run(["get", "pods", "--kubeconfig", old_admin.to_str().expect("a path")]);
    assert_eq!(kubectl.path("pod stays", "{.status.containerStatuses[0].containerID}"), container);
    let events = "get events -n default --field-selector involvedObject.name=knarr-test";
    kubectl.eventually(events, |out| {
        out.contains("CertificateRenewed") && out.contains("certificate kubelet-serving/kubelet was renewed")
    });

    // Certificates that are not renewed: one that a flag names, and one of a user.
    kubectl.eventually(events, |out| {
        out.contains("CertificateExpiring") && out.contains("of corporate expires")
    });
    let issued = cluster.knarr(&["kubeconfig", "--user", "jane"]).output().expect("nsenter(1) of util-linux");
    succeeded("knarr kubeconfig", &issued);
    let jane = listed(&cluster).into_iter().find(|(name, _)| name.starts_with("issued/jane-"));
    assert_eq!(jane.expect("jane's certificate").1["authority"], "ca");
    let metrics = kubectl.run("get --raw /metrics");
    let has = |name: &str| {
        let line = format!("knarr_certificate_expiration_timestamp_seconds{{certificate=\"{name}\"}} ");
        metrics.contains(&line)
    };
    for name in ["ca", "front-proxy/ca", "kubelet-serving/ca", "apiserver", "admin.kubeconfig"] {
        assert!(has(name), "{name}");
    }
    assert!(has(corporate.to_str().expect("a path")));

    let wrong = certificates(&cluster, &["rotate", "ca"]);
    let said = String::from_utf8_lossy(&wrong.stderr).into_owned();
    assert!(!wrong.status.success() && said.contains("ca cannot be renewed here: choose among"), "{said}");
}
