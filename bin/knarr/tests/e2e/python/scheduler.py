"""A scheduler of a few lines: binds the pods of a namespace that name it, each to the Ready node with the fewest pods.

Arguments: the namespace, the scheduler's name, how many pods to bind before it ends.
"""

import collections
import sys

from kubernetes import client, config, watch

namespace, name, count = sys.argv[1], sys.argv[2], int(sys.argv[3])
config.load_kube_config()
api = client.CoreV1Api()


def ready(node):
    return any(c.type == "Ready" and c.status == "True" for c in node.status.conditions or [])


def emptiest():
    nodes = [node.metadata.name for node in api.list_node().items if ready(node) and not node.spec.unschedulable]
    pods = collections.Counter(pod.spec.node_name for pod in api.list_pod_for_all_namespaces().items)
    return min(nodes, key=lambda node: (pods[node], node))


bound = 0
selector = f"spec.schedulerName={name},spec.nodeName="
for event in watch.Watch().stream(api.list_namespaced_pod, namespace, field_selector=selector, timeout_seconds=60):
    if event["type"] != "ADDED":
        continue
    pod = event["object"].metadata.name
    target = client.V1ObjectReference(api_version="v1", kind="Node", name=emptiest())
    binding = client.V1Binding(metadata=client.V1ObjectMeta(name=pod), target=target)
    # The answer is a Status, which the generated code decodes as a Binding.
    api.create_namespaced_binding(namespace, binding, _preload_content=False)
    bound += 1
    if bound == count:
        print("ok")
        break
