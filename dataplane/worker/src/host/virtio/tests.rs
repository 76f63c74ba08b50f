use super::*;
use bng_fastpath::testing::L4Frame;

fn header(gso_type: u8, gso_size: u16) -> VirtioHeader {
    VirtioHeader {
        flags: NEEDS_CSUM,
        gso_type,
        gso_size,
        ..VirtioHeader::PLAIN
    }
}

fn packet(ipv6: bool, tcp: bool) -> L4Frame {
    L4Frame::new(None, ipv6, tcp, &[0x61; 2_500])
}

#[test]
fn the_bytes_are_those_of_the_kernel() {
    let header = VirtioHeader {
        flags: 1,
        gso_type: 4,
        hdr_len: 0x1234,
        gso_size: 1_400,
        csum_start: 54,
        csum_offset: 16,
    };
    let bytes = header.to_bytes();
    assert_eq!(bytes[..2], [1, 4]);
    assert_eq!(bytes[2..4], 0x1234_u16.to_ne_bytes());
    assert_eq!(bytes[4..6], 1_400_u16.to_ne_bytes());
    assert_eq!(bytes[6..8], 54_u16.to_ne_bytes());
    assert_eq!(bytes[8..], 16_u16.to_ne_bytes());
    assert_eq!(VirtioHeader::from_bytes(bytes), header);
    assert_eq!(VirtioHeader::PLAIN.to_bytes(), [0; VIRTIO_LEN]);
}

#[test]
fn a_checksum_that_was_left_to_us_is_completed() {
    for (ipv6, tcp) in [(false, true), (true, true), (false, false), (true, false)] {
        let frame = L4Frame {
            payload: vec![7; 101],
            ..packet(ipv6, tcp)
        };
        let right = frame.frame();
        let start = frame.l3() + frame.l3_len();
        let offset = if tcp { 16 } else { 6 };
        // The sum of the pseudo header: what makes the whole sum to the right checksum.
        let mut bytes = right.clone();
        bytes[start + offset..start + offset + 2].fill(0);
        let rest = !Sum::new().bytes(&bytes[start..]).finish();
        let check = u16::from_be_bytes([right[start + offset], right[start + offset + 1]]);
        let pseudo = !Sum::new().word(!check).word(!rest).finish();
        bytes[start + offset..start + offset + 2].copy_from_slice(&pseudo.to_be_bytes());
        let header = VirtioHeader {
            csum_start: start as u16,
            csum_offset: offset as u16,
            ..header(GSO_NONE, 0)
        };
        assert_ne!(bytes, right);
        assert_eq!(header.accept(&mut bytes, 2_000), Ok(Packet::Frame));
        assert_eq!(bytes, right);
    }
}

#[test]
fn a_frame_without_wishes_stays_as_it_is() {
    let mut bytes = packet(false, true).frame();
    let before = bytes.clone();
    let longest = bytes.len();
    assert_eq!(
        VirtioHeader::PLAIN.accept(&mut bytes, longest),
        Ok(Packet::Frame)
    );
    assert_eq!(bytes, before);
    assert_eq!(
        VirtioHeader::PLAIN.accept(&mut bytes, longest - 1),
        Err(Invalid)
    );
}

#[test]
fn super_packets_are_taken_for_what_they_are() {
    for (gso_type, ipv6, tcp) in [
        (GSO_TCPV4, false, true),
        (GSO_TCPV6, true, true),
        (GSO_UDP_L4, false, false),
        (GSO_UDP_L4, true, false),
    ] {
        let mut bytes = packet(ipv6, tcp).frame();
        for (bit, cwr) in [(0, Cwr::Every), (GSO_ECN, Cwr::First)] {
            let how = How {
                segment: 1_000,
                ids: Ids::Rising,
                cwr,
            };
            let taken = header(gso_type | bit, 1_000).accept(&mut bytes, 1_100);
            assert_eq!(taken, Ok(Packet::Super(how)));
        }
    }
}

#[test]
fn nonsense_is_refused() {
    let tcp4 = packet(false, true).frame();
    let udp6 = packet(true, false).frame();
    let at = |csum_start: usize, csum_offset: u16| VirtioHeader {
        csum_start: csum_start as u16,
        csum_offset,
        ..header(GSO_NONE, 0)
    };
    for (header, frame) in [
        // The wrong kind, an unknown one, and fragmentation of UDP (S10).
        (header(GSO_TCPV6, 1_000), &tcp4),
        (header(GSO_UDP_L4, 1_000), &tcp4),
        (header(GSO_TCPV4, 1_000), &udp6),
        (header(3, 1_000), &udp6),
        (header(6, 1_000), &tcp4),
        (header(GSO_ECN, 1_000), &tcp4[..1_000].to_vec()),
        // Sizes.
        (header(GSO_TCPV4, 0), &tcp4),
        (header(GSO_TCPV4, 2_000), &tcp4),
        (header(GSO_TCPV4, 1_000), &tcp4[..54].to_vec()),
        (header(GSO_TCPV4, 1_000), &tcp4[..20].to_vec()),
        // Checksums outside of the frame.
        (at(1_000, 999), &tcp4[..2_000].to_vec()),
        (at(2_001, 0), &tcp4[..2_000].to_vec()),
        (at(60_000, u16::MAX), &tcp4[..2_000].to_vec()),
        (at(2_000, 0), &tcp4[..2_000].to_vec()),
        (at(1_999, 0), &tcp4[..2_000].to_vec()),
    ] {
        if header.gso_type == GSO_ECN {
            // ECN says nothing where nothing is cut.
            assert_eq!(
                VirtioHeader { flags: 0, ..header }.accept(&mut frame.clone(), 1_100),
                Ok(Packet::Frame)
            );
            continue;
        }
        assert_eq!(
            header.accept(&mut frame.clone(), 2_000),
            Err(Invalid),
            "{header:?}"
        );
    }
}
