//! Checks that revisions are unique for each write and grow with time.

use std::collections::HashMap;

use super::history::{Answer, History, Nanos, Revision};

/// An answer with a revision, and the times of its request.
struct Answered {
    revision: Revision,
    call: Nanos,
    end: Nanos,
    is_write: bool,
    what: String,
}

/// Returns the violations, a sentence each.
pub fn check(history: &History) -> Vec<String> {
    let mut answered = answered(history);
    let mut wrong = repeated(&answered);
    // Sorted by the call: when a request begins, the revision of everything that has ended is not above its
    // own.
    answered.sort_by_key(|t| t.call);
    let mut by_end: Vec<usize> = (0..answered.len()).filter(|i| answered[*i].is_write).collect();
    by_end.sort_by_key(|i| answered[*i].end);
    let (mut ended, mut newest) = (0, None::<usize>);
    for later in &answered {
        while ended < by_end.len() && answered[by_end[ended]].end < later.call {
            let index = by_end[ended];
            if newest.is_none_or(|n| answered[n].revision < answered[index].revision) {
                newest = Some(index);
            }
            ended += 1;
        }
        let Some(earlier) = newest.map(|n| &answered[n]) else { continue };
        let back =
            earlier.revision > later.revision || (later.is_write && earlier.revision == later.revision);
        if back {
            wrong.push(format!(
                "{} at revision {} came after {} at revision {} was answered",
                later.what, later.revision, earlier.what, earlier.revision
            ));
        }
    }
    wrong
}

fn answered(history: &History) -> Vec<Answered> {
    let writes = history.ops.iter().filter_map(|op| match op.answer {
        Answer::Wrote(revision) => Some(Answered {
            revision,
            call: op.call,
            end: op.end,
            is_write: true,
            what: format!("the write of {} to {}", op.request.value().unwrap_or_default(), op.key),
        }),
        _ => None,
    });
    let lists = history.lists.iter().map(|list| Answered {
        revision: list.revision,
        call: list.call,
        end: list.end,
        is_write: false,
        what: format!("a list of {}", list.resource),
    });
    writes.chain(lists).collect()
}

fn repeated(answered: &[Answered]) -> Vec<String> {
    let mut first: HashMap<Revision, &Answered> = HashMap::new();
    let mut wrong = Vec::new();
    for write in answered.iter().filter(|t| t.is_write) {
        if let Some(other) = first.insert(write.revision, write) {
            wrong.push(format!("{} and {} have the revision {}", other.what, write.what, write.revision));
        }
    }
    wrong
}
