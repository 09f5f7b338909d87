//! The object of a request in the form that webhooks and policies get, and back.

use knarr_api::scale;
use serde_json::Value;

use crate::Attributes;

/// Returns the object in the form for webhooks: for `scale`, a Scale whatever the scaled resource is.
pub fn presented(attributes: &Attributes<'_>, whole: &Value) -> Value {
    if attributes.subresource == "scale" && attributes.kind().kind == "Scale" && whole.is_object() {
        return scale::of(whole);
    }
    whole.clone()
}

/// Applies a changed object, possibly a Scale, to the whole object.
pub fn whole(attributes: &Attributes<'_>, mut new: Value) -> Value {
    if attributes.subresource == "scale" && attributes.kind().kind == "Scale" {
        let mut whole = attributes.object.clone();
        scale::apply(&mut whole, &new);
        return whole;
    }
    if attributes.kind() == attributes.resource.gvk() {
        attributes.served.resource.default(&mut new, attributes.old);
    }
    new
}
