//! Limits concurrent image pulls, with fairness between namespaces.
//!
//! Users choose the registries, and a slow registry occupies its turn for long. So turns go to the namespaces with
//! the fewest pulls first, and a namespace without pulls does not wait for others that occupy all of the usual
//! turns.

use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::oneshot;

/// The number of concurrent pulls, unless images are pulled one by one.
const PARALLEL: usize = 5;
/// The number of additional pulls, for namespaces without a running pull.
const SPARE: usize = 15;

/// Decides which pulls may run at the same time.
pub struct PullTurns {
    parallel: usize,
    spare: usize,
    queue: Mutex<Queue>,
}

#[derive(Default)]
struct Queue {
    /// The number of running pulls by namespace.
    running: BTreeMap<String, usize>,
    /// In the order of their arrival.
    waiting: VecDeque<Waiting>,
}

struct Waiting {
    namespace: String,
    granted: oneshot::Sender<Turn>,
}

/// The permission to pull, released when it is dropped.
pub struct Turn {
    turns: Arc<PullTurns>,
    namespace: String,
}

impl PullTurns {
    pub fn new(one_by_one: bool) -> Self {
        let (parallel, spare) = if one_by_one { (1, 0) } else { (PARALLEL, SPARE) };
        Self { parallel, spare, queue: Mutex::default() }
    }

    fn lock(&self) -> MutexGuard<'_, Queue> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits until a pull of the namespace may begin.
    pub async fn turn(self: &Arc<Self>, namespace: &str) -> Turn {
        loop {
            let (granted, turn) = oneshot::channel();
            self.lock().waiting.push_back(Waiting { namespace: namespace.to_owned(), granted });
            self.grant();
            // A turn is never dropped unused while a caller waits.
            if let Ok(turn) = turn.await {
                return turn;
            }
        }
    }

    fn grant(self: &Arc<Self>) {
        loop {
            let (granted, namespace) = {
                let mut queue = self.lock();
                queue.waiting.retain(|waiting| !waiting.granted.is_closed());
                let Some(next) = queue.next(self.parallel, self.spare) else { return };
                let Some(Waiting { namespace, granted }) = queue.waiting.remove(next) else { return };
                *queue.running.entry(namespace.clone()).or_default() += 1;
                (granted, namespace)
            };
            // If the caller was cancelled meanwhile, the turn is released at once.
            let _ = granted.send(Turn { turns: Arc::clone(self), namespace });
        }
    }
}

impl Queue {
    /// Returns the index of the waiting pull that may begin: of the namespace with the fewest pulls the first one.
    fn next(&self, parallel: usize, spare: usize) -> Option<usize> {
        let own = |waiting: &Waiting| self.running.get(&waiting.namespace).copied().unwrap_or(0);
        let (index, next) = self.waiting.iter().enumerate().min_by_key(|(_, waiting)| own(waiting))?;
        let room = if own(next) == 0 { parallel + spare } else { parallel };
        (self.running.values().sum::<usize>() < room).then_some(index)
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        let mut queue = self.turns.lock();
        match queue.running.get_mut(&self.namespace) {
            Some(count @ 2..) => *count -= 1,
            _ => drop(queue.running.remove(&self.namespace)),
        }
        drop(queue);
        self.turns.grant();
    }
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt;

    use super::*;

    /// Returns the turn if it is available without waiting.
    fn at_once(turns: &Arc<PullTurns>, namespace: &str) -> Option<Turn> {
        turns.turn(namespace).now_or_never()
    }

    #[test]
    fn a_namespace_that_holds_all_turns_keeps_nobody_else_waiting() {
        let turns = Arc::new(PullTurns::new(false));
        let held: Vec<Turn> = (0..PARALLEL).filter_map(|_| at_once(&turns, "slow")).collect();
        assert_eq!(held.len(), PARALLEL);
        assert!(at_once(&turns, "slow").is_none());
        let other = at_once(&turns, "other").expect("a namespace without a pull waits");
        assert!(at_once(&turns, "other").is_none(), "its second one waits as all do");
        drop(other);
        let many: Vec<Turn> = (0..100).filter_map(|n| at_once(&turns, &format!("ns-{n}"))).collect();
        assert_eq!(many.len(), SPARE);
        drop((held, many));
        assert!(turns.lock().running.is_empty() && turns.lock().waiting.is_empty());
    }

    #[tokio::test]
    async fn who_has_fewest_comes_first() {
        let turns = Arc::new(PullTurns::new(true));
        let first = at_once(&turns, "a").unwrap();
        let (mut second, mut third) = (Box::pin(turns.turn("a")), Box::pin(turns.turn("b")));
        assert!(second.as_mut().now_or_never().is_none() && third.as_mut().now_or_never().is_none());
        drop(first);
        let second = second.await;
        assert!(third.as_mut().now_or_never().is_none(), "one by one");
        drop(second);
        drop(third.await);

        let turns = Arc::new(PullTurns { parallel: 2, spare: 0, queue: Mutex::default() });
        let (first, _second) = (at_once(&turns, "a").unwrap(), at_once(&turns, "a").unwrap());
        let (mut third, mut fourth) = (Box::pin(turns.turn("a")), Box::pin(turns.turn("b")));
        assert!(third.as_mut().now_or_never().is_none() && fourth.as_mut().now_or_never().is_none());
        drop(first);
        assert!(third.as_mut().now_or_never().is_none(), "the namespace has one already");
        let _fourth = fourth.await;
    }

    #[test]
    fn who_no_longer_waits_gets_no_turn() {
        let turns = Arc::new(PullTurns::new(true));
        let first = at_once(&turns, "a");
        let given_up = at_once(&turns, "b");
        assert!(given_up.is_none());
        drop(first);
        assert!(at_once(&turns, "c").is_some());
    }
}
