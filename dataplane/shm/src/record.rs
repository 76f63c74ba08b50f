//! The recovery record: what control needs to adopt a session after its own restart. It lies beside
//! the table, outside the lines workers read, and workers never touch it.

use crate::shared::shared;
use crate::sync::fault_point;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering, fence};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// Bytes of a name field; longer names are refused at authentication (RFC 2865 allows 253).
pub const NAME_MAX: usize = 255;
/// Bytes of an agent circuit or remote id (TR-101 allows 63).
pub const LINE_ID_MAX: usize = 63;

/// Bytes for what AAA said of a session (Class, routes, intervals).
pub const TERMS_MAX: usize = 498;

/// Everything control keeps of a session beyond its table entry. Plain bytes, native byte order.
#[derive(Debug, Clone, Copy, PartialEq, Eq, FromBytes, IntoBytes, KnownLayout, Immutable)]
#[repr(C)]
pub struct Record {
    /// Unix time of the session's start (PADS), milliseconds.
    pub started_unix_ms: u64,
    /// Unix time when the network phase opened, milliseconds; 0 if not yet.
    pub opened_unix_ms: u64,
    /// Accounting id: unique over restarts.
    pub accounting_id: u64,
    /// Our IPv6 interface identifier; 0 while IPv6CP is not open.
    pub our_interface_id: u64,
    /// The subscriber's IPv6 interface identifier; 0 while IPv6CP is not open.
    pub peer_interface_id: u64,
    /// Upper half of the session's /64, 0 for none; held also while IPv6CP is not open.
    pub prefix: u64,
    /// Upper half of the delegated prefix, 0 for none.
    pub delegated: u64,
    /// Digest of the PADR that started the session, control's own; 0 for none.
    pub padr: u64,
    /// Most octets of both directions together, 0 for no limit.
    pub quota_octets: u64,
    /// Our LCP magic number.
    pub our_magic: u32,
    /// The peer's LCP magic number, 0 if it has none.
    pub peer_magic: u32,
    /// Address given by IPCP, as an integer in host order; held also while IPCP is not open.
    pub framed_ip: u32,
    /// Our address on the session.
    pub gateway_ip: u32,
    /// DNS servers given, 0 for none.
    pub dns: [u32; 2],
    /// Session-Timeout in seconds, 0 for none.
    pub session_timeout_s: u32,
    /// Idle-Timeout in seconds, 0 for none.
    pub idle_timeout_s: u32,
    /// Public address of the port block, 0 for none; held also while IPCP is not open.
    pub nat_address: u32,
    /// MRU the peer asked for: the largest PPP payload we may send, bytes.
    pub peer_mru: u16,
    /// MRU we asked for, bytes.
    pub our_mru: u16,
    /// PPP protocol number of the authentication used (0xc023 PAP).
    pub auth_protocol: u16,
    /// PPP-Max-Payload granted (RFC 4638), 0 if none.
    pub max_payload: u16,
    /// Index of the address pool in the configuration's list, 0xffff for none.
    pub pool: u16,
    /// First port of the port block.
    pub nat_first_port: u16,
    /// Ports in the port block.
    pub nat_size: u16,
    /// Dense index of the port block's address.
    pub nat_index: u16,
    /// Lengths of the names below.
    pub user_len: u8,
    /// See `user_len`.
    pub circuit_id_len: u8,
    /// See `user_len`.
    pub remote_id_len: u8,
    /// Length of the delegated prefix.
    pub delegated_length: u8,
    /// Bit 0: IPCP is open. Bit 1: IPv6CP is open.
    pub open: u8,
    /// 1 when an operator has given the session another policy than the configuration; the entry names it.
    pub policy_by_operator: u8,
    /// Authenticated name.
    pub user: [u8; NAME_MAX],
    /// Agent-Circuit-Id.
    pub circuit_id: [u8; LINE_ID_MAX],
    /// Agent-Remote-Id.
    pub remote_id: [u8; LINE_ID_MAX],
    /// Tag of the name of that policy's filter (a hash of control's own), zero for none: the position of a filter may
    /// change with the configuration.
    pub filter_tag: [u8; 4],
    /// Always zero.
    pub spare: [u8; 1],
    /// Length of what `terms` holds.
    pub terms_len: u16,
    /// The rest of what AAA said of the session, in control's own form.
    pub terms: [u8; TERMS_MAX],
}

// The bytes left of a record's last cache line, so that sessions do not share one.
const _: () = assert!(size_of::<Record>() == 1_016);

const RECORD_WORDS: usize = size_of::<Record>().div_ceil(8);

impl Default for Record {
    fn default() -> Self {
        zerocopy::FromZeros::new_zeroed()
    }
}

impl Record {
    /// The authenticated name; at most [`NAME_MAX`] bytes.
    #[must_use]
    pub fn user(&self) -> &[u8] {
        &self.user[..usize::from(self.user_len).min(NAME_MAX)]
    }

    /// The agent circuit id.
    #[must_use]
    pub fn circuit_id(&self) -> &[u8] {
        &self.circuit_id[..usize::from(self.circuit_id_len).min(LINE_ID_MAX)]
    }

    /// The agent remote id.
    #[must_use]
    pub fn remote_id(&self) -> &[u8] {
        &self.remote_id[..usize::from(self.remote_id_len).min(LINE_ID_MAX)]
    }

    /// What AAA said, in control's own form.
    #[must_use]
    pub fn terms(&self) -> &[u8] {
        &self.terms[..usize::from(self.terms_len).min(TERMS_MAX)]
    }

    /// Sets the three names, each cut to its field.
    pub fn set_names(&mut self, user: &[u8], circuit_id: &[u8], remote_id: &[u8]) {
        fn set(field: &mut [u8], name: &[u8]) -> u8 {
            let n = name.len().min(field.len());
            field.fill(0);
            field[..n].copy_from_slice(&name[..n]);
            n as u8
        }
        self.user_len = set(&mut self.user, user);
        self.circuit_id_len = set(&mut self.circuit_id, circuit_id);
        self.remote_id_len = set(&mut self.remote_id, remote_id);
    }
}

/// A record in the mapping, with a mark that tells whether it was written whole.
#[repr(C, align(64))]
pub(crate) struct RecordSlot {
    /// Generation of the session the record belongs to; meaningful when `complete` is 1.
    generation: AtomicU32,
    complete: AtomicU32,
    words: [AtomicU64; RECORD_WORDS],
}

shared!(
    RecordSlot,
    RecordSlot {
        generation,
        complete,
        words
    }
);

impl RecordSlot {
    /// Writes the record of a session. Control only.
    pub(crate) fn write(&self, generation: u32, record: &Record) {
        self.complete.store(0, Ordering::Relaxed);
        fence(Ordering::Release);
        fault_point();
        self.generation.store(generation, Ordering::Relaxed);
        for (word, chunk) in self.words.iter().zip(record.as_bytes().chunks(8)) {
            let mut raw = [0; 8];
            raw[..chunk.len()].copy_from_slice(chunk);
            word.store(u64::from_ne_bytes(raw), Ordering::Relaxed);
            fault_point();
        }
        self.complete.store(1, Ordering::Release);
        fault_point();
    }

    /// The record, if it is whole and belongs to this generation.
    pub(crate) fn read(&self, generation: u32) -> Option<Record> {
        if self.complete.load(Ordering::Acquire) != 1
            || self.generation.load(Ordering::Relaxed) != generation
        {
            return None;
        }
        let mut record = Record::default();
        for (word, chunk) in self.words.iter().zip(record.as_mut_bytes().chunks_mut(8)) {
            let raw = word.load(Ordering::Relaxed).to_ne_bytes();
            chunk.copy_from_slice(&raw[..chunk.len()]);
        }
        Some(record)
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    fn slot() -> RecordSlot {
        RecordSlot {
            generation: AtomicU32::new(0),
            complete: AtomicU32::new(0),
            words: std::array::from_fn(|_| AtomicU64::new(0)),
        }
    }

    #[test]
    fn a_record_reads_back_for_its_own_generation_only() {
        let slot = slot();
        assert_eq!(slot.read(0), None);
        let mut record = Record {
            our_magic: 0x1234_5678,
            pool: 3,
            ..Record::default()
        };
        record.set_names(b"alice", b"olt1/1/1", &[b'r'; 80]);
        slot.write(9, &record);
        let back = slot.read(9).unwrap();
        assert_eq!(back, record);
        assert_eq!(back.user(), b"alice");
        assert_eq!(back.circuit_id(), b"olt1/1/1");
        assert_eq!(back.remote_id().len(), LINE_ID_MAX);
        assert_eq!(slot.read(8), None);
        slot.complete.store(0, Ordering::Relaxed);
        assert_eq!(slot.read(9), None, "a write cut short is no record");
    }
}
