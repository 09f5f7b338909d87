//! Privilege escalation prevention: a user cannot grant permissions through roles and bindings that the user does not
//! have.

use async_trait::async_trait;
use knarr_apimachinery::status::StatusError;

use super::{Attributes, Operation, Plugin};
use crate::Context;
use knarr_auth::authz::{escalation, rules};

pub struct Escalation;

#[async_trait]
impl Plugin for Escalation {
    fn name(&self) -> &'static str {
        "Escalation"
    }

    fn handles(&self, operation: Operation) -> bool {
        matches!(operation, Operation::Create | Operation::Update)
    }

    async fn validate(&self, attributes: &Attributes<'_>, context: &Context<'_>) -> Result<(), StatusError> {
        if attributes.resource.group != rules::GROUP {
            return Ok(());
        }
        escalation::check(
            context.authorizer,
            attributes.user,
            attributes.resource.plural,
            attributes.namespace,
            &attributes.object,
            attributes.old,
        )
        .await
    }
}
