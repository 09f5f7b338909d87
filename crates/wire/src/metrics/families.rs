//! The table of metric families, with upstream's names, labels and buckets.

use super::Kind::{Counter, Gauge, Histogram};

const REQUEST_SECONDS: &[f64] = &[
    0.005, 0.025, 0.05, 0.1, 0.2, 0.4, 0.6, 0.8, 1.0, 1.25, 1.5, 2.0, 3.0, 4.0, 5.0, 6.0, 8.0, 10.0, 15.0,
    20.0, 30.0, 45.0, 60.0,
];
const SLI_SECONDS: &[f64] = &[
    0.05, 0.1, 0.2, 0.4, 0.6, 0.8, 1.0, 1.25, 1.5, 2.0, 3.0, 4.0, 5.0, 6.0, 8.0, 10.0, 15.0, 20.0, 30.0,
    45.0, 60.0,
];
const AUTH_SECONDS: &[f64] = &[
    0.001, 0.002, 0.004, 0.008, 0.016, 0.032, 0.064, 0.128, 0.256, 0.512, 1.024, 2.048, 4.096, 8.192, 16.384,
];
const SIZES: &[f64] = &[1e3, 1e4, 1e5, 1e6, 1e7, 1e8, 1e9];
/// Linear buckets, up to the maximum size of a body.
const BODY_SIZES: &[f64] = &[
    50000.0, 150000.0, 250000.0, 350000.0, 450000.0, 550000.0, 650000.0, 750000.0, 850000.0, 950000.0,
    1050000.0, 1150000.0, 1250000.0, 1350000.0, 1450000.0, 1550000.0, 1650000.0, 1750000.0, 1850000.0,
    1950000.0, 2050000.0, 2150000.0, 2250000.0, 2350000.0, 2450000.0, 2550000.0, 2650000.0, 2750000.0,
    2850000.0, 2950000.0, 3050000.0,
];
const WATCH_SIZES: &[f64] = &[1024.0, 2048.0, 4096.0, 8192.0, 16384.0, 32768.0, 65536.0, 131072.0];
const FAIRNESS_SECONDS: &[f64] = &[0.0, 0.005, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 15.0, 30.0];
const QUEUE_LENGTHS: &[f64] = &[0.0, 10.0, 25.0, 50.0, 100.0, 250.0, 500.0, 1000.0];
const SEATS: &[f64] = &[1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0, 100.0];
const TRANSFORM_SECONDS: &[f64] =
    &[5e-6, 1e-5, 2e-5, 4e-5, 8e-5, 1.6e-4, 3.2e-4, 6.4e-4, 1.28e-3, 2.56e-3, 5.12e-3, 0.01024, 0.1, 1.0];
/// The remaining lifetimes of client certificates, in seconds: from zero to a year.
const CERTIFICATE_SECONDS: &[f64] = &[
    0.0, 1800.0, 3600.0, 7200.0, 21600.0, 43200.0, 86400.0, 172800.0, 345600.0, 604800.0, 2592000.0,
    7776000.0, 15552000.0, 31104000.0,
];

knarr_apimachinery::metric_families! {
    RequestTotal, Counter, "apiserver_request_total",
        ["code", "component", "dry_run", "group", "resource", "scope", "subresource", "verb", "version"],
        "Requests by verb, resource, scope and HTTP code.";
    RequestDuration, Histogram(REQUEST_SECONDS), "apiserver_request_duration_seconds",
        ["component", "dry_run", "group", "resource", "scope", "subresource", "verb", "version"],
        "Latency of requests, watches apart, in seconds.";
    RequestSliDuration, Histogram(SLI_SECONDS), "apiserver_request_sli_duration_seconds",
        ["component", "group", "resource", "scope", "subresource", "verb", "version"],
        "Latency of requests without the time in queues and webhooks, in seconds.";
    ResponseSizes, Histogram(SIZES), "apiserver_response_sizes",
        ["component", "group", "resource", "scope", "subresource", "verb", "version"],
        "Sizes of answers in bytes.";
    BodySizes, Histogram(BODY_SIZES), "apiserver_request_body_size_bytes", ["group", "resource", "verb"],
        "Sizes of the bodies of requests in bytes.";
    DeprecatedApis, Gauge, "apiserver_requested_deprecated_apis",
        ["group", "removed_release", "resource", "subresource", "version"],
        "Deprecated resources that somebody has asked for.";
    FieldValidation, Histogram(SLI_SECONDS), "field_validation_request_duration_seconds",
        ["field_validation"], "Latency of writes by what they ask of field validation, in seconds.";
    PodSecurityEvaluations, Counter, "pod_security_evaluations_total",
        ["decision", "mode", "policy_level", "policy_version", "request_operation", "resource", "subresource"],
        "Pods and pod templates held against a policy of pod security, without ignored and exempt ones.";
    PodSecurityExemptions, Counter, "pod_security_exemptions_total",
        ["request_operation", "resource", "subresource"], "Requests that no policy of pod security concerns.";
    Lists, Counter, "apiserver_storage_list_total", ["group", "index", "resource", "storage"],
        "Lists, by whether the watch cache or the store answered them.";
    FetchedObjects, Counter, "apiserver_storage_list_fetched_objects_total",
        ["group", "index", "resource", "storage"], "Objects that were read for lists.";
    EvaluatedObjects, Counter, "apiserver_storage_list_evaluated_objects_total",
        ["group", "resource", "storage"], "Objects that were held against the selectors of lists.";
    ListedObjects, Counter, "apiserver_storage_list_returned_objects_total", ["group", "resource", "storage"],
        "Objects that lists answered.";
    LongRunning, Gauge, "apiserver_longrunning_requests",
        ["component", "group", "resource", "scope", "subresource", "verb", "version"],
        "Watches, streams and proxied requests under way.";
    Inflight, Gauge, "apiserver_current_inflight_requests", ["request_kind"],
        "Requests under way, by whether they read or write.";
    Inqueue, Gauge, "apiserver_current_inqueue_requests", ["request_kind"],
        "Requests waiting for their turn, by whether they read or write.";
    Terminations, Counter, "apiserver_request_terminations_total",
        ["code", "component", "group", "resource", "scope", "subresource", "verb", "version"],
        "Requests that the server ended in self-defence.";
    Aborts, Counter, "apiserver_request_aborts_total",
        ["group", "resource", "scope", "subresource", "verb", "version"],
        "Requests that were given up, such as those that panicked.";
    WatchEvents, Counter, "apiserver_watch_events_total", ["group", "resource", "version"],
        "Events sent to watching clients.";
    WatchEventSizes, Histogram(WATCH_SIZES), "apiserver_watch_events_sizes", ["group", "resource", "version"],
        "Sizes of events sent to watching clients, in bytes.";
    TlsHandshakeErrors, Counter, "apiserver_tls_handshake_errors_total", [],
        "Connections that failed in the TLS handshake.";
    ClientCertificateExpiration, Histogram(CERTIFICATE_SECONDS), "apiserver_client_certificate_expiration_seconds", [],
        "How long the client certificates of requests remain valid, in seconds.";
    ResourceObjects, Gauge, "apiserver_resource_objects", ["group", "resource"],
        "Stored objects by resource.";
    StorageObjects, Gauge, "apiserver_storage_objects", ["resource"],
        "Stored objects by resource, under the older name.";
    ResourceSize, Gauge, "apiserver_resource_size_estimate_bytes", ["group", "resource"],
        "About how many bytes the stored objects of a resource have.";
    WatchCacheVersion, Gauge, "apiserver_watch_cache_resource_version", ["group", "resource"],
        "Up to which revision of the store the watch cache knows everything.";
    WatchCacheReceived, Counter, "apiserver_watch_cache_events_received_total", ["group", "resource"],
        "Events that the watch cache has taken from the store.";
    WatchCacheDispatched, Counter, "apiserver_watch_cache_events_dispatched_total", ["group", "resource"],
        "Events that the watch cache has handed on to whoever watches.";
    WatchCacheInitializations, Counter, "apiserver_watch_cache_initializations_total", ["group", "resource"],
        "How often the watch cache was filled from the store.";
    WatchCacheCapacity, Gauge, "watch_cache_capacity", ["group", "resource"],
        "Events that the watch cache keeps for watches that begin in the past.";
    AllocatedIps, Gauge, "kube_apiserver_clusterip_allocator_allocated_ips", ["cidr"],
        "Addresses of a range that Services have.";
    AvailableIps, Gauge, "kube_apiserver_clusterip_allocator_available_ips", ["cidr"],
        "Addresses of a range that no Service has.";
    IpAllocations, Counter, "kube_apiserver_clusterip_allocator_allocation_total", ["cidr", "scope"],
        "Addresses given to Services, by whether they were asked for or chosen.";
    AllocatedPorts, Gauge, "kube_apiserver_nodeport_allocator_allocated_ports", [],
        "Node ports that Services have.";
    AvailablePorts, Gauge, "kube_apiserver_nodeport_allocator_available_ports", [],
        "Node ports that no Service has.";
    PortAllocations, Counter, "kube_apiserver_nodeport_allocator_allocation_total", ["scope"],
        "Node ports given to Services, by whether they were asked for or chosen.";
    StorageSize, Gauge, "apiserver_storage_size_bytes", ["storage_cluster_id"],
        "Size of the store's file in bytes.";
    StorageInUse, Gauge, "etcd_mvcc_db_total_size_in_use_in_bytes", [],
        "What the embedded store's keys and values take of its quota, in bytes.";
    StorageQuota, Gauge, "etcd_server_quota_backend_bytes", [],
        "The embedded store's quota in bytes; 0 for none.";
    StorageDamaged, Gauge, "knarr_storage_damaged_objects", ["group", "resource"],
        "Stored objects that cannot be read and were set aside.";
    StorageNoSpace, Gauge, "knarr_storage_no_space", ["reason"],
        "Whether the store refuses writes that make it larger, by what there is no room in.";
    StorageDuration, Histogram(REQUEST_SECONDS), "etcd_request_duration_seconds", ["group", "operation", "resource"],
        "Latency of the store by operation and resource, in seconds.";
    StorageRequests, Counter, "etcd_requests_total", ["group", "operation", "resource"],
        "Requests to the store by operation and resource.";
    StorageErrors, Counter, "etcd_request_errors_total", ["group", "operation", "resource"],
        "Failed requests to the store by operation and resource.";
    StorageEvents, Counter, "apiserver_storage_events_received_total", ["group", "resource"],
        "Events received from the store by resource.";
    AuthenticatedUsers, Counter, "authenticated_user_requests", ["username"],
        "Authenticated requests; names of users that are not built in count as other.";
    AuthenticationAttempts, Counter, "authentication_attempts", ["result"],
        "Attempts to authenticate by their result.";
    AuthenticationDuration, Histogram(AUTH_SECONDS), "authentication_duration_seconds", ["result"],
        "Time that authentication took by its result.";
    TokenCacheRequests, Counter, "authentication_token_cache_request_total", ["status"],
        "Tokens looked up in the cache of answers: hit or miss.";
    TokenCacheFetches, Counter, "authentication_token_cache_fetch_total", ["status"],
        "Tokens that had to be checked anew: ok or error.";
    LegacyTokens, Counter, "serviceaccount_legacy_tokens_total", [],
        "Service-account tokens without audience that were used.";
    StaleTokens, Counter, "serviceaccount_stale_tokens_total", [],
        "Projected service-account tokens that were used after their client should have read a newer one.";
    ValidTokens, Counter, "serviceaccount_valid_tokens_total", [],
        "Projected service-account tokens that were used in time.";
    ManualTokens, Counter, "serviceaccount_legacy_manual_token_uses_total", [],
        "Uses of tokens in Secrets that somebody made.";
    AutoTokens, Counter, "serviceaccount_legacy_auto_token_uses_total", [],
        "Uses of tokens in Secrets that a controller made.";
    InvalidTokens, Counter, "serviceaccount_invalid_legacy_auto_token_uses_total", [],
        "Uses of tokens in Secrets that are marked invalid.";
    ImpersonationAttempts, Counter, "apiserver_impersonation_attempts_total", ["decision", "mode"],
        "Attempts to act as somebody else by the mode that allowed it.";
    AuthorizationAttempts, Counter, "authorization_attempts_total", ["result"],
        "Authorizations by result.";
    AuthorizationDuration, Histogram(AUTH_SECONDS), "authorization_duration_seconds", ["result"],
        "Time that authorization took by its result.";
    AuthorizationDecisions, Counter, "apiserver_authorization_decisions_total", ["decision", "name", "type"],
        "Terminal decisions by the authorizer that made them.";
    AuditEvents, Counter, "apiserver_audit_event_total", [],
        "Audit events that were made and sent to the backends.";
    AuditErrors, Counter, "apiserver_audit_error_total", ["plugin"],
        "Audit events that a backend lost.";
    AuditRejected, Counter, "apiserver_audit_requests_rejected_total", [],
        "Requests that were refused because a strict audit backend could not be reached.";
    AuditLevels, Counter, "apiserver_audit_level_total", ["level"],
        "Requests by the audit policy's level for them.";
    FairnessRejected, Counter, "apiserver_flowcontrol_rejected_requests_total",
        ["flow_schema", "priority_level", "reason"], "Requests that were turned away.";
    FairnessDispatched, Counter, "apiserver_flowcontrol_dispatched_requests_total",
        ["flow_schema", "priority_level"], "Requests that began to execute.";
    FairnessInqueue, Gauge, "apiserver_flowcontrol_current_inqueue_requests",
        ["flow_schema", "priority_level"], "Requests waiting in queues.";
    FairnessInqueueSeats, Gauge, "apiserver_flowcontrol_current_inqueue_seats",
        ["flow_schema", "priority_level"], "Seats that waiting requests will take.";
    FairnessQueueLength, Histogram(QUEUE_LENGTHS), "apiserver_flowcontrol_request_queue_length_after_enqueue",
        ["flow_schema", "priority_level"], "Length of the queue that a request found, with itself.";
    FairnessExecuting, Gauge, "apiserver_flowcontrol_current_executing_requests",
        ["flow_schema", "priority_level"], "Requests that execute.";
    FairnessExecutingSeats, Gauge, "apiserver_flowcontrol_current_executing_seats",
        ["flow_schema", "priority_level"], "Seats that executing requests take.";
    FairnessWait, Histogram(FAIRNESS_SECONDS), "apiserver_flowcontrol_request_wait_duration_seconds",
        ["execute", "flow_schema", "priority_level"], "Time spent waiting in a queue, in seconds.";
    FairnessExecution, Histogram(FAIRNESS_SECONDS), "apiserver_flowcontrol_request_execution_seconds",
        ["flow_schema", "priority_level", "type"], "Time spent executing, in seconds.";
    FairnessSeats, Histogram(SEATS), "apiserver_flowcontrol_work_estimated_seats",
        ["flow_schema", "priority_level"], "Seats that requests were estimated to need.";
    FairnessNoAccommodation, Counter, "apiserver_flowcontrol_request_dispatch_no_accommodation_total",
        ["flow_schema", "priority_level"], "Requests that could not begin at once for lack of seats.";
    FairnessNominal, Gauge, "apiserver_flowcontrol_nominal_limit_seats", ["priority_level"],
        "Seats that a priority level's shares come to.";
    FairnessLowerLimit, Gauge, "apiserver_flowcontrol_lower_limit_seats", ["priority_level"],
        "Seats that a priority level keeps when it lends all that it may.";
    FairnessUpperLimit, Gauge, "apiserver_flowcontrol_upper_limit_seats", ["priority_level"],
        "Seats that a priority level has when it borrows all that it may.";
    FairnessCurrentLimit, Gauge, "apiserver_flowcontrol_current_limit_seats", ["priority_level"],
        "Seats that a priority level has now.";
    FairnessDemandHigh, Gauge, "apiserver_flowcontrol_demand_seats_high_watermark", ["priority_level"],
        "Most seats demanded in the last period of adjustment.";
    FairnessDemandAverage, Gauge, "apiserver_flowcontrol_demand_seats_average", ["priority_level"],
        "Seats demanded on average in the last period of adjustment.";
    FairnessDemandDeviation, Gauge, "apiserver_flowcontrol_demand_seats_stdev", ["priority_level"],
        "Standard deviation of the seats demanded in the last period of adjustment.";
    FairnessDemandSmoothed, Gauge, "apiserver_flowcontrol_demand_seats_smoothed", ["priority_level"],
        "Seats demanded, smoothed over periods of adjustment.";
    FairnessTarget, Gauge, "apiserver_flowcontrol_target_seats", ["priority_level"],
        "Seats that a priority level aims at before borrowing is worked out.";
    FairnessFairFraction, Gauge, "apiserver_flowcontrol_seat_fair_frac", [],
        "Fair fraction of the targets that all priority levels can have.";
    FairnessWatchCount, Histogram(&[0.0, 1.0, 10.0, 100.0, 1000.0, 10000.0]), "apiserver_flowcontrol_watch_count_samples",
        ["flow_schema", "priority_level"], "Watchers that a writing request will be told to.";
    Transformations, Counter, "apiserver_storage_transformation_operations_total",
        ["resource", "status", "transformation_type", "transformer_prefix"],
        "Values encrypted and decrypted, by provider and outcome.";
    TransformationDuration, Histogram(TRANSFORM_SECONDS), "apiserver_storage_transformation_duration_seconds",
        ["transformation_type", "transformer_prefix"], "Time that encryption and decryption took, in seconds.";
    DiscoveryAggregations, Counter, "aggregator_discovery_aggregation_count_total", [],
        "How often the documents of aggregated discovery were made anew.";
    UnavailableApiServices, Gauge, "aggregator_unavailable_apiservice", ["name"],
        "APIServices that are marked unavailable.";
    UnavailableApiServiceCount, Counter, "aggregator_unavailable_apiservice_total", ["name", "reason"],
        "APIServices that became unavailable, by reason.";
    FeatureEnabled, Gauge, "kubernetes_feature_enabled", ["name", "stage"],
        "Whether a feature gate is on.";
    HealthCheck, Gauge, "kubernetes_healthcheck", ["name", "type"],
        "Whether a health check passed when it was last asked.";
    HealthChecks, Counter, "kubernetes_healthchecks_total", ["name", "status", "type"],
        "Health checks by their outcome.";
    BuildInfo, Gauge, "kubernetes_build_info",
        ["build_date", "compiler", "git_commit", "git_tree_state", "git_version", "go_version", "major", "minor", "platform"],
        "The version of this program, with the value 1.";
    ProcessCpu, Counter, "process_cpu_seconds_total", [], "CPU time of this process, in seconds.";
    ProcessResident, Gauge, "process_resident_memory_bytes", [], "Resident memory in bytes.";
    ProcessVirtual, Gauge, "process_virtual_memory_bytes", [], "Virtual memory in bytes.";
    ProcessVirtualMax, Gauge, "process_virtual_memory_max_bytes", [],
        "The limit on virtual memory in bytes.";
    ProcessReceived, Counter, "process_network_receive_bytes_total", [],
        "Bytes that came over the network, in the network namespace of this process.";
    ProcessTransmitted, Counter, "process_network_transmit_bytes_total", [],
        "Bytes that went over the network, in the network namespace of this process.";
    ProcessFds, Gauge, "process_open_fds", [], "Open file descriptors.";
    ProcessMaxFds, Gauge, "process_max_fds", [], "The limit on open file descriptors.";
    ProcessStart, Gauge, "process_start_time_seconds", [], "When the process started, in seconds since 1970.";
}
