//! AlwaysAdmit and AlwaysDeny, which admit or refuse every write; for tests.

use async_trait::async_trait;
use knarr_apimachinery::status::StatusError;

use super::{Attributes, Operation, Plugin};
use crate::Context;

pub struct AlwaysAdmit;

#[async_trait]
impl Plugin for AlwaysAdmit {
    fn name(&self) -> &'static str {
        "AlwaysAdmit"
    }

    fn handles(&self, _: Operation) -> bool {
        true
    }
}

pub struct AlwaysDeny;

#[async_trait]
impl Plugin for AlwaysDeny {
    fn name(&self) -> &'static str {
        "AlwaysDeny"
    }

    fn handles(&self, _: Operation) -> bool {
        true
    }

    async fn mutate(&self, attributes: &mut Attributes<'_>, _: &Context<'_>) -> Result<(), StatusError> {
        Err(attributes.forbidden("admission control is denying all modifications"))
    }

    async fn validate(&self, attributes: &Attributes<'_>, _: &Context<'_>) -> Result<(), StatusError> {
        Err(attributes.forbidden("admission control is denying all modifications"))
    }
}
