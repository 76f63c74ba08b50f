//! `bng-perf reflect`: sends every datagram back and counts what it saw of each stream.

use std::collections::BTreeMap;
use std::io::{ErrorKind, Read, Write};
use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::os::unix::net::UnixStream;
use std::process::ExitCode;

use anyhow::{Context, Result};
use clap::{Args, ValueEnum};
use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::Errno;
use rustix::net::sockopt;
use serde::Serialize;

use crate::probe::{Family, HEADER_LEN, NoProbe, Probe, StreamId, StreamReport};
use crate::sequence::SequenceTracker;

/// Bytes the kernel may hold for us, either way.
const BUFFER_BYTES: usize = 64 << 20;
/// Streams remembered; a datagram of a further one is sent back and not counted.
const MAX_STREAMS: usize = 1 << 20;
/// Datagrams handled between two looks at the signals.
const BATCH: usize = 256;

/// What happens to an answer that is larger than a link's MTU.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Fragments {
    /// The kernel's way: "don't fragment", and smaller packets once a router has said so.
    Discover,
    /// "Don't fragment", whatever routers say; only the own link's MTU counts.
    Never,
    /// No "don't fragment": routers may cut IPv4 packets; the kernel cuts IPv6 packets for its own link.
    Allowed,
}

impl Fragments {
    fn apply(self, socket: &UdpSocket, family: Family) -> rustix::io::Result<()> {
        use sockopt::{Ipv4PathMtuDiscovery as V4, Ipv6PathMtuDiscovery as V6};
        match (self, family) {
            (Self::Discover, Family::V4) => sockopt::set_ip_mtu_discover(socket, V4::WANT),
            (Self::Never, Family::V4) => sockopt::set_ip_mtu_discover(socket, V4::PROBE),
            (Self::Allowed, Family::V4) => sockopt::set_ip_mtu_discover(socket, V4::DONT),
            (Self::Discover, Family::V6) => sockopt::set_ipv6_mtu_discover(socket, V6::WANT),
            (Self::Never, Family::V6) => sockopt::set_ipv6_mtu_discover(socket, V6::PROBE),
            (Self::Allowed, Family::V6) => sockopt::set_ipv6_mtu_discover(socket, V6::DONT),
        }
    }
}

/// Sends UDP datagrams back to where they came from and counts them.
#[derive(Debug, Args)]
pub(crate) struct ReflectArgs {
    /// Address to listen on, IPv4 or IPv6.
    #[arg(long, value_name = "IP:PORT")]
    listen: SocketAddr,
    /// Send every datagram back with a UDP payload of this many bytes, whatever size it came in.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(HEADER_LEN as i64..=65_000))]
    reply_bytes: Option<u16>,
    /// What is done with answers that are too large for a link.
    #[arg(long, value_enum, default_value_t = Fragments::Discover)]
    fragments: Fragments,
    /// Print the counts as one JSON object on SIGTERM or SIGINT.
    #[arg(long)]
    json: bool,
}

#[derive(Debug, Default)]
struct Stream {
    source: Option<SocketAddr>,
    /// Times the source address or port changed: the gateway gave the stream another binding.
    rebound: u64,
    tracker: SequenceTracker,
    corrupt: u64,
    send_failures: u64,
}

#[derive(Debug, Serialize)]
struct StreamLine {
    run: String,
    session: u32,
    family: &'static str,
    source: Option<SocketAddr>,
    rebound: u64,
    unique: u64,
    duplicates: u64,
    reordered: u64,
    too_late: u64,
    corrupt: u64,
    send_failures: u64,
}

#[derive(Debug, Serialize)]
struct Report {
    listen: SocketAddr,
    received: u64,
    sent_back: u64,
    foreign: u64,
    uncounted: u64,
    corrupt: u64,
    send_failures: u64,
    socket_drops: u64,
    streams: Vec<StreamLine>,
}

/// What the reflector does with a datagram.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Answer {
    /// Send it back as it is.
    Echo,
    /// Send this.
    Say(Vec<u8>),
}

/// Counts of the reflector, without its socket.
#[derive(Debug, Default)]
pub(crate) struct Reflector {
    /// Bytes of an answer, if not as many as came.
    reply_bytes: Option<usize>,
    streams: BTreeMap<StreamId, Stream>,
    /// Datagrams that came, but for questions.
    pub(crate) received: u64,
    sent_back: u64,
    foreign: u64,
    uncounted: u64,
    send_failures: u64,
}

impl Reflector {
    fn stream(&mut self, id: StreamId) -> Option<&mut Stream> {
        if self.streams.len() >= MAX_STREAMS && !self.streams.contains_key(&id) {
            self.uncounted += 1;
            return None;
        }
        Some(self.streams.entry(id).or_default())
    }

    /// Counts a datagram; `drops` is asked for the socket's drops when a report needs them.
    pub(crate) fn handle(
        &mut self,
        payload: &[u8],
        from: SocketAddr,
        drops: impl FnOnce() -> u64,
    ) -> (Answer, Option<StreamId>) {
        match Probe::parse(payload) {
            Ok(data @ Probe::Data { id, sequence, .. }) => {
                self.received += 1;
                if let Some(stream) = self.stream(id) {
                    if stream.source.is_some_and(|known| known != from) {
                        stream.rebound += 1;
                    }
                    stream.source = Some(from);
                    stream.tracker.observe(sequence);
                }
                let answer = match self.reply_bytes {
                    None => Answer::Echo,
                    Some(len) => Answer::Say(data.write(len)),
                };
                (answer, Some(id))
            }
            Ok(Probe::Query(id)) => {
                let report = self
                    .streams
                    .get(&id)
                    .map_or_else(StreamReport::default, |stream| StreamReport {
                        counts: stream.tracker.counts(),
                        corrupt: stream.corrupt,
                        send_failures: stream.send_failures,
                        socket_drops: 0,
                    });
                let report = StreamReport {
                    socket_drops: drops(),
                    ..report
                };
                (Answer::Say(Probe::Report(id, report).write(0)), None)
            }
            Err(NoProbe::Corrupt(id)) => {
                self.received += 1;
                if let Some(stream) = self.stream(id) {
                    stream.corrupt += 1;
                }
                (Answer::Echo, Some(id))
            }
            Ok(Probe::Report(..)) | Err(NoProbe::Foreign) => {
                self.received += 1;
                self.foreign += 1;
                (Answer::Echo, None)
            }
        }
    }

    /// Counts an answer that was sent, or could not be.
    pub(crate) fn sent(&mut self, id: Option<StreamId>, success: bool) {
        if success {
            self.sent_back += 1;
            return;
        }
        self.send_failures += 1;
        if let Some(stream) = id.and_then(|id| self.streams.get_mut(&id)) {
            stream.send_failures += 1;
        }
    }

    fn report(&self, listen: SocketAddr, socket_drops: u64) -> Report {
        Report {
            listen,
            received: self.received,
            sent_back: self.sent_back,
            foreign: self.foreign,
            uncounted: self.uncounted,
            corrupt: self.streams.values().map(|stream| stream.corrupt).sum(),
            send_failures: self.send_failures,
            socket_drops,
            streams: self
                .streams
                .iter()
                .map(|(id, stream)| {
                    let counts = stream.tracker.counts();
                    StreamLine {
                        run: format!("{:016x}", id.run),
                        session: id.session,
                        family: id.family.name(),
                        source: stream.source,
                        rebound: stream.rebound,
                        unique: counts.unique,
                        duplicates: counts.duplicates,
                        reordered: counts.reordered,
                        too_late: counts.too_late,
                        corrupt: stream.corrupt,
                        send_failures: stream.send_failures,
                    }
                })
                .collect(),
        }
    }
}

/// Datagrams the kernel dropped at the socket bound to `port`: the last column of its line in the kernel's table.
fn drops_in(table: &str, local: SocketAddr) -> u64 {
    // Words of the address as the machine holds them in memory.
    let words = |octets: &[u8]| -> String {
        let (words, _) = octets.as_chunks::<4>();
        let words = words.iter().map(|word| u32::from_ne_bytes(*word));
        words.map(|word| format!("{word:08X}")).collect()
    };
    let address = match local.ip() {
        IpAddr::V4(address) => words(&address.octets()),
        IpAddr::V6(address) => words(&address.octets()),
    };
    let wanted = format!("{address}:{:04X}", local.port());
    table
        .lines()
        .map(|line| line.split_whitespace().collect::<Vec<_>>())
        .filter(|columns| columns.get(1) == Some(&wanted.as_str()))
        .filter_map(|columns| columns.last()?.parse::<u64>().ok())
        .sum()
}

fn socket_drops(local: SocketAddr) -> u64 {
    let table = match local {
        SocketAddr::V4(_) => "/proc/thread-self/net/udp",
        SocketAddr::V6(_) => "/proc/thread-self/net/udp6",
    };
    std::fs::read_to_string(table).map_or(0, |table| drops_in(&table, local))
}

/// Sends, waiting for room in the socket if there is none.
fn send(socket: &UdpSocket, payload: &[u8], to: SocketAddr) -> bool {
    loop {
        match socket.send_to(payload, to) {
            Ok(sent) => return sent == payload.len(),
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(error) if error.kind() == ErrorKind::WouldBlock => {
                let mut room = [PollFd::new(socket, PollFlags::OUT)];
                match poll(&mut room, None) {
                    Ok(_) | Err(Errno::INTR) => {}
                    Err(_) => return false,
                }
            }
            Err(_) => return false,
        }
    }
}

/// Runs until SIGTERM or SIGINT.
pub(crate) fn run(args: &ReflectArgs) -> Result<ExitCode> {
    let socket = UdpSocket::bind(args.listen)
        .with_context(|| format!("cannot listen on {}", args.listen))?;
    socket.set_nonblocking(true)?;
    // Without CAP_NET_ADMIN the kernel's limit holds; drops are counted and reported.
    if sockopt::set_socket_recv_buffer_size_force(&socket, BUFFER_BYTES).is_err() {
        sockopt::set_socket_recv_buffer_size(&socket, BUFFER_BYTES)?;
    }
    sockopt::set_socket_send_buffer_size(&socket, BUFFER_BYTES)?;
    args.fragments
        .apply(&socket, Family::of(args.listen.ip()))?;
    let listen = socket.local_addr()?;
    let (mut signals, sender) = UnixStream::pair()?;
    signals.set_nonblocking(true)?;
    for signal in [signal_hook::consts::SIGINT, signal_hook::consts::SIGTERM] {
        signal_hook::low_level::pipe::register(signal, sender.try_clone()?)
            .context("cannot catch signals")?;
    }
    eprintln!("bng-perf: reflecting on {listen}");
    let mut reflector = Reflector {
        reply_bytes: args.reply_bytes.map(usize::from),
        ..Reflector::default()
    };
    let mut buffer = vec![0; 65_536];
    while !matches!(signals.read(&mut [0; 16]), Ok(1..)) {
        for _ in 0..BATCH {
            let (len, from) = match socket.recv_from(&mut buffer) {
                Ok(arrived) => arrived,
                Err(error) if error.kind() == ErrorKind::WouldBlock => {
                    let mut sources = [
                        PollFd::new(&socket, PollFlags::IN),
                        PollFd::new(&signals, PollFlags::IN),
                    ];
                    match poll(&mut sources, None) {
                        Ok(_) | Err(Errno::INTR) => break,
                        Err(errno) => return Err(errno).context("cannot wait for datagrams"),
                    }
                }
                // An ICMP error for an earlier answer arrives this way; it says nothing about our socket.
                Err(error) if error.kind() == ErrorKind::ConnectionRefused => continue,
                Err(error) if error.kind() == ErrorKind::Interrupted => continue,
                Err(error) => return Err(error).context("cannot receive"),
            };
            let payload = buffer.get(..len).unwrap_or(&[]);
            let (answer, id) = reflector.handle(payload, from, || socket_drops(listen));
            match answer {
                Answer::Echo => {
                    let success = send(&socket, payload, from);
                    reflector.sent(id, success);
                }
                Answer::Say(other) => {
                    let success = send(&socket, &other, from);
                    // A lost report is asked for again.
                    if id.is_some() {
                        reflector.sent(id, success);
                    }
                }
            }
        }
    }
    let report = reflector.report(listen, socket_drops(listen));
    let mut stdout = std::io::stdout().lock();
    if args.json {
        serde_json::to_writer(&mut stdout, &report)?;
        writeln!(stdout)?;
    } else {
        writeln!(
            stdout,
            "{} datagrams of {} streams, {} sent back, {} not ours, {} corrupt, {} dropped at the socket",
            report.received,
            report.streams.len(),
            report.sent_back,
            report.foreign,
            report.corrupt,
            report.socket_drops
        )?;
    }
    Ok(ExitCode::SUCCESS)
}

#[cfg(test)]
mod tests {
    use super::*;

    const ID: StreamId = StreamId {
        run: 9,
        session: 3,
        family: Family::V4,
    };

    fn data(sequence: u64) -> Vec<u8> {
        Probe::Data {
            id: ID,
            sequence,
            sent_ns: 0,
        }
        .write(100)
    }

    fn source(port: u16) -> SocketAddr {
        SocketAddr::from(([198, 51, 100, 1], port))
    }

    #[test]
    fn a_query_is_answered_with_what_was_seen() {
        let mut reflector = Reflector::default();
        for sequence in [0, 1, 1, 3] {
            let (answer, id) = reflector.handle(&data(sequence), source(7), || 0);
            assert_eq!(answer, Answer::Echo);
            reflector.sent(id, sequence != 3);
        }
        let mut damaged = data(4);
        damaged[60] ^= 1;
        reflector.handle(&damaged, source(7), || 0);
        let (answer, _) = reflector.handle(&Probe::Query(ID).write(0), source(7), || 11);
        let Answer::Say(report) = answer else {
            panic!("no report")
        };
        let Ok(Probe::Report(id, report)) = Probe::parse(&report) else {
            panic!("not a report")
        };
        assert_eq!(id, ID);
        assert_eq!((report.counts.unique, report.counts.duplicates), (3, 1));
        assert_eq!((report.corrupt, report.send_failures), (1, 1));
        assert_eq!(report.socket_drops, 11);
    }

    #[test]
    fn answers_have_the_size_asked_for_and_the_streams_own_filling() {
        let mut reflector = Reflector {
            reply_bytes: Some(1_464),
            ..Reflector::default()
        };
        let (Answer::Say(answer), Some(ID)) = reflector.handle(&data(3), source(7), || 0) else {
            panic!("not an answer of another size")
        };
        assert_eq!(answer.len(), 1_464);
        assert!(matches!(
            Probe::parse(&answer),
            Ok(Probe::Data {
                id: ID,
                sequence: 3,
                ..
            })
        ));
    }

    #[test]
    fn a_stream_that_changes_its_source_is_noticed() {
        let mut reflector = Reflector::default();
        for (sequence, port) in [(0, 7), (1, 7), (2, 8)] {
            reflector.handle(&data(sequence), source(port), || 0);
        }
        let report = reflector.report(([192, 0, 2, 1], 1).into(), 0);
        assert_eq!(report.streams[0].rebound, 1);
        assert_eq!(report.streams[0].source, Some(source(8)));
    }

    #[test]
    fn drops_are_read_from_the_line_of_the_socket() {
        let table = "  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode ref pointer drops\n\
             1: 010200C0:1B58 00000000:0000 07 00000000:00000000 00:00000000 00000000     0        0 1 2 0 42\n\
             2: 010200C0:1B59 00000000:0000 07 00000000:00000000 00:00000000 00000000     0        0 1 2 0 7\n";
        let local = ([192, 0, 2, 1], 7_000).into();
        assert_eq!(drops_in(table, local), 42);
        let table = "  sl  local_address                         remote_address                        st tx_queue rx_queue\n\
             1: B80D0120000000000000000080000000:1B58 00000000000000000000000000000000:0000 07 0:0 0:0 0 0 0 1 2 0 9\n";
        let local = "[2001:db8::80]:7000".parse().unwrap();
        assert_eq!(drops_in(table, local), 9);
    }
}
