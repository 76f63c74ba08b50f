//! Any bytes as a frame: every parser gives a value or an error, and its offsets lie inside the frame.
#![no_main]

use bng_wire::ethernet::{self, ethertype};
use bng_wire::{ipv4, l4, pppoe};
use libfuzzer_sys::fuzz_target;

fn ip(bytes: &[u8]) {
    let Ok(packet) = ipv4::parse(bytes) else {
        let _ = ipv4::parse_embedded(bytes);
        return;
    };
    let payload = &bytes[packet.header_len..packet.total_len];
    if let Ok(l4::L4::IcmpError) = l4::parse(packet.protocol, payload, packet.is_fragment()) {
        let quoted = &payload[l4::ICMP_LEN..];
        if let Ok(inner) = ipv4::parse_embedded(quoted) {
            let _ = l4::parse(inner.protocol, &quoted[inner.header_len..], true);
        }
    }
}

fuzz_target!(|bytes: &[u8]| {
    let Ok(frame) = ethernet::parse(bytes) else {
        return;
    };
    let rest = &bytes[frame.payload..];
    let mut header = [0; 22];
    let written = ethernet::write(
        &mut header,
        frame.dst,
        frame.src,
        &frame.tags,
        frame.ethertype,
    );
    assert_eq!(written, Some(frame.payload));
    assert_eq!(
        header[..frame.payload],
        bytes[..frame.payload],
        "a parsed header is written back byte for byte"
    );
    match frame.ethertype {
        ethertype::PPPOE_SESSION => {
            if let Ok(session) = pppoe::parse_session(rest) {
                ip(session.payload);
            }
        }
        ethertype::PPPOE_DISCOVERY => {
            if let Ok(discovery) = pppoe::parse_discovery(rest) {
                assert!(discovery.tags.len() + pppoe::PPPOE_LEN <= rest.len());
            }
        }
        _ => ip(rest),
    }
});
