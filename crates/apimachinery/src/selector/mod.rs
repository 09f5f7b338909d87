//! Label and field selectors: their text syntax, the typed `LabelSelector`, and matching.
//!
//! Sources: `k8s.io/apimachinery/pkg/labels`, `pkg/fields`, `pkg/apis/meta/v1` (`LabelSelectorAsSelector`).

mod fields;
mod parse;

use std::collections::BTreeMap;
use std::fmt;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::LabelSelector;
use serde_json::Value;

use crate::field::{self, Path};
use crate::names;

pub use fields::{FieldSelector, FieldSelectorError, FieldTerm};

/// Why a label selector is refused, with upstream's error text.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum SelectorError {
    /// The text does not follow the syntax.
    #[error("{0}")]
    Syntax(String),
    /// A requirement in the text is invalid.
    #[error("unable to parse requirement: {0}")]
    Requirement(String),
    /// A key, operator or value of a typed selector is invalid.
    #[error("{0}")]
    Invalid(String),
}

/// The comparison of a requirement.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Operator {
    Equals,
    DoubleEquals,
    NotEquals,
    In,
    NotIn,
    Exists,
    DoesNotExist,
    GreaterThan,
    LessThan,
}

/// One condition on one label.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Requirement {
    key: String,
    operator: Operator,
    values: Vec<String>,
}

impl Requirement {
    /// Creates a requirement; validates key, operator and values.
    pub fn new(key: &str, operator: Operator, values: Vec<String>) -> Result<Self, SelectorError> {
        let errors = Self::problems(key, operator, &values, &Path::default());
        if errors.is_empty() {
            Ok(Self { key: key.to_owned(), operator, values })
        } else {
            Err(SelectorError::Invalid(errors.to_string()))
        }
    }

    /// Returns the problems of a requirement at `path`.
    pub fn problems(key: &str, operator: Operator, values: &[String], path: &Path) -> field::ErrorList {
        let mut errors = field::ErrorList::new();
        if let Some(problem) = joined(names::label_key(key)) {
            errors.push(field::Error::invalid(&path.child("key"), key, problem));
        }
        check_values(operator, values, &path.child("values"), &mut errors);
        for (i, value) in values.iter().enumerate() {
            if let Some(problem) = joined(names::label_value(value)) {
                let path = path.child("values").index(i).key(key);
                errors.push(field::Error::invalid(&path, value.as_str(), problem));
            }
        }
        errors
    }

    pub fn key(&self) -> &str {
        &self.key
    }

    pub fn operator(&self) -> Operator {
        self.operator
    }

    pub fn values(&self) -> &[String] {
        &self.values
    }

    /// Returns whether the requirement holds for this value of its label; `None` means that the label is missing.
    pub fn holds(&self, value: Option<&str>) -> bool {
        let listed = |v: &str| self.values.iter().any(|own| own == v);
        match self.operator {
            Operator::In | Operator::Equals | Operator::DoubleEquals => value.is_some_and(listed),
            Operator::NotIn | Operator::NotEquals => !value.is_some_and(listed),
            Operator::Exists => value.is_some(),
            Operator::DoesNotExist => value.is_none(),
            Operator::GreaterThan => self.numbers(value).is_some_and(|(label, bound)| label > bound),
            Operator::LessThan => self.numbers(value).is_some_and(|(label, bound)| label < bound),
        }
    }

    fn numbers(&self, value: Option<&str>) -> Option<(i64, i64)> {
        Some((value?.parse().ok()?, self.values.first()?.parse().ok()?))
    }
}

fn joined(problems: names::Problems) -> Option<String> {
    (!problems.is_empty()).then(|| problems.join("; "))
}

fn check_values(operator: Operator, values: &[String], path: &Path, errors: &mut field::ErrorList) {
    let problem = match operator {
        Operator::In | Operator::NotIn if values.is_empty() => {
            "for 'in', 'notin' operators, values set can't be empty"
        }
        Operator::Equals | Operator::DoubleEquals | Operator::NotEquals if values.len() != 1 => {
            "exact-match compatibility requires one single value"
        }
        Operator::Exists | Operator::DoesNotExist if !values.is_empty() => {
            "values set must be empty for exists and does not exist"
        }
        Operator::GreaterThan | Operator::LessThan if values.len() != 1 => {
            "for 'Gt', 'Lt' operators, exactly one value is required"
        }
        _ => "",
    };
    if !problem.is_empty() {
        let shown = if values.is_empty() { Value::Null } else { Value::from(values.to_vec()) };
        errors.push(field::Error::invalid(path, shown, problem));
    }
    if matches!(operator, Operator::GreaterThan | Operator::LessThan) {
        for (i, value) in values.iter().enumerate().filter(|(_, v)| v.parse::<i64>().is_err()) {
            let problem = "for 'Gt', 'Lt' operators, the value must be an integer";
            errors.push(field::Error::invalid(&path.index(i), value.as_str(), problem));
        }
    }
}

impl fmt::Display for Requirement {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let key = &self.key;
        let mut values: Vec<&str> = self.values.iter().map(String::as_str).collect();
        values.sort_unstable();
        let values = values.join(",");
        match self.operator {
            Operator::Equals => write!(f, "{key}={values}"),
            Operator::DoubleEquals => write!(f, "{key}=={values}"),
            Operator::NotEquals => write!(f, "{key}!={values}"),
            Operator::In => write!(f, "{key} in ({values})"),
            Operator::NotIn => write!(f, "{key} notin ({values})"),
            Operator::Exists => write!(f, "{key}"),
            Operator::DoesNotExist => write!(f, "!{key}"),
            Operator::GreaterThan => write!(f, "{key}>{values}"),
            Operator::LessThan => write!(f, "{key}<{values}"),
        }
    }
}

/// A label selector: an object must meet all requirements. The default selects everything.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Selector {
    /// Sorted by key.
    requirements: Vec<Requirement>,
    nothing: bool,
}

impl Selector {
    /// Returns a selector that matches every object.
    pub fn everything() -> Self {
        Self::default()
    }

    /// Returns a selector that matches no object.
    pub fn nothing() -> Self {
        Self { requirements: Vec::new(), nothing: true }
    }

    /// Returns a selector with these requirements.
    pub fn new(mut requirements: Vec<Requirement>) -> Self {
        requirements.sort_by(|a, b| a.key.cmp(&b.key));
        Self { requirements, nothing: false }
    }

    /// Parses `a=b,c!=d,e in (x,y),f notin (z),g,!h,i>1,j<2`.
    pub fn parse(text: &str) -> Result<Self, SelectorError> {
        parse::parse(text).map(Self::new)
    }

    /// Returns a selector for these labels, without validation: the selector of a ReplicationController or Service.
    pub fn from_labels(labels: &BTreeMap<String, String>) -> Self {
        let equals = |(key, value): (&String, &String)| Requirement {
            key: key.clone(),
            operator: Operator::Equals,
            values: vec![value.clone()],
        };
        Self::new(labels.iter().map(equals).collect())
    }

    /// Converts the typed form: `None` selects nothing, an empty selector everything.
    pub fn from_label_selector(selector: Option<&LabelSelector>) -> Result<Self, SelectorError> {
        let Some(selector) = selector else { return Ok(Self::nothing()) };
        let mut requirements = Vec::new();
        for (key, value) in selector.match_labels.iter().flatten() {
            requirements.push(Requirement::new(key, Operator::Equals, vec![value.clone()])?);
        }
        for expression in selector.match_expressions.iter().flatten() {
            let operator = match expression.operator.as_str() {
                "In" => Operator::In,
                "NotIn" => Operator::NotIn,
                "Exists" => Operator::Exists,
                "DoesNotExist" => Operator::DoesNotExist,
                other => {
                    let shown = Value::from(other);
                    return Err(SelectorError::Invalid(format!(
                        "{shown} is not a valid label selector operator"
                    )));
                }
            };
            let values = expression.values.clone().unwrap_or_default();
            requirements.push(Requirement::new(&expression.key, operator, values)?);
        }
        Ok(Self::new(requirements))
    }

    /// Returns the requirements, sorted by key.
    pub fn requirements(&self) -> &[Requirement] {
        &self.requirements
    }

    /// Returns whether it selects every object, so that labels need not be checked.
    pub fn is_everything(&self) -> bool {
        self.requirements.is_empty() && !self.nothing
    }

    /// Returns whether it selects no object at all.
    pub fn is_nothing(&self) -> bool {
        self.nothing
    }

    pub fn matches(&self, labels: &BTreeMap<String, String>) -> bool {
        self.matches_with(|key| labels.get(key).map(String::as_str))
    }

    /// Does the same as `matches`, for labels as the API types hold them.
    pub fn matches_optional(&self, labels: Option<&BTreeMap<String, String>>) -> bool {
        self.matches_with(|key| labels?.get(key).map(String::as_str))
    }

    /// Does the same as `matches`, for any lookup of labels.
    pub fn matches_with<'a>(&self, lookup: impl Fn(&str) -> Option<&'a str>) -> bool {
        !self.nothing && self.requirements.iter().all(|r| r.holds(lookup(&r.key)))
    }

    /// Returns the only value that this label may have, if the selector requires one.
    pub fn requires_exact(&self, key: &str) -> Option<&str> {
        let requirement = self.requirements.iter().find(|r| r.key == key)?;
        match (requirement.operator, requirement.values.as_slice()) {
            (Operator::Equals | Operator::DoubleEquals | Operator::In, [one]) => Some(one),
            _ => None,
        }
    }
}

impl fmt::Display for Selector {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (i, requirement) in self.requirements.iter().enumerate() {
            let comma = if i > 0 { "," } else { "" };
            write!(f, "{comma}{requirement}")?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use k8s_openapi::apimachinery::pkg::apis::meta::v1::LabelSelectorRequirement;

    use super::*;

    fn labels(pairs: &[(&str, &str)]) -> BTreeMap<String, String> {
        pairs.iter().map(|(k, v)| ((*k).to_owned(), (*v).to_owned())).collect()
    }

    #[test]
    fn matching() {
        let have = labels(&[("a", "1"), ("b", "x"), ("n", "12")]);
        for (text, expected) in [
            ("", true),
            ("a=1", true),
            ("a==2", false),
            ("a!=2", true),
            ("c!=2", true),
            ("c=", false),
            ("b in (x,y)", true),
            ("b notin (x,y)", false),
            ("c notin (x)", true),
            ("a,b", true),
            ("!a", false),
            ("!c", true),
            ("n>11", true),
            ("n>12", false),
            ("n<13", true),
            ("b>1", false),
            ("c<1", false),
            ("a=1,b=y", false),
        ] {
            let selector = Selector::parse(text).unwrap();
            assert_eq!(selector.matches(&have), expected, "{text}");
        }
        assert!(!Selector::nothing().matches(&have));
        assert!(!Selector::nothing().matches_optional(None));
        assert!(Selector::everything().is_everything() && Selector::everything().matches_optional(None));
        assert_eq!(Selector::parse("b in (x),a!=1").unwrap().requires_exact("b"), Some("x"));
        assert_eq!(Selector::parse("b in (x),a!=1").unwrap().requires_exact("a"), None);
        let service = Selector::from_labels(&labels(&[("app", "web")]));
        assert_eq!(service.to_string(), "app=web");
    }

    #[test]
    fn typed() {
        let expression = |key: &str, operator: &str, values: &[&str]| LabelSelector {
            match_expressions: Some(vec![LabelSelectorRequirement {
                key: key.into(),
                operator: operator.into(),
                values: Some(values.iter().map(|v| (*v).to_owned()).collect()),
            }]),
            match_labels: None,
        };
        let error = |s: &LabelSelector| Selector::from_label_selector(Some(s)).unwrap_err().to_string();
        assert!(Selector::from_label_selector(None).unwrap().is_nothing());
        assert!(Selector::from_label_selector(Some(&LabelSelector::default())).unwrap().is_everything());
        let mut both = expression("tier", "In", &["b", "a"]);
        both.match_labels = Some(labels(&[("z", "1"), ("app", "web")]));
        let selector = Selector::from_label_selector(Some(&both)).unwrap();
        assert_eq!(selector.to_string(), "app=web,tier in (a,b),z=1");
        assert_eq!(
            error(&expression("a", "In", &[])),
            "values: Invalid value: null: for 'in', 'notin' operators, values set can't be empty"
        );
        assert_eq!(error(&expression("a", "Foo", &[])), "\"Foo\" is not a valid label selector operator");
        assert_eq!(
            error(&expression("a", "Exists", &["x"])),
            "values: Invalid value: [\"x\"]: values set must be empty for exists and does not exist"
        );
        assert!(
            error(&expression("a b", "Exists", &[])).starts_with("key: Invalid value: \"a b\": name part")
        );
        assert!(
            error(&expression("a", "In", &["-x"])).starts_with("values[0][a]: Invalid value: \"-x\": a ")
        );
    }
}
