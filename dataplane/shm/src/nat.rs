//! The reverse NAT array: public address, protocol and port to session and inside port.
//!
//! It lives in the mapping, so mappings outlive the dataplane process; each worker rebuilds its
//! forward table from it. Only the owner of the port block an entry lies in writes the entry.
//!
//! Entry: `generation:9 | slot:20 | inside port:16 | last seen:16 | inbound:1 | closing:1 | used:1`.
//! Last seen counts units of [`TICK_MS`]; it wraps after three days, far above every timer.

use crate::session::SlotIndex;

/// Protocols with a port space of their own.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[repr(u8)]
pub enum NatProtocol {
    /// TCP (RFC 5382).
    Tcp = 0,
    /// UDP (RFC 4787).
    Udp = 1,
    /// ICMP queries, by identifier (RFC 5508).
    Icmp = 2,
}

/// Reverse entries per public address: three protocols with 65,536 ports each.
pub const REVERSE_PER_ADDRESS: usize = 3 * 65_536;

/// Milliseconds in a unit of "last seen". Every flow writes its entry once in this time, and at a million flows those
/// writes miss every cache; the shortest timer is many units long.
pub const TICK_MS: u64 = 4_000;

/// Index into the reverse array.
#[inline]
#[must_use]
pub const fn reverse_index(address_index: u16, protocol: NatProtocol, port: u16) -> usize {
    address_index as usize * REVERSE_PER_ADDRESS + protocol as usize * 65_536 + port as usize
}

/// A reverse mapping.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Reverse {
    /// Low nine bits of the session's generation: an entry of an earlier session in the slot is dead.
    pub generation: u16,
    /// The session.
    pub slot: SlotIndex,
    /// Port (or ICMP identifier) on the subscriber's side.
    pub inside_port: u16,
    /// Ticks of the coarse clock when an outbound packet last used it.
    pub last_seen: u16,
    /// A packet from the core has used it.
    pub inbound_seen: bool,
    /// TCP: FIN or RST was seen in either direction.
    pub closing: bool,
}

impl Reverse {
    /// The session's generation as an entry keeps it.
    #[inline]
    #[must_use]
    pub const fn generation_bits(generation: u32) -> u16 {
        (generation & 0x1ff) as u16
    }

    /// To the word in the array; never zero.
    #[inline]
    #[must_use]
    pub const fn pack(self) -> u64 {
        1 | (self.closing as u64) << 1
            | (self.inbound_seen as u64) << 2
            | (self.last_seen as u64) << 3
            | (self.inside_port as u64) << 19
            | ((self.slot.0 & 0xf_ffff) as u64) << 35
            | ((self.generation & 0x1ff) as u64) << 55
    }

    /// From the word in the array; `None` when free.
    #[inline]
    #[must_use]
    pub const fn unpack(word: u64) -> Option<Self> {
        if word & 1 == 0 {
            return None;
        }
        Some(Self {
            generation: (word >> 55) as u16,
            slot: SlotIndex((word >> 35) as u32 & 0xf_ffff),
            inside_port: (word >> 19) as u16,
            last_seen: (word >> 3) as u16,
            inbound_seen: word >> 2 & 1 == 1,
            closing: word >> 1 & 1 == 1,
        })
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn an_entry_survives_packing(
            generation in 0u16..512, slot in 0u32..(1 << 20), inside_port: u16, last_seen: u16,
            inbound_seen: bool, closing: bool,
        ) {
            let entry = Reverse {
                generation, slot: SlotIndex(slot), inside_port, last_seen, inbound_seen, closing,
            };
            prop_assert_ne!(entry.pack(), 0);
            prop_assert_eq!(Reverse::unpack(entry.pack()), Some(entry));
        }
    }

    #[test]
    fn zero_is_free() {
        assert_eq!(Reverse::unpack(0), None);
    }
}
