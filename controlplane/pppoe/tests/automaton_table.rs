//! The transition table, cell by cell, against the table of RFC 1661 section 4.1 in text form: the automaton's cells, and
//! what a live session sends and becomes in the cells that a peer, the clock or an operator can reach.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "a test"
)]

mod peer;

use bng_pppoe::automaton::{Action, Event, State, transition};
use bng_pppoe::codec::frame::{self, Body};
use bng_pppoe::codec::lcp::code;
use bng_pppoe::{DropReason, Outcome, SessionRef, TerminateCause};
use bng_wire::pppoe::{self, protocol};
use peer::{Client, World, as_control, config};

/// Rows in the RFC's order; cells for states 0 to 9, `-` where the RFC has a dash, footnote letters left out.
const RFC_1661_4_1: &str = "
Up    2      irc,scr/6  -          -               -      -      -          -          -          -
Down  -      -          0          tls/1           0      1      1          1          1          tld/1
Open  tls/1  1          irc,scr/6  3               5      5      6          7          8          9
Close 0      tlf/0      2          2               4      4      irc,str/4  irc,str/4  irc,str/4  tld,irc,str/4
TO+   -      -          -          -               str/4  str/5  scr/6      scr/6      scr/8      -
TO-   -      -          -          -               tlf/2  tlf/3  tlf/3      tlf/3      tlf/3      -
RCR+  -      -          sta/2      irc,scr,sca/8   4      5      sca/8      sca,tlu/9  sca/8      tld,scr,sca/8
RCR-  -      -          sta/2      irc,scr,scn/6   4      5      scn/6      scn/7      scn/6      tld,scr,scn/6
RCA   -      -          sta/2      sta/3           4      5      irc/7      scr/6      irc,tlu/9  tld,scr/6
RCN   -      -          sta/2      sta/3           4      5      irc,scr/6  scr/6      irc,scr/8  tld,scr/6
RTR   -      -          sta/2      sta/3           sta/4  sta/5  sta/6      sta/6      sta/6      tld,zrc,sta/5
RTA   -      -          2          3               tlf/2  tlf/3  6          6          8          tld,scr/6
RUC   -      -          scj/2      scj/3           scj/4  scj/5  scj/6      scj/7      scj/8      scj/9
RXJ+  -      -          2          3               4      5      6          6          8          9
RXJ-  -      -          tlf/2      tlf/3           tlf/2  tlf/3  tlf/3      tlf/3      tlf/3      tld,irc,str/5
RXR   -      -          2          3               4      5      6          7          8          ser/9
";

fn action_name(action: Action) -> &'static str {
    match action {
        Action::Tlu => "tlu",
        Action::Tld => "tld",
        Action::Tls => "tls",
        Action::Tlf => "tlf",
        Action::Irc => "irc",
        Action::Zrc => "zrc",
        Action::Scr => "scr",
        Action::Sca => "sca",
        Action::Scn => "scn",
        Action::Str => "str",
        Action::Sta => "sta",
        Action::Scj => "scj",
        Action::Ser => "ser",
    }
}

fn cell(state: State, event: Event) -> String {
    let Some((actions, next)) = transition(state, event) else {
        return "-".into();
    };
    let next = State::ALL.iter().position(|s| *s == next).unwrap();
    if actions.is_empty() {
        return next.to_string();
    }
    let names: Vec<_> = actions.iter().copied().map(action_name).collect();
    format!("{}/{next}", names.join(","))
}

#[test]
fn every_cell_is_the_cell_of_rfc_1661() {
    let rows: Vec<&str> = RFC_1661_4_1.trim().lines().collect();
    assert_eq!(rows.len(), Event::ALL.len());
    let mut checked = 0;
    for (row, event) in rows.iter().zip(Event::ALL) {
        let mut cells = row.split_whitespace();
        let name = cells.next().unwrap();
        for state in State::ALL {
            let expected = cells.next().unwrap();
            assert_eq!(
                cell(state, event),
                expected,
                "event {name} in {}",
                state.name()
            );
            checked += 1;
        }
        assert_eq!(cells.next(), None, "row {name}");
    }
    assert_eq!(checked, 160);
}

#[test]
fn the_restart_timer_runs_from_closing_to_ack_sent() {
    let running: Vec<_> = State::ALL
        .iter()
        .filter(|s| s.runs_restart_timer())
        .map(|s| s.name())
        .collect();
    assert_eq!(
        running,
        ["Closing", "Stopping", "Req-Sent", "Ack-Rcvd", "Ack-Sent"]
    );
}

/// A session whose LCP is in some state, its client, and identifier and options of the last Configure-Request it sent.
struct Link {
    world: World,
    client: Client,
    session: SessionRef,
    request: (u8, Vec<u8>),
}

impl Link {
    /// A session in Req-Sent, which has sent its Configure-Request twice: the peer's first request makes a session that has
    /// sent one send another at once, which is no matter of the automaton's.
    fn req_sent() -> Self {
        let mut world = World::new(config());
        let mut client = Client::new(1);
        let pado = world.feed(&client.padi());
        let padr = client.react(&pado[0]);
        let frames = world.feed(&padr[0]);
        client.react(&frames[0]);
        let session = world.session();
        let mut link = Self {
            world,
            client,
            session,
            request: (0, vec![]),
        };
        assert_eq!(link.timeout(), ["scr"]);
        link
    }

    fn in_state(state: State) -> Self {
        let mut link = Self::req_sent();
        let steps: &[(Event, State)] = match state {
            State::ReqSent => &[],
            State::AckRcvd => &[(Event::ConfigureAck, State::AckRcvd)],
            State::AckSent => &[(Event::ConfigureRequestGood, State::AckSent)],
            State::Opened => &[
                (Event::ConfigureRequestGood, State::AckSent),
                (Event::ConfigureAck, State::Opened),
            ],
            State::Closing => &[(Event::Close, State::Closing)],
            // From Opened, with requests left to send.
            State::Stopping => &[
                (Event::ConfigureRequestGood, State::AckSent),
                (Event::ConfigureAck, State::Opened),
                (Event::RejectFatal, State::Stopping),
            ],
            _ => panic!("no session stays in {}", state.name()),
        };
        for (event, becomes) in steps {
            link.happens(*event);
            assert_eq!(link.state(), Some(*becomes));
        }
        link
    }

    /// `None` when the session is over.
    fn state(&self) -> Option<State> {
        self.world.ac.session(self.session).map(|info| info.lcp)
    }

    /// What the actions of RFC 1661 section 4.4 that send something are called, of frames in order; a PADT is what this layer
    /// tells the one below when it is finished.
    fn sent(&mut self, frames: &[Vec<u8>]) -> Vec<&'static str> {
        let mut names = vec![];
        for bytes in frames {
            if let Body::Discovery { code, .. } = frame::parse(bytes).unwrap().body {
                assert_eq!(code, pppoe::code::PADT);
                names.push("tlf");
                continue;
            }
            let (number, packet) = as_control(bytes);
            assert_eq!(number, protocol::LCP);
            if packet.code == code::CONFIGURE_REQUEST {
                self.request = (packet.id, packet.data.to_vec());
            }
            names.push(match packet.code {
                code::CONFIGURE_REQUEST => "scr",
                code::CONFIGURE_ACK => "sca",
                code::CONFIGURE_NAK | code::CONFIGURE_REJECT => "scn",
                code::TERMINATE_REQUEST => "str",
                code::TERMINATE_ACK => "sta",
                code::CODE_REJECT => "scj",
                code::ECHO_REPLY => "ser",
                other => panic!("LCP code {other}"),
            });
        }
        names
    }

    /// The next timer expires.
    fn timeout(&mut self) -> Vec<&'static str> {
        let next = self.world.ac.poll_timeout().unwrap();
        let frames = self
            .world
            .pass(next.since(self.world.now).as_millis() as u64);
        let frames: Vec<_> = frames.into_iter().map(|(_, bytes)| bytes).collect();
        self.sent(&frames)
    }

    /// What the session sends at an event.
    fn happens(&mut self, event: Event) -> Vec<&'static str> {
        let (id, options) = self.request.clone();
        let client = &mut self.client;
        let bytes = match event {
            Event::ConfigureRequestGood => client.lcp_request(),
            // An MRU below the floor.
            Event::ConfigureRequestBad => client.lcp(code::CONFIGURE_REQUEST, 77, &[1, 4, 0, 64]),
            Event::ConfigureAck => client.lcp(code::CONFIGURE_ACK, id, &options),
            Event::ConfigureNakOrReject => client.lcp(code::CONFIGURE_NAK, id, &[1, 4, 5, 0]),
            Event::TerminateRequest => client.lcp(code::TERMINATE_REQUEST, 78, &[]),
            Event::TerminateAck => client.lcp(code::TERMINATE_ACK, id, &[]),
            Event::UnknownCode => client.lcp(99, 79, &[]),
            Event::RejectPermitted => client.lcp(code::CODE_REJECT, 80, &[99, 1, 0, 4]),
            Event::RejectFatal => client.lcp(code::CODE_REJECT, 81, &[1, 1, 0, 4]),
            Event::EchoOrDiscard => client.lcp(code::ECHO_REQUEST, 82, &[0; 4]),
            Event::TimeoutRetry => return self.timeout(),
            Event::TimeoutFinal => {
                // All that may be sent is sent, in the same state.
                let state = self.state();
                loop {
                    let sent = self.timeout();
                    if !matches!(sent[..], ["scr" | "str"]) {
                        return sent;
                    }
                    assert_eq!(self.state(), state);
                }
            }
            Event::Close => {
                let (now, session) = (self.world.now, self.session);
                self.world
                    .ac
                    .terminate(now, session, TerminateCause::Operator);
                let frames: Vec<_> = self.world.drain().into_iter().map(|it| it.frame).collect();
                return self.sent(&frames);
            }
            Event::Up | Event::Down | Event::Open => panic!("not of a session's life"),
        };
        let frames = self.world.feed(&bytes);
        self.sent(&frames)
    }
}

/// Whether a live session comes to this cell.
fn is_reachable(state: State, event: Event) -> bool {
    match (event, state) {
        // Nothing is left of a session in the first four; the lower layer comes with it and goes with it.
        (_, State::Initial | State::Starting | State::Closed | State::Stopped) => false,
        (Event::Up | Event::Down | Event::Open, _) => false,
        // It is closed once.
        (Event::Close, State::Closing | State::Stopping) => false,
        // No timer runs.
        (Event::TimeoutRetry | Event::TimeoutFinal, State::Opened) => false,
        // Entered with all requests left, and left at the first timeout.
        (Event::TimeoutFinal, State::AckRcvd) => false,
        _ => true,
    }
}

#[test]
fn a_live_session_does_and_becomes_what_the_reachable_cells_say() {
    let visible = ["scr", "sca", "scn", "str", "sta", "scj", "ser", "tlf"];
    let mut checked = 0;
    for (row, event) in RFC_1661_4_1.trim().lines().zip(Event::ALL) {
        for (cell, state) in row.split_whitespace().skip(1).zip(State::ALL) {
            if !is_reachable(state, event) {
                continue;
            }
            let name = format!(
                "{} in {}",
                row.split_whitespace().next().unwrap(),
                state.name()
            );
            let mut link = Link::in_state(state);
            let sent = link.happens(event);
            checked += 1;
            // An answer to a request that was answered does not count at all (RFC 1661 section 5.2).
            let is_answered = matches!(
                (event, state),
                (
                    Event::ConfigureAck | Event::ConfigureNakOrReject,
                    State::AckRcvd | State::Opened
                )
            );
            if is_answered {
                let world = &link.world;
                let counted = match world.last_drop {
                    // The request was sent twice.
                    None => world.count(Outcome::AnswersRepeated),
                    Some(reason) => {
                        assert_eq!(reason, DropReason::StaleReply, "{name}");
                        world.dropped(reason)
                    }
                };
                assert_eq!(counted, 1, "{name}");
                assert_eq!((sent, link.state()), (vec![], Some(state)), "{name}");
                continue;
            }
            let (actions, next) = cell.split_once('/').unwrap_or(("", cell));
            let expected: Vec<_> = actions
                .split(',')
                .filter(|action| visible.contains(action))
                .collect();
            assert_eq!(sent, expected, "{name}");
            let next = State::ALL[next.parse::<usize>().unwrap()];
            // Nothing is left of a session that is closed or stopped.
            let left = Some(next).filter(|it| !matches!(it, State::Closed | State::Stopped));
            assert_eq!(link.state(), left, "{name}");
        }
    }
    assert_eq!(checked, 73);
}
