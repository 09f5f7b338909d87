"""The PyPI package `kr8s`: objects, waits, exec, logs, port-forwards."""

import io

import httpx
import kr8s
from kr8s.objects import ConfigMap, Deployment, Pod, Service, new_class

from tries import NAMESPACE, WEB_IMAGE, config_map, eventually, pod, step

api = kr8s.api()

step("CRUD")
made = ConfigMap(config_map("a", x="1"), api=api)
made.create()
made.patch({"data": {"y": "2"}})
made.refresh()
assert dict(made.data) == {"x": "1", "y": "2"}, made.data
made.label(team="crew")
found = [item.name for item in kr8s.get("configmaps", namespace=NAMESPACE, label_selector={"team": "crew"})]
assert found == ["a"], found
made.delete()
eventually("a deleted object", lambda: not made.exists())

step("list of all kinds")
kinds = api.api_resources()
assert len(kinds) > 50, len(kinds)
for kind in kinds:
    if "list" in kind["verbs"]:
        list(kr8s.get(f"{kind['name']}.{kind['version']}", namespace=kr8s.ALL, api=api))

step("pod, wait, exec, logs")
box = Pod(pod("box", command=["sh", "-c", "echo begun; sleep 1000"]), api=api)
box.create()
box.wait("condition=Ready", timeout=120)
assert box.exec(["echo", "hello"]).stdout == b"hello\n"
into = io.BytesIO()
box.exec(["sh", "-c", "echo into"], stdout=into)
assert into.getvalue() == b"into\n", into.getvalue()
assert list(box.logs()) == ["begun"], list(box.logs())

step("Deployment, Service, scale")
labels = {"app": "site"}
template = {"metadata": {"labels": labels}, "spec": {"containers": [{"name": "web", "image": WEB_IMAGE}]}}
meta = {"name": "site", "namespace": NAMESPACE}
site = Deployment(
    {"metadata": meta, "spec": {"replicas": 1, "selector": {"matchLabels": labels}, "template": template}}, api=api
)
site.create()
site.wait("condition=Available", timeout=120)
site.scale(2)
service = Service({"metadata": meta, "spec": {"selector": labels, "ports": [{"port": 80}]}}, api=api)
service.create()
# A connection to the new pod would fail before it is ready.
eventually("both pods behind the Service", lambda: len(service.ready_pods()) == 2)

step("port-forward")
for target, port in ((site.pods()[0], 80), (service, 80)):
    with target.portforward(remote_port=port, local_port="auto") as local:
        answer = httpx.get(f"http://127.0.0.1:{local}/")
        assert answer.status_code == 200 and answer.text, answer

step("watch")
for event, item in kr8s.watch("configmaps", namespace=NAMESPACE):
    if item.name == "kube-root-ca.crt":
        assert event == "ADDED", event
        break

step("class of its own")
Lease = new_class(kind="Lease", version="coordination.k8s.io/v1", namespaced=True)
lease = Lease({"metadata": {"name": "l", "namespace": NAMESPACE}, "spec": {"holderIdentity": "me"}}, api=api)
lease.create()
assert [item.name for item in kr8s.get("leases.coordination.k8s.io", namespace=NAMESPACE)] == ["l"]
