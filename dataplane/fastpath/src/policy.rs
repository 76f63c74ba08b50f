//! Stage: the session's policy and its policers.
//!
//! Default deny (HZ-07 R2): a session that names no policy, or one that control has not written, forwards nothing.
//! What a policer drops is not counted in the session's statistics, which are about packets that were forwarded.

use bng_shm::{Counter, Meter, Policed, PolicyLine, Reader, SessionLine, SlotIndex, Worker};

use crate::verdict::{Step, drop};

/// The policy a session names. Read after its entry, and immutable while the entry names it (INV-POLICY-1).
#[inline(always)]
pub(crate) fn of(reader: &Reader, session: &SessionLine) -> Step<PolicyLine> {
    match reader.policy_line(session.policy()) {
        Some(policy) => Ok(policy),
        None => drop(Counter::NoPolicy),
    }
}

/// A packet of `ip_bytes` from the subscriber is within the committed rate and burst. The caller owns the session.
#[inline(always)]
pub(crate) fn police_up(
    shm: &Worker,
    slot: SlotIndex,
    meter: Meter,
    ip_bytes: u16,
    now_ns: u64,
) -> Step<()> {
    if shm.conforms(slot, Policed::Up, meter, ip_bytes.into(), now_ns) {
        Ok(())
    } else {
        drop(Counter::PolicerUpstream)
    }
}

/// As [`police_up`], for a packet to the subscriber.
#[inline(always)]
pub(crate) fn police_down(
    shm: &Worker,
    slot: SlotIndex,
    meter: Meter,
    ip_bytes: u16,
    now_ns: u64,
) -> Step<()> {
    if shm.conforms(slot, Policed::Down, meter, ip_bytes.into(), now_ns) {
        Ok(())
    } else {
        drop(Counter::PolicerDownstream)
    }
}
