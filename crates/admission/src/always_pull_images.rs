//! AlwaysPullImages: each pod pulls its images with its own credentials, so that it cannot run an image which another
//! pod has pulled to the node.

use async_trait::async_trait;
use knarr_apimachinery::field::{Error, Path};
use knarr_apimachinery::status::StatusError;
use serde_json::Value;

use super::limit_ranger::aggregated;
use super::{Attributes, Operation, Plugin};
use crate::Context;

pub struct AlwaysPullImages;

const LISTS: [&str; 3] = ["initContainers", "containers", "ephemeralContainers"];

#[async_trait]
impl Plugin for AlwaysPullImages {
    fn name(&self) -> &'static str {
        "AlwaysPullImages"
    }

    fn handles(&self, operation: Operation) -> bool {
        matches!(operation, Operation::Create | Operation::Update)
    }

    async fn mutate(&self, attributes: &mut Attributes<'_>, _: &Context<'_>) -> Result<(), StatusError> {
        if is_concerned(attributes) {
            pull_always(&mut attributes.object);
        }
        Ok(())
    }

    async fn validate(&self, attributes: &Attributes<'_>, _: &Context<'_>) -> Result<(), StatusError> {
        if !is_concerned(attributes) {
            return Ok(());
        }
        let refused = |e: String| attributes.forbidden(&e).message().to_owned();
        match aggregated(errors(&attributes.object).into_iter().map(refused).collect()) {
            Some(why) => Err(StatusError::internal(why)),
            None => Ok(()),
        }
    }
}

fn images(pod: &Value) -> Vec<&str> {
    let containers = LISTS.iter().flat_map(|l| pod["spec"][*l].as_array().into_iter().flatten());
    containers.map(|c| c["image"].as_str().unwrap_or("")).collect()
}

fn is_concerned(attributes: &Attributes<'_>) -> bool {
    let new_image = |old: &Value| {
        let before = images(old);
        images(&attributes.object).iter().any(|i| !before.contains(i))
    };
    attributes.is("", "pods") && attributes.old.is_none_or(new_image)
}

fn pull_always(pod: &mut Value) {
    for list in LISTS {
        let containers = pod.pointer_mut(&format!("/spec/{list}")).and_then(Value::as_array_mut);
        for container in containers.into_iter().flatten().filter(|c| c.is_object()) {
            container["imagePullPolicy"] = "Always".into();
        }
    }
    let volumes = pod.pointer_mut("/spec/volumes").and_then(Value::as_array_mut);
    for volume in volumes.into_iter().flatten() {
        if let Some(image) = volume.get_mut("image").filter(|i| i.is_object()) {
            image["pullPolicy"] = "Always".into();
        }
    }
}

fn errors(pod: &Value) -> Vec<String> {
    let spec = Path::new("spec");
    let mut errors = Vec::new();
    let mut check = |policy: &Value, path: Path| {
        if policy != "Always" {
            let policy = policy.as_str().unwrap_or("");
            errors.push(Error::not_supported(&path, policy, &["Always"]).to_string());
        }
    };
    for list in LISTS {
        for (i, container) in pod["spec"][list].as_array().into_iter().flatten().enumerate() {
            check(&container["imagePullPolicy"], spec.child(list).index(i).child("imagePullPolicy"));
        }
    }
    for (i, volume) in pod["spec"]["volumes"].as_array().into_iter().flatten().enumerate() {
        if volume["image"].is_object() {
            check(
                &volume["image"]["pullPolicy"],
                spec.child("volumes").index(i).child("image").child("pullPolicy"),
            );
        }
    }
    errors
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn everything_is_pulled() {
        let mut pod = json!({"spec": {"containers": [{"name": "a", "imagePullPolicy": "Never"}],
            "initContainers": [{"name": "b"}], "volumes": [{"image": {"reference": "r"}}, {"emptyDir": {}}]}});
        assert_eq!(errors(&pod).len(), 3);
        assert_eq!(
            errors(&pod)[1],
            "spec.containers[0].imagePullPolicy: Unsupported value: \"Never\": supported values: \"Always\""
        );
        pull_always(&mut pod);
        assert!(errors(&pod).is_empty());
        pull_always(&mut json!(7));
    }
}
