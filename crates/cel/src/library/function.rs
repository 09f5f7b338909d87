//! The functions of a library.

use crate::budget::Budget;
use crate::error::EvalError;
use crate::value::Value;

/// Computes a call. [`EvalError::NoSuchOverload`] if it does not accept the values.
pub type Call = for<'a> fn(&[Value<'a>], &mut Budget<'_>) -> Result<Value<'a>, EvalError>;

/// One function of a library; several libraries may add to one function.
pub struct Function {
    pub name: &'static str,
    /// The id and signature of each overload: `string.(string,int)bool` for a method of strings.
    pub overloads: &'static [(&'static str, &'static str)],
    pub call: Call,
}
