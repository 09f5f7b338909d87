//! The interface between the registry and the admission plugins.

use async_trait::async_trait;
use knarr_apimachinery::status::StatusError;
use serde_json::Value;

use super::Registry;
use super::attributes::{Attributes, Operation};
use super::options::WriteParams;
use super::served::Served;
use knarr_wire::request::Request;

/// The admission plugins of a server. Between the calls, the registry runs the resource's strategy: it prepares the
/// object before `complete`, and validates it before `validate`.
#[async_trait]
pub trait Admission: Send + Sync {
    /// Runs all mutating plugins; runs them a second time if a webhook or a policy changed something that other
    /// plugins may need to see.
    async fn mutate(&self, registry: &Registry, attributes: &mut Attributes<'_>) -> Result<(), StatusError>;

    /// Sets the fields that no plugin may change. Runs after all mutating plugins and after the strategy prepared the
    /// object.
    fn complete(&self, registry: &Registry, attributes: &mut Attributes<'_>);

    /// Runs all validating plugins.
    async fn validate(&self, registry: &Registry, attributes: &Attributes<'_>) -> Result<(), StatusError>;
}

impl Registry {
    /// Runs both phases, mutating and validating, of a write that involves no strategy: subresources that can only be
    /// created by POST, connects, deletions.
    ///
    /// # Errors
    /// The refusal by a plugin.
    pub async fn admit(&self, attributes: &mut Attributes<'_>) -> Result<Value, StatusError> {
        self.admission.mutate(self, attributes).await?;
        self.admission.validate(self, attributes).await?;
        Ok(attributes.object.take())
    }

    /// Returns a review object (such as a TokenReview) after admission. Plugins see it as the creation of an object.
    ///
    /// # Errors
    /// The refusal by a plugin.
    pub async fn admit_review(
        &self,
        request: &Request,
        served: &Served,
        review: Value,
        params: &WriteParams,
    ) -> Result<Value, StatusError> {
        let place = (request.info.namespace.as_str(), "", "");
        let mut attributes =
            Attributes::new(request, served, Operation::Create, place, review, params.dry_run);
        self.admit(&mut attributes).await
    }
}
