//! The pages of a node: its flags, its status and its metrics.

use crate::cluster::shared;
use crate::objects::sleeper;

#[test]
fn a_node_shows_its_flags_its_state_and_what_it_counts() {
    let kubectl = shared().namespace("node-pages");
    kubectl.apply(&sleeper("client"));
    kubectl.ready("client");
    kubectl.eventually("exec client -- nslookup kubernetes.default.svc.cluster.local", |out| {
        out.contains("Address")
    });
    let page = |path: &str| kubectl.run(&format!("get --raw /api/v1/nodes/knarr-test/proxy/{path}"));
    let flags = page("flagz");
    assert!(flags.starts_with("\nkubelet flagz\n") && flags.contains("\nkubelet-port=10250\n"), "{flags}");
    assert!(page("statusz").ends_with("\nPaths: /configz /flagz /healthz /metrics\n"));
    let own = kubectl.run("get --raw /flagz");
    assert!(own.starts_with("\napiserver flagz\n") && own.contains("\nauthorization-mode=[Node,RBAC]\n"));
    assert!(own.contains("\ndata-dir=/") && !own.contains("\nkubelet-port="), "{own}");
    let figures = page("metrics");
    for series in [
        "kubelet_certificate_manager_client_ttl_seconds +Inf",
        "kubelet_certificate_manager_server_ttl_seconds ",
        "kubelet_runtime_operations_total{operation_type=\"run_podsandbox\"} ",
        "kubelet_runtime_operations_duration_seconds_count{operation_type=\"start_container\"} ",
        "storage_operation_duration_seconds_count{volume_plugin=\"kubernetes.io/projected\",\
         operation_name=\"volume_mount\",status=\"success\",migrated=\"false\"} ",
        "kubeproxy_sync_proxy_rules_duration_seconds_count{ip_family=\"IPv4\"} ",
        "kubeproxy_sync_proxy_rules_last_timestamp_seconds{ip_family=\"IPv4\"} ",
        "coredns_dns_requests_total{server=\"dns://10.43.0.10:53\",zone=\".\",view=\"\",proto=\"udp\",family=\"1\",\
         type=\"A\"} ",
        "coredns_dns_request_duration_seconds_count{server=\"dns://10.43.0.10:53\",zone=\".\",view=\"\"} ",
    ] {
        assert!(figures.lines().any(|line| line.starts_with(series)), "{series}\n{figures}");
    }
}
