//! What is known of a port block, and its form on disk.
//!
//! ```text
//! kind 1 | number 8 | time 8 | opened 8 | accounting id 8 | public address 4 | first port 2 | last port 2 |
//! inside address 4 | MAC 6 | S-VLAN 2 | C-VLAN 2 | pool, access port, user: length 2 and bytes each
//! ```

use std::net::Ipv4Addr;

/// Everything before the names.
const FIXED: usize = 55;
/// Where the public address begins.
const PUBLIC: usize = 33;
/// A VLAN id that stands for none.
const NO_VLAN: u16 = 0xffff;
/// Longest name that is kept, bytes; a user name of PPP has 255 at most.
const NAME_MAX: usize = 512;
/// Longest body.
pub(crate) const BODY_MAX: usize = FIXED + 3 * (2 + NAME_MAX);

/// What has happened to a block.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Event {
    /// It was given to a subscriber.
    Opened,
    /// The subscriber still has it.
    Interim,
    /// It was taken back.
    Closed,
    /// It was open when a file began: no event, and told to nobody.
    Carried,
}

impl Event {
    const fn byte(self) -> u8 {
        match self {
            Self::Opened => 1,
            Self::Interim => 2,
            Self::Closed => 3,
            Self::Carried => 4,
        }
    }

    const fn of(byte: u8) -> Option<Self> {
        Some(match byte {
            1 => Self::Opened,
            2 => Self::Interim,
            3 => Self::Closed,
            4 => Self::Carried,
            _ => return None,
        })
    }

    /// The word in syslog, metrics and REST.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Opened => "opened",
            Self::Interim => "interim",
            Self::Closed => "closed",
            Self::Carried => "carried",
        }
    }
}

/// What tells one open block from another.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Key {
    /// Public address.
    pub public: Ipv4Addr,
    /// First port.
    pub first_port: u16,
}

/// A block and whose it is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Block {
    /// Name of the NAT pool.
    pub pool: String,
    /// Public address.
    pub public: Ipv4Addr,
    /// First port.
    pub first_port: u16,
    /// Last port.
    pub last_port: u16,
    /// The subscriber's own address.
    pub inside: Ipv4Addr,
    /// Name of the subscriber, as it gave it.
    pub user: Vec<u8>,
    /// Its MAC address.
    pub mac: [u8; 6],
    /// Name of the access port.
    pub port: String,
    /// S-VLAN id.
    pub s_vlan: Option<u16>,
    /// C-VLAN id.
    pub c_vlan: Option<u16>,
    /// Acct-Session-Id.
    pub accounting_id: u64,
}

impl Block {
    /// What tells it from others.
    #[must_use]
    pub const fn key(&self) -> Key {
        Key {
            public: self.public,
            first_port: self.first_port,
        }
    }
}

/// A record of the log.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Record {
    /// What has happened.
    pub event: Event,
    /// Number of the record: the next one's is higher by one, over restarts too.
    pub number: u64,
    /// When, Unix milliseconds.
    pub time_ms: u64,
    /// When the block was opened, Unix milliseconds.
    pub opened_ms: u64,
    /// The block.
    pub block: Block,
}

impl Record {
    pub(crate) fn encode(&self) -> Vec<u8> {
        let block = &self.block;
        let mut body = Vec::with_capacity(FIXED + 64);
        body.push(self.event.byte());
        for number in [
            self.number,
            self.time_ms,
            self.opened_ms,
            block.accounting_id,
        ] {
            body.extend(number.to_be_bytes());
        }
        body.extend(block.public.octets());
        body.extend(block.first_port.to_be_bytes());
        body.extend(block.last_port.to_be_bytes());
        body.extend(block.inside.octets());
        body.extend(block.mac);
        for vlan in [block.s_vlan, block.c_vlan] {
            body.extend(vlan.unwrap_or(NO_VLAN).to_be_bytes());
        }
        for name in [block.pool.as_bytes(), block.port.as_bytes(), &block.user] {
            let name = name.get(..NAME_MAX).unwrap_or(name);
            body.extend((name.len() as u16).to_be_bytes());
            body.extend(name);
        }
        body
    }

    /// `None` for a body of another kind, or a broken one.
    pub(crate) fn decode(body: &[u8]) -> Option<Self> {
        let event = Event::of(*body.first()?)?;
        let mut rest = body.get(1..)?;
        let mut number = || take(&mut rest).map(u64::from_be_bytes);
        let (record, time_ms, opened_ms, accounting_id) =
            (number()?, number()?, number()?, number()?);
        let public = Ipv4Addr::from(take(&mut rest)?);
        let first_port = u16::from_be_bytes(take(&mut rest)?);
        let last_port = u16::from_be_bytes(take(&mut rest)?);
        let inside = Ipv4Addr::from(take(&mut rest)?);
        let mac = take(&mut rest)?;
        let mut vlan = || {
            let id = u16::from_be_bytes(take(&mut rest)?);
            Some((id != NO_VLAN).then_some(id))
        };
        let (s_vlan, c_vlan) = (vlan()?, vlan()?);
        let mut name = || {
            let length = usize::from(u16::from_be_bytes(take(&mut rest)?));
            let (name, after) = rest.split_at_checked(length)?;
            rest = after;
            Some(name)
        };
        let text = |name: &[u8]| String::from_utf8_lossy(name).into_owned();
        let (pool, port, user) = (text(name()?), text(name()?), name()?.to_vec());
        Some(Self {
            event,
            number: record,
            time_ms,
            opened_ms,
            block: Block {
                pool,
                public,
                first_port,
                last_port,
                inside,
                user,
                mac,
                port,
                s_vlan,
                c_vlan,
                accounting_id,
            },
        })
    }

    /// Whether a body speaks of a port, without reading all of it.
    pub(crate) fn is_about(body: &[u8], public: Ipv4Addr, port: u16) -> bool {
        let Some(mut at) = body.get(PUBLIC..) else {
            return false;
        };
        let (Some(address), Some(first), Some(last)) = (
            take::<4>(&mut at),
            take(&mut at).map(u16::from_be_bytes),
            take(&mut at).map(u16::from_be_bytes),
        ) else {
            return false;
        };
        address == public.octets() && (first..=last).contains(&port)
    }
}

fn take<const N: usize>(rest: &mut &[u8]) -> Option<[u8; N]> {
    let (taken, after) = rest.split_first_chunk::<N>()?;
    *rest = after;
    Some(*taken)
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    pub(crate) fn block(n: u16) -> Block {
        Block {
            pool: "cgn".to_owned(),
            public: Ipv4Addr::new(198, 51, 100, (n / 100) as u8),
            first_port: 1_024 + (n % 100) * 512,
            last_port: 1_024 + (n % 100) * 512 + 511,
            inside: Ipv4Addr::new(100, 64, (n >> 8) as u8, n as u8),
            user: format!("user{n}@example").into_bytes(),
            mac: [2, 0, 0, 0, (n >> 8) as u8, n as u8],
            port: "access0".to_owned(),
            s_vlan: Some(100),
            c_vlan: n.is_multiple_of(2).then_some(n % 4_000),
            accounting_id: 7_000 + u64::from(n),
        }
    }

    #[test]
    fn a_record_comes_back_as_it_was_and_every_cut_is_refused() {
        let mut strange = block(7);
        strange.user = vec![0xff, 0, b'"'];
        for (event, block) in [
            (Event::Opened, block(2)),
            (Event::Interim, block(3)),
            (Event::Closed, strange),
            (Event::Carried, block(4)),
        ] {
            let record = Record {
                event,
                number: 9,
                time_ms: 1_700_000_000_123,
                opened_ms: 1_700_000_000_000,
                block,
            };
            let body = record.encode();
            assert_eq!(Record::decode(&body).as_ref(), Some(&record));
            for length in 0..body.len() {
                assert_eq!(Record::decode(&body[..length]), None);
            }
            let Block {
                public,
                first_port,
                last_port,
                ..
            } = record.block;
            for (port, expected) in [
                (first_port, true),
                (last_port, true),
                (first_port - 1, false),
                (last_port + 1, false),
            ] {
                assert_eq!(Record::is_about(&body, public, port), expected, "{port}");
            }
            let other = Ipv4Addr::new(192, 0, 2, 1);
            assert!(!Record::is_about(&body, other, first_port));
        }
    }
}
