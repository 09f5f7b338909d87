//! URLs and their parts.

use std::sync::Arc;

use super::function::Function;
use crate::error::EvalError;
use crate::opaque::Opaque;
use crate::opaque::url::Url;
use crate::value::{Key, Str, Value};

pub const FUNCTIONS: &[Function] = &[
    Function {
        name: "url",
        overloads: &[("string_to_url", "(string)kubernetes.URL")],
        call: |args, _| match args {
            [Value::String(s)] => match Url::parse(s) {
                Ok(url) => Ok(Value::Opaque(Opaque::Url(Arc::new(url)))),
                Err(why) => Err(EvalError::new(format!(
                    "URL parse error during conversion from string: parse {:?}: {why}",
                    &**s
                ))),
            },
            _ => Err(EvalError::NoSuchOverload),
        },
    },
    Function {
        name: "isURL",
        overloads: &[("is_url_string", "(string)bool")],
        call: |args, _| match args {
            [Value::String(s)] => Ok(Value::Bool(Url::parse_request(s).is_ok())),
            _ => Err(EvalError::NoSuchOverload),
        },
    },
    Function {
        name: "getScheme",
        overloads: &[("url_get_scheme", "kubernetes.URL.()string")],
        call: |args, _| text(args, |u| u.scheme.clone()),
    },
    Function {
        name: "getHost",
        overloads: &[("url_get_host", "kubernetes.URL.()string")],
        call: |args, _| text(args, |u| u.host.clone()),
    },
    Function {
        name: "getHostname",
        overloads: &[("url_get_hostname", "kubernetes.URL.()string")],
        call: |args, _| text(args, |u| u.host_and_port().0.to_owned()),
    },
    Function {
        name: "getPort",
        overloads: &[("url_get_port", "kubernetes.URL.()string")],
        call: |args, _| text(args, |u| u.host_and_port().1.to_owned()),
    },
    Function {
        name: "getEscapedPath",
        overloads: &[("url_get_escaped_path", "kubernetes.URL.()string")],
        call: |args, _| text(args, |u| u.path.clone()),
    },
    Function {
        name: "getQuery",
        overloads: &[("url_get_query", "kubernetes.URL.()map<string,list<string>>")],
        call: |args, _| match args {
            [Value::Opaque(Opaque::Url(url))] => Ok(query_map(url)),
            _ => Err(EvalError::NoSuchOverload),
        },
    },
];

fn text<'a>(args: &[Value<'a>], part: impl Fn(&Url) -> String) -> Result<Value<'a>, EvalError> {
    match args {
        [Value::Opaque(Opaque::Url(url))] => Ok(Value::string(part(url))),
        _ => Err(EvalError::NoSuchOverload),
    }
}

fn query_map<'a>(url: &Url) -> Value<'a> {
    let entry =
        |(key, values): (String, Vec<String>)| (Key::String(Str::Shared(key.into())), Value::strings(values));
    Value::map(url.query().into_iter().map(entry).collect())
}
