//! The permissions of nodes, and what admission refuses them.

use serde_json::{Value, json};

use crate::harness::{Harness, PODS, User, default_account, pod};

const REQUESTS: &str = "/apis/certificates.k8s.io/v1/namespaces/default/podcertificaterequests";
const SIGNING_REQUESTS: &str = "/apis/certificates.k8s.io/v1/certificatesigningrequests";
const ACCOUNTS: &str = "/api/v1/namespaces/default/serviceaccounts";
const SIGNER: &str = "example.com/mounted";

/// The nodes `n1` and `n2`, each with a pod of the same name; that of n1 projects a token and a certificate.
struct Cluster {
    h: Harness,
    admin: User,
    node: User,
}

impl Cluster {
    async fn new(gates: &str) -> Self {
        let store = std::sync::Arc::new(knarr_storage::Embedded::memory(Default::default()));
        let h = Harness::on(store, |config| config.features.set(gates).unwrap()).await;
        let admin = h.admin();
        default_account(&admin).await;
        admin.post(ACCOUNTS, &json!({"metadata": {"name": "other"}})).await.expect(201);
        for name in ["n1", "n2"] {
            admin.post("/api/v1/nodes", &json!({"metadata": {"name": name}})).await.expect(201);
            let mut body = pod(name);
            body["spec"]["volumes"] = json!([
                {"name": "c", "projected": {"sources": [
                    {"serviceAccountToken": {"path": "own"}},
                    {"serviceAccountToken": {"path": "t", "audience": "vault"}},
                    {"podCertificate": {"signerName": SIGNER, "keyType": "ED25519", "credentialBundlePath": "p"}}]}},
                {"name": "d", "csi": {"driver": "secrets.example.com"}}]);
            admin.post(PODS, &body).await.expect(201);
            let binding = json!({"metadata": {"name": name}, "target": {"kind": "Node", "name": name}});
            admin.post(&format!("{PODS}/{name}/binding"), &binding).await.expect(201);
        }
        let driver = json!({"metadata": {"name": "secrets.example.com"},
            "spec": {"tokenRequests": [{"audience": "store"}]}});
        admin.post("/apis/storage.k8s.io/v1/csidrivers", &driver).await.expect(201);
        let node = h.user("system:node:n1", &["system:nodes"]);
        // A list is answered once the caches contain every earlier write.
        admin.get(PODS).await.expect(200);
        Self { h, admin, node }
    }

    async fn uid(&self, path: &str) -> String {
        let object = self.admin.get(path).await.expect(200);
        object["metadata"]["uid"].as_str().unwrap().to_owned()
    }

    async fn pod_uid(&self, name: &str) -> String {
        self.uid(&format!("{PODS}/{name}")).await
    }

    /// Grants all nodes this verb on a resource that exists for authorization only.
    async fn grant(&self, verb: &str, group: &str, resource: &str) {
        let rbac = "rbac.authorization.k8s.io";
        let base = format!("/apis/{rbac}/v1");
        let role = json!({"metadata": {"name": "extra"}, "rules": [
            {"verbs": [verb], "apiGroups": [group], "resources": [resource], "resourceNames": ["default"]}]});
        self.admin.post(&format!("{base}/clusterroles"), &role).await.expect(201);
        let binding = json!({"metadata": {"name": "extra"},
            "roleRef": {"apiGroup": rbac, "kind": "ClusterRole", "name": "extra"},
            "subjects": [{"apiGroup": rbac, "kind": "Group", "name": "system:nodes"}]});
        self.admin.post(&format!("{base}/clusterrolebindings"), &binding).await.expect(201);
        self.admin.get(PODS).await.expect(200);
    }

    async fn token(&self, audiences: &[&str]) -> String {
        let bound = json!({"apiVersion": "v1", "kind": "Pod", "name": "n1", "uid": self.pod_uid("n1").await});
        let body = json!({"spec": {"audiences": audiences, "boundObjectRef": bound}});
        let reply = self.node.post(&format!("{ACCOUNTS}/default/token"), &body).await;
        format!("{} {}", reply.code, reply.message())
    }

    /// Requests a certificate for n1's pod, with some fields changed.
    async fn certificate(&self, changes: Value) -> String {
        let key = rcgen::KeyPair::generate_for(&rcgen::PKCS_ED25519).unwrap();
        let mut parameters = rcgen::CertificateParams::new(Vec::new()).unwrap();
        parameters.distinguished_name = rcgen::DistinguishedName::new();
        let request = parameters.serialize_request(&key).unwrap();
        let mut spec = json!({
            "signerName": SIGNER, "podName": "n1", "podUID": self.pod_uid("n1").await,
            "serviceAccountName": "default", "serviceAccountUID": self.uid(&format!("{ACCOUNTS}/default")).await,
            "nodeName": "n1", "nodeUID": self.uid("/api/v1/nodes/n1").await,
            "stubPKCS10Request": k8s_openapi::ByteString(request.der().to_vec()),
        });
        for (field, value) in changes.as_object().unwrap() {
            spec[field] = value.clone();
        }
        let body = json!({"metadata": {"generateName": "r-"}, "spec": spec});
        let reply = self.node.post(REQUESTS, &body).await;
        format!("{} {}", reply.code, reply.message())
    }
}

#[track_caller]
fn says(reply: &str, expected: &str) {
    assert!(reply.contains(expected), "{reply}\n\ndoes not say: {expected}");
}

#[tokio::test]
async fn tokens_are_for_audiences_that_the_pod_names() {
    let c = Cluster::new("").await;
    for audiences in [&[][..], &["vault"], &["store"]] {
        says(&c.token(audiences).await, "201 ");
    }
    says(
        &c.token(&["https://example.com/other"]).await,
        "403 serviceaccounts \"default\" is forbidden: system:node:n1 is not authorized to request tokens for audience \"https://example.com/other\"",
    );
    says(&c.token(&["vault", "store"]).await, "node may only request 0 or 1 audiences");
    c.grant("request-serviceaccounts-token-audience", "", "https://example.com/other").await;
    says(&c.token(&["https://example.com/other"]).await, "201 ");
}

#[tokio::test]
async fn audiences_are_free_without_the_gate() {
    let c = Cluster::new("ServiceAccountNodeAudienceRestriction=false").await;
    says(&c.token(&["other"]).await, "201 ");
}

#[tokio::test]
async fn certificates_are_for_pods_of_the_node() {
    let c = Cluster::new("").await;
    says(&c.certificate(json!({})).await, "201 ");
    let other_pod = json!({"podName": "n2", "podUID": c.pod_uid("n2").await});
    let other_node = json!({"nodeName": "n2", "nodeUID": c.uid("/api/v1/nodes/n2").await});
    let other_account = json!({"serviceAccountName": "other", "serviceAccountUID": c.uid(&format!("{ACCOUNTS}/other")).await});
    for (changes, code, expected) in [
        (
            other_node,
            403,
            "PodCertificateRequest.Spec.NodeName=\"n2\", which is not the requesting node \"n1\"",
        ),
        (json!({"nodeUID": "x"}), 500, "names node UID \"x\", inconsistent with the running node"),
        (
            json!({"podName": "none"}),
            500,
            "while retrieving pod \"default/none\" named in the PodCertificateRequest",
        ),
        (json!({"podUID": "x"}), 500, "contains pod UID (\"x\") which differs from running pod"),
        (other_pod, 403, "pod \"default/n2\" is not running on node \"n1\""),
        (
            other_account,
            403,
            "contains serviceAccountName (\"other\") that differs from running pod (\"default\")",
        ),
        (json!({"serviceAccountUID": "x"}), 500, "names service account UID \"x\", which differs from"),
        (
            json!({"signerName": "example.com/other"}),
            403,
            "pod \"default/n1\" does not mount a podCertificate projected volume for signer \"example.com/other\"",
        ),
    ] {
        let reply = c.certificate(changes).await;
        says(&reply, expected);
        says(&reply, &format!("{code} "));
    }
    c.grant("request-serviceaccounts-podcertificate-signer", "certificates.k8s.io", "example.com:other")
        .await;
    says(&c.certificate(json!({"signerName": "example.com/other"})).await, "201 ");
}

#[tokio::test]
async fn signing_requests_are_for_the_node_itself() {
    let request = |common_name: &str| {
        let mut parameters = rcgen::CertificateParams::new(vec!["n2".to_owned()]).unwrap();
        parameters.distinguished_name = rcgen::DistinguishedName::new();
        parameters.distinguished_name.push(rcgen::DnType::OrganizationName, "system:nodes");
        parameters.distinguished_name.push(rcgen::DnType::CommonName, common_name);
        let pem = parameters.serialize_request(&rcgen::KeyPair::generate().unwrap()).unwrap().pem().unwrap();
        json!({"metadata": {"generateName": "r-"}, "spec": {"usages": ["digital signature", "client auth"],
            "request": k8s_openapi::ByteString(pem.into_bytes())}})
    };
    for (gates, signer, name, code) in [
        ("", "kubernetes.io/kube-apiserver-client-kubelet", "system:node:n1", 201),
        ("", "kubernetes.io/kube-apiserver-client-kubelet", "system:node:n2", 403),
        ("", "kubernetes.io/kubelet-serving", "system:node:n2", 403),
        ("", "example.com/other", "system:node:n2", 201),
        (
            "AllowInsecureKubeletCertificateSigningRequests=true",
            "kubernetes.io/kubelet-serving",
            "system:node:n2",
            201,
        ),
    ] {
        let c = Cluster::new(gates).await;
        let mut body = request(name);
        body["spec"]["signerName"] = signer.into();
        let reply = c.node.post(SIGNING_REQUESTS, &body).await;
        assert_eq!(reply.code, code, "{signer} {name}: {}", reply.body);
        if code == 403 {
            says(reply.message(), "can only create a node CSR with CN=system:node:n1");
        }
    }
}

#[tokio::test]
async fn a_node_without_a_name_writes_nothing() {
    let c = Cluster::new("").await;
    // Another authorizer may allow this, but admission does not.
    let unnamed = c.h.user("system:node:", &["system:nodes", "system:masters"]);
    let reply = unnamed.post("/api/v1/nodes", &json!({"metadata": {"name": "n3"}})).await;
    assert_eq!(reply.code, 403, "{}", reply.body);
    says(reply.message(), "could not determine node from user \"system:node:\"");
}
