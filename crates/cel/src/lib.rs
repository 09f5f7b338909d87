//! CEL, the Common Expression Language, as Kubernetes provides it: parser, checker, cost estimates, limited
//! evaluation.
//!
//! An expression is compiled once against [`Declarations`] and evaluated any number of times with an [`Activation`]
//! and a [`Budget`]. Nothing here does I/O; evaluation is limited in time, memory and recursion for any input.
//!
//! # A rule of a schema (`x-kubernetes-validations`)
//!
//! ```
//! use std::sync::Arc;
//! use knarr_cel::{Activation, Budget, Declarations, Type, checked, schema};
//! use serde_json::json;
//!
//! let schema = json!({"type": "object", "properties": {"replicas": {"type": "integer"}}});
//! // `resource_root` is true at the root of a resource. `named` names the object types for the checker.
//! let self_type = Arc::new(schema::declared_type(&schema, false).unwrap().named("selfType"));
//! let decls = Declarations::new()
//!     .declared("self", &self_type)
//!     .declared("oldSelf", &self_type); // with optionalOldSelf: `declared_optional`
//!
//! let rule = checked("self.replicas <= 5 && self.replicas >= oldSelf.replicas", &decls, &[Type::Bool]).unwrap();
//! assert!(rule.references("oldSelf")); // a transition rule
//! assert!(rule.estimate(&decls).max < knarr_cel::budget::STATIC_RULE_LIMIT); // times the cardinality
//! let program = rule.program().unwrap();
//!
//! let (old, new) = (json!({"replicas": 1}), json!({"replicas": 3}));
//! let mut budget = Budget::default(); // one for all rules of an object
//! let activation = Activation::new()
//!     .with("self", schema::to_value(&new, &self_type).unwrap())
//!     .with("oldSelf", schema::to_value(&old, &self_type).unwrap());
//! assert_eq!(program.evaluate(&activation, &mut budget).unwrap().as_bool(), Some(true));
//! ```
//!
//! A `messageExpression` is compiled the same way, with [`Type::String`]. Stored rules are compiled with
//! [`Declarations::stored`]. `optionalOldSelf` binds `oldSelf` to `Value::none()` or `Value::some(…)`.
//! [`schema::DeclType::max_cardinality`] is the maximum number of values of a type in one request.
//!
//! # An expression of admission
//!
//! ```
//! use knarr_cel::{Activation, Budget, Declarations, Type, compile, schema};
//! use serde_json::json;
//!
//! let decls = Declarations::new()
//!     .variable("object", Type::Dyn)
//!     .variable("request", Type::Dyn)
//!     .variable("authorizer", Type::Opaque("kubernetes.authorization.Authorizer".into()));
//! let program = compile("object.metadata.name.startsWith('a')", &decls, &[Type::Bool]).unwrap();
//! let object = json!({"metadata": {"name": "abc"}});
//! let activation = Activation::new().with("object", schema::dynamic(&object));
//! assert_eq!(program.evaluate(&activation, &mut Budget::default()).unwrap().as_bool(), Some(true));
//! ```
//!
//! [`library::authz::authorizer`] returns the value of `authorizer` for an implementation of
//! [`library::authz::Authorizer`]. `variables` that are computed on first use implement [`LazyFields`].
//!
//! # A device selector of dynamic resource allocation
//!
//! ```
//! use std::collections::BTreeMap;
//! use std::sync::Arc;
//! use knarr_apimachinery::quantity::Quantity;
//! use knarr_cel::{Activation, Budget, Declarations, Key, Str, Type, Value, compile, library};
//! use knarr_cel::schema::DeclType;
//!
//! let domain = || DeclType::map(DeclType::map(DeclType::dynamic(), 32), 32);
//! let device = Arc::new(DeclType::object(
//!     "kubernetes.DRADevice",
//!     [("driver", DeclType::string(63)), ("attributes", domain()), ("capacity", domain())],
//! ));
//! let decls = Declarations::new().with_bindings().declared("device", &device);
//! let selector = "cel.bind(dra, device.capacity['dra.example.com'], dra.memory.isGreaterThan(quantity('1Gi')))";
//! let program = compile(selector, &decls, &[Type::Bool]).unwrap();
//!
//! let key = |s: &'static str| Key::String(Str::Borrowed(s));
//! let memory = library::quantity::of(Quantity::parse("2Gi").unwrap());
//! let domain = Value::map(BTreeMap::from([(key("memory"), memory)]));
//! let capacity = Value::map(BTreeMap::from([(key("dra.example.com"), domain)]));
//! let device = Value::map(BTreeMap::from([(key("driver"), Value::str("x")), (key("capacity"), capacity)]));
//! let activation = Activation::new().with("device", device);
//! assert_eq!(program.evaluate(&activation, &mut Budget::default()).unwrap().as_bool(), Some(true));
//! ```

mod activation;
mod ast;
pub mod budget;
mod checker;
pub mod cost;
mod declarations;
mod error;
pub mod escaping;
mod eval;
mod json;
mod lexer;
pub mod library;
mod macros;
mod opaque;
mod ops;
mod parser;
mod plan;
mod program;
pub mod schema;
pub mod source;
mod stack;
pub mod time;
mod types;
mod unescape;
mod validators;
mod value;

pub use activation::{Activation, LazyFields};
pub use budget::Budget;
pub use cost::estimate::CostRange;
pub use declarations::Declarations;
pub use error::{CompileError, EvalError};
pub use program::{Expression, Program, checked, compile};
pub use types::Type;
pub use value::{Held, Key, List, Map, Object, Str, Value};
