//! What any code on a request's way wants to have noted in the audit log.

use std::collections::BTreeMap;
use std::future::Future;
use std::sync::{Arc, Mutex, PoisonError};

/// Notes of one request; more are dropped.
const MAX: usize = 128;

/// The notes of a request, by key.
pub type Annotations = Arc<Mutex<BTreeMap<String, String>>>;

tokio::task_local! {
    static CURRENT: Annotations;
}

/// Notes something about the request that this task is working on; the first note under a key stays. Outside of a
/// request nothing happens.
pub fn annotate(key: &str, value: &str) {
    // There is no request to note it for.
    let _ = CURRENT.try_with(|notes| {
        let mut notes = notes.lock().unwrap_or_else(PoisonError::into_inner);
        if notes.len() < MAX {
            notes.entry(key.to_owned()).or_insert_with(|| value.to_owned());
        }
    });
}

/// Runs the work of one request, with its notes going to `notes`.
pub async fn collect<F: Future>(notes: Annotations, work: F) -> F::Output {
    CURRENT.scope(notes, work).await
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn notes_belong_to_one_request() {
        annotate("nobody", "hears");
        let notes = Annotations::default();
        collect(Arc::clone(&notes), async {
            annotate("a", "1");
            annotate("a", "2");
        })
        .await;
        let notes = notes.lock().unwrap();
        assert_eq!(notes.iter().collect::<Vec<_>>(), [(&"a".to_owned(), &"1".to_owned())]);
    }
}
