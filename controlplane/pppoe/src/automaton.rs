//! The option negotiation automaton, RFC 1661 section 4: states, events, actions and the transition table.
//!
//! LCP and every network control protocol run on this one table. It is pure; what an action does is in
//! `negotiation.rs`. To check it against the RFC, read each arm of [`transition`] against the row of section 4.1
//! that has the event's name: the RFC's state numbers are the order of [`State`].

/// Automaton states in RFC order, 0 to 9 (RFC 1661 section 4.2).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum State {
    /// 0: lower layer down, no Open.
    #[default]
    Initial,
    /// 1: lower layer down, Open.
    Starting,
    /// 2: lower layer up, no Open.
    Closed,
    /// 3: lower layer up, Open, waiting for a Down or for the peer.
    Stopped,
    /// 4: Terminate-Request sent after a Close.
    Closing,
    /// 5: Terminate-Request sent or acknowledged while still Open.
    Stopping,
    /// 6: Configure-Request sent.
    ReqSent,
    /// 7: Configure-Request sent and acknowledged by the peer.
    AckRcvd,
    /// 8: Configure-Request sent, the peer's acknowledged by us.
    AckSent,
    /// 9: both Configure-Requests acknowledged.
    Opened,
}

impl State {
    /// All states in RFC order.
    pub const ALL: [Self; 10] = [
        Self::Initial,
        Self::Starting,
        Self::Closed,
        Self::Stopped,
        Self::Closing,
        Self::Stopping,
        Self::ReqSent,
        Self::AckRcvd,
        Self::AckSent,
        Self::Opened,
    ];

    /// The state's name as RFC 1661 writes it.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Initial => "Initial",
            Self::Starting => "Starting",
            Self::Closed => "Closed",
            Self::Stopped => "Stopped",
            Self::Closing => "Closing",
            Self::Stopping => "Stopping",
            Self::ReqSent => "Req-Sent",
            Self::AckRcvd => "Ack-Rcvd",
            Self::AckSent => "Ack-Sent",
            Self::Opened => "Opened",
        }
    }

    /// Whether the Restart timer runs in this state (RFC 1661 section 4.2): Closing to Ack-Sent.
    #[must_use]
    pub const fn runs_restart_timer(self) -> bool {
        matches!(
            self,
            Self::Closing | Self::Stopping | Self::ReqSent | Self::AckRcvd | Self::AckSent
        )
    }
}

/// Automaton events (RFC 1661 section 4.3).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Event {
    /// The lower layer is ready.
    Up,
    /// The lower layer is gone.
    Down,
    /// Administrative Open.
    Open,
    /// Administrative Close.
    Close,
    /// TO+: Restart timer expired, counter above zero.
    TimeoutRetry,
    /// TO-: Restart timer expired, counter at zero.
    TimeoutFinal,
    /// RCR+: acceptable Configure-Request.
    ConfigureRequestGood,
    /// RCR-: unacceptable Configure-Request.
    ConfigureRequestBad,
    /// RCA: valid Configure-Ack.
    ConfigureAck,
    /// RCN: valid Configure-Nak or Configure-Reject.
    ConfigureNakOrReject,
    /// RTR: Terminate-Request.
    TerminateRequest,
    /// RTA: Terminate-Ack.
    TerminateAck,
    /// RUC: unknown code.
    UnknownCode,
    /// RXJ+: a Code-Reject or Protocol-Reject we can live with.
    RejectPermitted,
    /// RXJ-: a Code-Reject or Protocol-Reject we cannot live with.
    RejectFatal,
    /// RXR: Echo-Request, Echo-Reply or Discard-Request.
    EchoOrDiscard,
}

impl Event {
    /// All events in the order of the RFC's rows.
    pub const ALL: [Self; 16] = [
        Self::Up,
        Self::Down,
        Self::Open,
        Self::Close,
        Self::TimeoutRetry,
        Self::TimeoutFinal,
        Self::ConfigureRequestGood,
        Self::ConfigureRequestBad,
        Self::ConfigureAck,
        Self::ConfigureNakOrReject,
        Self::TerminateRequest,
        Self::TerminateAck,
        Self::UnknownCode,
        Self::RejectPermitted,
        Self::RejectFatal,
        Self::EchoOrDiscard,
    ];
}

/// Automaton actions (RFC 1661 section 4.4), under the RFC's abbreviations.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Action {
    /// This-Layer-Up.
    Tlu,
    /// This-Layer-Down.
    Tld,
    /// This-Layer-Started.
    Tls,
    /// This-Layer-Finished.
    Tlf,
    /// Initialize-Restart-Count.
    Irc,
    /// Zero-Restart-Count.
    Zrc,
    /// Send-Configure-Request.
    Scr,
    /// Send-Configure-Ack.
    Sca,
    /// Send-Configure-Nak or -Reject.
    Scn,
    /// Send-Terminate-Request.
    Str,
    /// Send-Terminate-Ack.
    Sta,
    /// Send-Code-Reject.
    Scj,
    /// Send-Echo-Reply.
    Ser,
}

/// The cell of the RFC 1661 section 4.1 table for `state` and `event`: actions in order and the next state.
///
/// `None` is the RFC's dash, a combination that cannot happen; the caller ignores the event. The RFC's restart
/// option (`r`) and passive option (`p`) are not used; the crossed-connection cells (`x`) are as printed.
#[must_use]
pub const fn transition(state: State, event: Event) -> Option<(&'static [Action], State)> {
    use Action::*;
    use Event as E;
    use State::*;
    Some(match (event, state) {
        (E::Up, Initial) => (&[], Closed),
        (E::Up, Starting) => (&[Irc, Scr], ReqSent),

        (E::Down, Closed | Closing) => (&[], Initial),
        (E::Down, Stopped) => (&[Tls], Starting),
        (E::Down, Stopping | ReqSent | AckRcvd | AckSent) => (&[], Starting),
        (E::Down, Opened) => (&[Tld], Starting),

        (E::Open, Initial) => (&[Tls], Starting),
        (E::Open, Closed) => (&[Irc, Scr], ReqSent),
        (E::Open, Closing) => (&[], Stopping),
        (E::Open, Starting | Stopped | Stopping | ReqSent | AckRcvd | AckSent | Opened) => {
            (&[], state)
        }

        (E::Close, Starting) => (&[Tlf], Initial),
        (E::Close, Initial | Closed | Closing) => (&[], state),
        (E::Close, Stopped) => (&[], Closed),
        (E::Close, Stopping) => (&[], Closing),
        (E::Close, ReqSent | AckRcvd | AckSent) => (&[Irc, Str], Closing),
        (E::Close, Opened) => (&[Tld, Irc, Str], Closing),

        (E::TimeoutRetry, Closing | Stopping) => (&[Str], state),
        (E::TimeoutRetry, ReqSent | AckRcvd) => (&[Scr], ReqSent),
        (E::TimeoutRetry, AckSent) => (&[Scr], AckSent),

        (E::TimeoutFinal, Closing) => (&[Tlf], Closed),
        (E::TimeoutFinal, Stopping | ReqSent | AckRcvd | AckSent) => (&[Tlf], Stopped),

        (E::ConfigureRequestGood, Closed) => (&[Sta], Closed),
        (E::ConfigureRequestGood, Stopped) => (&[Irc, Scr, Sca], AckSent),
        (E::ConfigureRequestGood, Closing | Stopping) => (&[], state),
        (E::ConfigureRequestGood, ReqSent | AckSent) => (&[Sca], AckSent),
        (E::ConfigureRequestGood, AckRcvd) => (&[Sca, Tlu], Opened),
        (E::ConfigureRequestGood, Opened) => (&[Tld, Scr, Sca], AckSent),

        (E::ConfigureRequestBad, Closed) => (&[Sta], Closed),
        (E::ConfigureRequestBad, Stopped) => (&[Irc, Scr, Scn], ReqSent),
        (E::ConfigureRequestBad, Closing | Stopping) => (&[], state),
        (E::ConfigureRequestBad, ReqSent | AckSent) => (&[Scn], ReqSent),
        (E::ConfigureRequestBad, AckRcvd) => (&[Scn], AckRcvd),
        (E::ConfigureRequestBad, Opened) => (&[Tld, Scr, Scn], ReqSent),

        (E::ConfigureAck, Closed | Stopped) => (&[Sta], state),
        (E::ConfigureAck, Closing | Stopping) => (&[], state),
        (E::ConfigureAck, ReqSent) => (&[Irc], AckRcvd),
        (E::ConfigureAck, AckRcvd) => (&[Scr], ReqSent),
        (E::ConfigureAck, AckSent) => (&[Irc, Tlu], Opened),
        (E::ConfigureAck, Opened) => (&[Tld, Scr], ReqSent),

        (E::ConfigureNakOrReject, Closed | Stopped) => (&[Sta], state),
        (E::ConfigureNakOrReject, Closing | Stopping) => (&[], state),
        (E::ConfigureNakOrReject, ReqSent) => (&[Irc, Scr], ReqSent),
        (E::ConfigureNakOrReject, AckRcvd) => (&[Scr], ReqSent),
        (E::ConfigureNakOrReject, AckSent) => (&[Irc, Scr], AckSent),
        (E::ConfigureNakOrReject, Opened) => (&[Tld, Scr], ReqSent),

        (E::TerminateRequest, Closed | Stopped | Closing | Stopping) => (&[Sta], state),
        (E::TerminateRequest, ReqSent | AckRcvd | AckSent) => (&[Sta], ReqSent),
        (E::TerminateRequest, Opened) => (&[Tld, Zrc, Sta], Stopping),

        (E::TerminateAck, Closed | Stopped | ReqSent | AckSent) => (&[], state),
        (E::TerminateAck, Closing) => (&[Tlf], Closed),
        (E::TerminateAck, Stopping) => (&[Tlf], Stopped),
        (E::TerminateAck, AckRcvd) => (&[], ReqSent),
        (E::TerminateAck, Opened) => (&[Tld, Scr], ReqSent),

        (
            E::UnknownCode,
            Closed | Stopped | Closing | Stopping | ReqSent | AckRcvd | AckSent | Opened,
        ) => (&[Scj], state),

        (
            E::RejectPermitted,
            Closed | Stopped | Closing | Stopping | ReqSent | AckSent | Opened,
        ) => (&[], state),
        (E::RejectPermitted, AckRcvd) => (&[], ReqSent),

        (E::RejectFatal, Closed | Closing) => (&[Tlf], Closed),
        (E::RejectFatal, Stopped | Stopping | ReqSent | AckRcvd | AckSent) => (&[Tlf], Stopped),
        (E::RejectFatal, Opened) => (&[Tld, Irc, Str], Stopping),

        (E::EchoOrDiscard, Closed | Stopped | Closing | Stopping | ReqSent | AckRcvd | AckSent) => {
            (&[], state)
        }
        (E::EchoOrDiscard, Opened) => (&[Ser], Opened),

        (E::Up, _)
        | (E::Down, Initial | Starting)
        | (E::TimeoutRetry | E::TimeoutFinal, Initial | Starting | Closed | Stopped | Opened)
        | (
            E::ConfigureRequestGood
            | E::ConfigureRequestBad
            | E::ConfigureAck
            | E::ConfigureNakOrReject
            | E::TerminateRequest
            | E::TerminateAck
            | E::UnknownCode
            | E::RejectPermitted
            | E::RejectFatal
            | E::EchoOrDiscard,
            Initial | Starting,
        ) => return None,
    })
}
