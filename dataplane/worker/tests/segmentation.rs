//! Who cuts super-packets: a peer that takes them gets them, a port that does it wrong is found out (HZ-13).
#![allow(
    missing_docs,
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    dead_code
)]

mod running;

use bng_dataplane::segmentation::{Fault, Mode, try_out};
use bng_fastpath::coalesce::Ids;
use bng_fastpath::segment::{Cwr, How, Segmenter};
use bng_fastpath::testing::{ethernet, tcp6};
use bng_shm::{BlockOwner, Counter, NextHopId, Offloads, Pool6Range, Route6, Vlans};
use bng_wire::MacAddr;
use bng_wire::checksum::{Sum, l4_checksum, l4_checksum_ipv6};
use bng_wire::ethernet::ethertype;
use bng_wire::pppoe::protocol;
use rte_rs::{
    Burst, Eal, EalArgs, Mbuf, Memory, Mempool, MempoolConfig, Port, PortConfig, Queues,
    RxOffloads, ol_flags,
};
use running::frames::from_subscriber;
use running::trains::{Train, while_stopped};
use running::{CORE, Gateway, ROUTER_MAC, Subscriber, wait_for, with_workers};
use std::net::Ipv6Addr;
use std::path::PathBuf;
use std::time::{Duration, Instant};

fn eal(name: &str) -> Eal {
    let arguments = EalArgs::new(&format!("{name}{}", std::process::id()))
        .memory(Memory::NoHugepages { mib: 128 })
        .pci(false)
        .telemetry(false)
        .restore_affinity(true);
    Eal::init(&arguments).unwrap()
}

/// A peer of the core port: the other end of its virtio rings.
struct Peer {
    queues: Queues,
    port: Port,
    socket: PathBuf,
}

impl Peer {
    /// `tso` says whether it takes super-packets.
    fn start(eal: &Eal, pool: &Mempool, name: &str, tso: bool) -> Self {
        let socket = PathBuf::from(format!("/dev/shm/bng-{name}-{}.sock", std::process::id()));
        let tso = u8::from(tso);
        let device = format!("net_vhost_{name},iface={},tso={tso}", socket.display());
        let mut port = Port::probe(eal, &device).unwrap();
        let config = PortConfig {
            // Or the driver would complete the checksums.
            rx_offloads: RxOffloads::TCP_CKSUM | RxOffloads::UDP_CKSUM,
            ..PortConfig::default()
        };
        port.configure(&config, pool).unwrap();
        let queues = port.start().unwrap();
        Self {
            queues,
            port,
            socket,
        }
    }

    /// The process with this peer behind its core port, which is asked to segment or not, and upstream TCP coalesced.
    fn gateway(&self, name: &str, segmentation: &str) -> Gateway {
        self.gateway_with(name, segmentation, "upstream: { tcp: true }")
    }

    /// As [`Self::gateway`], with these keys of the port and of `dataplane.coalescing`.
    fn gateway_with(&self, name: &str, segmentation: &str, coalescing: &str) -> Gateway {
        let device = format!(
            "net_virtio_user1,path={},mac=02:00:00:00:07:07",
            self.socket.display()
        );
        let g = Gateway::start_with(name, |yaml| {
            let core = "\"net_af_packet1,iface=cor,qpairs=2\", mtu: 1500";
            let ours = format!("\"{device}\", mtu: 1500, segmentation: {segmentation}");
            assert!(yaml.contains(core));
            let ipv6 = "ipv6: { prefixes: [\"2001:db8:1::/56\"] }";
            let yaml = yaml
                .replace(core, &ours)
                .replacen("nat: public }", &format!("nat: public, {ipv6} }}"), 1)
                .replacen(
                    "dataplane:",
                    &format!("dataplane:\n  coalescing: {{ {coalescing} }}"),
                    1,
                );
            with_workers(&yaml, 1)
        });
        wait_for("link", || self.port.link().unwrap().up.then_some(()));
        g
    }

    /// What comes until there are frames `for` so many, super-packets cut: frames, and the number of super-packets.
    fn receive(&mut self, frames: usize) -> (Vec<Vec<u8>>, usize) {
        let (mut came, mut supers) = (Vec::new(), 0);
        let end = Instant::now() + Duration::from_secs(10);
        let mut burst: Burst<32> = Burst::new();
        while came.len() < frames {
            assert!(Instant::now() < end, "{} of {frames} frames", came.len());
            self.queues.rx[0].burst(&mut burst);
            for mbuf in &burst {
                let pieces: Vec<_> = mbuf.segments().collect();
                if mbuf.ol_flags() & ol_flags::RX_LRO == 0 {
                    came.push(pieces.concat());
                } else {
                    supers += 1;
                    assert_pseudo_header(&pieces.concat());
                    came.append(&mut cut(mbuf, &pieces));
                }
            }
            Mbuf::free_bulk(&mut burst);
            std::thread::yield_now();
        }
        (came, supers)
    }
}

impl Drop for Peer {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.socket);
    }
}

/// As a receiver cuts it who knows what the virtio header says.
fn cut(mbuf: &Mbuf, pieces: &[&[u8]]) -> Vec<Vec<u8>> {
    let how = How {
        segment: mbuf.tx_lengths().segment,
        ids: Ids::Rising,
        cwr: Cwr::First,
    };
    let cut = Segmenter::new(pieces[0], &pieces[1..], how).unwrap();
    let frames = (0..cut.len()).map(|at| {
        let mut frame = vec![0; cut.frame_len(at)];
        assert!(cut.write(at, &mut frame));
        frame
    });
    frames.collect()
}

/// The TCP checksum's place holds the sum of the pseudo header with the length of the whole packet (virtio 1.2 section
/// 5.1.6.2): a receiver that forwards goes on from there.
fn assert_pseudo_header(packet: &[u8]) {
    let (l4, sum) = if packet[12..14] == ethertype::IPV6.to_be_bytes() {
        let addresses = |at: usize| Ipv6Addr::from(*packet[at..].first_chunk::<16>().unwrap());
        let length = (packet.len() - 54) as u32;
        let sum = Sum::new().pseudo_ipv6(addresses(22), addresses(38), 6, length);
        (54, sum)
    } else {
        let address = |at: usize| u32::from_be_bytes(*packet[at..].first_chunk().unwrap());
        let length = (packet.len() - 34) as u16;
        let sum = Sum::new().pseudo_ipv4(address(26), address(30), 6, length);
        (34, sum)
    };
    let field = u16::from_be_bytes([packet[l4 + 16], packet[l4 + 17]]);
    assert_eq!(field, !sum.finish());
}

/// Frames of a train; the last is shorter.
const FRAMES: u16 = 12;

/// IPv4 through NAT: what is sent, and what is to come out of one port.
fn ipv4(g: &mut Gateway, peer: &mut Peer, s: &Subscriber) -> usize {
    let flow = Train::up(s, 5_001, true);
    let short = Train {
        payload: 333,
        ..flow
    };
    g.access.send(&flow.frame_up(g, s, 0));
    let (first, _) = peer.receive(1);
    let nat = running::frames::source_port(&first[0]);
    while_stopped(g, |g| {
        for n in 1..FRAMES {
            g.access.send(&flow.frame_up(g, s, n));
        }
        let mut last = short.packet(FRAMES);
        follow(&mut last, &flow);
        let last = from_subscriber(g, s, protocol::IPV4, &last);
        g.access.send(&last);
    });
    let (came, supers) = peer.receive(usize::from(FRAMES));
    let from = (s.block().address, nat);
    for (n, frame) in (1..FRAMES).zip(&came) {
        assert!(*frame == flow.out_up(g, from, n), "{n}");
    }
    let mut last = Train { from, ..short }.packet(FRAMES);
    follow(&mut last, &flow);
    let last = running::frames::to_core(g, &running::frames::hop(last));
    assert!(came[usize::from(FRAMES) - 1] == last, "the last");
    supers
}

/// Gives the packet, number [`FRAMES`] of a train of shorter ones, the sequence number it has behind `flow`, with the checksum.
fn follow(packet: &mut [u8], flow: &Train) {
    let sequence = u32::from(FRAMES) * flow.payload as u32;
    packet[24..28].copy_from_slice(&sequence.to_be_bytes());
    packet[36..38].fill(0);
    let address = |at: usize| u32::from_be_bytes(*packet[at..].first_chunk().unwrap());
    let check = l4_checksum(address(12), address(16), 6, &packet[20..]);
    packet[36..38].copy_from_slice(&check.to_be_bytes());
}

const HOST6: Ipv6Addr = Ipv6Addr::new(0x2001, 0xdb8, 0xffff, 0, 0, 0, 0, 0x80);
const PREFIX: u64 = 0x2001_0db8_0001_0007;

/// A subscriber with both families.
fn subscriber(g: &mut Gateway) -> Subscriber {
    let pool = Pool6Range {
        first: PREFIX & !0xff,
        last: PREFIX | 0xff,
        length: 64,
        base: 0,
    };
    g.control.publish_pools6(&[pool]).unwrap();
    let default = Route6 {
        prefix: Ipv6Addr::UNSPECIFIED,
        length: 0,
        next_hop: NextHopId(1),
    };
    g.control.publish_routes6(&[default]).unwrap();
    wait_for("routes in the FIBs", || {
        g.control.routes_in_fib().then_some(())
    });
    let mut s = Subscriber::new(7, 0, Vlans::default());
    s.session.ipv6_prefix = Some(Ipv6Addr::from_bits(u128::from(PREFIX) << 64));
    let generation = g.open(&s);
    let owner = BlockOwner {
        slot: s.slot,
        generation,
    };
    g.control.set_framed6_owner(PREFIX, Some(owner)).unwrap();
    s
}

/// IPv6, not translated.
fn ipv6(g: &mut Gateway, peer: &mut Peer, s: &Subscriber) -> usize {
    let source = Ipv6Addr::from_bits(u128::from(PREFIX) << 64 | 7);
    let packet = |n: u16| {
        // What the builder takes as options is a payload, once the header says so.
        let mut packet = tcp6((source, 5_006), (HOST6, 443), 0x10, &[n as u8; 32]);
        packet.extend([n as u8; 968]);
        packet[4..6].copy_from_slice(&1_020u16.to_be_bytes());
        packet[44..48].copy_from_slice(&(u32::from(n) * 1_000).to_be_bytes());
        packet[52] = 0x50;
        packet[56..58].fill(0);
        let check = l4_checksum_ipv6(source, HOST6, 6, &packet[40..]);
        packet[56..58].copy_from_slice(&check.to_be_bytes());
        packet
    };
    while_stopped(g, |g| {
        for n in 0..FRAMES {
            let frame = from_subscriber(g, s, protocol::IPV6, &packet(n));
            g.access.send(&frame);
        }
    });
    let (came, supers) = peer.receive(usize::from(FRAMES));
    for (n, frame) in (0..).zip(&came) {
        let mut packet = packet(n);
        packet[7] -= 1;
        let expected = ethernet(ROUTER_MAC, g.core_mac, ethertype::IPV6, &packet);
        assert!(*frame == expected, "{n}");
    }
    supers
}

/// Both families through a gateway with this peer; the number of super-packets.
fn through(g: &mut Gateway, peer: &mut Peer) -> usize {
    let s = subscriber(g);
    let supers = ipv4(g, peer, &s) + ipv6(g, peer, &s);
    let frames = u64::from(2 * FRAMES + 1);
    g.expect(Counter::TxCore, frames);
    // F4: bytes are those of the frames.
    let ipv4 = (14 + 20 + 20) * u64::from(FRAMES + 1) + 1_000 * u64::from(FRAMES) + 333;
    let ipv6 = (14 + 40 + 20 + 1_000) * u64::from(FRAMES);
    g.expect(Counter::TxCoreBytes, ipv4 + ipv6);
    g.expect(Counter::CoalesceSupers, 2);
    g.expect(Counter::SuperSent, supers as u64);
    g.assert_conservation();
    supers
}

/// S9, P1: cut by what takes it, a super-packet gives the frames the worker sends itself.
#[test]
fn a_peer_that_takes_super_packets_gets_them_and_they_are_the_frames_of_the_worker() {
    let eal = eal("peer");
    let pool = Mempool::create(&eal, &MempoolConfig::new("peer", 8_191)).unwrap();

    let mut peer = Peer::start(&eal, &pool, "takes", true);
    let mut g = peer.gateway("takes", "port");
    let status = g.control.port_status(CORE).unwrap();
    assert_eq!(
        status.segmentation_reason,
        "net_virtio_user hands super-packets to its peer, which takes them"
    );
    assert!(status.offloads.has(Offloads::TX_TCP_SEGMENTATION));
    assert!(!status.offloads.has(Offloads::FAST_FREE));
    assert_eq!(through(&mut g, &mut peer), 2);
    assert!(g.terminate().success());
    let ended = g.said.iter().any(|line| line.ends_with("stopped"));
    assert!(ended, "every buffer is back: {:#?}", g.said);
    drop((g, peer));

    // The same without: nothing is asked of the port, and nothing else comes out of it.
    let mut peer = Peer::start(&eal, &pool, "frames", true);
    let mut g = peer.gateway("frames", "software");
    let status = g.control.port_status(CORE).unwrap();
    assert_eq!(status.segmentation_reason, "");
    assert!(!status.offloads.has(Offloads::TX_TCP_SEGMENTATION));
    assert_eq!(through(&mut g, &mut peer), 0);
}

#[test]
fn a_peer_that_takes_no_super_packets_gets_frames() {
    let eal = eal("plain");
    let pool = Mempool::create(&eal, &MempoolConfig::new("peer", 8_191)).unwrap();
    let mut peer = Peer::start(&eal, &pool, "plain", false);
    let mut g = peer.gateway("plain", "port");
    let status = g.control.port_status(CORE).unwrap();
    assert_eq!(
        status.segmentation_reason,
        "the peer of net_virtio_user takes no super-packets"
    );
    assert!(!status.offloads.has(Offloads::TX_TCP_SEGMENTATION));
    assert_eq!(through(&mut g, &mut peer), 0);
}

/// M10: a run held over bursts has more frames than the queue has room for in one piece.
#[test]
fn a_run_that_never_fits_the_queue_leaves_as_frames() {
    let eal = eal("long");
    let pool = Mempool::create(&eal, &MempoolConfig::new("peer", 8_191)).unwrap();
    let mut peer = Peer::start(&eal, &pool, "long", true);
    let mut g = peer.gateway_with(
        "long",
        "port, tx_descriptors: 64",
        "upstream: { tcp: true }, hold_us: 200",
    );
    let s = subscriber(&mut g);
    let flow = Train {
        payload: 300,
        ..Train::up(&s, 5_001, true)
    };
    g.access.send(&flow.frame_up(&g, &s, 0));
    let (first, _) = peer.receive(1);
    let nat = running::frames::source_port(&first[0]);
    while_stopped(&mut g, |g| {
        for n in 1..=64 {
            g.access.send(&flow.frame_up(g, &s, n));
        }
    });
    let (came, _) = peer.receive(64);
    for (n, frame) in (1..=64).zip(&came) {
        assert!(
            *frame == flow.out_up(&g, (s.block().address, nat), n),
            "{n}"
        );
    }
    g.expect(Counter::TxQueueFull, 0);
}

/// HZ-13 C: a port that is its own loop and cuts nothing.
#[test]
fn a_port_that_does_not_cut_what_it_takes_is_found_out() {
    let eal = eal("uncut");
    let pool = Mempool::create(&eal, &MempoolConfig::new("uncut", 1_023)).unwrap();
    let mut port = Port::probe(&eal, "net_ring_uncut").unwrap();
    port.configure(&PortConfig::default(), &pool).unwrap();
    let mut queues = port.start().unwrap();
    let mac = MacAddr(port.mac().unwrap().0);
    assert_eq!(
        try_out(&mut queues, &pool, mac),
        Err(Fault::Differs {
            mode: Mode::Ipv4,
            frame: 0
        })
    );
    drop(queues);
    port.close().unwrap();
    assert_eq!(pool.in_use(), 0);

    // One that gives nothing back.
    let mut port = Port::probe(&eal, "net_null_nothing,no-rx=1").unwrap();
    port.configure(&PortConfig::default(), &pool).unwrap();
    let mut queues = port.start().unwrap();
    assert_eq!(
        try_out(&mut queues, &pool, mac),
        Err(Fault::Missing {
            mode: Mode::Ipv4,
            came: 0,
            expected: 4
        })
    );
    assert_eq!(pool.in_use(), 0);
}

#[test]
fn a_port_that_offers_no_segmentation_says_so_in_its_status() {
    let g = Gateway::start_with("none", |yaml| {
        let core = "\"net_af_packet1,iface=cor,qpairs=2\", mtu: 1500";
        yaml.replace(core, &format!("{core}, segmentation: port"))
    });
    let status = g.control.port_status(CORE).unwrap();
    assert_eq!(
        status.segmentation_reason,
        "net_af_packet offers no TCP segmentation"
    );
    assert!(!status.offloads.has(Offloads::TX_TCP_SEGMENTATION));
}
