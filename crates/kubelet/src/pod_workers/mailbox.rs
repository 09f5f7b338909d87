//! The mailbox of a pod's worker: it holds the newest version of the pod, and replaces older ones.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use k8s_openapi::api::core::v1::{Pod, PodCondition};
use tokio::sync::{Notify, watch};
use tokio_util::sync::CancellationToken;

use crate::pod;
use crate::status::is_ours;

struct Mail {
    pod: Arc<Pod>,
    deleted: bool,
}

/// The newest version of one pod, and the notifications for its worker.
pub struct Mailbox {
    mail: Mutex<Mail>,
    /// Notified of every change that concerns the pod.
    news: Notify,
    /// Notified of changes from outside the node alone, which may remove the cause of a failed pass.
    outside: Notify,
    /// Cancelled once the pod is to stop.
    terminate: CancellationToken,
    /// The pod's deletion grace period in seconds, once the API has set it.
    grace: watch::Sender<Option<i64>>,
}

impl Mailbox {
    pub fn new(pod: Arc<Pod>) -> Self {
        let mailbox = Self {
            mail: Mutex::new(Mail { pod: Arc::clone(&pod), deleted: false }),
            news: Notify::new(),
            outside: Notify::new(),
            terminate: CancellationToken::new(),
            grace: watch::Sender::new(None),
        };
        mailbox.update(pod);
        mailbox
    }

    fn lock(&self) -> MutexGuard<'_, Mail> {
        self.mail.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes a new version of the pod; notifies the worker if it differs in more than this kubelet's own status.
    pub fn update(&self, pod: Arc<Pod>) {
        if pod.metadata.deletion_timestamp.is_some() {
            self.terminate.cancel();
            self.grace.send_replace(pod.metadata.deletion_grace_period_seconds);
        }
        let mut mail = self.lock();
        let news = mail.deleted || differs(&mail.pod, &pod);
        mail.pod = pod;
        drop(mail);
        if news {
            self.notify_from_outside();
        }
    }

    /// Takes the last version of a pod that the API has removed.
    pub fn delete(&self, last: Arc<Pod>) {
        {
            let mut mail = self.lock();
            mail.pod = Arc::clone(&last);
            mail.deleted = true;
        }
        self.update(last);
        self.terminate.cancel();
    }

    /// Notifies the worker of an event on this node.
    pub fn notify(&self) {
        self.news.notify_one();
    }

    /// Notifies the worker of a change to the pod, or to an object that the pod refers to.
    pub fn notify_from_outside(&self) {
        self.news.notify_one();
        self.outside.notify_one();
    }

    /// Returns the newest version, and whether the API has removed the pod.
    pub fn latest(&self) -> (Arc<Pod>, bool) {
        let mail = self.lock();
        (Arc::clone(&mail.pod), mail.deleted)
    }

    /// The token that is cancelled once the pod is to stop.
    pub fn terminate(&self) -> &CancellationToken {
        &self.terminate
    }

    /// The notifier of all changes.
    pub fn notifier(&self) -> &Notify {
        &self.news
    }

    /// Waits for a change from outside the node.
    pub async fn news_from_outside(&self) {
        self.outside.notified().await;
    }

    /// Resolves when the API shortens the grace period to less than `seconds`.
    pub async fn grace_below(&self, seconds: i64) {
        let mut grace = self.grace.subscribe();
        // Waiting cannot fail: the sender lives as long as this mailbox.
        let _ = grace.wait_for(|g| g.is_some_and(|g| g.max(1) < seconds)).await;
    }
}

/// Returns whether a version differs in more than the status that this kubelet wrote itself.
fn differs(old: &Pod, new: &Pod) -> bool {
    let others = |pod: &Pod| -> Vec<PodCondition> {
        let all = pod::status(pod).conditions.iter().flatten();
        all.filter(|c| !is_ours(&c.type_)).cloned().collect()
    };
    let (a, b) = (&old.metadata, &new.metadata);
    old.spec != new.spec
        || a.labels != b.labels
        || a.annotations != b.annotations
        || a.deletion_timestamp != b.deletion_timestamp
        || a.deletion_grace_period_seconds != b.deletion_grace_period_seconds
        || pod::phase(old) != pod::phase(new) && pod::is_terminal_phase(pod::phase(new))
        || others(old) != others(new)
}
