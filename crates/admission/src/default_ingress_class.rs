//! DefaultIngressClass: sets the default class of an Ingress that names none.

use async_trait::async_trait;
use knarr_apimachinery::status::StatusError;

use super::{Attributes, Operation, Plugin, lookup};
use crate::Context;

pub struct DefaultIngressClass;

const GROUP: &str = "networking.k8s.io";
const CLASSES: (&str, &str, &str) = (GROUP, "v1", "ingressclasses");
const IS_DEFAULT: [&str; 1] = ["ingressclass.kubernetes.io/is-default-class"];
const OLD_ANNOTATION: &str = "kubernetes.io/ingress.class";

#[async_trait]
impl Plugin for DefaultIngressClass {
    fn name(&self) -> &'static str {
        "DefaultIngressClass"
    }

    fn handles(&self, operation: Operation) -> bool {
        operation == Operation::Create
    }

    async fn mutate(
        &self,
        attributes: &mut Attributes<'_>,
        context: &Context<'_>,
    ) -> Result<(), StatusError> {
        let ingress = &attributes.object;
        if !attributes.is(GROUP, "ingresses")
            || ingress["spec"]["ingressClassName"].is_string()
            || ingress["metadata"]["annotations"].get(OLD_ANNOTATION).is_some()
        {
            return Ok(());
        }
        let classes = lookup::list(context, CLASSES, None)?;
        if let Some(class) = lookup::default_class(&classes, &IS_DEFAULT) {
            attributes.object["spec"]["ingressClassName"] = class.into();
        }
        Ok(())
    }
}
