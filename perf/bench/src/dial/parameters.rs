//! What a subscriber negotiates: LCP (RFC 1661 section 6), IPCP with DNS (RFC 1332, RFC 1877), IPv6CP (RFC 5072).

use std::net::Ipv4Addr;

use bng_pppoe::AuthProtocol;
use bng_pppoe::codec::control::put_option;
use bng_pppoe::codec::{Options, ipcp, ipv6cp, lcp};

use super::Auth;
use super::negotiation::{Judgement, Parameters};

/// LCP of one session.
#[derive(Debug)]
pub(crate) struct LcpParameters {
    mru: Option<u16>,
    magic: Option<u32>,
    /// The peer's MRU, bytes of PPP information field.
    pub(crate) peer_mru: u16,
    /// How we authenticate.
    auth: Auth,
    /// The peer asked for that.
    pub(crate) peer_authenticates: bool,
    /// The peer asked only for authentication we do not do.
    pub(crate) other_authentication: bool,
}

impl LcpParameters {
    pub(crate) const fn new(mru: u16, magic: u32, auth: Auth) -> Self {
        Self {
            auth,
            mru: Some(mru),
            magic: Some(magic),
            peer_mru: lcp::DEFAULT_MRU,
            peer_authenticates: false,
            other_authentication: false,
        }
    }

    /// The access concentrator takes no larger frames than this.
    pub(crate) fn limit_mru(&mut self, most: u16) {
        self.mru = self.mru.map(|mru| mru.min(most));
    }

    /// Our magic number, 0 without one.
    pub(crate) fn magic(&self) -> u32 {
        self.magic.unwrap_or(0)
    }
}

impl Parameters for LcpParameters {
    fn request(&self) -> Vec<u8> {
        let mut options = Vec::new();
        if let Some(mru) = self.mru {
            put_option(&mut options, lcp::option::MRU, &mru.to_be_bytes());
        }
        if let Some(magic) = self.magic {
            put_option(
                &mut options,
                lcp::option::MAGIC_NUMBER,
                &magic.to_be_bytes(),
            );
        }
        options
    }

    fn judge(&mut self, options: &Options<'_>) -> Judgement {
        let mut rejected = Vec::new();
        let mut naked = Vec::new();
        let mut mru = lcp::DEFAULT_MRU;
        let mut authenticates = false;
        let ours: &[u8] = match self.auth {
            Auth::Pap => AuthProtocol::Pap.option_data(),
            Auth::Chap => AuthProtocol::ChapMd5.option_data(),
        };
        for option in options.iter() {
            match (option.kind, option.data) {
                (lcp::option::MRU, &[high, low]) => mru = u16::from_be_bytes([high, low]),
                (lcp::option::MAGIC_NUMBER, &[a, b, c, d]) => {
                    let theirs = u32::from_be_bytes([a, b, c, d]);
                    // RFC 1661 section 6.4: zero is not a magic number, and our own is a sign of a loop.
                    if theirs == 0 || Some(theirs) == self.magic {
                        put_option(
                            &mut naked,
                            option.kind,
                            &theirs.wrapping_add(0x9e37_79b9).to_be_bytes(),
                        );
                    }
                }
                (lcp::option::AUTHENTICATION_PROTOCOL, wanted) => {
                    authenticates = wanted == ours;
                    if !authenticates {
                        self.other_authentication = true;
                        put_option(&mut naked, option.kind, ours);
                    }
                }
                _ => rejected.extend_from_slice(option.raw),
            }
        }
        if !rejected.is_empty() {
            return Judgement::Reject(rejected);
        }
        if !naked.is_empty() {
            return Judgement::Nak(naked);
        }
        self.peer_mru = mru;
        self.peer_authenticates = authenticates;
        Judgement::Ack
    }

    fn nak(&mut self, options: &Options<'_>) -> bool {
        for option in options.iter() {
            match (option.kind, option.data) {
                (lcp::option::MRU, &[high, low]) => {
                    self.mru = Some(u16::from_be_bytes([high, low]))
                }
                (lcp::option::MAGIC_NUMBER, _) => {
                    self.magic = self.magic.map(|magic| magic.wrapping_mul(0x85eb_ca6b) | 1);
                }
                // An option we did not ask for is a hint we do not need.
                _ => {}
            }
        }
        true
    }

    fn reject(&mut self, options: &Options<'_>) -> bool {
        for option in options.iter() {
            match option.kind {
                lcp::option::MRU => self.mru = None,
                lcp::option::MAGIC_NUMBER => self.magic = None,
                _ => return false,
            }
        }
        true
    }
}

/// IPCP of one session.
#[derive(Debug, Default)]
pub(crate) struct IpcpParameters {
    /// Our address, as given by the peer.
    pub(crate) address: Option<Ipv4Addr>,
    /// The peer's address.
    pub(crate) gateway: Option<Ipv4Addr>,
    /// DNS servers as given by the peer.
    pub(crate) dns: [Option<Ipv4Addr>; 2],
    dns_rejected: [bool; 2],
}

const DNS_OPTIONS: [u8; 2] = [ipcp::option::PRIMARY_DNS, ipcp::option::SECONDARY_DNS];

fn address(data: &[u8]) -> Option<Ipv4Addr> {
    <[u8; 4]>::try_from(data).ok().map(Ipv4Addr::from)
}

impl Parameters for IpcpParameters {
    fn request(&self) -> Vec<u8> {
        let mut options = Vec::new();
        let ours = self.address.unwrap_or(Ipv4Addr::UNSPECIFIED);
        put_option(&mut options, ipcp::option::IP_ADDRESS, &ours.octets());
        for ((kind, server), rejected) in DNS_OPTIONS.iter().zip(self.dns).zip(self.dns_rejected) {
            if !rejected {
                let server = server.unwrap_or(Ipv4Addr::UNSPECIFIED);
                put_option(&mut options, *kind, &server.octets());
            }
        }
        options
    }

    fn judge(&mut self, options: &Options<'_>) -> Judgement {
        let mut rejected = Vec::new();
        let mut gateway = None;
        for option in options.iter() {
            match (option.kind, address(option.data)) {
                // A gateway that asks us for its address gets none from a subscriber.
                (ipcp::option::IP_ADDRESS, Some(theirs)) if !theirs.is_unspecified() => {
                    gateway = Some(theirs);
                }
                _ => rejected.extend_from_slice(option.raw),
            }
        }
        if !rejected.is_empty() {
            return Judgement::Reject(rejected);
        }
        self.gateway = gateway;
        Judgement::Ack
    }

    fn nak(&mut self, options: &Options<'_>) -> bool {
        for option in options.iter() {
            let value = address(option.data);
            if option.kind == ipcp::option::IP_ADDRESS {
                self.address = value;
            }
            for (kind, server) in DNS_OPTIONS.iter().zip(&mut self.dns) {
                if option.kind == *kind {
                    *server = value;
                }
            }
        }
        true
    }

    fn reject(&mut self, options: &Options<'_>) -> bool {
        for option in options.iter() {
            let Some(at) = DNS_OPTIONS.iter().position(|kind| *kind == option.kind) else {
                // Without an address there is nothing to do here.
                return false;
            };
            if let Some(rejected) = self.dns_rejected.get_mut(at) {
                *rejected = true;
            }
            if let Some(server) = self.dns.get_mut(at) {
                *server = None;
            }
        }
        true
    }
}

/// IPv6CP of one session.
#[derive(Debug)]
pub(crate) struct Ipv6cpParameters {
    /// Our interface identifier.
    pub(crate) ours: u64,
    /// The peer's.
    pub(crate) peer: u64,
}

impl Ipv6cpParameters {
    pub(crate) const fn new(ours: u64) -> Self {
        Self { ours, peer: 0 }
    }
}

impl Parameters for Ipv6cpParameters {
    fn request(&self) -> Vec<u8> {
        let mut options = Vec::new();
        put_option(
            &mut options,
            ipv6cp::option::INTERFACE_IDENTIFIER,
            &self.ours.to_be_bytes(),
        );
        options
    }

    fn judge(&mut self, options: &Options<'_>) -> Judgement {
        let (mut rejected, mut naked) = (Vec::new(), Vec::new());
        let mut peer = 0;
        for option in options.iter() {
            match (option.kind, <[u8; 8]>::try_from(option.data)) {
                (ipv6cp::option::INTERFACE_IDENTIFIER, Ok(theirs)) => {
                    peer = u64::from_be_bytes(theirs);
                    // RFC 5072 section 4.1: neither zero nor ours.
                    if peer == 0 || peer == self.ours {
                        let other = self.ours ^ 1;
                        put_option(&mut naked, option.kind, &other.to_be_bytes());
                    }
                }
                _ => rejected.extend_from_slice(option.raw),
            }
        }
        if !rejected.is_empty() {
            return Judgement::Reject(rejected);
        }
        if !naked.is_empty() {
            return Judgement::Nak(naked);
        }
        self.peer = peer;
        Judgement::Ack
    }

    fn nak(&mut self, options: &Options<'_>) -> bool {
        for option in options.iter() {
            if let (ipv6cp::option::INTERFACE_IDENTIFIER, Ok(hint)) =
                (option.kind, <[u8; 8]>::try_from(option.data))
            {
                self.ours = u64::from_be_bytes(hint);
            }
        }
        self.ours != 0
    }

    fn reject(&mut self, _options: &Options<'_>) -> bool {
        // Without an identifier there is no address.
        false
    }
}
