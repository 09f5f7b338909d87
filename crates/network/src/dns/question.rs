//! A question to the name server, and building its answers.

use hickory_proto::op::{Edns, Message, MessageType, OpCode, Query, ResponseCode};
use hickory_proto::rr::DNSClass;

use super::answer::Answer;
use super::forward::UDP_PAYLOAD;

/// The payload that every client accepts over UDP.
const PLAIN_UDP_PAYLOAD: u16 = 512;

/// A well-formed message that contains a question.
pub struct Question {
    pub message: Message,
}

impl Question {
    /// Parses a question. Returns `None` for messages that must not be answered: malformed ones, and answers
    /// (two servers could answer each other forever).
    pub fn read(bytes: &[u8]) -> Option<Self> {
        let message = Message::from_vec(bytes).ok()?;
        (message.metadata.message_type == MessageType::Query).then_some(Self { message })
    }

    /// Returns how many bytes the client accepts over UDP.
    pub fn udp_limit(&self) -> u16 {
        match &self.message.edns {
            Some(edns) => edns.max_payload().clamp(PLAIN_UDP_PAYLOAD, UDP_PAYLOAD),
            None => PLAIN_UDP_PAYLOAD,
        }
    }

    /// Returns whether the client requested signatures.
    pub fn dnssec_ok(&self) -> bool {
        self.message.edns.as_ref().is_some_and(|edns| edns.flags().dnssec_ok)
    }

    /// Returns an answer that has no records yet.
    pub fn reply(&self, code: ResponseCode) -> Message {
        let asked = &self.message.metadata;
        let mut reply = Message::response(asked.id, asked.op_code);
        reply.metadata.recursion_desired = asked.recursion_desired;
        reply.metadata.recursion_available = true;
        reply.metadata.response_code = code;
        reply.queries.clone_from(&self.message.queries);
        if self.message.edns.is_some() {
            let mut edns = Edns::new();
            edns.set_max_payload(UDP_PAYLOAD).set_dnssec_ok(self.dnssec_ok());
            reply.edns = Some(edns);
        }
        reply
    }

    /// Returns the single query, or the code with which it is refused.
    pub fn query(&self) -> Result<&Query, ResponseCode> {
        if self.message.metadata.op_code != OpCode::Query {
            return Err(ResponseCode::NotImp);
        }
        if self.message.edns.as_ref().is_some_and(|edns| edns.version() > 0) {
            return Err(ResponseCode::BADVERS);
        }
        match self.message.queries.as_slice() {
            [query] if query.query_class() == DNSClass::IN => Ok(query),
            [_] => Err(ResponseCode::Refused),
            _ => Err(ResponseCode::FormErr),
        }
    }

    /// Returns the answer with the records of the zone.
    pub fn with_answer(&self, answer: Answer) -> Message {
        let mut reply = self.reply(answer.code);
        reply.metadata.authoritative = true;
        reply.answers = answer.answers;
        reply.authorities = answer.authorities;
        reply.additionals = answer.additionals;
        reply
    }

    /// Returns an answer with the code and records of an upstream answer.
    pub fn with_found(&self, found: Message) -> Message {
        let mut reply = self.reply(found.metadata.response_code);
        reply.metadata.authentic_data = found.metadata.authentic_data;
        reply.answers = found.answers;
        reply.authorities = found.authorities;
        reply.additionals = found.additionals;
        reply
    }
}
