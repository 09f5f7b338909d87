//! Annotations that any code handling a request adds to its audit event.

use std::collections::BTreeMap;
use std::future::Future;
use std::sync::{Arc, Mutex, PoisonError};

/// The maximum number of annotations of one request; more are dropped.
const MAX: usize = 128;

/// The annotations of a request, by key.
pub type Annotations = Arc<Mutex<BTreeMap<String, String>>>;

tokio::task_local! {
    static CURRENT: Annotations;
}

/// Adds an annotation to the request that this task handles; the first value of a key wins. Outside of a request,
/// nothing happens.
pub fn annotate(key: &str, value: &str) {
    // Fails only outside of a request.
    let _ = CURRENT.try_with(|notes| {
        let mut notes = notes.lock().unwrap_or_else(PoisonError::into_inner);
        if notes.len() < MAX {
            notes.entry(key.to_owned()).or_insert_with(|| value.to_owned());
        }
    });
}

/// Runs the work of one request; its annotations are added to `notes`.
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
