//! Stage: how many PPP control frames one session may have punted (HZ-15 R1).
//!
//! A subscriber that floods its own session with LCP fills its share and no more. Discovery is another matter: control
//! limits it per port and source, and it never gets more than half of the punt ring.

use bng_shm::{Counter, Meter, Policed, SlotIndex};

use crate::verdict::{Punt, Verdict};
use crate::worker::Stages;

const NS_PER_SECOND: u64 = 1_000_000_000;
/// Binary digits of [`Meter::cost`] below a nanosecond.
const FRACTION: u32 = 20;

/// A meter that counts frames as bytes: `per_second` frames a second, as many at once; 0 for no limit.
pub(crate) fn meter(per_second: u32) -> Meter {
    match u64::from(per_second) {
        0 => Meter::default(),
        rate => Meter {
            cost: (NS_PER_SECOND << FRACTION) / rate,
            burst_ns: NS_PER_SECOND,
        },
    }
}

/// What becomes of a PPP control frame of a session that this worker owns.
#[cold]
#[inline(never)]
pub(crate) fn ppp(stages: &Stages, slot: SlotIndex, generation: u32) -> Verdict {
    let Stages {
        shm, punt_meter, ..
    } = stages;
    if !shm.conforms(slot, Policed::Punt, *punt_meter, 1, stages.now_ns) {
        return Verdict::Drop(Counter::PuntRateLimited);
    }
    shm.seen_up(slot, stages.now_ms);
    Verdict::Punt(Punt::Ppp { slot, generation })
}
