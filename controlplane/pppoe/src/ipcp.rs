//! IPCP's options: the address is ours to give (RFC 1332 section 3, RFC 1877).

use alloc::vec::Vec;
use core::net::Ipv4Addr;

use bng_wire::pppoe::protocol;

use crate::codec::control::{Options, put_option};
use crate::codec::ipcp::option;
use crate::config::Config;
use crate::context::Context;
use crate::counters::TerminateCause;
use crate::events::Grant;
use crate::negotiation::{Judgement, Negotiable};
use crate::timers::Timer;

/// Both sides' IPCP options.
#[derive(Clone, Debug)]
pub(crate) struct IpcpOptions {
    gateway_ip: Ipv4Addr,
    framed_ip: Ipv4Addr,
    primary_dns: Option<Ipv4Addr>,
    secondary_dns: Option<Ipv4Addr>,
    /// Whether we still tell our own address.
    tell_address: bool,
    naks_received: u8,
}

impl IpcpOptions {
    pub(crate) fn new(grant: &Grant) -> Self {
        let mut dns = grant.dns.iter().flatten().copied();
        Self {
            gateway_ip: grant.gateway_ip,
            framed_ip: grant.framed_ip,
            primary_dns: dns.next(),
            secondary_dns: dns.next(),
            tell_address: true,
            naks_received: 0,
        }
    }

    /// Options of a session nothing was granted to yet; never negotiated.
    pub(crate) const fn unset() -> Self {
        Self {
            gateway_ip: Ipv4Addr::UNSPECIFIED,
            framed_ip: Ipv4Addr::UNSPECIFIED,
            primary_dns: None,
            secondary_dns: None,
            tell_address: true,
            naks_received: 0,
        }
    }

    const fn given(&self, kind: u8) -> Option<Ipv4Addr> {
        match kind {
            option::IP_ADDRESS => Some(self.framed_ip),
            option::PRIMARY_DNS => self.primary_dns,
            option::SECONDARY_DNS => self.secondary_dns,
            _ => None,
        }
    }
}

impl Negotiable for IpcpOptions {
    const PROTOCOL: u16 = protocol::IPCP;
    const TIMER: Timer = Timer::IpcpRestart;
    const EARLY_RETRANSMIT: bool = false;

    fn request(&self) -> Vec<u8> {
        let mut list = Vec::new();
        if self.tell_address {
            put_option(&mut list, option::IP_ADDRESS, &self.gateway_ip.octets());
        }
        list
    }

    fn judge(&mut self, request: Options<'_>, may_nak: bool, _cx: &mut Context<'_>) -> Judgement {
        let (mut rejects, mut naks, mut nakable) = (Vec::new(), Vec::new(), Vec::new());
        let mut nakked = [false; 256];
        for asked in request.iter() {
            match self.given(asked.kind) {
                None => rejects.extend_from_slice(asked.raw),
                Some(address) if asked.data == address.octets() => {}
                Some(address) => {
                    nakable.extend_from_slice(asked.raw);
                    let before = nakked.get_mut(usize::from(asked.kind));
                    if before.is_some_and(|seen| !core::mem::replace(seen, true)) {
                        put_option(&mut naks, asked.kind, &address.octets());
                    }
                }
            }
        }
        let address_agreed = request
            .find(option::IP_ADDRESS)
            .is_some_and(|_| !nakked[usize::from(option::IP_ADDRESS)]);
        if !rejects.is_empty() {
            return Judgement::Reject(rejects);
        }
        if !address_agreed && !may_nak {
            return Judgement::GiveUp(TerminateCause::IpcpFailed);
        }
        if request.find(option::IP_ADDRESS).is_none() {
            // RFC 1661 section 5.3: a Nak may add the option the peer must ask for.
            put_option(&mut naks, option::IP_ADDRESS, &self.framed_ip.octets());
        }
        match (naks.is_empty(), may_nak) {
            (true, _) => Judgement::Ack,
            (false, true) => Judgement::Nak(naks),
            (false, false) => Judgement::Reject(nakable),
        }
    }

    fn naked(&mut self, _hints: Options<'_>, cx: &mut Context<'_>) -> Result<(), TerminateCause> {
        // Our address stays ours; a peer that does not want to hear it need not.
        self.naks_received = self.naks_received.saturating_add(1);
        self.tell_address = self.naks_received < cx.config.max_failure;
        Ok(())
    }

    fn rejected(&mut self, _options: Options<'_>) -> Result<(), TerminateCause> {
        self.tell_address = false;
        Ok(())
    }

    fn restart(&mut self, _config: &Config) {
        self.tell_address = true;
        self.naks_received = 0;
    }
}
