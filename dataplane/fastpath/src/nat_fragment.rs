//! Stage: fragments of sessions behind NAT (RFC 791, RFC 4787 REQ-14).
//!
//! A first fragment holds the ports and goes through all stages as a whole packet does; what became of it is noted
//! ([`crate::first_fragments`]). A later one has no ports: it follows the note, through the same stages with the ports of the
//! first one, and waits if there is none ([`crate::waiting`]).

use bng_shm::{Counter, Reverse, SessionLine, SlotIndex};
use bng_wire::Ipv4Hdr;
use bng_wire::checksum::Delta;
use bng_wire::ipv4::{IPV4_MIN_LEN, OFFSET_MASK, protocol};
use bng_wire::l4::TCP_MIN_LEN;

use crate::filter::Ports;
use crate::first_fragments::{Key, Note, State};
use crate::flow::Direction;
use crate::ip::Packet;
use crate::verdict::{Origin, Step, Verdict, drop};
use crate::worker::Stages;

/// A fragment and its note: of a first one the note that is to be made, of a later one the one that was.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Fragment {
    pub(crate) key: Key,
    pub(crate) note: Note,
}

fn identification(packet: &Packet, frame: &[u8]) -> u16 {
    let id = packet.bytes(frame).get(4..6);
    id.and_then(|id| id.first_chunk())
        .map_or(0, |id| u16::from_be_bytes(*id))
}

/// A later fragment must not lie over the header a first one has shown (RFC 1858 section 3.2, RFC 3128). A UDP header is shorter
/// than the smallest offset.
fn overlaps(packet: &Packet) -> bool {
    let offset = usize::from(packet.frag & OFFSET_MASK) * 8;
    packet.protocol == protocol::TCP && (1..TCP_MIN_LEN).contains(&offset)
}

fn ports(packet: &Packet, frame: &[u8], direction: Direction) -> (u16, u16) {
    let l4 = packet.bytes(frame).get(IPV4_MIN_LEN..);
    match Ports::read(packet.protocol, l4, direction) {
        Ports::Known { remote, local } => (remote, local),
        Ports::None | Ports::Unknown => (0, 0),
    }
}

/// A fragment from a session behind NAT.
#[cold]
pub(crate) fn sent(
    stages: &Stages,
    (slot, generation): (SlotIndex, u32),
    packet: &Packet,
    frame: &[u8],
    origin: Origin,
) -> Step<Fragment> {
    if overlaps(packet) {
        return drop(Counter::FragmentOverlap);
    }
    let key = Key::upstream(slot, packet, identification(packet, frame));
    let generation = Reverse::generation_bits(generation);
    let note = stages.firsts.find(key, stages.now_ms);
    let is_ours = |note: &Note| note.generation == generation;
    if packet.is_later_fragment() {
        return match note {
            Some(note) if note.state == State::Passed && is_ours(&note) => {
                Ok(Fragment { key, note })
            }
            Some(_) => drop(Counter::NatFragmentNoFirst),
            None => Err(Verdict::Wait(origin)),
        };
    }
    let note = note.filter(is_ours);
    let (remote_port, inside_port) = ports(packet, frame, Direction::Upstream);
    let note = Note {
        state: State::Refused,
        slot,
        generation,
        inside_port,
        remote_port,
        // A copy of it keeps what the others have.
        id: note.map_or_else(|| stages.firsts.next_id(), |note| note.id),
        at_ms: stages.now_ms as u32,
    };
    Ok(Fragment { key, note })
}

/// Notes what became of a first fragment from a session.
#[cold]
pub(crate) fn settle_sent(stages: &Stages, fragment: &Fragment, result: &Step<u8>) {
    let state = match result {
        Ok(_) | Err(Verdict::Fragment { .. } | Verdict::HandOver { .. }) => State::Passed,
        Err(_) => State::Refused,
    };
    let note = Note {
        state,
        ..fragment.note
    };
    stages.firsts.note(fragment.key, note);
}

/// Gives a fragment the identification its packet has outside; returns the change, for the header checksum.
pub(crate) fn set_identification(ip: &mut Ipv4Hdr, fragment: &Fragment) -> Delta {
    let delta = Delta::new().u16(ip.id.get(), fragment.note.id);
    ip.id.set(fragment.note.id);
    delta
}

/// A fragment to a NAT address.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Arriving {
    key: Key,
    remote_port: u16,
}

impl Arriving {
    #[cold]
    pub(crate) fn of(packet: &Packet, frame: &[u8]) -> Step<Self> {
        if overlaps(packet) {
            return drop(Counter::FragmentOverlap);
        }
        let (remote_port, _) = ports(packet, frame, Direction::Downstream);
        Ok(Self {
            key: Key::downstream(packet, identification(packet, frame)),
            remote_port,
        })
    }

    /// The note that a later fragment follows.
    pub(crate) fn follow(&self, stages: &Stages, origin: Origin) -> Step<Note> {
        match stages.firsts.find(self.key, stages.now_ms) {
            Some(note) if matches!(note.state, State::Led | State::Passed) => Ok(note),
            Some(_) => drop(Counter::NatFragmentNoFirst),
            None => Err(Verdict::Wait(origin)),
        }
    }

    /// Notes what became of a first fragment that this mapping leads to a session, if there is one.
    #[cold]
    pub(crate) fn settle(&self, stages: &Stages, entry: Option<Reverse>, result: &Step<u8>) {
        let state = match result {
            Ok(_) | Err(Verdict::Fragment { .. }) => State::Passed,
            Err(Verdict::HandOver { .. }) => State::Led,
            Err(_) => State::Refused,
        };
        let note = Note {
            state,
            slot: entry.map_or(SlotIndex(0), |entry| entry.slot),
            generation: entry.map_or(u16::MAX, |entry| entry.generation),
            inside_port: entry.map_or(0, |entry| entry.inside_port),
            remote_port: self.remote_port,
            id: 0,
            at_ms: stages.now_ms as u32,
        };
        stages.firsts.note(self.key, note);
    }
}

/// The owner has forwarded the first fragment, or the later one waits until it has decided.
pub(crate) fn decided(note: &Note, origin: Origin) -> Step<()> {
    match note.state {
        State::Led => Err(Verdict::Wait(origin)),
        _ => Ok(()),
    }
}

/// A note leads to this live session.
pub(crate) fn leads_to(note: &Note, session: &SessionLine, address_index: u16) -> Step<()> {
    let is_its = session
        .nat()
        .is_some_and(|block| block.address_index == address_index);
    if is_its && note.generation == Reverse::generation_bits(session.generation()) {
        Ok(())
    } else {
        drop(Counter::NatNoMapping)
    }
}
