//! Resolves the host names in probes and hooks.
//!
//! The system's resolver blocks a thread until the name servers answer, and pods choose the names. So concurrent
//! lookups of one name share a query, few queries run at the same time, and the others wait without a thread.

use std::collections::BTreeMap;
use std::io;
use std::net::{IpAddr, SocketAddr, ToSocketAddrs};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::{Semaphore, watch};

/// The number of concurrent lookups, and of names that may wait for one.
const MAX_LOOKUPS: usize = 8;
const MAX_WAITING: usize = 256;

type Answer = Result<Vec<IpAddr>, String>;
type Lookup = dyn Fn(&str) -> io::Result<Vec<IpAddr>> + Send + Sync;

pub struct HostNames {
    lookup: Arc<Lookup>,
    turns: Arc<Semaphore>,
    asked: Arc<Mutex<BTreeMap<String, watch::Receiver<Option<Answer>>>>>,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl HostNames {
    /// Creates a resolver that uses the system's.
    pub fn of_the_system() -> Self {
        Self::new(|name| Ok((name, 0).to_socket_addrs()?.map(|address| address.ip()).collect()))
    }

    fn new(lookup: impl Fn(&str) -> io::Result<Vec<IpAddr>> + Send + Sync + 'static) -> Self {
        let turns = Arc::new(Semaphore::new(MAX_LOOKUPS));
        Self { lookup: Arc::new(lookup), turns, asked: Arc::default() }
    }

    /// Returns the addresses of a host. An IP address is returned without a lookup.
    pub async fn addresses(&self, host: &str, port: u16) -> Result<Vec<SocketAddr>, String> {
        let found = match host.parse::<IpAddr>() {
            Ok(ip) => vec![ip],
            Err(_) => self.look_up(host).await?,
        };
        Ok(found.into_iter().map(|ip| SocketAddr::new(ip, port)).collect())
    }

    async fn look_up(&self, name: &str) -> Answer {
        let mut answer = {
            let mut asked = lock(&self.asked);
            match asked.get(name) {
                // A lookup whose task has ended without an answer is started again.
                Some(answer) if answer.has_changed().is_ok() => answer.clone(),
                _ if asked.len() >= MAX_LOOKUPS + MAX_WAITING => {
                    return Err("too many host names are being looked up".to_owned());
                }
                _ => {
                    let answer = self.start(name.to_owned());
                    asked.insert(name.to_owned(), answer.clone());
                    answer
                }
            }
        };
        match answer.wait_for(Option::is_some).await {
            Ok(found) => found.clone().unwrap_or_else(|| Err("no answer".to_owned())),
            Err(_) => Err("the lookup ended without an answer".to_owned()),
        }
    }

    fn start(&self, name: String) -> watch::Receiver<Option<Answer>> {
        let (found, answer) = watch::channel(None);
        let (lookup, turns, asked) =
            (Arc::clone(&self.lookup), Arc::clone(&self.turns), Arc::clone(&self.asked));
        tokio::spawn(async move {
            // Acquiring cannot fail: the semaphore is never closed.
            let _turn = turns.acquire().await;
            {
                let mut asked = lock(&asked);
                if found.receiver_count() <= 1 {
                    // No caller waits for this name any more.
                    asked.remove(&name);
                    return;
                }
            }
            let wanted = name.clone();
            let result = tokio::task::spawn_blocking(move || lookup(&wanted)).await;
            lock(&asked).remove(&name);
            let result = result.unwrap_or_else(|error| Err(io::Error::other(error)));
            let _ = found.send(Some(result.map_err(|error| error.to_string())));
        });
        answer
    }
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;
    use std::sync::atomic::{AtomicUsize, Ordering};

    use futures_util::future::join_all;

    use super::*;

    const LOCALHOST: IpAddr = IpAddr::V4(Ipv4Addr::LOCALHOST);

    #[tokio::test]
    async fn a_name_is_looked_up_once_for_all_who_ask() {
        let count = Arc::new(AtomicUsize::new(0));
        let counted = Arc::clone(&count);
        let names = HostNames::new(move |name| match name {
            "missing" => Err(io::Error::other("no such host")),
            _ => {
                counted.fetch_add(1, Ordering::Relaxed);
                Ok(vec![LOCALHOST])
            }
        });
        let all = join_all((0..50).map(|_| names.addresses("web.example", 80))).await;
        assert!(all.iter().all(|found| *found == Ok(vec![SocketAddr::new(LOCALHOST, 80)])), "{all:?}");
        assert_eq!(count.load(Ordering::Relaxed), 1);
        assert_eq!(names.addresses("missing", 80).await, Err("no such host".to_owned()));
        assert_eq!(names.addresses("::1", 80).await, Ok(vec!["[::1]:80".parse().unwrap()]));
        assert!(lock(&names.asked).is_empty());
        names.addresses("web.example", 80).await.unwrap();
        assert_eq!(count.load(Ordering::Relaxed), 2, "answers are not cached");
    }

    #[tokio::test]
    async fn what_nobody_waits_for_is_not_looked_up() {
        let names = HostNames::new(|_| panic!("looked up"));
        let turns = Arc::clone(&names.turns).acquire_many_owned(MAX_LOOKUPS as u32).await.unwrap();
        let given_up = names.addresses("slow", 80);
        assert!(futures_util::FutureExt::now_or_never(given_up).is_none());
        drop(turns);
        while !lock(&names.asked).is_empty() {
            tokio::task::yield_now().await;
        }
    }

    #[tokio::test]
    async fn names_that_hang_take_few_threads() {
        let (running, most) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
        let (release, held) = std::sync::mpsc::channel::<()>();
        let (held, most_seen) = (Mutex::new(held), Arc::clone(&most));
        let names = Arc::new(HostNames::new(move |_| {
            let now = running.fetch_add(1, Ordering::SeqCst) + 1;
            most_seen.fetch_max(now, Ordering::SeqCst);
            let _ = lock(&held).recv();
            running.fetch_sub(1, Ordering::SeqCst);
            Ok(vec![LOCALHOST])
        }));
        let mut asked = tokio::task::JoinSet::new();
        for n in 0..MAX_LOOKUPS + MAX_WAITING {
            let names = Arc::clone(&names);
            asked.spawn(async move { names.addresses(&format!("name-{n}"), 80).await });
        }
        while lock(&names.asked).len() < MAX_LOOKUPS + MAX_WAITING || names.turns.available_permits() > 0 {
            tokio::task::yield_now().await;
        }
        let refused = names.addresses("one-more", 80).await;
        assert_eq!(refused, Err("too many host names are being looked up".to_owned()));
        drop(release);
        while let Some(found) = asked.join_next().await {
            assert_eq!(found.unwrap(), Ok(vec![SocketAddr::new(LOCALHOST, 80)]));
        }
        assert!(most.load(Ordering::SeqCst) <= MAX_LOOKUPS, "{most:?}");
    }
}
