"""Shared code of the Python scripts: naming the steps, waiting for results, and the objects of the steps."""

import contextlib
import json
import os
import pathlib
import subprocess
import time

NAMESPACE = os.environ["KNARR_NAMESPACE"]
IMAGE = "busybox"
WEB_IMAGE = "knarr.local/web:v1"
# The files of a Go module that the table of clients names.
FILES = pathlib.Path(os.environ["KNARR_FILES"])


def step(name):
    """Begins the step of this name, which lasts until the next one."""
    print(f"try: {name}", flush=True)


def eventually(what, ask, limit=120):
    """Polls until the answer is true; returns it."""
    deadline = time.monotonic() + limit
    while True:
        answer = ask()
        if answer:
            return answer
        if time.monotonic() > deadline:
            raise SystemExit(f"{what}: not within {limit} s")
        time.sleep(0.1)


def kubectl(*words, given=None):
    """Runs kubectl in the namespace of this client; returns its output."""
    # Plugins take no options before their names.
    words = ["kubectl", *words, "--namespace", NAMESPACE]
    done = subprocess.run(words, input=given, capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(f"{' '.join(words)}\n{done.stderr.strip()}")
    return done.stdout


def refused(*objects):
    """Applies objects that the API has to refuse; returns the error, empty if they were accepted."""
    words = ["kubectl", "apply", "--filename", "-", "--namespace", NAMESPACE]
    done = subprocess.run(words, input=documents(objects), capture_output=True, text=True)
    return done.stderr if done.returncode else ""


def apply(*objects, server_side=False):
    kubectl("apply", "--filename", "-", f"--server-side={json.dumps(server_side)}", given=documents(objects))


def documents(objects):
    """Formats objects as separate documents, not as a List, which kubectl would validate itself."""
    return "\n".join(map(json.dumps, objects))


def read(path):
    """Reads the objects of a file of the module, or of the `kustomization.yaml` in a folder."""
    path = FILES / path
    text = subprocess.check_output(["kubectl", "kustomize", path], text=True) if path.is_dir() else path.read_text()
    # Separate documents, as JSON.
    text = kubectl("create", "--dry-run=client", "--output", "json", "--filename", "-", given=text).strip()
    objects = []
    while text:
        found, end = json.JSONDecoder().raw_decode(text)
        text = text[end:].lstrip()
        objects += found["items"] if found["kind"] == "List" else [found]
    return objects


def define(*definitions):
    """Creates CustomResourceDefinitions, and waits until they are served."""
    # The annotation of client-side apply would be too long for them.
    apply(*definitions, server_side=True)
    names = [f"customresourcedefinition/{definition['metadata']['name']}" for definition in definitions]
    kubectl("wait", "--for", "condition=Established", *names, "--timeout", "60s")


def get(kind, name):
    """Returns an object, or None."""
    text = kubectl("get", kind, name, "--ignore-not-found", "--output", "json")
    return json.loads(text) if text else None


def condition(found, kind):
    """Returns the status of a condition; empty if there is none."""
    conditions = (found or {}).get("status", {}).get("conditions", [])
    return "".join(one["status"] for one in conditions if one["type"] == kind)


def account(role):
    """Creates a service account with one ClusterRole; returns the environment of programs that use it."""
    kubectl("create", "serviceaccount", role)
    kubectl("create", "clusterrolebinding", role, "--clusterrole", role, "--serviceaccount", f"{NAMESPACE}:{role}")
    config = json.loads(kubectl("config", "view", "--raw", "--output", "json"))
    for user in config["users"]:
        user["user"] = {"token": kubectl("create", "token", role).strip()}
    path = pathlib.Path(f"{role}.kubeconfig").absolute()
    path.write_text(json.dumps(config))
    return {**os.environ, "KUBECONFIG": str(path)}


@contextlib.contextmanager
def running(*words, env=None):
    """Runs a program of the client until the end of the block, where it has to exit with success on SIGTERM."""
    log = f"{'-'.join(words[:2]).replace('/', '-')}.log"
    with open(log, "w") as output:
        program = subprocess.Popen(words, stdout=output, stderr=output, env=env)
    try:
        yield program
        assert program.poll() is None, f"{words[0]} ended with {program.returncode}"
        program.terminate()
        assert program.wait(60) == 0, f"{words[0]} ended with {program.returncode}"
    except BaseException:
        print(f"the end of {log}:\n{pathlib.Path(log).read_text()[-6000:]}", flush=True)
        raise
    finally:
        program.kill()
        program.wait()


def pod(name, **container):
    """A pod of one container; it ends at once when it is deleted."""
    container = {"name": "main", "image": IMAGE, "imagePullPolicy": "IfNotPresent", **container}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "namespace": NAMESPACE, "labels": {"app": name}},
        "spec": {"containers": [container], "terminationGracePeriodSeconds": 0},
    }


def deployment(name, replicas):
    """A Deployment of web servers."""
    labels = {"app": name}
    containers = [{"name": "web", "image": WEB_IMAGE, "ports": [{"containerPort": 80}]}]
    template = {"metadata": {"labels": labels}, "spec": {"containers": containers, "terminationGracePeriodSeconds": 0}}
    return {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": name, "namespace": NAMESPACE},
        "spec": {"replicas": replicas, "selector": {"matchLabels": labels}, "template": template},
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
