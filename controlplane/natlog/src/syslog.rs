//! Records as syslog messages with structured data (RFC 5424).

use std::fmt::Write;

use crate::record::Record;
use crate::time;

/// Facility local0, severity informational (RFC 5424 section 6.2.1).
const PRIORITY: u8 = 16 * 8 + 6;

/// A message without framing. Its structured data has the enterprise number that is set aside for examples (RFC 5612), as there is
/// none of ours.
pub(crate) fn message(record: &Record, hostname: &str) -> Vec<u8> {
    let block = &record.block;
    let event = record.event.name();
    let mut text = format!(
        "<{PRIORITY}>1 {} {hostname} ironbng - NATBLOCK [nat@32473 event=\"{event}\" number=\"{}\"",
        time::text(record.time_ms),
        record.number
    );
    let mut put = |name: &str, value: &[u8]| {
        let _ = write!(text, " {name}=\"");
        escape(&mut text, value);
        text.push('"');
    };
    let [a, b, c, d, e, f] = block.mac;
    put("pool", block.pool.as_bytes());
    put("address", block.public.to_string().as_bytes());
    put("first_port", block.first_port.to_string().as_bytes());
    put("last_port", block.last_port.to_string().as_bytes());
    put("inside", block.inside.to_string().as_bytes());
    put("user", &block.user);
    let mac = format!("{a:02x}:{b:02x}:{c:02x}:{d:02x}:{e:02x}:{f:02x}");
    put("mac", mac.as_bytes());
    put("access_port", block.port.as_bytes());
    for (name, vlan) in [("s_vlan", block.s_vlan), ("c_vlan", block.c_vlan)] {
        if let Some(vlan) = vlan {
            put(name, vlan.to_string().as_bytes());
        }
    }
    put(
        "session",
        format!("{:016X}", block.accounting_id).as_bytes(),
    );
    put("opened", time::text(record.opened_ms).as_bytes());
    text.push(']');
    text.into_bytes()
}

/// The message before which its length stands (RFC 6587 section 3.4.1).
pub(crate) fn counted(message: &[u8]) -> Vec<u8> {
    let mut framed = format!("{} ", message.len()).into_bytes();
    framed.extend(message);
    framed
}

/// `"`, `\` and `]` have a backslash before them (RFC 5424 section 6.3.3); what is not text is written as its bytes.
fn escape(out: &mut String, value: &[u8]) {
    for chunk in value.utf8_chunks() {
        for it in chunk.valid().chars() {
            match it {
                '"' | '\\' | ']' => out.extend(['\\', it]),
                it if it.is_control() => {
                    let mut bytes = [0; 4];
                    hex(out, it.encode_utf8(&mut bytes).as_bytes());
                }
                it => out.push(it),
            }
        }
        hex(out, chunk.invalid());
    }
}

fn hex(out: &mut String, bytes: &[u8]) {
    for byte in bytes {
        let _ = write!(out, "\\\\x{byte:02x}");
    }
}

/// A name of the machine that a header may hold (RFC 5424 section 6.2.4); `-` for one that it may not.
pub(crate) fn hostname(name: &[u8]) -> String {
    let is_good = !name.is_empty() && name.len() <= 255 && name.iter().all(u8::is_ascii_graphic);
    match is_good {
        true => String::from_utf8_lossy(name).into_owned(),
        false => "-".to_owned(),
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use crate::record::Event;
    use crate::record::tests::block;
    use std::collections::BTreeMap;

    /// A reader of its own of header and structured data, as RFC 5424 section 6 has them.
    pub(crate) fn parse(message: &[u8]) -> BTreeMap<String, String> {
        let text = std::str::from_utf8(message).unwrap();
        let mut parts = text.splitn(7, ' ');
        assert_eq!(parts.next(), Some("<134>1"));
        let time = parts.next().unwrap();
        assert!(crate::time::parse(time).is_some(), "{time}");
        assert!(!parts.next().unwrap().is_empty());
        assert_eq!(parts.next(), Some("ironbng"));
        assert_eq!(parts.next(), Some("-"));
        assert_eq!(parts.next(), Some("NATBLOCK"));
        let mut rest = parts.next().unwrap().strip_prefix("[nat@32473").unwrap();
        let mut found = BTreeMap::from([("time".to_owned(), time.to_owned())]);
        while let Some(parameter) = rest.strip_prefix(' ') {
            let (name, value) = parameter.split_once("=\"").unwrap();
            let mut text = String::new();
            let mut chars = value.char_indices();
            let end = loop {
                match chars.next().unwrap() {
                    (at, '"') => break at,
                    (_, ']') => panic!("a bare bracket"),
                    (_, '\\') => match chars.next().unwrap().1 {
                        it @ ('"' | '\\' | ']') => text.push(it),
                        it => panic!("{it}"),
                    },
                    (_, it) => text.push(it),
                }
            };
            rest = &value[end + 1..];
            assert!(found.insert(name.to_owned(), text).is_none());
        }
        assert_eq!(rest, "]");
        found
    }

    #[test]
    fn a_reader_of_the_rfc_finds_everything_also_in_strange_names() {
        let mut block = block(8);
        block.user = b"a\"b]c\\d\n\xff\xc3\xa9".to_vec();
        let record = Record {
            event: Event::Closed,
            number: 12,
            time_ms: 1_700_000_000_123,
            opened_ms: 1_700_000_000_000,
            block,
        };
        let found = parse(&message(&record, &hostname(b"bng1")));
        for (name, expected) in [
            ("time", "2023-11-14T22:13:20.123Z"),
            ("event", "closed"),
            ("number", "12"),
            ("pool", "cgn"),
            ("address", "198.51.100.0"),
            ("first_port", "5120"),
            ("last_port", "5631"),
            ("inside", "100.64.0.8"),
            ("user", "a\"b]c\\d\\x0a\\xffé"),
            ("mac", "02:00:00:00:00:08"),
            ("access_port", "access0"),
            ("s_vlan", "100"),
            ("c_vlan", "8"),
            ("session", "0000000000001B60"),
            ("opened", "2023-11-14T22:13:20.000Z"),
        ] {
            assert_eq!(
                found.get(name).map(String::as_str),
                Some(expected),
                "{name}"
            );
        }
        assert_eq!(hostname("é".as_bytes()), "-");
        assert_eq!(hostname(b"a b"), "-");
    }

    #[test]
    fn a_counted_message_has_its_length_in_bytes_before_it() {
        assert_eq!(counted("é".as_bytes()), "2 é".as_bytes());
    }
}
