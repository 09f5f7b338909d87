//! Puts, deletes, conditions, transactions, races between them.

use std::sync::Arc;

use super::{Fixture, bytes, put};
use crate::{Compare, Error, Op, OpResult, Precondition, Result};

pub(super) async fn put_counts_revisions_and_versions(fixture: Arc<Fixture>) -> Result<()> {
    let store = &*fixture.store;
    let start = store.current_revision().await?;
    let first = put(store, "a", "1").await?;
    assert_eq!(
        (first.kv.create_revision, first.kv.mod_revision, first.kv.version),
        (start + 1, start + 1, 1)
    );
    assert_eq!(first.prev, None);
    let second = put(store, "a", "2").await?;
    assert_eq!(
        (second.kv.create_revision, second.kv.mod_revision, second.kv.version),
        (start + 1, start + 2, 2)
    );
    assert_eq!(second.prev, Some(first.kv));
    assert_eq!(store.get(b"a").await?, Some(second.kv.clone()));

    let deleted = store.delete(bytes("a"), Precondition::Any).await?;
    assert_eq!((deleted.revision, deleted.prev), (start + 3, Some(second.kv)));
    assert_eq!(store.get(b"a").await?, None);
    let nothing = store.delete(bytes("a"), Precondition::Any).await?;
    assert_eq!((nothing.revision, nothing.prev), (start + 3, None));

    let again = put(store, "a", "3").await?;
    assert_eq!((again.kv.create_revision, again.kv.version), (start + 4, 1));
    assert_eq!(store.current_revision().await?, start + 4);
    Ok(())
}

pub(super) async fn preconditions(fixture: Arc<Fixture>) -> Result<()> {
    let store = &*fixture.store;
    let there = put(store, "there", "1").await?.kv;
    let rows = [
        ("missing", Precondition::Exists, false),
        ("missing", Precondition::ModRevision(there.mod_revision), false),
        ("missing", Precondition::ModRevision(0), false),
        ("there", Precondition::NotExists, false),
        ("there", Precondition::ModRevision(there.mod_revision + 1), false),
        ("there", Precondition::ModRevision(0), false),
        ("there", Precondition::Exists, true),
        ("there", Precondition::ModRevision(there.mod_revision + 1), true),
        ("missing", Precondition::NotExists, true),
        ("fresh", Precondition::Any, true),
    ];
    for (key, condition, holds) in rows {
        let before = (store.get(key.as_bytes()).await?, store.current_revision().await?);
        let result = store.put(bytes(key), bytes("2"), condition, None).await;
        assert_eq!(result.is_ok(), holds, "{key} {condition:?}: {result:?}");
        if !holds {
            let deletion = store.delete(bytes(key), condition).await.map(|_| ());
            for error in [result.map(|_| ()).unwrap_err(), deletion.unwrap_err()] {
                let conflict = error.conflict().expect("a failed condition is a conflict");
                assert_eq!((&conflict.key[..], &conflict.current), (key.as_bytes(), &before.0));
            }
            assert_eq!((store.get(key.as_bytes()).await?, store.current_revision().await?), before);
        }
    }
    Ok(())
}

pub(super) async fn transactions_are_atomic(fixture: Arc<Fixture>) -> Result<()> {
    let store = &*fixture.store;
    let a = put(store, "a", "1").await?.kv;
    let put_op = |key: &str| Op::Put { key: bytes(key), value: bytes("new"), lease: None };
    let unchanged = Compare { key: bytes("a"), condition: Precondition::ModRevision(a.mod_revision) };
    let absent = Compare { key: bytes("b"), condition: Precondition::NotExists };

    let ops = vec![put_op("b"), put_op("c"), Op::Delete { key: bytes("a") }, Op::Delete { key: bytes("x") }];
    let done = store.txn(vec![unchanged.clone(), absent.clone()], ops.clone()).await?;
    assert_eq!(done.revision, a.mod_revision + 1);
    assert_eq!(done.results.len(), 4);
    assert_eq!(done.results[2], OpResult::Delete { prev: Some(a) });
    assert_eq!(done.results[3], OpResult::Delete { prev: None });
    for key in ["b", "c"] {
        assert_eq!(store.get(key.as_bytes()).await?.map(|kv| kv.mod_revision), Some(done.revision));
    }
    assert_eq!(store.get(b"a").await?, None);

    let refused = store.txn(vec![absent, unchanged], ops).await.unwrap_err();
    assert_eq!(refused.conflict().map(|conflict| &conflict.key[..]), Some(&b"b"[..]));
    assert_eq!(store.current_revision().await?, done.revision);

    let empty = store.txn(vec![], vec![]).await?;
    assert_eq!((empty.revision, empty.results.len()), (done.revision, 0));
    Ok(())
}

pub(super) async fn bad_requests(fixture: Arc<Fixture>) -> Result<()> {
    let store = &*fixture.store;
    let revision = store.current_revision().await?;
    assert!(matches!(put(store, "", "v").await, Err(Error::Invalid(_))));
    let twice =
        vec![Op::Put { key: bytes("a"), value: bytes("1"), lease: None }, Op::Delete { key: bytes("a") }];
    assert!(matches!(store.txn(vec![], twice).await, Err(Error::Invalid(_))));
    assert_eq!(store.current_revision().await?, revision);
    Ok(())
}

pub(super) async fn create_race_has_one_winner(fixture: Arc<Fixture>) -> Result<()> {
    for round in 0..20 {
        let tasks = (0..8).map(|writer| {
            let store = Arc::clone(&fixture.store);
            tokio::spawn(async move {
                let value = bytes(format!("{writer}"));
                store.put(bytes(format!("race{round}")), value, Precondition::NotExists, None).await
            })
        });
        let mut winners = Vec::new();
        let mut losers = Vec::new();
        for task in tasks.collect::<Vec<_>>() {
            match task.await.expect("no writer panics") {
                Ok(response) => winners.push(response.kv),
                Err(error) => losers.push(error.conflict().and_then(|conflict| conflict.current.clone())),
            }
        }
        assert_eq!(winners.len(), 1);
        assert!(losers.iter().all(|seen| seen.as_ref() == winners.first()), "losers see who won");
    }
    Ok(())
}

pub(super) async fn compare_and_swap_loses_no_update(fixture: Arc<Fixture>) -> Result<()> {
    const WRITERS: u64 = 8;
    const INCREMENTS: u64 = 40;
    let first = put(&*fixture.store, "counter", "0").await?.kv;
    let tasks = (0..WRITERS).map(|_| {
        let store = Arc::clone(&fixture.store);
        let mut seen = first.clone();
        tokio::spawn(async move {
            let mut done = 0;
            while done < INCREMENTS {
                let count: u64 = String::from_utf8_lossy(&seen.value).parse().expect("a number");
                let condition = Precondition::ModRevision(seen.mod_revision);
                let value = bytes((count + 1).to_string());
                // A conflict contains what the next attempt needs: no further read is made.
                seen = match store.put(bytes("counter"), value, condition, None).await {
                    Ok(response) => {
                        done += 1;
                        response.kv
                    }
                    Err(Error::Conflict(conflict)) => conflict.current.expect("nobody deletes it"),
                    Err(error) => return Err(error),
                };
            }
            Ok(())
        })
    });
    for task in tasks.collect::<Vec<_>>() {
        task.await.expect("no writer panics")?;
    }
    let last = fixture.store.get(b"counter").await?.expect("it is there");
    assert_eq!(last.value, bytes((WRITERS * INCREMENTS).to_string()));
    assert_eq!(last.mod_revision, first.mod_revision + WRITERS * INCREMENTS);
    assert_eq!(last.version, 1 + WRITERS * INCREMENTS);
    Ok(())
}
