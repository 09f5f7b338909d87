"""What the Python scripts share: naming what is tried, waiting for it, and the objects that they try it with."""

import os
import time

NAMESPACE = os.environ["KNARR_NAMESPACE"]
IMAGE = "busybox"
WEB_IMAGE = "knarr.local/web:v1"


def step(name):
    """All until the next step is part of what is tried under this name."""
    print(f"try: {name}", flush=True)


def eventually(what, ask, limit=120):
    """The first answer that is true."""
    deadline = time.monotonic() + limit
    while True:
        answer = ask()
        if answer:
            return answer
        if time.monotonic() > deadline:
            raise SystemExit(f"{what}: not within {limit} s")
        time.sleep(0.1)


def pod(name, **container):
    """A pod of one container; it ends at once when it is deleted."""
    container = {"name": "main", "image": IMAGE, "imagePullPolicy": "IfNotPresent", **container}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "namespace": NAMESPACE, "labels": {"app": name}},
        "spec": {"containers": [container], "terminationGracePeriodSeconds": 0},
    }


def config_map(name, **data):
    return {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {"name": name, "namespace": NAMESPACE},
        "data": data,
    }


def definition(group, kind, status=True):
    """A CustomResourceDefinition, namespaced, of one version, whose spec and status may hold anything."""
    free = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
    version = {
        "name": "v1",
        "served": True,
        "storage": True,
        "schema": {"openAPIV3Schema": {"type": "object", "properties": {"spec": free, "status": free}}},
    }
    if status:
        version["subresources"] = {"status": {}}
    singular = kind.lower()
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": f"{singular}s.{group}"},
        "spec": {
            "group": group,
            "scope": "Namespaced",
            "names": {"kind": kind, "singular": singular, "plural": f"{singular}s"},
            "versions": [version],
        },
    }
