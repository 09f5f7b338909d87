//! Sets of completion indexes, serialized as `0-3,5`.

use std::fmt;

/// Sorted ranges, both ends inclusive, that neither touch nor overlap.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Indexes(Vec<(i32, i32)>);

impl Indexes {
    /// Parses the text of a status or a rule. Parts that are not numbers, and indexes from `limit` on, are ignored.
    pub fn parse(text: &str, limit: i32) -> Self {
        let number = |part: &str| part.trim().parse::<i32>().ok().filter(|n| *n >= 0);
        let ranges = text.split(',').filter_map(|part| {
            let (first, last) = part.split_once('-').unwrap_or((part, part));
            let (first, last) = (number(first)?, number(last)?.min(limit - 1));
            (first <= last).then_some((first, last))
        });
        Self::of_ranges(ranges.collect())
    }

    fn of_ranges(mut ranges: Vec<(i32, i32)>) -> Self {
        ranges.sort_unstable();
        let mut merged: Vec<(i32, i32)> = Vec::with_capacity(ranges.len());
        for (first, last) in ranges {
            match merged.last_mut() {
                Some(end) if first <= end.1.saturating_add(1) => end.1 = end.1.max(last),
                _ => merged.push((first, last)),
            }
        }
        Self(merged)
    }

    /// Returns the set with these indexes added.
    pub fn with(&self, more: impl IntoIterator<Item = i32>) -> Self {
        Self::of_ranges(self.0.iter().copied().chain(more.into_iter().map(|n| (n, n))).collect())
    }

    pub fn contains(&self, index: i32) -> bool {
        self.0
            .binary_search_by(|(first, last)| {
                if *last < index {
                    std::cmp::Ordering::Less
                } else if *first > index {
                    std::cmp::Ordering::Greater
                } else {
                    std::cmp::Ordering::Equal
                }
            })
            .is_ok()
    }

    pub fn len(&self) -> i32 {
        self.0.iter().map(|(first, last)| last - first + 1).sum()
    }

    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Returns how many indexes are in both sets.
    pub fn common(&self, other: &Self) -> i32 {
        let overlap = |a: &(i32, i32), b: &(i32, i32)| (a.1.min(b.1) - a.0.max(b.0) + 1).max(0);
        self.0.iter().map(|a| other.0.iter().map(|b| overlap(a, b)).sum::<i32>()).sum()
    }
}

impl fmt::Display for Indexes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (i, (first, last)) in self.0.iter().enumerate() {
            let comma = if i > 0 { "," } else { "" };
            match last - first {
                0 => write!(f, "{comma}{first}")?,
                1 => write!(f, "{comma}{first},{last}")?,
                _ => write!(f, "{comma}{first}-{last}")?,
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_are_read_merged_and_written() {
        for (text, limit, written, len) in [
            ("", 10, "", 0),
            ("0-3,5", 10, "0-3,5", 5),
            ("1,2,0", 10, "0-2", 3),
            ("1,2", 10, "1,2", 2),
            ("3-9", 5, "3,4", 2),
            ("x,7-,4", 10, "4", 1),
        ] {
            let set = Indexes::parse(text, limit);
            assert_eq!((set.to_string().as_str(), set.len()), (written, len), "{text}");
        }
        let set = Indexes::parse("0-3,7", 10).with([5, 4, 9]);
        assert_eq!(set.to_string(), "0-5,7,9");
        assert!(set.contains(5) && !set.contains(6));
        assert_eq!(set.common(&Indexes::parse("2-8", 10)), 5);
    }
}
