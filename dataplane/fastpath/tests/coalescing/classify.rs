//! What a frame is to the reference model: sections 3, 4 and 8 of the rules.

use std::collections::BTreeMap;

use bng_fastpath::coalesce::{Protocols, Settings};
use bng_fastpath::testing::TestBuf;
use bng_fastpath::{Direction, L4Verdict, PacketBuf};

/// The fields that say which frames a frame is related to, as bytes.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Place {
    /// K1, K2: the order key.
    pub(crate) flow: Option<Vec<u8>>,
    /// Receive port, MACs, VLANs, session and addresses.
    pub(crate) addresses: Option<Vec<u8>>,
    /// Receive port, MACs, VLANs and session id.
    pub(crate) session: Option<Vec<u8>>,
}

/// What a frame is to the coalescer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Class {
    Candidate(Candidate),
    /// Not a candidate; the runs in this scope go out before it (O2).
    Barrier(Scope),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Scope {
    None,
    Flow,
    Addresses,
    Session,
}

/// What the merge conditions look at.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Candidate {
    /// M2: TOS, TTL, VLAN priority, flow label, extension headers.
    pub(crate) same: Vec<u8>,
    /// M3: DF and the identification, of IPv4.
    pub(crate) ipv4: Option<(bool, u16)>,
    pub(crate) tcp: Option<Tcp>,
    pub(crate) payload: usize,
    /// M9: bytes behind the EtherType.
    pub(crate) behind_ethertype: usize,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Tcp {
    pub(crate) seq: u32,
    /// M6, M7: acknowledgement, window, urgent pointer, offset, options, flags but FIN and PSH.
    pub(crate) same: Vec<u8>,
    pub(crate) push_or_fin: bool,
    pub(crate) fin: bool,
    pub(crate) cwr: bool,
}

/// Whether a hint may say that frame `b` is like `a`: one flow, all the same that a look-up or a rewrite asks for, not larger, no
/// FIN.
pub(crate) fn are_alike(direction: Direction, a: &TestBuf, b: &TestBuf) -> bool {
    // Whatever is left alone is like nothing, checksums nobody looked at excepted.
    let settings = Settings {
        verify: false,
        ..crate::drive::settings(0)
    };
    let of = |buf| match classify(&settings, direction, buf) {
        (place, Class::Candidate(candidate)) => {
            let df = candidate.ipv4.map(|(df, _)| df);
            let has_fin = candidate.tcp.is_some_and(|tcp| tcp.fin);
            Some(((place, candidate.same, df), candidate.payload, has_fin))
        }
        _ => None,
    };
    match (of(a), of(b)) {
        (Some((a, payload, _)), Some((b, of_b, has_fin))) => a == b && of_b <= payload && !has_fin,
        _ => false,
    }
}

/// The classes of a list of frames, by their marks.
pub(crate) fn places<'a>(
    settings: &Settings,
    frames: impl Iterator<Item = (Direction, &'a TestBuf)>,
) -> BTreeMap<u32, (Place, Class)> {
    frames
        .map(|(direction, buf)| (buf.mark(), classify(settings, direction, buf)))
        .collect()
}

/// Sections 3, 4 and 8.
pub(crate) fn classify(settings: &Settings, direction: Direction, buf: &TestBuf) -> (Place, Class) {
    let mut place = Place::default();
    let off = settings.ports_off.get(usize::from(buf.port())) == Some(&true);
    let found = if off || !buf.is_contiguous() {
        None
    } else {
        link(settings, direction, buf, &mut place)
    };
    (place, found.unwrap_or(Class::Barrier(Scope::None)))
}

fn be16(bytes: &[u8], at: usize) -> Option<u16> {
    Some(u16::from_be_bytes([*bytes.get(at)?, *bytes.get(at + 1)?]))
}

/// From the Ethernet header on. Nothing: no frame that anything depends on.
fn link(
    settings: &Settings,
    direction: Direction,
    buf: &TestBuf,
    place: &mut Place,
) -> Option<Class> {
    let frame = buf.data();
    let macs = frame.get(..12)?;
    let mut at = 12;
    let (mut vlans, mut priorities) = (vec![], vec![]);
    while matches!(be16(frame, at)?, 0x8100 | 0x88a8) {
        let tag = be16(frame, at + 2)?;
        vlans.extend((tag & 0x0fff).to_be_bytes());
        priorities.push((tag >> 12) as u8);
        at += 4;
    }
    if priorities.len() > 2 {
        return None;
    }
    let mut key = vec![buf.port(), direction as u8, priorities.len() as u8];
    key.extend(macs);
    key.extend(&vlans);
    let ethertype = be16(frame, at)?;
    let behind = frame.get(at + 2..)?;
    let group_address = macs[0] & 1 == 1;
    let ip = match direction {
        Direction::Upstream => match session(ethertype, behind, &mut key, place)? {
            Ok(ip) => ip,
            Err(scope) => return Some(Class::Barrier(scope)),
        },
        Direction::Downstream => {
            let is_ipv6 = match ethertype {
                0x0800 => false,
                0x86dd => true,
                _ => return None,
            };
            key.extend(ethertype.to_be_bytes());
            Ip {
                is_ipv6,
                bytes: behind.to_vec(),
                padded: false,
            }
        }
    };
    let outer = Outer {
        settings,
        direction,
        priorities,
        behind_ethertype: behind.len(),
        l4: buf.l4_verdict(),
        group_address,
    };
    if ip.is_ipv6 {
        ipv6(&outer, &ip, key, place)
    } else {
        ipv4(&outer, &ip, key, place)
    }
}

struct Ip {
    is_ipv6: bool,
    bytes: Vec<u8>,
    /// Bytes follow that the PPPoE length does not count (C5).
    padded: bool,
}

/// C4 to C7, and the frames of a session that are not IP.
fn session(
    ethertype: u16,
    behind: &[u8],
    key: &mut Vec<u8>,
    place: &mut Place,
) -> Option<Result<Ip, Scope>> {
    let id = be16(behind, 2)?;
    let present = behind.get(6..)?;
    key.extend(id.to_be_bytes());
    let len = usize::from(be16(behind, 4)?);
    // Malformed frames are dropped by the stages; nothing waits for them.
    let content = present.get(..len)?;
    if behind[0] != 0x11 {
        return None;
    }
    if ethertype == 0x8863 && id != 0 {
        place.session = Some(key.clone());
        return Some(Err(Scope::Session));
    }
    if ethertype != 0x8864 || behind[1] != 0 || len < 2 || content[0] & 1 == 1 {
        return None;
    }
    let protocol = be16(content, 0)?;
    place.session = Some(key.clone());
    key.extend(protocol.to_be_bytes());
    let is_ipv6 = match protocol {
        0x0021 => false,
        0x0057 => true,
        _ => return Some(Err(Scope::Session)),
    };
    Some(Ok(Ip {
        is_ipv6,
        bytes: content[2..].to_vec(),
        padded: present.len() > len,
    }))
}

/// What is known of a frame from outside of its IP packet.
struct Outer<'a> {
    settings: &'a Settings,
    direction: Direction,
    priorities: Vec<u8>,
    behind_ethertype: usize,
    l4: L4Verdict,
    group_address: bool,
}

fn ipv4(outer: &Outer, ip: &Ip, mut key: Vec<u8>, place: &mut Place) -> Option<Class> {
    let bytes = &ip.bytes;
    let header = bytes.get(..20)?;
    let header_len = usize::from(header[0] & 15) * 4;
    let total = usize::from(be16(header, 2)?);
    if header[0] >> 4 != 4 || header_len < 20 || total < header_len || bytes.len() < header_len {
        return None;
    }
    if !outer.settings.ipv4 {
        return None;
    }
    key.extend(&header[12..20]);
    place.addresses = Some(key.clone());
    let fragment = be16(header, 6)?;
    // C8, C9, C11. Sum over the header is 0xffff when the checksum is right, and the field is not 0xffff then unless
    // it is the other form of zero.
    let check_right = sum(&bytes[..header_len]) == 0xffff && be16(header, 10)? != 0xffff;
    if header_len > 20 || !check_right || fragment & 0x3fff != 0 {
        return Some(Class::Barrier(Scope::Addresses));
    }
    let protocol = header[9];
    let segment = &bytes[20..total.min(bytes.len())];
    key.push(protocol);
    let mut pseudo = header[12..20].to_vec();
    pseudo.extend([0, protocol]);
    pseudo.extend((segment.len() as u16).to_be_bytes());
    let fits = total == bytes.len() && !ip.padded && fragment & 0x8000 == 0;
    let mut same = vec![header[1], header[8]];
    same.extend(&outer.priorities);
    let upper = upper(outer, protocol, segment, &pseudo, fits, key, place)?;
    Some(upper.map_or_else(Class::Barrier, |(tcp, payload)| {
        Class::Candidate(Candidate {
            same,
            ipv4: Some((
                fragment & 0x4000 != 0,
                u16::from_be_bytes([header[4], header[5]]),
            )),
            tcp,
            payload,
            behind_ethertype: outer.behind_ethertype,
        })
    }))
}

fn ipv6(outer: &Outer, ip: &Ip, mut key: Vec<u8>, place: &mut Place) -> Option<Class> {
    let bytes = &ip.bytes;
    let header = bytes.get(..40)?;
    let declared = usize::from(be16(header, 4)?);
    if header[0] >> 4 != 6 || declared == 0 {
        return None;
    }
    if !outer.settings.ipv6 {
        return None;
    }
    key.extend(&header[8..40]);
    place.addresses = Some(key.clone());
    let present = &bytes[40..];
    let payload = &present[..declared.min(present.len())];
    let (mut next, mut at) = (header[6], 0);
    // C13: hop-by-hop, routing and destination options.
    while matches!(next, 0 | 43 | 60) {
        let len = 8 + 8 * usize::from(*payload.get(at + 1)?);
        next = payload[at];
        at += len;
    }
    if matches!(next, 44 | 51 | 135 | 139 | 140) {
        return Some(Class::Barrier(Scope::Addresses));
    }
    let segment = payload.get(at..)?;
    key.push(next);
    let mut pseudo = header[8..40].to_vec();
    pseudo.extend((segment.len() as u32).to_be_bytes());
    pseudo.extend([0, 0, 0, next]);
    let fits = declared == present.len() && !ip.padded;
    // Version, traffic class and flow label; first header; hop limit.
    let mut same = header[..4].to_vec();
    same.extend(&header[6..8]);
    same.extend(&payload[..at]);
    same.extend(&outer.priorities);
    let upper = upper(outer, next, segment, &pseudo, fits, key, place)?;
    Some(upper.map_or_else(Class::Barrier, |(tcp, payload)| {
        Class::Candidate(Candidate {
            same,
            ipv4: None,
            tcp,
            payload,
            behind_ethertype: outer.behind_ethertype,
        })
    }))
}

type Upper = Result<(Option<Tcp>, usize), Scope>;

/// C14 to C17. `fits`: what is below has no objection.
fn upper(
    outer: &Outer,
    protocol: u8,
    segment: &[u8],
    pseudo: &[u8],
    fits: bool,
    mut key: Vec<u8>,
    place: &mut Place,
) -> Option<Upper> {
    let is_tcp = match protocol {
        6 => true,
        17 => false,
        _ => return Some(Err(Scope::None)),
    };
    key.extend(segment.get(..4)?);
    place.flow = Some(key);
    let Protocols { tcp, udp } = match outer.direction {
        Direction::Upstream => outer.settings.upstream,
        Direction::Downstream => outer.settings.downstream,
    };
    let on = if is_tcp { tcp } else { udp };
    let check_right = match outer.l4 {
        L4Verdict::Good => true,
        L4Verdict::Bad => false,
        L4Verdict::Unknown if !outer.settings.verify => true,
        L4Verdict::Unknown => sum(&[pseudo, segment].concat()) == 0xffff,
    };
    let found = if is_tcp {
        tcp_segment(segment)
    } else {
        // C16.
        let length = be16(segment, 4).map_or(0, usize::from);
        let right = length > 8 && length == segment.len() && be16(segment, 6) != Some(0);
        right.then(|| (None, length - 8))
    };
    let usable = on && fits && check_right && !outer.group_address;
    Some(match found {
        Some((tcp, payload)) if usable && payload > 0 => Ok((tcp, payload)),
        _ => Err(Scope::Flow),
    })
}

fn tcp_segment(segment: &[u8]) -> Option<(Option<Tcp>, usize)> {
    let header = segment.get(..20)?;
    let offset = usize::from(header[12] >> 4) * 4;
    let flags = header[13];
    if offset < 20 || offset > segment.len() {
        return None;
    }
    // C15: none of SYN, RST, URG; ACK.
    if flags & (0x02 | 0x04 | 0x20) != 0 || flags & 0x10 == 0 {
        return None;
    }
    let mut same = header[8..13].to_vec();
    same.push(flags & !0x09);
    same.extend(&header[14..16]);
    same.extend(&segment[18..offset]);
    let tcp = Tcp {
        seq: u32::from_be_bytes([header[4], header[5], header[6], header[7]]),
        same,
        push_or_fin: flags & 0x09 != 0,
        fin: flags & 0x01 != 0,
        cwr: flags & 0x80 != 0,
    };
    Some((Some(tcp), segment.len() - offset))
}

/// Ones-complement sum of the bytes, as 16-bit words.
fn sum(bytes: &[u8]) -> u16 {
    let mut sum = 0u64;
    for pair in bytes.chunks(2) {
        sum += u64::from(pair[0]) << 8 | u64::from(*pair.get(1).unwrap_or(&0));
    }
    while sum > 0xffff {
        sum = (sum >> 16) + (sum & 0xffff);
    }
    sum as u16
}
