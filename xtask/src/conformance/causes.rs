//! Why specs fail, as far as it is known: what is missing, by a part of the spec's name.

const CAUSES: &[(&str, &str)] = &[
    (
        "FieldValidation should detect unknown metadata fields in both",
        "no CustomResourceDefinitions in that build",
    ),
    ("FieldValidation should detect duplicates in a CR", "no CustomResourceDefinitions in that build"),
    ("Discovery should locate the groupVersion", "apiextensions.k8s.io was not served in that build"),
    ("AggregatedDiscovery", "apiextensions.k8s.io was not served in that build"),
    ("should return a 406 for a backend", "a review is answered although a Table alone was asked for"),
    ("MaxExpirationSeconds validations should reject", "maxExpirationSeconds of pods is not validated"),
    ("EndpointSliceMirroring", "no controller mirrored Endpoints in that build"),
    ("AdmissionWebhook", "no admission webhooks in that build"),
    ("ServiceCIDR operations", "the default ServiceCIDR is not made"),
    ("ResourceQuota", "no ResourceQuota controller in that build"),
    ("issue like exceeded quota", "no ResourceQuota controller in that build"),
    ("failure matching on DisruptionTarget", "evictions left no condition; changed since"),
    ("CSIInlineVolumes", "CSIDrivers were not served in that build"),
    ("RuntimeClass should", "no RuntimeClass admission in that build"),
    ("container over websockets", "logs had no WebSocket; changed since"),
    ("termination message from log output", "the log's last line was always a whole one; changed since"),
    ("Proxy version v1", "links of pages, OPTIONS and TLS were not proxied; changed since"),
    ("consumable via the environment", "the test image's shell withholds variables; changed since"),
    ("as environment variable names", "the test image's shell withholds variables; changed since"),
    ("/etc/hosts entries", "the test image lacked getent; changed since"),
    ("DNS for pods for Hostname", "the test image lacked getent; changed since"),
];

/// The known cause of a spec's failure.
pub fn of(name: &str) -> Option<&'static str> {
    CAUSES.iter().find(|(part, _)| name.contains(part)).map(|(_, cause)| *cause)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn causes_are_found_by_a_part_of_the_name() {
        let name = "[sig-api-machinery] AdmissionWebhook should be able to deny";
        assert_eq!(of(name), Some("no admission webhooks in that build"));
        assert_eq!(of("[sig-node] Pods should run"), None);
    }
}
