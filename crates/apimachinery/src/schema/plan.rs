//! The fields of a struct in the order of its protobuf message, with the messages that JSON inlines.

use std::sync::OnceLock;

use crate::schema::{Field, Struct};

/// One field of a message.
#[derive(Debug)]
pub enum Step {
    Field(&'static Field),
    /// A message whose fields JSON inlines into the outer one.
    Inlined(u32, Vec<Step>),
}

impl Step {
    fn number(&self) -> u32 {
        match self {
            Self::Field(field) => field.number,
            Self::Inlined(number, _) => *number,
        }
    }
}

/// The steps of a struct, calculated on first use.
#[derive(Debug)]
pub struct Plan(OnceLock<Vec<Step>>);

impl Plan {
    pub const fn new() -> Self {
        Self(OnceLock::new())
    }
}

/// Returns the steps of a struct, sorted by field number.
pub fn steps(schema: &'static Struct) -> &'static [Step] {
    schema.plan.0.get_or_init(|| {
        let mut steps = Vec::new();
        for field in schema.fields.iter().filter(|f| f.number != 0) {
            place(&mut steps, field, field.inlined);
        }
        steps
    })
}

fn place(steps: &mut Vec<Step>, field: &'static Field, path: &[u32]) {
    let number = path.first().copied().unwrap_or(field.number);
    let at = steps.partition_point(|s| s.number() < number);
    match path.split_first() {
        None => steps.insert(at, Step::Field(field)),
        Some((_, rest)) => {
            if steps.get(at).is_none_or(|s| s.number() != number) {
                steps.insert(at, Step::Inlined(number, Vec::new()));
            }
            if let Some(Step::Inlined(_, inner)) = steps.get_mut(at) {
                place(inner, field, rest);
            }
        }
    }
}

/// Returns the step with this field number.
pub fn find(steps: &'static [Step], number: u32) -> Option<&'static Step> {
    steps.binary_search_by_key(&number, Step::number).ok().map(|at| &steps[at])
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::schema::structs;

    fn count(steps: &[Step]) -> usize {
        let inner = |s: &Step| match s {
            Step::Field(_) => 1,
            Step::Inlined(_, steps) => count(steps),
        };
        steps.iter().map(inner).sum()
    }

    fn ascend(steps: &[Step]) -> bool {
        let inner = |s: &Step| match s {
            Step::Field(_) => true,
            Step::Inlined(_, steps) => ascend(steps),
        };
        steps.is_sorted_by(|a, b| a.number() < b.number()) && steps.iter().all(inner)
    }

    #[test]
    fn every_numbered_field_has_its_place() {
        for schema in structs() {
            let numbered = schema.fields.iter().filter(|f| f.number != 0).count();
            assert_eq!(count(steps(schema)), numbered, "{}", schema.name);
            assert!(ascend(steps(schema)), "{}", schema.name);
        }
    }
}
