//! The gateway as the DHCPv6 server of a session (RFC 8415): its delegated prefix (IA_PD), one address of its /64 (IA_NA) and
//! DNS servers.
//!
//! What there is to give is the session's own from its grant on, and routed to it for as long as it has IPv6. So nothing is
//! bound or freed here: whoever asks on the link is given the same, a Renew is answered like a Request, after a restart too,
//! and a Release changes nothing but a counter. The one thing kept is that the subscriber declined its address.
//!
//! Where a message has several identity associations of a kind, the one that names the lease takes it, or else the first.
//! Temporary addresses are not given: a subscriber makes its own within its /64 (RFC 8981), and is told that there is none.

use alloc::vec::Vec;
use core::net::Ipv6Addr;

use bng_wire::pppoe::protocol;

use super::Session;
use super::ipv6::PREFIX_LIFETIMES_S;
use crate::DropReason;
use crate::codec::dhcpv6::{
    self, CLIENT_PORT, Ia, IaKind, Lease, Leased, Message, SERVER_PORT, Status, Writer, kind,
    option,
};
use crate::codec::ipv6::Packet;
use crate::config::Rate;
use crate::context::Context;
use crate::counters::Outcome;

/// Messages of one session that are answered. A CPE that asks twice for two kinds when it comes up needs four at once.
pub(super) const DHCPV6_RATE: Rate = Rate {
    per_second: 1,
    burst: 8,
};
/// The lower half of the address a subscriber is given: the second of its /64. The first is the subnet-router anycast
/// address (RFC 4291 section 2.6.1), and ::1 is what people give a router by hand. That the subscriber makes the same
/// address of its own interface identifier does no harm: it is alone on its link.
const ADDRESS_ID: u128 = 2;
/// T1 and T2: half of and four fifths of the preferred lifetime (RFC 8415 section 21.4), seconds.
const TIMES_S: (u32, u32) = (PREFIX_LIFETIMES_S.1 / 2, PREFIX_LIFETIMES_S.1 / 5 * 4);
/// "Take this one and wait for no other" (RFC 8415 section 18.2.1): there is no other server on the link.
const PREFERENCE: u8 = 255;

/// Identity associations a message may have, and addresses and prefixes in all of them: a CPE has one of each kind. Their
/// answers fit the smallest MTU.
const MAX_IAS: usize = 8;
const MAX_LEASES: usize = 8;

/// Why a client names leases.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Purpose {
    /// Solicit.
    Look,
    /// Request.
    Take,
    /// Renew, Rebind.
    Extend,
}

impl Session {
    /// Handles a DHCPv6 message to a server.
    pub(super) fn receive_dhcpv6(
        &mut self,
        packet: &Packet<'_>,
        payload: &[u8],
        cx: &mut Context<'_>,
    ) -> Result<(), DropReason> {
        let message = Message::parse(payload)?;
        check_identifiers(&message)?;
        self.ipv6_heard()?;
        let leases = message.ias().flat_map(|ia| ia.leases());
        if message.ias().count() > MAX_IAS || leases.count() > MAX_LEASES {
            return Err(DropReason::Dhcpv6TooMany);
        }
        let server = self.duid();
        if message.server.is_some_and(|it| it != server) {
            return Err(DropReason::Dhcpv6OtherServer);
        }
        if !packet.source.is_unicast_link_local() {
            return Err(DropReason::Dhcpv6Source);
        }
        let is_unicast = self.is_unicast(packet.destination, message.kind)?;
        if !self.dhcpv6.take(DHCPV6_RATE, cx.now) {
            return Err(DropReason::Dhcpv6Rate);
        }
        let answer = match is_unicast {
            true => self.use_multicast(&message, cx),
            false => self.answer(&message, cx)?,
        };
        let ports = (SERVER_PORT, CLIENT_PORT);
        let reply = dhcpv6::datagram(self.link_local(), packet.source, ports, &answer);
        self.lower.send(protocol::IPV6, &reply, cx);
        Ok(())
    }

    /// DUID-LL of the access port (RFC 8415 section 11.4).
    fn duid(&self) -> [u8; 10] {
        let [a, b, c, d, e, f] = self.lower.header.src.0;
        [0, 3, 0, 1, a, b, c, d, e, f]
    }

    /// Whether a message came to our own address and not to all servers. What any server may answer must not (RFC 8415
    /// section 16).
    fn is_unicast(&self, destination: Ipv6Addr, kind: u8) -> Result<bool, DropReason> {
        let is_for_us = matches!(
            kind,
            kind::REQUEST | kind::RENEW | kind::RELEASE | kind::DECLINE
        );
        match destination {
            dhcpv6::ALL_SERVERS => Ok(false),
            unicast if is_for_us && unicast == self.link_local() => Ok(true),
            _ => Err(DropReason::Dhcpv6Destination),
        }
    }

    /// A reply that begins with who asked and who answers.
    fn reply_to(&self, message: &Message<'_>, kind: u8) -> Writer {
        let mut out = Writer::new(kind, message.transaction);
        if let Some(client) = message.client {
            out.put(option::CLIENT_ID, client);
        }
        out.put(option::SERVER_ID, &self.duid());
        out
    }

    /// We allow no client to speak to us alone, since we never send the Server Unicast option: the message has no effect, and
    /// the client is to send it again to all servers (RFC 8415 section 18.4).
    fn use_multicast(&self, message: &Message<'_>, cx: &mut Context<'_>) -> Vec<u8> {
        cx.counters.count(Outcome::Dhcpv6Unicasts);
        cx.counters.count(Outcome::Dhcpv6Replies);
        let mut out = self.reply_to(message, kind::REPLY);
        out.put_status(Status::UseMulticast);
        out.finish()
    }

    fn answer(
        &mut self,
        message: &Message<'_>,
        cx: &mut Context<'_>,
    ) -> Result<Vec<u8>, DropReason> {
        let is_rapid =
            self.gives_any(message) && message.options.find(option::RAPID_COMMIT).is_some();
        let is_offer = message.kind == kind::SOLICIT && !is_rapid;
        let (kind, outcome) = match is_offer {
            true => (kind::ADVERTISE, Outcome::Dhcpv6Advertises),
            false => (kind::REPLY, Outcome::Dhcpv6Replies),
        };
        let mut out = self.reply_to(message, kind);
        match message.kind {
            kind::SOLICIT => {
                match is_offer {
                    true => out.put(option::PREFERENCE, &[PREFERENCE]),
                    false => out.put(option::RAPID_COMMIT, &[]),
                }
                self.put_leases(&mut out, message, Purpose::Look);
            }
            kind::REQUEST => self.put_leases(&mut out, message, Purpose::Take),
            kind::RENEW | kind::REBIND => self.put_leases(&mut out, message, Purpose::Extend),
            kind::CONFIRM => out.put_status(self.confirm(message)?),
            kind::RELEASE => {
                cx.counters.count(Outcome::Dhcpv6Releases);
                self.put_unbound(&mut out, message);
            }
            kind::DECLINE => {
                cx.counters.count(Outcome::Dhcpv6Declines);
                self.put_unbound(&mut out, message);
                let own = self.lease(IaKind::Address);
                let ias = message.ias().filter(|ia| ia.kind == IaKind::Address);
                self.address_declined |= ias
                    .flat_map(|ia| ia.leases())
                    .any(|it| Some(it.lease) == own);
            }
            _ => {}
        }
        self.put_dns(&mut out, message);
        cx.counters.count(outcome);
        Ok(out.finish())
    }

    /// What the session has of a kind.
    fn lease(&self, kind: IaKind) -> Option<Lease> {
        let ipv6 = self.grant?.ipv6?;
        match kind {
            IaKind::Temporary => None,
            IaKind::Address if self.address_declined => None,
            IaKind::Address => {
                let address = ipv6.prefix.to_bits() | ADDRESS_ID;
                Some(Lease::Address(Ipv6Addr::from_bits(address)))
            }
            IaKind::Prefix => ipv6.delegated.map(|(it, length)| Lease::Prefix(it, length)),
        }
    }

    fn gives_any(&self, message: &Message<'_>) -> bool {
        message.ias().any(|ia| self.lease(ia.kind).is_some())
    }

    /// Answers every identity association with a lease or with why there is none (RFC 8415 sections 18.3.1 to 18.3.5).
    fn put_leases(&self, out: &mut Writer, message: &Message<'_>, purpose: Purpose) {
        let takers = [IaKind::Address, IaKind::Prefix].map(|kind| {
            let own = self.lease(kind)?;
            taker(message, kind, own)
        });
        for (at, ia) in message.ias().enumerate() {
            let own = self.lease(ia.kind).filter(|_| takers.contains(&Some(at)));
            let status = match (own, ia.kind) {
                _ if purpose == Purpose::Take && self.is_of_another_link(&ia) => Status::NotOnLink,
                (Some(own), _) => {
                    out.put_ia(ia.kind, ia.id, TIMES_S, |out| {
                        put_lease(out, own, &ia, purpose);
                    });
                    continue;
                }
                (None, _) if purpose == Purpose::Extend => Status::NoBinding,
                (None, IaKind::Address | IaKind::Temporary) => Status::NoAddrsAvail,
                (None, IaKind::Prefix) => Status::NoPrefixAvail,
            };
            out.put_ia(ia.kind, ia.id, (0, 0), |out| out.put_status(status));
        }
    }

    /// An address is asked for that no subscriber of this link can have.
    fn is_of_another_link(&self, ia: &Ia<'_>) -> bool {
        ia.kind.has_addresses()
            && ia.leases().any(|it| {
                let address = it.lease.address();
                !address.is_unspecified() && !self.is_on_link(address)
            })
    }

    fn is_on_link(&self, address: Ipv6Addr) -> bool {
        let prefix = self.grant.and_then(|it| it.ipv6).map(|it| it.prefix);
        prefix.is_some_and(|it| (it.to_bits() ^ address.to_bits()) >> 64 == 0)
    }

    /// Whether all addresses in a Confirm are of this link (RFC 8415 section 18.3.3).
    fn confirm(&self, message: &Message<'_>) -> Result<Status, DropReason> {
        let addresses = || {
            let ias = message.ias().filter(|ia| ia.kind.has_addresses());
            ias.flat_map(|ia| ia.leases())
        };
        if addresses().next().is_none() {
            return Err(DropReason::Dhcpv6NothingToConfirm);
        }
        match addresses().all(|it| self.is_on_link(it.lease.address())) {
            true => Ok(Status::Success),
            false => Ok(Status::NotOnLink),
        }
    }

    /// Success, and the identity associations that hold nothing of the session's (RFC 8415 sections 18.3.7 and 18.3.8).
    fn put_unbound(&self, out: &mut Writer, message: &Message<'_>) {
        out.put_status(Status::Success);
        for ia in message.ias() {
            let own = self.lease(ia.kind);
            if own.is_none() || ia.leases().any(|it| Some(it.lease) != own) {
                out.put_ia(ia.kind, ia.id, (0, 0), |out| {
                    out.put_status(Status::NoBinding);
                });
            }
        }
    }

    /// DNS servers, if they are asked for (RFC 3646 section 3).
    fn put_dns(&self, out: &mut Writer, message: &Message<'_>) {
        let servers = self.grant.and_then(|it| it.ipv6).map(|it| it.dns);
        let servers = servers.iter().flatten().flatten();
        let octets: Vec<u8> = servers.flat_map(Ipv6Addr::octets).collect();
        if !octets.is_empty() && message.asks_for(option::DNS_SERVERS) {
            out.put(option::DNS_SERVERS, &octets);
        }
    }
}

/// RFC 8415 sections 16.2 to 16.12: who has to say who it is, and whom it speaks to.
fn check_identifiers(message: &Message<'_>) -> Result<(), DropReason> {
    let (client, server) = (message.client.is_some(), message.server.is_some());
    let is_right = match message.kind {
        kind::SOLICIT | kind::CONFIRM | kind::REBIND => client && !server,
        kind::REQUEST | kind::RENEW | kind::RELEASE | kind::DECLINE => client && server,
        kind::INFORMATION_REQUEST => message.ias().next().is_none(),
        _ => return Err(DropReason::Dhcpv6Type),
    };
    match is_right {
        true => Ok(()),
        false => Err(DropReason::Dhcpv6Identifier),
    }
}

/// The place of the identity association that gets the lease of a kind.
fn taker(message: &Message<'_>, kind: IaKind, own: Lease) -> Option<usize> {
    let of_kind = || {
        let all = message.ias().enumerate();
        all.filter(move |(_, ia)| ia.kind == kind)
    };
    of_kind()
        .find(|(_, ia)| ia.leases().any(|it| it.lease == own))
        .or_else(|| of_kind().next())
        .map(|(at, _)| at)
}

/// The lease; other ones a client would extend have no life left (RFC 8415 section 18.3.4).
fn put_lease(out: &mut Writer, own: Lease, ia: &Ia<'_>, purpose: Purpose) {
    let (valid, preferred) = PREFIX_LIFETIMES_S;
    out.put_lease(&Leased {
        lease: own,
        preferred,
        valid,
    });
    if purpose != Purpose::Extend {
        return;
    }
    for it in ia.leases() {
        if it.lease != own && !it.lease.address().is_unspecified() {
            out.put_lease(&Leased {
                preferred: 0,
                valid: 0,
                ..it
            });
        }
    }
}
