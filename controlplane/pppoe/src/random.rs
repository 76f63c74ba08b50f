//! Unpredictable numbers from the secret seed: magic numbers, jitter, the first session id.

use core::hash::Hasher;
use core::time::Duration;

use siphasher::sip::SipHasher24;

/// SipHash-2-4 of a counter under a secret key.
#[derive(Clone, Debug)]
pub(crate) struct Random {
    key: [u8; 16],
    counter: u64,
}

impl Random {
    pub(crate) const fn new(key: [u8; 16]) -> Self {
        Self { key, counter: 0 }
    }

    pub(crate) fn next_u64(&mut self) -> u64 {
        let mut hasher = SipHasher24::new_with_key(&self.key);
        hasher.write_u64(self.counter);
        self.counter = self.counter.wrapping_add(1);
        hasher.finish()
    }

    /// A magic number: never zero (RFC 1661 section 6.4).
    pub(crate) fn magic(&mut self) -> u32 {
        loop {
            let magic = (self.next_u64() >> 32) as u32;
            if magic != 0 {
                return magic;
            }
        }
    }

    /// An interface identifier: never zero, marked as not derived from a universal token (RFC 5072 section 4.1).
    pub(crate) fn interface_id(&mut self) -> u64 {
        const UNIVERSAL: u64 = 0x0200_0000_0000_0000;
        loop {
            let id = self.next_u64() & !UNIVERSAL;
            if id != 0 {
                return id;
            }
        }
    }

    /// A span shorter than `bound`, in whole milliseconds.
    pub(crate) fn duration_below(&mut self, bound: Duration) -> Duration {
        let bound = u64::try_from(bound.as_millis()).unwrap_or(u64::MAX);
        Duration::from_millis(self.below(bound))
    }

    /// A number below `bound`; 0 when `bound` is 0.
    pub(crate) fn below(&mut self, bound: u64) -> u64 {
        self.next_u64().checked_rem(bound).unwrap_or(0)
    }
}
