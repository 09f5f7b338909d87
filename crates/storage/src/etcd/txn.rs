//! Transactions: conditions as etcd's compares, and reads for the case that one of them fails.

use bytes::Bytes;

use super::keys::{Keyspace, header_revision, number};
use super::proto::{self, CompareResult, CompareTarget, CompareValue, Request, RequestOp, Response};
use crate::error::Conflict;
use crate::types::{Compare, KeyValue, LeaseId, Op, OpResult, Precondition, TxnResponse};
use crate::{Error, Result};

/// Encodes the whole transaction as one request.
pub fn request(keys: &Keyspace, compares: &[Compare], ops: &[Op]) -> proto::TxnRequest {
    let read = |compare: &Compare| RequestOp {
        request: Some(Request::Range(proto::RangeRequest {
            key: keys.key(&compare.key),
            ..Default::default()
        })),
    };
    proto::TxnRequest {
        compare: compares.iter().flat_map(|c| conditions(keys.key(&c.key), c.condition)).collect(),
        success: ops.iter().map(|op| RequestOp { request: Some(operation(keys, op)) }).collect(),
        failure: compares.iter().map(read).collect(),
    }
}

fn conditions(key: Bytes, condition: Precondition) -> Vec<proto::Compare> {
    let version = |result: CompareResult| proto::Compare {
        result: result as i32,
        target: CompareTarget::Version as i32,
        key: key.clone(),
        value: Some(CompareValue::Version(0)),
    };
    match condition {
        Precondition::Any => Vec::new(),
        Precondition::Exists => vec![version(CompareResult::Greater)],
        Precondition::NotExists => vec![version(CompareResult::Equal)],
        Precondition::ModRevision(revision) => {
            let written = proto::Compare {
                result: CompareResult::Equal as i32,
                target: CompareTarget::Mod as i32,
                key: key.clone(),
                value: Some(CompareValue::ModRevision(number(revision))),
            };
            // For etcd, a key that does not exist has mod revision 0.
            vec![version(CompareResult::Greater), written]
        }
    }
}

fn operation(keys: &Keyspace, op: &Op) -> Request {
    match op {
        Op::Put { key, value, lease } => Request::Put(proto::PutRequest {
            key: keys.key(key),
            value: value.clone(),
            lease: lease.map_or(0, |lease| number(lease.get())),
            prev_kv: true,
        }),
        Op::Delete { key } => Request::DeleteRange(proto::DeleteRangeRequest {
            key: keys.key(key),
            range_end: Bytes::new(),
            prev_kv: true,
        }),
    }
}

/// Decodes the response: the operations' results, or the first condition that failed.
pub fn outcome(
    keys: &Keyspace,
    compares: &[Compare],
    ops: &[Op],
    answer: proto::TxnResponse,
) -> Result<TxnResponse> {
    let revision = header_revision(answer.header.as_ref());
    if !answer.succeeded {
        return Err(conflict(keys, compares, answer.responses, revision)?);
    }
    if answer.responses.len() != ops.len() {
        return Err(unexpected());
    }
    let mut results = Vec::with_capacity(ops.len());
    for (op, response) in ops.iter().zip(answer.responses) {
        results.push(match (op, response.response) {
            (Op::Put { key, value, lease }, Some(Response::Put(put))) => {
                let prev = put.prev_kv.map(|kv| keys.key_value(kv)).transpose()?;
                let kv = written(key, value, *lease, revision, prev.as_ref());
                OpResult::Put { kv, prev }
            }
            (Op::Delete { .. }, Some(Response::DeleteRange(deleted))) => {
                let prev = deleted.prev_kvs.into_iter().next();
                OpResult::Delete { prev: prev.map(|kv| keys.key_value(kv)).transpose()? }
            }
            _ => return Err(unexpected()),
        });
    }
    Ok(TxnResponse { revision, results })
}

fn written(
    key: &Bytes,
    value: &Bytes,
    lease: Option<LeaseId>,
    revision: u64,
    prev: Option<&KeyValue>,
) -> KeyValue {
    KeyValue {
        key: key.clone(),
        value: value.clone(),
        create_revision: prev.map_or(revision, |prev| prev.create_revision),
        mod_revision: revision,
        version: prev.map_or(0, |prev| prev.version) + 1,
        lease,
    }
}

/// Returns the conflict. All keys were read at the revision of the comparison, so the same condition fails here.
fn conflict(
    keys: &Keyspace,
    compares: &[Compare],
    responses: Vec<proto::ResponseOp>,
    revision: u64,
) -> Result<Error> {
    for (compare, response) in compares.iter().zip(responses) {
        let Some(Response::Range(range)) = response.response else { return Err(unexpected()) };
        let current = range.kvs.into_iter().next().map(|kv| keys.key_value(kv)).transpose()?;
        if !compare.condition.holds(current.as_ref()) {
            return Ok(Error::Conflict(Box::new(Conflict { key: compare.key.clone(), current, revision })));
        }
    }
    Err(unexpected())
}

fn unexpected() -> Error {
    Error::Invalid("etcd answered a transaction with something else")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_condition_that_fails_is_named() {
        let keys = Keyspace::new("/k/");
        let compare =
            |key: &str, condition| Compare { key: Bytes::copy_from_slice(key.as_bytes()), condition };
        let compares = [
            compare("a", Precondition::Any),
            compare("b", Precondition::ModRevision(3)),
            compare("c", Precondition::NotExists),
        ];
        let request = request(&keys, &compares, &[]);
        assert_eq!((request.compare.len(), request.failure.len()), (3, 3));
        let found = |kvs: Vec<proto::KeyValue>| proto::ResponseOp {
            response: Some(Response::Range(proto::RangeResponse { kvs, ..Default::default() })),
        };
        let b =
            proto::KeyValue { key: Bytes::from("/k/b"), mod_revision: 4, version: 1, ..Default::default() };
        let answer = proto::TxnResponse {
            header: Some(proto::ResponseHeader { cluster_id: 1, revision: 9 }),
            succeeded: false,
            responses: vec![found(vec![]), found(vec![b]), found(vec![])],
        };
        let Err(Error::Conflict(conflict)) = outcome(&keys, &compares, &[], answer) else {
            panic!("no conflict")
        };
        assert_eq!((&conflict.key[..], conflict.revision), (&b"b"[..], 9));
        assert_eq!(conflict.current.map(|kv| kv.mod_revision), Some(4));
    }
}
