//! The known causes of failing specs: which feature is missing, by a part of the spec's name.

const CAUSES: &[(&str, &str)] = &[
    ("orphan pods created by rc", "a hundred pods were not made in time on a loaded machine"),
    ("valid owner and owner that's waiting", "a hundred pods were not made in time on a loaded machine"),
];

/// Returns the known cause of a spec's failure.
pub fn of(name: &str) -> Option<&'static str> {
    CAUSES.iter().find(|(part, _)| name.contains(part)).map(|(_, cause)| *cause)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn causes_are_found_by_a_part_of_the_name() {
        let name =
            "[sig-api-machinery] Garbage collector should orphan pods created by rc if delete options say so";
        assert!(of(name).is_some_and(|cause| cause.contains("loaded machine")));
        assert_eq!(of("[sig-node] Pods should run"), None);
    }
}
