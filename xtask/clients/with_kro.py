"""kro: definitions of graphs of resources, their instances, and what those are made of."""

from tries import FILES, WEB_IMAGE, apply, condition, define, eventually, get, kubectl, read, refused, running, step

DEFINITION, INSTANCE = "resourcegraphdefinition.kro.run", "harbour.kro.run"


def made(kind, name):
    return {"apiVersion": "kro.run/v1alpha1", "kind": kind, "metadata": {"name": name}}


def graph(name="harbours.kro.run", kind="Harbour", image="${schema.spec.image}", more=()):
    """A Deployment, a Service of it, and a ConfigMap if it is wanted."""
    labels = {"app": "${schema.spec.name}"}
    containers = [{"name": "web", "image": image, "ports": [{"containerPort": 80}]}]
    template = {"metadata": {"labels": labels}, "spec": {"containers": containers, "terminationGracePeriodSeconds": 0}}
    piers = {
        "id": "piers",
        "readyWhen": ["${piers.spec.replicas == piers.status.availableReplicas}"],
        "template": {
            "apiVersion": "apps/v1",
            "kind": "Deployment",
            "metadata": {"name": "${schema.spec.name}"},
            "spec": {"replicas": "${schema.spec.piers}", "selector": {"matchLabels": labels}, "template": template},
        },
    }
    entry = {
        "id": "entry",
        "template": {
            "apiVersion": "v1",
            "kind": "Service",
            "metadata": {"name": "${piers.metadata.name}-entry"},
            "spec": {"selector": "${piers.spec.selector.matchLabels}", "ports": [{"port": 80}]},
        },
    }
    notice = {
        "id": "notice",
        "includeWhen": ["${schema.spec.notice}"],
        "template": {
            "apiVersion": "v1",
            "kind": "ConfigMap",
            "metadata": {"name": "${schema.spec.name}-notice"},
            "data": {"address": "${entry.spec.clusterIP}"},
        },
    }
    schema = {
        "apiVersion": "v1alpha1",
        "kind": kind,
        "spec": {
            "name": "string",
            "piers": "integer | default=1 minimum=1",
            "notice": "boolean | default=true",
            "image": f'string | default="{WEB_IMAGE}"',
        },
        "status": {"address": "${entry.spec.clusterIP}", "open": "${piers.status.availableReplicas}"},
    }
    resources = [piers, entry, notice, *more]
    spec = {"schema": schema, "resources": resources}
    return {**made("ResourceGraphDefinition", name), "spec": spec}


def harbour(**spec):
    return {**made("Harbour", "one"), "spec": {"name": "one", **spec}}


def state(wanted):
    return (get(INSTANCE, "one") or {}).get("status", {}).get("state") == wanted


step("definitions")
define(*[found for file in sorted((FILES / "helm/crds").glob("*.yaml")) for found in read(file)])

with running("kro", "--allow-crd-deletion"):
    step("ResourceGraphDefinition")
    apply(graph())
    eventually("a definition that is ready", lambda: condition(get(DEFINITION, "harbours.kro.run"), "Ready") == "True")
    columns = kubectl("get", "harbours").strip()
    assert columns == "", columns

    step("instance and its children")
    apply(harbour())
    eventually("an active instance", lambda: state("ACTIVE"))
    found = get(INSTANCE, "one")
    address = get("service", "one-entry")["spec"]["clusterIP"]
    assert found["spec"]["piers"] == 1, "the default of the schema"
    assert found["status"]["address"] == address and found["status"]["open"] == 1, found["status"]
    assert get("configmap", "one-notice")["data"] == {"address": address}
    assert found["metadata"]["finalizers"], "kro holds the instance"
    assert get("deployment", "one")["metadata"]["labels"]["kro.run/owned"] == "true"

    step("instance refused by its schema")
    error = refused(harbour(piers=0))
    assert "should be greater than or equal to 1" in error, error

    step("instance changed")
    apply(harbour(piers=2, notice=False))
    eventually("two piers", lambda: get(INSTANCE, "one")["status"].get("open") == 2)
    eventually("no notice", lambda: get("configmap", "one-notice") is None)
    eventually("an active instance", lambda: state("ACTIVE"))

    step("child deleted or changed, made again")
    kubectl("delete", "service", "one-entry")
    eventually("the Service", lambda: get("service", "one-entry"))
    kubectl("scale", "deployment", "one", "--replicas", "3")
    eventually("the number of the instance", lambda: get("deployment", "one")["spec"]["replicas"] == 2)

    step("definition changed")
    log = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "${schema.spec.name}-log"}}
    apply(graph(more=[{"id": "log", "template": log}]))
    eventually("the new child", lambda: get("configmap", "one-log"))
    revisions = kubectl("get", "graphrevisions.internal.kro.run", "-o", "name").split()
    assert len(revisions) == 2, revisions

    step("wrong definition")
    apply(graph(name="wrecks.kro.run", kind="Wreck", image="${nothing.spec.image}"))
    eventually("its refusal", lambda: condition(get(DEFINITION, "wrecks.kro.run"), "Ready") == "False")
    assert get("customresourcedefinition", "wrecks.kro.run") is None

    step("instance deleted")
    kubectl("delete", INSTANCE, "one", "--timeout", "120s")
    left = kubectl("get", "deployments,services,configmaps", "-l", "kro.run/owned=true", "-o", "name")
    assert left == "", left

    step("definition deleted")
    kubectl("delete", DEFINITION, "harbours.kro.run", "wrecks.kro.run", "--timeout", "120s")
    eventually("no CRD", lambda: get("customresourcedefinition", "harbours.kro.run") is None)
