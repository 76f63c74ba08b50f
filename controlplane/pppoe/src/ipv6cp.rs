//! IPv6CP's option: the interface identifier (RFC 5072 section 4.1).

use alloc::vec::Vec;

use bng_wire::pppoe::protocol;

use crate::codec::control::{Options, put_option};
use crate::codec::ipv6cp::option::INTERFACE_IDENTIFIER;
use crate::config::Config;
use crate::context::Context;
use crate::counters::TerminateCause;
use crate::events::InterfaceIds;
use crate::negotiation::{Judgement, Negotiable};
use crate::random::Random;
use crate::timers::Timer;

/// Both sides' interface identifiers.
#[derive(Clone, Debug)]
pub(crate) struct Ipv6cpOptions {
    /// Random, the same for all of the session unless the peer Naks it.
    ours: u64,
    /// What the peer asked for and we acknowledged; 0 before.
    peer: u64,
    /// What the peer is told to take when it has none of its own.
    suggestion: u64,
    /// Whether we still tell our identifier.
    tell: bool,
    naks_received: u8,
}

impl Ipv6cpOptions {
    pub(crate) fn new(random: &mut Random) -> Self {
        let ours = random.interface_id();
        Self {
            ours,
            peer: 0,
            suggestion: other_than(ours, random),
            tell: true,
            naks_received: 0,
        }
    }

    /// What a record says was agreed on.
    pub(crate) fn agreed(ids: InterfaceIds, random: &mut Random) -> Self {
        Self {
            ours: ids.ours,
            peer: ids.peer,
            suggestion: other_than(ids.ours, random),
            tell: true,
            naks_received: 0,
        }
    }

    pub(crate) const fn ids(&self) -> InterfaceIds {
        InterfaceIds {
            ours: self.ours,
            peer: self.peer,
        }
    }

    fn acceptable(&self, data: &[u8]) -> Option<u64> {
        let id = u64::from_be_bytes(data.try_into().ok()?);
        (id != 0 && id != self.ours).then_some(id)
    }
}

fn other_than(taken: u64, random: &mut Random) -> u64 {
    loop {
        let id = random.interface_id();
        if id != taken {
            return id;
        }
    }
}

impl Negotiable for Ipv6cpOptions {
    const PROTOCOL: u16 = protocol::IPV6CP;
    const TIMER: Timer = Timer::Ipv6cpRestart;
    const EARLY_RETRANSMIT: bool = false;

    fn request(&self) -> Vec<u8> {
        let mut list = Vec::new();
        if self.tell {
            put_option(&mut list, INTERFACE_IDENTIFIER, &self.ours.to_be_bytes());
        }
        list
    }

    fn judge(&mut self, request: Options<'_>, may_nak: bool, _cx: &mut Context<'_>) -> Judgement {
        let mut rejects = Vec::new();
        let (mut found, mut is_good) = (None, true);
        for asked in request.iter() {
            if asked.kind != INTERFACE_IDENTIFIER {
                rejects.extend_from_slice(asked.raw);
                continue;
            }
            // Of an option that is there twice all must be good, and the last counts.
            match self.acceptable(asked.data) {
                Some(id) => found = Some(id),
                None => is_good = false,
            }
        }
        if !rejects.is_empty() {
            return Judgement::Reject(rejects);
        }
        match (found, may_nak) {
            (Some(id), _) if is_good => {
                self.peer = id;
                Judgement::Ack
            }
            // Without an identifier of its own the peer could take ours (RFC 1661 section 5.3: a Nak may add the option).
            (_, true) => {
                let mut naks = Vec::new();
                let suggestion = self.suggestion.to_be_bytes();
                put_option(&mut naks, INTERFACE_IDENTIFIER, &suggestion);
                Judgement::Nak(naks)
            }
            (_, false) => Judgement::GiveUp(TerminateCause::Ipv6cpFailed),
        }
    }

    fn naked(&mut self, hints: Options<'_>, cx: &mut Context<'_>) -> Result<(), TerminateCause> {
        self.naks_received = self.naks_received.saturating_add(1);
        if self.naks_received >= cx.config.max_failure {
            return Err(TerminateCause::Ipv6cpFailed);
        }
        let hint = hints.find(INTERFACE_IDENTIFIER).and_then(|option| {
            let id = u64::from_be_bytes(option.data.try_into().ok()?);
            (id != 0 && id != self.peer).then_some(id)
        });
        self.ours = hint.unwrap_or_else(|| other_than(self.ours, cx.random));
        if self.suggestion == self.ours {
            self.suggestion = other_than(self.ours, cx.random);
        }
        Ok(())
    }

    fn rejected(&mut self, _options: Options<'_>) -> Result<(), TerminateCause> {
        self.tell = false;
        Ok(())
    }

    fn restart(&mut self, _config: &Config) {
        self.tell = true;
        self.naks_received = 0;
    }
}
