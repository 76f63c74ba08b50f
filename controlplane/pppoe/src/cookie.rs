//! The AC-Cookie (RFC 2516 section 5.2 and appendix A): proof that a client received our PADO, without any state.
//!
//! ```text
//! +---------------------------+------------------------------------------------+
//! | issued at (8), big-endian | SipHash-2-4-128 of it, port, VLANs and MAC (16)|
//! +---------------------------+------------------------------------------------+
//! ```
//!
//! The key is secret. With one that outlives the process, so does a cookie: a client that has a PADO when control is restarted
//! gets its PADS.

use core::hash::Hasher;
use core::time::Duration;

use siphasher::sip128::{Hasher128, SipHasher24};
use subtle::ConstantTimeEq;

use crate::events::AccessLine;
use crate::{DropReason, Time};

/// Bytes of a cookie.
pub(crate) const COOKIE_LEN: usize = 24;

/// Makes and checks cookies.
#[derive(Clone, Debug)]
pub(crate) struct CookieJar {
    key: [u8; 16],
    lifetime: Duration,
}

impl CookieJar {
    pub(crate) const fn new(key: [u8; 16], lifetime: Duration) -> Self {
        Self { key, lifetime }
    }

    pub(crate) const fn set_lifetime(&mut self, lifetime: Duration) {
        self.lifetime = lifetime;
    }

    fn tag(&self, issued: Time, line: &AccessLine) -> [u8; 16] {
        keyed_digest(
            &self.key,
            b"cookie",
            &[
                &issued.as_millis().to_be_bytes(),
                &[line.port.0],
                &line.s_vlan.to_be_bytes(),
                &line.c_vlan.to_be_bytes(),
                &line.mac.0,
            ],
        )
    }

    pub(crate) fn issue(&self, now: Time, line: &AccessLine) -> [u8; COOKIE_LEN] {
        let mut cookie = [0; COOKIE_LEN];
        let (issued, tag) = cookie.split_at_mut(8);
        issued.copy_from_slice(&now.as_millis().to_be_bytes());
        tag.copy_from_slice(&self.tag(now, line));
        cookie
    }

    /// When a cookie was issued, if it is one of ours.
    pub(crate) fn issued_at(cookie: &[u8]) -> Option<Time> {
        let issued = cookie.first_chunk::<8>()?;
        Some(Time::from_millis(u64::from_be_bytes(*issued)))
    }

    pub(crate) fn check(
        &self,
        now: Time,
        line: &AccessLine,
        cookie: &[u8],
    ) -> Result<(), DropReason> {
        let cookie: &[u8; COOKIE_LEN] = cookie.try_into().map_err(|_| DropReason::CookieForged)?;
        let [i0, i1, i2, i3, i4, i5, i6, i7, tag @ ..] = cookie;
        let issued =
            Time::from_millis(u64::from_be_bytes([*i0, *i1, *i2, *i3, *i4, *i5, *i6, *i7]));
        if !bool::from(self.tag(issued, line).ct_eq(tag)) {
            return Err(DropReason::CookieForged);
        }
        if issued > now || now.since(issued) > self.lifetime {
            return Err(DropReason::CookieExpired);
        }
        Ok(())
    }
}

/// SipHash-2-4-128 of `parts` under `key`; every part is preceded by its length, so no two lists are one string.
pub(crate) fn keyed_digest(key: &[u8; 16], purpose: &[u8], parts: &[&[u8]]) -> [u8; 16] {
    let mut hasher = SipHasher24::new_with_key(key);
    for part in core::iter::once(&purpose).chain(parts) {
        hasher.write(&(part.len() as u64).to_be_bytes());
        hasher.write(part);
    }
    hasher.finish128().as_bytes()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::PortId;
    use bng_wire::MacAddr;

    const LINE: AccessLine = AccessLine {
        port: PortId(1),
        s_vlan: 100,
        c_vlan: 7,
        mac: MacAddr([2, 0, 0, 0, 0, 9]),
    };

    fn jar() -> CookieJar {
        CookieJar::new([7; 16], Duration::from_secs(30))
    }

    #[test]
    fn a_cookie_counts_for_its_line_until_it_expires() {
        let cookie = jar().issue(Time::from_millis(5_000), &LINE);
        let check = |ms| jar().check(Time::from_millis(ms), &LINE, &cookie);
        assert_eq!(check(5_000), Ok(()));
        assert_eq!(check(35_000), Ok(()));
        assert_eq!(check(35_001), Err(DropReason::CookieExpired));
        assert_eq!(check(4_999), Err(DropReason::CookieExpired));
    }

    #[test]
    fn a_cookie_is_bound_to_port_vlans_mac_and_key() {
        let now = Time::from_millis(1);
        let cookie = jar().issue(now, &LINE);
        let mac = MacAddr([2, 0, 0, 0, 0, 8]);
        for other in [
            AccessLine {
                port: PortId(2),
                ..LINE
            },
            AccessLine {
                s_vlan: 101,
                ..LINE
            },
            AccessLine { c_vlan: 0, ..LINE },
            AccessLine {
                s_vlan: 7,
                c_vlan: 100,
                ..LINE
            },
            AccessLine { mac, ..LINE },
        ] {
            assert_eq!(
                jar().check(now, &other, &cookie),
                Err(DropReason::CookieForged)
            );
        }
        let foreign = CookieJar::new([8; 16], Duration::from_secs(30));
        assert_eq!(
            foreign.check(now, &LINE, &cookie),
            Err(DropReason::CookieForged)
        );
    }

    #[test]
    fn every_flipped_bit_and_every_other_length_is_a_forgery() {
        let now = Time::from_millis(77);
        let cookie = jar().issue(now, &LINE);
        for bit in 0..COOKIE_LEN * 8 {
            let mut forged = cookie;
            forged[bit / 8] ^= 1 << (bit % 8);
            assert_eq!(
                jar().check(now, &LINE, &forged),
                Err(DropReason::CookieForged)
            );
        }
        for len in 0..COOKIE_LEN {
            assert_eq!(
                jar().check(now, &LINE, &cookie[..len]),
                Err(DropReason::CookieForged)
            );
        }
    }
}
