//! A flood of PADI from random addresses, none of which ever dials in.

use std::time::Duration;

use bng_pppoe::codec::TagWriter;
use bng_pppoe::codec::frame::{self, LinkHeader};
use bng_pppoe::codec::lcp::PPPOE_MRU;
use bng_pppoe::codec::tags::kind;
use bng_wire::MacAddr;
use bng_wire::pppoe::code;

use super::subscriber::ClientSettings;
use crate::pacing::Pacer;

/// The first three bytes of their addresses: locally administered, unicast, no subscriber's.
const PREFIX: [u8; 3] = [0x06, 0x62, 0x6e];
/// PADI sent between two looks at what arrived.
const BATCH: usize = 64;

/// The flood.
#[derive(Debug)]
pub(super) struct Flood {
    pacer: Pacer,
    random: u64,
    /// PADI sent.
    pub(super) sent: u64,
    /// PADO that came for them.
    pub(super) offers: u64,
}

impl Flood {
    /// So many PADI per second.
    pub(super) const fn new(per_second: f64, seed: u64) -> Self {
        Self {
            pacer: Pacer::new(Duration::ZERO, per_second),
            random: seed | 1,
            sent: 0,
            offers: 0,
        }
    }

    /// When the next one is due.
    pub(super) fn next(&self) -> Duration {
        self.pacer.next()
    }

    /// Sends what is due.
    pub(super) fn poll(
        &mut self,
        now: Duration,
        settings: &ClientSettings,
        out: &mut Vec<Vec<u8>>,
    ) {
        for _ in 0..BATCH {
            if !self.pacer.take(now) {
                return;
            }
            // xorshift64, Marsaglia 2003.
            self.random ^= self.random << 13;
            self.random ^= self.random >> 7;
            self.random ^= self.random << 17;
            let [a, b, c, uniq @ ..] = self.random.to_be_bytes();
            let [x, y, z] = PREFIX;
            let link = LinkHeader {
                dst: MacAddr::BROADCAST,
                src: MacAddr([x, y, z, a, b, c]),
                vlans: settings.vlans,
            };
            let mut tags = TagWriter::new(usize::from(PPPOE_MRU));
            // A name that does not fit makes a PADI without one, which is as good for this.
            let _fits = tags.put(kind::SERVICE_NAME, &settings.service_name);
            let _fits = tags.put(kind::HOST_UNIQ, &uniq);
            out.extend(frame::discovery(&link, code::PADI, 0, &tags.finish()));
            self.sent += 1;
        }
    }

    /// Counts a frame for one of these addresses; `false` when it is not for one.
    pub(super) fn accept(&mut self, destination: &[u8; 6]) -> bool {
        let ours = destination.starts_with(&PREFIX);
        self.offers += u64::from(ours);
        ours
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use bng_pppoe::codec::frame::Body;

    use super::*;

    #[test]
    fn a_flood_has_its_rate_and_an_address_of_its_own_for_each() {
        let mut flood = Flood::new(1_000.0, 7);
        let settings = ClientSettings::default();
        let mut out = Vec::new();
        for ms in 0..1_000 {
            flood.poll(Duration::from_millis(ms), &settings, &mut out);
        }
        assert_eq!((flood.sent, out.len()), (1_000, 1_000));
        let mut seen = BTreeSet::new();
        for bytes in &out {
            let frame = frame::parse(bytes).unwrap();
            assert!(matches!(
                frame.body,
                Body::Discovery {
                    code: code::PADI,
                    ..
                }
            ));
            assert!(flood.accept(&frame.src.0));
            seen.insert(frame.src.0);
        }
        assert!(seen.len() > 990, "{}", seen.len());
        assert_eq!(flood.offers, 1_000);
        assert!(!flood.accept(&[0x02, 0x62, 0x6e, 0, 0, 1]));
    }
}
