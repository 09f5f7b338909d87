"""A small operator for the `Greeting` custom resource: one ConfigMap for each, told of in the status.

Usage: greeter.py NAMESPACE. It ends when its input is closed.
"""

import sys
import threading

from kubernetes import client, config, watch

GROUP, VERSION, PLURAL = "hello.example.com", "v1", "greetings"


def reconcile(api, core, namespace, greeting):
    name, spec = greeting["metadata"]["name"], greeting["spec"]
    text = "\n".join([spec["text"]] * spec["replicas"])
    owner = {
        "apiVersion": f"{GROUP}/{VERSION}", "kind": "Greeting", "name": name,
        "uid": greeting["metadata"]["uid"], "controller": True, "blockOwnerDeletion": True,
    }
    body = {"metadata": {"name": name, "ownerReferences": [owner]}, "data": {"text": text}}
    try:
        core.create_namespaced_config_map(namespace, body)
    except client.ApiException as error:
        if error.status != 409:
            raise
        core.replace_namespaced_config_map(name, namespace, body)
    status = {"replicas": spec["replicas"], "selector": f"greeting={name}",
              "observedGeneration": greeting["metadata"]["generation"], "phase": "Ready"}
    if greeting.get("status") != status:
        api.patch_namespaced_custom_object_status(
            GROUP, VERSION, namespace, PLURAL, name, {"status": status})


def main():
    config.load_kube_config()
    namespace = sys.argv[1]
    api, core = client.CustomObjectsApi(), client.CoreV1Api()
    stream = watch.Watch()
    threading.Thread(target=lambda: (sys.stdin.read(), stream.stop()), daemon=True).start()
    print("ready", flush=True)
    for event in stream.stream(api.list_namespaced_custom_object, GROUP, VERSION, namespace, PLURAL,
                               timeout_seconds=120):
        if event["type"] in ("ADDED", "MODIFIED") and "deletionTimestamp" not in event["object"]["metadata"]:
            reconcile(api, core, namespace, event["object"])


main()
