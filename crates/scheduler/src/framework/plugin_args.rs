//! Arguments of plugins: a type for each plugin that takes some, and upstream's rules for them.

use knarr_apimachinery::field::{ErrorList, Path};
use serde::de::DeserializeOwned;
use serde_json::Value;

use crate::config::strict;

/// The arguments of one plugin; the default is what holds without any.
pub trait PluginArgs: DeserializeOwned + Default {
    /// Whether they are judged when the plugin is made, as upstream judges NodeResourcesFit's, not when the file is read.
    const JUDGED_WHEN_MADE: bool = false;

    fn validate(&self, path: &Path) -> ErrorList;
}

/// What there is to say about arguments as they are written.
#[derive(Debug, Default)]
pub struct Judged {
    /// `unknown field "x"`.
    pub unknown: Vec<String>,
    pub errors: ErrorList,
}

/// [`judge`] for a plugin's type. The error tells where a type is wrong.
pub type Judge = fn(&Value, &Path) -> Result<Judged, String>;

/// Reads arguments that stand at `path`.
pub fn judge<T: PluginArgs>(args: &Value, path: &Path) -> Result<Judged, String> {
    if args.is_array() {
        // Serde would take a list for the fields in their order.
        return Err("invalid type: sequence, expected a map".to_owned());
    }
    let (args, unknown): (T, _) = strict::read(&plain(args))?;
    let errors = if T::JUDGED_WHEN_MADE { ErrorList::new() } else { args.validate(path) };
    Ok(Judged { unknown, errors })
}

/// The arguments that a plugin is made with.
pub fn read<T: PluginArgs>(args: &Value) -> Result<T, String> {
    let (args, _): (T, _) = strict::read(&plain(args))?;
    let errors = args.validate(&Path::default());
    if errors.is_empty() { Ok(args) } else { Err(errors.to_string()) }
}

/// Without what names their type.
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
