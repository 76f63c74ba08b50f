use super::*;
use crate::record::tests::block;
use std::io::Write;
use std::process::{Command, Stdio};

fn record(event: Event, n: u16) -> Record {
    Record {
        event,
        number: u64::from(n),
        time_ms: 1_700_000_000_123 + u64::from(n),
        opened_ms: 1_700_000_000_000,
        block: block(n),
    }
}

#[test]
fn sequence_numbers_count_records_and_interims_are_no_events() {
    let mut exporter = Exporter::new(7);
    let records: Vec<_> = (0..40).map(|n| record(Event::Opened, n)).collect();
    let mut rest = &records[..];
    let mut sequence = 0;
    let mut is_first = true;
    while !rest.is_empty() {
        let (message, used) = exporter.message(rest.iter(), is_first, 1_400, 5);
        let message = message.unwrap();
        assert!(message.len() <= 1_400 && used > 5);
        let number = |at: usize| u32::from_be_bytes(message[at..at + 4].try_into().unwrap());
        assert_eq!(number(0), 10 << 16 | message.len() as u32);
        assert_eq!((number(4), number(8), number(12)), (5, sequence, 7));
        assert_eq!(message[16..18] == TEMPLATES.to_be_bytes(), is_first);
        sequence += used as u32;
        rest = &rest[used..];
        is_first = false;
    }
    assert_eq!(sequence, 40);
    let interims = [record(Event::Interim, 1), record(Event::Interim, 2)];
    assert_eq!(exporter.message(interims.iter(), true, 1_400, 5), (None, 2));
    let mixed = [record(Event::Interim, 1), record(Event::Closed, 2)];
    let (message, used) = exporter.message(mixed.iter(), false, 1_400, 5);
    assert_eq!((message.is_some(), used), (true, 2));
}

/// A capture file with each message in a UDP datagram to port 4739.
fn capture(messages: &[Vec<u8>]) -> Vec<u8> {
    let mut file = Vec::new();
    // Link type 101: raw IP.
    for word in [0xa1b2_c3d4u32, 0x0004_0002, 0, 0, 65_535, 101] {
        file.extend(word.to_le_bytes());
    }
    for message in messages {
        let length = 28 + message.len();
        let mut packet = vec![0x45, 0];
        packet.extend((length as u16).to_be_bytes());
        packet.extend([0, 0, 0, 0, 64, 17, 0, 0, 192, 0, 2, 1, 192, 0, 2, 2]);
        packet.extend(40_000u16.to_be_bytes());
        packet.extend(4_739u16.to_be_bytes());
        packet.extend((length as u16 - 20).to_be_bytes());
        packet.extend([0, 0]);
        packet.extend(message);
        for word in [1, 0, packet.len() as u32, packet.len() as u32] {
            file.extend(word.to_le_bytes());
        }
        file.extend(packet);
    }
    file
}

#[test]
fn tshark_reads_every_field() {
    let mut exporter = Exporter::new(7);
    let mut long = record(Event::Closed, 3);
    long.block.user = vec![b'x'; 300];
    long.block.s_vlan = None;
    let first = [record(Event::Opened, 2)];
    let (first, _) = exporter.message(first.iter(), true, 1_400, 1_700_000_001);
    let second = [long, record(Event::Opened, 4)];
    let (second, _) = exporter.message(second.iter(), false, 1_400, 1_700_000_002);
    let file = capture(&[first.unwrap(), second.unwrap()]);
    let fields = [
        "cflow.nat_event",
        "cflow.srcaddr",
        "cflow.post_natsource_ipv4_address",
        "cflow.port_range_start",
        "cflow.port_range_end",
        "cflow.port_range_num_ports",
        "cflow.srcmac",
        "cflow.dot1q_vlan_id",
        "cflow.dot1q_customer_vlan_id",
        "cflow.user_name",
        "cflow.nat_pool_name",
        "cflow.if_name",
        "cflow.od_id",
        "cflow.sequence",
    ];
    let mut tshark = Command::new("tshark");
    tshark.args([
        "-n",
        "-r",
        "-",
        "-d",
        "udp.port==4739,cflow",
        "-T",
        "fields",
    ]);
    tshark.args(["-E", "separator=|", "-E", "aggregator=,"]);
    for field in fields {
        tshark.args(["-e", field]);
    }
    let pipes = tshark.stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut child = pipes.stderr(Stdio::piped()).spawn().unwrap();
    child.stdin.take().unwrap().write_all(&file).unwrap();
    let output = child.wait_with_output().unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    let error = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{error}");
    let long = "x".repeat(300);
    let expected = [
        "16|100.64.0.2|198.51.100.0|2048|2559|512|02:00:00:00:00:02|100|2|user2@example|cgn|access0|7|0".to_owned(),
        format!("17,16|100.64.0.3,100.64.0.4|198.51.100.0,198.51.100.0|2560,3072|3071,3583|512,512|02:00:00:00:00:03,02:00:00:00:00:04|0,100|0,4|{long},user4@example|cgn,cgn|access0,access0|7|1"),
    ];
    assert_eq!(text.lines().collect::<Vec<_>>(), expected);
}
