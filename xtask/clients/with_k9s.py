"""k9s, at a terminal: what its screen shows of pods and Deployments, and what its keys do."""

import pathlib

from terminal import Terminal
from tries import NAMESPACE, apply, deployment, kubectl, pod, step

ENTER, ESCAPE, TAB, CONTROL_D = "\r", "\x1b", "\t", "\x04"

config = pathlib.Path("k9s")
config.mkdir()
# Disables the check for a newer k9s.
(config / "config.yaml").write_text("k9s:\n  skipLatestRevCheck: true\n  refreshRate: 1\n")
words = ["k9s", "--namespace", NAMESPACE, "--command", "pods", "--logFile", "k9s.log"]

apply(pod("box", command=["sh", "-c", "echo begun; sleep 1000"]))
kubectl("wait", "--for", "condition=Ready", "pod/box", "--timeout", "120s")

with Terminal(*words, env={"K9S_CONFIG_DIR": str(config.absolute())}) as screen:
    step("pods")
    screen.until("the list of pods", rf"Pods\({NAMESPACE}\)\[1\]")
    screen.until("the pod", r"\bbox\b.*\bRunning\b")

    step("later pod")
    apply(pod("crate", command=["sleep", "1000"]))
    screen.until("the new pod", r"\bcrate\b.*\bRunning\b")
    kubectl("delete", "pod", "crate", "--now")
    screen.until("a list without it", lambda text: "crate" not in text)

    step("describe, YAML")
    screen.keys("d")
    screen.until("the description", r"Describe\(.*box\)")
    screen.until("the pod's node", r"Node:\s+\S+/")
    screen.keys(ESCAPE)
    screen.until("the list again", rf"Pods\({NAMESPACE}\)\[1\]")
    screen.keys("y")
    screen.until("the YAML", r"YAML\(.*box\)")
    screen.until("the object's version", r"apiVersion: v1")
    screen.keys(ESCAPE)
    screen.until("the list again", rf"Pods\({NAMESPACE}\)\[1\]")

    step("logs")
    screen.keys("l")
    screen.until("the log", r"Logs\(.*box")
    screen.until("the log's line", r"\bbegun\b")
    screen.keys(ESCAPE)
    screen.until("the list again", rf"Pods\({NAMESPACE}\)\[1\]")

    step("shell")
    screen.keys("s")
    screen.until("a prompt", r"[#$] *$|[#$] *\n")
    screen.keys("echo $((6 * 7)) in $HOSTNAME" + ENTER)
    screen.until("the command's answer", r"\b42 in box\b")
    screen.keys("exit" + ENTER)
    screen.until("the list again", rf"Pods\({NAMESPACE}\)\[1\]")

    step(":deploy")
    apply(deployment("site", 2))
    screen.keys(":deploy" + ENTER)
    screen.until("the list of Deployments", rf"Deployments\({NAMESPACE}\)\[1\]")
    screen.until("the Deployment, ready", r"\bsite\b.*\b2/2\b")

    step(":nodes")
    screen.keys(":nodes" + ENTER)
    screen.until("the list of nodes", r"Nodes\(all\)\[1\]")
    screen.until("the node", rf"\b{kubectl('get', 'nodes', '-o', 'jsonpath={.items[0].metadata.name}')}\b.*\bReady\b")
    screen.keys(":pods" + ENTER)
    screen.until("the list of pods", rf"Pods\({NAMESPACE}\)\[3\]")

    step("delete")
    screen.keys("/box" + ENTER)
    screen.until("the filtered list", rf"Pods\({NAMESPACE}\)\[1\]")
    screen.keys(CONTROL_D)
    screen.until("the question", r"Propagation:")
    # Moves the focus from Cancel to OK.
    screen.keys(TAB + ENTER)
    kubectl("wait", "--for", "delete", "pod/box", "--timeout", "60s")
    screen.until("a list without it", rf"Pods\({NAMESPACE}\)\[0\]")

    step("quit")
    screen.keys(":q" + ENTER)
    assert screen.end() == 0, screen.program.returncode
    assert "level=ERROR" not in pathlib.Path("k9s.log").read_text(), pathlib.Path("k9s.log").read_text()
