//! Who cuts super-packets that leave by a port into frames: the port, or the worker before (S9, HZ-13).
//!
//! A port is believed only after it was tried: in loop-back, with a super-packet of each mode, whose frames must come back byte
//! for byte. Ports that cut nothing but hand super-packet and virtio header to a peer cannot do it wrong.

use crate::frame::Frame;
use crate::super_packet::{Checksums, build};
use bng_config::Segmentation;
use bng_fastpath::coalesce::{Ids, Run};
use bng_fastpath::segment::{Cwr, How, Segmenter};
use bng_wire::MacAddr;
use bng_wire::ethernet::ethertype;
use bng_wire::ipv4::protocol;
use rte_rs::{Burst, Mbuf, Mempool, Port, PortConfig, PortInfo, Queues, TxOffloads};
use std::net::Ipv6Addr;
use std::time::{Duration, Instant};

/// Drivers of virtio devices. The other side may leave checksums out of what it sends (`VIRTIO_NET_F_GUEST_CSUM`) if the port
/// offers to verify them, and takes super-packets as they are.
const VIRTIO: [&str; 2] = ["net_virtio", "net_virtio_user"];
/// What a port must offer to take super-packets.
const OFFERED: TxOffloads = TxOffloads::TCP_TSO
    .with(TxOffloads::MULTI_SEGS)
    .with(TxOffloads::TCP_CKSUM);
/// What it must offer besides to cut them.
const CUTS: TxOffloads = OFFERED.with(TxOffloads::IPV4_CKSUM);
/// How long a port may take to bring its link up in loop-back and return the first frame.
const LINK: Duration = Duration::from_secs(2);
/// How long it may take for the frames of one super-packet.
const RETURN: Duration = Duration::from_millis(100);

/// Whether the peer of such a port may send frames whose checksums are not in them, if it is offered to.
#[must_use]
pub fn may_lack_checksums(driver: &str) -> bool {
    VIRTIO.contains(&driver) || driver == "net_vhost"
}

/// Who segments on a port.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Choice {
    /// The port, or its peer.
    pub port: bool,
    /// Why; empty if the port is not asked to.
    pub reason: String,
}

impl Choice {
    fn worker(reason: String) -> Self {
        Self {
            port: false,
            reason,
        }
    }

    /// Transmit offloads to ask for, in place of [`TxOffloads::MBUF_FAST_FREE`]: super-packets are chains.
    #[must_use]
    pub fn offloads(&self) -> Option<TxOffloads> {
        self.port.then_some(CUTS)
    }
}

/// Finds out who segments on a port that is probed and not configured; it is so afterwards, too. `queues` is what it will be
/// configured with; `verifies` says whether the checksums of what is merged are verified.
#[must_use]
pub fn choose(
    wanted: Segmentation,
    verifies: bool,
    port: &mut Port,
    info: &PortInfo,
    queues: &PortConfig,
    pool: &Mempool,
) -> Choice {
    if wanted == Segmentation::Software {
        return Choice::default();
    }
    if !verifies {
        // Whoever cuts computes checksums anew: right ones for damaged frames, too.
        return Choice::worker("dataplane.coalescing.verify_checksums is off".to_owned());
    }
    let driver = &info.driver;
    if VIRTIO.contains(&driver.as_str()) {
        return if info.tx_offloads.contains(OFFERED) {
            let reason = format!("{driver} hands super-packets to its peer, which takes them");
            Choice { port: true, reason }
        } else {
            Choice::worker(format!("the peer of {driver} takes no super-packets"))
        };
    }
    if !info.tx_offloads.contains(CUTS) {
        return Choice::worker(format!("{driver} offers no TCP segmentation"));
    }
    match try_in_loopback(port, queues, pool) {
        Ok(()) => Choice {
            port: true,
            reason: format!("{driver} was tried in loop-back: all frames right"),
        },
        Err(fault) => Choice::worker(format!("{driver} was tried in loop-back: {fault}")),
    }
}

/// Why a port is not to segment.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Fault {
    /// It has no loop-back, or none that works.
    #[error("{0}")]
    Refused(#[from] rte_rs::Error),
    /// No packet buffers to try it with.
    #[error("no packet buffers")]
    NoBuffer,
    /// The port does not take the super-packet.
    #[error("it does not take one of {mode}")]
    NotTaken {
        /// What was tried.
        mode: Mode,
    },
    /// So many of the frames have come back, none of them wrong.
    #[error("{came} of {expected} frames of {mode} came back")]
    Missing {
        /// What was tried.
        mode: Mode,
        /// Frames that came.
        came: usize,
        /// Frames that should have come.
        expected: usize,
    },
    /// A frame is not what it should be.
    #[error("frame {frame} of {mode} differs")]
    Differs {
        /// What was tried.
        mode: Mode,
        /// Which frame, from 0.
        frame: usize,
    },
}

fn try_in_loopback(port: &mut Port, queues: &PortConfig, pool: &Mempool) -> Result<(), Fault> {
    let config = PortConfig {
        rx_queues: 1,
        tx_queues: 1,
        tx_offloads: CUTS,
        loopback: true,
        ..queues.clone()
    };
    port.configure(&config, pool)?;
    let mac = MacAddr(port.mac()?.0);
    let mut loops = port.start()?;
    let outcome = try_out(&mut loops, pool, mac);
    // A port cannot be stopped while somebody could use its queues.
    drop(loops);
    port.stop()?;
    outcome
}

/// The kinds of super-packets a worker gives to a port.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mode {
    /// TCP over IPv4, identification rising.
    Ipv4,
    /// TCP over IPv6.
    Ipv6,
}

impl std::fmt::Display for Mode {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Ipv4 => "IPv4",
            Self::Ipv6 => "IPv6",
        })
    }
}

/// Payload bytes of the segments tried: the last one is shorter than the others and leaves no padding.
const SEGMENT: u16 = 1_000;
const LAST: u16 = 301;
const SEGMENTS: u16 = 4;

impl Mode {
    /// All of them.
    pub const ALL: [Self; 2] = [Self::Ipv4, Self::Ipv6];

    fn run(self) -> Run {
        Run {
            is_tcp: true,
            is_ipv6: self == Self::Ipv6,
            segment: SEGMENT,
            last_segment: LAST,
            ids: match self {
                Self::Ipv4 => Ids::Rising,
                Self::Ipv6 => Ids::Fixed,
            },
            cwr: false,
            received_bytes: 0,
            arrived_ns: 0,
        }
    }

    /// The frames of one super-packet from a station to itself, as the worker would cut it.
    #[must_use]
    pub fn frames(self, mac: MacAddr) -> Vec<Vec<u8>> {
        let packet = self.packet(mac);
        let run = self.run();
        let how = How {
            segment: run.segment,
            ids: run.ids,
            cwr: Cwr::Every,
        };
        let Ok(cut) = Segmenter::new(&packet, &[], how) else {
            return Vec::new();
        };
        let frames = (0..cut.len()).map(|at| {
            let mut frame = vec![0; cut.frame_len(at)];
            cut.write(at, &mut frame).then_some(frame)
        });
        frames.flatten().collect()
    }

    /// A packet of all the payload, its headers right but for lengths and checksums. The identification and the sequence
    /// number pass zero on the way.
    fn packet(self, mac: MacAddr) -> Vec<u8> {
        let payload = usize::from(SEGMENT) * usize::from(SEGMENTS - 1) + usize::from(LAST);
        let (ethertype, mut ip) = match self {
            Self::Ipv4 => {
                let mut header = vec![0x45, 2, 0, 0, 0xff, 0xfe, 0, 0, 63, protocol::TCP, 0, 0];
                header.extend([192, 0, 2, 1, 198, 51, 100, 1]);
                (ethertype::IPV4, header)
            }
            Self::Ipv6 => {
                let mut header = vec![0x60, 0x21, 0x23, 0x45, 0, 0, protocol::TCP, 63];
                for last in [1, 2] {
                    let address = Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, last);
                    header.extend(address.octets());
                }
                (ethertype::IPV6, header)
            }
        };
        let mut packet = [mac.0, mac.0].concat();
        packet.extend(ethertype.to_be_bytes());
        packet.append(&mut ip);
        // Ports 443 and 50,000, a sequence number that wraps, no acknowledgement number; 8 words (timestamps), ACK and PSH.
        packet.extend([1, 0xbb, 0xc3, 0x50, 0xff, 0xff, 0xff, 0, 0, 0, 0, 9]);
        packet.extend([0x80, 0x18, 0x20, 0, 0, 0, 0, 0]);
        packet.extend([1, 1, 8, 10, 0, 1, 2, 3, 4, 5, 6, 7]);
        packet.extend((0..payload).map(|at| (at % 251) as u8));
        packet
    }
}

/// Tries a started port whose frames come back. What comes from others meanwhile is thrown away.
///
/// # Errors
/// What is wrong with the first mode that is not right.
pub fn try_out(queues: &mut Queues, pool: &Mempool, mac: MacAddr) -> Result<(), Fault> {
    let mut limit = LINK;
    for mode in Mode::ALL {
        let expected = mode.frames(mac);
        send(queues, pool, mode, &expected, limit)?;
        let came = receive(queues, mac, expected.len(), limit);
        limit = RETURN;
        compare(mode, &expected, &came)?;
    }
    Ok(())
}

fn send(
    queues: &mut Queues,
    pool: &Mempool,
    mode: Mode,
    frames: &[Vec<u8>],
    limit: Duration,
) -> Result<(), Fault> {
    let mbufs = frames.iter().map(|frame| pool.alloc_copy(frame));
    let mbufs: Option<Vec<_>> = mbufs.map(|mbuf| mbuf.map(Frame::from)).collect();
    let mut mbufs = mbufs.ok_or(Fault::NoBuffer)?;
    let not_taken = Fault::NotTaken { mode };
    let checksums = Checksums::Port { ipv4: true };
    let packet = build(&mode.run(), &mut mbufs, checksums).ok_or(not_taken.clone())?;
    let mut burst: Burst<1> = Burst::new();
    burst.push(packet);
    let Some(queue) = queues.tx.first_mut() else {
        return Err(not_taken);
    };
    if queue.prepare(&mut burst) == 0 {
        return Err(not_taken);
    }
    let end = Instant::now() + limit;
    while queue.burst(&mut burst) == 0 {
        if Instant::now() >= end {
            return Err(not_taken);
        }
        std::thread::yield_now();
    }
    Ok(())
}

/// What comes back from this station to itself, until there are `expected` frames or the time is over.
fn receive(queues: &mut Queues, mac: MacAddr, expected: usize, limit: Duration) -> Vec<Vec<u8>> {
    let mut came = Vec::new();
    let end = Instant::now() + limit;
    let mut burst: Burst<32> = Burst::new();
    while came.len() < expected && Instant::now() < end {
        for queue in &mut queues.rx {
            queue.burst(&mut burst);
        }
        let ours = |mbuf: &&Mbuf| mbuf.data().starts_with(&[mac.0, mac.0].concat());
        let frames = burst.iter().filter(ours);
        came.extend(frames.map(|mbuf| mbuf.segments().flatten().copied().collect()));
        Mbuf::free_bulk(&mut burst);
        std::thread::yield_now();
    }
    came
}

/// Whether these are the frames, in order and byte for byte.
///
/// # Errors
/// The first difference.
pub fn compare(mode: Mode, expected: &[Vec<u8>], came: &[Vec<u8>]) -> Result<(), Fault> {
    let differs = |(came, expected): (&Vec<u8>, &Vec<u8>)| came != expected;
    if let Some(frame) = came.iter().zip(expected).position(differs) {
        return Err(Fault::Differs { mode, frame });
    }
    if came.len() != expected.len() {
        return Err(Fault::Missing {
            mode,
            came: came.len(),
            expected: expected.len(),
        });
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use bng_fastpath::testing::{wrong_checksum, wrong_checksum6};

    #[test]
    fn the_frames_tried_are_those_of_a_run_with_all_that_changes_in_it() {
        for mode in Mode::ALL {
            let frames = mode.frames(MacAddr([2, 0, 0, 0, 0, 1]));
            assert_eq!(frames.len(), usize::from(SEGMENTS));
            for (at, frame) in frames.iter().enumerate() {
                let (packet, flags) = match mode {
                    Mode::Ipv4 => (&frame[14..], frame[14 + 20 + 13]),
                    Mode::Ipv6 => (&frame[14..], frame[14 + 40 + 13]),
                };
                let wrong = match mode {
                    Mode::Ipv4 => wrong_checksum(packet),
                    Mode::Ipv6 => wrong_checksum6(packet),
                };
                assert_eq!(wrong, None, "{mode} {at}");
                let is_last = at + 1 == frames.len();
                assert_eq!(flags, if is_last { 0x18 } else { 0x10 }, "PSH at the end");
            }
            let ids: Vec<_> = frames.iter().map(|f| [f[18], f[19]]).collect();
            if mode == Mode::Ipv4 {
                assert_eq!(ids, [[0xff, 0xfe], [0xff, 0xff], [0, 0], [0, 1]]);
            }
        }
    }

    #[test]
    fn every_difference_is_found() {
        let mode = Mode::Ipv4;
        let expected = mode.frames(MacAddr::ZERO);
        assert_eq!(compare(mode, &expected, &expected), Ok(()));
        // IPv4 identification that does not rise, as some ports do it.
        let mut fixed = expected.clone();
        fixed[1][18..20].copy_from_slice(&[0xff, 0xfe]);
        assert_eq!(
            compare(mode, &expected, &fixed),
            Err(Fault::Differs { mode, frame: 1 })
        );
        let missing = Fault::Missing {
            mode,
            came: 3,
            expected: 4,
        };
        assert_eq!(compare(mode, &expected, &expected[..3]), Err(missing));
        let mut more = expected.clone();
        more.push(vec![0; 60]);
        assert!(compare(mode, &expected, &more).is_err());
        let mut swapped = expected.clone();
        swapped.swap(0, 1);
        assert_eq!(
            compare(mode, &expected, &swapped),
            Err(Fault::Differs { mode, frame: 0 })
        );
    }
}
