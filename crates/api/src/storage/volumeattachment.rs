//! VolumeAttachment: a volume to attach to a node.

use k8s_openapi::api::storage::v1 as api;
use knarr_apimachinery::field::{Error, ErrorList, Path};
use knarr_apimachinery::names;
use serde_json::Value;

use crate::core::persistentvolume;
use crate::kind::Kind;
use crate::naming;
use crate::object::Object;
use crate::prepare;
use crate::resource::{self, CellContext, Column, Resource};
use crate::strategy::Strategy;
use crate::table::{self, AGE, NAME};
use crate::validate;

pub const RESOURCE: Resource = Resource {
    subresources: &[resource::STATUS],
    columns: COLUMNS,
    cells,
    ..Resource::stored(api::VolumeAttachment::RESOURCE, "VolumeAttachmentList", "volumeattachment", &Rules)
};

const COLUMNS: &[Column] = &[
    NAME,
    Column {
        format: "name",
        ..Column::new("Attacher", "string", "The CSI driver that attaches the volume.")
    },
    Column::new("PV", "string", "The name of the attached volume."),
    Column::new("Node", "string", "The node that the volume is attached to."),
    Column::new("Attached", "boolean", "Whether the volume is attached."),
    AGE,
];

fn cells(object: &Object, cx: &CellContext) -> Vec<Value> {
    let o = object.typed::<api::VolumeAttachment>().unwrap_or_default();
    vec![
        Value::from(object.name()),
        Value::from(o.spec.attacher.as_str()),
        Value::from(o.spec.source.persistent_volume_name.as_deref().unwrap_or("")),
        Value::from(o.spec.node_name.as_str()),
        Value::from(o.status.as_ref().is_some_and(|s| s.attached)),
        table::age(o.metadata.creation_timestamp.as_ref(), cx),
    ]
}

struct Rules;

impl Strategy for Rules {
    fn default(&self, object: &mut Value) {
        if let Some(Value::Object(inline)) = object.pointer_mut("/spec/source/inlineVolumeSpec") {
            persistentvolume::default_source(inline);
        }
    }

    fn prepare_for_create(&self, object: &mut Value) {
        prepare::clear(object, "status");
    }

    fn prepare_for_update(&self, new: &mut Value, old: &Value, subresource: Option<&str>) {
        prepare::update_with_status(new, old, subresource);
        if subresource == Some("status") {
            prepare::keep_metadata_for_status(new, old);
        }
    }

    fn validate(&self, object: &Object) -> ErrorList {
        object.typed::<api::VolumeAttachment>().map(|a| validate_attachment(&a)).unwrap_or_default()
    }

    fn validate_update(&self, new: &Object, old: &Object, _: Option<&str>) -> ErrorList {
        let mut errors = self.validate(new);
        if let (Ok(new), Ok(old)) =
            (new.typed::<api::VolumeAttachment>(), old.typed::<api::VolumeAttachment>())
            && new.spec != old.spec
        {
            errors.push(validate::changed(&Path::new("spec")));
        }
        errors
    }

    fn allow_unconditional_update(&self) -> bool {
        false
    }

    fn validate_name(&self, name: &str, prefix: bool) -> Vec<String> {
        naming::subdomain(name, prefix)
    }
}

const METADATA_MAX: usize = 256 * 1024;
const MESSAGE_MAX: usize = 1024;

/// Validates the driver's name; upstream's messages differ for this field.
fn attacher(errors: &mut ErrorList, path: &Path, name: &str) {
    const NAME_MAX: usize = 63;
    if !validate::required(errors, path, name) {
        return;
    }
    if !names::dns1123_subdomain(&name.to_lowercase()).is_empty() {
        let problem = "an RFC 1123 subdomain must consist of alphanumeric characters, '-' or '.', and must start and \
                       end with an alphanumeric character (e.g. 'Example.com', regex used for validation is \
                       '[a-z0-9]([-a-z0-9]*[a-z0-9])?(\\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*')";
        errors.push(Error::invalid(path, name, problem));
    }
    if name.len() > NAME_MAX {
        let detail = format!("may not be more than {NAME_MAX} characters");
        errors.push(Error { detail, ..Error::too_long(path, NAME_MAX) });
    }
}

fn validate_attachment(attachment: &api::VolumeAttachment) -> ErrorList {
    let mut errors = ErrorList::new();
    let spec = &attachment.spec;
    let path = Path::new("spec");
    attacher(&mut errors, &path.child("attacher"), &spec.attacher);
    let at = path.child("source");
    let one = "must specify exactly one of inlineVolumeSpec and persistentVolumeName";
    match (&spec.source.inline_volume_spec, spec.source.persistent_volume_name.as_deref()) {
        (None, None) => errors.push(Error::required(&at, one)),
        (Some(_), Some(_)) => errors.push(Error::forbidden(&at, one)),
        (None, Some("")) => {
            let why = "must specify non empty persistentVolumeName";
            errors.push(Error::required(&at.child("persistentVolumeName"), why));
        }
        (Some(inline), None) => {
            persistentvolume::inline_spec(&mut errors, &at.child("inlineVolumeSpec"), inline);
        }
        (None, Some(_)) => {}
    }
    validate::dns_subdomain(&mut errors, &path.child("nodeName"), &spec.node_name);
    let status = attachment.status.clone().unwrap_or_default();
    let path = Path::new("status");
    let bytes =
        |m: &std::collections::BTreeMap<String, String>| m.iter().map(|(k, v)| k.len() + v.len()).sum();
    if status.attachment_metadata.as_ref().map_or(0, bytes) > METADATA_MAX {
        errors.push(Error::too_long(&path.child("attachmentMetadata"), METADATA_MAX));
    }
    for (field, error) in [("attachError", &status.attach_error), ("detachError", &status.detach_error)] {
        let Some(error) = error else { continue };
        let path = path.child(field);
        if error.message.as_ref().is_some_and(|m| m.len() > MESSAGE_MAX) {
            errors.push(Error::too_long(&path.child("message"), MESSAGE_MAX));
        }
        if let Some(code) = error.error_code.filter(|c| *c < 0) {
            let problem = "must be between 0 and 2147483647, inclusive";
            errors.push(Error::invalid(&path.child("errorCode"), code, problem));
        }
    }
    if let Some(name) = spec.source.persistent_volume_name.as_deref() {
        validate::dns_subdomain(&mut errors, &Path::new("spec.source.persistentVolumeName"), name);
    }
    errors
}
