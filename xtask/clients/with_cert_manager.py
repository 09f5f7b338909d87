"""cert-manager: issuers, certificates with keys of all kinds, their renewal, its webhook and its CA injector."""

import base64
import pathlib
import ssl
import subprocess

from tries import FILES, NAMESPACE, apply, condition, define, eventually, get, kubectl, read, refused, running, step

PORT = "19443"
GROUP = "cert-manager.io"
KEYS = [("RSA", 2048), ("RSA", 4096), ("ECDSA", 256), ("ECDSA", 384), ("ECDSA", 521), ("Ed25519", None)]


def made(kind, name, **spec):
    return {"apiVersion": f"{GROUP}/v1", "kind": kind, "metadata": {"name": name}, "spec": spec}


def certificate(name, issuer, kind="Issuer", algorithm="ECDSA", size=256, **spec):
    key = {"algorithm": algorithm, "rotationPolicy": "Always", **({"size": size} if size else {})}
    issued_by = {"name": issuer, "kind": kind}
    return made("Certificate", name, secretName=name, privateKey=key, issuerRef=issued_by, **spec)


def webhook(kind, name, path, operations, resources, inject):
    """The webhook configurations of cert-manager's chart, by URL."""
    rule = {"apiGroups": [GROUP], "apiVersions": ["v1"], "operations": operations, "resources": resources}
    return {
        "apiVersion": "admissionregistration.k8s.io/v1",
        "kind": kind,
        "metadata": {"name": name, "annotations": inject},
        "webhooks": [
            {
                "name": f"webhook.{GROUP}",
                "rules": [rule],
                "admissionReviewVersions": ["v1"],
                "matchPolicy": "Equivalent",
                "failurePolicy": "Fail",
                "sideEffects": "None",
                "clientConfig": {"url": f"https://localhost:{PORT}/{path}"},
            }
        ],
    }


def ready(kind, name):
    eventually(f"{kind} {name}", lambda: condition(get(f"{kind}.{GROUP}", name), "Ready") == "True")


def data(secret):
    found = (get("secret", secret) or {}).get("data", {})
    return {key: base64.b64decode(value).decode() for key, value in found.items()}


def serves(found, host):
    """Returns whether a server with a Secret's certificate and key is trusted under a name, with the Secret's CA."""
    pathlib.Path("tls.pem").write_text(found["tls.crt"] + found["tls.key"])
    server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    server.load_cert_chain("tls.pem")
    client = ssl.create_default_context(cadata=found["ca.crt"])
    there, back = ssl.MemoryBIO(), ssl.MemoryBIO()
    ends = client.wrap_bio(back, there, server_hostname=host), server.wrap_bio(there, back, server_side=True)
    for _ in range(4):
        for end in ends:
            try:
                end.do_handshake()
            except ssl.SSLWantReadError:
                pass
            except ssl.SSLCertVerificationError:
                return False
    return ends[0].version() is not None


def bundle(kind, name):
    return get(kind, name)["webhooks"][0]["clientConfig"].get("caBundle")


step("definitions")
define(*[found for file in sorted((FILES / "deploy/crds").glob("*.yaml")) for found in read(file)])

with (
    running("cert-manager", "webhook", PORT),
    running("cert-manager", "cainjector"),
    running("cert-manager", "controller"),
):
    step("CA injected into the webhook's configuration")
    eventually("the webhook's CA", lambda: data("cert-manager-webhook-ca"))
    inject = {f"{GROUP}/inject-ca-from-secret": f"{NAMESPACE}/cert-manager-webhook-ca"}
    apply(
        webhook("ValidatingWebhookConfiguration", "cm", "validate", ["CREATE", "UPDATE"], ["*/*"], inject),
        webhook("MutatingWebhookConfiguration", "cm", "mutate", ["CREATE"], ["certificaterequests"], inject),
    )
    authority = get("secret", "cert-manager-webhook-ca")["data"]["ca.crt"]
    for kind in ("validatingwebhookconfiguration", "mutatingwebhookconfiguration"):
        eventually(f"the CA in a {kind}", lambda: bundle(kind, "cm") == authority)

    step("webhook denies")
    # The webhook may not serve yet, or with another certificate than the one in the Secret.
    two = made("Issuer", "two", selfSigned={}, ca={"secretName": "none"})
    eventually("the webhook's answer", lambda: "may not specify more than one issuer type" in refused(two))
    error = refused(certificate("nobody", "self"))
    assert f'admission webhook "webhook.{GROUP}" denied the request' in error and "dnsNames" in error, error

    step("self-signed Issuer, CA Issuer")
    apply(made("Issuer", "self", selfSigned={}))
    ready("issuer", "self")
    apply(certificate("root", "self", algorithm="ECDSA", size=521, isCA=True, commonName="root"))
    ready("certificate", "root")
    apply(made("Issuer", "ca", ca={"secretName": "root"}))
    ready("issuer", "ca")

    step("RSA, ECDSA (521 too), Ed25519")
    names = [f"{algorithm}-{size}".lower() for algorithm, size in KEYS]
    for name, (algorithm, size) in zip(names, KEYS):
        apply(certificate(name, "ca", algorithm=algorithm, size=size, dnsNames=[f"{name}.example.com"]))
    for name in names:
        ready("certificate", name)
        secret = get("secret", name)
        assert secret["type"] == "kubernetes.io/tls", secret["type"]
        assert sorted(secret["data"]) == ["ca.crt", "tls.crt", "tls.key"], sorted(secret["data"])
        assert data(name)["ca.crt"] == data("root")["tls.crt"], name
        assert serves(data(name), f"{name}.example.com"), name
        assert not serves(data(name), "other.example.com"), name

    step("requests and events")
    request = get(f"certificaterequest.{GROUP}", "ecdsa-521-1")
    assert condition(request, "Approved") == condition(request, "Ready") == "True", request
    assert request["spec"]["username"] == "kubernetes-admin", request["spec"]
    owner = request["metadata"]["ownerReferences"][0]
    assert (owner["kind"], owner["name"]) == ("Certificate", "ecdsa-521"), owner
    selector = "involvedObject.kind=Certificate,involvedObject.name=ecdsa-521"

    def reasons():
        return kubectl("get", "events", "--field-selector", selector, "-o", "jsonpath={.items[*].reason}").split()

    eventually("events of the Certificate", lambda: {"Issuing", "Generated", "Requested"} <= set(reasons()))

    step("Secret deleted, issued again")
    before = data("ecdsa-521")
    kubectl("delete", "secret", "ecdsa-521")
    eventually("another Secret", lambda: data("ecdsa-521").get("tls.crt", before["tls.crt"]) != before["tls.crt"])
    ready("certificate", "ecdsa-521")
    assert data("ecdsa-521")["tls.key"] != before["tls.key"]
    assert serves(data("ecdsa-521"), "ecdsa-521.example.com")

    step("Certificate changed, issued again")
    apply(certificate("ecdsa-384", "ca", algorithm="ECDSA", size=384, dnsNames=["new.example.com"]))
    eventually("a certificate with the new name", lambda: serves(data("ecdsa-384"), "new.example.com"))

    step("renewal")
    # It is renewed five seconds after it was issued.
    apply(certificate("short", "ca", dnsNames=["short.example.com"], duration="1h", renewBefore="59m55s"))
    ready("certificate", "short")
    first = data("short")["tls.crt"]
    eventually("the next one", lambda: get(f"certificate.{GROUP}", "short")["status"].get("revision", 0) >= 2)
    assert data("short")["tls.crt"] != first
    kubectl("delete", f"certificate.{GROUP}", "short")

    step("ClusterIssuer")
    apply(made("ClusterIssuer", "everywhere", ca={"secretName": "root"}))
    ready("clusterissuer", "everywhere")
    apply(certificate("far", "everywhere", kind="ClusterIssuer", dnsNames=["far.example.com"]))
    ready("certificate", "far")
    assert serves(data("far"), "far.example.com")

    step("CertificateSigningRequest with a P-521 key")
    words = ["openssl", "req", "-new", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-521", "-nodes"]
    words += ["-keyout", "own.key", "-out", "own.csr", "-subj", "/CN=own"]
    words += ["-addext", "subjectAltName=DNS:own.example.com"]
    subprocess.run(words, check=True, capture_output=True)
    request = {
        "signerName": f"issuers.{GROUP}/{NAMESPACE}.ca",
        "usages": ["digital signature", "server auth"],
        "request": base64.b64encode(pathlib.Path("own.csr").read_bytes()).decode(),
    }
    own = {"apiVersion": "certificates.k8s.io/v1", "kind": "CertificateSigningRequest", "metadata": {"name": "own"}}
    apply({**own, "spec": request})
    kubectl("certificate", "approve", "own")
    eventually("a certificate", lambda: get("certificatesigningrequest", "own")["status"].get("certificate"))
    signed = base64.b64decode(get("certificatesigningrequest", "own")["status"]["certificate"]).decode()
    found = {"tls.crt": signed, "tls.key": pathlib.Path("own.key").read_text(), "ca.crt": data("root")["tls.crt"]}
    assert serves(found, "own.example.com")

    step("CA injected from a Certificate")
    inject = {f"{GROUP}/inject-ca-from": f"{NAMESPACE}/far"}
    apply(webhook("ValidatingWebhookConfiguration", "ours", "ours", ["CREATE"], ["none"], inject))
    wanted = get("secret", "far")["data"]["ca.crt"]
    eventually("the CA", lambda: bundle("validatingwebhookconfiguration", "ours") == wanted)

    step("Certificates deleted")
    kubectl("delete", f"certificates.{GROUP}", "--all")
    eventually("no requests", lambda: not kubectl("get", f"certificaterequests.{GROUP}", "-o", "name"))
    assert data("far"), "Secrets stay"
    kubectl("delete", "validatingwebhookconfiguration,mutatingwebhookconfiguration", "cm", "--ignore-not-found")
    kubectl("delete", "validatingwebhookconfiguration", "ours")

    step("lease given up")

lease = get("lease", "cert-manager-cainjector-leader-election")
assert not lease["spec"].get("holderIdentity"), lease["spec"]
