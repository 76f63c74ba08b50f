//! What a frame is to the coalescer: a candidate (section 4 of the rules) or not, and then what must go out before it (O2).
//!
//! Reading is total: any bytes are a candidate or have a reason why not. Only the frame's own bytes count here; what the
//! stages think of the frame is not known yet.

use bng_shm::Counter;
use bng_wire::checksum::Sum;
use bng_wire::ethernet::{self, ethertype};
use bng_wire::ipv4::{FLAG_DF, FLAG_MF, IPV4_MIN_LEN, OFFSET_MASK, protocol};
use bng_wire::ipv6::IPV6_LEN;
use bng_wire::l4::tcp_flag::{ACK, FIN, PSH, RST, SYN, URG};
use bng_wire::l4::{TCP_MIN_LEN, UDP_LEN};
use bng_wire::pppoe::{self, PPP_LEN, PPPOE_LEN};
use bng_wire::{EthFrame, Ipv4Hdr, Ipv6Hdr, PppoeError, TcpHdr, UdpHdr};
use zerocopy::FromBytes;

use super::extensions::{MAX_EXTENSIONS, extensions};
use super::key::Key;
use crate::buffer::{L4Verdict, PacketBuf};

/// Most bytes of headers a candidate has: Ethernet, two tags, PPPoE, IPv6 with extension headers, TCP with options.
pub(super) const MAX_HEADERS: usize = 22 + 8 + IPV6_LEN + MAX_EXTENSIONS + 60;

/// Runs that go out before a frame that is not merged (O2).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Scope {
    None,
    /// That of the frame's own flow (E4: pure acknowledgements, too).
    Flow,
    /// All between its addresses.
    Addresses,
    /// All of its session.
    Session,
}

/// Why a frame is left alone, and what goes out before it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Pass {
    pub(super) why: Counter,
    pub(super) scope: Scope,
}

pub(super) const fn pass<T>(why: Counter, scope: Scope) -> Result<T, Pass> {
    Err(Pass { why, scope })
}

/// Where the parts of a candidate are, from the start of the frame; all within it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Shape {
    /// The IP header.
    pub(super) l3: u16,
    /// The TCP or UDP header.
    pub(super) l4: u16,
    /// The payload: so long are all headers.
    pub(super) payload: u16,
    pub(super) is_session: bool,
    pub(super) is_ipv6: bool,
    pub(super) is_tcp: bool,
}

/// What differs between the frames of a run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Varying {
    /// Length of the frame, bytes.
    pub(super) len: u32,
    /// Bytes of payload, at least 1.
    pub(super) payload: u16,
    /// IPv4 identification, else 0.
    pub(super) id: u16,
    /// IPv4 header checksum, else 0.
    pub(super) check: u16,
    /// TCP sequence number, else 0.
    pub(super) seq: u32,
    /// TCP flags, else 0.
    pub(super) flags: u8,
}

impl Varying {
    pub(super) const NOTHING: Self = Self {
        len: 0,
        payload: 0,
        id: 0,
        check: 0,
        seq: 0,
        flags: 0,
    };

    /// FIN or PSH: it ends a run and starts none (E1, E2).
    #[inline(always)]
    pub(super) const fn is_last(&self) -> bool {
        self.flags & (FIN | PSH) != 0
    }

    /// FIN alone.
    #[inline(always)]
    pub(super) const fn is_fin(&self) -> bool {
        self.flags & FIN != 0
    }
}

/// A frame that may start or join a run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Candidate {
    pub(super) shape: Shape,
    pub(super) varying: Varying,
}

/// What is coalesced among the frames of a burst.
#[derive(Debug, Clone, Copy)]
pub(super) struct Reader {
    /// Session frames, else plain ones.
    pub(super) sessions: bool,
    pub(super) tcp: bool,
    pub(super) udp: bool,
    pub(super) ipv4: bool,
    pub(super) ipv6: bool,
    /// Whether checksums the port has not verified are.
    pub(super) verify: bool,
}

/// What is known of a packet when its TCP or UDP header is reached.
struct Carrier {
    l3: usize,
    l4: usize,
    protocol: u8,
    /// Nothing but the packet is there, and all of it.
    exact: bool,
    /// The IPv4 flag that must be zero is.
    reserved_is_zero: bool,
    id: u16,
    check: u16,
}

impl Reader {
    /// Looks at a frame. `key` is then as much of its key as the answer needs.
    #[inline]
    pub(super) fn read<B: PacketBuf>(&self, buf: &B, key: &mut Key) -> Result<Candidate, Pass> {
        let data = buf.data();
        let not_ip = Pass {
            why: Counter::PassNotIp,
            scope: Scope::None,
        };
        // C1.
        if !buf.is_contiguous() {
            return Err(not_ip);
        }
        let (link, rest) = ethernet::split(data).map_err(|_| not_ip)?;
        let version = match link.ethertype {
            ethertype::PPPOE_SESSION if self.sessions => {
                return self.session(buf, &link, rest, key);
            }
            ethertype::PPPOE_DISCOVERY if self.sessions => {
                return discovery(buf.port(), &link, rest, key);
            }
            ethertype::IPV4 if !self.sessions => 4,
            ethertype::IPV6 if !self.sessions => 6,
            _ => return Err(not_ip),
        };
        if link.dst.is_group() {
            return Err(not_ip);
        }
        *key = Key::new(buf.port(), &link, None);
        self.packet(buf, version, link.payload, data, key)
    }

    /// A session frame (C4 to C7), whose PPPoE header is where `rest` begins.
    #[inline]
    fn session<B: PacketBuf>(
        &self,
        buf: &B,
        link: &EthFrame,
        rest: &[u8],
        key: &mut Key,
    ) -> Result<Candidate, Pass> {
        let ppp = match pppoe::parse_session(rest) {
            Ok(ppp) if !link.dst.is_group() => ppp,
            Err(
                PppoeError::LengthBeyondFrame { .. }
                | PppoeError::LengthZero
                | PppoeError::LengthOne,
            ) => return pass(Counter::PassLength, Scope::None),
            _ => return pass(Counter::PassNotIp, Scope::None),
        };
        *key = Key::new(buf.port(), link, Some(ppp.session_id));
        let version = match ppp.protocol {
            pppoe::protocol::IPV4 => 4,
            pppoe::protocol::IPV6 => 6,
            _ => return pass(Counter::PassControl, Scope::Session),
        };
        let l3 = link.payload + PPPOE_LEN + PPP_LEN;
        let data = buf.data();
        let present = data.get(..l3 + ppp.payload.len()).unwrap_or(data);
        self.packet(buf, version, l3, present, key)
    }

    /// An IP packet at `l3`. `present` is the frame up to where the layer below says that the packet ends.
    #[inline]
    fn packet<B: PacketBuf>(
        &self,
        buf: &B,
        version: u8,
        l3: usize,
        present: &[u8],
        key: &mut Key,
    ) -> Result<Candidate, Pass> {
        let exact = present.len() == buf.data().len();
        let bytes = present.get(l3..).unwrap_or(&[]);
        if version == 4 {
            if !self.ipv4 {
                return pass(Counter::PassPort, Scope::None);
            }
            self.ipv4(buf, l3, bytes, exact, key)
        } else {
            if !self.ipv6 {
                return pass(Counter::PassPort, Scope::None);
            }
            self.ipv6(buf, l3, bytes, exact, key)
        }
    }

    /// C8 to C11.
    #[inline]
    fn ipv4<B: PacketBuf>(
        &self,
        buf: &B,
        l3: usize,
        bytes: &[u8],
        exact: bool,
        key: &mut Key,
    ) -> Result<Candidate, Pass> {
        let Ok((ip, _)) = Ipv4Hdr::ref_from_prefix(bytes) else {
            return pass(Counter::PassLength, Scope::None);
        };
        let header_len = ip.header_len();
        if ip.version() != 4 || header_len < IPV4_MIN_LEN {
            return pass(Counter::PassNotIp, Scope::None);
        }
        key.set_ipv4(ip.src.get(), ip.dst.get());
        // A checksum is in standard form unless it is all ones: recomputing never gives that.
        if header_len != IPV4_MIN_LEN || !ip.checksum_is_right() || ip.checksum.get() == u16::MAX {
            return pass(Counter::PassIpHeader, Scope::Addresses);
        }
        let frag = ip.frag.get();
        if frag & (FLAG_MF | OFFSET_MASK) != 0 {
            return pass(Counter::PassFragment, Scope::Addresses);
        }
        let total = usize::from(ip.total_len.get());
        let carrier = Carrier {
            l3,
            l4: l3 + IPV4_MIN_LEN,
            protocol: ip.protocol,
            exact: exact && total == bytes.len(),
            reserved_is_zero: frag & !FLAG_DF == 0,
            id: ip.id.get(),
            check: ip.checksum.get(),
        };
        let l4 = bytes.get(IPV4_MIN_LEN..total.min(bytes.len()));
        self.upper(buf, &carrier, l4.unwrap_or(&[]), key)
    }

    /// C12 and C13.
    #[inline]
    fn ipv6<B: PacketBuf>(
        &self,
        buf: &B,
        l3: usize,
        bytes: &[u8],
        exact: bool,
        key: &mut Key,
    ) -> Result<Candidate, Pass> {
        let Ok((ip, rest)) = Ipv6Hdr::ref_from_prefix(bytes) else {
            return pass(Counter::PassLength, Scope::None);
        };
        if ip.version() != 6 {
            return pass(Counter::PassNotIp, Scope::None);
        }
        key.set_ipv6(&ip.src, &ip.dst);
        let length = usize::from(ip.payload_len.get());
        let payload = rest.get(..length).unwrap_or(rest);
        let (protocol, at) = extensions(ip.next_header, payload)?;
        let carrier = Carrier {
            l3,
            l4: l3 + IPV6_LEN + at,
            protocol,
            exact: exact && length == rest.len(),
            reserved_is_zero: true,
            id: 0,
            check: 0,
        };
        self.upper(buf, &carrier, payload.get(at..).unwrap_or(&[]), key)
    }

    /// TCP or UDP (C2, C3, C14 to C16). `l4` is the packet from there on, as far as it is there.
    #[inline]
    fn upper<B: PacketBuf>(
        &self,
        buf: &B,
        carrier: &Carrier,
        l4: &[u8],
        key: &mut Key,
    ) -> Result<Candidate, Pass> {
        let (is_tcp, on) = match carrier.protocol {
            protocol::TCP => (true, self.tcp),
            protocol::UDP => (false, self.udp),
            _ => return pass(Counter::PassProtocol, Scope::None),
        };
        if !on {
            return pass(Counter::PassPort, Scope::None);
        }
        let Some(ports) = l4.first_chunk() else {
            return pass(Counter::PassLength, Scope::None);
        };
        key.set_ports(is_tcp, *ports);
        if !carrier.reserved_is_zero {
            return pass(Counter::PassIpHeader, Scope::Flow);
        }
        if !carrier.exact {
            return pass(Counter::PassLength, Scope::Flow);
        }
        let (header_len, seq, flags) =
            if is_tcp { tcp(l4) } else { udp(l4) }.map_err(|why| Pass {
                why,
                scope: Scope::Flow,
            })?;
        let payload = carrier.l4 + header_len;
        // Headers are at most `MAX_HEADERS` long, and an IP packet 65,535 bytes.
        let shape = Shape {
            l3: carrier.l3 as u16,
            l4: carrier.l4 as u16,
            payload: payload as u16,
            is_session: self.sessions,
            is_ipv6: carrier.l4 - carrier.l3 != IPV4_MIN_LEN,
            is_tcp,
        };
        if !self.is_right(buf, &shape) {
            return pass(Counter::PassL4Checksum, Scope::Flow);
        }
        let len = buf.data().len();
        let varying = Varying {
            len: len as u32,
            payload: (len - payload) as u16,
            id: carrier.id,
            check: carrier.check,
            seq,
            flags,
        };
        Ok(Candidate { shape, varying })
    }

    /// Whether the TCP or UDP checksum of a frame of this shape is right, as far as anybody knows (C17).
    #[inline(always)]
    pub(super) fn is_right<B: PacketBuf>(&self, buf: &B, shape: &Shape) -> bool {
        match buf.l4_verdict() {
            L4Verdict::Good => true,
            L4Verdict::Bad => false,
            L4Verdict::Unknown => !self.verify || verified(buf.data(), shape),
        }
    }
}

/// Computes the checksum. Behind a routing header that is not used up it is never right: the destination it covers is another.
#[inline(never)]
fn verified(data: &[u8], shape: &Shape) -> bool {
    let (l3, l4) = (usize::from(shape.l3), usize::from(shape.l4));
    let addresses = match shape.is_ipv6 {
        true => l3 + 8..l3 + IPV6_LEN,
        false => l3 + 12..l3 + IPV4_MIN_LEN,
    };
    let protocol = match shape.is_tcp {
        true => protocol::TCP,
        false => protocol::UDP,
    };
    let (Some(addresses), Some(segment)) = (data.get(addresses), data.get(l4..)) else {
        return false;
    };
    let pseudo = Sum::new().bytes(addresses).word(protocol.into());
    pseudo.dword(segment.len() as u32).bytes(segment).finish() == 0
}

/// Length of the header, sequence number and flags.
#[inline(always)]
fn tcp(l4: &[u8]) -> Result<(usize, u32, u8), Counter> {
    let Ok((tcp, _)) = TcpHdr::ref_from_prefix(l4) else {
        return Err(Counter::PassLength);
    };
    let (header_len, flags) = (tcp.header_len(), tcp.flags());
    if header_len < TCP_MIN_LEN || header_len > l4.len() {
        return Err(Counter::PassLength);
    }
    if flags & (SYN | RST | URG | ACK) != ACK {
        return Err(Counter::PassTcpFlags);
    }
    if header_len == l4.len() {
        return Err(Counter::PassEmpty);
    }
    Ok((header_len, tcp.seq.get(), flags))
}

#[inline(always)]
fn udp(l4: &[u8]) -> Result<(usize, u32, u8), Counter> {
    let Ok((udp, _)) = UdpHdr::ref_from_prefix(l4) else {
        return Err(Counter::PassLength);
    };
    if usize::from(udp.length.get()) != l4.len() {
        return Err(Counter::PassLength);
    }
    if l4.len() == UDP_LEN {
        return Err(Counter::PassEmpty);
    }
    if udp.checksum.get() == 0 {
        return Err(Counter::PassUdpZero);
    }
    Ok((UDP_LEN, 0, 0))
}

/// A discovery frame goes behind the data of the session it names (PADT).
#[cold]
fn discovery(port: u8, link: &EthFrame, rest: &[u8], key: &mut Key) -> Result<Candidate, Pass> {
    let Ok(frame) = pppoe::parse_discovery(rest) else {
        return pass(Counter::PassNotIp, Scope::None);
    };
    *key = Key::new(port, link, Some(frame.session_id));
    let scope = match frame.session_id {
        0 => Scope::None,
        _ => Scope::Session,
    };
    pass(Counter::PassControl, scope)
}
