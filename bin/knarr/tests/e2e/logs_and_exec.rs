//! Logs, exec and cp.

use std::process::Stdio;

use serde_json::json;

use crate::cluster::shared;
use crate::objects::{once, pod, service, sleeper, web};

#[test]
fn b12_logs() {
    let kubectl = shared().namespace("b12-logs");
    kubectl.apply(&once("lines", "for i in 1 2 3 4 5; do echo line $i; done; printf 'no newline'"));
    kubectl.phase("lines", "Succeeded");
    let all = kubectl.run("logs lines");
    assert_eq!(all, "line 1\nline 2\nline 3\nline 4\nline 5\nno newline", "to the last byte");
    assert_eq!(kubectl.run("logs lines --tail=1"), "no newline");
    assert_eq!(kubectl.run("logs lines --tail=0"), "");
    assert_eq!(kubectl.run("logs lines --limit-bytes=10"), "line 1\nlin");
    assert_eq!(kubectl.run("logs lines --since=1h").lines().count(), 6);
    assert_eq!(kubectl.run("logs lines --since-time=2099-01-01T00:00:00Z"), "");
    let stamped = kubectl.run("logs lines --timestamps --tail=2");
    let first = stamped.lines().next().unwrap_or_default();
    let (stamp, text) = first.split_once(' ').unwrap_or_default();
    assert!(stamp.ends_with('Z') && stamp.contains('T') && text == "line 5", "{stamped}");
    let prefixed = kubectl.run("logs -l app=lines --prefix --tail=1");
    assert_eq!(prefixed.trim_end(), "[pod/lines/main] no newline");
    kubectl.apply(&once("errors", "echo to stderr >&2"));
    kubectl.phase("errors", "Succeeded");
    assert_eq!(kubectl.run("logs errors"), "to stderr\n");
    let error = kubectl.fails("logs lines -c other");
    assert!(error.contains("container other is not valid for pod lines"), "{error}");
    let error = kubectl.fails("logs nobody");
    assert!(error.contains("pods \"nobody\" not found"), "{error}");
    let error = kubectl.fails("logs lines --previous");
    assert!(error.contains("previous terminated container \"main\" in pod \"lines\" not found"), "{error}");
}

#[test]
fn b12_logs_follow() {
    let kubectl = shared().namespace("b12-follow");
    kubectl.apply(&once("talks", "echo begin; until [ -e /tmp/go ]; do sleep 0.1; done; echo middle; until [ -e /tmp/end ]; do sleep 0.1; done; echo end"));
    kubectl.ready("talks");
    let follow = kubectl.background("logs -f talks");
    follow.until(|out| out == "begin\n");
    kubectl.run("exec talks -- touch /tmp/go");
    follow.until(|out| out == "begin\nmiddle\n");
    kubectl.run("exec talks -- touch /tmp/end");
    assert_eq!(follow.end(), (true, "begin\nmiddle\nend\n".to_owned()), "ends with the container");
}

#[test]
fn b12_logs_of_the_previous_container() {
    let kubectl = shared().namespace("b12-previous");
    let script =
        "if [ -e /data/seen ]; then echo second; exec sleep 600; fi; touch /data/seen; echo first; exit 1";
    let mut object = pod("again", script);
    object["spec"]["containers"][0]["volumeMounts"] = json!([{"name": "data", "mountPath": "/data"}]);
    object["spec"]["volumes"] = json!([{"name": "data", "emptyDir": {}}]);
    kubectl.apply(&object);
    kubectl.until("pod again", "{.status.containerStatuses[0].restartCount}", "1");
    kubectl.eventually("logs again", |out| out == "second\n");
    assert_eq!(kubectl.run("logs again --previous"), "first\n");
}

#[test]
fn b12_exec() {
    let kubectl = shared().namespace("b12-exec");
    kubectl.apply(&sleeper("box"));
    kubectl.ready("box");
    assert_eq!(kubectl.run(["exec", "box", "--", "sh", "-c", "echo out; echo err >&2"]), "out\n");
    let output = kubectl.attempt(["exec", "box", "--", "sh", "-c", "echo err >&2; exit 7"]);
    assert_eq!(output.status.code(), Some(7), "{output:?}");
    assert!(String::from_utf8_lossy(&output.stderr).contains("err\n"), "{output:?}");
    assert!(
        String::from_utf8_lossy(&output.stderr).contains("command terminated with exit code 7"),
        "{output:?}"
    );
    let echoed = kubectl.attempt_with("exec -i box -- tr a-z A-Z", "hello\n");
    assert_eq!(String::from_utf8_lossy(&echoed.stdout), "HELLO\n", "{echoed:?}");
    let large = "x".repeat(79) + "\n";
    let large = large.repeat(20_000);
    let counted = kubectl.attempt_with("exec -i box -- wc -c", &large);
    assert_eq!(String::from_utf8_lossy(&counted.stdout).trim(), "1600000", "{counted:?}");
    let back = kubectl.run([
        "exec",
        "box",
        "--",
        "sh",
        "-c",
        "dd if=/dev/zero bs=1024 count=4096 2>/dev/null | tr '\\0' y",
    ]);
    assert_eq!(back.len(), 4 << 20);
    let error = kubectl.fails("exec box -- /no/such/program");
    assert!(error.contains("/no/such/program"), "{error}");
    assert!(kubectl.fails("exec nobody -- true").contains("pods \"nobody\" not found"));
    assert_eq!(kubectl.run("exec box -- hostname"), "box\n");
}

#[test]
fn b12_exec_on_a_terminal() {
    let cluster = shared();
    let kubectl = cluster.namespace("b12-terminal");
    kubectl.apply(&sleeper("box"));
    kubectl.ready("box");
    let exec = kubectl.command("exec -it box -- sh");
    // nsenter's own command line enters the sandbox already, so only the command that it would run is passed
    // on.
    let words: Vec<String> = exec
        .get_args()
        .skip_while(|w| *w != "--")
        .skip(1)
        .map(|w| w.to_string_lossy().into_owned())
        .collect();
    let mut command =
        cluster.python_command("terminal.py", &words.iter().map(String::as_str).collect::<Vec<_>>());
    let output = command.stdin(Stdio::null()).output().expect("nsenter(1) of util-linux");
    let text = String::from_utf8_lossy(&output.stdout);
    assert_eq!(output.status.code(), Some(7), "kubectl's exit code is the shell's: {output:?}");
    assert!(text.contains("terminal: /dev/pts/"), "{text}");
    assert!(text.contains("size: 41 103"), "the window's size is passed on: {text}");
    assert!(text.contains("interrupted: 130"), "Ctrl-C reaches the process inside: {text}");
}

#[test]
fn b12_cp() {
    let cluster = shared();
    let kubectl = cluster.namespace("b12-cp");
    kubectl.apply(&sleeper("box"));
    kubectl.ready("box");
    let (there, back) = (cluster.sandbox.path("copied"), cluster.sandbox.path("copied-back"));
    std::fs::write(&there, "content\n".repeat(10_000)).expect("file");
    kubectl.run(["cp", &there.to_string_lossy(), "box:/tmp/copied"]);
    kubectl.run(["cp", "box:/tmp/copied", &back.to_string_lossy()]);
    assert_eq!(std::fs::read(there).expect("file"), std::fs::read(back).expect("file"));
}

#[test]
fn b12_attach() {
    let kubectl = shared().namespace("b12-attach");
    let mut object = once("asks", "echo your name?; read name; echo hello $name");
    object["spec"]["containers"][0]["stdin"] = json!(true);
    object["spec"]["containers"][0]["stdinOnce"] = json!(true);
    kubectl.apply(&object);
    kubectl.ready("asks");
    let output = kubectl.attempt_with("attach -i asks", "Ada\n");
    assert!(output.status.success(), "{output:?}");
    kubectl.phase("asks", "Succeeded");
    assert_eq!(kubectl.run("logs asks"), "your name?\nhello Ada\n");

    let output = kubectl.attempt_with(
        [
            "run",
            "shouts",
            "--image=busybox",
            "--image-pull-policy=IfNotPresent",
            "--restart=Never",
            "-i",
            "--rm",
            "--",
            "tr",
            "a-z",
            "A-Z",
        ],
        "through and through\n",
    );
    assert!(String::from_utf8_lossy(&output.stdout).contains("THROUGH AND THROUGH"), "{output:?}");
    assert!(kubectl.fails("get pod shouts").contains("NotFound"));
}

#[test]
fn b12_port_forward() {
    let cluster = shared();
    let kubectl = cluster.namespace("b12-forward");
    kubectl.apply(&web("web", 1));
    kubectl.apply(&service("web"));
    kubectl.run("rollout status deployment/web --timeout=60s");
    for (target, port) in [("deployment/web", 18081), ("service/web", 18082)] {
        let forward = kubectl.background(&format!("port-forward {target} {port}:80"));
        forward.until(|out| out.contains(&format!("Forwarding from 127.0.0.1:{port} -> 80")));
        for _ in 0..3 {
            assert!(cluster.http(&format!("127.0.0.1:{port}")).ends_with(" v1\n"), "{target}");
        }
    }
}

/// An ephemeral container that is added to a running pod to inspect it.
#[test]
fn b12_debug_looks_into_its_target_alone() {
    let kubectl = shared().namespace("b12-target");
    let mut object = sleeper("two");
    let mut beside = object["spec"]["containers"][0].clone();
    beside["name"] = json!("beside");
    beside["command"] = json!(["sleep", "87654"]);
    object["spec"]["containers"][0]["command"] =
        json!(["sh", "-c", "trap 'exit 0' TERM; sleep 12345 & wait"]);
    object["spec"]["containers"].as_array_mut().unwrap().push(beside);
    let target = object["spec"]["containers"][0]["name"].as_str().unwrap().to_owned();
    kubectl.apply(&object);
    kubectl.ready("two");
    let target = format!("--target={target}");
    kubectl.run([
        "debug",
        "two",
        "--image=busybox",
        "--image-pull-policy=IfNotPresent",
        "--container=look",
        "--profile=general",
        &target,
        "--",
        "ps",
    ]);
    kubectl.until("pod two", "{.status.ephemeralContainerStatuses[0].state.terminated.reason}", "Completed");
    let log = kubectl.run("logs two -c look");
    assert!(log.contains("sleep 12345") && !log.contains("sleep 87654"), "{log}");
}

#[test]
fn b12_debug_with_an_ephemeral_container() {
    let kubectl = shared().namespace("b12-debug");
    let mut object = sleeper("target");
    object["spec"]["shareProcessNamespace"] = json!(true);
    kubectl.apply(&object);
    kubectl.ready("target");
    kubectl.run([
        "debug",
        "target",
        "--image=busybox",
        "--image-pull-policy=IfNotPresent",
        "--container=look",
        "--profile=general",
        "--",
        "sh",
        "-c",
        "hostname; ps | grep -c 'trap .exit 0'",
    ]);
    kubectl.until(
        "pod target",
        "{.status.ephemeralContainerStatuses[0].state.terminated.reason}",
        "Completed",
    );
    let log = kubectl.run("logs target -c look");
    let seen: Vec<&str> = log.lines().collect();
    assert_eq!(seen[0], "target", "{log}");
    assert_ne!(seen[1], "0", "the other container's processes are seen: {log}");
    assert_eq!(kubectl.path("pod target", "{.status.phase}"), "Running");
}
