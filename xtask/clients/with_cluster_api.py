"""Cluster API's core manager: its webhooks, versions and phases. This script takes the part of a provider."""

import base64
import json
import os
import pathlib
import subprocess

from tries import (
    NAMESPACE,
    account,
    apply,
    condition,
    config_map,
    define,
    definition,
    eventually,
    get,
    kubectl,
    read,
    refused,
    running,
    step,
)

GROUP = "cluster.x-k8s.io"
PROVIDER = f"infrastructure.{GROUP}"
# The provider's kinds, in one group; each has templates.
KINDS = ["HarbourCluster", "HarbourControlPlane", "HarbourBootstrap", "HarbourMachine"]
KINDS += [f"{kind}Template" for kind in KINDS]
HOST = f"webhook-service.{NAMESPACE}.svc"
PORT = 9443


def made(kind, name, group=GROUP, version="v1beta2", labels=None, **fields):
    meta = {"name": name, "namespace": NAMESPACE, "labels": labels or {}}
    return {"apiVersion": f"{group}/{version}", "kind": kind, "metadata": meta, **fields}


def certificate():
    """Creates a self-signed certificate for the webhooks."""
    words = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=webhooks"]
    words += ["-addext", f"subjectAltName=DNS:{HOST}", "-keyout", "tls.key", "-out", "tls.crt"]
    subprocess.run(words, check=True, capture_output=True)
    return base64.b64encode(pathlib.Path("tls.crt").read_bytes()).decode()


def aimed(found, bundle):
    """Sets the webhooks' Service and authority in every client configuration."""
    if isinstance(found, list):
        return [aimed(item, bundle) for item in found]
    if not isinstance(found, dict):
        return found
    found = {key: aimed(value, bundle) for key, value in found.items()}
    config = found.get("clientConfig", {})
    if "service" in config:
        found["clientConfig"] = {"service": {**config["service"], "namespace": NAMESPACE}, "caBundle": bundle}
    return found


def service():
    """The Service of the webhooks, which run on the node itself."""
    node = kubectl("get", "nodes", "-o", 'jsonpath={.items[0].status.addresses[?(@.type=="InternalIP")].address}')
    ports = [{"name": "https", "port": PORT, "protocol": "TCP"}]
    labels = {"kubernetes.io/service-name": "webhook-service"}
    slices = {"addressType": "IPv4", "ports": ports, "endpoints": [{"addresses": [node]}]}
    return (
        made("Service", "webhook-service", spec={"ports": [{"name": "https", "port": 443, "targetPort": PORT}]})
        | {"apiVersion": "v1"},
        made("EndpointSlice", "webhook-service-1", group="discovery.k8s.io", version="v1", labels=labels, **slices),
    )


def provider(kind):
    crd = definition(PROVIDER, kind)
    # The contract with Cluster API that the version fulfils.
    crd["metadata"]["labels"] = {f"{GROUP}/v1beta2": "v1"}
    return crd


def roles():
    """The manager's ClusterRole, which aggregates those with a label: its own, and one for a provider's kinds."""
    (role,) = read("core/config/rbac/role.yaml")
    resources = [f"{kind.lower()}s" for kind in KINDS]
    resources += [f"{resource}/status" for resource in resources]
    rule = {"apiGroups": [PROVIDER], "resources": resources, "verbs": ["*"]}
    harbour = {**role, "metadata": {"name": "harbour"}, "rules": [rule]}
    for labelled in (role, harbour):
        labelled["metadata"]["labels"] = {f"{GROUP}/aggregate-to-manager": "true"}
    (aggregated,) = [found for found in read("core/config/rbac/aggregated_role.yaml") if found.get("aggregationRule")]
    return role, harbour, aggregated


def kind(name, group=GROUP):
    return f"{name}.{group}"


def cluster():
    return get(kind("clusters"), "one") or {}


def phase(resource, name):
    return (get(kind(resource), name) or {}).get("status", {}).get("phase")


def provision(resource, name, **spec):
    """Does what a provider does once its infrastructure is ready."""
    status = json.dumps({"status": {"initialization": {"provisioned": True}}})
    words = ["patch", kind(resource, PROVIDER), name, "--type", "merge", "--patch"]
    kubectl(*words, json.dumps({"spec": spec}))
    kubectl(*words, status, "--subresource", "status")


def machines():
    labels = f"{GROUP}/deployment-name=deck"
    return kubectl("get", kind("machines"), "-l", labels, "-o", "jsonpath={.items[*].metadata.name}").split()


def owner(found):
    return [(one["kind"], one["name"]) for one in (found or {}).get("metadata", {}).get("ownerReferences", [])]


def machine_deployment(**template):
    bootstrap = {"dataSecretName": "cloud-init"}
    infrastructure = {"apiGroup": PROVIDER, "kind": "HarbourMachineTemplate", "name": "small"}
    spec = {"clusterName": "one", "bootstrap": bootstrap, "infrastructureRef": infrastructure, **template}
    return made("MachineDeployment", "deck", spec={"clusterName": "one", "template": {"spec": spec}})


def template(kind, **spec):
    spec = {"template": {"spec": spec}}
    return made(f"{kind}Template", "small", group=PROVIDER, version="v1", spec=spec)


def cluster_class():
    """One of a control plane and machines, whose size is a variable."""

    def used(kind):
        return {"templateRef": {"apiVersion": f"{PROVIDER}/v1", "kind": f"{kind}Template", "name": "small"}}

    deck = {"class": "deck", "bootstrap": used("HarbourBootstrap"), "infrastructure": used("HarbourMachine")}
    schema = {"openAPIV3Schema": {"type": "integer", "minimum": 1, "default": 3}}
    machines = {"machineDeploymentClass": {"names": ["deck"]}}
    selector = {"apiVersion": f"{PROVIDER}/v1", "kind": "HarbourMachineTemplate", "matchResources": machines}
    change = {"op": "replace", "path": "/spec/template/spec/size", "valueFrom": {"variable": "size"}}
    spec = {
        "infrastructure": used("HarbourCluster"),
        "controlPlane": used("HarbourControlPlane"),
        "workers": {"machineDeployments": [deck]},
        "variables": [{"name": "size", "required": True, "schema": schema}],
        "patches": [{"name": "size", "definitions": [{"selector": selector, "jsonPatches": [change]}]}],
    }
    return made("ClusterClass", "harbour", spec=spec)


def classy(version="v1.37.0", replicas=1, **more):
    """A Cluster of that class."""
    deck = {"class": "deck", "name": "deck", "replicas": replicas}
    topology = {"classRef": {"name": "harbour"}, "version": version, "workers": {"machineDeployments": [deck]}}
    return made("Cluster", "classy", spec={"topology": {**topology, **more}})


def classy_deck():
    """Its MachineDeployment, and the size of that one's machines."""
    labels = f"{GROUP}/cluster-name=classy"
    names = kubectl("get", kind("machinedeployments"), "-l", labels, "-o", "jsonpath={.items[*].metadata.name}").split()
    if not names:
        return {}, 0
    found = get(kind("machinedeployments"), names[0])
    used = found["spec"]["template"]["spec"]["infrastructureRef"]["name"]
    machine = get(kind("harbourmachinetemplates", PROVIDER), used)
    return found, machine and machine["spec"]["template"]["spec"]["size"]


def node(name):
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {"name": name},
        "spec": {"providerID": f"harbour://{name}", "unschedulable": True},
    }


step("definitions, webhooks by Service")
bundle = certificate()
apply(*service())
define(*aimed(read("core/config/crd"), bundle))
define(*map(provider, KINDS))

step("account with an aggregated role")
apply(*roles())
wanted = len(get("clusterrole", "manager-role")["rules"]) + 1
eventually("the added rules", lambda: len(get("clusterrole", "aggregated-manager-role").get("rules") or ()) == wanted)

with running(
    "cluster-api",
    f"--webhook-port={PORT}",
    f"--webhook-cert-dir={os.getcwd()}",
    "--diagnostics-address=127.0.0.1:18443",
    "--health-addr=127.0.0.1:19440",
    "--feature-gates=ClusterTopology=true",
    env=account("aggregated-manager-role"),
):
    webhooks = read("core/config/webhook/manifests.yaml")
    apply(*aimed(webhooks, bundle))

    step("validation, defaulting")
    wrong = machine_deployment(version="one")
    eventually("the webhook's answer", lambda: "must be a valid semantic version" in refused(wrong))
    network = {"pods": {"cidrBlocks": ["10.0.0.0/16"]}}
    reference = {"apiGroup": PROVIDER, "kind": "HarbourCluster", "name": "one"}
    spec = {"clusterNetwork": network, "infrastructureRef": reference}
    apply(made("Cluster", "one", labels={"fleet": "north"}, spec=spec))
    apply(machine_deployment(version="1.37.0"))
    deck = get(kind("machinedeployments"), "deck")["spec"]
    assert deck["replicas"] == 1 and deck["template"]["spec"]["version"] == "v1.37.0", deck
    assert deck["selector"]["matchLabels"] == {
        f"{GROUP}/cluster-name": "one",
        f"{GROUP}/deployment-name": "deck",
    }, deck

    step("conversion")
    old = get("clusters.v1beta1.cluster.x-k8s.io", "one")
    assert old["apiVersion"] == f"{GROUP}/v1beta1", old["apiVersion"]
    assert old["spec"]["infrastructureRef"]["apiVersion"] == f"{PROVIDER}/v1", old["spec"]
    reference = {"apiVersion": f"{PROVIDER}/v1", "kind": "HarbourCluster", "name": "two", "namespace": NAMESPACE}
    apply(made("Cluster", "two", version="v1beta1", spec={"paused": True, "infrastructureRef": reference}))
    new = get(kind("clusters"), "two")
    assert new["apiVersion"] == f"{GROUP}/v1beta2", new["apiVersion"]
    assert new["spec"]["infrastructureRef"] == {"apiGroup": PROVIDER, "kind": "HarbourCluster", "name": "two"}, new
    listed = kubectl("get", "clusters.v1beta1.cluster.x-k8s.io", "-o", "jsonpath={.items[*].apiVersion}")
    assert listed == f"{GROUP}/v1beta1 {GROUP}/v1beta1", listed

    step("Cluster: phases, conditions, owner")
    eventually("a Cluster that waits for its provider", lambda: phase("clusters", "one") == "Provisioning")
    assert condition(cluster(), "InfrastructureReady") == "False", cluster()["status"]
    assert cluster()["metadata"]["finalizers"] == [f"cluster.{GROUP}"], cluster()["metadata"]
    apply(made("HarbourCluster", "one", group=PROVIDER, version="v1"))
    eventually(
        "its owner", lambda: owner(get(kind("harbourclusters", PROVIDER), "one")) == [("Cluster", "one")]
    )
    kubeconfig = pathlib.Path(os.environ["KUBECONFIG"]).read_bytes()
    secret = made("Secret", "one-kubeconfig", labels={f"{GROUP}/cluster-name": "one"}, type=f"{GROUP}/secret")
    apply(secret | {"apiVersion": "v1", "data": {"value": base64.b64encode(kubeconfig).decode()}})
    endpoint = {"host": "127.0.0.1", "port": 6443}
    provision("harbourclusters", "one", controlPlaneEndpoint=endpoint)
    eventually("a provisioned Cluster", lambda: phase("clusters", "one") == "Provisioned")
    assert cluster()["spec"]["controlPlaneEndpoint"] == endpoint, cluster()["spec"]
    eventually("the Cluster's infrastructure", lambda: condition(cluster(), "InfrastructureReady") == "True")

    step("connection to the cluster, which is this one")
    eventually("a probe", lambda: condition(cluster(), "RemoteConnectionProbe") == "True")

    step("MachineDeployment, MachineSet, Machine")
    apply(template("HarbourMachine", size=1))
    eventually("a Machine", lambda: len(machines()) == 1)
    (name,) = machines()
    eventually("the provider's machine", lambda: get(kind("harbourmachines", PROVIDER), name))
    harbour = get(kind("harbourmachines", PROVIDER), name)
    assert harbour["spec"]["size"] == 1, harbour
    eventually("its owner", lambda: ("Machine", name) in owner(get(kind("harbourmachines", PROVIDER), name)))
    provision("harbourmachines", name, providerID="harbour://one")
    eventually("a provisioned Machine", lambda: phase("machines", name) == "Provisioned")

    step("Machine and its Node")
    apply(node("one"))
    eventually("a running Machine", lambda: phase("machines", name) == "Running")
    assert get(kind("machines"), name)["status"]["nodeRef"]["name"] == "one"
    eventually("the Node's label", lambda: f"{GROUP}/machine" in get("node", "one")["metadata"].get("annotations", {}))

    step("scale")
    kubectl("scale", kind("machinedeployments"), "deck", "--replicas", "2")
    eventually("another Machine", lambda: len(machines()) == 2)
    columns = kubectl("get", kind("machinedeployments"), "deck").splitlines()
    assert "deck" in columns[1] and "one" in columns[1], columns

    step("ClusterResourceSet")
    payload = config_map("landed", cargo="grain")
    apply(config_map("payload", **{"payload.json": json.dumps(payload)}))
    selector = {"matchLabels": {"fleet": "north"}}
    spec = {"clusterSelector": selector, "resources": [{"kind": "ConfigMap", "name": "payload"}]}
    apply(made("ClusterResourceSet", "north", group=f"addons.{GROUP}", spec=spec))
    eventually("what it brings to the cluster", lambda: get("configmap", "landed"))
    assert get("configmap", "landed")["data"] == payload["data"]

    step("Machine of the control plane")
    reference = {"apiGroup": PROVIDER, "kind": "HarbourMachine", "name": "captain"}
    spec = {"clusterName": "one", "bootstrap": {"dataSecretName": "cloud-init"}, "infrastructureRef": reference}
    labels = {f"{GROUP}/control-plane": "", f"{GROUP}/cluster-name": "one"}
    apply(node("captain"), made("HarbourMachine", "captain", group=PROVIDER, version="v1"))
    apply(made("Machine", "captain", labels=labels, spec=spec))
    provision("harbourmachines", "captain", providerID="harbour://captain")
    eventually("a running Machine", lambda: phase("machines", "captain") == "Running")
    eventually("a control plane", lambda: condition(cluster(), "ControlPlaneInitialized") == "True")

    step("Machine deleted, its Node drained and deleted")
    kubectl("delete", kind("machines"), name, "--wait=false")
    eventually("the end of the Node", lambda: get("node", "one") is None)
    eventually("the end of the Machine", lambda: get(kind("machines"), name) is None)
    assert get(kind("harbourmachines", PROVIDER), name) is None
    eventually("one in its place", lambda: len(machines()) == 2)

    step("ClusterClass, topology")
    apply(*map(template, ["HarbourCluster", "HarbourControlPlane", "HarbourBootstrap"]), cluster_class())
    eventually(
        "the class's variables", lambda: condition(get(kind("clusterclasses"), "harbour"), "VariablesReady") == "True"
    )
    apply(classy())
    found = get(kind("clusters"), "classy")
    assert found["spec"]["topology"]["variables"] == [{"name": "size", "value": 3}], found["spec"]
    eventually("machines of the default size", lambda: classy_deck()[1] == 3)
    plane = kind("harbourcontrolplanes", PROVIDER), get(kind("clusters"), "classy")["spec"]["controlPlaneRef"]["name"]
    assert get(*plane)["spec"]["version"] == "v1.37.0", get(*plane)
    eventually("its owner", lambda: owner(get(*plane)) == [("Cluster", "classy")])
    words = ["--show-managed-fields", "--output", "jsonpath={.metadata.managedFields[*].manager}"]
    managers = kubectl("get", *plane, *words).split()
    assert "capi-topology" in managers, managers

    step("topology changed, by hand too")
    error = refused(classy(variables=[{"name": "size", "value": 0}]))
    assert "should be greater than or equal to 1" in error, error
    error = refused(classy(version="v1.36.0"))
    assert "version cannot be decreased" in error, error
    apply(classy(variables=[{"name": "size", "value": 5}]))
    eventually("bigger machines", lambda: classy_deck()[1] == 5)
    deck = classy_deck()[0]["metadata"]["name"]
    kubectl("scale", kind("machinedeployments"), deck, "--replicas", "2")
    kubectl("annotate", kind("machinedeployments"), deck, "ours=kept")
    eventually("the number of the topology", lambda: classy_deck()[0]["spec"]["replicas"] == 1)
    assert classy_deck()[0]["metadata"]["annotations"]["ours"] == "kept"

    step("Cluster deleted")
    kubectl("patch", kind("clusters"), "two", "--type", "merge", "-p", json.dumps({"spec": {"paused": None}}))
    kubectl("delete", kind("clusters"), "one", "two", "classy", "--timeout", "120s")
    assert not kubectl("get", kind("machines"), "-o", "name")
    assert not kubectl("get", kind("harbourmachines", PROVIDER), "-o", "name")
    assert get(kind("harbourclusters", PROVIDER), "one") is None

    step("manager stopped")
    names = [f"{found['kind']}/{found['metadata']['name']}" for found in webhooks]
    kubectl("delete", "node/captain", *names)
