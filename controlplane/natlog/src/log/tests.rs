use super::*;
use crate::index::OutputView;
use crate::output::{Protocol, Transport};
use crate::record::tests::block;
use crate::store::tests::Directory;
use crate::syslog::tests::parse;
use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::path::Path;

const LIMIT: Duration = Duration::from_secs(60);

fn options(directory: &Path, outputs: Vec<OutputOptions>) -> Options {
    Options {
        directory: directory.to_owned(),
        limit: 64 << 20,
        retention: Duration::from_secs(86_400),
        interim: Duration::ZERO,
        when_full: WhenFull::Refuse,
        outputs,
        hostname: b"bng1".to_vec(),
    }
}

fn output(protocol: Protocol, transport: Transport, server: SocketAddr) -> OutputOptions {
    OutputOptions {
        protocol,
        transport,
        server,
    }
}

/// Opens the log; what is safe comes out of the receiver.
fn open(options: &Options) -> (Log, Receiver<u64>) {
    let (sender, receiver) = channel();
    let safe = move |tokens: &mut Vec<u64>| {
        for token in tokens.drain(..) {
            let _ = sender.send(token);
        }
    };
    (Log::open(options, Box::new(safe)).unwrap(), receiver)
}

fn until(what: &str, is_so: impl Fn() -> bool) {
    let begun = Instant::now();
    while !is_so() {
        assert!(begun.elapsed() < LIMIT, "{what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

fn give(log: &Log, safe: &Receiver<u64>, numbers: std::ops::Range<u16>) {
    for n in numbers.clone() {
        log.opened(block(n), unix_ms(), n.into());
    }
    for n in numbers {
        assert_eq!(safe.recv_timeout(LIMIT), Ok(n.into()));
    }
}

fn output_view(log: &Log) -> OutputView {
    log.reader().view().outputs[0].clone()
}

/// Reads counted messages until the connection ends or `most` have come.
fn read_counted(stream: TcpStream, most: usize) -> Vec<BTreeMap<String, String>> {
    stream.set_read_timeout(Some(LIMIT)).unwrap();
    let mut stream = BufReader::new(stream);
    let mut found = Vec::new();
    while found.len() < most {
        let mut length = Vec::new();
        if stream.read_until(b' ', &mut length).unwrap() == 0 {
            break;
        }
        let length = String::from_utf8(length).unwrap();
        let mut message = vec![0; length.trim().parse().unwrap()];
        stream.read_exact(&mut message).unwrap();
        found.push(parse(&message));
    }
    found
}

#[test]
fn a_block_is_safe_when_another_process_finds_it_and_many_share_one_wait() {
    let directory = Directory::new("safe");
    let (log, safe) = open(&options(&directory.0, Vec::new()));
    let copy = Directory::new("copy");
    fs::create_dir(&copy.0).unwrap();
    log.opened(block(0), 5_000, 77);
    assert_eq!(safe.recv_timeout(LIMIT), Ok(77));
    // As a kill now would leave it.
    for entry in fs::read_dir(&directory.0).unwrap() {
        let entry = entry.unwrap();
        fs::copy(entry.path(), copy.0.join(entry.file_name())).unwrap();
    }
    let (found, _) = open(&options(&copy.0, Vec::new()));
    assert_eq!(found.reader().view().open, 1);
    give(&log, &safe, 1..2_001);
    let counts = log.reader().view().counts;
    assert_eq!(counts.opened, 2_001);
    assert!(counts.syncs < 1_000, "{}", counts.syncs);
}

#[test]
fn what_was_said_before_the_end_is_written_and_the_next_run_goes_on_from_it() {
    let directory = Directory::new("end");
    let (log, _) = open(&options(&directory.0, Vec::new()));
    log.opened(block(0), 5_000, 0);
    log.opened(block(1), 5_000, 1);
    drop(log);
    let (log, _) = open(&options(&directory.0, Vec::new()));
    assert_eq!(log.reader().view().open, 2);
    log.found(block(0), 5_000, 6_000);
    log.keep_only(
        HashSet::from([(block(0).key(), block(0).accounting_id)]),
        None,
    );
    drop(log);
    let (log, _) = open(&options(&directory.0, Vec::new()));
    let reader = log.reader();
    assert_eq!(reader.view().open, 1);
    let gone = block(1);
    // Its end is the last sign of life of the first run.
    let stamp = fs::read_to_string(directory.0.join("alive")).unwrap();
    let stamp: u64 = stamp.parse().unwrap();
    let Answer::Held(held) = reader.who(gone.public, gone.last_port, 5_001).unwrap() else {
        panic!("nobody");
    };
    let until = held[0].until_ms.unwrap();
    assert!(until <= stamp && until + 60_000 > stamp, "{until} {stamp}");
}

#[test]
fn a_block_that_stays_open_has_interim_records_until_it_is_closed() {
    let directory = Directory::new("interim");
    let mut options = options(&directory.0, Vec::new());
    options.interim = Duration::from_millis(20);
    let (log, safe) = open(&options);
    give(&log, &safe, 0..1);
    let interims = || log.reader().view().counts.interim;
    until("interims", || interims() >= 3);
    log.closed(block(0).key(), block(0).accounting_id, unix_ms());
    until("closed", || log.reader().view().open == 0);
    let last = interims();
    give(&log, &safe, 1..2);
    log.closed(block(1).key(), block(1).accounting_id, unix_ms());
    until("closed", || log.reader().view().counts.closed == 2);
    // All that have come since are of the other block, which was open for some of its intervals at most.
    let reader = log.reader();
    drop(log);
    let end = reader.view().counts.interim;
    assert!(end >= last);
    let (log, _) = open(&options);
    assert_eq!(log.reader().view().open, 0);
}

#[test]
fn a_collector_over_tcp_that_goes_and_comes_misses_nothing() {
    let directory = Directory::new("tcp");
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let server = listener.local_addr().unwrap();
    let options = options(
        &directory.0,
        vec![output(Protocol::Syslog, Transport::Tcp, server)],
    );
    let (log, safe) = open(&options);
    let mut seen = std::collections::BTreeSet::new();
    let mut note = |messages: Vec<BTreeMap<String, String>>| {
        for it in messages {
            seen.insert(it["number"].parse::<u64>().unwrap());
        }
    };
    give(&log, &safe, 0..300);
    note(read_counted(listener.accept().unwrap().0, 100));
    // It was closed with much unread; the next one is closed after what it has read.
    give(&log, &safe, 300..600);
    note(read_counted(listener.accept().unwrap().0, 250));
    drop(listener);
    give(&log, &safe, 600..900);
    until("an error", || !output_view(&log).connected);
    assert!(log.takes_new().is_ok());
    drop(log);
    // The next run, and the collector is back.
    let (log, safe) = open(&options);
    give(&log, &safe, 900..1_000);
    let listener = TcpListener::bind(server).unwrap();
    until("sent", || {
        output_view(&log).waiting == 0 && output_view(&log).connected
    });
    let (stream, _) = listener.accept().unwrap();
    drop(log);
    note(read_counted(stream, usize::MAX));
    assert_eq!(seen.len(), 1_000);
    assert_eq!(seen.last(), Some(&999));
}

#[test]
fn a_collector_over_udp_that_is_not_there_yet_gets_everything_when_it_is() {
    let directory = Directory::new("udp");
    let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
    let server = socket.local_addr().unwrap();
    drop(socket);
    let outputs = vec![output(Protocol::Syslog, Transport::Udp, server)];
    let (log, safe) = open(&options(&directory.0, outputs));
    give(&log, &safe, 0..3);
    until("an error", || output_view(&log).errors != 0);
    let socket = UdpSocket::bind(server).unwrap();
    socket.set_read_timeout(Some(LIMIT)).unwrap();
    let mut seen = std::collections::BTreeSet::new();
    while seen.len() < 3 {
        let mut buffer = [0; 2_048];
        let length = socket.recv(&mut buffer).unwrap();
        seen.insert(parse(&buffer[..length])["user"].clone());
    }
}

#[test]
fn a_new_output_begins_with_what_comes_and_a_damaged_cursor_with_all_there_is() {
    let directory = Directory::new("cursor");
    let (log, safe) = open(&options(&directory.0, Vec::new()));
    give(&log, &safe, 0..5);
    drop(log);
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let server = listener.local_addr().unwrap();
    let options = options(
        &directory.0,
        vec![output(Protocol::Syslog, Transport::Tcp, server)],
    );
    for (begin, damage) in [(5, false), (5, true), (0, false)] {
        let (log, safe) = open(&options);
        give(&log, &safe, 5..6);
        let (stream, _) = listener.accept().unwrap();
        let found = read_counted(stream, 1);
        assert_eq!(found[0]["number"], begin.to_string());
        drop(log);
        if damage {
            let name = format!("syslog-tcp-127.0.0.1_{}.cursor", server.port());
            fs::write(directory.0.join(name), b"nonsense").unwrap();
        }
    }
}

#[test]
fn ipfix_over_tcp_begins_each_connection_with_its_template() {
    let directory = Directory::new("ipfix");
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let server = listener.local_addr().unwrap();
    let outputs = vec![output(Protocol::Ipfix(9), Transport::Tcp, server)];
    let (log, safe) = open(&options(&directory.0, outputs));
    for n in 0..2 {
        give(&log, &safe, n..n + 1);
        let (mut stream, _) = listener.accept().unwrap();
        stream.set_read_timeout(Some(LIMIT)).unwrap();
        let mut head = [0; 18];
        stream.read_exact(&mut head).unwrap();
        assert_eq!(head[..2], [0, 10]);
        assert_eq!(head[8..12], [0; 4], "a sequence of its own");
        assert_eq!(head[12..], [0, 0, 0, 9, 0, 2]);
    }
    until("another connection", || output_view(&log).reconnects >= 1);
}

#[test]
fn a_full_log_refuses_or_forgets_and_has_room_when_the_collector_is_back() {
    for when_full in [WhenFull::Refuse, WhenFull::Forget] {
        let directory = Directory::new("full");
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let server = listener.local_addr().unwrap();
        drop(listener);
        let outputs = vec![output(Protocol::Syslog, Transport::Tcp, server)];
        let mut options = options(&directory.0, outputs);
        options.limit = 256 << 10;
        options.when_full = when_full;
        let (log, safe) = open(&options);
        let mut rounds = 0;
        while log.reader().view().size < options.limit && rounds < 40 {
            give(&log, &safe, 0..100);
            for n in 0..100 {
                log.closed(block(n).key(), block(n).accounting_id, unix_ms());
            }
            rounds += 1;
        }
        // The last records are on disk before the room is looked at.
        log.opened(block(200), unix_ms(), 200);
        assert_eq!(safe.recv_timeout(LIMIT), Ok(200));
        let records = rounds * 200 + 1;
        match when_full {
            WhenFull::Refuse => {
                until("full", || log.takes_new() == Err(WhyNot::Full));
                let listener = TcpListener::bind(server).unwrap();
                let (stream, _) = listener.accept().unwrap();
                let same = stream.try_clone().unwrap();
                assert_eq!(read_counted(same, records).len(), records);
                // Fifteen seconds later it counts as delivered.
                until("room", || log.takes_new().is_ok());
                assert_eq!(output_view(&log).lost, 0);
            }
            WhenFull::Forget => {
                until("forgotten", || output_view(&log).lost != 0);
                assert!(log.takes_new().is_ok());
                let listener = TcpListener::bind(server).unwrap();
                let (stream, _) = listener.accept().unwrap();
                let first: u64 = read_counted(stream, 1)[0]["number"].parse().unwrap();
                assert!(first > 0);
            }
        }
    }
}

#[test]
fn a_disk_that_cannot_be_written_refuses_and_loses_nothing() {
    let directory = Directory::new("unwritable");
    let mut options = options(&directory.0, Vec::new());
    // A new segment is due, and its name is taken by a directory.
    options.limit = 1;
    let (log, safe) = open(&options);
    let in_the_way = directory.0.join("0000000002.log");
    fs::create_dir(&in_the_way).unwrap();
    let mut n = 0;
    while log.takes_new() != Err(WhyNot::Unwritable) {
        give(&log, &safe, n..n + 100);
        n += 100;
        assert!(n < 10_000, "never failed");
    }
    assert!(log.reader().view().failing.is_some());
    fs::remove_dir(&in_the_way).unwrap();
    until("written", || log.reader().view().failing.is_none());
    assert_eq!(log.reader().view().open, usize::from(n));
    let _ = std::io::stderr().flush();
}
