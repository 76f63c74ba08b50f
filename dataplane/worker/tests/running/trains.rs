//! Trains: packets of one flow, one right behind the other, and bursts that the process sees at once.

use super::frames::{from_core, from_subscriber, source_port, to_core};
use super::{Gateway, HOST, Subscriber, wait_for, with_workers};
use bng_fastpath::testing::{tcp, udp};
use bng_wire::checksum::{checksum, l4_checksum};
use bng_wire::pppoe::protocol;
use rustix::process::{Signal, kill_process};
use std::net::Ipv4Addr;

/// Port of the host on the other side.
pub(crate) const SERVER: u16 = 443;

/// A flow of packets with rising identification, all with the payload `mark` over and over.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Train {
    pub(crate) from: (Ipv4Addr, u16),
    pub(crate) to: (Ipv4Addr, u16),
    pub(crate) is_tcp: bool,
    pub(crate) payload: usize,
    pub(crate) mark: u8,
}

impl Train {
    /// From a subscriber's port to the host.
    pub(crate) fn up(s: &Subscriber, port: u16, is_tcp: bool) -> Self {
        Self {
            from: (s.session.framed_ip, port),
            to: (HOST, SERVER),
            is_tcp,
            payload: 1_000,
            mark: port as u8,
        }
    }

    /// The answers of the host to a NAT port.
    pub(crate) fn down(s: &Subscriber, nat_port: u16, is_tcp: bool) -> Self {
        Self {
            from: (HOST, SERVER),
            to: (s.block().address, nat_port),
            is_tcp,
            payload: 1_000,
            mark: nat_port as u8,
        }
    }

    /// Packet `n`.
    pub(crate) fn packet(&self, n: u16) -> Vec<u8> {
        let mut payload = vec![self.mark; self.payload];
        payload[..2].copy_from_slice(&n.to_be_bytes());
        let mut packet = if self.is_tcp {
            tcp(self.from, self.to, 0x10, &payload)
        } else {
            udp(self.from, self.to, &payload)
        };
        packet[4..6].copy_from_slice(&n.to_be_bytes());
        packet[10..12].fill(0);
        let check = checksum(&packet[..20]);
        packet[10..12].copy_from_slice(&check.to_be_bytes());
        if self.is_tcp {
            let sequence = u32::from(n) * self.payload as u32;
            packet[24..28].copy_from_slice(&sequence.to_be_bytes());
            packet[36..38].fill(0);
            let (from, to) = (self.from.0.to_bits(), self.to.0.to_bits());
            let check = l4_checksum(from, to, 6, &packet[20..]);
            packet[36..38].copy_from_slice(&check.to_be_bytes());
        }
        packet
    }

    /// Packet `n` as the subscriber sends it.
    pub(crate) fn frame_up(&self, g: &Gateway, s: &Subscriber, n: u16) -> Vec<u8> {
        from_subscriber(g, s, protocol::IPV4, &self.packet(n))
    }

    /// Packet `n` as the core sends it.
    pub(crate) fn frame_down(&self, g: &Gateway, n: u16) -> Vec<u8> {
        from_core(g, &self.packet(n))
    }

    /// Packet `n` as it comes out at the core, from this NAT address and port.
    pub(crate) fn out_up(&self, g: &Gateway, nat: (Ipv4Addr, u16), n: u16) -> Vec<u8> {
        let translated = Self { from: nat, ..*self };
        to_core(g, &super::frames::hop(translated.packet(n)))
    }

    /// Packet `n` as the subscriber is to get it at this port.
    pub(crate) fn out_down(&self, g: &Gateway, s: &Subscriber, port: u16, n: u16) -> Vec<u8> {
        let to = (s.session.framed_ip, port);
        let translated = Self { to, ..*self };
        super::frames::to_subscriber(g, s, &super::frames::hop(translated.packet(n)))
    }
}

/// Stops the process meanwhile, so that it sees all that `send` sends at once, as far as a burst goes.
pub(crate) fn while_stopped<T>(g: &mut Gateway, send: impl FnOnce(&mut Gateway) -> T) -> T {
    let pid = g.pid();
    kill_process(pid, Signal::STOP).unwrap();
    wait_for("stop of every thread", || {
        let tasks = format!("/proc/{}/task", pid.as_raw_nonzero());
        let stands = |stat: String| {
            let state = stat.rsplit(')').next();
            state.is_some_and(|rest| rest.starts_with(" T"))
        };
        let all = std::fs::read_dir(tasks).unwrap().all(|task| {
            std::fs::read_to_string(task.unwrap().path().join("stat")).is_ok_and(stands)
        });
        all.then_some(())
    });
    let result = send(g);
    kill_process(pid, Signal::CONT).unwrap();
    result
}

/// `dataplane.coalescing` of the tests.
fn coalescing(hold_us: u32) -> String {
    format!(
        "dataplane:\n  coalescing: {{ upstream: {{ tcp: true, udp: true }}, downstream: {{ tcp: true, udp: true }}, hold_us: {hold_us} }}"
    )
}

/// The process with so many workers, and coalescing with this hold time.
pub(crate) fn start(name: &str, workers: usize, hold_us: u32) -> Gateway {
    Gateway::start_with(name, |yaml| {
        let yaml = yaml.replacen("dataplane:", &coalescing(hold_us), 1);
        with_workers(&yaml, workers)
    })
}

/// Sends a packet of each flow and finds the ports NAT gives them.
pub(crate) fn map(g: &Gateway, s: &Subscriber, flows: &[Train]) -> Vec<u16> {
    let ports = flows.iter().map(|flow| {
        g.access.send(&flow.frame_up(g, s, 0));
        source_port(&g.core.receive())
    });
    ports.collect()
}

/// Packets in use when nothing is on its way.
pub(crate) fn idle_buffers(g: &Gateway) -> u32 {
    wait_for("count of packet buffers", || {
        let (all, in_use) = g.control.mbufs();
        (all > 0).then_some(in_use)
    })
}

/// Waits until all packet buffers are back.
pub(crate) fn expect_buffers(g: &Gateway, idle: u32) {
    wait_for("return of all packet buffers", || {
        (g.control.mbufs().1 == idle).then_some(())
    });
}
