//! What the emulator and the reflector say to each other in UDP payloads.

use std::net::IpAddr;

use zerocopy::byteorder::network_endian::{U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use crate::sequence::SequenceCounts;

const MAGIC: [u8; 4] = *b"BNGP";

/// Bytes of the probe header, the smallest payload of any kind.
pub(crate) const HEADER_LEN: usize = size_of::<Header>();

/// ```text
///  0                   1                   2                   3
///  0 1 2 3 4 5 6 7 8 9 0 1 2 3 4 5 6 7 8 9 0 1 2 3 4 5 6 7 8 9 0 1
/// +-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+
/// |                        Magic "BNGP"                           |
/// |     Kind      |   IP version  |             zero              |
/// |                            Session                            |
/// |                              Run                              |
/// |                           (64 bits)                           |
/// |                        Sequence number                        |
/// |                           (64 bits)                           |
/// |                  Time of sending, nanoseconds                 |
/// |                           (64 bits)                           |
/// ```
#[derive(Clone, Copy, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
struct Header {
    magic: [u8; 4],
    kind: u8,
    version: u8,
    zero: [u8; 2],
    session: U32,
    run: U64,
    sequence: U64,
    sent_ns: U64,
}

#[derive(Clone, Copy, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
struct Counts {
    unique: U64,
    duplicates: U64,
    reordered: U64,
    too_late: U64,
    corrupt: U64,
    send_failures: U64,
    socket_drops: U64,
}

/// Version of IP.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) enum Family {
    /// IPv4.
    V4,
    /// IPv6.
    V6,
}

impl Family {
    /// Both, in the order of [`Self::index`].
    pub(crate) const BOTH: [Self; 2] = [Self::V4, Self::V6];

    /// Of an address.
    pub(crate) const fn of(address: IpAddr) -> Self {
        match address {
            IpAddr::V4(_) => Self::V4,
            IpAddr::V6(_) => Self::V6,
        }
    }

    /// 0 or 1.
    pub(crate) const fn index(self) -> usize {
        self as usize
    }

    /// Name for reports.
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::V4 => "ipv4",
            Self::V6 => "ipv6",
        }
    }

    /// Bytes of the IP and UDP headers.
    pub(crate) const fn headers(self) -> usize {
        match self {
            Self::V4 => 28,
            Self::V6 => 48,
        }
    }

    const fn version(self) -> u8 {
        match self {
            Self::V4 => 4,
            Self::V6 => 6,
        }
    }

    const fn of_version(version: u8) -> Option<Self> {
        match version {
            4 => Some(Self::V4),
            6 => Some(Self::V6),
            _ => None,
        }
    }
}

/// Which stream of which run of the emulator.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct StreamId {
    /// Random number of the run.
    pub(crate) run: u64,
    /// Index of the subscriber.
    pub(crate) session: u32,
    /// A subscriber has a stream of each.
    pub(crate) family: Family,
}

/// What the reflector saw of one stream.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct StreamReport {
    /// Sequence numbers.
    pub(crate) counts: SequenceCounts,
    /// Datagrams whose filling is not what the header says.
    pub(crate) corrupt: u64,
    /// Datagrams the reflector's kernel did not take back.
    pub(crate) send_failures: u64,
    /// Datagrams the reflector's socket dropped for want of room, over all streams since it started.
    pub(crate) socket_drops: u64,
}

/// A payload.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Probe {
    /// Counted traffic, sent back as it is.
    Data {
        /// Stream.
        id: StreamId,
        /// Number in the stream, from 0.
        sequence: u64,
        /// When it was sent, on the sender's clock.
        sent_ns: u64,
    },
    /// Asks the reflector for a report.
    Query(StreamId),
    /// The answer.
    Report(StreamId, StreamReport),
}

/// Why a payload is no probe.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum NoProbe {
    /// Not from this program.
    Foreign,
    /// The header is one of ours and the rest is damaged.
    Corrupt(StreamId),
}

const DATA: u8 = 1;
const QUERY: u8 = 2;
const REPORT: u8 = 3;

/// Byte `at` of the filling: another one at every place, in every datagram and every session.
fn filling(id: StreamId, sequence: u64, at: usize) -> u8 {
    (at as u64)
        .wrapping_mul(167)
        .wrapping_add(sequence)
        .wrapping_add(u64::from(id.session).wrapping_mul(13)) as u8
}

impl Probe {
    /// The payload, of `len` bytes for [`Probe::Data`] (at least [`HEADER_LEN`]).
    pub(crate) fn write(&self, len: usize) -> Vec<u8> {
        let (kind, id, sequence, sent_ns) = match *self {
            Self::Data {
                id,
                sequence,
                sent_ns,
            } => (DATA, id, sequence, sent_ns),
            Self::Query(id) => (QUERY, id, 0, 0),
            Self::Report(id, _) => (REPORT, id, 0, 0),
        };
        let header = Header {
            magic: MAGIC,
            kind,
            version: id.family.version(),
            zero: [0; 2],
            session: U32::new(id.session),
            run: U64::new(id.run),
            sequence: U64::new(sequence),
            sent_ns: U64::new(sent_ns),
        };
        let mut payload = header.as_bytes().to_vec();
        match self {
            Self::Data { .. } => {
                payload.extend((HEADER_LEN..len).map(|at| filling(id, sequence, at)));
            }
            Self::Query(_) => {}
            Self::Report(_, report) => payload.extend_from_slice(
                Counts {
                    unique: U64::new(report.counts.unique),
                    duplicates: U64::new(report.counts.duplicates),
                    reordered: U64::new(report.counts.reordered),
                    too_late: U64::new(report.counts.too_late),
                    corrupt: U64::new(report.corrupt),
                    send_failures: U64::new(report.send_failures),
                    socket_drops: U64::new(report.socket_drops),
                }
                .as_bytes(),
            ),
        }
        payload
    }

    /// Reads a payload.
    pub(crate) fn parse(payload: &[u8]) -> Result<Self, NoProbe> {
        let (header, rest) = Header::ref_from_prefix(payload).map_err(|_| NoProbe::Foreign)?;
        if header.magic != MAGIC {
            return Err(NoProbe::Foreign);
        }
        let id = StreamId {
            run: header.run.get(),
            session: header.session.get(),
            family: Family::of_version(header.version).ok_or(NoProbe::Foreign)?,
        };
        match header.kind {
            DATA => {
                let sequence = header.sequence.get();
                let whole = rest
                    .iter()
                    .zip(HEADER_LEN..)
                    .all(|(byte, at)| *byte == filling(id, sequence, at));
                if !whole {
                    return Err(NoProbe::Corrupt(id));
                }
                Ok(Self::Data {
                    id,
                    sequence,
                    sent_ns: header.sent_ns.get(),
                })
            }
            QUERY => Ok(Self::Query(id)),
            REPORT => {
                let (counts, _) =
                    Counts::ref_from_prefix(rest).map_err(|_| NoProbe::Corrupt(id))?;
                let report = StreamReport {
                    counts: SequenceCounts {
                        unique: counts.unique.get(),
                        duplicates: counts.duplicates.get(),
                        reordered: counts.reordered.get(),
                        too_late: counts.too_late.get(),
                    },
                    corrupt: counts.corrupt.get(),
                    send_failures: counts.send_failures.get(),
                    socket_drops: counts.socket_drops.get(),
                };
                Ok(Self::Report(id, report))
            }
            _ => Err(NoProbe::Corrupt(id)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ID: StreamId = StreamId {
        run: 0x0123_4567_89ab_cdef,
        session: 77,
        family: Family::V6,
    };

    #[test]
    fn every_kind_survives_the_wire() {
        let data = Probe::Data {
            id: ID,
            sequence: 1 << 40,
            sent_ns: 99,
        };
        assert_eq!(data.write(1_464).len(), 1_464);
        assert_eq!(Probe::parse(&data.write(1_464)), Ok(data));
        assert_eq!(data.write(0).len(), HEADER_LEN);
        assert_eq!(
            Probe::parse(&Probe::Query(ID).write(0)),
            Ok(Probe::Query(ID))
        );
        let report = Probe::Report(
            ID,
            StreamReport {
                counts: SequenceCounts {
                    unique: 1,
                    duplicates: 2,
                    reordered: 3,
                    too_late: 4,
                },
                corrupt: 5,
                send_failures: 6,
                socket_drops: 7,
            },
        );
        assert_eq!(report.write(0).len(), HEADER_LEN + 56);
        assert_eq!(Probe::parse(&report.write(0)), Ok(report));
    }

    #[test]
    fn a_changed_byte_anywhere_in_the_filling_is_noticed() {
        let data = Probe::Data {
            id: ID,
            sequence: 5,
            sent_ns: 0,
        };
        for at in HEADER_LEN..100 {
            let mut payload = data.write(100);
            payload[at] ^= 0x10;
            assert_eq!(Probe::parse(&payload), Err(NoProbe::Corrupt(ID)));
        }
    }

    #[test]
    fn short_and_foreign_payloads_are_foreign() {
        let payload = Probe::Query(ID).write(0);
        for len in 0..HEADER_LEN {
            assert_eq!(Probe::parse(&payload[..len]), Err(NoProbe::Foreign));
        }
        assert_eq!(Probe::parse(&[0x55; 200]), Err(NoProbe::Foreign));
    }
}
