//! The authorizer checks of expressions. An evaluation is synchronous and cannot wait for a decision, but it can be
//! repeated: it ends at a check without a decision, the decision is requested, and the evaluation runs again, until
//! all its checks have decisions.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use knarr_cel::library::authz::{Authorizer, Check, Decision};

use crate::Attributes;
use crate::Context;
use knarr_auth::authn::UserInfo;
use knarr_auth::authz::Attributes as Question;

/// The maximum number of checks of one request. The cost limits allow some tens in one evaluation.
const MOST: usize = 500;

/// The decisions for one request's expressions so far; one for each check, however often it is made.
#[derive(Default)]
pub struct Questions(Mutex<Asked>);

#[derive(Default)]
struct Asked {
    answered: Vec<(Check, Decision)>,
    /// The first check of this evaluation without a decision.
    open: Option<Check>,
}

impl Questions {
    pub fn new() -> Arc<Self> {
        Arc::default()
    }

    fn lock(&self) -> MutexGuard<'_, Asked> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Runs the evaluation again as long as it needs further decisions, which are requested on behalf of the
    /// request's user. Returns the last outcome.
    pub async fn settle<T: Send>(
        &self,
        attributes: &Attributes<'_>,
        context: &Context<'_>,
        evaluate: impl Fn() -> T + Send + Sync,
    ) -> T {
        loop {
            let outcome = evaluate();
            let Some(check) = self.open() else { return outcome };
            let (user, question) = put(&check, attributes.user);
            let answer = context.authorizer.authorize(&user, &question).await;
            let reason = answer.reason().to_owned();
            let decision = Decision { allowed: answer.is_allowed(), reason, error: None };
            self.lock().answered.push((check, decision));
        }
    }

    fn open(&self) -> Option<Check> {
        let mut asked = self.lock();
        let open = asked.open.take();
        open.filter(|_| asked.answered.len() < MOST)
    }
}

impl Authorizer for Questions {
    fn authorize(&self, check: &Check) -> Decision {
        let mut asked = self.lock();
        if let Some((_, decision)) = asked.answered.iter().find(|(c, _)| c == check) {
            return decision.clone();
        }
        asked.open.get_or_insert_with(|| check.clone());
        Decision { error: Some("too many questions".to_owned()), ..Decision::default() }
    }
}

/// Returns the user and the attributes of a check.
fn put(check: &Check, user: &UserInfo) -> (UserInfo, Question) {
    let user = match &check.service_account {
        None => user.clone(),
        Some((namespace, name)) => UserInfo {
            name: format!("system:serviceaccount:{namespace}:{name}"),
            groups: vec!["system:serviceaccounts".into(), format!("system:serviceaccounts:{namespace}")],
            ..UserInfo::default()
        },
    };
    let question = Question {
        verb: check.verb.clone(),
        group: check.group.clone(),
        version: if check.path.is_empty() { "*".into() } else { String::new() },
        resource: check.resource.clone(),
        subresource: check.subresource.clone(),
        namespace: check.namespace.clone(),
        name: check.name.clone(),
        path: check.path.clone(),
        field_selector: check.field_selector.clone(),
        label_selector: check.label_selector.clone(),
    };
    (user, question)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_question_waits_for_its_answer() {
        let questions = Questions::default();
        let check = |verb: &str| Check { verb: verb.to_owned(), ..Check::default() };
        assert!(!questions.authorize(&check("get")).allowed);
        assert!(!questions.authorize(&check("list")).allowed);
        let first = questions.open().unwrap();
        assert_eq!(first, check("get"));
        let decision = Decision { allowed: true, ..Decision::default() };
        questions.lock().answered.push((first, decision));
        assert!(questions.authorize(&check("get")).allowed);
        assert_eq!(questions.open(), None);
    }

    #[test]
    fn service_accounts_are_asked_about() {
        let check = Check { service_account: Some(("a".into(), "b".into())), ..Check::default() };
        let (user, _) = put(&check, &UserInfo::new("jane", &[]));
        assert_eq!(user.name, "system:serviceaccount:a:b");
    }
}
