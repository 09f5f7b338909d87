//! Why specs fail, as far as it is known: what is missing, by a part of the spec's name.

const CAUSES: &[(&str, &str)] = &[
    ("FieldValidation should", "an apply's mistakes were told in other words; changed since"),
    (
        "CustomResourcePublishOpenAPI",
        "OpenAPI of custom resources described no standard fields; changed since",
    ),
    ("CustomResourceFieldSelectors", "fields were selected in the stored version; changed since"),
    ("with invalid match conditions", "expressions were not compiled when written; changed since"),
    ("original version has been compacted away", "pages without changes never expired; changed since"),
    ("should return a 406 for a backend", "a review was answered as a table; changed since"),
    ("SchedulerPreemption", "no preemption in that build"),
    ("the environment [Conformance]", "an old build of the test image, whose shell withholds variables"),
    ("as environment variable names", "an old build of the test image, whose shell withholds variables"),
    ("/etc/hosts entries", "an old build of the test image, without getent"),
    ("DNS for pods for Hostname", "an old build of the test image, without getent"),
    ("orphan pods created by rc", "a hundred pods were not made in time on a loaded machine"),
    ("ServiceCIDR API operations", "the default ServiceCIDR is not made"),
    ("establish an mTLS connection", "there is no registry for images that are always pulled"),
    ("pull policy of Always", "there is no registry for images that are always pulled"),
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
        let name = "[sig-network] ServiceCIDR and IPAddress API should support ServiceCIDR API operations";
        assert_eq!(of(name), Some("the default ServiceCIDR is not made"));
        assert_eq!(of("[sig-node] Pods should run"), None);
    }
}
