//! The other end of the kernel's connections: a TCP that sends without end, and datagrams, as cheap for it as possible.
//!
//! Per flow: answer (or make) the handshake, then trains of full segments as long as the window and the budget of frames on
//! their way allow, cumulative acknowledgements, go-back-N after three repeated ones or a time-out. The budget is below what
//! the gateway's queues hold; where something is lost all the same, a flow halves what it has on its way and then grows again,
//! by a train per round trip (RFC 5681). Datagrams have no acknowledgements; what the receiver has counted stands for them.

use std::collections::HashMap;
use std::net::{Ipv4Addr, SocketAddrV4};

use anyhow::{Context, Result};
use bng_wire::MacAddr;
use bng_wire::l4::tcp_flag::{ACK, FIN, RST, SYN};
use rte_rs::{Burst, Mbuf};

use super::cell::{Cell, Protocol};
use super::kernel::Delivered;
use super::segment::Segment;
use super::template::{Link, Template, full};
use crate::wire::arp;
use crate::wire::ends::{BURST, End};
use crate::wire::flows::Subscriber;

/// First port of the flows on our side.
pub(super) const FIRST_PORT: u16 = 5_000;
/// Our first sequence number, of every flow.
const ISN: u32 = 0x7fff_0000;
/// What the handshake's options say: maximum segment size (filled in), no operation, window scale 0.
const OPTIONS: [u8; 8] = [2, 4, 0, 0, 1, 3, 3, 0];
/// Nothing acknowledged for so long: from the last acknowledgement on again.
const TIME_OUT_S: f64 = 0.2;
/// Repeated acknowledgements that say that a segment was lost (RFC 5681).
const REPEATED: u8 = 3;

/// Who begins.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Begin {
    /// The kernel connects, or says hello by a datagram.
    Kernel,
    /// We connect.
    Peer(SocketAddrV4),
}

/// One connection, or one flow of datagrams. Positions are payload bytes from the start.
#[derive(Debug, Default)]
struct Flow {
    template: Option<Template>,
    /// What we acknowledge.
    ack: u32,
    /// Everything before this is acknowledged.
    acked: u64,
    /// What is sent next.
    next: u64,
    /// Highest position ever sent.
    sent: u64,
    window: u64,
    /// What may be on its way after losses, bytes.
    congestion: u64,
    scale: u8,
    id: u16,
    repeated: u8,
    /// Datagrams only: bytes given up as lost.
    lost: u64,
    /// When something was acknowledged, or sent into silence, ticks.
    moved: u64,
}

impl Flow {
    const fn outstanding(&self) -> u64 {
        self.next - self.acked
    }
}

/// What went wrong.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Trouble {
    /// Payload bytes sent again.
    pub(super) repeated_bytes: u64,
    /// Payload bytes of datagrams that did not arrive.
    pub(super) lost_bytes: u64,
    /// Time-outs.
    pub(super) time_outs: u64,
}

/// How much may be sent.
#[derive(Clone, Copy, Debug)]
pub(super) struct Budget {
    /// Frames a flow sends at once.
    pub(super) train: u8,
    /// Frames on their way, all flows.
    pub(super) frames: u32,
}

/// The sender.
pub(super) struct Peer {
    own: MacAddr,
    address: Ipv4Addr,
    /// Known from the start for a session, else from the first frame of the kernel.
    link: Option<Link>,
    protocol: Protocol,
    begin: Begin,
    /// Bytes of a full segment or datagram.
    payload: usize,
    /// Bytes of a train, and of all that may be on its way.
    train: u64,
    most: u64,
    flows: Vec<Flow>,
    /// Flow of each of our ports.
    ports: HashMap<u16, usize>,
    cursor: usize,
    outstanding: u64,
    delivered: Delivered,
    pending: Burst<BURST>,
    time_out: u64,
    pub(super) trouble: Trouble,
}

impl Peer {
    /// The flows of `cell` from `address`.
    #[allow(clippy::too_many_arguments, reason = "made in one place")]
    pub(super) fn new(
        own: MacAddr,
        address: Ipv4Addr,
        session: Option<Subscriber>,
        cell: &Cell,
        begin: Begin,
        budget: Budget,
        delivered: Delivered,
        tsc_hz: u64,
    ) -> Self {
        let payload = full(cell.way, cell.protocol);
        Self {
            own,
            address,
            link: session.map(Link::Session),
            protocol: cell.protocol,
            begin,
            payload,
            train: u64::from(budget.train) * payload as u64,
            most: u64::from(budget.frames) * payload as u64,
            flows: (0..cell.flows).map(|_| Flow::default()).collect(),
            ports: (0..cell.flows)
                .map(|at| (FIRST_PORT + at, usize::from(at)))
                .collect(),
            cursor: 0,
            outstanding: 0,
            delivered,
            pending: Burst::new(),
            time_out: (tsc_hz as f64 * TIME_OUT_S) as u64,
            trouble: Trouble::default(),
        }
    }

    /// Whether every flow sends.
    pub(super) fn is_open(&self) -> bool {
        self.flows.iter().all(|flow| flow.template.is_some())
    }

    /// Asks for the connections that are not there yet; again when they do not come.
    pub(super) fn connect(&mut self, end: &mut End) -> Result<()> {
        let (Begin::Peer(to), Some(link)) = (self.begin, self.link) else {
            return Ok(());
        };
        for (at, flow) in (0u16..).zip(&self.flows) {
            if flow.template.is_none() {
                let from = SocketAddrV4::new(self.address, FIRST_PORT + at);
                let options = self.options();
                let syn = link.control((from, to), SYN, (ISN.wrapping_sub(1), 0), &options);
                end.send(&syn.context("a SYN")?);
            }
        }
        Ok(())
    }

    fn options(&self) -> [u8; 8] {
        let mut options = OPTIONS;
        let size = u16::try_from(self.payload).unwrap_or(u16::MAX);
        if let Some(place) = options.get_mut(2..4) {
            place.copy_from_slice(&size.to_be_bytes());
        }
        options
    }

    /// Takes what has arrived. Returns how many frames.
    pub(super) fn receive(&mut self, end: &mut End, now: u64) -> usize {
        let mut burst: Burst<BURST> = Burst::new();
        let mut frames = 0;
        for at in 0..end.rx.len() {
            let Some(queue) = end.rx.get_mut(at) else {
                break;
            };
            frames += queue.burst(&mut burst);
            for mbuf in &burst {
                self.frame(mbuf.data(), end, now);
            }
            Mbuf::free_bulk(&mut burst);
        }
        frames
    }

    fn frame(&mut self, frame: &[u8], end: &mut End, now: u64) {
        let Some(segment) = Segment::read(frame, matches!(self.link, Some(Link::Session(_))))
        else {
            if let Some(reply) = arp::answer(frame, self.own) {
                end.send(&reply);
            }
            return;
        };
        let Some(at) = self.ports.get(&segment.to.port()).copied() else {
            return;
        };
        let link = *self.link.get_or_insert(Link::Plain {
            own: self.own,
            gateway: segment.station,
        });
        if segment.is_udp {
            self.open(at, &link, &segment, now);
        } else if segment.flags & (RST | FIN) != 0 {
            // The receiver says why it has gone.
        } else if segment.flags & SYN != 0 {
            self.handshake(at, &link, &segment, end, now);
        } else {
            self.acknowledged(at, &segment, now);
        }
    }

    /// A SYN, or the answer to ours.
    fn handshake(&mut self, at: usize, link: &Link, segment: &Segment, end: &mut End, now: u64) {
        let ack = segment.seq.wrapping_add(1);
        let ends = (segment.to, segment.from);
        let (flags, seq, options) = if segment.flags & ACK == 0 {
            (SYN | ACK, ISN.wrapping_sub(1), self.options().to_vec())
        } else {
            (ACK, ISN, Vec::new())
        };
        if let Some(answer) = link.control(ends, flags, (seq, ack), &options) {
            end.send(&answer);
        }
        if let Some(flow) = self.flows.get_mut(at) {
            flow.ack = ack;
            flow.scale = segment.scale;
        }
        self.open(at, link, segment, now);
    }

    fn open(&mut self, at: usize, link: &Link, segment: &Segment, now: u64) {
        let payload = self.payload;
        let (from, to) = (segment.to, segment.from);
        let template = Template::new(link, self.protocol, from, to, payload, ACK);
        if let Some(flow) = self.flows.get_mut(at)
            && flow.template.is_none()
        {
            flow.template = template;
            flow.moved = now;
            flow.congestion = self.most;
            flow.window = match self.protocol {
                // In a SYN it is not scaled (RFC 7323 section 2.2).
                Protocol::Tcp => u64::from(segment.window),
                Protocol::Udp => u64::MAX,
            };
        }
    }

    fn acknowledged(&mut self, at: usize, segment: &Segment, now: u64) {
        let Some(flow) = self.flows.get_mut(at) else {
            return;
        };
        let window = u64::from(segment.window) << flow.scale;
        let expected = ISN.wrapping_add(flow.acked as u32);
        let more = u64::from(segment.ack.wrapping_sub(expected));
        if more > flow.sent - flow.acked {
            // Old, or nonsense.
            return;
        }
        if more == 0 {
            let is_repeated = flow.outstanding() > 0 && window == flow.window;
            flow.window = window;
            flow.repeated = if is_repeated {
                flow.repeated.saturating_add(1)
            } else {
                0
            };
            if flow.repeated == REPEATED {
                self.go_back(at, now);
            }
            return;
        }
        let before = flow.outstanding();
        flow.acked += more;
        flow.next = flow.next.max(flow.acked);
        self.outstanding = self.outstanding + flow.outstanding() - before;
        flow.window = window;
        flow.repeated = 0;
        flow.moved = now;
        let growth = self.train * more / flow.congestion.max(1);
        flow.congestion = (flow.congestion + growth).min(self.most);
    }

    /// Everything that is not acknowledged again.
    fn go_back(&mut self, at: usize, now: u64) {
        if let Some(flow) = self.flows.get_mut(at) {
            let bytes = flow.outstanding();
            self.outstanding -= bytes;
            flow.moved = now;
            flow.congestion = (bytes / 2).max(self.train);
            match self.protocol {
                Protocol::Tcp => {
                    flow.next = flow.acked;
                    self.trouble.repeated_bytes += bytes;
                }
                Protocol::Udp => {
                    flow.acked = flow.next;
                    flow.lost += bytes;
                    self.trouble.lost_bytes += bytes;
                }
            }
        }
    }

    /// What the receivers have counted stands for acknowledgements.
    fn counted(&mut self, now: u64) {
        for (at, flow) in self.flows.iter_mut().enumerate() {
            let before = flow.outstanding();
            let acked = (self.delivered.bytes(at) + flow.lost).clamp(flow.acked, flow.next);
            if acked != flow.acked {
                flow.acked = acked;
                flow.moved = now;
                self.outstanding = self.outstanding + flow.outstanding() - before;
            }
        }
    }

    fn time_outs(&mut self, now: u64) {
        for at in 0..self.flows.len() {
            let late = self.flows.get(at).is_some_and(|flow| {
                flow.outstanding() > 0 && now.wrapping_sub(flow.moved) > self.time_out
            });
            if late {
                self.trouble.time_outs += 1;
                self.go_back(at, now);
            }
        }
    }

    /// Sends what may be sent, at most one round of trains. Returns how many frames were given to the port.
    pub(super) fn pump(&mut self, end: &mut End, now: u64) -> usize {
        let mut sent = 0;
        if self.protocol == Protocol::Udp {
            self.counted(now);
        }
        self.time_outs(now);
        for _ in 0..self.flows.len() {
            let Some(queue) = end.tx.first_mut() else {
                break;
            };
            sent += queue.burst(&mut self.pending);
            if !self.pending.is_empty() {
                // The ring is full; what is left goes first next time.
                break;
            }
            let at = self.cursor;
            self.cursor = (at + 1) % self.flows.len();
            self.train(at, end, now);
        }
        if let Some(queue) = end.tx.first_mut() {
            sent += queue.burst(&mut self.pending);
        }
        sent
    }

    /// The next train of a flow into `pending`: whole, unless its window is smaller than that.
    fn train(&mut self, at: usize, end: &End, now: u64) {
        let Some(flow) = self.flows.get_mut(at) else {
            return;
        };
        let Some(template) = flow.template else {
            return;
        };
        let outstanding = flow.outstanding();
        let room = flow.window.min(flow.congestion).saturating_sub(outstanding);
        let is_late = room < self.train && outstanding > 0;
        if is_late || self.outstanding + self.train > self.most {
            return;
        }
        let payload = template.payload() as u64;
        let count = room.min(self.train) / payload;
        if count == 0 {
            return;
        }
        if outstanding == 0 {
            flow.moved = now;
        }
        let mut fresh: Burst<BURST> = Burst::new();
        if !end.pool.alloc_bulk(&mut fresh, count as usize) {
            return;
        }
        for mut mbuf in fresh.drain(..) {
            let seq = ISN.wrapping_add(flow.next as u32);
            if template.write(&mut mbuf, flow.id, seq, flow.ack).is_none() {
                return;
            }
            flow.id = flow.id.wrapping_add(1);
            flow.next += payload;
            flow.sent = flow.sent.max(flow.next);
            self.outstanding += payload;
            self.pending.push(mbuf);
        }
    }
}
