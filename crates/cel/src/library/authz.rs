//! Authorization checks: `authorizer.group('').resource('pods').check('create').allowed()`.

use std::sync::Arc;

use knarr_apimachinery::names;

use super::function::Function;
use crate::error::EvalError;
use crate::opaque::Opaque;
pub use crate::opaque::authz::{Authorizer, Authz, Check, Decision};
use crate::value::Value;

pub const FUNCTIONS: &[Function] = &[
    Function {
        name: "path",
        overloads: &[(
            "authorizer_path",
            "kubernetes.authorization.Authorizer.(string)kubernetes.authorization.PathCheck",
        )],
        call: |args, _| step(args, path),
    },
    Function {
        name: "group",
        overloads: &[(
            "authorizer_group",
            "kubernetes.authorization.Authorizer.(string)kubernetes.authorization.GroupCheck",
        )],
        call: |args, _| step(args, group),
    },
    Function {
        name: "serviceAccount",
        overloads: &[(
            "authorizer_serviceaccount",
            "kubernetes.authorization.Authorizer.(string,string)kubernetes.authorization.Authorizer",
        )],
        call: |args, _| service_account(args),
    },
    Function {
        name: "resource",
        overloads: &[(
            "groupcheck_resource",
            "kubernetes.authorization.GroupCheck.(string)kubernetes.authorization.ResourceCheck",
        )],
        call: |args, _| step(args, resource),
    },
    Function {
        name: "subresource",
        overloads: &[(
            "resourcecheck_subresource",
            "kubernetes.authorization.ResourceCheck.(string)kubernetes.authorization.ResourceCheck",
        )],
        call: |args, _| detail(args, |check, value| check.subresource = value),
    },
    Function {
        name: "namespace",
        overloads: &[(
            "resourcecheck_namespace",
            "kubernetes.authorization.ResourceCheck.(string)kubernetes.authorization.ResourceCheck",
        )],
        call: |args, _| detail(args, |check, value| check.namespace = value),
    },
    Function {
        name: "name",
        overloads: &[(
            "resourcecheck_name",
            "kubernetes.authorization.ResourceCheck.(string)kubernetes.authorization.ResourceCheck",
        )],
        call: |args, _| detail(args, |check, value| check.name = value),
    },
    Function {
        name: "fieldSelector",
        overloads: &[(
            "authorizer_fieldselector",
            "kubernetes.authorization.ResourceCheck.(string)kubernetes.authorization.ResourceCheck",
        )],
        call: |args, _| detail(args, |check, value| check.field_selector = value),
    },
    Function {
        name: "labelSelector",
        overloads: &[(
            "authorizer_labelselector",
            "kubernetes.authorization.ResourceCheck.(string)kubernetes.authorization.ResourceCheck",
        )],
        call: |args, _| detail(args, |check, value| check.label_selector = value),
    },
    Function {
        name: "check",
        overloads: &[
            (
                "pathcheck_check",
                "kubernetes.authorization.PathCheck.(string)kubernetes.authorization.Decision",
            ),
            (
                "resourcecheck_check",
                "kubernetes.authorization.ResourceCheck.(string)kubernetes.authorization.Decision",
            ),
        ],
        call: |args, _| check(args),
    },
    Function {
        name: "errored",
        overloads: &[("decision_errored", "kubernetes.authorization.Decision.()bool")],
        call: |args, _| decision(args, |d| Value::Bool(d.error.is_some())),
    },
    Function {
        name: "error",
        overloads: &[("decision_error", "kubernetes.authorization.Decision.()string")],
        call: |args, _| decision(args, |d| Value::string(d.error.clone().unwrap_or_default())),
    },
    Function {
        name: "allowed",
        overloads: &[("decision_allowed", "kubernetes.authorization.Decision.()bool")],
        call: |args, _| decision(args, |d| Value::Bool(d.allowed)),
    },
    Function {
        name: "reason",
        overloads: &[("decision_reason", "kubernetes.authorization.Decision.()string")],
        call: |args, _| decision(args, |d| Value::string(d.reason.clone())),
    },
];

type Outcome<'a> = Result<Value<'a>, EvalError>;

/// Returns the value of the variable `authorizer`.
pub fn authorizer<'a>(authorizer: Arc<dyn Authorizer>) -> Value<'a> {
    value(Authz::Authorizer { authorizer, check: Check::default() })
}

/// Returns the value of the variable `authorizer.requestResource`: a check of the request's own resource.
pub fn resource_check<'a>(authorizer: Arc<dyn Authorizer>, check: Check) -> Value<'a> {
    value(Authz::Resource { authorizer, check })
}

fn value<'a>(authz: Authz) -> Value<'a> {
    Value::Opaque(Opaque::Authz(Arc::new(authz)))
}

fn step<'a>(args: &[Value<'a>], f: impl Fn(&Authz, &str) -> Result<Authz, EvalError>) -> Outcome<'a> {
    match args {
        [Value::Opaque(Opaque::Authz(authz)), Value::String(s)] => f(authz, s).map(value),
        _ => Err(EvalError::NoSuchOverload),
    }
}

fn path(authz: &Authz, path: &str) -> Result<Authz, EvalError> {
    let Authz::Authorizer { authorizer, check } = authz else { return Err(EvalError::NoSuchOverload) };
    if path.trim().is_empty() {
        return Err(EvalError::new("path must not be empty"));
    }
    let check = Check { path: path.to_owned(), ..check.clone() };
    Ok(Authz::Path { authorizer: authorizer.clone(), check })
}

fn group(authz: &Authz, group: &str) -> Result<Authz, EvalError> {
    let Authz::Authorizer { authorizer, check } = authz else { return Err(EvalError::NoSuchOverload) };
    let check = Check { group: group.to_owned(), ..check.clone() };
    Ok(Authz::Group { authorizer: authorizer.clone(), check })
}

fn resource(authz: &Authz, resource: &str) -> Result<Authz, EvalError> {
    let Authz::Group { authorizer, check } = authz else { return Err(EvalError::NoSuchOverload) };
    if resource.trim().is_empty() {
        return Err(EvalError::new("resource must not be empty"));
    }
    let check = Check { resource: resource.to_owned(), ..check.clone() };
    Ok(Authz::Resource { authorizer: authorizer.clone(), check })
}

fn service_account<'a>(args: &[Value<'a>]) -> Outcome<'a> {
    let [Value::Opaque(Opaque::Authz(authz)), Value::String(namespace), Value::String(name)] = args else {
        return Err(EvalError::NoSuchOverload);
    };
    let Authz::Authorizer { authorizer, check } = &**authz else { return Err(EvalError::NoSuchOverload) };
    if !names::dns1123_subdomain(name).is_empty() {
        return Err(EvalError::new("Invalid service account name"));
    }
    if !names::dns1123_label(namespace).is_empty() {
        return Err(EvalError::new("Invalid service account namespace"));
    }
    let account = Some((namespace.to_string(), name.to_string()));
    let check = Check { service_account: account, ..check.clone() };
    Ok(value(Authz::Authorizer { authorizer: authorizer.clone(), check }))
}

fn detail<'a>(args: &[Value<'a>], set: impl Fn(&mut Check, String)) -> Outcome<'a> {
    step(args, |authz, s| {
        let Authz::Resource { authorizer, check } = authz else { return Err(EvalError::NoSuchOverload) };
        let mut check = check.clone();
        set(&mut check, s.to_owned());
        Ok(Authz::Resource { authorizer: authorizer.clone(), check })
    })
}

fn check<'a>(args: &[Value<'a>]) -> Outcome<'a> {
    step(args, |authz, verb| match authz {
        Authz::Path { authorizer, check } | Authz::Resource { authorizer, check } => {
            let check = Check { verb: verb.to_owned(), ..check.clone() };
            Ok(Authz::Decision(authorizer.authorize(&check)))
        }
        _ => Err(EvalError::NoSuchOverload),
    })
}

fn decision<'a>(args: &[Value<'a>], f: impl Fn(&Decision) -> Value<'a>) -> Outcome<'a> {
    match args {
        [Value::Opaque(Opaque::Authz(authz))] => match &**authz {
            Authz::Decision(decision) => Ok(f(decision)),
            _ => Err(EvalError::NoSuchOverload),
        },
        _ => Err(EvalError::NoSuchOverload),
    }
}
