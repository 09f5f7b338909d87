"""Argo Rollouts and its kubectl plugin: canaries with steps, promoted and aborted, blue and green, analysis by Jobs."""

from tries import (
    IMAGE,
    NAMESPACE,
    WEB_IMAGE,
    account,
    apply,
    define,
    deployment,
    eventually,
    get,
    kubectl,
    read,
    running,
    step,
)

WEB_IMAGE_2 = "knarr.local/web:v2"


def made(kind, name, **spec):
    return {"apiVersion": "argoproj.io/v1alpha1", "kind": kind, "metadata": {"name": name}, "spec": spec}


def rollout(name, replicas, **strategy):
    return made("Rollout", name, strategy=strategy, **deployment(name, replicas)["spec"])


def service(name, app):
    spec = {"selector": {"app": app}, "ports": [{"port": 80}]}
    return {"apiVersion": "v1", "kind": "Service", "metadata": {"name": name}, "spec": spec}


def analysis(name, *command):
    """An AnalysisTemplate: a Job that has to succeed."""
    container = {"name": "main", "image": IMAGE, "imagePullPolicy": "IfNotPresent", "command": list(command)}
    template = {"spec": {"containers": [container], "restartPolicy": "Never"}}
    job = {"job": {"spec": {"backoffLimit": 0, "template": template}}}
    return made("AnalysisTemplate", name, metrics=[{"name": "job", "provider": job}])


def argo(*words):
    return kubectl("argo", "rollouts", *words)


def status(name):
    return (get("rollout", name) or {}).get("status", {})


def reaches(name, phase, **counts):
    """Waits for a phase of a Rollout whose last change has been seen."""

    def asked():
        found = get("rollout", name)
        seen = found.get("status", {})
        current = seen.get("observedGeneration") == str(found["metadata"]["generation"])
        return current and seen.get("phase") == phase and all(seen.get(key) == count for key, count in counts.items())

    eventually(f"{name}: {phase} {counts}", asked)


def image(name, wanted):
    argo("set", "image", name, f"web={wanted}")


def selected(name):
    return get("service", name)["spec"]["selector"].get("rollouts-pod-template-hash")


def pods(app, path=".metadata.name"):
    return sorted(kubectl("get", "pods", "-l", f"app={app}", "-o", f"jsonpath={{.items[*]{path}}}").split())


def images(app):
    return pods(app, ".spec.containers[0].image")


step("definitions, account with the role that it ships")
define(*read("manifests/crds"))

apply(*read("manifests/role"))
# The namespace of its leader's lease.
environment = {**account("argo-rollouts"), "POD_NAMESPACE": NAMESPACE}

with running("rollouts-controller", "--metricsPort=18090", "--healthzPort=18091", env=environment):
    step("Rollout")
    pauses = [{"setWeight": 25}, {"pause": {}}, {"setWeight": 50}, {"pause": {"duration": "1s"}}]
    apply(service("ship-canary", "ship"), service("ship-stable", "ship"))
    apply(rollout("ship", 4, canary={"canaryService": "ship-canary", "stableService": "ship-stable", "steps": pauses}))
    reaches("ship", "Healthy", availableReplicas=4)
    first = status("ship")["stableRS"]
    assert images("ship") == [WEB_IMAGE] * 4, images("ship")

    step("canary with steps")
    image("ship", WEB_IMAGE_2)
    reaches("ship", "Paused", currentStepIndex=1, updatedReplicas=1, availableReplicas=4)
    second = status("ship")["currentPodHash"]
    eventually("a canary behind its Service", lambda: selected("ship-canary") == second)
    assert selected("ship-stable") == first
    eventually("one pod of four", lambda: images("ship") == [WEB_IMAGE] * 3 + [WEB_IMAGE_2])
    assert "Paused" in argo("get", "rollout", "ship", "--no-color")

    step("promote")
    argo("promote", "ship")
    reaches("ship", "Healthy", stableRS=second, updatedReplicas=4, availableReplicas=4)
    eventually("the new pods alone", lambda: images("ship") == [WEB_IMAGE_2] * 4)
    assert selected("ship-stable") == second

    step("abort, retry, undo")
    image("ship", WEB_IMAGE)
    reaches("ship", "Paused", currentStepIndex=1, updatedReplicas=1)
    argo("abort", "ship")
    reaches("ship", "Degraded", abort=True, stableRS=second)
    eventually("no canary", lambda: images("ship") == [WEB_IMAGE_2] * 4)
    argo("retry", "rollout", "ship")
    reaches("ship", "Paused", currentStepIndex=1, updatedReplicas=1)
    argo("undo", "ship")
    reaches("ship", "Healthy", stableRS=second, availableReplicas=4)

    step("scale, by an autoscaler too; disruption budget")
    kubectl("scale", "rollout", "ship", "--replicas", "2")
    reaches("ship", "Healthy", availableReplicas=2)
    assert get("rollout", "ship")["spec"]["replicas"] == 2
    kubectl("autoscale", "rollout", "ship", "--min", "3", "--max", "5", "--cpu-percent", "80")
    reaches("ship", "Healthy", availableReplicas=3)
    kubectl("delete", "hpa", "ship")
    kubectl("create", "poddisruptionbudget", "ship", "--selector", "app=ship", "--max-unavailable", "1")

    def budget():
        status = get("poddisruptionbudget", "ship").get("status", {})
        return status.get("expectedPods"), status.get("disruptionsAllowed")

    eventually("what the budget knows of the Rollout's scale", lambda: budget() == (3, 1))

    step("restart")
    before = set(pods("ship"))
    argo("restart", "ship")
    eventually("other pods", lambda: not before & set(pods("ship")))
    reaches("ship", "Healthy", availableReplicas=3)

    step("analysis by Jobs")
    apply(analysis("good", "true"), analysis("bad", "false"))
    tested = {"analysis": {"templates": [{"templateName": "good"}]}}
    apply(rollout("boat", 2, canary={"steps": [{"setWeight": 50}, tested]}))
    reaches("boat", "Healthy", availableReplicas=2)
    image("boat", WEB_IMAGE_2)
    reaches("boat", "Healthy", updatedReplicas=2, availableReplicas=2)
    (run,) = kubectl("get", "analysisruns", "-o", "jsonpath={.items[*].status.phase}").split()
    assert run == "Successful", run
    tested["analysis"]["templates"][0]["templateName"] = "bad"
    apply(rollout("boat", 2, canary={"steps": [{"setWeight": 50}, tested]}))
    reaches("boat", "Degraded", abort=True)
    eventually("the old pods alone", lambda: images("boat") == [WEB_IMAGE_2] * 2)

    step("blue and green")
    apply(service("new", "barge"), service("old", "barge"))
    services = {"activeService": "old", "previewService": "new"}
    apply(rollout("barge", 1, blueGreen={**services, "autoPromotionEnabled": False, "scaleDownDelaySeconds": 1}))
    reaches("barge", "Healthy", availableReplicas=1)
    active = selected("old")
    image("barge", WEB_IMAGE_2)
    reaches("barge", "Paused")
    eventually("a preview", lambda: selected("new") == status("barge")["currentPodHash"] != active)
    assert selected("old") == active
    argo("promote", "barge")
    eventually("the switch", lambda: selected("old") == selected("new") != active)
    reaches("barge", "Healthy", availableReplicas=1)
    eventually("the new pod alone", lambda: images("barge") == [WEB_IMAGE_2])

    step("Rollout deleted")
    kubectl("delete", "rollout", "--all")
    eventually("the end of its pods", lambda: not kubectl("get", "pods,replicasets", "-o", "name"))

    step("controller stopped")
