//! DPDK devices as access and core: the other ends of the gateway's memory ports, or cards.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use rte_rs::{Burst, Eal};

use super::core::Core;
use crate::wire::ends::{BURST, End, receive_pool, start_eal};

/// Longest sleep without frames: the drivers wake nobody.
const NAP: Duration = Duration::from_micros(50);
/// Longest time until the gateway's kernel asks for its next hop: it asks once a second, and may have asked before there was a link.
const NEXT_HOP_LIMIT: Duration = Duration::from_secs(20);

/// An open device.
pub(super) struct Device {
    end: End,
    backlog: VecDeque<Vec<u8>>,
    core: Option<(End, Core, Vec<Vec<u8>>)>,
    // After its ports.
    _eal: Eal,
}

impl Device {
    /// Starts DPDK on the first allowed core, where the calling thread stays, and opens `access` and, if there is one, `core`.
    pub(super) fn open(access: &str, core_device: Option<&str>) -> Result<Self> {
        let cores = core_affinity::get_core_ids().context("cannot tell which cores are allowed")?;
        let core = cores.first().context("no core is allowed")?.id;
        let hugepages = crate::wire::free_hugepages_mib() >= crate::wire::NEEDED_MIB;
        let devices: Vec<&str> = [access].into_iter().chain(core_device).collect();
        let eal = start_eal(core, hugepages, &devices)?;
        let receive = receive_pool(&eal)?;
        let end = End::open(&eal, "access", access, 1, &receive)?;
        let core = match core_device {
            Some(device) => {
                let end = End::open(&eal, "core", device, 1, &receive)?;
                end.wait_for_link()?;
                let core = Core::new(end.mac);
                Some((end, core, Vec::new()))
            }
            None => None,
        };
        end.wait_for_link()?;
        let mut device = Self {
            end,
            backlog: VecDeque::new(),
            core,
            _eal: eal,
        };
        device.wait_for_next_hop()?;
        Ok(device)
    }

    /// Waits until the gateway has been told our address on the core side: what a subscriber sends before that is dropped there,
    /// rightly and counted, and no ledger could agree with its accounting.
    fn wait_for_next_hop(&mut self) -> Result<()> {
        let end = Instant::now() + NEXT_HOP_LIMIT;
        while self
            .core
            .as_ref()
            .is_some_and(|(_, core, _)| !core.is_known())
        {
            if self.receive(BURST, |_| ()) == 0 {
                if Instant::now() >= end {
                    bail!(
                        "the gateway did not ask for its next hop on the core port within {NEXT_HOP_LIMIT:?}"
                    );
                }
                self.wait(NAP);
            }
        }
        Ok(())
    }

    pub(super) fn backlog(&self) -> usize {
        self.backlog.len()
    }

    /// Queues frames and hands as many as possible to the device.
    pub(super) fn send(&mut self, frames: impl Iterator<Item = Vec<u8>>) {
        self.backlog.extend(frames);
        while !self.backlog.is_empty() {
            let mut burst: Burst<BURST> = Burst::new();
            for frame in self.backlog.iter().take(BURST) {
                let Some(mbuf) = self.end.copy(frame) else {
                    break;
                };
                burst.push(mbuf);
            }
            let sent = self.end.send_burst(&mut burst);
            self.backlog.drain(..sent);
            if sent < BURST {
                // Either all of them, or as many as the ring or the memory has room for.
                return;
            }
        }
    }

    /// Calls `take` for frames that have arrived, at most `limit` and a burst. Returns how many.
    pub(super) fn receive(&mut self, limit: usize, mut take: impl FnMut(&[u8])) -> usize {
        let mut frames = self.reflect();
        while frames < limit {
            let taken = self.end.receive_others(&mut take);
            frames += taken;
            if taken == 0 {
                break;
            }
        }
        frames
    }

    /// Answers what has arrived on the core side, a burst of it. Returns how many frames that was.
    fn reflect(&mut self) -> usize {
        let Some((end, core, answers)) = &mut self.core else {
            return 0;
        };
        let frames = end.receive_others(|frame| answers.extend(core.answer(frame)));
        let mut burst: Burst<BURST> = Burst::new();
        // No more came than fit a burst.
        for answer in answers.drain(..).take(BURST) {
            if let Some(mbuf) = end.copy(&answer) {
                burst.push(mbuf);
            }
        }
        end.send_burst(&mut burst);
        frames
    }

    /// Waits a moment, `limit` at most.
    #[expect(clippy::unused_self, reason = "like the other kind of link")]
    pub(super) fn wait(&self, limit: Duration) {
        std::thread::sleep(limit.min(NAP));
    }

    /// Frames the device dropped for want of buffers or room.
    pub(super) fn receive_drops(&self) -> Result<u64> {
        self.end.missed()
    }
}
