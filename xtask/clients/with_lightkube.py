"""The PyPI package `lightkube`: objects, apply, watches, a Deployment, exec and logs, and a resource of our own."""

import asyncio
import itertools

from lightkube import ApiError, AsyncClient, Client
from lightkube.codecs import from_dict
from lightkube.generic_resource import create_resources_from_crd, get_generic_resource
from lightkube.resources.apiextensions_v1 import CustomResourceDefinition
from lightkube.resources.apps_v1 import Deployment, DeploymentScale
from lightkube.resources.core_v1 import ConfigMap, Event, Node, Pod
from lightkube.types import CascadeType, PatchType

from tries import NAMESPACE, WEB_IMAGE, config_map, definition, eventually, pod, step

# It uses HTTP/2 only if configured; exec is an upgrade of HTTP/1.1.
upgraded = Client(namespace=NAMESPACE)
client = Client(namespace=NAMESPACE, field_manager="lightkube", http2=True)


def refused(code, ask):
    """Returns the message with which the API refuses a request."""
    try:
        ask()
    except ApiError as error:
        assert error.status.code == code, error.status
        return error.status
    raise SystemExit(f"a request that is wrong was not refused with {code}")


step("CRUD")
made = client.create(from_dict(config_map("a", x="1")))
made.data["y"] = "2"
changed = client.replace(made)
assert changed.data == {"x": "1", "y": "2"}, changed
assert refused(409, lambda: client.replace(made)).reason == "Conflict"
patch = [{"op": "remove", "path": "/data/x"}]
assert client.patch(ConfigMap, "a", patch, patch_type=PatchType.JSON).data == {"y": "2"}
assert client.set(ConfigMap, "a", labels={"team": "crew"}).metadata.labels == {"team": "crew"}
assert [found.metadata.name for found in client.list(ConfigMap, labels={"team": ["crew", "deck"]})] == ["a"]
client.delete(ConfigMap, "a")
assert refused(404, lambda: client.get(ConfigMap, "a")).reason == "NotFound"

step("list in pages")
for number in range(7):
    client.create(from_dict(config_map(f"page-{number}")), field_manager="pages")
pages = client.list(ConfigMap, chunk_size=2)
names = [found.metadata.name for found in pages]
assert [name for name in names if name.startswith("page-")] == [f"page-{number}" for number in range(7)], names
assert pages.resourceVersion, "a list's revision"
client.deletecollection(ConfigMap)
eventually("an empty namespace", lambda: not [f for f in client.list(ConfigMap) if f.metadata.name.startswith("page-")])

step("server-side apply")
client.apply(from_dict(config_map("s", x="1")))
other = from_dict(config_map("s", x="2"))
assert refused(409, lambda: client.apply(other, field_manager="other")).reason == "Conflict"
assert client.apply(other, field_manager="other", dry_run=True, force=True).data == {"x": "2"}
assert client.get(ConfigMap, "s").data == {"x": "1"}
assert client.apply(other, field_manager="other", force=True).data == {"x": "2"}

step("watch")
revision = client.get(ConfigMap, "s").metadata.resourceVersion
client.patch(ConfigMap, "s", {"data": {"x": "3"}}, patch_type=PatchType.MERGE)
client.delete(ConfigMap, "s")
seen = client.watch(ConfigMap, fields={"metadata.name": "s"}, resource_version=revision)
kinds = [event for event, _ in itertools.islice(seen, 2)]
assert kinds == ["MODIFIED", "DELETED"], kinds

step("Deployment, wait, scale")
labels = {"app": "site"}
template = {"metadata": {"labels": labels}, "spec": {"containers": [{"name": "web", "image": WEB_IMAGE}]}}
spec = {"replicas": 1, "selector": {"matchLabels": labels}, "template": template}
site = {"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "site"}, "spec": spec}
client.create(from_dict(site))
client.wait(Deployment, "site", for_conditions=["Available"])
scale = client.get(DeploymentScale, "site")
scale.spec.replicas = 2
assert client.replace(scale, "site").spec.replicas == 2
eventually("two replicas", lambda: client.get(Deployment, "site").status.readyReplicas == 2)
client.delete(Deployment, "site", cascade=CascadeType.FOREGROUND)
eventually("the end of its pods", lambda: not list(client.list(Pod, labels=labels)))

step("pod, exec, logs")
client.create(from_dict(pod("box", command=["sh", "-c", "echo begun; sleep 1000"])))
client.wait(Pod, "box", for_conditions=["Ready"])
assert upgraded.exec("box", command=["echo", "hello"], stdout=True).stdout == "hello\n"
answer = upgraded.exec("box", command=["sh", "-c", "cat; echo oh >&2; exit 3"], stdin="in", stdout=True, stderr=True)
assert answer == ("in", "oh\n", 3), answer
assert list(client.log("box", newlines=False)) == ["begun"]
assert next(client.log("box", follow=True)) == "begun\n"

step("asynchronous client")


async def together():
    """Runs ten concurrent watches, each of which sees its object created and deleted."""
    other = AsyncClient(namespace=NAMESPACE)

    async def seen(name):
        async for event, _ in other.watch(ConfigMap, fields={"metadata.name": name}):
            if event == "ADDED":
                await other.delete(ConfigMap, name)
            elif event == "DELETED":
                return name

    names = [f"async-{number}" for number in range(10)]
    watches = [asyncio.create_task(seen(name)) for name in names]
    await asyncio.gather(*(other.create(from_dict(config_map(name))) for name in names))
    assert await asyncio.wait_for(asyncio.gather(*watches), 60) == names
    left = [found.metadata.name async for found in other.list(ConfigMap, fields={"metadata.name": names[0]})]
    assert left == [], left
    await other.close()


asyncio.run(together())

step("events, nodes")
reasons = {event.reason for event in client.list(Event, fields={"involvedObject.name": "box"})}
assert {"Scheduled", "Started"} <= reasons, reasons
nodes = [node.metadata.name for node in client.list(Node)]
assert nodes and client.get(Node, nodes[0]).status.nodeInfo.kubeletVersion, nodes

step("resource of its own")
crd = client.create(from_dict(definition("lightkube.example.com", "Mast")))
client.wait(CustomResourceDefinition, crd.metadata.name, for_conditions=["Established"])
create_resources_from_crd(crd)
Mast = get_generic_resource("lightkube.example.com/v1", "Mast")


def raised():
    try:
        return client.create(Mast(metadata={"name": "one"}, spec={"height": 3}))
    except ApiError as error:
        # The definition is not served yet.
        assert error.status.code == 404, error.status


eventually("a served resource", raised)
client.patch(Mast.Status, "one", {"status": {"set": True}}, patch_type=PatchType.MERGE)
found = client.get(Mast, "one")
assert found["spec"] == {"height": 3} and found.status == {"set": True}, found
