//! The other end, for tests and measurements: a server that knows everybody, counts what it is told, and errs on request.

use std::collections::HashSet;

use super::attribute as a;
use super::packet::{self, List, Packet, code};

/// What it was asked and told.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Access-Requests accepted.
    pub accepted: u64,
    /// Access-Requests rejected.
    pub rejected: u64,
    /// Accounting-Requests by Acct-Status-Type: starts and stops, each session once; interim updates, others.
    pub accounting: [u64; 4],
    /// Starts of a session that had one: sent again for want of an answer in time (RFC 2866 section 2), or by fault.
    pub repeated_starts: u64,
    /// Stops of a session that had one, likewise.
    pub repeated_stops: u64,
    /// Octets of both directions in all stops, each session once.
    pub octets: u64,
    /// Requests that were malformed, not signed or without a right Message-Authenticator.
    pub bad: u64,
}

/// The server. Users whose name begins with `reject` are rejected, all others accepted on the same terms.
#[derive(Clone, Debug, Default)]
pub struct Responder {
    secret: Vec<u8>,
    terms: Vec<u8>,
    started: HashSet<Vec<u8>>,
    stopped: HashSet<Vec<u8>>,
    counts: Counts,
}

impl Responder {
    /// A server with this secret; `terms` are attributes of every Access-Accept.
    #[must_use]
    pub fn new(secret: &[u8], terms: List) -> Self {
        Self {
            secret: secret.to_vec(),
            terms: terms.into_bytes(),
            ..Self::default()
        }
    }

    /// The answer to a datagram; `None` for one that deserves none.
    pub fn answer(&mut self, datagram: &[u8]) -> Option<Vec<u8>> {
        let answer = self.read(datagram);
        if answer.is_none() {
            self.counts.bad += 1;
        }
        answer
    }

    fn read(&mut self, datagram: &[u8]) -> Option<Vec<u8>> {
        let packet = Packet::parse(datagram).ok()?;
        let authenticator = packet.authenticator();
        let is_access = packet.code() == code::ACCESS_REQUEST;
        let keyed_with = if is_access { authenticator } else { [0; 16] };
        if packet.message_authenticator(&keyed_with, &self.secret) != Some(true) {
            return None;
        }
        let (code, terms): (u8, &[u8]) = match packet.code() {
            code::ACCESS_REQUEST => {
                if packet.find(a::USER_NAME)?.starts_with(b"reject") {
                    self.counts.rejected += 1;
                    (code::ACCESS_REJECT, &[])
                } else {
                    self.counts.accepted += 1;
                    (code::ACCESS_ACCEPT, &self.terms)
                }
            }
            code::ACCOUNTING_REQUEST if packet.is_signed(&self.secret) => {
                self.note(&packet)?;
                (code::ACCOUNTING_RESPONSE, &[])
            }
            _ => return None,
        };
        let identifier = packet.identifier();
        packet::answer(code, identifier, &authenticator, &self.secret, terms).ok()
    }

    fn note(&mut self, packet: &Packet<'_>) -> Option<()> {
        let number = |kind| {
            let value = packet.find(kind)?.try_into().ok()?;
            Some(u64::from(u32::from_be_bytes(value)))
        };
        let status = number(a::ACCT_STATUS_TYPE)?;
        let id = || packet.find(a::ACCT_SESSION_ID).map(<[u8]>::to_vec);
        let counts = &mut self.counts;
        match status {
            1 if !self.started.insert(id()?) => counts.repeated_starts += 1,
            1 => counts.accounting[0] += 1,
            2 => {
                let octets = |low, high| Some(number(low)? | number(high)? << 32);
                let octets = octets(a::ACCT_INPUT_OCTETS, a::ACCT_INPUT_GIGAWORDS)?
                    + octets(a::ACCT_OUTPUT_OCTETS, a::ACCT_OUTPUT_GIGAWORDS)?;
                if self.stopped.insert(id()?) {
                    counts.accounting[1] += 1;
                    counts.octets += octets;
                } else {
                    counts.repeated_stops += 1;
                }
            }
            3 => counts.accounting[2] += 1,
            _ => counts.accounting[3] += 1,
        }
        Some(())
    }

    /// What it was asked and told.
    #[must_use]
    pub const fn counts(&self) -> &Counts {
        &self.counts
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Credentials;
    use crate::accounting::{Status, StopCause};
    use crate::radius::request::tests::{asked, event, nas};

    #[test]
    fn it_answers_what_the_client_asks_and_counts_each_stop_once() {
        let mut responder = Responder::new(b"s", List::default());
        let credentials = Credentials::Pap {
            password: b"pw".to_vec(),
        };
        let draft = nas().access(&asked(1, credentials)).unwrap();
        let request =
            packet::access_request(1, &[3; 16], b"s", Some(b"pw"), &draft.attributes).unwrap();
        let answer = responder.answer(&request).unwrap();
        let answer = Packet::parse(&answer).unwrap();
        assert_eq!(answer.code(), code::ACCESS_ACCEPT);
        assert!(answer.answers(&[3; 16], b"s"));
        let stop = nas()
            .accounting(&event(Status::Stop(StopCause::UserRequest)))
            .unwrap();
        let start = nas().accounting(&event(Status::Start)).unwrap();
        for identifier in 0..2 {
            let code = code::ACCOUNTING_REQUEST;
            for message in [&start, &stop] {
                let request = packet::signed_request(code, identifier, b"s", &[message]).unwrap();
                assert!(responder.answer(&request).is_some());
                assert!(responder.answer(&request[..30]).is_none());
            }
        }
        let counts = responder.counts();
        assert_eq!((counts.accepted, counts.accounting), (1, [1, 1, 0, 0]));
        let repeated = (counts.repeated_starts, counts.repeated_stops);
        assert_eq!((repeated, counts.bad), ((1, 1), 4));
        assert_eq!(counts.octets, (3 << 32) + 11);
    }
}
