//! Sends all requests of all users to both servers, and compares the responses.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use http::Method;
use knarr_apiserver::Anonymous;
use serde_json::{Value, json};

use super::requests::{self, Question};
use super::upstream::Upstream;
use super::users::{self, Asker};
use super::wire::{Answer, Place};
use super::{access, world};
use crate::harness::{MERGE, User};
use crate::tls::serve_with;

const SEED: u64 = 1;
const WORKERS: usize = 4;
const PATIENCE: Duration = Duration::from_secs(120);
const PAUSE: Duration = Duration::from_millis(100);

/// The result of authentication and authorization for a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Verdict {
    Unauthorized,
    Forbidden,
    Allowed,
}

impl Verdict {
    fn of(code: u16) -> Self {
        match code {
            401 => Self::Unauthorized,
            403 => Self::Forbidden,
            _ => Self::Allowed,
        }
    }
}

/// Pairs of differing responses and their users, by request.
#[derive(Default)]
struct Differences(BTreeMap<(Question, String, String), Vec<String>>);

impl Differences {
    fn add(&mut self, question: &Question, here: String, there: String, asker: &str) {
        self.0.entry((question.clone(), here, there)).or_default().push(asker.to_owned());
    }

    fn merge(&mut self, other: Self) {
        for (key, askers) in other.0 {
            self.0.entry(key).or_default().extend(askers);
        }
    }

    fn show(&self, title: &str) {
        println!("== {title}: {} of {} requests", self.0.values().map(Vec::len).sum::<usize>(), self.0.len());
        for ((question, here, there), askers) in &self.0 {
            println!(
                "{} {} {:?} {}\n  here  {here}\n  there {there}",
                question.method,
                question.target,
                question.headers,
                question.body.as_deref().unwrap_or("")
            );
            println!(
                "  for {} {}",
                askers.len(),
                askers.iter().take(6).cloned().collect::<Vec<_>>().join(", ")
            );
        }
    }
}

/// The differences that were found.
#[derive(Default)]
struct Findings {
    asked: usize,
    verdicts: BTreeMap<Verdict, usize>,
    explained: BTreeMap<&'static str, usize>,
    /// Differing verdicts; each is an error of Knarr.
    verdict: Differences,
    /// Differing status codes with the same verdict. They are reported, but are not an error of authorization.
    code: Differences,
    /// Differing messages of refusals with the same code.
    message: Differences,
}

impl Findings {
    fn look(&mut self, asker: &Asker, question: &Question, here: &Answer, there: &Answer) {
        self.asked += 1;
        let verdict = Verdict::of(there.code);
        *self.verdicts.entry(verdict).or_default() += 1;
        let told = |answer: &Answer| {
            let status = serde_json::from_str::<Value>(&answer.body).unwrap_or_default();
            status["message"].as_str().map_or_else(|| answer.body.clone(), str::to_owned)
        };
        let (told_here, told_there) = (told(here), told(there));
        let shown = |code: u16, told: &str| format!("{code} {}", told.chars().take(200).collect::<String>());
        let both = (shown(here.code, &told_here), shown(there.code, &told_there));
        if Verdict::of(here.code) != verdict {
            self.verdict.add(question, both.0, both.1, &asker.label);
        } else if here.code != there.code {
            self.code.add(question, both.0, both.1, &asker.label);
        } else if verdict == Verdict::Forbidden && told_here != told_there {
            match explained(question, &told_here, &told_there) {
                Some(reason) => *self.explained.entry(reason).or_default() += 1,
                None => self.message.add(question, told_here, told_there, &asker.label),
            }
        }
    }

    fn merge(&mut self, other: Self) {
        self.asked += other.asked;
        for (verdict, count) in other.verdicts {
            *self.verdicts.entry(verdict).or_default() += count;
        }
        for (reason, count) in other.explained {
            *self.explained.entry(reason).or_default() += count;
        }
        self.verdict.merge(other.verdict);
        self.code.merge(other.code);
        self.message.merge(other.message);
    }
}

/// Returns why the messages of two refusals may differ.
fn explained(question: &Question, here: &str, there: &str) -> Option<&'static str> {
    if question.target.contains("%ff") && there.contains("\\xff") {
        return Some(
            "bytes that are no UTF-8 are replaced as the path is decoded; upstream keeps and quotes them",
        );
    }
    let rest = there.strip_prefix(here)?;
    rest.starts_with(": @@").then_some("upstream adds a listing of what differs in the two objects")
}

/// Removes the permissions that Knarr grants to its own components, and upstream does not.
async fn without_own_grants(admin: &User) {
    let collection = "/apis/rbac.authorization.k8s.io/v1/clusterrolebindings";
    let all = admin.get(collection).await.expect(200);
    let names = all["items"].as_array().unwrap().iter().map(|b| b["metadata"]["name"].as_str().unwrap());
    for name in names.filter(|name| name.starts_with("knarr:")) {
        admin.delete(&format!("{collection}/{name}")).await.expect(200);
    }
}

/// Creates all objects, and waits until the server's authorizers use them.
async fn prepare(admin: &User, place: &Place) {
    for (path, object) in world::steps().into_iter().chain(access::objects()) {
        let (reply, code) = if world::is_part(&path) {
            (admin.patch(&path, MERGE, &object).await, 200)
        } else {
            (admin.post(&path, &object).await, 201)
        };
        assert_eq!(reply.code, code, "{path}: {}", reply.body);
    }
    let widget = json!({"apiVersion": "example.com/v1", "kind": "Widget", "metadata": {"name": "one"},
        "spec": {"replicas": 1}});
    until("the custom resource", async || {
        admin.post("/apis/example.com/v1/namespaces/alpha/widgets", &widget).await.code == 201
    })
    .await;
    let mut line = place.line();
    let mut asks = async |token: &str, uri: &str| {
        line.ask(&Question::new("GET", uri).bytes(Some(token), &[])).await.code == 200
    };
    until("the last pod's node", async || asks("n1", world::LAST).await).await;
    // The role that is bound last.
    let uri = "/api/v1/namespaces/alpha/secrets";
    until("the last role", async || {
        let question = Question::new("GET", uri);
        let acting = [("Impersonate-User", "system:serviceaccount:alpha:runner")];
        place.line().ask(&question.bytes(Some("constrained"), &acting)).await.code == 200
    })
    .await;
    // The first request to the missing aggregated server makes its failure known.
    let reply = admin.raw(Method::GET, "/apis/remote.example.com/v1", "", "").await;
    assert_eq!(reply.code, 503, "{}", reply.body);
}

/// Returns the token that the server issues for [`users::BOUND`].
async fn bound_token(admin: &User) -> String {
    let pod = admin.get("/api/v1/namespaces/alpha/pods/p1").await.expect(200);
    let bound = json!({"apiVersion": "v1", "kind": "Pod", "name": "p1", "uid": pod["metadata"]["uid"]});
    let request = json!({"spec": {"boundObjectRef": bound}});
    let uri = "/api/v1/namespaces/alpha/serviceaccounts/runner/token";
    admin.post(uri, &request).await.expect(201)["status"]["token"].as_str().unwrap().to_owned()
}

async fn until(what: &str, mut holds: impl AsyncFnMut() -> bool) {
    let began = Instant::now();
    while !holds().await {
        assert!(began.elapsed() < PATIENCE, "{what}");
        tokio::time::sleep(PAUSE).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs KNARR_UPSTREAM, a folder with kube-apiserver and etcd"]
async fn requests_are_authorized_as_upstream_authorizes_them() {
    let tokens = std::env::temp_dir().join(format!("tokens-{}", uuid::Uuid::new_v4()));
    std::fs::write(&tokens, users::token_file()).unwrap();
    let ours = serve_with(|config, _| {
        config.authentication.token_file = Some(tokens.clone());
        config.authentication.anonymous = Anonymous::On;
    })
    .await;
    std::fs::remove_file(&tokens).unwrap();
    let theirs = Upstream::start(&ours.authority, &users::token_file(), "root").await;
    let admin = User(ours.server.transport(knarr_apiserver::UserInfo::new("root", &["system:masters"])));
    let here = Place::new(ours.address, &ours.authority.pem);
    let there = Place::new(theirs.address, &ours.authority.pem);
    without_own_grants(&admin).await;
    prepare(&admin, &here).await;
    prepare(&theirs.admin, &there).await;
    let bound = Arc::new((bound_token(&admin).await, bound_token(&theirs.admin).await));

    let began = Instant::now();
    let questions = Arc::new(requests::all(SEED));
    let askers = Arc::new(users::askers());
    let next = Arc::new(AtomicUsize::new(0));
    let workers: Vec<_> = (0..WORKERS)
        .map(|_| {
            let (questions, askers, next) = (Arc::clone(&questions), Arc::clone(&askers), Arc::clone(&next));
            let (mut here, mut there, bound) = (here.line(), there.line(), Arc::clone(&bound));
            tokio::spawn(async move {
                let mut findings = Findings::default();
                while let Some(question) = questions.get(next.fetch_add(1, Ordering::Relaxed)) {
                    for asker in askers.iter().filter(|a| a.asks(question)) {
                        let request = |bound| question.bytes(asker.token(bound), asker.headers);
                        let (to_us, to_them) = (request(&bound.0), request(&bound.1));
                        let (here, there) = tokio::join!(here.ask(&to_us), there.ask(&to_them));
                        findings.look(asker, question, &here, &there);
                    }
                }
                findings
            })
        })
        .collect();
    let mut all = Findings::default();
    for worker in workers {
        all.merge(worker.await.unwrap());
    }
    println!(
        "{} requests, {} askers, {} sent, {:?}",
        questions.len(),
        askers.len(),
        all.asked,
        began.elapsed()
    );
    println!("verdicts of upstream: {:?}; explained: {:?}", all.verdicts, all.explained);
    all.message.show("differences of refusals");
    all.code.show("differences of codes");
    all.verdict.show("differences of verdicts");
    assert!(all.verdicts.values().all(|count| *count > 1_000), "too few of a verdict: {:?}", all.verdicts);
    assert!(all.verdict.0.is_empty(), "{} differences of verdicts", all.verdict.0.len());
    assert!(all.message.0.is_empty(), "{} differences of refusals", all.message.0.len());
}
