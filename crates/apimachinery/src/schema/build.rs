//! Constructors and flags that keep the generated table short.

use super::plan::Plan;
use super::types::{Field, Struct, Type};

/// A property that most fields do not have.
#[derive(Clone, Copy)]
pub enum Flag {
    Required,
    Always,
    Go(&'static str),
    Pointer,
    Granular,
    /// The Go names and protobuf numbers of the inlined structs around the field.
    Inlined(&'static str, &'static [u32]),
    Default(&'static str),
    Enum(&'static [&'static str]),
    /// The patch strategy and the merge key.
    Patch(&'static str, &'static str),
}

pub const fn s(name: &'static str, atomic: bool, fields: &'static [Field]) -> Struct {
    Struct { name, fields, atomic, plan: Plan::new() }
}

pub const fn f(name: &'static str, number: u32, ty: Type, flags: &'static [Flag]) -> Field {
    let mut field = Field {
        name,
        number,
        inlined: &[],
        inlined_names: "",
        ty,
        go_name: "",
        required: false,
        always: false,
        pointer: false,
        granular: false,
        default: None,
        enumeration: &[],
        patch_strategy: "",
        patch_merge_key: "",
    };
    let mut i = 0;
    while i < flags.len() {
        match flags[i] {
            Flag::Required => field.required = true,
            Flag::Always => field.always = true,
            Flag::Go(name) => field.go_name = name,
            Flag::Pointer => field.pointer = true,
            Flag::Granular => field.granular = true,
            Flag::Inlined(names, path) => {
                field.inlined_names = names;
                field.inlined = path;
            }
            Flag::Default(json) => field.default = Some(json),
            Flag::Enum(values) => field.enumeration = values,
            Flag::Patch(strategy, key) => {
                field.patch_strategy = strategy;
                field.patch_merge_key = key;
            }
        }
        i += 1;
    }
    field
}
