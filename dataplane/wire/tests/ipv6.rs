//! IPv6 and ICMPv6: tables, and laws with etherparse as the independent opinion.
#![allow(missing_docs, clippy::unwrap_used, clippy::panic)]

use std::net::Ipv6Addr;

use bng_wire::icmpv6::{self, icmpv6_type};
use bng_wire::ipv6::{self, MAX_EXTENSIONS, NewIpv6, next_header};
use bng_wire::{ExtensionError, Icmpv6Error, Ipv6Error, Upper};
use etherparse::{Icmpv6Slice, Ipv6Header, Ipv6Slice};
use proptest::prelude::*;

const SRC: Ipv6Addr = Ipv6Addr::new(0x2001, 0xdb8, 0, 1, 0, 0, 0, 2);
const DST: Ipv6Addr = Ipv6Addr::new(0x2001, 0xdb8, 0xf00d, 0, 0, 0, 0, 1);

fn packet(next_header: u8, payload: &[u8]) -> Vec<u8> {
    let mut bytes = vec![0; 40 + payload.len()];
    let fields = NewIpv6 {
        src: SRC,
        dst: DST,
        next_header,
        hop_limit: 9,
    };
    assert_eq!(ipv6::write(&mut bytes, &fields, payload.len()), Some(40));
    bytes[40..].copy_from_slice(payload);
    bytes
}

fn upper_of(next_header: u8, extensions: &[u8]) -> Result<Upper, ExtensionError> {
    ipv6::upper(next_header, &packet(next_header, extensions))
}

#[test]
fn a_header_is_written_and_read_back_and_padding_is_allowed() {
    let mut bytes = packet(17, b"12345678");
    bytes[1..4].copy_from_slice(&[0xfa, 0xbc, 0xde]);
    bytes.extend([0xee; 6]);
    let parsed = ipv6::parse(&bytes).unwrap();
    assert_eq!((parsed.src, parsed.dst), (SRC, DST));
    assert_eq!(
        (parsed.total_len, parsed.next_header, parsed.hop_limit),
        (48, 17, 9)
    );
    assert_eq!(parsed.flow_label, 0xabcde);
}

#[test]
fn each_defect_of_the_header_has_its_name() {
    let bytes = packet(17, b"12345678");
    for have in 0..40 {
        assert_eq!(
            ipv6::parse(&bytes[..have]),
            Err(Ipv6Error::Truncated { have })
        );
    }
    for have in 40..48 {
        let total_len = 48;
        assert_eq!(
            ipv6::parse(&bytes[..have]),
            Err(Ipv6Error::PayloadLengthBeyond { total_len, have })
        );
    }
    let mut other = bytes;
    other[0] = 0x45;
    assert_eq!(ipv6::parse(&other), Err(Ipv6Error::Version { version: 4 }));
}

#[test]
fn the_upper_layer_is_found_behind_extension_headers() {
    let found = |protocol, offset| Upper {
        protocol,
        offset,
        fragment: false,
        later_fragment: false,
    };
    assert_eq!(upper_of(6, b""), Ok(found(6, 40)));
    assert_eq!(upper_of(next_header::NONE, b"xx"), Ok(found(59, 40)));
    // Hop-by-hop (8), destination options (16), authentication (12), UDP.
    let mut chain = vec![60, 0, 5, 2, 0, 0, 1, 0];
    chain.extend([51, 1]);
    chain.extend([0; 14]);
    chain.extend([17, 1]);
    chain.extend([0; 10]);
    assert_eq!(upper_of(0, &chain), Ok(found(17, 40 + 8 + 16 + 12)));
    // Encrypted payload is nothing to look through.
    assert_eq!(upper_of(50, &chain), Ok(found(50, 40)));
}

#[test]
fn fragments_are_told_apart() {
    let fragment = |offset_and_more: [u8; 2]| {
        let [a, b] = offset_and_more;
        upper_of(44, &[17, 0, a, b, 0, 0, 0, 7]).unwrap()
    };
    let of = |upper: Upper| (upper.fragment, upper.later_fragment);
    assert_eq!(of(fragment([0, 0])), (false, false));
    assert_eq!(of(fragment([0, 6])), (false, false));
    assert_eq!(of(fragment([0, 1])), (true, false));
    assert_eq!(of(fragment([0, 8])), (true, true));
    assert_eq!(of(fragment([0x10, 1])), (true, true));
    // What follows a later fragment's header is data, whatever it looks like.
    let upper = upper_of(44, &[0, 0, 0, 8, 0, 0, 0, 7]).unwrap();
    assert_eq!((upper.protocol, upper.offset), (0, 48));
}

#[test]
fn extension_headers_that_end_early_or_are_too_many_are_errors() {
    let truncated = |next_header| Err(ExtensionError::Truncated { next_header });
    for len in 0..8 {
        assert_eq!(upper_of(0, &[17, 0, 0, 0, 0, 0, 0][..len]), truncated(0));
    }
    assert_eq!(upper_of(43, &[17, 1, 0, 0, 0, 0, 0, 0]), truncated(43));
    assert_eq!(upper_of(60, &[17, 255, 0, 0, 0, 0, 0, 0]), truncated(60));
    let chain = |count: usize| {
        let mut bytes = [60, 0, 1, 4, 0, 0, 0, 0].repeat(count);
        bytes[(count - 1) * 8] = 17;
        upper_of(60, &bytes)
    };
    assert_eq!(chain(MAX_EXTENSIONS).unwrap().protocol, 17);
    assert_eq!(chain(MAX_EXTENSIONS + 1), Err(ExtensionError::TooMany));
}

proptest! {
    #[test]
    fn any_bytes_parse_without_panic_and_offsets_stay_inside(
        bytes in prop::collection::vec(any::<u8>(), 0..160), next_header: u8, version: bool,
    ) {
        let mut bytes = bytes;
        if version && !bytes.is_empty() {
            bytes[0] = 0x60 | bytes[0] & 15;
        }
        if let Ok(parsed) = ipv6::parse(&bytes) {
            prop_assert!((40..=bytes.len()).contains(&parsed.total_len));
            if let Ok(upper) = ipv6::upper(parsed.next_header, &bytes[..parsed.total_len]) {
                prop_assert!((40..=parsed.total_len).contains(&upper.offset));
            }
        }
        let _ = ipv6::upper(next_header, &bytes);
    }

    #[test]
    fn etherparse_reads_the_same_upper_layer(
        kinds in prop::collection::vec((prop::sample::select(vec![43u8, 60]), 0u8..3), 0..6), fragment: Option<u16>,
    ) {
        let mut headers: Vec<(u8, Vec<u8>)> = kinds
            .iter()
            .map(|(kind, len)| {
                let mut bytes = vec![0, *len, 1, 4, 0, 0, 0, 0];
                bytes.extend(vec![0; usize::from(*len) * 8]);
                (*kind, bytes)
            })
            .collect();
        if let Some(bits) = fragment {
            let [a, b] = bits.to_be_bytes();
            headers.push((44, vec![0, 0, a, b, 1, 2, 3, 4]));
        }
        let first = headers.first().map_or(17, |header| header.0);
        let nexts: Vec<u8> = headers.iter().skip(1).map(|header| header.0).chain([17]).collect();
        let mut payload = Vec::new();
        for ((_, bytes), next) in headers.iter_mut().zip(nexts) {
            bytes[0] = next;
            payload.extend_from_slice(bytes);
        }
        let end = 40 + payload.len();
        payload.extend([0, 1, 0, 2, 0, 8, 0, 0]);
        let bytes = packet(first, &payload);
        let upper = ipv6::upper(first, &bytes).unwrap();
        prop_assert_eq!((upper.protocol, upper.offset), (17, end));
        let theirs = Ipv6Slice::from_slice(&bytes).unwrap();
        prop_assert_eq!(theirs.payload().ip_number.0, 17);
        prop_assert_eq!(theirs.payload().payload.len(), 8);
        prop_assert_eq!(theirs.is_payload_fragmented(), upper.fragment);
    }

    #[test]
    fn an_error_that_is_made_is_read_by_etherparse(
        quote in prop::collection::vec(any::<u8>(), 0..1_232), src: u128, dst: u128, mtu in 1_280u32..9_000,
    ) {
        let (src, dst) = (Ipv6Addr::from_bits(src), Ipv6Addr::from_bits(dst));
        let error = Icmpv6Error { icmp_type: icmpv6_type::PACKET_TOO_BIG, code: 0, value: mtu };
        let head = icmpv6::error_head(src, dst, error, &quote).unwrap();
        let bytes = [&head[..], &quote].concat();
        let (header, message) = Ipv6Header::from_slice(&bytes).unwrap();
        prop_assert_eq!(usize::from(header.payload_length), message.len());
        prop_assert_eq!((header.source, header.destination), (src.octets(), dst.octets()));
        let icmp = Icmpv6Slice::from_slice(message).unwrap();
        prop_assert!(icmp.is_checksum_valid(header.source, header.destination));
        prop_assert_eq!(icmp.icmp_type(), etherparse::Icmpv6Type::PacketTooBig { mtu });
        prop_assert_eq!(icmpv6::checksum(src, dst, message), 0);
        prop_assert_eq!(icmp.payload(), &quote[..]);
    }
}
