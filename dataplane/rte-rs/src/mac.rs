//! Ethernet addresses.

use std::fmt;
use std::str::FromStr;

/// An EUI-48 address, in wire order.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
#[repr(transparent)]
pub struct MacAddr(pub [u8; 6]);

impl MacAddr {
    /// The broadcast address.
    pub const BROADCAST: MacAddr = MacAddr([0xff; 6]);

    /// Whether it is a group address: multicast or broadcast.
    #[must_use]
    pub const fn is_multicast(self) -> bool {
        self.0[0] & 1 != 0
    }
}

impl From<[u8; 6]> for MacAddr {
    fn from(octets: [u8; 6]) -> Self {
        MacAddr(octets)
    }
}

impl fmt::Display for MacAddr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [a, b, c, d, e, g] = self.0;
        write!(f, "{a:02x}:{b:02x}:{c:02x}:{d:02x}:{e:02x}:{g:02x}")
    }
}

impl fmt::Debug for MacAddr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// Text that is not six colon-separated hexadecimal octets.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{text:?} is no MAC address: expected six octets such as 02:00:5e:10:00:01")]
pub struct ParseMacError {
    /// The text.
    pub text: String,
}

impl FromStr for MacAddr {
    type Err = ParseMacError;

    fn from_str(text: &str) -> Result<Self, ParseMacError> {
        let wrong = || ParseMacError {
            text: text.to_owned(),
        };
        let mut octets = [0; 6];
        let mut parts = text.split(':');
        for octet in &mut octets {
            let part = parts
                .next()
                .filter(|part| part.len() == 2)
                .ok_or_else(wrong)?;
            // from_str_radix alone would accept "+1".
            if !part.bytes().all(|byte| byte.is_ascii_hexdigit()) {
                return Err(wrong());
            }
            *octet = u8::from_str_radix(part, 16).map_err(|_| wrong())?;
        }
        match parts.next() {
            None => Ok(MacAddr(octets)),
            Some(_) => Err(wrong()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_round_trips() {
        let mac: MacAddr = "02:00:5E:10:00:ff".parse().unwrap();
        assert_eq!(mac, MacAddr([2, 0, 0x5e, 0x10, 0, 0xff]));
        assert_eq!(mac.to_string(), "02:00:5e:10:00:ff");
    }

    #[test]
    fn nonsense_is_refused_with_the_text() {
        for text in [
            "",
            "02:00:5e:10:00",
            "02:00:5e:10:00:01:02",
            "2:0:5e:10:0:1",
            "+2:00:00:00:00:00",
            "0g:00:00:00:00:00",
        ] {
            assert_eq!(
                text.parse::<MacAddr>(),
                Err(ParseMacError {
                    text: text.to_owned()
                })
            );
        }
    }

    #[test]
    fn group_bit() {
        assert!(MacAddr::BROADCAST.is_multicast());
        assert!(!MacAddr([2, 0, 0, 0, 0, 1]).is_multicast());
    }
}
