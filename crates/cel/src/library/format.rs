//! Named formats: `format.dns1123Label().validate(s)`.

use super::function::Function;
use crate::error::EvalError;
use crate::opaque::Opaque;
use crate::opaque::format::FORMATS;
use crate::value::Value;

pub const FUNCTIONS: &[Function] = &[
    Function {
        name: "validate",
        overloads: &[("format-validate", "kubernetes.NamedFormat.(string)optional<list<string>>")],
        call: |args, _| match args {
            [Value::Opaque(Opaque::Format(format)), Value::String(s)] => {
                let problems = (format.validate)(s);
                Ok(if problems.is_empty() { Value::none() } else { Value::some(Value::strings(problems)) })
            }
            _ => Err(EvalError::NoSuchOverload),
        },
    },
    Function {
        name: "format.named",
        overloads: &[("format-named", "(string)optional<kubernetes.NamedFormat>")],
        call: |args, _| match args {
            [Value::String(s)] => Ok(match FORMATS.iter().find(|f| f.key == &**s) {
                Some(format) => Value::some(Value::Opaque(Opaque::Format(format))),
                None => Value::none(),
            }),
            _ => Err(EvalError::NoSuchOverload),
        },
    },
    constant("format.dns1123Label", &[("format.dns1123Label", NONE)], |_, _| named(0)),
    constant("format.dns1123Subdomain", &[("format.dns1123Subdomain", NONE)], |_, _| named(1)),
    constant("format.dns1035Label", &[("format.dns1035Label", NONE)], |_, _| named(2)),
    constant("format.qualifiedName", &[("format.qualifiedName", NONE)], |_, _| named(3)),
    constant("format.dns1123LabelPrefix", &[("format.dns1123LabelPrefix", NONE)], |_, _| named(4)),
    constant("format.dns1123SubdomainPrefix", &[("format.dns1123SubdomainPrefix", NONE)], |_, _| named(5)),
    constant("format.dns1035LabelPrefix", &[("format.dns1035LabelPrefix", NONE)], |_, _| named(6)),
    constant("format.labelValue", &[("format.labelValue", NONE)], |_, _| named(7)),
    constant("format.uri", &[("format.uri", NONE)], |_, _| named(8)),
    constant("format.uuid", &[("format.uuid", NONE)], |_, _| named(9)),
    constant("format.byte", &[("format.byte", NONE)], |_, _| named(10)),
    constant("format.date", &[("format.date", NONE)], |_, _| named(11)),
    constant("format.datetime", &[("format.datetime", NONE)], |_, _| named(12)),
];

const NONE: &str = "()kubernetes.NamedFormat";

const fn constant(
    name: &'static str,
    overloads: &'static [(&'static str, &'static str)],
    call: super::function::Call,
) -> Function {
    Function { name, overloads, call }
}

fn named<'a>(index: usize) -> Result<Value<'a>, EvalError> {
    FORMATS.get(index).map(|f| Value::Opaque(Opaque::Format(f))).ok_or(EvalError::NoSuchOverload)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::library::registry::calls;

    #[test]
    fn every_format_has_its_function() {
        for format in FORMATS {
            let call = calls(&format!("format.{}", format.key))[0];
            let value = call(&[], &mut crate::budget::Budget::default()).unwrap();
            let Value::Opaque(Opaque::Format(found)) = value else { panic!("{}", format.key) };
            assert_eq!(found.key, format.key);
        }
    }
}
