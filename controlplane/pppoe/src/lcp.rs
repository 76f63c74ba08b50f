//! LCP's options: what we ask for and what we accept (RFC 1661 section 6).

use alloc::vec::Vec;

use bng_wire::pppoe::protocol;

use crate::codec::control::{ConfigOption, Options, put_option};
use crate::codec::lcp::{DEFAULT_MRU, option};
use crate::config::Config;
use crate::context::Context;
use crate::counters::TerminateCause;
use crate::events::AuthProtocol;
use crate::negotiation::{Judgement, Negotiable};
use crate::timers::Timer;

/// Smallest MTU of an IPv6 link, bytes.
const IPV6_MIN_MTU: u16 = 1280;

/// Both sides' LCP options.
#[derive(Clone, Debug)]
pub(crate) struct LcpOptions {
    /// Largest MRU the link allows, both ways.
    link_mru: u16,
    /// The authentication protocol we ask for.
    auth: AuthProtocol,
    /// What we ask for; `None` once the peer rejected it or never stops Naking it.
    our_mru: Option<u16>,
    our_magic: Option<u32>,
    // Kept after a rejection, for the next negotiation.
    magic: u32,
    /// What the peer asked for and we acknowledged.
    peer_mru: u16,
    peer_magic: u32,
    naks_received: u8,
    /// Requests and echoes in a row that carried our own magic number.
    loops: u8,
}

impl LcpOptions {
    pub(crate) fn new(link_mru: u16, cx: &mut Context<'_>) -> Self {
        let magic = cx.random.magic();
        Self {
            link_mru,
            auth: cx.config.first_auth(),
            our_mru: Some(link_mru),
            our_magic: Some(magic),
            magic,
            peer_mru: DEFAULT_MRU,
            peer_magic: 0,
            naks_received: 0,
            loops: 0,
        }
    }

    /// The options a record says were agreed on; magic 0 is none.
    pub(crate) fn agreed(
        link_mru: u16,
        auth: AuthProtocol,
        mrus: (u16, u16),
        magics: (u32, u32),
        cx: &mut Context<'_>,
    ) -> Self {
        let mut options = Self::new(link_mru, cx);
        options.auth = auth;
        options.our_mru = Some(mrus.0);
        options.peer_mru = mrus.1;
        options.our_magic = (magics.0 != 0).then_some(magics.0);
        options.magic = options.our_magic.unwrap_or(options.magic);
        options.peer_magic = magics.1;
        options
    }

    pub(crate) const fn link_mru(&self) -> u16 {
        self.link_mru
    }

    /// The authentication protocol we ask for; the peer's Ack agrees to it.
    pub(crate) const fn auth(&self) -> AuthProtocol {
        self.auth
    }

    /// Largest PPP information field we may be sent.
    pub(crate) fn our_mru(&self) -> u16 {
        self.our_mru.unwrap_or(DEFAULT_MRU).min(self.link_mru)
    }

    /// Largest PPP information field the peer takes and the link carries.
    pub(crate) fn peer_mru(&self) -> u16 {
        self.peer_mru.min(self.link_mru)
    }

    /// Whether both directions carry the smallest MTU of an IPv6 link (RFC 8200 section 5).
    pub(crate) fn carries_ipv6(&self) -> bool {
        self.our_mru().min(self.peer_mru()) >= IPV6_MIN_MTU
    }

    /// Our magic number, 0 when the peer rejected it.
    pub(crate) fn our_magic(&self) -> u32 {
        self.our_magic.unwrap_or(0)
    }

    /// The peer's magic number, 0 when it has none.
    pub(crate) const fn peer_magic(&self) -> u32 {
        self.peer_magic
    }

    /// Notes whether a packet carried our own magic number; `true` when that was once too often.
    pub(crate) fn looped(&mut self, own: bool, max_failure: u8) -> bool {
        self.loops = if own { self.loops.saturating_add(1) } else { 0 };
        self.loops > max_failure
    }

    fn acceptable_mru(&self, data: &[u8], floor: u16) -> Result<u16, u16> {
        // The floor may have been raised since the link was set up.
        let floor = floor.min(self.link_mru);
        let Ok(bytes) = data.try_into() else {
            return Err(self.link_mru);
        };
        match u16::from_be_bytes(bytes) {
            mru if mru < floor => Err(floor),
            mru if mru > self.link_mru => Err(self.link_mru),
            mru => Ok(mru),
        }
    }
}

fn magic_of(option: &ConfigOption<'_>) -> Option<u32> {
    Some(u32::from_be_bytes(option.data.try_into().ok()?))
}

impl Negotiable for LcpOptions {
    const PROTOCOL: u16 = protocol::LCP;
    const TIMER: Timer = Timer::LcpRestart;
    const EARLY_RETRANSMIT: bool = true;

    fn request(&self) -> Vec<u8> {
        let mut list = Vec::new();
        if let Some(mru) = self.our_mru {
            put_option(&mut list, option::MRU, &mru.to_be_bytes());
        }
        put_option(
            &mut list,
            option::AUTHENTICATION_PROTOCOL,
            self.auth.option_data(),
        );
        if let Some(magic) = self.our_magic {
            put_option(&mut list, option::MAGIC_NUMBER, &magic.to_be_bytes());
        }
        list
    }

    fn judge(&mut self, request: Options<'_>, may_nak: bool, cx: &mut Context<'_>) -> Judgement {
        let (mut peer_mru, mut peer_magic) = (DEFAULT_MRU, 0);
        let (mut rejects, mut naks, mut nakable) = (Vec::new(), Vec::new(), Vec::new());
        // One Nak per option however often the peer repeats it keeps the answer no longer than the request.
        let (mut mru_nak, mut magic_nak) = (None, None);
        for asked in request.iter() {
            match asked.kind {
                option::MRU => match self.acceptable_mru(asked.data, cx.config.mru_floor) {
                    Ok(mru) => peer_mru = mru,
                    Err(hint) => {
                        nakable.extend_from_slice(asked.raw);
                        if mru_nak.replace(hint).is_none() {
                            put_option(&mut naks, option::MRU, &hint.to_be_bytes());
                        }
                    }
                },
                option::MAGIC_NUMBER => match magic_of(&asked) {
                    // Zero is illegal (RFC 1661 section 6.4), our own number means a loop or a rare coincidence.
                    Some(magic) if magic != 0 && Some(magic) != self.our_magic => {
                        peer_magic = magic;
                    }
                    _ => {
                        nakable.extend_from_slice(asked.raw);
                        if magic_nak.is_none() {
                            let hint = *magic_nak.insert(cx.random.magic());
                            put_option(&mut naks, option::MAGIC_NUMBER, &hint.to_be_bytes());
                        }
                    }
                },
                _ => rejects.extend_from_slice(asked.raw),
            }
        }
        let own = request
            .find(option::MAGIC_NUMBER)
            .and_then(|asked| magic_of(&asked))
            .is_some_and(|magic| Some(magic) == self.our_magic);
        if self.looped(own, cx.config.max_failure) {
            return Judgement::GiveUp(TerminateCause::LoopedBack);
        }
        if !rejects.is_empty() {
            return Judgement::Reject(rejects);
        }
        if !naks.is_empty() {
            return if may_nak {
                Judgement::Nak(naks)
            } else {
                Judgement::Reject(nakable)
            };
        }
        self.peer_mru = peer_mru;
        self.peer_magic = peer_magic;
        Judgement::Ack
    }

    fn naked(&mut self, hints: Options<'_>, cx: &mut Context<'_>) -> Result<(), TerminateCause> {
        self.naks_received = self.naks_received.saturating_add(1);
        let enough = self.naks_received >= cx.config.max_failure;
        for hint in hints.iter() {
            match hint.kind {
                option::MRU if enough => self.our_mru = None,
                // A hint out of range leaves our own wish standing.
                option::MRU if self.our_mru.is_some() => {
                    if let Ok(mru) = self.acceptable_mru(hint.data, cx.config.mru_floor) {
                        self.our_mru = Some(mru);
                    }
                }
                option::MAGIC_NUMBER if enough => self.our_magic = None,
                option::MAGIC_NUMBER if self.our_magic.is_some() => {
                    self.magic = cx.random.magic();
                    self.our_magic = Some(self.magic);
                }
                option::AUTHENTICATION_PROTOCOL if enough => {
                    return Err(TerminateCause::AuthRefused);
                }
                option::AUTHENTICATION_PROTOCOL => {
                    let hint = AuthProtocol::of_option(hint.data);
                    self.auth = cx.config.next_auth(self.auth, hint);
                }
                _ => {}
            }
        }
        Ok(())
    }

    fn rejected(&mut self, options: Options<'_>) -> Result<(), TerminateCause> {
        for rejected in options.iter() {
            match rejected.kind {
                option::MRU => self.our_mru = None,
                option::MAGIC_NUMBER => self.our_magic = None,
                // Whoever does not authenticate never reaches the network phase.
                _ => return Err(TerminateCause::AuthRefused),
            }
        }
        Ok(())
    }

    fn restart(&mut self, config: &Config) {
        self.auth = config.first_auth();
        self.our_mru = Some(self.link_mru);
        self.our_magic = Some(self.magic);
        self.naks_received = 0;
    }
}
