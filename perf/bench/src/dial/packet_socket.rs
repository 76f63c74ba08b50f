//! A network interface as access: AF_PACKET through libpcap, which sets up the receive ring in memory shared with the kernel,
//! asks for promiscuous mode (so that frames to the subscribers' addresses arrive) and puts VLAN tags back into place.

use std::collections::VecDeque;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use pcap::{Active, Capture, Direction};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::net::{SendFlags, send, sockopt};

/// Bytes of the receive ring: about 60,000 frames.
const RING_BYTES: i32 = 128 << 20;
/// Bytes the kernel may hold for us on the way out.
const SEND_BYTES: usize = 16 << 20;
/// Largest frame kept whole, in bytes: 1,500 of payload, two tags, and RFC 4638 with room to spare. The ring's slots have
/// this size.
const SNAP_BYTES: i32 = 2_048;
/// An open interface.
pub(super) struct PacketSocket {
    capture: Capture<Active>,
    backlog: VecDeque<Vec<u8>>,
    /// Frames longer than the ring's slots, which were ignored.
    pub(super) truncated: u64,
    /// Frames the interface refused for good (too long, or the link is down).
    pub(super) send_errors: u64,
    last_send_error: Option<Errno>,
}

impl PacketSocket {
    /// Opens interface `name`. Needs CAP_NET_RAW, and CAP_NET_ADMIN for the large send buffer.
    pub(super) fn open(name: &str) -> Result<Self> {
        let mut capture = Capture::from_device(name)
            .and_then(|inactive| {
                inactive
                    .promisc(true)
                    .snaplen(SNAP_BYTES)
                    .buffer_size(RING_BYTES)
                    .immediate_mode(true)
                    .open()
            })
            .and_then(Capture::setnonblock)
            .with_context(|| format!("cannot open interface {name}"))?;
        capture
            .direction(Direction::In)
            .with_context(|| format!("cannot listen to incoming frames only on {name}"))?;
        capture
            .filter(
                "ether proto 0x8863 or ether proto 0x8864 or ether proto 0x88a8 or vlan",
                true,
            )
            .with_context(|| format!("cannot filter for PPPoE on {name}"))?;
        // Not being allowed to raise it costs waiting, not frames.
        let _raised = sockopt::set_socket_send_buffer_size(&capture, SEND_BYTES);
        Ok(Self {
            capture,
            backlog: VecDeque::new(),
            truncated: 0,
            send_errors: 0,
            last_send_error: None,
        })
    }

    /// Frames that still wait for room.
    pub(super) fn backlog(&self) -> usize {
        self.backlog.len()
    }

    /// Queues frames and hands as many as possible to the kernel.
    pub(super) fn send(&mut self, frames: impl Iterator<Item = Vec<u8>>) {
        self.backlog.extend(frames);
        while let Some(frame) = self.backlog.front() {
            match send(&self.capture, frame, SendFlags::DONTWAIT) {
                Ok(_) => {}
                Err(Errno::AGAIN | Errno::NOBUFS | Errno::INTR) => return,
                Err(errno) => {
                    self.send_errors += 1;
                    self.last_send_error = Some(errno);
                }
            }
            self.backlog.pop_front();
        }
    }

    /// Why the interface refused a frame, if it did.
    pub(super) const fn last_send_error(&self) -> Option<Errno> {
        self.last_send_error
    }

    /// Calls `take` for at most `limit` frames that have arrived. Returns how many.
    pub(super) fn receive(&mut self, limit: usize, mut take: impl FnMut(&[u8])) -> Result<usize> {
        for count in 0..limit {
            match self.capture.next_packet() {
                Ok(packet) if packet.header.caplen < packet.header.len => self.truncated += 1,
                Ok(packet) => take(packet.data),
                Err(pcap::Error::TimeoutExpired) => return Ok(count),
                Err(error) => bail!("cannot receive: {error}"),
            }
        }
        Ok(limit)
    }

    /// Waits until a frame has arrived, there is room for a waiting frame, or `limit` has passed.
    pub(super) fn wait(&self, limit: Duration) -> Result<()> {
        let mut interest = PollFlags::IN;
        if !self.backlog.is_empty() {
            interest |= PollFlags::OUT;
        }
        let limit = Timespec::try_from(limit).unwrap_or(Timespec {
            tv_sec: 1,
            tv_nsec: 0,
        });
        match poll(&mut [PollFd::new(&self.capture, interest)], Some(&limit)) {
            Ok(_) | Err(Errno::INTR) => Ok(()),
            Err(errno) => bail!("cannot wait for frames: {errno}"),
        }
    }

    /// Frames the kernel dropped for want of room in the receive ring.
    pub(super) fn receive_drops(&mut self) -> Result<u64> {
        Ok(u64::from(self.capture.stats()?.dropped))
    }
}
