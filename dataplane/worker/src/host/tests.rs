//! Twins and their packets with real buffers and a real TAP device, in a namespace of its own.

use super::bell::Room;
use super::kernel_packets::{KernelPackets, Received};
use super::twin::{Twin, Written, tap};
use crate::frame::Frame;
use crate::super_packet::{Checksums, build};
use bng_fastpath::coalesce::{Ids, Run};
use bng_fastpath::testing::L4Frame;
use rte_rs::{Burst, Eal, EalArgs, Mbuf, Memory, Mempool, MempoolConfig, RingConfig, sp_sc_ring};
use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};
use std::fs::File;
use std::net::{Ipv4Addr, UdpSocket};
use std::os::fd::AsFd;
use std::process::Command;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

const OURS: Ipv4Addr = Ipv4Addr::new(192, 0, 2, 1);
const THEIRS: Ipv4Addr = Ipv4Addr::new(192, 0, 2, 2);
const MACS: [u8; 12] = [2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 2];
const SEGMENT: usize = 1_400;

fn eal() -> Eal {
    static EAL: OnceLock<Eal> = OnceLock::new();
    let init = || {
        let arguments = EalArgs::new(&format!("host{}", std::process::id()))
            .memory(Memory::NoHugepages { mib: 64 })
            .pci(false)
            .telemetry(false)
            .restore_affinity(true);
        Eal::init(&arguments).unwrap()
    };
    EAL.get_or_init(init).clone()
}

fn pool(name: &str, count: u32) -> Mempool {
    let config = MempoolConfig {
        cache: 0,
        ..MempoolConfig::new(name, count)
    };
    Mempool::create(&eal(), &config).unwrap()
}

fn ip(arguments: &str) {
    let mut command = Command::new("ip");
    let status = command.args(arguments.split_whitespace()).status();
    assert!(status.unwrap().success(), "ip {arguments}");
}

/// Moves the calling thread into a namespace that nobody else knows.
fn alone(name: &str) {
    let namespace = format!("bng-{name}-{}", std::process::id());
    ip(&format!("netns add {namespace}"));
    let file = File::open(format!("/run/netns/{namespace}")).unwrap();
    move_into_link_name_space(file.as_fd(), Some(LinkNameSpaceType::Network)).unwrap();
    // It lives as long as something is in it.
    ip(&format!("netns delete {namespace}"));
}

fn payload(len: usize) -> Vec<u8> {
    (0..len).map(|at| (at * 31 / 8) as u8).collect()
}

/// A datagram flow to the kernel: `frames` full frames and one of 7 bytes.
fn datagrams(port: u16, frames: usize) -> L4Frame {
    L4Frame {
        macs: MACS,
        addresses: [THEIRS.to_bits(), OURS.to_bits()],
        ports: [4_000, port],
        ..L4Frame::new(None, false, false, &payload(frames * SEGMENT + 7))
    }
}

fn in_one_piece(packet: &L4Frame, pool: &Mempool) -> Mbuf {
    let frames = packet.cut(SEGMENT, 1);
    let run = Run {
        is_tcp: packet.tcp,
        is_ipv6: packet.ipv6,
        segment: SEGMENT as u16,
        last_segment: frames.last().unwrap().payload.len() as u16,
        ids: Ids::Rising,
        cwr: false,
        received_bytes: 0,
        arrived_ns: 0,
    };
    let buffer = |frame: &L4Frame| Frame::from(pool.alloc_copy(&frame.frame()).unwrap());
    let mut frames: Vec<_> = frames.iter().map(buffer).collect();
    build(&run, &mut frames, Checksums::Virtio).unwrap()
}

/// What the kernel has not, or does not take, is done without; the packets it sees are the same.
#[test]
fn a_super_packet_reaches_the_kernel_whole_or_frame_by_frame() {
    alone("twin-write");
    let pool = pool("write", 255);
    for (name, offloads, udp, supers) in [
        ("plain", false, false, 0),
        ("tcponly", true, false, 0),
        ("withudp", true, true, 1),
    ] {
        let device = tap(name, [2, 0, 0, 0, 0, 1], 1_500, offloads).unwrap();
        ip(&format!("address add {OURS}/24 dev {name}"));
        let ring = RingConfig {
            name: name.to_owned(),
            capacity: 64,
            numa_node: None,
        };
        let (out, _in) = sp_sc_ring(&eal(), &ring).unwrap();
        let mut twin = Twin::over(0, name, device, out, Arc::new(Room::default()));
        assert_eq!(twin.supers().tcp, offloads);
        if let Some(offloads) = &mut twin.offloads {
            assert!(offloads.udp, "Linux 6.2 or later");
            offloads.udp = udp;
        }
        assert_eq!(twin.supers().udp, udp);
        let socket = UdpSocket::bind((OURS, 0)).unwrap();
        socket
            .set_read_timeout(Some(Duration::from_secs(5)))
            .unwrap();
        let packet = datagrams(socket.local_addr().unwrap().port(), 20);
        let single = datagrams(socket.local_addr().unwrap().port(), 0);
        for (mbuf, sent, written) in [
            (
                in_one_piece(&packet, &pool),
                &packet,
                Written {
                    taken: 21,
                    refused: 0,
                    supers,
                },
            ),
            (
                pool.alloc_copy(&single.frame()).unwrap(),
                &single,
                Written {
                    taken: 1,
                    refused: 0,
                    supers: 0,
                },
            ),
        ] {
            assert_eq!(twin.write(&mbuf), written, "{name}");
            for expected in sent.payload.chunks(SEGMENT) {
                let mut datagram = [0; 2_000];
                let (len, from) = socket.recv_from(&mut datagram).unwrap();
                assert_eq!(&datagram[..len], expected, "{name}");
                assert_eq!(from, (THEIRS, 4_000).into());
            }
        }
        // A twin that is down takes nothing, and all the frames are counted.
        ip(&format!("link set {name} down"));
        let refused = Written {
            taken: 0,
            refused: 21,
            supers: 0,
        };
        assert_eq!(twin.write(&in_one_piece(&packet, &pool)), refused, "{name}");
    }
    assert_eq!(pool.in_use(), 0);
}

/// The bytes the kernel puts in front of a packet of TCP, to be cut.
const TCP4: [u8; 10] = {
    let size = (SEGMENT as u16).to_ne_bytes();
    [1, 1, 0, 0, size[0], size[1], 34, 0, 16, 0]
};

fn receive(packets: &mut KernelPackets, header: &[u8], frame: &[u8]) -> Received {
    let len = header.len() + frame.len();
    packets.buffer[..header.len()].copy_from_slice(header);
    packets.buffer[header.len()..len].copy_from_slice(frame);
    packets.accept(len, 2_048)
}

/// HZ-15: neither a ring without room nor a pool without buffers loses a frame.
#[test]
fn a_packet_of_the_kernel_waits_for_room_and_for_buffers() {
    let mut pool = pool("wait", 15);
    let packet = L4Frame::new(None, false, true, &payload(43 * SEGMENT + 5));
    let mut packets = KernelPackets::new();
    assert!(packets.is_empty());
    assert_eq!(
        receive(&mut packets, &TCP4, &packet.frame()),
        Received::Super
    );
    let mut frames = Vec::new();
    let mut starved = 0;
    let mut kept = Vec::new();
    for room in [0, 3, 40, 1].into_iter().cycle() {
        let mut burst: Burst<40> = Burst::new();
        let is_filled = packets.fill(&mut pool, &mut burst, room);
        assert!(burst.len() <= room && burst.len() <= 15);
        assert!(is_filled || pool.available() == 0);
        starved += usize::from(!is_filled);
        frames.extend(burst.iter().map(|mbuf| mbuf.data().to_vec()));
        // The worker keeps some of them for a while.
        kept = burst
            .drain(..)
            .take(room % 5)
            .chain(kept.into_iter().take(2))
            .collect();
        if packets.is_empty() {
            break;
        }
    }
    drop(kept);
    let expected: Vec<_> = packet.cut(SEGMENT, 1).iter().map(L4Frame::frame).collect();
    assert_eq!(frames, expected);
    assert!(starved > 0);
    assert_eq!(pool.in_use(), 0);
}

#[test]
fn a_frame_waits_as_well_and_nonsense_does_not() {
    let mut pool = pool("frame", 15);
    let frame = L4Frame::new(None, false, true, &payload(100)).frame();
    let mut packets = KernelPackets::new();
    for (header, frame) in [
        (&TCP4[..], &frame[..54]),
        (&TCP4[..], &frame[..0]),
        (&[0; 10], &[0; 2_049]),
        (&[0; 10], &[]),
        (&[0; 9], &[]),
        (&[], &[]),
    ] {
        assert_eq!(receive(&mut packets, header, frame), Received::Invalid);
        assert!(packets.is_empty());
    }
    assert_eq!(packets.accept(usize::MAX, 2_048), Received::Invalid);
    assert_eq!(receive(&mut packets, &[0; 10], &frame), Received::Frame);
    let all: Vec<_> = std::iter::from_fn(|| pool.alloc()).collect();
    let mut burst: Burst<4> = Burst::new();
    assert!(!packets.fill(&mut pool, &mut burst, 4));
    drop(all);
    assert!(packets.fill(&mut pool, &mut burst, 0));
    assert!(burst.is_empty() && !packets.is_empty());
    assert!(packets.fill(&mut pool, &mut burst, 4));
    assert!(packets.is_empty());
    assert_eq!(burst.len(), 1);
    assert_eq!(burst[0].data(), frame);
}
