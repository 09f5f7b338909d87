//! MutatingWebhookConfiguration: webhooks that may change a request during admission.

use k8s_openapi::api::admissionregistration::v1 as api;
use knarr_apimachinery::field::ErrorList;
use serde_json::Value;

use super::webhooks::{self, COLUMNS, Hook, hook};
use super::{not_static, static_warnings};
use crate::defaults::unset;
use crate::kind::Kind;
use crate::naming;
use crate::object::Object;
use crate::prepare;
use crate::resource::{CellContext, Resource};
use crate::strategy::Strategy;

pub const RESOURCE: Resource = Resource {
    categories: &["api-extensions"],
    columns: COLUMNS,
    cells,
    ..Resource::stored(
        api::MutatingWebhookConfiguration::RESOURCE,
        "MutatingWebhookConfigurationList",
        "mutatingwebhookconfiguration",
        &Rules,
    )
};

fn cells(object: &Object, cx: &CellContext) -> Vec<Value> {
    let o = object.typed::<api::MutatingWebhookConfiguration>().unwrap_or_default();
    webhooks::cells(&o.metadata, o.webhooks.iter().flatten().count(), cx)
}

fn hooks(configuration: &api::MutatingWebhookConfiguration) -> Vec<Hook<'_>> {
    configuration.webhooks.iter().flatten().map(|h| hook!(h, h.reinvocation_policy.as_deref())).collect()
}

struct Rules;

impl Strategy for Rules {
    fn default(&self, object: &mut Value) {
        webhooks::default_all(object, |hook| unset(hook, "reinvocationPolicy", "Never"));
    }

    fn prepare_for_create(&self, object: &mut Value) {
        prepare::set_generation(object, 1);
    }

    fn prepare_for_update(&self, new: &mut Value, old: &Value, _: Option<&str>) {
        prepare::bump_generation(new, old, &["/webhooks"]);
    }

    fn validate(&self, object: &Object) -> ErrorList {
        let Ok(o) = object.typed::<api::MutatingWebhookConfiguration>() else { return ErrorList::new() };
        let mut errors = webhooks::validate_new(&hooks(&o));
        not_static(&mut errors, object.name());
        errors
    }

    fn validate_update(&self, new: &Object, old: &Object, _: Option<&str>) -> ErrorList {
        match (
            new.typed::<api::MutatingWebhookConfiguration>(),
            old.typed::<api::MutatingWebhookConfiguration>(),
        ) {
            (Ok(new), Ok(old)) => webhooks::validate_update(&hooks(&new), &hooks(&old)),
            _ => ErrorList::new(),
        }
    }

    fn validate_name(&self, name: &str, prefix: bool) -> Vec<String> {
        naming::subdomain(name, prefix)
    }

    fn warnings(&self, new: &Object, old: Option<&Object>) -> Vec<String> {
        let mut warnings = old.map(|_| static_warnings(new.name())).unwrap_or_default();
        if let Ok(o) = new.typed::<api::MutatingWebhookConfiguration>() {
            warnings.extend(webhooks::warnings(&hooks(&o)));
        }
        warnings
    }

    fn allow_unconditional_update(&self) -> bool {
        false
    }
}
