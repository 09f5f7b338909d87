//! How a library offers a function.

use crate::budget::Budget;
use crate::error::EvalError;
use crate::value::Value;

/// Computes a call. [`EvalError::NoSuchOverload`] if the values are not for it.
pub type Call = for<'a> fn(&[Value<'a>], &mut Budget<'_>) -> Result<Value<'a>, EvalError>;

/// One function of a library; several libraries may add to one function.
pub struct Function {
    pub name: &'static str,
    /// Id and signature of each overload: `string.(string,int)bool` for a method of strings.
    pub overloads: &'static [(&'static str, &'static str)],
    pub call: Call,
}
