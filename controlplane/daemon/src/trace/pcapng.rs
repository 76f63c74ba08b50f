//! A trace as a pcapng file, with an interface for each access port and the reason of a drop as a comment.

use std::borrow::Cow;
use std::time::Duration;

use pcap_file::pcapng::PcapNgWriter;
use pcap_file::pcapng::blocks::enhanced_packet::{EnhancedPacketBlock, EnhancedPacketOption};
use pcap_file::pcapng::blocks::interface_description::{
    InterfaceDescriptionBlock, InterfaceDescriptionOption,
};
use pcap_file::{DataLink, PcapError};

use super::TraceCopy;
use crate::settings::Settings;

/// Content type of the file.
pub(crate) const CONTENT_TYPE: &str = "application/x-pcapng";
/// `if_tsresol`: nanoseconds, in which the crate writes.
const NANOSECONDS: u8 = 9;
/// `epb_flags`: direction, seen from the gateway.
const INBOUND: u32 = 1;
const OUTBOUND: u32 = 2;

/// The whole file.
///
/// # Errors
/// None, as long as a vector takes what is written.
pub(crate) fn file(copy: &TraceCopy, settings: &Settings) -> Result<Vec<u8>, PcapError> {
    let mut writer = PcapNgWriter::new(Vec::new())?;
    let count = settings.access_ports.len();
    for port in (0u8..).take(count) {
        let name = settings.access_name(port).to_owned();
        writer.write_pcapng_block(InterfaceDescriptionBlock {
            linktype: DataLink::ETHERNET,
            snaplen: 0,
            options: vec![
                InterfaceDescriptionOption::IfName(name.into()),
                InterfaceDescriptionOption::IfTsResol(NANOSECONDS),
            ],
        })?;
    }
    for frame in &copy.frames {
        let direction = if frame.upstream { INBOUND } else { OUTBOUND };
        let mut options = vec![EnhancedPacketOption::Flags(direction)];
        let comment = frame.drop.map(|reason| format!("dropped: {reason}"));
        options.extend(comment.map(|it| EnhancedPacketOption::Comment(it.into())));
        writer.write_pcapng_block(EnhancedPacketBlock {
            interface_id: frame.access_port.into(),
            timestamp: Duration::from_nanos(frame.unix_ns),
            // Frames of a ring have at most some kilobytes.
            original_len: u32::try_from(frame.bytes.len()).unwrap_or(u32::MAX),
            data: Cow::Borrowed(&frame.bytes),
            options,
        })?;
    }
    Ok(writer.into_inner())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::trace::{Captured, TraceView};
    use pcap_file::pcapng::{Block, PcapNgReader};

    fn copy() -> TraceCopy {
        let captured = |access_port, upstream, drop, byte: u8| Captured {
            unix_ns: 1_700_000_000_123_456_789,
            access_port,
            upstream,
            drop,
            bytes: vec![byte; 61].into(),
        };
        TraceCopy {
            view: TraceView {
                id: 1,
                running: true,
                started_unix_ms: 0,
                ends_unix_ms: 0,
                with_passwords: false,
                frames: 2,
                forgotten: 0,
            },
            frames: vec![
                captured(1, true, Some("not_for_us"), 7),
                captured(0, false, None, 8),
            ],
        }
    }

    #[test]
    fn frames_come_back_with_port_time_direction_and_drop() {
        let settings = Settings::new(&crate::settings::tests::config()).unwrap();
        let file = file(&copy(), &settings).unwrap();
        let mut reader = PcapNgReader::new(&file[..]).unwrap();
        let mut names = Vec::new();
        let mut frames = Vec::new();
        while let Some(block) = reader.next_block() {
            match block.unwrap() {
                Block::InterfaceDescription(interface) => {
                    assert_eq!(interface.linktype, DataLink::ETHERNET);
                    names.push(format!("{:?}", interface.options));
                }
                Block::EnhancedPacket(packet) => {
                    assert_eq!(packet.timestamp.as_nanos(), 1_700_000_000_123_456_789);
                    let options = format!("{:?}", packet.options);
                    frames.push((
                        packet.interface_id,
                        packet.data[0],
                        packet.data.len(),
                        options,
                    ));
                }
                other => panic!("{other:?}"),
            }
        }
        let name = |name: &str| format!(r#"[IfName("{name}"), IfTsResol(9)]"#);
        assert_eq!(names, [name("access0"), name("access-1")]);
        let first = r#"[Flags(1), Comment("dropped: not_for_us")]"#.to_owned();
        assert_eq!(
            frames,
            [(1, 7, 61, first), (0, 8, 61, "[Flags(2)]".to_owned())]
        );
    }

    #[test]
    fn libpcap_reads_it() {
        let settings = Settings::new(&crate::settings::tests::config()).unwrap();
        let path = std::env::temp_dir().join(format!("ctl-pcapng-{}", std::process::id()));
        std::fs::write(&path, file(&copy(), &settings).unwrap()).unwrap();
        let mut capture = pcap::Capture::from_file(&path).unwrap();
        std::fs::remove_file(&path).unwrap();
        assert_eq!(capture.get_datalink(), pcap::Linktype::ETHERNET);
        let mut frames = Vec::new();
        while let Ok(packet) = capture.next_packet() {
            assert_eq!(packet.header.ts.tv_sec, 1_700_000_000);
            assert_eq!(packet.header.ts.tv_usec, 123_456);
            frames.push(packet.data.to_vec());
        }
        assert_eq!(frames, [vec![7; 61], vec![8; 61]]);
    }
}
