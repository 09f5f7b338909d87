//! Certificate signing requests: the requestor is recorded, and each path needs a permission of its own.

use serde_json::{Value, json};

use crate::harness::{Harness, MERGE};

const REQUESTS: &str = "/apis/certificates.k8s.io/v1/certificatesigningrequests";
const KUBELET_SERVING: &str = "kubernetes.io/kubelet-serving";

fn request(common_name: &str, organization: &str) -> Value {
    let mut params = rcgen::CertificateParams::new(vec!["n1".to_owned()]).unwrap();
    params.distinguished_name = rcgen::DistinguishedName::new();
    params.distinguished_name.push(rcgen::DnType::OrganizationName, organization);
    params.distinguished_name.push(rcgen::DnType::CommonName, common_name);
    let key = rcgen::KeyPair::generate().unwrap();
    let pem = params.serialize_request(&key).unwrap().pem().unwrap();
    serde_json::to_value(k8s_openapi::ByteString(pem.into_bytes())).unwrap()
}

fn csr(name: &str, signer: &str, request: Value) -> Value {
    json!({"metadata": {"name": name}, "spec": {"signerName": signer, "request": request,
        "usages": ["digital signature", "server auth"], "username": "somebody else"}})
}

#[tokio::test]
async fn a_request_from_creation_to_certificate() {
    let h = Harness::new().await;
    let (admin, node) = (h.admin(), h.user("system:node:n1", &["system:nodes"]));
    let made =
        node.post(REQUESTS, &csr("a", KUBELET_SERVING, request("system:node:n1", "system:nodes"))).await;
    let made = made.expect(201);
    assert_eq!(made["spec"]["username"], "system:node:n1");
    assert_eq!(made["spec"]["groups"], json!(["system:nodes", "system:authenticated"]));
    assert_eq!(made["status"], json!({}));

    let controller = h.user(
        "system:serviceaccount:kube-system:certificate-controller",
        &["system:serviceaccounts", "system:serviceaccounts:kube-system"],
    );
    let (approval, status) = (format!("{REQUESTS}/a/approval"), format!("{REQUESTS}/a/status"));
    let mut approved = made.clone();
    approved["status"]["conditions"] = json!([{"type": "Approved", "status": "True", "reason": "R"}]);
    assert_eq!(node.put(&approval, &approved).await.code, 403);
    let refused = admin.put(&status, &approved).await.expect(422);
    assert!(
        refused["message"].as_str().unwrap().contains("updates may not add a condition of type"),
        "{refused}"
    );
    let mut approved = controller.put(&approval, &approved).await.expect(200);
    assert!(approved["status"]["conditions"][0]["lastUpdateTime"].is_string());
    assert!(approved["status"]["conditions"][0]["lastTransitionTime"].is_string());

    let mut params = rcgen::CertificateParams::new(Vec::new()).unwrap();
    params.is_ca = rcgen::IsCa::NoCa;
    let certificate = params.self_signed(&rcgen::KeyPair::generate().unwrap()).unwrap().pem();
    approved["status"]["certificate"] =
        serde_json::to_value(k8s_openapi::ByteString(certificate.into_bytes())).unwrap();
    let issued = controller.put(&status, &approved).await.expect(200);
    let table = admin.get_as(REQUESTS, "application/json;as=Table;g=meta.k8s.io;v=v1").await.expect(200);
    assert_eq!(table["rows"][0]["cells"][5], "Approved,Issued");

    let patched = admin
        .patch(&format!("{REQUESTS}/a"), MERGE, &json!({"spec": {"username": "x"}, "status": null}))
        .await;
    let patched = patched.expect(200);
    assert_eq!((&patched["spec"], &patched["status"]), (&issued["spec"], &issued["status"]));
    let selected =
        admin.get(&format!("{REQUESTS}?fieldSelector=spec.signerName=kubernetes.io/kubelet-serving")).await;
    assert_eq!(selected.expect(200)["items"].as_array().unwrap().len(), 1);
}

#[tokio::test]
async fn signers_and_subjects_are_restricted() {
    let h = Harness::new().await;
    let (admin, node) = (h.admin(), h.user("system:node:n1", &["system:nodes"]));
    let controller =
        h.user("system:serviceaccount:kube-system:certificate-controller", &["system:serviceaccounts"]);
    let masters = csr("m", "kubernetes.io/kube-apiserver-client", request("x", "system:masters"));
    assert_eq!(
        admin.post(REQUESTS, &masters).await.expect(403)["message"],
        "certificatesigningrequests.certificates.k8s.io \"m\" is forbidden: use of kubernetes.io/kube-apiserver-client signer with system:masters group is not allowed"
    );
    let name = "kube-apiserver-kubelet-client";
    let kubelet_client = csr("k", "kubernetes.io/kube-apiserver-client", request(name, "x"));
    assert_eq!(admin.post(REQUESTS, &kubelet_client).await.code, 403);
    let other = csr("o", KUBELET_SERVING, request("system:node:n2", "system:nodes"));
    let refused = node.post(REQUESTS, &other).await;
    assert!(
        refused.expect(403)["message"]
            .as_str()
            .unwrap()
            .contains("can only create a node CSR with CN=system:node:n1")
    );
    let custom = csr("c", "example.com/signer", request("x", "y"));
    let made = admin.post(REQUESTS, &custom).await.expect(201);
    let mut denied = made.clone();
    denied["status"]["conditions"] = json!([{"type": "Denied", "status": "True"}]);
    assert_eq!(
        controller.put(&format!("{REQUESTS}/c/approval"), &denied).await.expect(403)["message"],
        "certificatesigningrequests.certificates.k8s.io \"c\" is forbidden: user not permitted to approve requests with signerName \"example.com/signer\""
    );
    let mut failed = made.clone();
    failed["status"]["conditions"] = json!([{"type": "Failed", "status": "True"}]);
    assert_eq!(
        controller.put(&format!("{REQUESTS}/c/status"), &failed).await.expect(403)["message"],
        "certificatesigningrequests.certificates.k8s.io \"c\" is forbidden: user not permitted to sign requests with signerName \"example.com/signer\""
    );
    // A status update that changes no certificate needs no permission to sign.
    controller.put(&format!("{REQUESTS}/c/status"), &made).await.expect(200);
    let nonsense = json!({"metadata": {"name": "n"}, "spec": {"signerName": "a.b/c", "request": "aGk=", "usages": ["any"]}});
    assert_eq!(
        admin.post(REQUESTS, &nonsense).await.expect(422)["message"],
        "CertificateSigningRequest.certificates.k8s.io \"n\" is invalid: spec.request: Invalid value: \"aGk=\": PEM block type must be CERTIFICATE REQUEST"
    );
}
