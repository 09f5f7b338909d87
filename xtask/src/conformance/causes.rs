//! Why specs fail, as far as it is known: what is missing, by a part of the spec's name.

const CAUSES: &[(&str, &str)] = &[
    ("[sig-apps] StatefulSet", "no StatefulSet controller"),
    ("[sig-apps] Daemon set", "no DaemonSet controller"),
    ("[sig-apps] ControllerRevision", "no DaemonSet controller"),
    ("[sig-apps] Job", "no Job controller"),
    ("[sig-apps] CronJob", "no CronJob controller"),
    ("[sig-apps] ReplicationController", "no ReplicationController controller"),
    ("[sig-apps] DisruptionController", "no PodDisruptionBudget controller"),
    ("[sig-api-machinery] ResourceQuota", "no ResourceQuota controller and admission"),
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
        assert_eq!(of("[sig-apps] CronJob should run"), Some("no CronJob controller"));
        assert_eq!(of("[sig-node] Pods should run"), None);
    }
}
