"""The PyPI package `kubernetes_asyncio`: the same API from one thread, with many watches at once."""

import asyncio

from kubernetes_asyncio import client, config, watch
from kubernetes_asyncio.stream import WsApiClient

from tries import NAMESPACE, config_map, pod, step

WATCHES = 20


async def added(core, start, name):
    """Waits until its own watch has seen that the object was added."""
    async with watch.Watch() as events:
        async for event in events.stream(
            core.list_namespaced_config_map, NAMESPACE, resource_version=start, timeout_seconds=60
        ):
            if (event["type"], event["object"].metadata.name) == ("ADDED", name):
                return True
    return False


async def running(core, name):
    for _ in range(1200):
        if (await core.read_namespaced_pod(name, NAMESPACE)).status.phase == "Running":
            return
        await asyncio.sleep(0.1)
    raise SystemExit("the pod does not run")


async def main():
    await config.load_kube_config()
    async with client.ApiClient() as api:
        core = client.CoreV1Api(api)

        step("CRUD")
        await core.create_namespaced_config_map(NAMESPACE, config_map("a", x="1"))
        patched = await core.patch_namespaced_config_map("a", NAMESPACE, {"data": {"x": "2"}})
        assert patched.data == {"x": "2"}, patched.data
        await core.delete_namespaced_config_map("a", NAMESPACE)
        listed = await core.list_namespaced_config_map(NAMESPACE)
        assert "a" not in [item.metadata.name for item in listed.items]

        step(f"{WATCHES} watches at once")
        start = listed.metadata.resource_version
        watches = [asyncio.create_task(added(core, start, "w")) for _ in range(WATCHES)]
        await core.create_namespaced_config_map(NAMESPACE, config_map("w"))
        assert all(await asyncio.gather(*watches)), "a watch ended without its event"

        step("pod, logs")
        await core.create_namespaced_pod(NAMESPACE, pod("box", command=["sh", "-c", "echo begun; sleep 1000"]))
        await running(core, "box")
        said = await core.read_namespaced_pod_log("box", NAMESPACE)
        assert said == "begun\n", said

    async with WsApiClient() as api:
        step("exec")
        said = await client.CoreV1Api(api).connect_get_namespaced_pod_exec(
            "box", NAMESPACE, command=["echo", "hello"], stdout=True, stderr=True
        )
        assert said == "hello\n", said


asyncio.run(main())
