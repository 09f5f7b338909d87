//! Arguments of plugins: one type for each plugin that takes some, with upstream's validation.

use knarr_apimachinery::field::{ErrorList, Path};
use serde::de::DeserializeOwned;
use serde_json::Value;

use crate::config::strict;

/// The arguments of one plugin. The default applies where the file has none.
pub trait PluginArgs: DeserializeOwned + Default {
    /// Whether they are validated when the plugin is built and not when the file is read. Upstream does so for
    /// NodeResourcesFit.
    const JUDGED_WHEN_MADE: bool = false;

    fn validate(&self, path: &Path) -> ErrorList;
}

/// The result of validating arguments.
#[derive(Debug, Default)]
pub struct Judged {
    /// Unknown fields, for example `unknown field "x"`.
    pub unknown: Vec<String>,
    pub errors: ErrorList,
}

/// [`judge`] for a plugin's type. The error contains the path of a value with the wrong type.
pub type Judge = fn(&Value, &Path) -> Result<Judged, String>;

/// Decodes and validates the arguments at `path`.
pub fn judge<T: PluginArgs>(args: &Value, path: &Path) -> Result<Judged, String> {
    if args.is_array() {
        // Serde would accept a list as the fields in their order.
        return Err("invalid type: sequence, expected a map".to_owned());
    }
    let (args, unknown): (T, _) = strict::read(&plain(args))?;
    let errors = if T::JUDGED_WHEN_MADE { ErrorList::new() } else { args.validate(path) };
    Ok(Judged { unknown, errors })
}

/// Decodes the arguments that a plugin is built with.
pub fn read<T: PluginArgs>(args: &Value) -> Result<T, String> {
    let (args, _): (T, _) = strict::read(&plain(args))?;
    let errors = args.validate(&Path::default());
    if errors.is_empty() { Ok(args) } else { Err(errors.to_string()) }
}

/// Returns the arguments without apiVersion and kind.
fn plain(args: &Value) -> Value {
    let mut args = args.clone();
    if args.is_null() {
        args = Value::Object(serde_json::Map::new());
    }
    if let Some(fields) = args.as_object_mut() {
        fields.remove("apiVersion");
        fields.remove("kind");
    }
    args
}
