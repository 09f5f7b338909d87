//! What becomes of an object, given the state of its owners.

use super::identity::{FOREGROUND, Meta, ORPHAN, Uid};

/// What an owner reference refers to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Owner {
    /// An object that keeps its dependents.
    Solid,
    /// Nothing: the owner does not exist.
    Dangling,
    /// An object whose deletion waits until its dependents are gone.
    Waiting,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Verdict {
    Keep,
    /// It has a living owner: only the references to these others go.
    Unreference(Vec<Uid>),
    /// Its owners wait, and it has dependents of its own: these first. `unblock` breaks a circle of waiting.
    DeleteInForeground {
        unblock: bool,
    },
    /// With this propagation policy.
    Delete(&'static str),
}

/// How an object stands in the graph.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Standing {
    pub has_dependents: bool,
    /// One of the dependents waits for its own dependents.
    pub dependent_waits: bool,
}

/// Decides from the owner references in `meta`, whose states are `owners`, in the same order.
pub fn decide(meta: &Meta, owners: &[Owner], standing: Standing) -> Verdict {
    let has = |state| owners.contains(&state);
    if owners.is_empty() {
        return Verdict::Keep;
    }
    if has(Owner::Solid) {
        let others = meta.owners.iter().zip(owners).filter(|(_, state)| **state != Owner::Solid);
        let others: Vec<Uid> = others.map(|(reference, _)| reference.uid.clone()).collect();
        return if others.is_empty() { Verdict::Keep } else { Verdict::Unreference(others) };
    }
    if has(Owner::Waiting) && standing.has_dependents {
        return Verdict::DeleteInForeground { unblock: standing.dependent_waits };
    }
    // What somebody has asked for already is honoured.
    Verdict::Delete(if meta.has_finalizer(ORPHAN) {
        "Orphan"
    } else if meta.has_finalizer(FOREGROUND) {
        "Foreground"
    } else {
        "Background"
    })
}

#[cfg(test)]
mod tests {
    use super::super::identity::Reference;
    use super::*;

    #[test]
    fn owners_decide() {
        use Owner::{Dangling, Solid, Waiting};
        let reference = |i: usize| Reference {
            api_version: "v1".into(),
            kind: "K".into(),
            name: "n".into(),
            uid: i.to_string().into(),
            controller: false,
            blocks: false,
        };
        let leaf = Standing::default();
        let inner = Standing { has_dependents: true, dependent_waits: false };
        let circle = Standing { has_dependents: true, dependent_waits: true };
        let table: [(&[Owner], Standing, &[&str], Verdict); 10] = [
            (&[], leaf, &[], Verdict::Keep),
            (&[Solid], leaf, &[], Verdict::Keep),
            (&[Solid, Dangling, Waiting], inner, &[], Verdict::Unreference(vec!["1".into(), "2".into()])),
            (&[Dangling], leaf, &[], Verdict::Delete("Background")),
            (&[Dangling], inner, &[], Verdict::Delete("Background")),
            (&[Dangling], leaf, &[ORPHAN], Verdict::Delete("Orphan")),
            (&[Dangling], leaf, &[FOREGROUND], Verdict::Delete("Foreground")),
            (&[Waiting], leaf, &[], Verdict::Delete("Background")),
            (&[Waiting, Dangling], inner, &[], Verdict::DeleteInForeground { unblock: false }),
            (&[Waiting], circle, &[], Verdict::DeleteInForeground { unblock: true }),
        ];
        for (owners, standing, finalizers, expected) in table {
            let meta = Meta {
                owners: (0..owners.len()).map(reference).collect(),
                finalizers: finalizers.iter().map(|f| (*f).to_owned()).collect(),
                ..Meta::default()
            };
            assert_eq!(decide(&meta, owners, standing), expected, "{owners:?} {standing:?}");
        }
    }
}
