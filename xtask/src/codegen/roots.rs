//! Kinds that are missing from the published OpenAPI, because they are used in queries, in webhooks or on
//! request only.

/// Import path, group, version, kinds.
pub const EXTRA: &[(&str, &str, &str, &[&str])] = &[
    (
        "k8s.io/apimachinery/pkg/apis/meta/v1",
        "meta.k8s.io",
        "v1",
        &[
            "ApplyOptions",
            "CreateOptions",
            "DeleteOptions",
            "GetOptions",
            "List",
            "ListOptions",
            "PartialObjectMetadata",
            "PartialObjectMetadataList",
            "PatchOptions",
            "Table",
            "TableOptions",
            "UpdateOptions",
            "WatchEvent",
        ],
    ),
    (
        "k8s.io/apimachinery/pkg/apis/meta/v1",
        "",
        "v1",
        &["DeleteOptions", "List", "ListOptions", "Status", "WatchEvent"],
    ),
    (
        "k8s.io/api/core/v1",
        "",
        "v1",
        &[
            "NodeProxyOptions",
            "PodAttachOptions",
            "PodExecOptions",
            "PodLogOptions",
            "PodPortForwardOptions",
            "PodProxyOptions",
            "RangeAllocation",
            "SerializedReference",
            "ServiceProxyOptions",
        ],
    ),
    ("k8s.io/api/admission/v1", "admission.k8s.io", "v1", &["AdmissionReview"]),
    (
        "k8s.io/api/apidiscovery/v2",
        "apidiscovery.k8s.io",
        "v2",
        &["APIGroupDiscoveryList", "APIGroupDiscovery"],
    ),
    (
        "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1",
        "apiextensions.k8s.io",
        "v1",
        &["ConversionReview"],
    ),
    (
        "k8s.io/metrics/pkg/apis/metrics/v1beta1",
        "metrics.k8s.io",
        "v1beta1",
        &["NodeMetrics", "NodeMetricsList", "PodMetrics", "PodMetricsList"],
    ),
];

/// Kinds that every group version has; the table resolves them once instead of listing each.
pub const EVERYWHERE: &[&str] = &["DeleteOptions", "WatchEvent"];
