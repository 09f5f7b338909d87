//! A unified diff of the JSON of two objects, for error messages that show what an update changed.

use serde::Serialize;
use serde_json::ser::{PrettyFormatter, Serializer};

const CONTEXT: usize = 3;
/// If the changed middle has more lines than this on either side, it is shown as one block.
const MAX_LINES: usize = 2000;

/// Returns hunks (`@@ -1,7 +1,7 @@`) with three lines of context around each change; empty if nothing differs.
pub fn unified(old: &impl Serialize, new: &impl Serialize) -> String {
    let (old, new) = (pretty(old), pretty(new));
    let (old, new): (Vec<&str>, Vec<&str>) = (old.lines().collect(), new.lines().collect());
    let edits = edits(&old, &new);
    let mut out = String::new();
    for hunk in hunks(&edits) {
        let (before, after) = edits[..hunk.start].iter().fold((0, 0), |(a, b), edit| match edit {
            Edit::Keep(_) => (a + 1, b + 1),
            Edit::Remove(_) => (a + 1, b),
            Edit::Add(_) => (a, b + 1),
        });
        let part = &edits[hunk];
        let removed = part.iter().filter(|e| !matches!(e, Edit::Add(_))).count();
        let added = part.iter().filter(|e| !matches!(e, Edit::Remove(_))).count();
        out.push_str(&format!("@@ -{} +{} @@\n", range(before, removed), range(after, added)));
        for edit in part {
            let (sign, line) = match edit {
                Edit::Keep(line) => (' ', line),
                Edit::Remove(line) => ('-', line),
                Edit::Add(line) => ('+', line),
            };
            out.push(sign);
            out.push_str(line);
            out.push('\n');
        }
    }
    out
}

/// Returns JSON with one field per line, indented by one space.
fn pretty(value: &impl Serialize) -> String {
    let mut out = Vec::new();
    let formatter = PrettyFormatter::with_indent(b" ");
    match value.serialize(&mut Serializer::with_formatter(&mut out, formatter)) {
        Ok(()) => String::from_utf8(out).unwrap_or_default(),
        Err(_) => String::new(),
    }
}

/// Formats the range of a hunk header. Lines count from 1; an empty range names the line before it.
fn range(start: usize, length: usize) -> String {
    match length {
        0 => format!("{start},0"),
        1 => format!("{}", start + 1),
        _ => format!("{},{length}", start + 1),
    }
}

#[derive(Clone, Copy)]
enum Edit<'a> {
    Keep(&'a str),
    Remove(&'a str),
    Add(&'a str),
}

/// Returns the ranges of edits, each with its context; ranges that touch are merged.
fn hunks(edits: &[Edit<'_>]) -> Vec<std::ops::Range<usize>> {
    let mut hunks: Vec<std::ops::Range<usize>> = Vec::new();
    for (i, _) in edits.iter().enumerate().filter(|(_, e)| !matches!(e, Edit::Keep(_))) {
        let (start, end) = (i.saturating_sub(CONTEXT), (i + CONTEXT + 1).min(edits.len()));
        match hunks.last_mut() {
            Some(last) if start <= last.end => last.end = end,
            _ => hunks.push(start..end),
        }
    }
    hunks
}

/// Returns the shortest edit script from `old` to `new`, removals before additions.
fn edits<'a>(old: &[&'a str], new: &[&'a str]) -> Vec<Edit<'a>> {
    let same_start = old.iter().zip(new).take_while(|(a, b)| a == b).count();
    let (old_rest, new_rest) = (&old[same_start..], &new[same_start..]);
    let same_end = old_rest.iter().rev().zip(new_rest.iter().rev()).take_while(|(a, b)| a == b).count();
    let (old_middle, new_middle) =
        (&old_rest[..old_rest.len() - same_end], &new_rest[..new_rest.len() - same_end]);
    let mut out: Vec<Edit<'a>> = old[..same_start].iter().map(|l| Edit::Keep(l)).collect();
    if old_middle.len() > MAX_LINES || new_middle.len() > MAX_LINES {
        out.extend(old_middle.iter().map(|l| Edit::Remove(l)));
        out.extend(new_middle.iter().map(|l| Edit::Add(l)));
    } else {
        middle(old_middle, new_middle, &mut out);
    }
    out.extend(old[old.len() - same_end..].iter().map(|l| Edit::Keep(l)));
    out
}

/// Adds the edits between two texts, from the table of their longest common subsequences.
fn middle<'a>(old: &[&'a str], new: &[&'a str], out: &mut Vec<Edit<'a>>) {
    let width = new.len() + 1;
    let mut common = vec![0u16; (old.len() + 1) * width];
    for i in (0..old.len()).rev() {
        for j in (0..new.len()).rev() {
            common[i * width + j] = if old[i] == new[j] {
                common[(i + 1) * width + j + 1] + 1
            } else {
                common[(i + 1) * width + j].max(common[i * width + j + 1])
            };
        }
    }
    let (mut i, mut j) = (0, 0);
    while i < old.len() || j < new.len() {
        if i < old.len() && j < new.len() && old[i] == new[j] {
            out.push(Edit::Keep(old[i]));
            (i, j) = (i + 1, j + 1);
        } else if j == new.len()
            || (i < old.len() && common[(i + 1) * width + j] >= common[i * width + j + 1])
        {
            out.push(Edit::Remove(old[i]));
            i += 1;
        } else {
            out.push(Edit::Add(new[j]));
            j += 1;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn shows_changes_with_context() {
        let old = json!({"a": 1, "b": 2, "c": 3, "d": 4, "e": 5, "f": 6, "g": 7, "h": 8});
        let mut new = old.clone();
        new["d"] = json!("x");
        assert_eq!(
            unified(&old, &new),
            "@@ -2,7 +2,7 @@\n  \"a\": 1,\n  \"b\": 2,\n  \"c\": 3,\n- \"d\": 4,\n+ \"d\": \"x\",\n  \"e\": 5,\n  \"f\": 6,\n  \"g\": 7,\n"
        );
        assert_eq!(unified(&old, &old), "");
    }

    #[test]
    fn far_changes_are_separate_hunks() {
        let old: Vec<i32> = (0..40).collect();
        let mut new = old.clone();
        new[2] = 100;
        new.remove(30);
        let text = unified(&old, &new);
        assert_eq!(text.matches("@@ -").count(), 2, "{text}");
        assert!(text.contains("+ 100,"), "{text}");
        assert!(text.contains("@@ -29,7 +29,6 @@"), "{text}");
    }
}
