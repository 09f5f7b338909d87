//! Whether revisions are unique for each write and grow with time.

use std::collections::HashMap;

use super::history::{Answer, History, Nanos, Revision};

/// Something with a revision that was asked for and answered.
struct Told {
    revision: Revision,
    call: Nanos,
    end: Nanos,
    is_write: bool,
    what: String,
}

/// What is wrong, a sentence each.
pub fn check(history: &History) -> Vec<String> {
    let mut told = told(history);
    let mut wrong = repeated(&told);
    // By the call: when one begins, everything that ended before it has a revision that is not above its own.
    told.sort_by_key(|t| t.call);
    let mut by_end: Vec<usize> = (0..told.len()).filter(|i| told[*i].is_write).collect();
    by_end.sort_by_key(|i| told[*i].end);
    let (mut ended, mut newest) = (0, None::<usize>);
    for later in &told {
        while ended < by_end.len() && told[by_end[ended]].end < later.call {
            let index = by_end[ended];
            if newest.is_none_or(|n| told[n].revision < told[index].revision) {
                newest = Some(index);
            }
            ended += 1;
        }
        let Some(earlier) = newest.map(|n| &told[n]) else { continue };
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

fn told(history: &History) -> Vec<Told> {
    let writes = history.ops.iter().filter_map(|op| match op.answer {
        Answer::Wrote(revision) => Some(Told {
            revision,
            call: op.call,
            end: op.end,
            is_write: true,
            what: format!("the write of {} to {}", op.request.value().unwrap_or_default(), op.key),
        }),
        _ => None,
    });
    let lists = history.lists.iter().map(|list| Told {
        revision: list.revision,
        call: list.call,
        end: list.end,
        is_write: false,
        what: format!("a list of {}", list.resource),
    });
    writes.chain(lists).collect()
}

fn repeated(told: &[Told]) -> Vec<String> {
    let mut first: HashMap<Revision, &Told> = HashMap::new();
    let mut wrong = Vec::new();
    for write in told.iter().filter(|t| t.is_write) {
        if let Some(other) = first.insert(write.revision, write) {
            wrong.push(format!("{} and {} have the revision {}", other.what, write.what, write.revision));
        }
    }
    wrong
}
