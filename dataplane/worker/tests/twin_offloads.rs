//! The kernel behind a core port, through a TAP twin with offloads: its super-packets, its checksums left to us, and all that
//! it does besides.
#![allow(missing_docs, clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod peer;
mod running;

use bng_shm::Counter;
use nix::sys::socket::{setsockopt, sockopt::UdpGsoSegment};
use peer::{Peer, Seen};
use running::{Gateway, OURS, ROUTER, run};
use rustix::net::{AddressFamily, SocketType, ipproto};
use std::io::{Read, Write};
use std::net::{IpAddr, Ipv6Addr, SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

const ROUTER6: Ipv6Addr = Ipv6Addr::new(0x2001, 0xdb8, 0, 1, 0, 0, 0, 2);
const OURS6: Ipv6Addr = Ipv6Addr::new(0x2001, 0xdb8, 0, 1, 0, 0, 0, 1);
/// Bytes sent each way.
const BYTES: usize = 8 << 20;
const PATIENCE: Duration = Duration::from_secs(10);

fn gateway(name: &str) -> Gateway {
    let g = Gateway::start_with(name, |yaml| {
        let yaml = yaml.replace(
            "iface=cor,qpairs=2\", mtu: 1500",
            "iface=cor,qpairs=2\", mtu: 1500, twin_offloads: true",
        );
        yaml.replace(
            "  eal:",
            "  coalescing: { downstream: { tcp: true, udp: true } }\n  eal:",
        )
    });
    std::fs::write("/proc/sys/net/ipv6/conf/core0/disable_ipv6", "0").unwrap();
    run("ip", &format!("address add {OURS6}/64 dev core0 nodad"));
    g
}

/// Runs `body` while the peer is connected; returns what went over the cable, and checks the books.
fn connected(
    g: &Gateway,
    peer: &Peer,
    out: impl FnMut(&mut [u8]) + Send,
    body: impl FnOnce(),
) -> Seen {
    let (stop, seen) = (AtomicBool::new(false), Mutex::new(Seen::default()));
    std::thread::scope(|scope| {
        // When `body` panics as well.
        let _end = Stop(&stop);
        let core = &g.core;
        let cable = scope.spawn(|| peer.cable(core, &stop, &seen, out));
        body();
        // Frames are counted, not super-packets. The kernels may say something more at any time. A machine that gives a thread
        // no time fills the queue before it: the TAP device's after the port, the packet socket's before it, the host ring,
        // whose losses have a name. TCP makes up for them.
        running::wait_for("frames that are counted as they are", || {
            let Seen { out, back, .. } = *seen.lock().unwrap();
            let [sent, left, given, lost, came] = [
                Counter::HostOut,
                Counter::TxCore,
                Counter::HostIn,
                Counter::HostRingFull,
                Counter::RxCore,
            ]
            .map(|counter| g.count(counter));
            (sent == left && out <= left && given + lost == came && came <= back).then_some(())
        });
        stop.store(true, Ordering::Relaxed);
        cable.join().unwrap();
    });
    g.assert_conservation();
    let seen = *seen.lock().unwrap();
    for counter in Counter::drops().filter(|it| *it != Counter::HostRingFull) {
        assert_eq!(g.count(counter), 0, "{}", counter.label());
    }
    seen
}

/// Ends the cable when it goes away.
struct Stop<'a>(&'a AtomicBool);

impl Drop for Stop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

fn byte(at: usize, seed: usize) -> u8 {
    ((at ^ seed).wrapping_mul(0x9e37_79b9) >> 16) as u8
}

/// Sends and receives at once, as fast as it goes, and compares.
fn exchange(stream: TcpStream, mine: usize, theirs: usize) {
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    stream.set_write_timeout(Some(PATIENCE)).unwrap();
    let mut writer = stream.try_clone().unwrap();
    let sending = std::thread::spawn(move || {
        let all: Vec<u8> = (0..BYTES).map(|at| byte(at, mine)).collect();
        writer.write_all(&all).unwrap();
        writer.shutdown(std::net::Shutdown::Write).unwrap();
    });
    let mut reader = stream;
    let mut got = Vec::with_capacity(BYTES);
    reader.read_to_end(&mut got).unwrap();
    assert_eq!(got.len(), BYTES);
    let wrong = (0..BYTES).find(|at| got[*at] != byte(*at, theirs));
    assert_eq!(wrong, None);
    sending.join().unwrap();
}

/// TCP both ways at once between the kernel behind the twin and the peer.
fn tcp(peer: &Peer, router: IpAddr) {
    let (port, listening) = std::sync::mpsc::channel();
    let server = peer.inside(move || {
        let listener = TcpListener::bind((router, 0)).unwrap();
        port.send(listener.local_addr().unwrap()).unwrap();
        exchange(listener.accept().unwrap().0, 7, 3);
    });
    let address: SocketAddr = listening.recv_timeout(PATIENCE).unwrap();
    exchange(
        TcpStream::connect_timeout(&address, PATIENCE).unwrap(),
        3,
        7,
    );
    server.join().unwrap();
}

#[test]
fn tcp_of_the_kernel_goes_both_ways_byte_for_byte() {
    for (name, router) in [("otcp4", ROUTER.into()), ("otcp6", ROUTER6.into())] {
        let mut g = gateway(name);
        let peer = Peer::start(name, &ROUTER6.to_string());
        let seen = connected(&g, &peer, |_| {}, || tcp(&peer, router));
        let supers = g.count(Counter::HostSupers);
        // The kernel's packets are up to 64 KiB long.
        assert!(supers > 0 && supers * 10 < seen.out, "{supers} of {seen:?}");
        assert!(g.count(Counter::SuperHost) > 0);
        assert_eq!(g.terminate().code(), Some(0));
        let lost: Vec<_> = g
            .said
            .iter()
            .filter(|line| line.contains("packet buffers"))
            .collect();
        assert!(lost.is_empty(), "{lost:?}");
    }
}

/// RFC 3168: what the peer is told of congestion it tells our kernel, and that answers with CWR, once each time.
#[test]
fn a_congested_way_makes_the_kernel_answer_once() {
    let g = gateway("oecn");
    let peer = Peer::start("oecn", &ROUTER6.to_string());
    std::fs::write("/proc/sys/net/ipv4/tcp_ecn", "1").unwrap();
    peer.inside(|| std::fs::write("/proc/sys/net/ipv4/tcp_ecn", "1").unwrap())
        .join()
        .unwrap();
    let mut frames = 0;
    let mut marked = 0;
    let congest = |frame: &mut [u8]| {
        let is_ect = frame[12..14] == [8, 0] && frame[15] & 3 == 2;
        frames += u64::from(is_ect);
        if is_ect && frames % 500 == 0 {
            marked += 1;
            frame[15] |= 3;
            frame[24..26].fill(0);
            let check = bng_wire::checksum::checksum(&frame[14..34]);
            frame[24..26].copy_from_slice(&check.to_be_bytes());
        }
    };
    let seen = connected(&g, &peer, congest, || tcp(&peer, ROUTER.into()));
    assert!(
        seen.cwr > 0 && seen.cwr <= marked,
        "{seen:?}, {marked} marked"
    );
    assert_eq!(seen.cwr_in_a_row, 0);
    assert!(g.count(Counter::HostSupers) > 0);
}

/// S10: datagrams, not fragments.
#[test]
fn datagrams_that_the_kernel_sends_at_once_arrive_one_by_one() {
    let g = gateway("oudp");
    let peer = Peer::start("oudp", &ROUTER6.to_string());
    let mut sent = 0;
    let seen = connected(
        &g,
        &peer,
        |_| {},
        || {
            for (ours, router) in [
                (IpAddr::from(OURS), IpAddr::from(ROUTER)),
                (OURS6.into(), ROUTER6.into()),
            ] {
                let (port, listening) = std::sync::mpsc::channel();
                let receiver = peer.inside(move || {
                    let socket = UdpSocket::bind((router, 0)).unwrap();
                    socket.set_read_timeout(Some(PATIENCE)).unwrap();
                    port.send(socket.local_addr().unwrap()).unwrap();
                    let mut all = Vec::new();
                    let mut datagram = [0; 2_000];
                    for _ in 0..3 * 41 {
                        let (len, from) = socket.recv_from(&mut datagram).unwrap();
                        all.push(datagram[..len].to_vec());
                        socket.send_to(&datagram[..len], from).unwrap();
                    }
                    all
                });
                let socket = UdpSocket::bind((ours, 0)).unwrap();
                socket.set_read_timeout(Some(PATIENCE)).unwrap();
                setsockopt(&socket, UdpGsoSegment, &1_000).unwrap();
                let address = listening.recv_timeout(PATIENCE).unwrap();
                let payload: Vec<u8> = (0..40_001).map(|at| byte(at, 5)).collect();
                let mut echoed = Vec::new();
                for _ in 0..3 {
                    assert_eq!(socket.send_to(&payload, address).unwrap(), payload.len());
                    sent += 41;
                    let mut datagram = [0; 2_000];
                    for _ in 0..41 {
                        let len = socket.recv(&mut datagram).unwrap();
                        echoed.push(datagram[..len].to_vec());
                    }
                }
                let expected: Vec<_> = payload.chunks(1_000).map(<[u8]>::to_vec).collect();
                let expected = vec![expected; 3].concat();
                assert_eq!(receiver.join().unwrap(), expected);
                assert_eq!(echoed, expected);
            }
        },
    );
    assert!(seen.out >= sent);
    assert_eq!(
        g.count(Counter::HostSupers),
        6,
        "each send is one packet of the kernel"
    );
}

/// Three echo requests with so many bytes, and their replies.
fn ping(to: IpAddr, size: usize) {
    std::fs::write("/proc/sys/net/ipv4/ping_group_range", "0 2147483647").unwrap();
    let (family, protocol, request, reply) = match to {
        IpAddr::V4(_) => (AddressFamily::INET, ipproto::ICMP, 8, 0),
        IpAddr::V6(_) => (AddressFamily::INET6, ipproto::ICMPV6, 128, 129),
    };
    let socket = rustix::net::socket(family, SocketType::DGRAM, Some(protocol)).unwrap();
    let socket = UdpSocket::from(socket);
    socket.set_read_timeout(Some(PATIENCE)).unwrap();
    socket.connect((to, 0)).unwrap();
    for number in 1..=3 {
        // The kernel fills in checksum and identifier.
        let mut message = vec![request, 0, 0, 0, 0, 0, 0, number];
        message.extend((0..size).map(|at| byte(at, number.into())));
        socket.send(&message).unwrap();
        let mut answer = vec![0; 10_000];
        let len = socket.recv(&mut answer);
        let len = len.unwrap_or_else(|error| panic!("{to}, {size} bytes: {error}"));
        assert_eq!((answer[0], &answer[7..len]), (reply, &message[7..]));
    }
}

#[test]
fn pings_and_fragments_come_and_go_as_ever() {
    let g = gateway("oping");
    let peer = Peer::start("oping", &ROUTER6.to_string());
    connected(
        &g,
        &peer,
        |_| {},
        || {
            for size in [0, 1, 56, 1_472, 1_473, 9_000] {
                ping(ROUTER6.into(), size);
                // What is fragmented on its way to us, the packet socket below the port puts together again.
                if size <= 1_472 {
                    ping(ROUTER.into(), size);
                }
            }
            // A datagram that is fragmented, with a checksum that the kernel has to compute itself.
            let (port, listening) = std::sync::mpsc::channel();
            let receiver = peer.inside(move || {
                let socket = UdpSocket::bind((ROUTER, 0)).unwrap();
                socket.set_read_timeout(Some(PATIENCE)).unwrap();
                port.send(socket.local_addr().unwrap()).unwrap();
                let mut datagram = vec![0; 20_000];
                let len = socket.recv(&mut datagram).unwrap();
                datagram.truncate(len);
                datagram
            });
            let socket = UdpSocket::bind((OURS, 0)).unwrap();
            let payload: Vec<u8> = (0..12_345).map(|at| byte(at, 9)).collect();
            let address = listening.recv_timeout(PATIENCE).unwrap();
            socket.send_to(&payload, address).unwrap();
            assert_eq!(receiver.join().unwrap(), payload);
        },
    );
}
