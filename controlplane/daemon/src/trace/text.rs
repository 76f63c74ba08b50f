//! A frame in words, one line. For people: what the engine makes of a frame is up to the engine.

use std::fmt::Write;
use std::net::{Ipv4Addr, Ipv6Addr};

use bng_pppoe::codec::frame::Body;
use bng_pppoe::codec::tags::{AccessLineIds, kind};
use bng_pppoe::codec::{
    ConfigOption, ControlPacket, Options, Tags, chap, frame, ipcp, ipv6cp, lcp, pap,
};
use bng_wire::ethernet;
use bng_wire::pppoe::{code, protocol};

/// Bytes of a value that are shown.
const SHOWN: usize = 64;

/// Addresses, tags, and what the frame says. Nothing of a password is ever shown.
pub(crate) fn describe(bytes: &[u8]) -> String {
    let Ok(eth) = ethernet::parse(bytes) else {
        return format!("{} bytes that are no Ethernet frame", bytes.len());
    };
    let mut out = format!("{} > {} ", eth.src, eth.dst);
    for tag in eth.tags.iter() {
        add(&mut out, format_args!("vlan {} ", tag.vid()));
    }
    match frame::parse(bytes).map(|frame| frame.body) {
        Ok(Body::Discovery {
            code,
            session_id,
            tags,
        }) => discovery(&mut out, code, session_id, &tags),
        Ok(Body::Session {
            session_id,
            protocol,
            payload,
        }) => {
            add(&mut out, format_args!("session {session_id} "));
            packet(&mut out, protocol, payload);
        }
        Err(reason) => add(
            &mut out,
            format_args!("{} bytes, malformed: {}", bytes.len(), reason.name()),
        ),
    }
    out
}

fn add(out: &mut String, what: std::fmt::Arguments<'_>) {
    // A string takes everything.
    let _ = out.write_fmt(what);
}

/// Text in quotes, with what is not to be printed escaped.
fn text(bytes: &[u8]) -> String {
    let more = if bytes.len() > 255 { "..." } else { "" };
    let bytes = bytes.get(..255).unwrap_or(bytes);
    format!("\"{}\"{more}", bytes.escape_ascii())
}

fn hex(bytes: &[u8]) -> String {
    let mut out = String::from("0x");
    for byte in bytes.iter().take(SHOWN) {
        add(&mut out, format_args!("{byte:02x}"));
    }
    if bytes.len() > SHOWN {
        out.push_str("...");
    }
    out
}

fn discovery(out: &mut String, number: u8, session_id: u16, tags: &Tags<'_>) {
    match number {
        code::PADI => out.push_str("PADI"),
        code::PADO => out.push_str("PADO"),
        code::PADR => out.push_str("PADR"),
        code::PADS => out.push_str("PADS"),
        code::PADT => out.push_str("PADT"),
        other => add(out, format_args!("discovery code {other:#04x}")),
    }
    if session_id != 0 || matches!(number, code::PADS | code::PADT) {
        add(out, format_args!(" session {session_id}"));
    }
    for tag in tags.iter() {
        let value = tag.value;
        let (name, value) = match tag.kind {
            kind::SERVICE_NAME => ("Service-Name", text(value)),
            kind::AC_NAME => ("AC-Name", text(value)),
            kind::HOST_UNIQ => ("Host-Uniq", hex(value)),
            kind::AC_COOKIE => ("AC-Cookie", hex(value)),
            kind::RELAY_SESSION_ID => ("Relay-Session-Id", hex(value)),
            kind::PPP_MAX_PAYLOAD => ("PPP-Max-Payload", number_of(value)),
            kind::SERVICE_NAME_ERROR => ("Service-Name-Error", text(value)),
            kind::AC_SYSTEM_ERROR => ("AC-System-Error", text(value)),
            kind::GENERIC_ERROR => ("Generic-Error", text(value)),
            kind::VENDOR_SPECIFIC => ("Vendor-Specific", hex(value)),
            other => {
                add(out, format_args!(", tag {other:#06x} {}", hex(value)));
                continue;
            }
        };
        add(out, format_args!(", {name} {value}"));
    }
    if let Ok(AccessLineIds {
        circuit_id,
        remote_id,
    }) = tags.access_line_ids()
    {
        for (name, id) in [("circuit", circuit_id), ("remote", remote_id)] {
            if !id.is_empty() {
                add(out, format_args!(", Agent-{name}-id {}", text(id)));
            }
        }
    }
}

/// A big-endian number, or the bytes if they are none.
fn number_of(bytes: &[u8]) -> String {
    match bytes {
        [a, b] => u16::from_be_bytes([*a, *b]).to_string(),
        _ => hex(bytes),
    }
}

fn protocol_name(number: u16) -> String {
    let name = match number {
        protocol::LCP => "LCP",
        protocol::PAP => "PAP",
        protocol::CHAP => "CHAP",
        protocol::IPCP => "IPCP",
        protocol::IPV6CP => "IPv6CP",
        protocol::CCP => "CCP",
        protocol::IPV4 => "IPv4",
        protocol::IPV6 => "IPv6",
        0x8053 => "ECP",
        0x8281 => "MPLSCP",
        0xc025 => "LQR",
        0xc227 => "EAP",
        other => return format!("protocol {other:#06x}"),
    };
    name.to_owned()
}

fn packet(out: &mut String, number: u16, payload: &[u8]) {
    out.push_str(&protocol_name(number));
    match number {
        protocol::IPV6 => return ipv6(out, payload),
        protocol::IPV4 => return add(out, format_args!(" {} bytes", payload.len())),
        _ => {}
    }
    let packet = match ControlPacket::parse(payload) {
        Ok(packet) => packet,
        Err(reason) => {
            return add(
                out,
                format_args!(" {} bytes, malformed: {}", payload.len(), reason.name()),
            );
        }
    };
    out.push(' ');
    match number {
        protocol::PAP => pap_packet(out, &packet),
        protocol::CHAP => chap_packet(out, &packet),
        _ => control(out, number, &packet),
    }
}

fn named(out: &mut String, names: &[&str], packet: &ControlPacket<'_>) {
    let name = usize::from(packet.code).checked_sub(1);
    match name.and_then(|at| names.get(at)) {
        Some(name) => add(out, format_args!("{name} id {}", packet.id)),
        None => add(out, format_args!("code {} id {}", packet.code, packet.id)),
    }
}

fn pap_packet(out: &mut String, packet: &ControlPacket<'_>) {
    let names = [
        "Authenticate-Request",
        "Authenticate-Ack",
        "Authenticate-Nak",
    ];
    named(out, &names, packet);
    let said = match packet.code {
        pap::code::AUTHENTICATE_REQUEST => pap::parse_request(packet.data).map(|request| {
            let length = request.password.len();
            format!(" user {}, password of {length} bytes", text(request.name))
        }),
        pap::code::AUTHENTICATE_ACK | pap::code::AUTHENTICATE_NAK => {
            pap::parse_reply(packet.data).map(|message| format!(" {}", text(message)))
        }
        // Whatever it is, it may be a request that was damaged.
        _ => return,
    };
    out.push_str(&said.unwrap_or_else(|reason| format!(", malformed: {}", reason.name())));
}

fn chap_packet(out: &mut String, packet: &ControlPacket<'_>) {
    named(
        out,
        &["Challenge", "Response", "Success", "Failure"],
        packet,
    );
    match packet.code {
        chap::code::CHALLENGE | chap::code::RESPONSE => match chap::parse_value(packet.data) {
            Ok(value) => add(
                out,
                format_args!(" value {}, name {}", hex(value.value), text(value.name)),
            ),
            Err(reason) => add(out, format_args!(", malformed: {}", reason.name())),
        },
        _ => add(out, format_args!(" {}", text(packet.data))),
    }
}

/// LCP and the network control protocols.
fn control(out: &mut String, number: u16, packet: &ControlPacket<'_>) {
    let names = [
        "Configure-Request",
        "Configure-Ack",
        "Configure-Nak",
        "Configure-Reject",
        "Terminate-Request",
        "Terminate-Ack",
        "Code-Reject",
        "Protocol-Reject",
        "Echo-Request",
        "Echo-Reply",
        "Discard-Request",
        "Identification",
        "Time-Remaining",
    ];
    // The network protocols have the first seven.
    let known = if number == protocol::LCP {
        names.len()
    } else {
        7
    };
    named(out, names.get(..known).unwrap_or(&names), packet);
    let data = packet.data;
    match packet.code {
        lcp::code::CONFIGURE_REQUEST..=lcp::code::CONFIGURE_REJECT => match Options::parse(data) {
            Ok(options) => {
                for one in options.iter() {
                    out.push_str(", ");
                    option(out, number, &one);
                }
            }
            Err(reason) => add(out, format_args!(", malformed: {}", reason.name())),
        },
        lcp::code::TERMINATE_REQUEST | lcp::code::TERMINATE_ACK if !data.is_empty() => {
            add(out, format_args!(" {}", text(data)));
        }
        lcp::code::CODE_REJECT => match data.first() {
            Some(code) => add(out, format_args!(" of code {code}")),
            None => out.push_str(" of nothing"),
        },
        lcp::code::PROTOCOL_REJECT => match data {
            [high, low, ..] => {
                let rejected = u16::from_be_bytes([*high, *low]);
                add(out, format_args!(" of {}", protocol_name(rejected)));
            }
            _ => out.push_str(" of nothing"),
        },
        lcp::code::ECHO_REQUEST..=lcp::code::TIME_REMAINING => {
            if let Some((magic, rest)) = data.split_first_chunk::<4>() {
                let magic = u32::from_be_bytes(*magic);
                add(out, format_args!(" magic {magic:#010x}"));
                if packet.code == lcp::code::IDENTIFICATION {
                    add(out, format_args!(" {}", text(rest)));
                }
            }
        }
        _ => {}
    }
}

fn option(out: &mut String, number: u16, option: &ConfigOption<'_>) {
    let data = option.data;
    let address = || match data {
        [a, b, c, d] => Ipv4Addr::new(*a, *b, *c, *d).to_string(),
        _ => hex(data),
    };
    let (name, value) = match (number, option.kind) {
        (protocol::LCP, lcp::option::MRU) => ("MRU", number_of(data)),
        (protocol::LCP, 2) => ("ACCM", hex(data)),
        (protocol::LCP, lcp::option::AUTHENTICATION_PROTOCOL) => (
            "authentication",
            match data {
                [0xc2, 0x23, 5] => "CHAP with MD5".to_owned(),
                [0xc2, 0x23, algorithm] => format!("CHAP with algorithm {algorithm:#04x}"),
                [high, low] => protocol_name(u16::from_be_bytes([*high, *low])),
                _ => hex(data),
            },
        ),
        (protocol::LCP, 4) => ("quality", hex(data)),
        (protocol::LCP, lcp::option::MAGIC_NUMBER) => ("magic", hex(data)),
        (protocol::LCP, 7) => ("PFC", String::new()),
        (protocol::LCP, 8) => ("ACFC", String::new()),
        (protocol::LCP, 13) => ("callback", hex(data)),
        (protocol::LCP, 17) => ("MRRU", number_of(data)),
        (protocol::LCP, 19) => ("endpoint", hex(data)),
        (protocol::IPCP, 2) => ("IP-Compression", hex(data)),
        (protocol::IPCP, ipcp::option::IP_ADDRESS) => ("IP-Address", address()),
        (protocol::IPCP, ipcp::option::PRIMARY_DNS) => ("DNS", address()),
        (protocol::IPCP, 130) => ("NBNS", address()),
        (protocol::IPCP, ipcp::option::SECONDARY_DNS) => ("second DNS", address()),
        (protocol::IPCP, 132) => ("second NBNS", address()),
        (protocol::IPV6CP, ipv6cp::option::INTERFACE_IDENTIFIER) => {
            ("Interface-Identifier", hex(data))
        }
        (_, other) => return add(out, format_args!("option {other} {}", hex(data))),
    };
    add(out, format_args!("{name} {value}"));
    out.truncate(out.trim_end().len());
}

/// Neighbour discovery and DHCPv6 by name; of advertisements the prefixes.
fn ipv6(out: &mut String, payload: &[u8]) {
    let Some((header, rest)) = payload.split_first_chunk::<40>() else {
        return add(out, format_args!(" {} bytes, malformed", payload.len()));
    };
    let address = |at: usize| {
        let bytes = header.get(at..at + 16).and_then(|it| it.try_into().ok());
        Ipv6Addr::from_octets(bytes.unwrap_or_default())
    };
    add(out, format_args!(" {} > {} ", address(8), address(24)));
    match (header[6], rest) {
        (58, [kind, ..]) => match kind {
            128 => out.push_str("echo request"),
            129 => out.push_str("echo reply"),
            133 => out.push_str("router solicitation"),
            134 => advertisement(out, rest),
            135 | 136 => {
                let which = if *kind == 135 {
                    "solicitation"
                } else {
                    "advertisement"
                };
                add(out, format_args!("neighbour {which}"));
                if let Some(target) = rest.get(8..24).and_then(|it| <[u8; 16]>::try_from(it).ok()) {
                    add(out, format_args!(" of {}", Ipv6Addr::from_octets(target)));
                }
            }
            143 => out.push_str("listener report"),
            other => add(out, format_args!("ICMPv6 type {other}")),
        },
        (17, [s0, s1, d0, d1, _, _, _, _, message, x0, x1, x2, ..])
            if [[*s0, *s1], [*d0, *d1]]
                .map(u16::from_be_bytes)
                .iter()
                .all(|port| matches!(port, 546 | 547)) =>
        {
            let names = [
                "Solicit",
                "Advertise",
                "Request",
                "Confirm",
                "Renew",
                "Rebind",
                "Reply",
                "Release",
                "Decline",
                "Reconfigure",
                "Information-Request",
            ];
            let at = usize::from(*message).checked_sub(1);
            match at.and_then(|at| names.get(at)) {
                Some(name) => add(out, format_args!("DHCPv6 {name}")),
                None => add(out, format_args!("DHCPv6 message {message}")),
            }
            add(out, format_args!(" id 0x{x0:02x}{x1:02x}{x2:02x}"));
            dhcpv6_options(out, rest.get(12..).unwrap_or(&[]));
        }
        (next, _) => add(out, format_args!("next header {next}")),
    }
}

fn advertisement(out: &mut String, message: &[u8]) {
    out.push_str("router advertisement");
    let mut rest = message.get(16..).unwrap_or(&[]);
    while let [kind, eights, ..] = *rest {
        let Some((option, more)) = rest.split_at_checked(usize::from(eights) * 8) else {
            return out.push_str(", malformed option");
        };
        if option.is_empty() {
            return out.push_str(", malformed option");
        }
        let prefix = option
            .get(16..32)
            .and_then(|it| <[u8; 16]>::try_from(it).ok());
        if let (3, Some(prefix)) = (kind, prefix) {
            let prefix = Ipv6Addr::from_octets(prefix);
            add(out, format_args!(", prefix {prefix}/{}", option[2]));
        }
        rest = more;
    }
}

/// The identity associations, with the prefixes and addresses in them.
fn dhcpv6_options(out: &mut String, options: &[u8]) {
    let mut rest = options;
    while let [k0, k1, l0, l1, more @ ..] = rest {
        let length = usize::from(u16::from_be_bytes([*l0, *l1]));
        let Some((value, more)) = more.split_at_checked(length) else {
            return out.push_str(", malformed option");
        };
        let at = |from: usize| {
            let bytes = value.get(from..from + 16);
            bytes
                .and_then(|it| <[u8; 16]>::try_from(it).ok())
                .map(Ipv6Addr::from_octets)
        };
        match u16::from_be_bytes([*k0, *k1]) {
            3 => {
                out.push_str(", IA_NA");
                dhcpv6_options(out, value.get(12..).unwrap_or(&[]));
            }
            4 => {
                out.push_str(", IA_TA");
                dhcpv6_options(out, value.get(4..).unwrap_or(&[]));
            }
            25 => {
                out.push_str(", IA_PD");
                dhcpv6_options(out, value.get(12..).unwrap_or(&[]));
            }
            5 => {
                if let Some(address) = at(0) {
                    add(out, format_args!(" {address}"));
                }
            }
            26 => {
                if let (Some(prefix), Some(length)) = (at(9), value.get(8)) {
                    add(out, format_args!(" {prefix}/{length}"));
                }
            }
            13 => {
                if let [high, low, ..] = value {
                    add(
                        out,
                        format_args!(", status {}", u16::from_be_bytes([*high, *low])),
                    );
                }
            }
            14 => out.push_str(", rapid commit"),
            _ => {}
        }
        rest = more;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use bng_pppoe::codec::LinkHeader;
    use bng_wire::{MacAddr, VlanStack, VlanTag};
    use proptest::prelude::*;

    fn link() -> LinkHeader {
        LinkHeader {
            dst: MacAddr([2, 0, 0, 0, 0, 1]),
            src: MacAddr([2, 0, 0, 0, 0, 2]),
            vlans: VlanStack::single(VlanTag {
                tpid: 0x8100,
                tci: 0xe007,
            }),
        }
    }

    fn session(number: u16, packet: &[u8]) -> String {
        let said = describe(&frame::session(&link(), 7, number, packet).unwrap());
        let begin = "02:00:00:00:00:02 > 02:00:00:00:00:01 vlan 7 session 7 ";
        said.strip_prefix(begin)
            .unwrap_or_else(|| panic!("{said}"))
            .to_owned()
    }

    #[test]
    fn discovery_is_shown_with_its_tags_by_name() {
        let tags = b"\x01\x01\x00\x02a\x07\x01\x03\x00\x02\xab\xcd\x01\x20\x00\x02\x05\xdc\x01\x05\x00\x0a\x00\x00\x0d\xe9\x01\x04olt1\x12\x34\x00\x01z";
        let frame = frame::discovery(&link(), code::PADR, 0, tags).unwrap();
        let expected = "02:00:00:00:00:02 > 02:00:00:00:00:01 vlan 7 PADR, Service-Name \"a\\x07\", Host-Uniq 0xabcd, PPP-Max-Payload 1500, Vendor-Specific 0x00000de901046f6c7431, tag 0x1234 0x7a, Agent-circuit-id \"olt1\"";
        assert_eq!(describe(&frame), expected);
        let refused = frame::discovery(&link(), code::PADS, 0, b"\x02\x02\x00\x04full").unwrap();
        assert!(describe(&refused).ends_with("PADS session 0, AC-System-Error \"full\""));
    }

    #[test]
    fn control_protocols_are_shown_with_their_options_by_name() {
        for (number, packet, expected) in [
            (protocol::LCP, &b"\x01\x05\x00\x17\x01\x04\x05\xd4\x03\x05\xc2\x23\x05\x05\x06\x01\x02\x03\x04\x07\x02\x09\x02"[..],
             "LCP Configure-Request id 5, MRU 1492, authentication CHAP with MD5, magic 0x01020304, PFC, option 9 0x"),
            (protocol::LCP, b"\x03\x05\x00\x08\x03\x04\xc0\x23", "LCP Configure-Nak id 5, authentication PAP"),
            (protocol::LCP, b"\x09\x01\x00\x08\x00\x00\x00\x09", "LCP Echo-Request id 1 magic 0x00000009"),
            (protocol::LCP, b"\x08\x02\x00\x06\x80\xfd", "LCP Protocol-Reject id 2 of CCP"),
            (protocol::LCP, b"\x05\x02\x00\x07bye", "LCP Terminate-Request id 2 \"bye\""),
            (protocol::LCP, b"\x01\x05\x00\x06\x01\x09", "LCP Configure-Request id 5, malformed: option_length"),
            (protocol::IPCP, b"\x02\x01\x00\x10\x03\x06\x64\x40\x00\x02\x81\x06\x09\x09\x09\x09", "IPCP Configure-Ack id 1, IP-Address 100.64.0.2, DNS 9.9.9.9"),
            (protocol::IPCP, b"\x09\x01\x00\x04", "IPCP code 9 id 1"),
            (protocol::IPV6CP, b"\x01\x01\x00\x0e\x01\x0a\x00\x00\x00\x00\x00\x00\x00\x05", "IPv6CP Configure-Request id 1, Interface-Identifier 0x0000000000000005"),
            (protocol::CHAP, b"\x02\x01\x00\x08\x01\x55al", "CHAP Response id 1 value 0x55, name \"al\""),
            (protocol::CHAP, b"\x03\x01\x00\x06ok", "CHAP Success id 1 \"ok\""),
            (protocol::PAP, b"\x03\x01\x00\x08\x03no!", "PAP Authenticate-Nak id 1 \"no!\""),
            (0xc227, b"\x01\x01\x00\x05\x01", "EAP Configure-Request id 1, malformed: option_truncated"),
        ] {
            assert_eq!(session(number, packet), expected);
        }
    }

    #[test]
    fn a_password_is_never_shown() {
        let request = b"\x01\x09\x00\x0c\x02al\x04pass";
        let said = session(protocol::PAP, request);
        assert_eq!(
            said,
            "PAP Authenticate-Request id 9 user \"al\", password of 4 bytes"
        );
        let mut reject = b"\x08\x01\x00\x12\xc0\x23".to_vec();
        reject.extend(request);
        for packet in [
            &b"\x11\x09\x00\x0c\x02al\x04pass"[..],
            b"\x01\x09\x00\x0c\x02al\xffpass",
        ] {
            assert!(!session(protocol::PAP, packet).contains("pass"));
        }
        assert!(!session(protocol::LCP, &reject).contains("pass"));
    }

    #[test]
    fn advertisements_and_dhcpv6_are_summed_up() {
        let mut packet = vec![0x60, 0, 0, 0, 0, 48, 58, 255];
        packet.extend("fe80::1".parse::<Ipv6Addr>().unwrap().octets());
        packet.extend("ff02::1".parse::<Ipv6Addr>().unwrap().octets());
        let mut advertisement = packet.clone();
        advertisement.extend([134, 0, 0, 0, 64, 0, 7, 8, 0, 0, 0, 0, 0, 0, 0, 0]);
        advertisement.extend([3, 4, 64, 0x40, 0, 0, 0, 9, 0, 0, 0, 9, 0, 0, 0, 0]);
        advertisement.extend("2001:db8:0:5::".parse::<Ipv6Addr>().unwrap().octets());
        let said = session(protocol::IPV6, &advertisement);
        assert_eq!(
            said,
            "IPv6 fe80::1 > ff02::1 router advertisement, prefix 2001:db8:0:5::/64"
        );
        let mut reply = packet;
        reply[6] = 17;
        reply.extend([2, 0x23, 2, 0x22, 0, 0, 0, 0, 7, 1, 2, 3]);
        reply.extend([
            0, 25, 0, 41, 0, 0, 0, 1, 0, 0, 0, 9, 0, 0, 0, 9, 0, 26, 0, 25,
        ]);
        reply.extend([0, 0, 0, 9, 0, 0, 0, 9, 56]);
        reply.extend("2001:db8:1000::".parse::<Ipv6Addr>().unwrap().octets());
        let said = session(protocol::IPV6, &reply);
        let expected = "IPv6 fe80::1 > ff02::1 DHCPv6 Reply id 0x010203, IA_PD 2001:db8:1000::/56";
        assert_eq!(said, expected);
        // Without T1 and T2.
        reply[5] += 36;
        reply.extend([0, 4, 0, 32, 0, 0, 0, 1, 0, 5, 0, 24]);
        reply.extend("2001:db8::9".parse::<Ipv6Addr>().unwrap().octets());
        reply.extend([0; 8]);
        let said = session(protocol::IPV6, &reply);
        assert_eq!(said, format!("{expected}, IA_TA 2001:db8::9"));
    }

    #[test]
    fn what_is_malformed_is_named() {
        assert_eq!(describe(&[1, 2, 3]), "3 bytes that are no Ethernet frame");
        let mut frame = frame::session(&link(), 7, protocol::LCP, &[1, 1, 0, 4]).unwrap();
        frame[22] = 0xff;
        let said = describe(&frame);
        assert!(
            said.ends_with("30 bytes, malformed: pppoe_length"),
            "{said}"
        );
    }

    proptest! {
        #[test]
        fn any_packet_makes_one_line_of_bounded_length(
            number in prop_oneof![
                Just(protocol::LCP), Just(protocol::PAP), Just(protocol::CHAP), Just(protocol::IPCP),
                Just(protocol::IPV6CP), Just(protocol::IPV6), any::<u16>()
            ],
            payload in prop::collection::vec(any::<u8>(), 0..300),
            cut in 0usize..40,
        ) {
            let frame = frame::session(&link(), 7, number | 1, &payload).unwrap();
            let said = describe(&frame[..frame.len() - cut.min(frame.len())]);
            prop_assert!(!said.contains('\n') && !said.contains('\x1b'));
            prop_assert!(said.len() < 12_000, "{}", said.len());
        }
    }
}
