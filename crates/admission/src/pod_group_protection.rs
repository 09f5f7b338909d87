//! PodGroupProtection: a finalizer keeps pod groups until no pod refers to them.

use async_trait::async_trait;
use knarr_apimachinery::status::StatusError;

use super::storage_object_in_use_protection::protect;
use super::{Attributes, Operation, Plugin};
use crate::Context;

pub struct PodGroupProtection;

const FINALIZER: &str = "scheduling.k8s.io/podgroup-protection";

#[async_trait]
impl Plugin for PodGroupProtection {
    fn name(&self) -> &'static str {
        "PodGroupProtection"
    }

    fn handles(&self, operation: Operation) -> bool {
        operation == Operation::Create
    }

    async fn mutate(
        &self,
        attributes: &mut Attributes<'_>,
        context: &Context<'_>,
    ) -> Result<(), StatusError> {
        if attributes.is("scheduling.k8s.io", "podgroups") && context.features.is_on("GenericWorkload") {
            protect(&mut attributes.object, FINALIZER);
        }
        Ok(())
    }
}
