"""The PyPI package `kopf`: an operator that keeps a ConfigMap for each object of a custom resource."""

import subprocess
import sys

import kopf
from kubernetes import client, config
from kubernetes.client.rest import ApiException

from tries import NAMESPACE, config_map, definition, eventually, step

GROUP, PLURAL = "kopf.example.com", "rigs"

if __name__ != "__main__":
    # Runs this file as the operator: `kopf run` loads it again.
    config.load_kube_config()
    core = client.CoreV1Api()

    @kopf.on.create(GROUP, "v1", PLURAL)
    def create(name, spec, body, **_):
        made = config_map(name, masts=str(spec["masts"]))
        kopf.append_owner_reference(made, owner=body)
        core.create_namespaced_config_map(NAMESPACE, made)
        kopf.event(body, type="Normal", reason="Rigged", message=f"{spec['masts']} masts")
        return {"configMap": name}

    @kopf.on.update(GROUP, "v1", PLURAL, field="spec.masts")
    def update(name, new, **_):
        core.patch_namespaced_config_map(name, NAMESPACE, {"data": {"masts": str(new)}})

    @kopf.on.delete(GROUP, "v1", PLURAL)
    def delete(name, **_):
        core.create_namespaced_config_map(NAMESPACE, config_map(f"{name}-gone"))

    @kopf.timer(GROUP, "v1", PLURAL, interval=1)
    def tick(patch, status, **_):
        patch.status["ticks"] = min(status.get("ticks", 0) + 1, 3)


def main():
    config.load_kube_config()
    core, custom = client.CoreV1Api(), client.CustomObjectsApi()
    client.ApiextensionsV1Api().create_custom_resource_definition(definition(GROUP, "Rig"))

    def data(name):
        try:
            return core.read_namespaced_config_map(name, NAMESPACE).data or {"empty": True}
        except ApiException as error:
            assert error.status == 404, error

    def rig():
        return custom.get_namespaced_custom_object(GROUP, "v1", NAMESPACE, PLURAL, "one")

    words = [sys.executable, "-m", "kopf", "run", "--standalone", "--namespace", NAMESPACE, __file__]
    operator = subprocess.Popen(words)
    try:
        step("object created")
        body = {
            "apiVersion": f"{GROUP}/v1",
            "kind": "Rig",
            "metadata": {"name": "one"},
            "spec": {"masts": 1},
        }

        def created():
            try:
                return custom.create_namespaced_custom_object(GROUP, "v1", NAMESPACE, PLURAL, body)
            except ApiException as error:
                # The definition is not served yet.
                assert error.status == 404, error

        eventually("a served resource", created)
        eventually("the operator's ConfigMap", lambda: data("one") == {"masts": "1"})
        eventually("the handler's result", lambda: "create" in rig().get("status", {}))
        assert rig()["metadata"]["finalizers"], "the operator holds the object"

        step("object changed")
        custom.patch_namespaced_custom_object(GROUP, "v1", NAMESPACE, PLURAL, "one", {"spec": {"masts": 3}})
        eventually("the operator's change", lambda: data("one") == {"masts": "3"})

        step("timer")
        eventually("three ticks", lambda: rig()["status"].get("ticks") == 3)

        step("events")

        def reasons():
            events = core.list_namespaced_event(NAMESPACE, field_selector="involvedObject.kind=Rig").items
            return "Rigged" in [event.reason for event in events]

        eventually("the operator's event", reasons)

        step("object deleted")
        custom.delete_namespaced_custom_object(GROUP, "v1", NAMESPACE, PLURAL, "one")
        eventually("the handler of the deletion", lambda: data("one-gone"))
        eventually("what the object owned goes", lambda: data("one") is None, 120)

        step("operator stopped")
        operator.terminate()
        assert operator.wait(60) == 0, operator.returncode
    finally:
        operator.kill()


if __name__ == "__main__":
    main()
