//! The gateway as the IPv6 router of a session: router advertisements, answers to solicitations (RFC 4861) and pings. Addresses and
//! prefixes by DHCPv6 are in [`super::dhcpv6`].

use core::net::Ipv6Addr;
use core::time::Duration;

use bng_wire::pppoe::protocol;

use super::Session;
use crate::DropReason;
use crate::codec::dhcpv6;
use crate::codec::ipv6::Packet;
use crate::codec::nd::{self, Received, RouterAdvertisement};
use crate::config::Rate;
use crate::context::Context;
use crate::counters::Outcome;
use crate::timers::Timer;

/// Solicitations and pings of one session that are answered.
pub(super) const SOLICITATION_RATE: Rate = Rate {
    per_second: 1,
    burst: 5,
};
/// Hop limit hosts are to send with (IANA's default TTL).
const CUR_HOP_LIMIT: u8 = 64;
/// Three times the longest advertisement interval (RFC 4861 section 6.2.1), seconds.
const ROUTER_LIFETIME_S: u16 = 1_800;
/// A day and four hours: a prefix is the session's own, and every advertisement renews it. Valid and preferred, seconds.
pub(super) const PREFIX_LIFETIMES_S: (u32, u32) = (86_400, 14_400);
/// MaxRtrAdvInterval and MinRtrAdvInterval (RFC 4861 section 6.2.1), milliseconds.
const INTERVAL_MS: (u64, u64) = (600_000, 200_000);
/// MAX_INITIAL_RTR_ADVERTISEMENTS and MAX_INITIAL_RTR_ADVERT_INTERVAL (RFC 4861 section 10).
const INITIAL_ADVERTISEMENTS: u8 = 3;
const INITIAL_INTERVAL: Duration = Duration::from_secs(16);

impl Session {
    /// IPv6CP has opened.
    pub(super) fn start_advertising(&mut self, cx: &mut Context<'_>) {
        self.advertisements = 0;
        self.address_declined = false;
        self.advertise_unasked(cx);
    }

    /// The advertisement timer expired, or advertising begins.
    pub(super) fn advertise_unasked(&mut self, cx: &mut Context<'_>) {
        self.advertise(nd::ALL_NODES, ROUTER_LIFETIME_S, cx);
        self.advertisements = self.advertisements.saturating_add(1);
        let (max, min) = INTERVAL_MS;
        let interval = if self.advertisements < INITIAL_ADVERTISEMENTS {
            INITIAL_INTERVAL
        } else {
            Duration::from_millis(min + cx.random.below(max - min))
        };
        let next = cx.now + interval;
        self.lower.timers.arm(Timer::RouterAdvertisement, next);
    }

    /// Arms the timer of a session adopted from a record; sessions adopted together must not stay in step.
    pub(super) fn resume_advertising(&mut self, cx: &mut Context<'_>) {
        self.advertisements = INITIAL_ADVERTISEMENTS;
        let first = Duration::from_millis(cx.random.below(INTERVAL_MS.1));
        let next = cx.now + first;
        self.lower.timers.arm(Timer::RouterAdvertisement, next);
    }

    /// Tells the subscriber that we are no router for it any more, if it has IPv6.
    pub(super) fn retract_advertisement(&mut self, cx: &mut Context<'_>) {
        if self.open.ipv6 {
            self.advertise(nd::ALL_NODES, 0, cx);
        }
    }

    /// `router_lifetime` 0 also ends the prefix's preference.
    fn advertise(&self, to: Ipv6Addr, router_lifetime: u16, cx: &mut Context<'_>) {
        let Some(ipv6) = self.grant.and_then(|grant| grant.ipv6) else {
            return;
        };
        let advertisement = RouterAdvertisement {
            hop_limit: CUR_HOP_LIMIT,
            has_dhcpv6: true,
            router_lifetime,
            prefix: ipv6.prefix,
            prefix_lifetimes: match router_lifetime {
                0 => (PREFIX_LIFETIMES_S.0, 0),
                _ => PREFIX_LIFETIMES_S,
            },
            mtu: self.lcp.options.our_mru().min(self.lower.peer_mru),
            dns: ipv6.dns,
        };
        let packet = advertisement.write(self.link_local(), to);
        self.lower.send(protocol::IPV6, &packet, cx);
        cx.counters.count(Outcome::RouterAdvertisements);
    }

    pub(super) fn link_local(&self) -> Ipv6Addr {
        nd::link_local(self.ipv6cp.options.ids().ours)
    }

    /// Handles a punted IPv6 packet of a session that may have IPv6.
    pub(super) fn receive_ipv6(
        &mut self,
        payload: &[u8],
        cx: &mut Context<'_>,
    ) -> Result<(), DropReason> {
        let packet = Packet::parse(payload)?;
        if let Some(message) = dhcpv6::to_server(&packet)? {
            return self.receive_dhcpv6(&packet, message, cx);
        }
        let received = nd::read(&packet)?;
        self.ipv6_heard()?;
        match received {
            Received::RouterSolicitation { source } => {
                self.take_solicitation(cx)?;
                cx.counters.count(Outcome::RouterSolicitations);
                self.advertise(answer_to(source), ROUTER_LIFETIME_S, cx);
                Ok(())
            }
            Received::NeighbourSolicitation { source, target } if target == self.link_local() => {
                self.take_solicitation(cx)?;
                let packet = nd::neighbour_advertisement(target, answer_to(source));
                self.lower.send(protocol::IPV6, &packet, cx);
                cx.counters.count(Outcome::NeighbourAdvertisements);
                Ok(())
            }
            Received::EchoRequest
                if packet.destination == self.link_local() && !packet.source.is_unspecified() =>
            {
                let reply = nd::echo_reply(&packet);
                if reply.len() > usize::from(self.lower.peer_mru) {
                    return Err(DropReason::PppOversize);
                }
                self.take_solicitation(cx)?;
                self.lower.send(protocol::IPV6, &reply, cx);
                cx.counters.count(Outcome::EchoReplies6);
                Ok(())
            }
            _ => Err(DropReason::Ipv6Ignored),
        }
    }

    /// The peer sends IPv6, which counts while IPv6CP is Opened.
    pub(super) fn ipv6_heard(&mut self) -> Result<(), DropReason> {
        if !self.open.ipv6 {
            return Err(DropReason::Ipv6NotOpen);
        }
        self.ipv6cp.peer_is_opened();
        Ok(())
    }

    fn take_solicitation(&mut self, cx: &Context<'_>) -> Result<(), DropReason> {
        if self.solicitations.take(SOLICITATION_RATE, cx.now) {
            Ok(())
        } else {
            Err(DropReason::SolicitationRate)
        }
    }
}

/// Where an answer goes. What is no link-local address need not be the subscriber's (RFC 4861 section 6.2.6 allows both).
const fn answer_to(source: Ipv6Addr) -> Ipv6Addr {
    if source.is_unicast_link_local() {
        source
    } else {
        nd::ALL_NODES
    }
}
