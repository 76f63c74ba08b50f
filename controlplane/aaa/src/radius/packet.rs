//! RADIUS packets: bytes to attributes and back, and the sums that prove who made them.
//!
//! ```text
//!  0                   1                   2                   3
//!  0 1 2 3 4 5 6 7 8 9 0 1 2 3 4 5 6 7 8 9 0 1 2 3 4 5 6 7 8 9 0 1
//! +-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+
//! |     Code      |  Identifier   |            Length             |
//! +-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+
//! |                  Authenticator (16 octets)                    |
//! +-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+
//! |  Attributes: type, length, value ...
//! +-+-+-+-+-+-+-+-+-+-+-+-+-
//! ```
//!
//! (RFC 2865 section 3.) [`Packet::parse`] is total, and nothing a [`Packet`] offers panics. The codec is our own: the published
//! crates are tied to sockets and a runtime, and here Message-Authenticator has to come first and to be there.

use hmac::{Hmac, KeyInit, Mac};
use md5::{Digest, Md5};
use subtle::ConstantTimeEq;

use super::attribute;

/// Octets before the attributes.
pub const HEADER: usize = 20;
/// Largest packet, octets.
pub const LONGEST: usize = 4_096;
/// Longest value of an attribute, octets.
pub const VALUE_MAX: usize = 253;
/// Longest password that can be hidden, octets (RFC 2865 section 5.2).
pub const PASSWORD_MAX: usize = 128;

/// Packet codes.
pub mod code {
    #![allow(missing_docs)]
    pub const ACCESS_REQUEST: u8 = 1;
    pub const ACCESS_ACCEPT: u8 = 2;
    pub const ACCESS_REJECT: u8 = 3;
    pub const ACCOUNTING_REQUEST: u8 = 4;
    pub const ACCOUNTING_RESPONSE: u8 = 5;
    pub const ACCESS_CHALLENGE: u8 = 11;
    pub const DISCONNECT_REQUEST: u8 = 40;
    pub const DISCONNECT_ACK: u8 = 41;
    pub const DISCONNECT_NAK: u8 = 42;
    pub const COA_REQUEST: u8 = 43;
    pub const COA_ACK: u8 = 44;
    pub const COA_NAK: u8 = 45;
}

/// An authenticator: sixteen octets.
pub type Authenticator = [u8; 16];

/// Why bytes are no packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Malformed {
    /// Shorter than a header.
    Short,
    /// The length field is below 20, above 4,096 or past the datagram.
    Length,
    /// An attribute's length is below 2 or past the packet.
    Attribute,
}

/// A packet in the bytes it came in.
#[derive(Clone, Copy, Debug)]
pub struct Packet<'a> {
    bytes: &'a [u8],
}

impl<'a> Packet<'a> {
    /// Finds the packet in a datagram. Octets past its length are padding.
    ///
    /// # Errors
    /// [`Malformed`].
    pub fn parse(datagram: &'a [u8]) -> Result<Self, Malformed> {
        let header = datagram.get(..HEADER).ok_or(Malformed::Short)?;
        let length = usize::from(u16::from_be_bytes([header[2], header[3]]));
        if !(HEADER..=LONGEST).contains(&length) {
            return Err(Malformed::Length);
        }
        let bytes = datagram.get(..length).ok_or(Malformed::Length)?;
        let packet = Self { bytes };
        let mut attributes = packet.attributes();
        while attributes.next().is_some() {}
        match attributes.rest.is_empty() {
            true => Ok(packet),
            false => Err(Malformed::Attribute),
        }
    }

    /// Its length, octets: at least [`HEADER`].
    #[must_use]
    #[allow(clippy::len_without_is_empty)]
    pub const fn len(&self) -> usize {
        self.bytes.len()
    }

    /// Its code.
    #[must_use]
    pub fn code(&self) -> u8 {
        self.bytes.first().copied().unwrap_or(0)
    }

    /// Its identifier.
    #[must_use]
    pub fn identifier(&self) -> u8 {
        self.bytes.get(1).copied().unwrap_or(0)
    }

    /// Its authenticator.
    #[must_use]
    pub fn authenticator(&self) -> Authenticator {
        let mut out = [0; 16];
        if let Some(from) = self.bytes.get(4..HEADER) {
            out.copy_from_slice(from);
        }
        out
    }

    /// Its attributes, type and value, in order.
    #[must_use]
    pub fn attributes(&self) -> Attributes<'a> {
        Attributes {
            rest: self.bytes.get(HEADER..).unwrap_or(&[]),
        }
    }

    /// The first attribute of a type.
    #[must_use]
    pub fn find(&self, kind: u8) -> Option<&'a [u8]> {
        let mut all = self.attributes();
        all.find(|(it, _)| *it == kind).map(|(_, value)| value)
    }

    /// Whether this is the answer of somebody who knows the secret to the request with this authenticator.
    #[must_use]
    pub fn answers(&self, request: &Authenticator, secret: &[u8]) -> bool {
        self.sum(request, secret)
            .ct_eq(&self.authenticator())
            .into()
    }

    /// Whether this is a request of somebody who knows the secret (RFC 2866 section 3, RFC 5176 section 2.3).
    #[must_use]
    pub fn is_signed(&self, secret: &[u8]) -> bool {
        self.answers(&[0; 16], secret)
    }

    fn sum(&self, authenticator: &Authenticator, secret: &[u8]) -> Authenticator {
        let hash = Md5::new()
            .chain_update(self.bytes.get(..4).unwrap_or(&[]))
            .chain_update(authenticator)
            .chain_update(self.bytes.get(HEADER..).unwrap_or(&[]))
            .chain_update(secret);
        hash.finalize().into()
    }

    /// Whether Message-Authenticator (RFC 3579 section 3.2) is right with this authenticator in the header; `None` when there is
    /// none. Several, or one that is not sixteen octets long, are wrong.
    #[must_use]
    pub fn message_authenticator(
        &self,
        authenticator: &Authenticator,
        secret: &[u8],
    ) -> Option<bool> {
        let mut at = HEADER;
        let mut found = None;
        for (kind, value) in self.attributes() {
            if kind == attribute::MESSAGE_AUTHENTICATOR {
                if found.is_some() || value.len() != 16 {
                    return Some(false);
                }
                found = Some(at + 2);
            }
            at += value.len() + 2;
        }
        let at = found?;
        let mut copy = self.bytes.to_vec();
        copy.get_mut(4..HEADER)?.copy_from_slice(authenticator);
        let place = copy.get_mut(at..at + 16)?;
        let mut given = [0; 16];
        given.copy_from_slice(place);
        place.fill(0);
        Some(keyed(secret, &copy).ct_eq(&given).into())
    }
}

/// The attributes of a packet.
#[derive(Clone, Debug)]
pub struct Attributes<'a> {
    rest: &'a [u8],
}

impl<'a> Attributes<'a> {
    /// The attributes in bytes that are nothing but attributes.
    #[must_use]
    pub const fn of(bytes: &'a [u8]) -> Self {
        Self { rest: bytes }
    }

    /// Whether all octets have been taken: false after the end means that a length was wrong.
    #[must_use]
    pub const fn is_done(&self) -> bool {
        self.rest.is_empty()
    }
}

impl<'a> Iterator for Attributes<'a> {
    type Item = (u8, &'a [u8]);

    fn next(&mut self) -> Option<Self::Item> {
        let [kind, length, ..] = *self.rest else {
            return None;
        };
        let value = self.rest.get(2..usize::from(length))?;
        self.rest = self.rest.get(usize::from(length)..)?;
        Some((kind, value))
    }
}

/// HMAC-MD5 (RFC 2104).
pub(crate) fn keyed(key: &[u8], text: &[u8]) -> Authenticator {
    // HMAC takes keys of any length; the error is for other constructions.
    let Ok(mac) = Hmac::<Md5>::new_from_slice(key) else {
        return [0; 16];
    };
    mac.chain_update(text).finalize().into_bytes().into()
}

/// A value does not fit an attribute, or an attribute the packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TooLong;

/// Attributes that are being written.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct List(Vec<u8>);

impl List {
    /// Adds an attribute.
    ///
    /// # Errors
    /// [`TooLong`]; nothing is added then.
    pub fn bytes(&mut self, kind: u8, value: &[u8]) -> Result<(), TooLong> {
        if value.len() > VALUE_MAX {
            return Err(TooLong);
        }
        // Fits: at most 255.
        self.0.extend([kind, value.len() as u8 + 2]);
        self.0.extend(value);
        Ok(())
    }

    /// Adds an attribute of four octets.
    pub fn number(&mut self, kind: u8, value: u32) {
        self.0.extend([kind, 6]);
        self.0.extend(value.to_be_bytes());
    }

    /// Adds a Vendor-Specific attribute (RFC 2865 section 5.26) with one sub-attribute.
    ///
    /// # Errors
    /// [`TooLong`]; nothing is added then.
    pub fn vendor(&mut self, vendor: u32, kind: u8, value: &[u8]) -> Result<(), TooLong> {
        let mut inner = vendor.to_be_bytes().to_vec();
        inner.extend([kind, u8::try_from(value.len() + 2).map_err(|_| TooLong)?]);
        inner.extend(value);
        self.bytes(attribute::VENDOR_SPECIFIC, &inner)
    }

    /// What has been written.
    #[must_use]
    pub fn as_bytes(&self) -> &[u8] {
        &self.0
    }

    /// What has been written.
    #[must_use]
    pub fn into_bytes(self) -> Vec<u8> {
        self.0
    }
}

/// Hides a password (RFC 2865 section 5.2).
///
/// # Errors
/// [`TooLong`] above [`PASSWORD_MAX`].
pub fn hide(
    password: &[u8],
    authenticator: &Authenticator,
    secret: &[u8],
) -> Result<Vec<u8>, TooLong> {
    if password.len() > PASSWORD_MAX {
        return Err(TooLong);
    }
    let mut out = Vec::with_capacity(PASSWORD_MAX);
    let mut last = *authenticator;
    // An empty password is one block of zeros.
    let blocks = password.len().div_ceil(16).max(1);
    for block in 0..blocks {
        let key = Md5::new()
            .chain_update(secret)
            .chain_update(last)
            .finalize();
        for (at, key) in key.iter().enumerate() {
            let clear = password.get(block * 16 + at).copied().unwrap_or(0);
            last[at] = clear ^ key;
        }
        out.extend(last);
    }
    Ok(out)
}

/// What a CHAP peer answers to a challenge (RFC 1994 section 4.1).
#[must_use]
pub fn chap_response(identifier: u8, secret: &[u8], challenge: &[u8]) -> [u8; 16] {
    let hash = Md5::new()
        .chain_update([identifier])
        .chain_update(secret)
        .chain_update(challenge);
    hash.finalize().into()
}

fn assemble(
    code: u8,
    identifier: u8,
    authenticator: &Authenticator,
    parts: &[&[u8]],
) -> Result<Vec<u8>, TooLong> {
    let length = HEADER + 18 + parts.iter().map(|part| part.len()).sum::<usize>();
    if length > LONGEST {
        return Err(TooLong);
    }
    let mut out = Vec::with_capacity(length);
    out.extend([code, identifier]);
    out.extend((length as u16).to_be_bytes());
    out.extend(authenticator);
    // First of all, so that nothing an attacker chooses comes before it.
    out.extend([attribute::MESSAGE_AUTHENTICATOR, 18]);
    out.extend([0; 16]);
    for part in parts {
        out.extend(*part);
    }
    Ok(out)
}

fn put(packet: &mut [u8], at: usize, value: &Authenticator) {
    if let Some(place) = packet.get_mut(at..at + 16) {
        place.copy_from_slice(value);
    }
}

/// An Access-Request. `password` is hidden in it; CHAP goes into `attributes`.
///
/// # Errors
/// [`TooLong`].
pub fn access_request(
    identifier: u8,
    authenticator: &Authenticator,
    secret: &[u8],
    password: Option<&[u8]>,
    attributes: &[u8],
) -> Result<Vec<u8>, TooLong> {
    let mut hidden = List::default();
    if let Some(password) = password {
        let password = hide(password, authenticator, secret)?;
        hidden.bytes(attribute::USER_PASSWORD, &password)?;
    }
    let parts = [hidden.as_bytes(), attributes];
    let mut packet = assemble(code::ACCESS_REQUEST, identifier, authenticator, &parts)?;
    let sum = keyed(secret, &packet);
    put(&mut packet, HEADER + 2, &sum);
    Ok(packet)
}

/// A request whose authenticator is a sum over it: Accounting-Request, CoA-Request, Disconnect-Request.
///
/// # Errors
/// [`TooLong`].
pub fn signed_request(
    code: u8,
    identifier: u8,
    secret: &[u8],
    parts: &[&[u8]],
) -> Result<Vec<u8>, TooLong> {
    let mut packet = assemble(code, identifier, &[0; 16], parts)?;
    let sum = keyed(secret, &packet);
    put(&mut packet, HEADER + 2, &sum);
    let sum = Packet { bytes: &packet }.sum(&[0; 16], secret);
    put(&mut packet, 4, &sum);
    Ok(packet)
}

/// The answer to a request.
///
/// # Errors
/// [`TooLong`].
pub fn answer(
    code: u8,
    identifier: u8,
    request: &Authenticator,
    secret: &[u8],
    attributes: &[u8],
) -> Result<Vec<u8>, TooLong> {
    let mut packet = assemble(code, identifier, request, &[attributes])?;
    let sum = keyed(secret, &packet);
    put(&mut packet, HEADER + 2, &sum);
    let sum = Packet { bytes: &packet }.sum(request, secret);
    put(&mut packet, 4, &sum);
    Ok(packet)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const SECRET: &[u8] = b"xyzzy5461";

    fn hex(text: &str) -> Vec<u8> {
        let digits: String = text.split_whitespace().collect();
        let pairs = digits.as_bytes().chunks(2);
        pairs
            .map(|pair| u8::from_str_radix(std::str::from_utf8(pair).unwrap(), 16).unwrap())
            .collect()
    }

    #[test]
    fn the_exchange_of_rfc_2865_section_7_1_is_understood() {
        let request = hex(
            "01 00 00 38 0f 40 3f 94 73 97 80 57 bd 83 d5 cb 98 f4 22 7a 01 06 6e 65 6d 6f 02 12 0d be 70 8d 93 d4
             13 ce 31 96 e4 3f 78 2a 0a ee 04 06 c0 a8 01 10 05 06 00 00 00 03",
        );
        let request = Packet::parse(&request).unwrap();
        assert_eq!((request.code(), request.identifier()), (1, 0));
        assert_eq!(request.find(attribute::USER_NAME), Some(&b"nemo"[..]));
        let hidden = hide(b"arctangent", &request.authenticator(), SECRET).unwrap();
        assert_eq!(request.find(attribute::USER_PASSWORD), Some(&hidden[..]));
        let reply = hex(
            "02 00 00 26 86 fe 22 0e 76 24 ba 2a 10 05 f6 bf 9b 55 e0 b2 06 06 00 00 00 01 0f 06 00 00 00 00 0e 06
             c0 a8 01 03",
        );
        let reply = Packet::parse(&reply).unwrap();
        assert!(reply.answers(&request.authenticator(), SECRET));
        assert!(!reply.answers(&request.authenticator(), b"xyzzy5460"));
        assert_eq!(reply.message_authenticator(&[0; 16], SECRET), None);
    }

    #[test]
    fn the_exchange_of_rfc_2865_section_7_2_is_understood() {
        let request = hex(
            "01 01 00 47 2a ee 86 f0 8d 0d 55 96 9c a5 97 8e 0d 33 67 a2 01 08 66 6c 6f 70 73 79 03 13 16 e9 75 57
             c3 16 18 58 95 f2 93 ff 63 44 07 72 75 04 06 c0 a8 01 10 05 06 00 00 00 14 06 06 00 00 00 02 07 06 00
             00 00 01",
        );
        let request = Packet::parse(&request).unwrap();
        let [identifier, response @ ..] = request.find(attribute::CHAP_PASSWORD).unwrap() else {
            panic!("empty")
        };
        // Without CHAP-Challenge the authenticator is the challenge.
        let expected = chap_response(*identifier, b"arctangent", &request.authenticator());
        assert_eq!(response, expected);
        let reply = hex(
            "02 01 00 38 15 ef bc 7d ab 26 cf a3 dc 34 d9 c0 3c 86 01 a4 06 06 00 00 00 02 07 06 00 00 00 01 08 06
             ff ff ff fe 0a 06 00 00 00 00 0d 06 00 00 00 01 0c 06 00 00 05 dc",
        );
        let reply = Packet::parse(&reply).unwrap();
        assert_eq!(reply.attributes().count(), 6);
    }

    #[test]
    fn each_malformed_packet_has_its_name() {
        let good = access_request(7, &[1; 16], SECRET, Some(b"pw"), &[]).unwrap();
        assert!(Packet::parse(&good).is_ok());
        assert_eq!(Packet::parse(&good[..19]).unwrap_err(), Malformed::Short);
        for length in [0u16, 19, good.len() as u16 + 1, 4_097] {
            let mut bad = good.clone();
            bad[2..4].copy_from_slice(&length.to_be_bytes());
            assert_eq!(
                Packet::parse(&bad).unwrap_err(),
                Malformed::Length,
                "{length}"
            );
        }
        // Every length of the last attribute but its own.
        let last = good.len() - 18;
        for length in 0..=255u8 {
            let mut bad = good.clone();
            bad[last + 1] = length;
            let parsed = Packet::parse(&bad);
            assert_eq!(parsed.is_ok(), length == 18, "{length}");
        }
        let mut padded = good.clone();
        padded.extend([0xff; 9]);
        assert_eq!(Packet::parse(&padded).unwrap().bytes, good);
    }

    #[test]
    fn message_authenticator_is_first_and_counts_every_octet() {
        let request = access_request(7, &[9; 16], SECRET, Some(b"pw"), &[1, 3, b'a']).unwrap();
        assert_eq!(request[HEADER], attribute::MESSAGE_AUTHENTICATOR);
        let right = |bytes: &[u8]| {
            let packet = Packet::parse(bytes).ok()?;
            packet.message_authenticator(&packet.authenticator(), SECRET)
        };
        assert_eq!(right(&request), Some(true));
        for at in 0..request.len() {
            let mut bad = request.clone();
            bad[at] ^= 1;
            assert_ne!(right(&bad), Some(true), "{at}");
        }
        let mut twice = List::default();
        twice
            .bytes(attribute::MESSAGE_AUTHENTICATOR, &[0; 16])
            .unwrap();
        let twice = access_request(7, &[9; 16], SECRET, None, twice.as_bytes()).unwrap();
        assert_eq!(right(&twice), Some(false));
        // Nor when the last one is right.
        let mut last = twice;
        let place = last.len() - 16..;
        last[place.clone()].fill(0);
        let sum = keyed(SECRET, &last);
        last[place].copy_from_slice(&sum);
        assert_eq!(right(&last), Some(false));
    }

    #[test]
    fn what_does_not_fit_is_said() {
        assert_eq!(hide(&[0; 129], &[0; 16], SECRET), Err(TooLong));
        assert_eq!(hide(b"", &[0; 16], SECRET).unwrap().len(), 16);
        assert_eq!(List::default().bytes(1, &[0; 254]), Err(TooLong));
        assert_eq!(List::default().vendor(1, 1, &[0; 250]), Err(TooLong));
        let mut list = List::default();
        for _ in 0..16 {
            list.bytes(25, &[0; 253]).unwrap();
        }
        let fits = access_request(0, &[0; 16], SECRET, None, &list.as_bytes()[..LONGEST - 38]);
        assert_eq!(fits.unwrap().len(), LONGEST);
        let one_more = &list.as_bytes()[..LONGEST - 37];
        assert_eq!(
            access_request(0, &[0; 16], SECRET, None, one_more),
            Err(TooLong)
        );
    }

    proptest! {
        #[test]
        fn parsing_is_total_and_takes_no_octet_of_others(bytes in prop::collection::vec(any::<u8>(), 0..300)) {
            if let Ok(packet) = Packet::parse(&bytes) {
                let taken: usize = packet.attributes().map(|(_, value)| value.len() + 2).sum();
                prop_assert_eq!(taken + HEADER, packet.bytes.len());
                let _ = packet.message_authenticator(&[0; 16], SECRET);
                prop_assert!(!packet.is_signed(SECRET));
            }
        }

        #[test]
        fn what_is_written_is_read(
            code: u8,
            identifier: u8,
            values in prop::collection::vec((any::<u8>(), prop::collection::vec(any::<u8>(), 0..=253)), 0..12),
        ) {
            let mut list = List::default();
            let values: Vec<_> = values.into_iter().filter(|(kind, _)| *kind != attribute::MESSAGE_AUTHENTICATOR).collect();
            for (kind, value) in &values {
                list.bytes(*kind, value).unwrap();
            }
            let bytes = signed_request(code, identifier, SECRET, &[list.as_bytes()]).unwrap();
            let packet = Packet::parse(&bytes).unwrap();
            prop_assert!(packet.is_signed(SECRET));
            prop_assert_eq!(packet.message_authenticator(&[0; 16], SECRET), Some(true));
            let read: Vec<_> = packet.attributes().skip(1).map(|(kind, value)| (kind, value.to_vec())).collect();
            prop_assert_eq!(read, values);
            let reply = answer(code, identifier, &packet.authenticator(), SECRET, list.as_bytes()).unwrap();
            let reply = Packet::parse(&reply).unwrap();
            prop_assert!(reply.answers(&packet.authenticator(), SECRET));
            prop_assert_eq!(reply.message_authenticator(&packet.authenticator(), SECRET), Some(true));
            prop_assert!(!reply.answers(&[7; 16], SECRET));
        }
    }
}
