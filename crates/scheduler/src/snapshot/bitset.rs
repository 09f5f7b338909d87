//! A set of node indexes as bits.

use super::NodeIdx;

/// A bit set of nodes; grows as bits are set.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct BitSet {
    words: Vec<u64>,
}

impl BitSet {
    /// The set of `0..len`.
    pub fn full(len: usize) -> Self {
        let mut words = vec![u64::MAX; len / 64];
        if !len.is_multiple_of(64) {
            words.push((1 << (len % 64)) - 1);
        }
        Self { words }
    }

    /// Adds the node to the set or removes it.
    pub fn set(&mut self, at: NodeIdx, on: bool) {
        let (word, bit) = (at as usize / 64, at % 64);
        if word >= self.words.len() {
            if !on {
                return;
            }
            self.words.resize(word + 1, 0);
        }
        if on {
            self.words[word] |= 1 << bit;
        } else {
            self.words[word] &= !(1 << bit);
        }
    }

    pub fn contains(&self, at: NodeIdx) -> bool {
        self.words.get(at as usize / 64).is_some_and(|word| word >> (at % 64) & 1 == 1)
    }

    pub fn count(&self) -> usize {
        self.words.iter().map(|word| word.count_ones() as usize).sum()
    }

    pub fn is_empty(&self) -> bool {
        self.words.iter().all(|word| *word == 0)
    }

    /// The members at or after `from`, in order.
    pub fn iter_from(&self, from: NodeIdx) -> impl Iterator<Item = NodeIdx> + '_ {
        let mut at = from as usize / 64;
        let mut word = self.words.get(at).map_or(0, |w| w & (u64::MAX << (from % 64)));
        std::iter::from_fn(move || {
            while word == 0 {
                at += 1;
                word = *self.words.get(at)?;
            }
            let bit = word.trailing_zeros();
            word &= word - 1;
            Some(at as NodeIdx * 64 + bit)
        })
    }

    pub fn iter(&self) -> impl Iterator<Item = NodeIdx> + '_ {
        self.iter_from(0)
    }

    /// All members once, starting at `start` and wrapping around.
    pub fn iter_round(&self, start: NodeIdx) -> impl Iterator<Item = NodeIdx> + '_ {
        self.iter_from(start).chain(self.iter().take_while(move |at| *at < start))
    }
}

impl FromIterator<NodeIdx> for BitSet {
    fn from_iter<I: IntoIterator<Item = NodeIdx>>(members: I) -> Self {
        let mut set = Self::default();
        members.into_iter().for_each(|at| set.set(at, true));
        set
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn members_come_in_order_from_any_start() {
        let set: BitSet = [0, 5, 63, 64, 200].into_iter().collect();
        assert_eq!(set.iter().collect::<Vec<_>>(), [0, 5, 63, 64, 200]);
        assert_eq!(set.iter_from(6).collect::<Vec<_>>(), [63, 64, 200]);
        assert_eq!(set.iter_round(64).collect::<Vec<_>>(), [64, 200, 0, 5, 63]);
        assert_eq!(set.iter_round(1000).count(), 5);
        assert_eq!(
            (set.count(), set.contains(5), set.contains(6), set.contains(9999)),
            (5, true, false, false)
        );
    }

    #[test]
    fn full_sets_have_exactly_their_members() {
        for len in [0, 1, 63, 64, 65, 130] {
            assert_eq!(BitSet::full(len).iter().count(), len, "{len}");
        }
        let mut set = BitSet::full(3);
        set.set(1, false);
        set.set(500, false);
        assert_eq!(set.iter().collect::<Vec<_>>(), [0, 2]);
    }
}
