//! Decides what to do with an object, given the state of its owners.

use super::identity::{FOREGROUND, Meta, ORPHAN, Uid};

/// The state of the object that an owner reference names.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Owner {
    /// The owner exists and keeps its dependents.
    Solid,
    /// The owner does not exist.
    Dangling,
    /// The owner is in foreground deletion, which waits until its dependents are gone.
    Waiting,
}

/// What to do with an object.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Verdict {
    Keep,
    /// The object has a living owner: only the references to these other owners are removed.
    Unreference(Vec<Uid>),
    /// Its owners wait, and it has dependents of its own, which are deleted first. `unblock` breaks a cycle of
    /// waiting objects.
    DeleteInForeground {
        unblock: bool,
    },
    /// Delete it with this propagation policy.
    Delete(&'static str),
}

/// The object's dependents in the graph.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Standing {
    pub has_dependents: bool,
    /// One of the dependents waits for its own dependents.
    pub dependent_waits: bool,
}

/// Decides from the owner references in `meta`; `owners` are their states in the same order.
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
    // A propagation policy that a client requested earlier is kept.
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
