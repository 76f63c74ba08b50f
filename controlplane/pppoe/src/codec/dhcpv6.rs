//! DHCPv6 between a client and a server on one link (RFC 8415), in UDP (RFC 768, RFC 8200 section 8.1).
//!
//! Own code, since the crates there are (dhcproto) need `std` and turn each option into a value of its own, while a server for
//! one subscriber looks at eight options and must not allocate for what it ignores. No function here can panic.

use alloc::vec::Vec;
use core::net::Ipv6Addr;

use bng_wire::checksum::l4_checksum_ipv6;
use bng_wire::ipv4::protocol::UDP;

use super::ipv6::Packet;
use crate::DropReason;

/// All_DHCP_Relay_Agents_and_Servers (RFC 8415 section 7.1).
pub const ALL_SERVERS: Ipv6Addr = Ipv6Addr::new(0xff02, 0, 0, 0, 0, 0, 1, 2);
/// UDP port of clients (RFC 8415 section 7.2).
pub const CLIENT_PORT: u16 = 546;
/// UDP port of servers (RFC 8415 section 7.2).
pub const SERVER_PORT: u16 = 547;

/// Bytes of a UDP header.
const UDP_LEN: usize = 8;
/// Length of a DUID, its type included, in bytes (RFC 8415 section 11.1).
const DUID_LEN: core::ops::RangeInclusive<usize> = 3..=130;

/// Message types (RFC 8415 section 7.3).
pub mod kind {
    /// A client looks for servers.
    pub const SOLICIT: u8 = 1;
    /// A server offers.
    pub const ADVERTISE: u8 = 2;
    /// A client takes an offer.
    pub const REQUEST: u8 = 3;
    /// A client asks whether its addresses still fit the link.
    pub const CONFIRM: u8 = 4;
    /// A client extends what this server gave.
    pub const RENEW: u8 = 5;
    /// A client extends what any server gave.
    pub const REBIND: u8 = 6;
    /// A server answers.
    pub const REPLY: u8 = 7;
    /// A client gives back.
    pub const RELEASE: u8 = 8;
    /// A client has found its address in use.
    pub const DECLINE: u8 = 9;
    /// A client asks for everything but addresses.
    pub const INFORMATION_REQUEST: u8 = 11;
    /// A relay agent passes on a client's message.
    pub const RELAY_FORWARD: u8 = 12;
    /// A server's answer to a relay agent.
    pub const RELAY_REPLY: u8 = 13;
}

/// Option codes (RFC 8415 section 21, RFC 3646).
pub mod option {
    /// Client Identifier.
    pub const CLIENT_ID: u16 = 1;
    /// Server Identifier.
    pub const SERVER_ID: u16 = 2;
    /// Identity association for non-temporary addresses.
    pub const IA_NA: u16 = 3;
    /// Identity association for temporary addresses.
    pub const IA_TA: u16 = 4;
    /// Address, inside [`IA_NA`] and [`IA_TA`].
    pub const IA_ADDRESS: u16 = 5;
    /// Option Request: codes of options the client would like to have.
    pub const OPTION_REQUEST: u16 = 6;
    /// Preference of a server.
    pub const PREFERENCE: u16 = 7;
    /// Status Code.
    pub const STATUS_CODE: u16 = 13;
    /// Rapid Commit.
    pub const RAPID_COMMIT: u16 = 14;
    /// DNS servers (RFC 3646 section 3).
    pub const DNS_SERVERS: u16 = 23;
    /// Identity association for prefix delegation.
    pub const IA_PD: u16 = 25;
    /// Prefix, inside [`IA_PD`].
    pub const IA_PREFIX: u16 = 26;
}

/// Status codes (RFC 8415 section 21.13).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u16)]
pub enum Status {
    /// Done.
    Success = 0,
    /// There is no address for this identity association.
    NoAddrsAvail = 2,
    /// There is nothing to extend or to give back.
    NoBinding = 3,
    /// The address is of another link.
    NotOnLink = 4,
    /// The message came to our own address; it is to go to [`ALL_SERVERS`].
    UseMulticast = 5,
    /// There is no prefix for this identity association.
    NoPrefixAvail = 6,
}

/// A list of options, every header of it checked.
///
/// ```text
///  0                   1                   2                   3
///  0 1 2 3 4 5 6 7 8 9 0 1 2 3 4 5 6 7 8 9 0 1 2 3 4 5 6 7 8 9 0 1
/// +-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+
/// |          option-code          |           option-len          |
/// +-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+
/// |    option-data (option-len bytes)                             ~
/// +-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Options<'a> {
    bytes: &'a [u8],
}

/// Code and data of the first option, and what follows it; `Ok(None)` at the end of the bytes.
#[expect(
    clippy::type_complexity,
    reason = "an option and the rest, seen nowhere else"
)]
fn split(bytes: &[u8]) -> Result<Option<((u16, &[u8]), &[u8])>, DropReason> {
    match *bytes {
        [] => Ok(None),
        [c0, c1, l0, l1, ref rest @ ..] => {
            let (data, rest) = rest
                .split_at_checked(usize::from(u16::from_be_bytes([l0, l1])))
                .ok_or(DropReason::Dhcpv6Option)?;
            Ok(Some(((u16::from_be_bytes([c0, c1]), data), rest)))
        }
        _ => Err(DropReason::Dhcpv6Option),
    }
}

impl<'a> Options<'a> {
    /// Checks that every option ends within `bytes`.
    ///
    /// # Errors
    /// [`DropReason::Dhcpv6Option`].
    pub fn parse(bytes: &'a [u8]) -> Result<Self, DropReason> {
        let mut rest = bytes;
        while let Some((_, after)) = split(rest)? {
            rest = after;
        }
        Ok(Self { bytes })
    }

    /// Codes and data in order.
    pub fn iter(&self) -> impl Iterator<Item = (u16, &'a [u8])> + use<'a> {
        let mut rest = self.bytes;
        core::iter::from_fn(move || {
            let (option, after) = split(rest).ok()??;
            rest = after;
            Some(option)
        })
    }

    /// The data of the first option with this code.
    #[must_use]
    pub fn find(&self, code: u16) -> Option<&'a [u8]> {
        self.iter().find(|(c, _)| *c == code).map(|(_, data)| data)
    }

    /// The data of an option of which there may be one.
    fn single(&self, code: u16) -> Result<Option<&'a [u8]>, DropReason> {
        let mut all = self.iter().filter(|(c, _)| *c == code);
        match (all.next(), all.next()) {
            (first, None) => Ok(first.map(|(_, data)| data)),
            (_, Some(_)) => Err(DropReason::Dhcpv6Option),
        }
    }

    /// The client or server identifier.
    fn duid(&self, code: u16) -> Result<Option<&'a [u8]>, DropReason> {
        match self.single(code)? {
            Some(duid) if !DUID_LEN.contains(&duid.len()) => Err(DropReason::Dhcpv6Option),
            duid => Ok(duid),
        }
    }
}

/// What an identity association is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum IaKind {
    /// Non-temporary addresses (IA_NA).
    Address,
    /// Temporary addresses (IA_TA).
    Temporary,
    /// Prefix delegation (IA_PD).
    Prefix,
}

impl IaKind {
    const fn of(code: u16) -> Option<Self> {
        match code {
            option::IA_NA => Some(Self::Address),
            option::IA_TA => Some(Self::Temporary),
            option::IA_PD => Some(Self::Prefix),
            _ => None,
        }
    }

    const fn code(self) -> u16 {
        match self {
            Self::Address => option::IA_NA,
            Self::Temporary => option::IA_TA,
            Self::Prefix => option::IA_PD,
        }
    }

    /// Whether addresses are in it, not prefixes.
    #[must_use]
    pub const fn has_addresses(self) -> bool {
        matches!(self, Self::Address | Self::Temporary)
    }
}

/// What a server gives.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Lease {
    /// An address.
    Address(Ipv6Addr),
    /// A prefix and its length, 0 to 128.
    Prefix(Ipv6Addr, u8),
}

impl Lease {
    /// Whether it can be in an identity association of this kind.
    #[must_use]
    pub const fn fits(self, kind: IaKind) -> bool {
        matches!(self, Self::Address(_)) == kind.has_addresses()
    }

    /// The address, or the prefix without its length. All zero when a client only hints at what it would like.
    #[must_use]
    pub const fn address(self) -> Ipv6Addr {
        match self {
            Self::Address(address) | Self::Prefix(address, _) => address,
        }
    }
}

/// A lease and how long it holds (RFC 8415 sections 21.6 and 21.22).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Leased {
    /// What is given.
    pub lease: Lease,
    /// Preferred lifetime, in seconds.
    pub preferred: u32,
    /// Valid lifetime, in seconds; 0: not any more.
    pub valid: u32,
}

fn dword(bytes: &[u8], at: usize) -> Option<u32> {
    let bytes = bytes.get(at..)?.first_chunk()?;
    Some(u32::from_be_bytes(*bytes))
}

fn address(bytes: &[u8], at: usize) -> Option<Ipv6Addr> {
    let octets = bytes.get(at..)?.first_chunk::<16>()?;
    Some(Ipv6Addr::from_octets(*octets))
}

impl Leased {
    /// Reads an address or prefix option; `Ok(None)` for other options.
    fn read(code: u16, data: &[u8]) -> Result<Option<Self>, DropReason> {
        match code {
            option::IA_ADDRESS => Self::read_address(data),
            option::IA_PREFIX => Self::read_prefix(data),
            _ => return Ok(None),
        }
        .ok_or(DropReason::Dhcpv6Option)
        .map(Some)
    }

    /// Address (16), preferred (4) and valid lifetime (4), options.
    fn read_address(data: &[u8]) -> Option<Self> {
        Options::parse(data.get(24..)?).ok()?;
        Some(Self {
            lease: Lease::Address(address(data, 0)?),
            preferred: dword(data, 16)?,
            valid: dword(data, 20)?,
        })
    }

    /// Preferred (4) and valid lifetime (4), prefix length (1), prefix (16), options.
    fn read_prefix(data: &[u8]) -> Option<Self> {
        Options::parse(data.get(25..)?).ok()?;
        let length = data.get(8).copied().filter(|length| *length <= 128)?;
        Some(Self {
            lease: Lease::Prefix(address(data, 9)?, length),
            preferred: dword(data, 0)?,
            valid: dword(data, 4)?,
        })
    }
}

/// An identity association.
///
/// ```text
///  0                   1                   2                   3
///  0 1 2 3 4 5 6 7 8 9 0 1 2 3 4 5 6 7 8 9 0 1 2 3 4 5 6 7 8 9 0 1
/// +-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+
/// |    OPTION_IA_NA or OPTION_IA_PD      |          option-len    |
/// +-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+
/// |                        IAID (4 octets)                        |
/// +-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+
/// |                              T1                               |
/// +-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+
/// |                              T2                               |
/// +-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+
/// |                         options                               ~
/// +-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+
/// ```
///
/// OPTION_IA_TA is the same without T1 and T2.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ia<'a> {
    /// What it is for.
    pub kind: IaKind,
    /// Its identifier, chosen by the client.
    pub id: u32,
    /// When to renew, and when to rebind, in seconds; 0 leaves it to the client, as temporary addresses always do.
    pub times: (u32, u32),
    /// The options in it.
    pub options: Options<'a>,
}

impl<'a> Ia<'a> {
    fn read(kind: IaKind, data: &'a [u8]) -> Result<Self, DropReason> {
        let at = |at| dword(data, at).ok_or(DropReason::Dhcpv6Option);
        let (times, head) = match kind {
            IaKind::Temporary => ((0, 0), 4),
            IaKind::Address | IaKind::Prefix => ((at(4)?, at(8)?), 12),
        };
        let options = data.get(head..).ok_or(DropReason::Dhcpv6Option)?;
        Ok(Self {
            kind,
            id: at(0)?,
            times,
            options: Options::parse(options)?,
        })
    }

    /// The addresses or prefixes in it.
    pub fn leases(&self) -> impl Iterator<Item = Leased> + use<'a> {
        let kind = self.kind;
        self.options
            .iter()
            .filter_map(|(code, data)| Leased::read(code, data).ok()?)
            .filter(move |it| it.lease.fits(kind))
    }
}

/// A message between client and server.
///
/// ```text
///  0                   1                   2                   3
///  0 1 2 3 4 5 6 7 8 9 0 1 2 3 4 5 6 7 8 9 0 1 2 3 4 5 6 7 8 9 0 1
/// +-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+
/// |    msg-type   |               transaction-id                  |
/// +-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+
/// |                            options                            ~
/// +-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Message<'a> {
    /// Type, see [`kind`]; may be unknown.
    pub kind: u8,
    /// Matches a reply to its request.
    pub transaction: [u8; 3],
    /// DUID of the client.
    pub client: Option<&'a [u8]>,
    /// DUID of the server.
    pub server: Option<&'a [u8]>,
    /// All options.
    pub options: Options<'a>,
}

impl<'a> Message<'a> {
    /// Parses the payload of a UDP datagram. Options that no function here reads are not looked into.
    ///
    /// # Errors
    /// [`DropReason::Dhcpv6Truncated`]; [`DropReason::Dhcpv6Relay`] for relay agents' messages, whose header is another;
    /// [`DropReason::Dhcpv6Option`].
    pub fn parse(payload: &'a [u8]) -> Result<Self, DropReason> {
        let (&[kind, ref transaction @ ..], options) = payload
            .split_first_chunk::<4>()
            .ok_or(DropReason::Dhcpv6Truncated)?;
        if matches!(kind, kind::RELAY_FORWARD | kind::RELAY_REPLY) {
            return Err(DropReason::Dhcpv6Relay);
        }
        let options = Options::parse(options)?;
        let message = Self {
            kind,
            transaction: *transaction,
            client: options.duid(option::CLIENT_ID)?,
            server: options.duid(option::SERVER_ID)?,
            options,
        };
        message.check()?;
        Ok(message)
    }

    /// The options that are read later.
    fn check(&self) -> Result<(), DropReason> {
        for (code, data) in self.options.iter() {
            if let Some(kind) = IaKind::of(code) {
                for (code, data) in Ia::read(kind, data)?.options.iter() {
                    Leased::read(code, data)?;
                }
            } else if code == option::OPTION_REQUEST && data.len() % 2 != 0
                || code == option::RAPID_COMMIT && !data.is_empty()
            {
                return Err(DropReason::Dhcpv6Option);
            }
        }
        Ok(())
    }

    /// The identity associations in order.
    pub fn ias(&self) -> impl Iterator<Item = Ia<'a>> + use<'a> {
        self.options
            .iter()
            .filter_map(|(code, data)| Ia::read(IaKind::of(code)?, data).ok())
    }

    /// Whether the client would like to have option `code`.
    #[must_use]
    pub fn asks_for(&self, code: u16) -> bool {
        let mut lists = self
            .options
            .iter()
            .filter(|(c, _)| *c == option::OPTION_REQUEST);
        lists.any(|(_, list)| list.as_chunks::<2>().0.contains(&code.to_be_bytes()))
    }
}

/// Builds a message, option by option. Data past 65,535 bytes is cut off.
#[derive(Clone, Debug)]
pub struct Writer(Vec<u8>);

impl Writer {
    /// A message without options.
    #[must_use]
    pub fn new(kind: u8, transaction: [u8; 3]) -> Self {
        let [a, b, c] = transaction;
        Self([kind, a, b, c].to_vec())
    }

    /// Appends an option.
    pub fn put(&mut self, code: u16, data: &[u8]) {
        let data = data.get(..usize::from(u16::MAX)).unwrap_or(data);
        self.nest(code, |out| out.0.extend_from_slice(data));
    }

    /// Appends an option with what `fill` appends as its data.
    fn nest(&mut self, code: u16, fill: impl FnOnce(&mut Self)) {
        self.0.extend_from_slice(&code.to_be_bytes());
        self.0.extend_from_slice(&[0, 0]);
        let begin = self.0.len();
        fill(self);
        let most = begin + usize::from(u16::MAX);
        self.0.truncate(most);
        // Cannot saturate: it was just cut to fit.
        let length = u16::try_from(self.0.len() - begin).unwrap_or(u16::MAX);
        if let Some(field) = self.0.get_mut(begin - 2..begin) {
            field.copy_from_slice(&length.to_be_bytes());
        }
    }

    /// Appends an identity association; `fill` appends the options in it. `times` is T1 and T2, in seconds, and is left out
    /// where the kind has none.
    pub fn put_ia(
        &mut self,
        kind: IaKind,
        id: u32,
        times: (u32, u32),
        fill: impl FnOnce(&mut Self),
    ) {
        self.nest(kind.code(), |out| {
            out.0.extend_from_slice(&id.to_be_bytes());
            if kind != IaKind::Temporary {
                out.0.extend_from_slice(&times.0.to_be_bytes());
                out.0.extend_from_slice(&times.1.to_be_bytes());
            }
            fill(out);
        });
    }

    /// Appends an address or a prefix to an identity association.
    pub fn put_lease(&mut self, leased: &Leased) {
        let lifetimes = [leased.preferred, leased.valid].map(u32::to_be_bytes);
        let lifetimes = lifetimes.as_flattened();
        match leased.lease {
            Lease::Address(address) => self.nest(option::IA_ADDRESS, |out| {
                out.0.extend_from_slice(&address.octets());
                out.0.extend_from_slice(lifetimes);
            }),
            Lease::Prefix(prefix, length) => self.nest(option::IA_PREFIX, |out| {
                out.0.extend_from_slice(lifetimes);
                out.0.push(length);
                out.0.extend_from_slice(&prefix.octets());
            }),
        }
    }

    /// Appends a status code without a text.
    pub fn put_status(&mut self, status: Status) {
        self.put(option::STATUS_CODE, &(status as u16).to_be_bytes());
    }

    /// The message.
    #[must_use]
    pub fn finish(self) -> Vec<u8> {
        self.0
    }
}

/// The payload of a UDP datagram to [`SERVER_PORT`]; `Ok(None)` for other packets.
///
/// # Errors
/// [`DropReason::UdpLength`] or [`DropReason::UdpChecksum`].
pub fn to_server<'a>(packet: &Packet<'a>) -> Result<Option<&'a [u8]>, DropReason> {
    if packet.next_header != UDP {
        return Ok(None);
    }
    // Source port (2), destination port (2), length (2), checksum (2). A client may send from any port.
    let &[_, _, d0, d1, l0, l1, c0, c1] = packet
        .body
        .first_chunk::<UDP_LEN>()
        .ok_or(DropReason::UdpLength)?;
    if u16::from_be_bytes([d0, d1]) != SERVER_PORT {
        return Ok(None);
    }
    let datagram = packet
        .body
        .get(..usize::from(u16::from_be_bytes([l0, l1])))
        .ok_or(DropReason::UdpLength)?;
    let payload = datagram.get(UDP_LEN..).ok_or(DropReason::UdpLength)?;
    let sum = l4_checksum_ipv6(packet.source, packet.destination, UDP, datagram);
    // Without a checksum it is to be discarded (RFC 8200 section 8.1).
    if sum != 0 || [c0, c1] == [0, 0] {
        return Err(DropReason::UdpChecksum);
    }
    Ok(Some(payload))
}

/// Builds the IPv6 packet of a message; `ports` are source and destination.
#[must_use]
pub fn datagram(
    source: Ipv6Addr,
    destination: Ipv6Addr,
    ports: (u16, u16),
    message: &[u8],
) -> Vec<u8> {
    let message = message
        .get(..usize::from(u16::MAX) - UDP_LEN)
        .unwrap_or(message);
    // Cannot saturate: the message was just cut to fit.
    let length = u16::try_from(UDP_LEN + message.len()).unwrap_or(u16::MAX);
    let mut body = Vec::with_capacity(UDP_LEN + message.len());
    for word in [ports.0, ports.1, length, 0] {
        body.extend_from_slice(&word.to_be_bytes());
    }
    body.extend_from_slice(message);
    let sum = match l4_checksum_ipv6(source, destination, UDP, &body) {
        0 => u16::MAX,
        sum => sum,
    };
    if let Some(field) = body.get_mut(6..UDP_LEN) {
        field.copy_from_slice(&sum.to_be_bytes());
    }
    let packet = Packet {
        source,
        destination,
        next_header: UDP,
        hop_limit: 64,
        body: &body,
    };
    packet.write()
}
