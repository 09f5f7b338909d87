//! Completion indexes in their text form, `1,3-5,7`: validation and counting.

/// Returns the number of indexes in the text, all below `completions`; the error says what is malformed.
pub fn count(text: &str, completions: i32) -> Result<i32, String> {
    let (mut last, mut total) = (None, 0i32);
    if text.is_empty() {
        return Ok(0);
    }
    for part in text.split(',') {
        let (first, end) = interval(part, completions)?;
        if let Some(last) = last.filter(|last| *last >= first) {
            return Err(format!("non-increasing order, previous: {last}, current: {first}"));
        }
        total = total.saturating_add(end.saturating_sub(first).saturating_add(1));
        last = Some(end);
    }
    Ok(total)
}

/// Parses the first and last index of `3-5` or `7`.
fn interval(text: &str, completions: i32) -> Result<(i32, i32), String> {
    let mut parts = text.split('-');
    let (first, end) = match (parts.next().unwrap_or(""), parts.next(), parts.next()) {
        (first, end, None) => (first, end),
        _ => {
            return Err(format!(
                "the fragment {text:?} violates the requirement that an index interval can have at most two parts separated by '-'"
            ));
        }
    };
    let first = index(first, completions)?;
    let Some(end) = end else { return Ok((first, first)) };
    let end = index(end, completions)?;
    if first >= end {
        return Err(format!("non-increasing order, previous: {first}, current: {end}"));
    }
    Ok((first, end))
}

fn index(text: &str, completions: i32) -> Result<i32, String> {
    let number: i64 =
        text.parse().map_err(|_| format!("cannot convert string to integer for index: {text:?}"))?;
    match i32::try_from(number) {
        Ok(number) if number < completions => Ok(number),
        _ => Err(format!("too large index: {text:?}")),
    }
}

/// Returns an index that is in both texts, if any; skips malformed intervals.
pub fn overlap(completed: &str, failed: &str, completions: i32) -> Option<i32> {
    let read = |text: &str| -> Vec<(i32, i32)> {
        text.split(',').filter_map(|part| interval(part, completions).ok()).collect()
    };
    let (completed, failed) = (read(completed), read(failed));
    let (mut c, mut f) = (0, 0);
    while let (Some(done), Some(lost)) = (completed.get(c), failed.get(f)) {
        if done.0 <= lost.1 && lost.0 <= done.1 {
            return Some(done.0.max(lost.0));
        }
        if done.0 <= lost.0 { c += 1 } else { f += 1 }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts() {
        for (text, expected) in [
            ("", Ok(0)),
            ("1,3-5,7", Ok(5)),
            ("3,1", Err("non-increasing order, previous: 3, current: 1")),
            ("5-3", Err("non-increasing order, previous: 5, current: 3")),
            ("1-2-3", Err("at most two parts")),
            ("x", Err("cannot convert string to integer for index: \"x\"")),
            ("10", Err("too large index: \"10\"")),
            ("99999999999", Err("too large index")),
        ] {
            match (count(text, 10), expected) {
                (Ok(n), Ok(m)) => assert_eq!(n, m, "{text}"),
                (Err(why), Err(part)) => assert!(why.contains(part), "{text}: {why}"),
                (got, _) => panic!("{text}: {got:?}"),
            }
        }
    }

    #[test]
    fn overlaps() {
        assert_eq!(overlap("1,3-5", "4-6", 10), Some(4));
        assert_eq!(overlap("1,3-5", "2,6-9", 10), None);
        assert_eq!(overlap("x,3", "3", 10), Some(3));
    }
}
