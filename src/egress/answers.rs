//! Questions for names, and answers to them, as bytes. Pure.

use std::{collections::BTreeSet, net::IpAddr};

use simple_dns::{
    CLASS, Name, OPCODE, Packet, PacketFlag, QCLASS, QTYPE, RCODE, ResourceRecord, TYPE,
    rdata::{A, AAAA, RData},
};

/// How long an answer may be kept, seconds.
pub(super) const TTL_SECONDS: u32 = 30;

/// The most addresses of one answer.
const MAX_ADDRESSES: usize = 32;

/// What is asked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Want {
    Four,
    Six,
    /// Records of another type: there are none.
    Other,
}

/// A question.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Question {
    /// In lower case, without the last dot. May hold any byte that is ASCII.
    pub name: String,
    pub want: Want,
}

/// What is answered.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Outcome {
    /// These, of the family that was asked for; none is an answer, too.
    Found(BTreeSet<IpAddr>),
    /// There is no such name.
    Absent,
    /// It could not be found out.
    Failed,
}

/// Reads a message. None where it is none that is answered.
pub(super) fn read(message: &[u8]) -> Option<Question> {
    let packet = Packet::parse(message).ok()?;
    let [question] = packet.questions.as_slice() else { return None };
    let is_question = !packet.has_flags(PacketFlag::RESPONSE) && packet.opcode() == OPCODE::StandardQuery;
    if !is_question || !matches!(question.qclass, QCLASS::CLASS(CLASS::IN) | QCLASS::ANY) {
        return None;
    }
    let want = match question.qtype {
        QTYPE::TYPE(TYPE::A) => Want::Four,
        QTYPE::TYPE(TYPE::AAAA) => Want::Six,
        _ => Want::Other,
    };
    Some(Question { name: text_of(&question.qname)?, want })
}

/// None where a label holds what would read as another name: a dot, or anything that is not ASCII.
fn text_of(name: &Name<'_>) -> Option<String> {
    let mut labels = Vec::new();
    for label in name.as_bytes() {
        let text =
            std::str::from_utf8(label).ok().filter(|text| text.is_ascii() && !text.contains(['.', '\0']))?;
        labels.push(text.to_ascii_lowercase());
    }
    Some(labels.join("."))
}

/// The message that answers one that was [read](read). None where it cannot be made.
pub(super) fn answer(message: &[u8], outcome: &Outcome) -> Option<Vec<u8>> {
    let query = Packet::parse(message).ok()?;
    let question = query.questions.first()?.clone();
    let mut reply = Packet::new_reply(query.id());
    reply.set_flags(PacketFlag::RECURSION_AVAILABLE);
    if query.has_flags(PacketFlag::RECURSION_DESIRED) {
        reply.set_flags(PacketFlag::RECURSION_DESIRED);
    }
    match outcome {
        Outcome::Absent => *reply.rcode_mut() = RCODE::NameError,
        Outcome::Failed => *reply.rcode_mut() = RCODE::ServerFailure,
        Outcome::Found(addresses) => {
            for address in addresses.iter().take(MAX_ADDRESSES) {
                let data = match address {
                    IpAddr::V4(four) => RData::A(A { address: (*four).into() }),
                    IpAddr::V6(six) => RData::AAAA(AAAA { address: (*six).into() }),
                };
                reply.answers.push(ResourceRecord::new(question.qname.clone(), CLASS::IN, TTL_SECONDS, data));
            }
        }
    }
    reply.questions.push(question);
    reply.build_bytes_vec().ok()
}

#[cfg(test)]
pub(super) mod tests {
    use proptest::prelude::*;
    use simple_dns::Question as Asked;

    use super::*;

    pub(in super::super) fn asked(name: &str) -> Vec<u8> {
        asked_for(name, TYPE::A)
    }

    fn asked_for(name: &str, kind: TYPE) -> Vec<u8> {
        let mut packet = Packet::new_query(7);
        packet.set_flags(PacketFlag::RECURSION_DESIRED);
        packet.questions.push(Asked::new(
            Name::new_unchecked(name),
            QTYPE::TYPE(kind),
            QCLASS::CLASS(CLASS::IN),
            false,
        ));
        packet.build_bytes_vec().unwrap()
    }

    #[test]
    fn a_question_is_read_in_the_form_that_rules_have() {
        let read = |name, kind| read(&asked_for(name, kind)).unwrap();
        assert_eq!(
            read("API.Example.COM", TYPE::A),
            Question { name: "api.example.com".to_owned(), want: Want::Four }
        );
        assert_eq!(read("x.example", TYPE::AAAA).want, Want::Six);
        assert_eq!(read("x.example", TYPE::MX).want, Want::Other);
    }

    #[test]
    fn an_answer_has_the_addresses_and_the_number_of_its_question() {
        let question = asked("x.example");
        let addresses = BTreeSet::from(["1.2.3.4".parse().unwrap()]);
        let bytes = answer(&question, &Outcome::Found(addresses)).unwrap();
        let packet = Packet::parse(&bytes).unwrap();
        assert_eq!((packet.id(), packet.answers.len(), packet.rcode()), (7, 1, RCODE::NoError));
        assert_eq!(packet.answers[0].ttl, TTL_SECONDS);
        for (outcome, code) in [(Outcome::Absent, RCODE::NameError), (Outcome::Failed, RCODE::ServerFailure)]
        {
            assert_eq!(Packet::parse(&answer(&question, &outcome).unwrap()).unwrap().rcode(), code);
        }
    }

    #[test]
    fn what_is_no_question_is_not_answered() {
        let mut reply = Packet::new_reply(1);
        reply.questions.push(Asked::new(
            Name::new_unchecked("x"),
            QTYPE::TYPE(TYPE::A),
            QCLASS::CLASS(CLASS::IN),
            false,
        ));
        assert_eq!(read(&reply.build_bytes_vec().unwrap()), None);
        assert_eq!(read(&Packet::new_query(1).build_bytes_vec().unwrap()), None);
        assert_eq!(read(b""), None);
    }

    #[test]
    fn a_dot_inside_of_a_label_makes_no_other_name() {
        // One label, "a.example": what is asked for is no name below "example".
        let mut bytes = asked("aXexample.org");
        let at = bytes.iter().position(|byte| *byte == b'X').unwrap();
        bytes[at] = b'.';
        assert_eq!(read(&bytes), None);
        bytes[at] = 0xff;
        assert_eq!(read(&bytes), None);
    }

    proptest! {
        #[test]
        fn no_bytes_make_it_panic(bytes in proptest::collection::vec(any::<u8>(), 0..600)) {
            if read(&bytes).is_some() {
                prop_assert!(answer(&bytes, &Outcome::Absent).is_some());
            }
        }
    }
}
