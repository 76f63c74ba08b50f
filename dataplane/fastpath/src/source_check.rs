//! Stage: a subscriber sends from its own address only (BCP 38).

use bng_shm::{Counter, SessionLine};

use crate::ip::Packet;
use crate::verdict::{Step, drop};

/// The source address is the session's framed-ip.
#[inline(always)]
pub(crate) fn framed(session: &SessionLine, packet: &Packet) -> Step<()> {
    if packet.src == session.framed_ip() {
        Ok(())
    } else {
        drop(Counter::SourceSpoofed)
    }
}
