//! One Configure exchange from the client's side: RFC 1661 section 4, for LCP and IPCP.
//!
//! The client is told to open at once and is never administratively closed, so of the ten states four are left.

use bng_pppoe::codec::lcp::code;
use bng_pppoe::codec::{ControlPacket, Options, control};

/// What the exchange negotiates: the options of one protocol.
pub(crate) trait Parameters {
    /// Options of our next Configure-Request.
    fn request(&self) -> Vec<u8>;

    /// Our answer to the peer's request.
    fn judge(&mut self, options: &Options<'_>) -> Judgement;

    /// The peer suggests other values. False when a suggestion cannot be followed.
    fn nak(&mut self, options: &Options<'_>) -> bool;

    /// The peer refuses options. False when we cannot do without one of them.
    fn reject(&mut self, options: &Options<'_>) -> bool;
}

/// Answer to a Configure-Request.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Judgement {
    /// Everything is acceptable.
    Ack,
    /// These options with values we would take.
    Nak(Vec<u8>),
    /// These options, as received, not at all.
    Reject(Vec<u8>),
}

/// RFC 1661 section 4.2 states a client passes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Closed,
    ReqSent,
    AckReceived,
    AckSent,
    Opened,
}

/// What a packet or a timeout did to the exchange.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Change {
    /// Nothing the owner has to act on.
    None,
    /// Progress was made: the owner starts the restart timer anew.
    Progress,
    /// This layer is up.
    Opened,
    /// This layer was up and is negotiated again.
    Reopening,
    /// No agreement is possible.
    Refused,
}

/// The exchange.
#[derive(Debug)]
pub(crate) struct Exchange {
    state: State,
    last_id: u8,
    /// The request the peer has not answered.
    outstanding: Option<Vec<u8>>,
    /// Naks and Rejects received since the last agreement.
    failures: u8,
}

/// Naks and Rejects of one negotiation before it is given up (RFC 1661 section 4.6 Max-Failure is 5; a peer may also
/// count its own five before it turns to Reject).
const MAX_FAILURES: u8 = 10;

impl Exchange {
    pub(crate) const fn new() -> Self {
        Self {
            state: State::Closed,
            last_id: 0,
            outstanding: None,
            failures: 0,
        }
    }

    pub(crate) const fn is_opened(&self) -> bool {
        matches!(self.state, State::Opened)
    }

    /// Starts over with a fresh request.
    pub(crate) fn open(&mut self, parameters: &impl Parameters, out: &mut Vec<Vec<u8>>) {
        self.state = State::ReqSent;
        self.failures = 0;
        self.send_request(parameters, out);
    }

    /// The restart timer fired: the request again, as it was if it is still unanswered.
    pub(crate) fn resend(&mut self, parameters: &impl Parameters, out: &mut Vec<Vec<u8>>) {
        if self.state == State::AckReceived {
            self.state = State::ReqSent;
        }
        match &self.outstanding {
            Some(request) => out.push(request.clone()),
            None => self.send_request(parameters, out),
        }
    }

    pub(crate) fn close(&mut self) {
        self.state = State::Closed;
        self.outstanding = None;
    }

    fn send_request(&mut self, parameters: &impl Parameters, out: &mut Vec<Vec<u8>>) {
        self.last_id = self.last_id.wrapping_add(1);
        let request = control::write(code::CONFIGURE_REQUEST, self.last_id, &parameters.request());
        out.push(request.clone());
        self.outstanding = Some(request);
    }

    /// A Configure packet. Malformed ones and answers to nothing are ignored.
    pub(crate) fn handle(
        &mut self,
        packet: &ControlPacket<'_>,
        parameters: &mut impl Parameters,
        out: &mut Vec<Vec<u8>>,
    ) -> Change {
        if self.state == State::Closed {
            return Change::None;
        }
        let Ok(options) = Options::parse(packet.data) else {
            return Change::None;
        };
        match packet.code {
            code::CONFIGURE_REQUEST => self.peer_request(packet, &options, parameters, out),
            code::CONFIGURE_ACK => self.peer_ack(packet, parameters, out),
            code::CONFIGURE_NAK => {
                if !self.answers_request(packet) {
                    return Change::None;
                }
                let acceptable = parameters.nak(&options);
                self.peer_refusal(acceptable, parameters, out)
            }
            code::CONFIGURE_REJECT => {
                if !self.answers_request(packet) {
                    return Change::None;
                }
                let acceptable = parameters.reject(&options);
                self.peer_refusal(acceptable, parameters, out)
            }
            _ => Change::None,
        }
    }

    fn answers_request(&self, packet: &ControlPacket<'_>) -> bool {
        self.outstanding.is_some() && packet.id == self.last_id
    }

    fn peer_request(
        &mut self,
        packet: &ControlPacket<'_>,
        options: &Options<'_>,
        parameters: &mut impl Parameters,
        out: &mut Vec<Vec<u8>>,
    ) -> Change {
        let was_opened = self.is_opened();
        if was_opened {
            self.open(parameters, out);
        }
        let (code, data, agreed) = match parameters.judge(options) {
            Judgement::Ack => (code::CONFIGURE_ACK, packet.data.to_vec(), true),
            Judgement::Nak(data) => (code::CONFIGURE_NAK, data, false),
            Judgement::Reject(data) => (code::CONFIGURE_REJECT, data, false),
        };
        out.push(control::write(code, packet.id, &data));
        self.state = match (self.state, agreed) {
            (State::AckReceived, true) => State::Opened,
            (State::AckReceived, false) => State::AckReceived,
            (_, true) => State::AckSent,
            (_, false) => State::ReqSent,
        };
        match (was_opened, self.state) {
            (true, _) => Change::Reopening,
            (false, State::Opened) => Change::Opened,
            (false, _) => Change::None,
        }
    }

    fn peer_ack(
        &mut self,
        packet: &ControlPacket<'_>,
        parameters: &impl Parameters,
        out: &mut Vec<Vec<u8>>,
    ) -> Change {
        // RFC 1661 section 5.2: the options must be those of the request, in their order.
        let same = self
            .outstanding
            .as_deref()
            .and_then(|request| request.get(control::HEADER_LEN..))
            == Some(packet.data);
        if !self.answers_request(packet) || !same {
            return Change::None;
        }
        self.outstanding = None;
        match self.state {
            State::ReqSent => {
                self.state = State::AckReceived;
                Change::Progress
            }
            State::AckSent => {
                self.state = State::Opened;
                self.failures = 0;
                Change::Opened
            }
            State::AckReceived => {
                self.state = State::ReqSent;
                self.send_request(parameters, out);
                Change::None
            }
            State::Closed | State::Opened => Change::None,
        }
    }

    fn peer_refusal(
        &mut self,
        acceptable: bool,
        parameters: &impl Parameters,
        out: &mut Vec<Vec<u8>>,
    ) -> Change {
        self.failures = self.failures.saturating_add(1);
        if !acceptable || self.failures > MAX_FAILURES {
            return Change::Refused;
        }
        if self.state == State::AckReceived {
            self.state = State::ReqSent;
        }
        self.send_request(parameters, out);
        Change::Progress
    }
}
