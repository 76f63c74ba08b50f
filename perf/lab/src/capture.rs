//! Packet captures, and what tshark says about the checksums in them.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use rustix::process::Signal;

use crate::command::run;
use crate::error::{LabError, Result};
use crate::namespace::Namespace;
use crate::process::Process;

/// Layers whose checksums are judged: tshark's protocol name and the preference that turns verification on.
const LAYERS: [(&str, &str); 5] = [
    ("ip", "ip.check_checksum:TRUE"),
    ("tcp", "tcp.check_checksum:TRUE"),
    ("udp", "udp.check_checksum:TRUE"),
    ("icmp", ""),
    ("icmpv6", ""),
];

/// A running capture of whole frames on one interface.
#[derive(Debug)]
pub struct Capture {
    process: Process,
    file: PathBuf,
}

impl Capture {
    /// Starts to capture on `interface`, into `DIR/NAME.pcap`; returns when frames are being taken.
    ///
    /// # Errors
    /// When tcpdump does not start.
    pub fn start(namespace: &Namespace, interface: &str, dir: &Path, name: &str) -> Result<Self> {
        let file = dir.join(format!("{name}.pcap"));
        let mut command = Command::new("tcpdump");
        command
            .args([
                "-n",
                "-s",
                "0",
                "-B",
                "65536",
                "--immediate-mode",
                "-Z",
                "root",
            ])
            .args(["-i", interface, "-w"])
            .arg(&file);
        let mut process = Process::start(namespace, dir, name, command)?;
        process.wait_for_log("listening on", 0, Duration::from_secs(60))?;
        Ok(Self { process, file })
    }

    /// Ends the capture and returns its file.
    ///
    /// # Errors
    /// When tcpdump fails, or says that frames were lost ([`LabError::Unreadable`]): a capture with holes proves nothing.
    pub fn stop(mut self) -> Result<PathBuf> {
        self.process.signal(Signal::INT)?;
        self.process.wait(Duration::from_secs(60))?;
        let log = self.process.log_tail();
        if log
            .lines()
            .any(|line| line.trim() == "0 packets dropped by kernel")
        {
            return Ok(self.file);
        }
        Err(LabError::Unreadable {
            what: format!("a capture without loss in {}", self.file.display()),
            text: log,
        })
    }
}

/// The values of `fields` in each frame of `file` that the display filter `filter` lets through, as tshark prints them; a
/// field that occurs more than once in a frame has its values separated by commas, outermost first.
///
/// # Errors
/// When tshark fails, for instance at a filter it does not understand.
pub fn dissect(file: &Path, filter: &str, fields: &[&str]) -> Result<Vec<Vec<String>>> {
    let path = file.to_string_lossy();
    let mut words = vec![
        "tshark",
        "-n",
        "-r",
        &path,
        "-Y",
        filter,
        "-T",
        "fields",
        "-E",
        "separator=/t",
    ];
    for field in fields {
        words.extend(["-e", field]);
    }
    let lines = run(&words)?;
    let columns = |line: &str| line.split('\t').map(str::to_owned).collect();
    Ok(lines.lines().map(columns).collect())
}

/// What tshark found in a capture.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct ChecksumReport {
    /// Frames in the capture.
    pub frames: u64,
    /// Checksums found good, by layer (`ip`, `tcp`, `udp`, `icmp`). Headers quoted in ICMP errors count as well.
    pub good: BTreeMap<String, u64>,
    /// One line for each frame with a bad checksum: its number, layer and tshark's summary.
    pub bad: Vec<String>,
    /// Checksums tshark could not judge, by layer: fragments and quoted headers without their whole payload.
    pub unverified: BTreeMap<String, u64>,
}

/// Lets tshark verify every IP, TCP, UDP and ICMP checksum in `file`.
///
/// # Errors
/// When tshark fails or its output is not as expected.
pub fn check_checksums(file: &Path) -> Result<ChecksumReport> {
    let path = file.to_string_lossy();
    let fields: Vec<String> = LAYERS
        .iter()
        .map(|(layer, _)| format!("{layer}.checksum.status"))
        .collect();
    let mut words = vec![
        "tshark",
        "-n",
        "-r",
        &path,
        "-T",
        "fields",
        "-E",
        "separator=/t",
        "-E",
        "occurrence=a",
    ];
    for (_, preference) in LAYERS {
        if !preference.is_empty() {
            words.extend(["-o", preference]);
        }
    }
    words.extend(["-e", "frame.number", "-e", "_ws.col.Info"]);
    for field in &fields {
        words.extend(["-e", field]);
    }
    let mut report = ChecksumReport::default();
    for line in run(&words)?.lines() {
        let mut columns = line.split('\t');
        let (Some(number), Some(info)) = (columns.next(), columns.next()) else {
            return Err(unreadable(line));
        };
        report.frames += 1;
        for ((layer, _), statuses) in LAYERS.iter().zip(columns) {
            for status in statuses.split(',').filter(|status| !status.is_empty()) {
                let layer = (*layer).to_owned();
                match status {
                    // One's complement has two zeros. Linux writes a TCP sum that comes out as zero the other way (as UDP
                    // demands), every receiver takes it, and tshark calls it bad.
                    "0" | "Bad" if layer == "tcp" && info.contains("[TCP CHECKSUM 0xFFFF]") => {
                        *report.good.entry(layer).or_default() += 1;
                    }
                    "0" | "Bad" => report.bad.push(format!("frame {number}: {layer}: {info}")),
                    "1" | "Good" => *report.good.entry(layer).or_default() += 1,
                    "2" | "Unverified" => *report.unverified.entry(layer).or_default() += 1,
                    // A UDP checksum of 0 means there is none (RFC 768).
                    "3" | "Not present" => {}
                    _ => return Err(unreadable(line)),
                }
            }
        }
    }
    Ok(report)
}

fn unreadable(line: &str) -> LabError {
    LabError::Unreadable {
        what: "the output of tshark".to_owned(),
        text: line.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// UDP in IPv4 in PPP in PPPoE, built by hand. Checksums by RFC 1071, computed with another tool.
    const FRAME: [u8; 54] = [
        0x02, 0, 0, 0, 0, 2, 0x02, 0, 0, 0, 0, 1, 0x88, 0x64, // Ethernet
        0x11, 0x00, 0x00, 0x01, 0x00, 0x22, 0x00, 0x21, // PPPoE session 1, PPP IPv4
        0x45, 0, 0, 32, 0, 1, 0, 0, 64, 17, 0, 0, 100, 64, 0, 2, 192, 0, 2,
        80, // IPv4, checksum filled in below
        0x10, 0x00, 0x20, 0x00, 0x00, 0x0c, 0, 0, b'd', b'a', b't', b'a', // UDP
    ];

    fn sum(words: &[u8], start: u32) -> u16 {
        let mut sum = start;
        for pair in words.chunks(2) {
            sum += u32::from(u16::from_be_bytes([pair[0], pair[1]]));
        }
        while sum > 0xffff {
            sum = (sum & 0xffff) + (sum >> 16);
        }
        !u16::try_from(sum).unwrap()
    }

    fn good_frame() -> [u8; 54] {
        let mut frame = FRAME;
        let ip = sum(&frame[22..42], 0);
        frame[32..34].copy_from_slice(&ip.to_be_bytes());
        let mut pseudo = frame[34..42].to_vec();
        pseudo.extend([0, 17, 0, 12]);
        let udp = sum(&[&pseudo[..], &frame[42..54]].concat(), 0);
        frame[48..50].copy_from_slice(&udp.to_be_bytes());
        frame
    }

    fn report_on<F: AsRef<[u8]>>(frames: &[F], name: &str) -> ChecksumReport {
        // Classic pcap, version 2.4, link type 1 (Ethernet).
        let mut pcap = Vec::new();
        for word in [0xa1b2_c3d4_u32, 0x0004_0002, 0, 0, 65535, 1] {
            pcap.extend(word.to_le_bytes());
        }
        for frame in frames {
            let frame = frame.as_ref();
            let length = frame.len() as u32;
            for word in [0, 0, length, length] {
                pcap.extend(word.to_le_bytes());
            }
            pcap.extend(frame);
        }
        let path = std::env::temp_dir().join(format!(
            "bng-lab-capture-{}-{name}.pcap",
            std::process::id()
        ));
        std::fs::write(&path, pcap).unwrap();
        let report = check_checksums(&path).unwrap();
        std::fs::remove_file(&path).unwrap();
        report
    }

    #[test]
    fn good_checksums_are_counted_inside_pppoe() {
        let report = report_on(&[good_frame(), good_frame()], "good");
        assert_eq!(report.frames, 2);
        assert_eq!(report.bad, Vec::<String>::new());
        assert_eq!(report.good["ip"], 2);
        assert_eq!(report.good["udp"], 2);
    }

    #[test]
    fn a_bad_checksum_is_found_on_its_layer() {
        let mut bad_ip = good_frame();
        bad_ip[32] ^= 1;
        let mut bad_udp = good_frame();
        bad_udp[53] ^= 1;
        let report = report_on(&[good_frame(), bad_ip, bad_udp], "bad");
        assert_eq!(report.frames, 3);
        assert_eq!(report.bad.len(), 2, "{:?}", report.bad);
        assert!(
            report.bad[0].starts_with("frame 2: ip:"),
            "{:?}",
            report.bad
        );
        assert!(
            report.bad[1].starts_with("frame 3: udp:"),
            "{:?}",
            report.bad
        );
    }

    /// A TCP segment whose urgent pointer brings its checksum to zero, which is then written as `zero`.
    fn tcp_frame(zero: u16) -> Vec<u8> {
        let mut frame = FRAME[..42].to_vec();
        (frame[19], frame[25], frame[31]) = (42, 40, 6);
        let ip = sum(&frame[22..42], 0);
        frame[32..34].copy_from_slice(&ip.to_be_bytes());
        let mut tcp = [0; 20];
        (tcp[0], tcp[3], tcp[12], tcp[13]) = (0x10, 80, 0x50, 0x10);
        let pseudo = [&frame[34..42], &[0, 6, 0, 20]].concat();
        let urgent = sum(&[&pseudo[..], &tcp].concat(), 0);
        tcp[18..20].copy_from_slice(&urgent.to_be_bytes());
        tcp[16..18].copy_from_slice(&zero.to_be_bytes());
        frame.extend(tcp);
        frame
    }

    #[test]
    fn either_zero_of_one_s_complement_is_a_good_tcp_checksum() {
        let report = report_on(&[tcp_frame(0), tcp_frame(0xffff), tcp_frame(1)], "zero");
        assert_eq!(report.good["tcp"], 2, "{report:?}");
        assert_eq!(report.bad.len(), 1, "{report:?}");
        assert!(report.bad[0].starts_with("frame 3: tcp:"), "{report:?}");
    }

    #[test]
    fn an_absent_udp_checksum_is_neither_good_nor_bad() {
        let mut frame = good_frame();
        frame[48..50].copy_from_slice(&[0, 0]);
        let report = report_on(&[frame], "absent");
        assert_eq!(report.bad, Vec::<String>::new());
        assert_eq!(report.good.get("udp"), None);
    }
}
