//! Services and the cluster's DNS.

use std::collections::BTreeSet;

use serde_json::json;

use crate::cluster::shared;
use crate::kubectl::Kubectl;
use crate::objects::{service, sleeper, web};
use crate::sandbox::NODE_IP;

fn web_pods(kubectl: &Kubectl, replicas: u32) -> BTreeSet<String> {
    kubectl.apply(&web("web", replicas));
    kubectl.run("rollout status deployment/web --timeout=90s");
    let names = kubectl.path("pods -l app=web", "{.items[*].metadata.name}");
    names.split(' ').map(|n| format!("{n} v1\n")).collect()
}

#[test]
fn f7_cluster_ip_node_port_and_headless() {
    let cluster = shared();
    let kubectl = cluster.namespace("f7");
    let names = web_pods(&kubectl, 2);
    let mut object = service("web");
    object["spec"]["type"] = json!("NodePort");
    kubectl.apply(&object);
    let (ip, port) = (
        kubectl.path("service web", "{.spec.clusterIP}"),
        kubectl.path("service web", "{.spec.ports[0].nodePort}"),
    );
    assert!((30000..32768).contains(&port.parse::<u32>().expect("a port")), "{port}");
    for address in [ip.clone(), format!("{NODE_IP}:{port}")] {
        let answers: BTreeSet<String> = (0..30).map(|_| cluster.http(&address)).collect();
        assert_eq!(answers, names, "{address}");
    }
    kubectl.apply(&sleeper("client"));
    kubectl.ready("client");
    let from_pod = [
        "exec",
        "client",
        "--",
        "timeout",
        "5",
        "wget",
        "-q",
        "-O",
        "-",
        &format!("http://{NODE_IP}:{port}"),
    ];
    assert!(names.contains(&kubectl.run(from_pod)));

    kubectl.run("scale deployment web --replicas=0");
    kubectl.until(
        "endpointslices -l kubernetes.io/service-name=web",
        "{.items[*].endpoints[*].addresses}",
        "",
    );
    assert_eq!(cluster.try_http(&ip), None, "a Service without endpoints refuses");
    kubectl.run("scale deployment web --replicas=2");
    kubectl.run("rollout status deployment/web --timeout=90s");
    cluster.http(&ip);

    let mut object = service("headless");
    object["spec"]["clusterIP"] = json!("None");
    object["spec"]["selector"] = json!({"app": "web"});
    kubectl.apply(&object);
    let ips: BTreeSet<String> =
        kubectl.path("pods -l app=web", "{.items[*].status.podIP}").split(' ').map(str::to_owned).collect();
    kubectl.eventually("exec client -- nslookup headless.f7.svc.cluster.local", |out| {
        ips.iter().all(|ip| out.contains(ip.as_str()))
    });

    kubectl.apply(&json!({
        "apiVersion": "v1", "kind": "Service", "metadata": {"name": "outside"},
        "spec": {"type": "ExternalName", "externalName": "web.f7.svc.cluster.local"},
    }));
    kubectl.eventually("exec client -- nslookup outside.f7.svc.cluster.local", |out| out.contains(&ip));
    kubectl.run("delete service web");
    kubectl.eventually("get endpointslices -l kubernetes.io/service-name=web -o name", str::is_empty);
    assert_eq!(cluster.try_http(&ip), None);
}

#[test]
fn f7_session_affinity() {
    let cluster = shared();
    let kubectl = cluster.namespace("f7-affinity");
    web_pods(&kubectl, 3);
    let mut object = service("web");
    object["spec"]["sessionAffinity"] = json!("ClientIP");
    kubectl.apply(&object);
    assert_eq!(kubectl.path("service web", "{.spec.sessionAffinityConfig.clientIP.timeoutSeconds}"), "10800");
    let ip = kubectl.path("service web", "{.spec.clusterIP}");
    let first = cluster.http(&ip);
    for _ in 0..20 {
        assert_eq!(cluster.http(&ip), first);
    }
}

#[test]
fn f7_ports_by_name_and_several() {
    let cluster = shared();
    let kubectl = cluster.namespace("f7-ports");
    let names = web_pods(&kubectl, 1);
    let mut object = service("web");
    object["spec"]["ports"] = json!([
        {"name": "by-name", "port": 8080, "targetPort": "http"},
        {"name": "by-number", "port": 8081, "targetPort": 80},
    ]);
    kubectl.apply(&object);
    let ip = kubectl.path("service web", "{.spec.clusterIP}");
    for port in [8080, 8081] {
        assert!(names.contains(&cluster.http(&format!("{ip}:{port}"))));
    }
    let error = kubectl.with_fails("create -f -", &{
        let mut taken = service("taken");
        taken["spec"]["clusterIP"] = json!(ip);
        taken.to_string()
    });
    assert!(error.contains("provided IP is already allocated"), "{error}");
}

#[test]
fn f9_names_of_services_and_pods() {
    let kubectl = shared().namespace("f9");
    kubectl.apply(&sleeper("client"));
    kubectl.ready("client");
    let mut object = sleeper("named");
    object["spec"]["hostname"] = json!("one");
    object["spec"]["subdomain"] = json!("group");
    kubectl.apply(&object);
    kubectl.ready("named");
    kubectl.apply(&json!({
        "apiVersion": "v1", "kind": "Service", "metadata": {"name": "group"},
        "spec": {"clusterIP": "None", "selector": {"app": "named"}, "ports": [{"name": "x", "port": 80}]},
    }));
    let ip = kubectl.path("pod named", "{.status.podIP}");
    let look_up = |name: &str| format!("exec client -- nslookup {name}");
    kubectl.eventually(&look_up("one.group.f9.svc.cluster.local"), |out| out.contains(&ip));
    let dashed = ip.replace('.', "-");
    kubectl.eventually(&look_up(&format!("{dashed}.f9.pod.cluster.local")), |out| out.contains(&ip));
    let api = kubectl.path("service kubernetes -n default", "{.spec.clusterIP}");
    assert!(kubectl.run(&look_up("kubernetes.default.svc.cluster.local")).contains(&api));
    kubectl.eventually(&look_up(&api), |out| out.contains("kubernetes.default.svc.cluster.local"));
    assert!(kubectl.fails(&look_up("nothing.f9.svc.cluster.local")).contains("terminated with exit code 1"));
}

/// Pods of one node reach each other over the bridge, and the node.
#[test]
fn f1_pods_reach_pods_and_the_node() {
    let kubectl = shared().namespace("f1");
    web_pods(&kubectl, 1);
    kubectl.apply(&sleeper("client"));
    kubectl.ready("client");
    let ip = kubectl.path("pods -l app=web", "{.items[0].status.podIP}");
    assert!(kubectl.run(&format!("exec client -- timeout 5 wget -q -O - http://{ip}/")).ends_with(" v1\n"));
    kubectl.run(&format!("exec client -- ping -c 1 -W 3 {NODE_IP}"));
    kubectl.run("exec client -- ping -c 1 -W 3 127.0.0.1");
}

/// To send from another address of its device, a pod needs `NET_ADMIN`; with `NET_RAW` alone, a program would
/// build the frames itself.
#[test]
fn f1_a_pod_sends_with_its_own_address_only() {
    let cluster = shared();
    let kubectl = cluster.namespace("f1-addresses");
    let names = web_pods(&kubectl, 1);
    let server = kubectl.path("pods -l app=web", "{.items[0].status.podIP}");
    let mut client = sleeper("client");
    client["spec"]["containers"][0]["securityContext"] = json!({"capabilities": {"add": ["NET_ADMIN"]}});
    kubectl.apply(&client);
    kubectl.ready("client");
    let own = kubectl.path("pod client", "{.status.podIP}");
    let (network, _) = own.rsplit_once('.').expect("an IPv4 address");
    // No other machine has the address, so answers would return to the pod.
    let foreign = format!("{network}.254");
    let ask = |source: &str| {
        let script = format!(
            "ip route replace default via {network}.1 dev eth0 src {source} && timeout 3 wget -q -O - http://{server}"
        );
        kubectl.attempt(["exec", "client", "--", "sh", "-c", &script])
    };
    let answer = |source: &str| String::from_utf8_lossy(&ask(source).stdout).into_owned();
    kubectl.run(["exec", "client", "--", "ip", "address", "add", &format!("{foreign}/32"), "dev", "eth0"]);
    assert!(names.contains(&answer(&own)));
    assert_eq!(answer(&foreign), "");
    assert!(names.contains(&answer(&own)));
}

#[test]
fn f7_every_cluster_address_is_an_object_and_more_ranges_can_be_had() {
    let kubectl = shared().namespace("f7-addresses");
    assert_eq!(kubectl.path("servicecidr kubernetes", "{.status.conditions[0].status}"), "True");
    kubectl.apply(&service("web"));
    let ip = kubectl.path("service web", "{.spec.clusterIP}");
    let parent = "{.spec.parentRef.resource}/{.spec.parentRef.namespace}/{.spec.parentRef.name}";
    assert_eq!(kubectl.path(&format!("ipaddress {ip}"), parent), "services/f7-addresses/web");
    let mut taken = service("taken");
    taken["spec"]["clusterIP"] = json!(ip);
    let why = kubectl.with_fails("apply -f -", &taken.to_string());
    assert!(why.contains("provided IP is already allocated"), "{why}");
    let mut outside = service("outside");
    outside["spec"]["clusterIP"] = json!("10.211.0.7");
    let why = kubectl.with_fails("apply -f -", &outside.to_string());
    assert!(why.contains("the provided network does not match the current range"), "{why}");

    kubectl.apply(&json!({"apiVersion": "networking.k8s.io/v1", "kind": "ServiceCIDR",
        "metadata": {"name": "more"}, "spec": {"cidrs": ["10.211.0.0/24"]}}));
    kubectl.until("servicecidr more", "{.status.conditions[?(@.type=='Ready')].status}", "True");
    kubectl.apply(&outside);
    kubectl.run("delete servicecidr more --wait=false");
    kubectl.until("servicecidr more", "{.status.conditions[?(@.type=='Ready')].reason}", "Terminating");
    kubectl.run("delete service outside web");
    kubectl.run("wait --for=delete servicecidr/more --timeout=60s");
    assert!(kubectl.fails(&format!("get ipaddress {ip}")).contains("not found"));
}
