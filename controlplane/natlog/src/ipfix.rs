//! Records as IPFIX messages (RFC 7011): port blocks allocated and de-allocated (RFC 8158).
//!
//! ```text
//!  0                   1                   2                   3
//! |       Version Number (10)     |            Length             |
//! |                           Export Time                         |
//! |                       Sequence Number                         |
//! |                    Observation Domain ID                      |
//! ```
//!
//! followed by sets: the template where it is due, then records.

use crate::record::{Event, Record};

/// Set of templates (RFC 7011 section 3.3.2).
const TEMPLATES: u16 = 2;
/// Our template.
const TEMPLATE: u16 = 256;
/// Length of a field of varying length (RFC 7011 section 7).
const VARIES: u16 = 0xffff;
/// Header of a message, and of a set.
const MESSAGE_HEAD: usize = 16;
const SET_HEAD: usize = 4;

/// Information elements and lengths, bytes, in the order of a record.
const FIELDS: [(u16, u16); 13] = [
    (323, 8),      // observationTimeMilliseconds
    (230, 1),      // natEvent
    (8, 4),        // sourceIPv4Address
    (225, 4),      // postNATSourceIPv4Address
    (361, 2),      // portRangeStart
    (362, 2),      // portRangeEnd
    (364, 2),      // portRangeNumPorts
    (56, 6),       // sourceMacAddress
    (243, 2),      // dot1qVlanId
    (245, 2),      // dot1qCustomerVlanId
    (284, VARIES), // natPoolName
    (82, VARIES),  // interfaceName
    (371, VARIES), // userName
];

/// natEvent (RFC 8158 section 4): port block allocation and de-allocation. An interim record is no such event.
const fn nat_event(event: Event) -> Option<u8> {
    match event {
        Event::Opened => Some(16),
        Event::Closed => Some(17),
        Event::Interim | Event::Carried => None,
    }
}

/// The records of one transport session (RFC 7011 section 2).
#[derive(Debug)]
pub(crate) struct Exporter {
    domain: u32,
    /// Records sent.
    sequence: u32,
}

impl Exporter {
    pub(crate) const fn new(domain: u32) -> Self {
        Self {
            domain,
            sequence: 0,
        }
    }

    /// Begins another transport session.
    pub(crate) const fn restart(&mut self) {
        self.sequence = 0;
    }

    /// A message of as many of the first records as `most` bytes hold (one at least), and how many of them it has used up. No
    /// message if none of them is for export.
    pub(crate) fn message<'a>(
        &mut self,
        records: impl Iterator<Item = &'a Record>,
        with_template: bool,
        most: usize,
        unix_s: u64,
    ) -> (Option<Vec<u8>>, usize) {
        let mut message = vec![0; MESSAGE_HEAD];
        if with_template {
            message.extend(template());
        }
        let set = message.len();
        message.extend(TEMPLATE.to_be_bytes());
        message.extend([0; 2]);
        let (mut used, mut exported) = (0, 0u32);
        for record in records {
            if let Some(event) = nat_event(record.event) {
                let data = data(record, event);
                if exported != 0 && message.len() + data.len() > most {
                    break;
                }
                message.extend(data);
                exported += 1;
            }
            used += 1;
        }
        if exported == 0 {
            return (None, used);
        }
        // They fit: `most` and the longest record are far below 65,536 bytes.
        let set_length = (message.len() - set) as u16;
        write(&mut message, set + 2, &set_length.to_be_bytes());
        let length = message.len() as u16;
        write(&mut message, 0, &10u16.to_be_bytes());
        write(&mut message, 2, &length.to_be_bytes());
        // Seconds, until 2106 (RFC 7011 section 3.1).
        write(&mut message, 4, &(unix_s as u32).to_be_bytes());
        write(&mut message, 8, &self.sequence.to_be_bytes());
        write(&mut message, 12, &self.domain.to_be_bytes());
        self.sequence = self.sequence.wrapping_add(exported);
        (Some(message), used)
    }
}

fn write(message: &mut [u8], at: usize, bytes: &[u8]) {
    if let Some(place) = message.get_mut(at..at + bytes.len()) {
        place.copy_from_slice(bytes);
    }
}

fn template() -> Vec<u8> {
    let length = SET_HEAD + 4 + 4 * FIELDS.len();
    let mut set = Vec::with_capacity(length);
    for number in [TEMPLATES, length as u16, TEMPLATE, FIELDS.len() as u16] {
        set.extend(number.to_be_bytes());
    }
    for (element, length) in FIELDS {
        set.extend(element.to_be_bytes());
        set.extend(length.to_be_bytes());
    }
    set
}

fn data(record: &Record, event: u8) -> Vec<u8> {
    let block = &record.block;
    let mut data = Vec::with_capacity(96);
    data.extend(record.time_ms.to_be_bytes());
    data.push(event);
    data.extend(block.inside.octets());
    data.extend(block.public.octets());
    data.extend(block.first_port.to_be_bytes());
    data.extend(block.last_port.to_be_bytes());
    let ports = block
        .last_port
        .saturating_sub(block.first_port)
        .saturating_add(1);
    data.extend(ports.to_be_bytes());
    data.extend(block.mac);
    // 0 is no VLAN's id (IEEE 802.1Q table 9-2).
    for vlan in [block.s_vlan, block.c_vlan] {
        data.extend(vlan.unwrap_or(0).to_be_bytes());
    }
    for name in [block.pool.as_bytes(), block.port.as_bytes(), &block.user] {
        match u8::try_from(name.len()) {
            Ok(short) if short < 255 => data.push(short),
            _ => {
                data.push(255);
                data.extend((name.len() as u16).to_be_bytes());
            }
        }
        data.extend(name);
    }
    data
}

#[cfg(test)]
pub(crate) mod tests;
