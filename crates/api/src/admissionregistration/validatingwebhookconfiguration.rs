//! ValidatingWebhookConfiguration: webhooks that allow or refuse a request.

use k8s_openapi::api::admissionregistration::v1 as api;
use knarr_apimachinery::field::ErrorList;
use serde_json::Value;

use super::webhooks::{self, COLUMNS, Hook, hook};
use super::{not_static, static_warnings};
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
        api::ValidatingWebhookConfiguration::RESOURCE,
        "ValidatingWebhookConfigurationList",
        "validatingwebhookconfiguration",
        &Rules,
    )
};

fn cells(object: &Object, cx: &CellContext) -> Vec<Value> {
    let o = object.typed::<api::ValidatingWebhookConfiguration>().unwrap_or_default();
    webhooks::cells(&o.metadata, o.webhooks.iter().flatten().count(), cx)
}

fn hooks(configuration: &api::ValidatingWebhookConfiguration) -> Vec<Hook<'_>> {
    configuration.webhooks.iter().flatten().map(|h| hook!(h, None)).collect()
}

struct Rules;

impl Strategy for Rules {
    fn default(&self, object: &mut Value) {
        webhooks::default_all(object, |_| {});
    }

    fn prepare_for_create(&self, object: &mut Value) {
        prepare::set_generation(object, 1);
    }

    fn prepare_for_update(&self, new: &mut Value, old: &Value, _: Option<&str>) {
        prepare::bump_generation(new, old, &["/webhooks"]);
    }

    fn validate(&self, object: &Object) -> ErrorList {
        let Ok(o) = object.typed::<api::ValidatingWebhookConfiguration>() else { return ErrorList::new() };
        let mut errors = webhooks::validate_new(&hooks(&o));
        not_static(&mut errors, object.name());
        errors
    }

    fn validate_update(&self, new: &Object, old: &Object, _: Option<&str>) -> ErrorList {
        match (
            new.typed::<api::ValidatingWebhookConfiguration>(),
            old.typed::<api::ValidatingWebhookConfiguration>(),
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
        if let Ok(o) = new.typed::<api::ValidatingWebhookConfiguration>() {
            warnings.extend(webhooks::warnings(&hooks(&o)));
        }
        warnings
    }

    fn allow_unconditional_update(&self) -> bool {
        false
    }
}
