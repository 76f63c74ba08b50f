//! Frames from control, on their way out of the worker that owns their session.

use crate::dispatch::Outlets;
use bng_fastpath::PortRole;
use bng_shm::{Counter, FRAME_MAX, INJECT_RING_SLOTS, InjectedFrame, SessionState, Take, Worker};
use rte_rs::{Mbuf, Mempool};

/// Shortest frame on Ethernet without its check sequence (IEEE 802.3).
const MIN_FRAME: usize = 60;
/// Bytes of an Ethernet header without tags.
const ETHERNET_HEADER: usize = 14;

/// Takes what control has injected and sends it.
#[derive(Debug)]
pub struct Injector {
    /// Role of each port.
    roles: Vec<PortRole>,
    /// Buffers for the frames.
    pool: Mempool,
    /// The frame in hand.
    buffer: Box<[u8; FRAME_MAX]>,
}

impl Injector {
    /// `roles` are those of all ports, by index; buffers for frames come from `pool`.
    #[must_use]
    pub fn new(roles: Vec<PortRole>, pool: Mempool) -> Self {
        Self {
            roles,
            pool,
            buffer: Box::new([0; FRAME_MAX]),
        }
    }

    /// Role of a port; frames of ports that do not exist are nobody's.
    #[must_use]
    pub fn role(&self, port: u16) -> PortRole {
        let role = self.roles.get(usize::from(port));
        role.copied().unwrap_or(PortRole::Core)
    }

    /// Sends all that control has injected; what it injects meanwhile can wait for the next time. Says whether there was
    /// something.
    pub fn drain(&mut self, shm: &mut Worker, out: &mut Outlets) -> bool {
        let mut worked = false;
        for _ in 0..INJECT_RING_SLOTS {
            let frame = match shm.take_injected(&mut self.buffer) {
                Take::Item(frame) => frame,
                Take::Empty => break,
                Take::Corrupt => {
                    shm.count(Counter::RingCorrupt, 1);
                    break;
                }
            };
            worked = true;
            let bytes = self.buffer.get(..frame.len).unwrap_or(&[]);
            let outcome = match self.injected(&frame, bytes, shm) {
                Ok((port, mbuf)) => {
                    out.send(port, mbuf, shm);
                    Counter::Injected
                }
                Err(reason) => reason,
            };
            shm.count(outcome, 1);
        }
        if worked {
            out.flush(shm);
        }
        worked
    }

    /// A buffer for an injected frame, or why it is dropped. Nothing in the description is trusted.
    fn injected(
        &self,
        frame: &InjectedFrame,
        bytes: &[u8],
        shm: &Worker,
    ) -> Result<(u8, Mbuf), Counter> {
        let port = frame.meta.port;
        let role = self.roles.get(usize::from(port));
        let is_access = matches!(role, Some(PortRole::Access { .. }));
        if !is_access || bytes.len() < ETHERNET_HEADER {
            return Err(Counter::InjectInvalid);
        }
        if let Some((slot, generation)) = frame.meta.session {
            let live = match shm.reader().session(slot) {
                Some(Ok(session)) => {
                    session.generation == generation && session.state != SessionState::Free
                }
                // Control is at this entry just now, and the frame is its own: it may be the answer that goes before the
                // change.
                Some(Err(_)) => true,
                None => false,
            };
            if !live {
                return Err(Counter::InjectStale);
            }
        }
        let mut mbuf = self.pool.alloc_copy(bytes).ok_or(Counter::InjectNoBuffer)?;
        if let Some(pad) = MIN_FRAME.checked_sub(bytes.len()).filter(|pad| *pad > 0)
            && let Some(padding) = mbuf.append(pad)
        {
            padding.fill(0);
        }
        Ok((port, mbuf))
    }
}
