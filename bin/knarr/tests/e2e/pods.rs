//! The life of a pod: phases, init containers, restarts, environment, hooks.

use serde_json::{Value, json};

use crate::cluster::shared;
use crate::objects::{SLEEP, config_map, container, once, pod, secret, sleeper};

/// Returns the status that `kubectl get pod` shows.
fn shown(line: &str) -> &str {
    line.split_whitespace().nth(2).unwrap_or_default()
}

#[test]
fn b1_phases_and_what_kubectl_shows() {
    let kubectl = shared().namespace("b1");
    kubectl.apply(&once("good", "true"));
    kubectl.apply(&once("bad", "echo it went wrong > /dev/termination-log; exit 3"));
    kubectl.apply(&sleeper("runs"));
    kubectl.phase("good", "Succeeded");
    kubectl.phase("bad", "Failed");
    kubectl.phase("runs", "Running");
    let line = |name: &str| kubectl.run(&format!("get pod {name} --no-headers"));
    assert_eq!(shown(&line("good")), "Completed");
    assert_eq!(shown(&line("bad")), "Error");
    assert_eq!(shown(&line("runs")), "Running");
    let ended = kubectl.json("pod bad");
    let state = &ended["status"]["containerStatuses"][0]["state"]["terminated"];
    assert_eq!(state["exitCode"], 3);
    assert_eq!(state["reason"], "Error");
    assert_eq!(state["message"], "it went wrong\n");
    assert!(state["startedAt"].is_string() && state["finishedAt"].is_string(), "{state}");
    let good = kubectl.json("pod good");
    let conditions = good["status"]["conditions"].as_array().expect("conditions");
    let of = |type_: &str| conditions.iter().find(|c| c["type"] == type_).cloned().unwrap_or_default();
    assert_eq!(of("Ready")["reason"], "PodCompleted");
    assert_eq!(of("Initialized")["status"], "True");
    assert_eq!(of("PodScheduled")["status"], "True");
}

#[test]
fn b2_containers_share_network_and_volumes() {
    let kubectl = shared().namespace("b2");
    let mut object = sleeper("two");
    let mut first =
        container("echo from-first > /shared/file; exec /bin/busybox httpd -f -p 8080 -h /shared");
    first["name"] = json!("first");
    first["volumeMounts"] = json!([{"name": "shared", "mountPath": "/shared"}]);
    let mut second = container(SLEEP);
    second["name"] = json!("second");
    second["volumeMounts"] = json!([{"name": "shared", "mountPath": "/elsewhere", "readOnly": true}]);
    object["spec"]["containers"] = json!([first, second]);
    object["spec"]["volumes"] = json!([{"name": "shared", "emptyDir": {}}]);
    kubectl.apply(&object);
    kubectl.ready("two");
    let run = |script: &str| kubectl.run(["exec", "two", "-c", "second", "--", "sh", "-c", script]);
    assert_eq!(run("timeout 20 sh -c 'until cat /elsewhere/file; do sleep 0.1; done'"), "from-first\n");
    let fetch = "timeout 20 sh -c 'until wget -q -O - http://127.0.0.1:8080/file; do sleep 0.1; done'";
    assert_eq!(run(fetch), "from-first\n");
    assert_eq!(run("touch /elsewhere/x 2>&1 || echo read-only").lines().last(), Some("read-only"));
    assert_eq!(run("hostname"), "two\n");
    let error = kubectl.fails("exec two -c third -- true");
    assert!(
        error.contains("container third is not valid for pod two") || error.contains("container not found"),
        "{error}"
    );
}

#[test]
fn b2_sidecar_runs_beside_and_ends_last() {
    let kubectl = shared().namespace("b2-sidecar");
    let mut object = once("main-and-sidecar", "cat /shared/ready");
    let mut sidecar = container(&format!("echo up > /shared/ready; {SLEEP}"));
    sidecar["name"] = json!("sidecar");
    sidecar["restartPolicy"] = json!("Always");
    sidecar["startupProbe"] = json!({"exec": {"command": ["cat", "/shared/ready"]}, "periodSeconds": 1});
    let mounts = json!([{"name": "shared", "mountPath": "/shared"}]);
    sidecar["volumeMounts"] = mounts.clone();
    object["spec"]["initContainers"] = json!([sidecar]);
    object["spec"]["containers"][0]["volumeMounts"] = mounts;
    object["spec"]["volumes"] = json!([{"name": "shared", "emptyDir": {}}]);
    kubectl.apply(&object);
    kubectl.phase("main-and-sidecar", "Succeeded");
    assert_eq!(kubectl.run("logs main-and-sidecar -c main"), "up\n");
}

#[test]
fn b3_init_containers_run_in_order() {
    let kubectl = shared().namespace("b3");
    let mounts = json!([{"name": "work", "mountPath": "/steps"}]);
    let init = |name: &str, script: &str| {
        let mut init = container(script);
        init["name"] = json!(name);
        init["volumeMounts"] = mounts.clone();
        init
    };
    let mut object = pod("ordered", &format!("cat /steps/log; {SLEEP}"));
    object["spec"]["containers"][0]["volumeMounts"] = mounts.clone();
    object["spec"]["initContainers"] = json!([
        init("one", "until [ -e /steps/go ]; do sleep 0.1; done; echo one >> /steps/log"),
        init("two", "echo two >> /steps/log"),
    ]);
    object["spec"]["volumes"] = json!([{"name": "work", "emptyDir": {}}]);
    kubectl.apply(&object);
    kubectl.eventually("get pod ordered --no-headers", |line| shown(line) == "Init:0/2");
    let started = "-o=jsonpath={.status.initContainerStatuses[0].state.running.startedAt}";
    kubectl.eventually(["get", "pod", "ordered", started], |out| !out.is_empty());
    kubectl.run(["exec", "ordered", "-c", "one", "--", "touch", "/steps/go"]);
    kubectl.ready("ordered");
    // A container is ready before it has written anything.
    kubectl.eventually("logs ordered", |log| log == "one\ntwo\n");
    assert_eq!(
        kubectl.path("pod ordered", "{.status.initContainerStatuses[*].state.terminated.reason}"),
        "Completed Completed"
    );
}

#[test]
fn b3_failing_init_container() {
    let kubectl = shared().namespace("b3-failing");
    let failing = |name: &str, policy: &str| {
        let mut object = once(name, "true");
        let mut init = container("exit 1");
        init["name"] = json!("init");
        object["spec"]["initContainers"] = json!([init]);
        object["spec"]["restartPolicy"] = json!(policy);
        object
    };
    kubectl.apply(&failing("gives-up", "Never"));
    kubectl.apply(&failing("tries-again", "Always"));
    kubectl.phase("gives-up", "Failed");
    assert_eq!(shown(&kubectl.run("get pod gives-up --no-headers")), "Init:Error");
    kubectl.eventually("get pod tries-again --no-headers", |line| shown(line) == "Init:CrashLoopBackOff");
    assert!(
        kubectl
            .path("pod tries-again", "{.status.conditions[?(@.type=='Initialized')].message}")
            .contains("containers with incomplete status: [init]")
    );
}

#[test]
fn b4_hooks() {
    let kubectl = shared().namespace("b4");
    let mounts = json!([{"name": "host", "mountPath": "/host"}]);
    let folder = shared().sandbox.path("b4");
    let mut object = sleeper("hooked");
    object["spec"]["terminationGracePeriodSeconds"] = json!(20);
    let main = &mut object["spec"]["containers"][0];
    main["volumeMounts"] = mounts;
    main["lifecycle"] = json!({
        "postStart": {"exec": {"command": ["sh", "-c", "echo started > /host/post-start"]}},
        "preStop": {"exec": {"command": ["sh", "-c", "echo stopping > /host/pre-stop"]}},
    });
    object["spec"]["volumes"] =
        json!([{"name": "host", "hostPath": {"path": folder, "type": "DirectoryOrCreate"}}]);
    kubectl.apply(&object);
    kubectl.ready("hooked");
    assert_eq!(std::fs::read_to_string(folder.join("post-start")).expect("file"), "started\n");
    kubectl.run("delete pod hooked");
    assert_eq!(std::fs::read_to_string(folder.join("pre-stop")).expect("file"), "stopping\n");

    let mut object = sleeper("failing-hook");
    object["spec"]["containers"][0]["lifecycle"] = json!({"postStart": {"exec": {"command": ["false"]}}});
    kubectl.apply(&object);
    kubectl.event("failing-hook", "FailedPostStartHook");
    kubectl.eventually("get pod failing-hook -o jsonpath={.status.containerStatuses[0].restartCount}", |n| {
        n != "0" && !n.is_empty()
    });
}

#[test]
fn b6_restart_policies_and_back_off() {
    let kubectl = shared().namespace("b6");
    let with_policy = |name: &str, script: &str, policy: &str| {
        let mut object = pod(name, script);
        object["spec"]["restartPolicy"] = json!(policy);
        object
    };
    kubectl.apply(&with_policy("always", "echo run; exit 0", "Always"));
    kubectl.apply(&with_policy("on-failure-bad", "exit 1", "OnFailure"));
    kubectl.apply(&with_policy("on-failure-good", "exit 0", "OnFailure"));
    kubectl.apply(&with_policy("never", "exit 1", "Never"));
    kubectl.phase("on-failure-good", "Succeeded");
    kubectl.phase("never", "Failed");
    for name in ["always", "on-failure-bad"] {
        kubectl.eventually(&format!("get pod {name} --no-headers"), |line| shown(line) == "CrashLoopBackOff");
        let status = kubectl.json(&format!("pod {name}"));
        let status = &status["status"]["containerStatuses"][0];
        assert!(status["restartCount"].as_u64().is_some_and(|n| n >= 1), "{status}");
        assert!(
            status["state"]["waiting"]["message"].as_str().is_some_and(
                |m| m.starts_with("back-off ") && m.contains("restarting failed container=main pod=")
            ),
            "{status}"
        );
        assert!(status["lastState"]["terminated"].is_object(), "{status}");
    }
    let message = kubectl.event("always", "BackOff");
    assert!(message.starts_with("Back-off restarting failed container main in pod always_b6("), "{message}");
    assert_eq!(kubectl.path("pod never", "{.status.containerStatuses[0].restartCount}"), "0");
    assert_eq!(kubectl.path("pod always", "{.status.phase}"), "Running");
}

#[test]
fn b7_environment() {
    let kubectl = shared().namespace("b7");
    kubectl.apply(&config_map("settings", json!({"colour": "blue", "extra_KEY": "1"})));
    kubectl.apply(&secret("hidden", json!({"password": "s3cr3t"})));
    let mut object = once("env", "env | sort; echo args: $0 $@; pwd");
    object["spec"]["containers"][0]["env"] = json!([
        {"name": "PLAIN", "value": "x"},
        {"name": "COMPOSED", "value": "$(PLAIN)-$(COLOUR)-$$(PLAIN)-$(MISSING)"},
        {"name": "COLOUR", "valueFrom": {"configMapKeyRef": {"name": "settings", "key": "colour"}}},
        {"name": "LATER", "value": "$(PLAIN)-$(COLOUR)-$$(PLAIN)-$(MISSING)"},
        {"name": "PASSWORD", "valueFrom": {"secretKeyRef": {"name": "hidden", "key": "password"}}},
        {"name": "OPTIONAL", "valueFrom": {"secretKeyRef": {"name": "none", "key": "x", "optional": true}}},
        {"name": "POD_NAME", "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}},
        {"name": "POD_IP", "valueFrom": {"fieldRef": {"fieldPath": "status.podIP"}}},
        {"name": "NODE", "valueFrom": {"fieldRef": {"fieldPath": "spec.nodeName"}}},
        {"name": "LABEL", "valueFrom": {"fieldRef": {"fieldPath": "metadata.labels['app']"}}},
        {"name": "CPU", "valueFrom": {"resourceFieldRef": {"resource": "requests.cpu", "divisor": "1m"}}},
        {"name": "MEMORY", "valueFrom": {"resourceFieldRef": {"resource": "limits.memory"}}},
    ]);
    let main = &mut object["spec"]["containers"][0];
    main["envFrom"] = json!([{"configMapRef": {"name": "settings"}, "prefix": "CM_"}]);
    main["args"] = json!(["zero", "$(COLOUR)", "$(MISSING)"]);
    main["workingDir"] = json!("/tmp/steps");
    main["resources"] = json!({"requests": {"cpu": "30m"}, "limits": {"memory": "32Mi"}});
    kubectl.apply(&object);
    kubectl.phase("env", "Succeeded");
    let log = kubectl.run("logs env");
    let ip = kubectl.path("pod env", "{.status.podIP}");
    for line in [
        "PLAIN=x",
        "COLOUR=blue",
        "COMPOSED=x-$(COLOUR)-$(PLAIN)-$(MISSING)",
        "LATER=x-blue-$(PLAIN)-$(MISSING)",
        "PASSWORD=s3cr3t",
        "POD_NAME=env",
        &format!("POD_IP={ip}"),
        "NODE=knarr-test",
        "LABEL=env",
        "CPU=30",
        "MEMORY=33554432",
        "CM_colour=blue",
        "CM_extra_KEY=1",
        "args: zero blue $(MISSING)",
        "/tmp/steps",
        "KUBERNETES_SERVICE_PORT=443",
        "HOSTNAME=env",
    ] {
        assert!(log.lines().any(|l| l == line), "no `{line}`:\n{log}");
    }
    assert!(!log.contains("OPTIONAL"), "{log}");

    let mut object = sleeper("missing-key");
    object["spec"]["containers"][0]["env"] =
        json!([{"name": "X", "valueFrom": {"configMapKeyRef": {"name": "absent", "key": "x"}}}]);
    kubectl.apply(&object);
    kubectl.until(
        "pod missing-key",
        "{.status.containerStatuses[0].state.waiting.reason}",
        "CreateContainerConfigError",
    );
    assert!(kubectl.event("missing-key", "Failed").contains("configmap \"absent\" not found"));
    kubectl.apply(&config_map("absent", json!({"x": "now"})));
    kubectl.ready("missing-key");
}

#[test]
fn b9_security_context() {
    let kubectl = shared().namespace("b9");
    let mut object = once(
        "user",
        "id -u; id -g; id -G; touch /x 2>/dev/null || echo read-only root; touch /data/y && stat -c %g /data/y; grep CapEff /proc/self/status",
    );
    object["spec"]["securityContext"] =
        json!({"runAsUser": 1000, "runAsGroup": 2000, "fsGroup": 3000, "supplementalGroups": [4000]});
    object["spec"]["containers"][0]["securityContext"] =
        json!({"readOnlyRootFilesystem": true, "allowPrivilegeEscalation": false});
    object["spec"]["containers"][0]["volumeMounts"] = json!([{"name": "data", "mountPath": "/data"}]);
    object["spec"]["volumes"] = json!([{"name": "data", "emptyDir": {}}]);
    kubectl.apply(&object);
    kubectl.phase("user", "Succeeded");
    let log = kubectl.run("logs user");
    let lines: Vec<&str> = log.lines().collect();
    assert_eq!(lines[..2], ["1000", "2000"], "{log}");
    let groups: Vec<&str> = lines[2].split(' ').collect();
    assert!(["2000", "3000", "4000"].iter().all(|g| groups.contains(g)), "{log}");
    assert_eq!(lines[3..5], ["read-only root", "3000"], "{log}");
    assert!(lines[5].ends_with("0000000000000000"), "{log}");

    let mut object = sleeper("root-refused");
    object["spec"]["securityContext"] = json!({"runAsNonRoot": true});
    kubectl.apply(&object);
    kubectl.until(
        "pod root-refused",
        "{.status.containerStatuses[0].state.waiting.reason}",
        "CreateContainerConfigError",
    );
    let message = kubectl.path("pod root-refused", "{.status.containerStatuses[0].state.waiting.message}");
    assert!(message.contains("container has runAsNonRoot and image will run as root"), "{message}");
}

#[test]
fn b10_host_network_aliases_and_dns() {
    let kubectl = shared().namespace("b10");
    let mut host = once("host", "hostname; ip address show uplink");
    host["spec"]["hostNetwork"] = json!(true);
    kubectl.apply(&host);
    kubectl.phase("host", "Succeeded");
    let log = kubectl.run("logs host");
    assert!(log.starts_with("knarr-test\n") && log.contains("10.99.0.2/24"), "{log}");
    assert_eq!(kubectl.path("pod host", "{.status.podIP}"), "10.99.0.2");

    let mut named = once("named", "hostname; cat /etc/hosts /etc/resolv.conf");
    named["spec"]["hostname"] = json!("other");
    named["spec"]["subdomain"] = json!("sub");
    named["spec"]["hostAliases"] = json!([{"ip": "192.0.2.1", "hostnames": ["a.example", "b.example"]}]);
    named["spec"]["dnsConfig"] =
        json!({"searches": ["more.example"], "options": [{"name": "timeout", "value": "1"}]});
    kubectl.apply(&named);
    kubectl.phase("named", "Succeeded");
    let log = kubectl.run("logs named");
    assert!(log.starts_with("other\n"), "{log}");
    assert!(log.contains("192.0.2.1\ta.example\tb.example"), "{log}");
    assert!(log.contains("\tother.sub.b10.svc.cluster.local\tother"), "{log}");
    assert!(log.contains("search b10.svc.cluster.local svc.cluster.local cluster.local"), "{log}");
    assert!(log.contains("more.example"), "{log}");
    assert!(log.contains("ndots:5") && log.contains("timeout:1"), "{log}");

    let mut port = sleeper("host-port");
    port["spec"]["containers"] = json!([{
        "name": "web", "image": "knarr.local/web:v1",
        "ports": [{"containerPort": 80, "hostPort": 18080}],
    }]);
    kubectl.apply(&port);
    kubectl.ready("host-port");
    assert_eq!(shared().http("10.99.0.2:18080/"), "host-port v1\n");
}

#[test]
fn b13_delete_with_and_without_grace() {
    let kubectl = shared().namespace("b13");
    let stubborn = |name: &str, grace: u64| {
        let mut object = pod(name, "trap '' TERM; while true; do sleep 1; done");
        object["spec"]["terminationGracePeriodSeconds"] = json!(grace);
        object
    };
    kubectl.apply(&stubborn("two-seconds", 2));
    kubectl.apply(&stubborn("for-ever", 3600));
    kubectl.ready("two-seconds");
    kubectl.ready("for-ever");
    let begun = std::time::Instant::now();
    assert!(kubectl.run("delete pod two-seconds").starts_with("pod \"two-seconds\" deleted"));
    let took = begun.elapsed().as_secs_f64();
    assert!((1.9..10.0).contains(&took), "killed after its grace period of 2 s, not after {took} s");

    kubectl.run("delete pod for-ever --wait=false");
    kubectl.eventually("get pod for-ever --no-headers", |line| shown(line) == "Terminating");
    let object: Value = kubectl.json("pod for-ever");
    assert_eq!(object["metadata"]["deletionGracePeriodSeconds"], 3600);
    let output = kubectl.attempt("delete pod for-ever --force --grace-period=0");
    assert!(output.status.success(), "{output:?}");
    assert!(String::from_utf8_lossy(&output.stdout).starts_with("pod \"for-ever\" force deleted"));
    assert!(
        String::from_utf8_lossy(&output.stderr).contains("Immediate deletion does not wait for confirmation")
    );
    assert!(kubectl.fails("get pod for-ever").contains("pods \"for-ever\" not found"));
}

#[test]
fn b6_exit_codes() {
    let kubectl = shared().namespace("b6-signal");
    kubectl.apply(&once("killed", "kill -KILL $$"));
    kubectl.apply(&once("no-such-program", "exec /no/such/program"));
    let mut missing = once("not-startable", "");
    missing["spec"]["containers"][0]["command"] = json!(["/no/such/program"]);
    kubectl.apply(&missing);
    kubectl.phase("killed", "Failed");
    kubectl.phase("no-such-program", "Failed");
    kubectl.phase("not-startable", "Failed");
    let code = |name: &str| {
        kubectl.path(&format!("pod {name}"), "{.status.containerStatuses[0].state.terminated.exitCode}")
    };
    assert_eq!(code("no-such-program"), "127");
    assert_eq!(code("not-startable"), "128");
    let reason = kubectl.path("pod not-startable", "{.status.containerStatuses[0].state.terminated.reason}");
    assert_eq!(reason, "StartError");
    assert!(kubectl.event("not-startable", "Failed").contains("/no/such/program"));
}
