//! A session-stage packet by protocol and phase.

use bng_wire::pppoe::protocol;

use super::network::Ncp;
use super::{Phase, Session};
use crate::DropReason;
use crate::auth::Stage;
use crate::automaton::{self, State};
use crate::codec::control::{self, ControlPacket, HEADER_LEN};
use crate::codec::lcp::code;
use crate::context::Context;
use crate::counters::{Outcome, TerminateCause};
use crate::events::AuthProtocol;
use crate::negotiation::REJECT_RATE;

/// First protocol number of link-layer protocols (LCP, authentication); below are network data and NCPs.
const FIRST_LINK_PROTOCOL: u16 = 0xc000;

impl Session {
    /// Handles a PPP packet of this session.
    pub(crate) fn receive(
        &mut self,
        protocol: u16,
        payload: &[u8],
        cx: &mut Context<'_>,
    ) -> Result<(), DropReason> {
        if payload.len() > usize::from(self.lcp.options.link_mru()) {
            // Its answer could exceed the MTU.
            return Err(DropReason::PppOversize);
        }
        let result = match protocol {
            protocol::LCP => self.receive_lcp(payload, cx),
            protocol::PAP => self.receive_auth(AuthProtocol::Pap, payload, cx),
            protocol::CHAP => self.receive_auth(AuthProtocol::ChapMd5, payload, cx),
            protocol::IPCP => self.receive_ncp(Ncp::Ipcp, payload, cx),
            protocol::IPV6CP if self.may_have_ipv6() => self.receive_ncp(Ncp::Ipv6cp, payload, cx),
            protocol::IPV6 if self.may_have_ipv6() => self.receive_ipv6(payload, cx),
            protocol::IPV4 => Err(self.not_in_network().unwrap_or(DropReason::DataPunted)),
            _ => self.receive_unknown(protocol, payload, cx),
        };
        match result {
            // What is malformed leaves the session as it was.
            Err(reason) if reason.is_malformed() || reason == DropReason::EchoLooped => {}
            _ => {
                self.heard(cx.now);
                if protocol != protocol::LCP {
                    self.lcp.peer_is_opened();
                }
            }
        }
        result
    }

    /// Whether IPv6 was granted; else its protocols are unknown ones.
    fn may_have_ipv6(&self) -> bool {
        self.grant.is_some_and(|grant| grant.ipv6.is_some())
    }

    /// Why a network-phase packet does not count now.
    pub(super) const fn not_in_network(&self) -> Option<DropReason> {
        match self.phase {
            Phase::Network => None,
            Phase::Terminate | Phase::Dead => Some(DropReason::SessionEnding),
            Phase::Establish | Phase::Authenticate => Some(DropReason::BeforeNetwork),
        }
    }

    fn receive_lcp(&mut self, payload: &[u8], cx: &mut Context<'_>) -> Result<(), DropReason> {
        let packet = ControlPacket::parse(payload)?;
        match packet.code {
            code::PROTOCOL_REJECT => self.protocol_reject(packet, cx),
            code::ECHO_REQUEST
            | code::ECHO_REPLY
            | code::DISCARD_REQUEST
            | code::IDENTIFICATION
            | code::TIME_REMAINING => self.receive_echo(packet, cx),
            _ => {
                let step = self.lcp.receive(packet, &mut self.lower, cx)?;
                let cause = match packet.code {
                    code::TERMINATE_REQUEST | code::TERMINATE_ACK => TerminateCause::PeerTerminated,
                    _ => TerminateCause::ProtocolError,
                };
                self.after_lcp(step, cause, cx);
                Ok(())
            }
        }
    }

    fn protocol_reject(
        &mut self,
        packet: ControlPacket<'_>,
        cx: &mut Context<'_>,
    ) -> Result<(), DropReason> {
        let [high, low, ..] = *packet.data else {
            return Err(DropReason::ProtocolRejectShort);
        };
        if self.lcp.state() != State::Opened {
            return Err(DropReason::BeforeOpened);
        }
        let number = u16::from_be_bytes([high, low]);
        // What may be sent by grace of a protocol is refused with it. Where that is not open, nothing was sent.
        let of_data = Ncp::of_data(number).filter(|ncp| self.ncp_state(*ncp) == State::Opened);
        if let Some(ncp) = Ncp::of(number).or(of_data)
            && self.phase == Phase::Network
        {
            self.ncp_refused(ncp, cx);
            return Ok(());
        }
        match number {
            protocol::LCP => {
                let event = automaton::Event::RejectFatal;
                let step = self.lcp.event(event, &mut self.lower, cx);
                self.after_lcp(step, TerminateCause::ProtocolError, cx);
            }
            // What it refuses is to prove who it is, for the first time or again.
            _ if number == self.auth.protocol().number()
                && self.auth.stage() == Stage::Awaiting =>
            {
                self.terminate(TerminateCause::AuthRefused, cx);
            }
            _ => {}
        }
        Ok(())
    }

    /// RFC 1661 sections 5.8 and 5.9, RFC 1570 section 2: packets that begin with a magic number.
    fn receive_echo(
        &mut self,
        packet: ControlPacket<'_>,
        cx: &mut Context<'_>,
    ) -> Result<(), DropReason> {
        let (magic, data) = packet
            .data
            .split_first_chunk::<4>()
            .ok_or(DropReason::MagicTruncated)?;
        if matches!(packet.code, code::IDENTIFICATION | code::TIME_REMAINING) {
            return Ok(());
        }
        if self.lcp.state() != State::Opened {
            return Err(DropReason::BeforeOpened);
        }
        if packet.code == code::ECHO_REPLY {
            // Some clients return our magic number here. A looped link returns our requests, never a reply.
            cx.counters.count(Outcome::EchoRepliesReceived);
            return Ok(());
        }
        let our_magic = self.lcp.options.our_magic();
        let own = our_magic != 0 && u32::from_be_bytes(*magic) == our_magic;
        if self.lcp.options.looped(own, cx.config.max_failure) {
            self.terminate(TerminateCause::LoopedBack, cx);
        }
        if own {
            return Err(DropReason::EchoLooped);
        }
        if packet.code == code::ECHO_REQUEST {
            let mut reply = our_magic.to_be_bytes().to_vec();
            reply.extend_from_slice(self.lower.cut(data, HEADER_LEN + 4));
            let reply = control::write(code::ECHO_REPLY, packet.id, &reply);
            self.lower.send(protocol::LCP, &reply, cx);
            cx.counters.count(Outcome::EchoRepliesSent);
        }
        Ok(())
    }

    /// RFC 1661 section 5.7: Protocol-Reject, only in Opened.
    fn receive_unknown(
        &mut self,
        protocol: u16,
        payload: &[u8],
        cx: &mut Context<'_>,
    ) -> Result<(), DropReason> {
        if protocol < FIRST_LINK_PROTOCOL
            && let Some(reason) = self.not_in_network()
        {
            return Err(reason);
        }
        if self.lcp.state() != State::Opened {
            return Err(DropReason::BeforeOpened);
        }
        if !self.lower.rejects.take(REJECT_RATE, cx.now) {
            return Err(DropReason::RejectRate);
        }
        let mut rejected = protocol.to_be_bytes().to_vec();
        rejected.extend_from_slice(self.lower.cut(payload, HEADER_LEN + 2));
        let packet = control::write(code::PROTOCOL_REJECT, self.lcp.fresh_id(), &rejected);
        self.lower.send(protocol::LCP, &packet, cx);
        cx.counters.count(Outcome::ProtocolRejectsSent);
        Ok(())
    }
}
