"""Scenarios driven by the Python package `kubernetes`: client.py SCENARIO NAMESPACE."""

import json
import sys
import threading
import time

from kubernetes import client, config, watch
from kubernetes.client.rest import ApiException
from kubernetes.stream import stream

config.load_kube_config()
core = client.CoreV1Api()
apps = client.AppsV1Api()
namespace = sys.argv[2]


def eventually(what, ask, limit=90):
    deadline = time.monotonic() + limit
    while time.monotonic() < deadline:
        answer = ask()
        if answer:
            return answer
        time.sleep(0.1)
    sys.exit(f"{what}: not within {limit} s")


def config_map(name, **data):
    return client.V1ConfigMap(metadata=client.V1ObjectMeta(name=name), data=data)


def box(name, script):
    container = client.V1Container(
        name="main", image="busybox", image_pull_policy="IfNotPresent", command=["/bin/sh", "-c", script]
    )
    spec = client.V1PodSpec(containers=[container], termination_grace_period_seconds=1)
    meta = client.V1ObjectMeta(name=name, labels={"app": name})
    return client.V1Pod(metadata=meta, spec=spec)


def phase(name):
    return core.read_namespaced_pod(name, namespace).status.phase


def objects():
    made = core.create_namespaced_config_map(namespace, config_map("a", x="1"))
    assert made.metadata.uid and made.metadata.resource_version, made
    made.data["x"] = "2"
    replaced = core.replace_namespaced_config_map("a", namespace, made)
    assert replaced.data == {"x": "2"}
    assert int(replaced.metadata.resource_version) > int(made.metadata.resource_version)
    patched = core.patch_namespaced_config_map("a", namespace, {"data": {"y": "3", "x": None}})
    assert patched.data == {"y": "3"}, patched.data
    patched = core.patch_namespaced_config_map("a", namespace, [{"op": "add", "path": "/data/z", "value": "4"}])
    assert patched.data == {"y": "3", "z": "4"}, patched.data
    generated = core.create_namespaced_config_map(
        namespace, client.V1ConfigMap(metadata=client.V1ObjectMeta(generate_name="made-"))
    )
    assert generated.metadata.name.startswith("made-") and len(generated.metadata.name) == 10
    names = [c.metadata.name for c in core.list_namespaced_config_map(namespace).items]
    assert {"a", generated.metadata.name} <= set(names), names
    dry = core.create_namespaced_config_map(namespace, config_map("dry"), dry_run="All")
    assert dry.metadata.name == "dry"
    try:
        core.read_namespaced_config_map("dry", namespace)
        sys.exit("a dry run left something behind")
    except ApiException as error:
        assert error.status == 404, error
    core.delete_namespaced_config_map("a", namespace)
    core.delete_collection_namespaced_config_map(namespace, field_selector=f"metadata.name={generated.metadata.name}")
    names = [c.metadata.name for c in core.list_namespaced_config_map(namespace).items]
    assert "a" not in names and generated.metadata.name not in names, names


def lines(**query):
    """The raw events of a watch on the namespace's config maps."""
    answer = core.list_namespaced_config_map(namespace, watch=True, _preload_content=False, **query)
    pending = b""
    for chunk in answer.stream(65536):
        *whole, pending = (pending + chunk).split(b"\n")
        for line in whole:
            yield json.loads(line)


def watches():
    listed = core.list_namespaced_config_map(namespace)
    start = listed.metadata.resource_version
    seen = []

    def follow():
        for event in watch.Watch().stream(
            core.list_namespaced_config_map, namespace, resource_version=start, timeout_seconds=60
        ):
            seen.append((event["type"], event["object"].metadata.name))
            if len(seen) == 4:
                return

    follower = threading.Thread(target=follow)
    follower.start()
    core.create_namespaced_config_map(namespace, config_map("a", x="1"))
    core.patch_namespaced_config_map("a", namespace, {"data": {"x": "2"}})
    core.delete_namespaced_config_map("a", namespace)
    core.create_namespaced_config_map(namespace, config_map("b"))
    follower.join(60)
    want = [("ADDED", "a"), ("MODIFIED", "a"), ("DELETED", "a"), ("ADDED", "b")]
    assert seen == want, seen

    # A later watch from the same revision misses and repeats nothing, and its revisions increase.
    events = []
    for event in lines(resource_version=start, timeout_seconds=30):
        events.append(event)
        if len(events) == 4:
            break
    assert [(e["type"], e["object"]["metadata"]["name"]) for e in events] == want, events
    revisions = [int(e["object"]["metadata"]["resourceVersion"]) for e in events]
    assert revisions == sorted(set(revisions)), revisions
    assert events[2]["object"]["data"] == {"x": "2"}, "a deletion shows the last state"

    # The existing objects, then a bookmark that ends them, then changes.
    events = lines(
        send_initial_events=True, resource_version_match="NotOlderThan", allow_watch_bookmarks=True, timeout_seconds=60
    )
    names = set()
    for event in events:
        if event["type"] == "BOOKMARK":
            annotations = event["object"]["metadata"]["annotations"]
            assert annotations == {"k8s.io/initial-events-end": "true"}, event
            assert event["object"]["kind"] == "ConfigMap", event
            break
        names.add(event["object"]["metadata"]["name"])
    assert names == {"b", "kube-root-ca.crt"}, names
    core.create_namespaced_config_map(namespace, config_map("c"))
    event = next(e for e in events if e["type"] != "BOOKMARK")
    assert (event["type"], event["object"]["metadata"]["name"]) == ("ADDED", "c"), event

    # An object that begins to match a selector is ADDED for that watch, and DELETED when it no longer matches.
    events = lines(label_selector="team=a", resource_version=listed.metadata.resource_version, timeout_seconds=60)
    core.patch_namespaced_config_map("c", namespace, {"metadata": {"labels": {"team": "a"}}})
    core.patch_namespaced_config_map("c", namespace, {"metadata": {"labels": {"team": "b"}}})
    assert next(events)["type"] == "ADDED"
    assert next(events)["type"] == "DELETED"

    # A watch ends at its timeout, without an error.
    begun = time.monotonic()
    assert list(lines(resource_version=core.list_namespaced_config_map(namespace).metadata.resource_version, timeout_seconds=1)) == []
    assert 0.9 < time.monotonic() - begun < 10

    tables = client.ApiClient()
    tables.set_default_header("Accept", "application/json;as=Table;v=v1;g=meta.k8s.io")
    answer = client.CoreV1Api(tables).list_namespaced_config_map(namespace, _preload_content=False)
    table = json.loads(answer.data)
    assert table["kind"] == "Table" and [c["name"] for c in table["columnDefinitions"]] == ["Name", "Data", "Age"]


def errors():
    def fails(code, reason, call):
        try:
            call()
        except ApiException as error:
            body = json.loads(error.body)
            assert (error.status, body["reason"]) == (code, reason), error
            return body
        sys.exit(f"no {code} {reason}")

    fails(404, "NotFound", lambda: core.read_namespaced_pod("none", namespace))
    core.create_namespaced_config_map(namespace, config_map("a"))
    fails(409, "AlreadyExists", lambda: core.create_namespaced_config_map(namespace, config_map("a")))
    stale = core.read_namespaced_config_map("a", namespace)
    core.patch_namespaced_config_map("a", namespace, {"data": {"x": "1"}})
    stale.data = {"x": "2"}
    fails(409, "Conflict", lambda: core.replace_namespaced_config_map("a", namespace, stale))
    body = fails(422, "Invalid", lambda: core.create_namespaced_config_map(namespace, config_map("Bad_Name")))
    assert body["details"]["causes"][0]["field"] == "metadata.name", body
    assert body["details"]["causes"][0]["reason"] == "FieldValueInvalid", body


def exec_and_logs():
    core.create_namespaced_pod(namespace, box("box", "echo hello; trap 'exit 0' TERM; while true; do sleep 1 & wait; done"))
    eventually("box running", lambda: phase("box") == "Running")
    run = core.connect_get_namespaced_pod_exec
    answer = stream(run, "box", namespace, command=["sh", "-c", "echo out; echo err >&2"], stdout=True, stderr=True)
    assert sorted(answer.split()) == ["err", "out"], answer
    session = stream(
        run, "box", namespace, command=["sh"], stdin=True, stdout=True, stderr=True, _preload_content=False
    )
    session.write_stdin("echo from-$((40 + 2)); echo to-stderr >&2; exit 3\n")
    session.run_forever(timeout=30)
    assert session.read_stdout() == "from-42\n"
    assert session.read_stderr() == "to-stderr\n"
    assert session.returncode == 3, session.returncode
    assert core.read_namespaced_pod_log("box", namespace) == "hello\n"
    assert core.read_namespaced_pod_log("box", namespace, tail_lines=1, timestamps=True).split(" ")[1] == "hello\n"
    core.delete_namespaced_pod("box", namespace)


def deployment():
    container = client.V1Container(name="web", image="knarr.local/web:v1", ports=[client.V1ContainerPort(container_port=80)])
    template = client.V1PodTemplateSpec(
        metadata=client.V1ObjectMeta(labels={"app": "web"}),
        spec=client.V1PodSpec(containers=[container], termination_grace_period_seconds=1),
    )
    spec = client.V1DeploymentSpec(
        replicas=2, template=template, selector=client.V1LabelSelector(match_labels={"app": "web"})
    )
    body = client.V1Deployment(metadata=client.V1ObjectMeta(name="web"), spec=spec)
    apps.create_namespaced_deployment(namespace, body)
    ready = lambda count: (apps.read_namespaced_deployment_status("web", namespace).status.ready_replicas or 0) == count
    eventually("two ready replicas", lambda: ready(2))
    apps.patch_namespaced_deployment_scale("web", namespace, {"spec": {"replicas": 3}})
    eventually("three ready replicas", lambda: ready(3))
    scale = apps.read_namespaced_deployment_scale("web", namespace)
    assert (scale.spec.replicas, scale.status.selector) == (3, "app=web"), scale
    owner = core.list_namespaced_pod(namespace).items[0].metadata.owner_references[0]
    assert (owner.kind, owner.controller, owner.block_owner_deletion) == ("ReplicaSet", True, True), owner
    apps.delete_namespaced_deployment("web", namespace, propagation_policy="Foreground")
    eventually("nothing left", lambda: not core.list_namespaced_pod(namespace).items)


globals()[sys.argv[1]]()
print("ok")
