//! Where the headers of a packet lie, and what they are in each of its segments.

use bng_wire::checksum::{checksum, l4_checksum, l4_checksum_ipv6};
use bng_wire::ethernet::{self, ethertype};
use bng_wire::ipv4::{FLAG_MF, IPV4_MIN_LEN, OFFSET_MASK, protocol};
use bng_wire::ipv6::{IPV6_LEN, MAX_EXTENSIONS, next_header};
use bng_wire::l4::{TCP_MIN_LEN, UDP_LEN, tcp_flag};
use bng_wire::pppoe::{self, PPP_LEN, PPPOE_LEN, VERSION_TYPE, code};
use bng_wire::{Ipv4Hdr, Ipv6Hdr, PppoeHdr, TcpHdr, U16, UdpHdr};
use zerocopy::FromBytes;

use super::{Cwr, How};
use crate::coalesce::Ids;

/// TCP FIN, as it stands in [`TcpHdr::offset_flags`].
pub(crate) const FIN: u16 = tcp_flag::FIN as u16;
/// TCP PSH.
pub(crate) const PSH: u16 = 0x08;
/// TCP CWR (RFC 3168 section 6.1).
pub(crate) const CWR: u16 = 0x80;

/// Why a packet cannot be cut into segments.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NotSegmentable {
    /// No Ethernet header with at most two tags, or no PPPoE session header with a PPP protocol of IP behind it.
    LinkLayer,
    /// No IPv4 or IPv6 header, or a fragment.
    Ip,
    /// IPv6 extension headers other than hop-by-hop and destination options, or more than [`MAX_EXTENSIONS`].
    Extension,
    /// Neither TCP nor UDP.
    Protocol,
    /// The TCP or UDP header is not all there.
    Transport,
    /// There is no payload.
    NoPayload,
    /// The segment size is 0.
    NoSegmentSize,
    /// A segment would not fit the length fields of its headers.
    SegmentTooLong,
}

/// Where the headers of a TCP or UDP packet lie in its frame: plain Ethernet or PPPoE, with up to two tags.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Layout {
    l3: u16,
    l4: u16,
    len: u16,
    is_session: bool,
    is_ipv6: bool,
    is_tcp: bool,
}

/// A segment's place in its packet.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Place {
    /// Segments before it.
    pub(crate) index: usize,
    /// Payload bytes before it.
    pub(crate) offset: usize,
    /// Its payload bytes.
    pub(crate) payload: usize,
    pub(crate) is_last: bool,
}

impl Layout {
    /// The headers at the start of a frame. Of their fields, those that say where the next header is are believed; those
    /// that say how long the packet is are not read (H2).
    ///
    /// # Errors
    /// [`NotSegmentable`].
    pub fn of(frame: &[u8]) -> Result<Self, NotSegmentable> {
        let (link, rest) = ethernet::split(frame).map_err(|_| NotSegmentable::LinkLayer)?;
        let (l3, is_ipv6, is_session) = match link.ethertype {
            ethertype::IPV4 => (link.payload, false, false),
            ethertype::IPV6 => (link.payload, true, false),
            ethertype::PPPOE_SESSION => {
                let is_ipv6 = session_ip(rest).ok_or(NotSegmentable::LinkLayer)?;
                (link.payload + PPPOE_LEN + PPP_LEN, is_ipv6, true)
            }
            _ => return Err(NotSegmentable::LinkLayer),
        };
        let packet = frame.get(l3..).ok_or(NotSegmentable::LinkLayer)?;
        let (l4, protocol) = if is_ipv6 {
            upper6(packet)
        } else {
            upper4(packet)
        }?;
        let upper = packet.get(l4..).ok_or(NotSegmentable::Transport)?;
        let transport = match protocol {
            protocol::TCP => TcpHdr::ref_from_prefix(upper)
                .ok()
                .map(|(tcp, _)| tcp.header_len())
                .filter(|len| (TCP_MIN_LEN..=upper.len()).contains(len)),
            protocol::UDP => (upper.len() >= UDP_LEN).then_some(UDP_LEN),
            _ => return Err(NotSegmentable::Protocol),
        };
        let l4_len = transport.ok_or(NotSegmentable::Transport)?;
        // 30 bytes of link layer, at most 40 + 8 * 2,048 of IP and 60 of TCP.
        Ok(Self {
            l3: l3 as u16,
            l4: (l3 + l4) as u16,
            len: (l3 + l4 + l4_len) as u16,
            is_session,
            is_ipv6,
            is_tcp: protocol == protocol::TCP,
        })
    }

    /// Length of all headers, bytes.
    #[must_use]
    pub fn header_len(&self) -> usize {
        usize::from(self.len)
    }

    /// Offset of the IP header.
    #[must_use]
    pub fn l3(&self) -> usize {
        usize::from(self.l3)
    }

    /// Offset of the TCP or UDP header.
    #[must_use]
    pub fn l4(&self) -> usize {
        usize::from(self.l4)
    }

    /// TCP, else UDP.
    #[must_use]
    pub fn is_tcp(&self) -> bool {
        self.is_tcp
    }

    /// IPv6, else IPv4.
    #[must_use]
    pub fn is_ipv6(&self) -> bool {
        self.is_ipv6
    }

    /// In a PPPoE session.
    #[must_use]
    pub fn is_session(&self) -> bool {
        self.is_session
    }

    /// Offset of the TCP or UDP checksum from the TCP or UDP header.
    #[must_use]
    pub fn checksum_offset(&self) -> usize {
        if self.is_tcp { 16 } else { 6 }
    }

    /// Whether a packet with so much payload fits all of its length fields (M9).
    pub(crate) fn fits(&self, payload: usize) -> bool {
        let ip = self.header_len() - self.l3() + payload;
        let counted = if self.is_ipv6 { ip - IPV6_LEN } else { ip };
        let in_session = !self.is_session || ip + PPP_LEN <= usize::from(u16::MAX);
        counted <= usize::from(u16::MAX) && in_session
    }

    /// Writes the length fields for so much payload (S1), and the IPv4 identification and header checksum.
    pub(crate) fn write_lengths(&self, head: &mut [u8], payload: usize, id_step: u16) {
        // All of them fit: see `fits`.
        let ip = self.header_len() - self.l3() + payload;
        if self.is_session
            && let Some(pppoe) = view_mut::<PppoeHdr>(head, self.l3() - PPPOE_LEN - PPP_LEN)
        {
            pppoe.length = U16::new((PPP_LEN + ip) as u16);
        }
        if self.is_ipv6 {
            if let Some(header) = view_mut::<Ipv6Hdr>(head, self.l3()) {
                header.payload_len = U16::new((ip - IPV6_LEN) as u16);
            }
        } else if let Some(header) = view_mut::<Ipv4Hdr>(head, self.l3()) {
            header.total_len = U16::new(ip as u16);
            header.id = U16::new(header.id.get().wrapping_add(id_step));
            header.checksum = U16::ZERO;
            let whole = head.get(self.l3()..self.l4()).unwrap_or(&[]);
            let check = checksum(whole);
            if let Some(header) = view_mut::<Ipv4Hdr>(head, self.l3()) {
                header.checksum = U16::new(check);
            }
        }
        if !self.is_tcp
            && let Some(udp) = view_mut::<UdpHdr>(head, self.l4())
        {
            udp.length = U16::new((UDP_LEN + payload) as u16);
        }
    }

    /// Makes the headers of the packet those of one segment, all but the TCP or UDP checksum.
    pub(crate) fn write_segment(&self, head: &mut [u8], place: &Place, how: &How) {
        let id_step = match how.ids {
            Ids::Fixed => 0,
            Ids::Rising => place.index as u16,
        };
        self.write_lengths(head, place.payload, id_step);
        if !self.is_tcp {
            return;
        }
        let Some(tcp) = view_mut::<TcpHdr>(head, self.l4()) else {
            return;
        };
        tcp.seq.set(tcp.seq.get().wrapping_add(place.offset as u32));
        let mut flags = tcp.offset_flags.get();
        // S3.
        if !place.is_last {
            flags &= !(FIN | PSH);
        }
        if how.cwr == Cwr::First && place.index > 0 {
            flags &= !CWR;
        }
        tcp.offset_flags.set(flags);
    }

    /// Writes the TCP or UDP checksum of a whole frame (S5).
    pub(crate) fn write_l4_checksum(&self, frame: &mut [u8]) {
        self.set_l4_checksum(frame, 0);
        let protocol = if self.is_tcp {
            protocol::TCP
        } else {
            protocol::UDP
        };
        let segment = frame.get(self.l4()..).unwrap_or(&[]);
        let check = if self.is_ipv6 {
            let header = view::<Ipv6Hdr>(frame, self.l3());
            header.map(|ip| l4_checksum_ipv6(ip.src.into(), ip.dst.into(), protocol, segment))
        } else {
            let header = view::<Ipv4Hdr>(frame, self.l3());
            header.map(|ip| l4_checksum(ip.src.get(), ip.dst.get(), protocol, segment))
        };
        let check = match check.unwrap_or(0) {
            0 if !self.is_tcp => 0xffff,
            check => check,
        };
        self.set_l4_checksum(frame, check);
    }

    /// Sets the TCP or UDP checksum field.
    pub(crate) fn set_l4_checksum(&self, head: &mut [u8], check: u16) {
        let at = self.l4() + self.checksum_offset();
        if let Some(field) = head.get_mut(at..at + 2) {
            field.copy_from_slice(&check.to_be_bytes());
        }
    }

    /// The TCP or UDP checksum field.
    pub(crate) fn l4_checksum(&self, head: &[u8]) -> u16 {
        let at = self.l4() + self.checksum_offset();
        let field = head.get(at..).and_then(<[u8]>::first_chunk);
        field.map_or(0, |field| u16::from_be_bytes(*field))
    }
}

/// A header of the frame, to read.
pub(crate) fn view<
    T: FromBytes + zerocopy::KnownLayout + zerocopy::Immutable + zerocopy::Unaligned,
>(
    frame: &[u8],
    at: usize,
) -> Option<&T> {
    let (header, _) = T::ref_from_prefix(frame.get(at..)?).ok()?;
    Some(header)
}

/// A header of the frame, to change.
pub(crate) fn view_mut<
    T: FromBytes + zerocopy::IntoBytes + zerocopy::KnownLayout + zerocopy::Unaligned,
>(
    frame: &mut [u8],
    at: usize,
) -> Option<&mut T> {
    let (header, _) = T::mut_from_prefix(frame.get_mut(at..)?).ok()?;
    Some(header)
}

/// Whether a PPPoE session frame carries IPv6, else IPv4; `None` if neither.
fn session_ip(bytes: &[u8]) -> Option<bool> {
    let (header, rest) = PppoeHdr::ref_from_prefix(bytes).ok()?;
    if (header.version_type, header.code) != (VERSION_TYPE, code::SESSION) {
        return None;
    }
    match u16::from_be_bytes(*rest.first_chunk()?) {
        pppoe::protocol::IPV4 => Some(false),
        pppoe::protocol::IPV6 => Some(true),
        _ => None,
    }
}

/// Offset and protocol of what follows an IPv4 header; options are in every segment.
fn upper4(packet: &[u8]) -> Result<(usize, u8), NotSegmentable> {
    let (header, _) = Ipv4Hdr::ref_from_prefix(packet).map_err(|_| NotSegmentable::Ip)?;
    let len = header.header_len();
    let is_fragment = header.frag.get() & (FLAG_MF | OFFSET_MASK) != 0;
    if header.version() != 4 || len < IPV4_MIN_LEN || is_fragment {
        return Err(NotSegmentable::Ip);
    }
    Ok((len, header.protocol))
}

/// The same of an IPv6 header. A routing header is not looked through: the pseudo header then has another destination
/// (RFC 8200 section 8.1).
fn upper6(packet: &[u8]) -> Result<(usize, u8), NotSegmentable> {
    let (header, _) = Ipv6Hdr::ref_from_prefix(packet).map_err(|_| NotSegmentable::Ip)?;
    if header.version() != 6 {
        return Err(NotSegmentable::Ip);
    }
    let (mut at, mut protocol) = (IPV6_LEN, header.next_header);
    for _ in 0..=MAX_EXTENSIONS {
        match protocol {
            next_header::HOP_BY_HOP | next_header::DESTINATION_OPTIONS => {}
            next_header::ROUTING | next_header::FRAGMENT | next_header::AUTHENTICATION => break,
            _ => return Ok((at, protocol)),
        }
        let head: &[u8; 2] = packet
            .get(at..)
            .and_then(<[u8]>::first_chunk)
            .ok_or(NotSegmentable::Extension)?;
        protocol = head[0];
        at += 8 + usize::from(head[1]) * 8;
    }
    Err(NotSegmentable::Extension)
}
