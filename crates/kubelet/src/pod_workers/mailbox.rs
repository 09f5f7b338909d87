//! What a pod's worker is told: the newest version of the pod counts, all before it is forgotten.

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

pub struct Mailbox {
    mail: Mutex<Mail>,
    news: Notify,
    /// The same for news from outside, which may end what made a pass fail.
    outside: Notify,
    /// Cancelled once the pod is to stop.
    terminate: CancellationToken,
    /// The seconds that the API gives the pod to stop, once it says so.
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

    /// The API has removed the pod.
    pub fn delete(&self, last: Arc<Pod>) {
        {
            let mut mail = self.lock();
            mail.pod = Arc::clone(&last);
            mail.deleted = true;
        }
        self.update(last);
        self.terminate.cancel();
    }

    /// Something happened here that concerns the pod.
    pub fn notify(&self) {
        self.news.notify_one();
    }

    /// Something that the pod refers to has changed.
    pub fn notify_from_outside(&self) {
        self.news.notify_one();
        self.outside.notify_one();
    }

    /// The newest version, and whether the API has removed it.
    pub fn latest(&self) -> (Arc<Pod>, bool) {
        let mail = self.lock();
        (Arc::clone(&mail.pod), mail.deleted)
    }

    pub fn terminate(&self) -> &CancellationToken {
        &self.terminate
    }

    /// Notified of all news.
    pub fn notifier(&self) -> &Notify {
        &self.news
    }

    pub async fn news_from_outside(&self) {
        self.outside.notified().await;
    }

    /// Resolves when the API gives the pod less time than `seconds`.
    pub async fn grace_below(&self, seconds: i64) {
        let mut grace = self.grace.subscribe();
        // The sender lives as long as this mailbox.
        let _ = grace.wait_for(|g| g.is_some_and(|g| g.max(1) < seconds)).await;
    }
}

/// Whether a version has more news than the status that this kubelet wrote itself.
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
