//! Shuffle sharding: each flow is dealt its own small hand of queues, so that a busy flow fills only a few queues of
//! any other flow.

use sha2::{Digest, Sha256};

/// The number of hash bits that dealing may use.
const MAX_BITS: f64 = 60.0;

/// Returns the hash of a flow: the schema and its distinguisher (user or namespace).
pub fn hash(schema: &str, flow: &str) -> u64 {
    let mut digest = Sha256::new();
    digest.update(schema.as_bytes());
    digest.update([0]);
    digest.update(flow.as_bytes());
    let bytes: [u8; 32] = digest.finalize().into();
    bytes.iter().take(8).rev().fold(0, |sum, byte| (sum << 8) | u64::from(*byte))
}

/// Returns whether the hash has enough bits to deal a hand of this size from that many queues.
pub fn is_possible(queues: usize, hand: usize) -> bool {
    hand > 0 && hand <= queues && queues <= 1 << 26 && (queues as f64).log2() * hand as f64 <= MAX_BITS
}

/// Returns `hand` different queues of `0..queues`, selected by the hash.
pub fn deal(mut hash: u64, queues: usize, hand: usize) -> Vec<usize> {
    let mut remainders = Vec::with_capacity(hand);
    let mut dealt: Vec<usize> = Vec::with_capacity(hand);
    for i in 0..hand.min(queues) {
        let left = (queues - i) as u64;
        remainders.push((hash % left) as usize);
        hash /= left;
        let mut card = remainders[i];
        for j in (0..i).rev() {
            if card >= remainders[j] {
                card += 1;
            }
        }
        dealt.push(card);
    }
    dealt
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hands_are_of_different_queues_and_repeatable() {
        for n in 0..2000 {
            let hash = hash("schema", &n.to_string());
            let dealt = deal(hash, 64, 6);
            let mut sorted = dealt.clone();
            sorted.sort_unstable();
            sorted.dedup();
            assert_eq!(sorted.len(), 6);
            assert!(sorted.iter().all(|q| *q < 64));
            assert_eq!(dealt, deal(hash, 64, 6));
        }
        assert_eq!(deal(7, 1, 1), [0]);
        // Each permutation of a small deck occurs exactly once.
        let all: std::collections::BTreeSet<Vec<usize>> = (0..24).map(|h| deal(h, 4, 3)).collect();
        assert_eq!(all.len(), 24);
    }

    #[test]
    fn hands_need_enough_hash() {
        assert!(is_possible(64, 6) && is_possible(128, 8));
        assert!(!is_possible(64, 0) && !is_possible(4, 5) && !is_possible(1 << 20, 8));
    }
}
