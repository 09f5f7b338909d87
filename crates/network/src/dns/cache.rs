//! A short-lived cache of other name servers' answers.

use std::collections::BTreeMap;

use hickory_proto::op::{Message, Query, ResponseCode};
use hickory_proto::rr::{Name, RData};
use tokio::time::{Duration, Instant};

const MOST_ENTRIES: usize = 2_000;
const LONGEST_SECONDS: u32 = 30;

/// Name in lower case, type, class, and whether signatures were requested.
type Key = (Name, u16, u16, bool);

struct Entry {
    message: Message,
    stored: Instant,
    expires: Instant,
}

/// At most 2,000 answers, each for at most 30 seconds.
#[derive(Default)]
pub struct Cache {
    entries: BTreeMap<Key, Entry>,
}

fn key(query: &Query, dnssec_ok: bool) -> Key {
    (query.name().to_lowercase(), query.query_type().into(), query.query_class().into(), dnssec_ok)
}

impl Cache {
    /// Returns a cached answer, with the TTLs of its records reduced by its age.
    pub fn get(&self, query: &Query, dnssec_ok: bool, now: Instant) -> Option<Message> {
        let entry = self.entries.get(&key(query, dnssec_ok)).filter(|entry| now < entry.expires)?;
        let age = u32::try_from(now.duration_since(entry.stored).as_secs()).unwrap_or(u32::MAX);
        let mut message = entry.message.clone();
        for records in [&mut message.answers, &mut message.authorities, &mut message.additionals] {
            for record in records {
                record.ttl = record.ttl.saturating_sub(age);
            }
        }
        Some(message)
    }

    /// Caches an answer if that is permitted.
    pub fn insert(&mut self, query: &Query, dnssec_ok: bool, message: &Message, now: Instant) {
        let Some(seconds) = lifetime(message).filter(|seconds| *seconds > 0) else { return };
        if self.entries.len() >= MOST_ENTRIES {
            self.entries.retain(|_, entry| now < entry.expires);
        }
        if self.entries.len() >= MOST_ENTRIES {
            self.entries.pop_first();
        }
        let expires = now + Duration::from_secs(u64::from(seconds));
        self.entries.insert(key(query, dnssec_ok), Entry { message: message.clone(), stored: now, expires });
    }
}

/// Returns for how many seconds an answer may be cached; for a negative one, its SOA decides.
fn lifetime(message: &Message) -> Option<u32> {
    if message.metadata.truncation {
        return None;
    }
    let negative = || {
        message.authorities.iter().find_map(|record| match &record.data {
            RData::SOA(soa) => Some(soa.minimum.min(record.ttl)),
            _ => None,
        })
    };
    let seconds = match message.metadata.response_code {
        ResponseCode::NoError if !message.answers.is_empty() => message.answers.iter().map(|r| r.ttl).min(),
        ResponseCode::NoError | ResponseCode::NXDomain => negative(),
        _ => None,
    };
    seconds.map(|seconds| seconds.min(LONGEST_SECONDS))
}

#[cfg(test)]
mod tests {
    use super::*;
    use hickory_proto::op::OpCode;
    use hickory_proto::rr::rdata::A;
    use hickory_proto::rr::{Record, RecordType};

    fn query(name: &str) -> Query {
        Query::query(Name::from_ascii(name).unwrap(), RecordType::A)
    }

    fn reply(ttl: u32) -> Message {
        let mut message = Message::response(1, OpCode::Query);
        let data = RData::A(A::new(192, 0, 2, 1));
        message.answers.push(Record::from_rdata(Name::from_ascii("a.example.").unwrap(), ttl, data));
        message
    }

    #[test]
    fn answers_age_and_expire() {
        let mut cache = Cache::default();
        let start = Instant::now();
        let after = |seconds| start + Duration::from_secs(seconds);
        cache.insert(&query("a.example."), false, &reply(3600), start);
        let kept = cache.get(&query("A.Example."), false, after(10)).unwrap();
        assert_eq!(kept.answers[0].ttl, 3590);
        assert!(cache.get(&query("a.example."), true, after(10)).is_none());
        assert!(cache.get(&query("a.example."), false, after(31)).is_none());
        cache.insert(&query("b.example."), false, &reply(0), start);
        assert!(cache.get(&query("b.example."), false, start).is_none());
    }

    #[test]
    fn the_cache_is_bounded() {
        let mut cache = Cache::default();
        let now = Instant::now();
        for n in 0..MOST_ENTRIES + 10 {
            cache.insert(&query(&format!("n{n}.example.")), false, &reply(60), now);
        }
        assert_eq!(cache.entries.len(), MOST_ENTRIES);
    }
}
