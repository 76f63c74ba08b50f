//! One direction: what is sent, and the account of what arrives.

use anyhow::{Context, Result};
use bng_wire::MacAddr;
use bng_wire::checksum::l4_checksum;
use bng_wire::ethernet::{self, EthFrame, ethertype};
use bng_wire::ipv4::{self, Ipv4};
use bng_wire::l4::UdpHdr;
use bng_wire::pppoe::{self, protocol};
use hdrhistogram::Histogram;
use rte_rs::{Burst, Mbuf, tsc};
use std::net::SocketAddrV4;
use zerocopy::FromBytes;

use super::ends::{BURST, End};
use super::flows::{Flow, Subscriber, Template};
use super::stamp::Stamp;
use crate::sequence::SequenceTracker;

/// Which way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Direction {
    Up,
    Down,
}

impl Direction {
    pub(super) const fn name(self) -> &'static str {
        match self {
            Self::Up => "up",
            Self::Down => "down",
        }
    }
}

/// Of this many packets one has its UDP checksum verified, over all bytes.
const FULL_CHECK: u64 = 64;
/// A sender this many packets late gives up the backlog: a stall of the generator must not become a burst that no device
/// was asked to take.
const MAX_BACKLOG: u64 = 256;
/// Largest latency told apart, seconds.
const MAX_LATENCY_S: u64 = 10;

/// Counts of one trial.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Counts {
    /// Packets offered, refused ones included.
    pub(super) offered: u64,
    /// Packets the port had no room for: with memory ports the receiver's ring is full, as a NIC's would be.
    pub(super) refused: u64,
    /// Packets that arrived whole and where they belong, repeated ones included.
    pub(super) received: u64,
    /// Those that arrived elsewhere than at their subscriber or remote host.
    pub(super) misdelivered: u64,
    /// Those with a wrong checksum.
    pub(super) corrupt: u64,
    /// Those of an earlier trial.
    pub(super) stale: u64,
    /// Times a backlog was given up.
    pub(super) stalls: u64,
}

/// What is kept of a flow during a trial.
#[derive(Clone, Debug, Default)]
pub(super) struct FlowState {
    /// Packets sent; the next sequence number.
    pub(super) sent: u32,
    /// What arrived. A window of 64 packets of one flow tells late from repeated.
    pub(super) seen: SequenceTracker<1>,
}

/// One direction.
pub(super) struct Lane {
    direction: Direction,
    templates: Vec<Template>,
    pub(super) states: Vec<FlowState>,
    pub(super) counts: Counts,
    /// Ticks from stamping to receiving.
    pub(super) latency: Histogram<u64>,
    trial: u16,
    cursor: u32,
    /// From one flow to the next: neighbours in time are far apart in every table.
    stride: u32,
    waiting: Vec<Burst<BURST>>,
    /// Whoever sent the last packet that was learned from.
    pub(super) sender: MacAddr,
}

/// When packets of a trial are due.
#[derive(Clone, Copy, Debug)]
pub(super) struct Pace {
    /// Packets per tick of the time-stamp counter.
    per_tick: f64,
    start: u64,
    done: u64,
    /// No more than these in all.
    most: u64,
}

impl Pace {
    pub(super) fn new(per_second: f64, tsc_hz: u64, start: u64, most: u64) -> Self {
        Self {
            per_tick: per_second / tsc_hz as f64,
            start,
            done: 0,
            most,
        }
    }

    /// How many packets are due now, at most a burst; whether a backlog was given up.
    fn take(&mut self, now: u64) -> (usize, bool) {
        let due = (now.saturating_sub(self.start) as f64 * self.per_tick) as u64;
        let behind = due.saturating_sub(self.done);
        let late = behind > MAX_BACKLOG;
        if late {
            // The schedule starts anew with what one burst can make good.
            let skip = (behind - BURST as u64) as f64 / self.per_tick;
            self.start += skip as u64;
        }
        let count = behind
            .min(BURST as u64)
            .min(self.most.saturating_sub(self.done));
        self.done += count;
        (count as usize, late)
    }

    /// Whether all packets there are to send are sent.
    pub(super) const fn is_done(&self) -> bool {
        self.done >= self.most
    }
}

/// Somewhere near the golden section of `count`, with no common divisor.
fn stride(count: u32) -> u32 {
    let divides = |mut a: u32, mut b: u32| {
        while b != 0 {
            (a, b) = (b, a % b);
        }
        a
    };
    let near = (f64::from(count) * 0.618_033_988_75) as u32;
    (near.max(1)..)
        .find(|at| divides(*at, count) == 1)
        .unwrap_or(1)
}

/// A packet of ours as it arrived.
struct Arrived<'a> {
    eth: EthFrame,
    session_id: u16,
    ip: Ipv4,
    from: SocketAddrV4,
    to: SocketAddrV4,
    segment: &'a [u8],
    stamp: &'a Stamp,
}

/// Why a frame is not counted as arrived.
enum Other {
    /// Nothing of ours.
    Foreign,
    /// A damaged IP header.
    Corrupt,
}

fn open(direction: Direction, frame: &[u8]) -> Result<Arrived<'_>, Other> {
    let (eth, rest) = ethernet::split(frame).map_err(|_| Other::Foreign)?;
    let (session_id, packet) = match (direction, eth.ethertype) {
        (Direction::Up, ethertype::IPV4) => (0, rest),
        (Direction::Down, ethertype::PPPOE_SESSION) => {
            let session = pppoe::parse_session(rest).map_err(|_| Other::Foreign)?;
            if session.protocol != protocol::IPV4 {
                return Err(Other::Foreign);
            }
            (session.session_id, session.payload)
        }
        _ => return Err(Other::Foreign),
    };
    let ip = ipv4::parse(packet).map_err(|_| Other::Corrupt)?;
    let segment = packet
        .get(ip.header_len..ip.total_len)
        .ok_or(Other::Corrupt)?;
    if ip.protocol != ipv4::protocol::UDP || ip.is_fragment() {
        return Err(Other::Foreign);
    }
    let (udp, payload) = UdpHdr::ref_from_prefix(segment).map_err(|_| Other::Corrupt)?;
    let stamp = Stamp::of(payload).ok_or(Other::Foreign)?;
    Ok(Arrived {
        from: SocketAddrV4::new(ip.src_addr(), udp.src_port.get()),
        to: SocketAddrV4::new(ip.dst_addr(), udp.dst_port.get()),
        eth,
        session_id,
        ip,
        segment,
        stamp,
    })
}

impl Lane {
    pub(super) fn new(
        direction: Direction,
        templates: Vec<Template>,
        queues: usize,
        tsc_hz: u64,
    ) -> Result<Self> {
        let flows = u32::try_from(templates.len())?;
        Ok(Self {
            direction,
            states: vec![FlowState::default(); templates.len()],
            templates,
            counts: Counts::default(),
            latency: Histogram::new_with_max(tsc_hz * MAX_LATENCY_S, 3)?,
            trial: 0,
            cursor: 0,
            stride: stride(flows),
            waiting: (0..queues).map(|_| Burst::new()).collect(),
            sender: MacAddr::ZERO,
        })
    }

    pub(super) const fn direction(&self) -> Direction {
        self.direction
    }

    /// Forgets the last trial.
    pub(super) fn begin(&mut self, trial: u16) {
        self.trial = trial;
        self.counts = Counts::default();
        self.latency.reset();
        self.states.fill(FlowState::default());
    }

    /// Sends what is due, at most a burst. Returns how many packets those were.
    pub(super) fn send(&mut self, pace: &mut Pace, port: &mut End, now: u64) -> Result<usize> {
        let (count, late) = pace.take(now);
        self.counts.stalls += u64::from(late);
        self.emit(count, None, port, now)?;
        Ok(count)
    }

    /// Sends one packet of a flow, out of turn.
    pub(super) fn send_flow(&mut self, flow: u32, port: &mut End, now: u64) -> Result<()> {
        self.emit(1, Some(flow), port, now)
    }

    fn emit(&mut self, count: usize, one: Option<u32>, port: &mut End, now: u64) -> Result<()> {
        if count == 0 {
            return Ok(());
        }
        let mut fresh: Burst<BURST> = Burst::new();
        if !port.pool.alloc_bulk(&mut fresh, count) {
            // All buffers wait in the port: the other end takes nothing.
            self.counts.offered += count as u64;
            self.counts.refused += count as u64;
            return Ok(());
        }
        let queues = self.waiting.len();
        for mut mbuf in fresh {
            let flow = one.unwrap_or(self.cursor);
            if one.is_none() {
                let next = u64::from(self.cursor) + u64::from(self.stride);
                self.cursor = (next % self.templates.len() as u64) as u32;
            }
            let at = flow as usize;
            let (Some(template), Some(state)) = (self.templates.get(at), self.states.get_mut(at))
            else {
                continue;
            };
            let stamp = Stamp::new(self.direction as u8, self.trial, flow, state.sent, now);
            template
                .write(&mut mbuf, &stamp)
                .context("a packet does not fit a buffer")?;
            state.sent += 1;
            self.counts.offered += 1;
            if let Some(burst) = self.waiting.get_mut(at % queues) {
                burst.push(mbuf);
            }
        }
        for (burst, queue) in self.waiting.iter_mut().zip(&mut port.tx) {
            queue.burst(burst);
            self.counts.refused += burst.len() as u64;
            Mbuf::free_bulk(burst);
        }
        Ok(())
    }

    /// Counts what has arrived on `port`, one burst from each queue. Frames that are not ours go to `others`. With `learn`
    /// the address and port a flow arrives from are what it is called outside from now on. Returns how many frames came.
    pub(super) fn receive(
        &mut self,
        port: &mut End,
        flows: &mut [Flow],
        subscribers: &[Subscriber],
        learn: bool,
        mut others: impl FnMut(&[u8]),
    ) -> usize {
        let mut frames = 0;
        let mut burst: Burst<BURST> = Burst::new();
        for queue in &mut port.rx {
            frames += queue.burst(&mut burst);
            let now = tsc();
            for mbuf in &burst {
                match open(self.direction, mbuf.data()) {
                    Ok(arrived) => {
                        self.count(&arrived, now, port.mac, flows, subscribers, learn);
                    }
                    Err(Other::Corrupt) => self.counts.corrupt += 1,
                    Err(Other::Foreign) => others(mbuf.data()),
                }
            }
            Mbuf::free_bulk(&mut burst);
        }
        frames
    }

    fn count(
        &mut self,
        arrived: &Arrived<'_>,
        now: u64,
        port: MacAddr,
        flows: &mut [Flow],
        subscribers: &[Subscriber],
        learn: bool,
    ) {
        let stamp = arrived.stamp;
        let at = stamp.flow() as usize;
        let (Some(flow), Some(state)) = (flows.get_mut(at), self.states.get_mut(at)) else {
            self.counts.corrupt += 1;
            return;
        };
        if stamp.trial() != self.trial {
            self.counts.stale += 1;
            return;
        }
        let right_place = stamp.direction() == self.direction as u8
            && match self.direction {
                Direction::Up => {
                    if learn {
                        flow.outside = Some(arrived.from);
                        self.sender = arrived.eth.src;
                    }
                    arrived.eth.dst == port
                        && arrived.to == flow.remote
                        && Some(arrived.from) == flow.outside
                }
                Direction::Down => {
                    let subscriber = subscribers.get(flow.subscriber as usize);
                    subscriber.is_some_and(|subscriber| {
                        arrived.eth.dst == subscriber.mac
                            && arrived.eth.src == subscriber.concentrator
                            && arrived.session_id == subscriber.session_id
                            && arrived.eth.tags.s_vlan() == subscriber.vlans.s_vlan()
                            && arrived.eth.tags.c_vlan() == subscriber.vlans.c_vlan()
                    }) && arrived.to == flow.inside
                        && arrived.from == flow.remote
                }
            };
        if !right_place {
            self.counts.misdelivered += 1;
            return;
        }
        if self.counts.received.is_multiple_of(FULL_CHECK) {
            let ip = &arrived.ip;
            if l4_checksum(ip.src, ip.dst, ip.protocol, arrived.segment) != 0 {
                self.counts.corrupt += 1;
                return;
            }
        }
        self.counts.received += 1;
        state.seen.observe(u64::from(stamp.sequence()));
        self.latency
            .saturating_record(now.saturating_sub(stamp.sent()));
    }

    /// Different packets that arrived.
    pub(super) fn unique(&self) -> u64 {
        self.states
            .iter()
            .map(|state| state.seen.counts().unique)
            .sum()
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    #[test]
    fn the_stride_visits_every_flow_once_in_a_round() {
        for count in [1, 2, 7, 1_000, 65_536] {
            let stride = u64::from(stride(count));
            let mut at = 0u64;
            let visited: HashSet<_> = (0..count)
                .map(|_| {
                    at = (at + stride) % u64::from(count);
                    at
                })
                .collect();
            assert_eq!(visited.len(), count as usize);
        }
    }

    #[test]
    fn packets_are_due_at_the_rate_and_a_stall_is_not_made_good() {
        let mut pace = Pace::new(1e6, 1_000_000_000, 0, u64::MAX);
        let sent: usize = (0..1_000_000u64)
            .step_by(500)
            .map(|now| pace.take(now).0)
            .sum();
        assert_eq!(sent, 999);
        // A second later a million would be due.
        let (burst, late) = pace.take(1_001_000_000);
        assert_eq!((burst, late), (BURST, true));
        let more: usize = (0..100).map(|_| pace.take(1_001_000_000).0).sum();
        assert!(more <= 1, "{more}");
    }

    #[test]
    fn no_more_than_asked_for_are_sent() {
        let mut pace = Pace::new(1e9, 1_000_000_000, 0, 40);
        assert_eq!(pace.take(200).0, 32);
        assert!(!pace.is_done());
        assert_eq!(pace.take(201).0, 8);
        assert!(pace.is_done());
        assert_eq!(pace.take(202).0, 0);
    }
}
