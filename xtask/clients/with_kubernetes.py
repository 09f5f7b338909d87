"""The PyPI package `kubernetes`: objects, watches, exec, logs, proxies, custom resources."""

import threading

from kubernetes import client, config, dynamic, watch
from kubernetes.client.rest import ApiException
from kubernetes.stream import stream

from tries import NAMESPACE, WEB_IMAGE, config_map, definition, eventually, pod, step

config.load_kube_config()
core = client.CoreV1Api()


def refused(code, call):
    try:
        call()
    except ApiException as error:
        assert error.status == code, error
        return
    raise SystemExit(f"the call should have been answered with {code}")


step("CRUD")
made = core.create_namespaced_config_map(NAMESPACE, config_map("a", x="1"))
made.data["x"] = "2"
core.replace_namespaced_config_map("a", NAMESPACE, made)
refused(409, lambda: core.replace_namespaced_config_map("a", NAMESPACE, made))
patched = core.patch_namespaced_config_map("a", NAMESPACE, {"data": {"x": None, "y": "3"}})
assert patched.data == {"y": "3"}, patched.data
for name in "bcd":
    core.create_namespaced_config_map(NAMESPACE, config_map(name))
first = core.list_namespaced_config_map(NAMESPACE, limit=2)
rest = core.list_namespaced_config_map(NAMESPACE, _continue=first.metadata._continue)
names = [item.metadata.name for item in first.items + rest.items]
assert names == ["a", "b", "c", "d", "kube-root-ca.crt"], names
core.delete_namespaced_config_map("d", NAMESPACE)
refused(404, lambda: core.read_namespaced_config_map("d", NAMESPACE))

step("watch")
seen = []
start = core.list_namespaced_config_map(NAMESPACE).metadata.resource_version


def follow():
    events = watch.Watch().stream(
        core.list_namespaced_config_map, NAMESPACE, resource_version=start, timeout_seconds=60
    )
    for event in events:
        seen.append((event["type"], event["object"].metadata.name))
        if len(seen) == 3:
            return


follower = threading.Thread(target=follow)
follower.start()
core.create_namespaced_config_map(NAMESPACE, config_map("w"))
core.patch_namespaced_config_map("w", NAMESPACE, {"data": {"x": "1"}})
core.delete_namespaced_config_map("w", NAMESPACE)
follower.join(60)
assert seen == [("ADDED", "w"), ("MODIFIED", "w"), ("DELETED", "w")], seen

step("pod, exec, logs")
core.create_namespaced_pod(NAMESPACE, pod("box", command=["sh", "-c", "echo begun; sleep 1000"]))
eventually("a running pod", lambda: core.read_namespaced_pod("box", NAMESPACE).status.phase == "Running")
said = stream(
    core.connect_get_namespaced_pod_exec,
    "box",
    NAMESPACE,
    command=["sh", "-c", "echo out; echo err >&2; exit 3"],
    stdout=True,
    stderr=True,
    _preload_content=False,
)
said.run_forever(timeout=30)
assert said.read_stdout() == "out\n" and said.read_stderr() == "err\n"
assert said.returncode == 3, said.returncode
typed = stream(
    core.connect_get_namespaced_pod_exec,
    "box",
    NAMESPACE,
    command=["head", "-n", "1"],
    stdin=True,
    stdout=True,
    _preload_content=False,
)
typed.write_stdin("typed\n")
typed.run_forever(timeout=30)
assert typed.read_stdout() == "typed\n"
assert core.read_namespaced_pod_log("box", NAMESPACE) == "begun\n"

step("proxies with paths")
core.create_namespaced_pod(NAMESPACE, pod("web", image=WEB_IMAGE, ports=[{"containerPort": 80}]))
page = ["sh", "-c", "mkdir /usr/share/web/a && echo deep >/usr/share/web/a/b.html"]
eventually("a running pod", lambda: core.read_namespaced_pod("web", NAMESPACE).status.phase == "Running")
stream(core.connect_get_namespaced_pod_exec, "web", NAMESPACE, command=page, stdout=True)
service = {"metadata": {"name": "web"}, "spec": {"selector": {"app": "web"}, "ports": [{"port": 80}]}}
core.create_namespaced_service(NAMESPACE, service)
answer = core.connect_get_namespaced_pod_proxy_with_path("web", NAMESPACE, "a/b.html")
assert answer == "deep\n", answer


def through_service():
    try:
        return core.connect_get_namespaced_service_proxy_with_path("web", NAMESPACE, "a/b.html") == "deep\n"
    except ApiException as error:
        # Its endpoints do not exist yet.
        assert error.status == 503, error


eventually("the page through the Service", through_service)
node = core.list_node().items[0].metadata.name
summary = core.connect_get_node_proxy_with_path(node, "stats/summary")
assert "nodeName" in summary and node in summary, summary

step("eviction, token")
review = client.AuthenticationV1TokenRequest(
    spec=client.V1TokenRequestSpec(audiences=[], expiration_seconds=600)
)
token = core.create_namespaced_service_account_token("default", NAMESPACE, review)
assert token.status.token.count(".") == 2
core.create_namespaced_pod_eviction("box", NAMESPACE, {"metadata": {"name": "box"}})
eventually(
    "an evicted pod", lambda: "box" not in [p.metadata.name for p in core.list_namespaced_pod(NAMESPACE).items]
)

step("custom resource, dynamic client, server-side apply")
client.ApiextensionsV1Api().create_custom_resource_definition(definition("python.example.com", "Sail"))
anything = dynamic.DynamicClient(client.ApiClient())


def sails():
    try:
        anything.resources.invalidate_cache()
        return anything.resources.get(api_version="python.example.com/v1", kind="Sail")
    except dynamic.exceptions.ResourceNotFoundError:
        return None


resource = eventually("the kind in discovery", sails)
sail = {
    "apiVersion": "python.example.com/v1",
    "kind": "Sail",
    "metadata": {"name": "main"},
    "spec": {"area": 90},
}
applied = eventually(
    "an applied object",
    lambda: resource.server_side_apply(sail, name="main", namespace=NAMESPACE, field_manager="one"),
)
assert applied.spec.area == 90, applied
sail["spec"]["area"] = 80
try:
    resource.server_side_apply(sail, name="main", namespace=NAMESPACE, field_manager="two")
    raise SystemExit("there should have been a conflict")
except dynamic.exceptions.ConflictError:
    pass
forced = resource.server_side_apply(
    sail, name="main", namespace=NAMESPACE, field_manager="two", force_conflicts=True
)
assert forced.spec.area == 80, forced
status = resource.status.patch(
    body={"status": {"set": True}},
    name="main",
    namespace=NAMESPACE,
    content_type="application/merge-patch+json",
)
assert status.status.set is True, status
