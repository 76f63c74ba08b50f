//! The conformance cases: how they are written down, and the frames and outputs each of them stands for.

use std::collections::BTreeMap;

use bng_fastpath::testing::{Check, Kind, Recipe};
use bng_wire::MacAddr;
use serde::Deserialize;

const CASES: &str = include_str!("../coalescing-cases.yaml");

/// The file.
#[derive(Debug, Deserialize)]
pub(crate) struct File {
    pub(crate) cases: Vec<Case>,
    pub(crate) segmentation_cases: Vec<Segmentation>,
}

impl File {
    pub(crate) fn read() -> Self {
        serde_yaml::from_str(CASES).unwrap()
    }

    /// Every case for every encapsulation and family it is for.
    pub(crate) fn instances(&self) -> Vec<Instance> {
        let mut instances = Vec::new();
        for case in &self.cases {
            for encap in &case.encap {
                for family in &case.family {
                    instances.push(case.instance(*encap, *family));
                }
            }
        }
        instances
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Encap {
    Plain,
    Pppoe,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Family {
    Tcp4,
    Tcp6,
    Udp4,
    Udp6,
}

impl Family {
    pub(crate) fn is_ipv6(self) -> bool {
        matches!(self, Self::Tcp6 | Self::Udp6)
    }

    pub(crate) fn kind(self) -> Kind {
        match self {
            Self::Tcp4 | Self::Tcp6 => Kind::Tcp,
            Self::Udp4 | Self::Udp6 => Kind::Udp,
        }
    }
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Case {
    name: String,
    encap: Vec<Encap>,
    family: Vec<Family>,
    #[serde(default = "default_hold")]
    hold_us: u64,
    packets: Vec<Packet>,
    expect: Vec<Output>,
    // For people, and for builds that leave out what they may.
    #[serde(rename = "also_accept", default)]
    _also_accept: serde_yaml::Value,
    #[serde(rename = "group")]
    _group: String,
    #[serde(rename = "source")]
    _source: String,
    #[serde(rename = "level")]
    _level: String,
    #[serde(rename = "kernel_asserts_on", default)]
    _kernel_asserts_on: Vec<String>,
    #[serde(rename = "kernel_differs", default)]
    _kernel_differs: serde_yaml::Value,
    #[serde(rename = "kernel_note", default)]
    _kernel_note: String,
    #[serde(rename = "note", default)]
    _note: String,
}

fn default_hold() -> u64 {
    200
}

#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
struct Packet {
    kind: Option<String>,
    len: Option<usize>,
    #[serde(default)]
    seq: u32,
    #[serde(default)]
    ack: u32,
    win: Option<u16>,
    #[serde(default)]
    flags: Vec<String>,
    #[serde(default)]
    urgptr: u16,
    #[serde(default)]
    opts: Vec<Opt>,
    ttl: Option<u8>,
    #[serde(default)]
    tos: u8,
    #[serde(default)]
    id: u16,
    df: Option<bool>,
    #[serde(default)]
    mf: bool,
    #[serde(default)]
    ip_reserved_bit: bool,
    #[serde(default)]
    frag_off: u16,
    #[serde(default)]
    ipopt_len: usize,
    #[serde(default)]
    flow_label: u32,
    v6_dstopt: Option<String>,
    #[serde(default)]
    v6_frag_hdr: bool,
    ip_csum: Option<String>,
    l4_csum: Option<String>,
    #[serde(default)]
    udp_len_delta: i32,
    #[serde(default)]
    flow: u16,
    smac: Option<String>,
    dmac: Option<String>,
    #[serde(default)]
    vlan: Vec<u16>,
    #[serde(default)]
    pcp: u8,
    sid: Option<u16>,
    ppp: Option<u16>,
    ppp_raw: Option<String>,
    #[serde(default)]
    ppp_proto_compressed: bool,
    #[serde(default)]
    pppoe_len_delta: i32,
    pppoe_vertype: Option<u8>,
    pppoe_code: Option<u8>,
    #[serde(default)]
    pad: usize,
    #[serde(default)]
    gap_us: u64,
    repeat: Option<u16>,
    #[serde(default)]
    seq_step: u32,
    #[serde(default)]
    flow_step: u16,
}

#[derive(Debug, Clone, Deserialize)]
#[serde(untagged)]
enum Opt {
    Plain(String),
    Timestamp { ts: [u32; 2] },
    Scale { ws: u8 },
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Output {
    len: Option<usize>,
    from: Vec<Inputs>,
    #[serde(default)]
    flags: Vec<String>,
    #[serde(default)]
    out: Way,
}

#[derive(Debug, Deserialize)]
#[serde(untagged)]
enum Inputs {
    One(u32),
    Range(String),
}

/// What becomes of a frame.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, PartialOrd, Ord, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Way {
    #[default]
    Forward,
    Drop,
    Punt,
}

/// A case for one encapsulation and family.
#[derive(Debug)]
pub(crate) struct Instance {
    pub(crate) name: String,
    pub(crate) encap: Encap,
    pub(crate) family: Family,
    pub(crate) hold_ns: u64,
    pub(crate) inputs: Vec<Input>,
    /// What is to come out.
    pub(crate) expect: Vec<Expected>,
}

#[derive(Debug, Clone)]
pub(crate) struct Input {
    pub(crate) recipe: Recipe,
    /// Time since the one before; if there is any, this is the first of a burst.
    pub(crate) gap_ns: u64,
    /// What the stages decide.
    pub(crate) way: Way,
}

#[derive(Debug)]
pub(crate) struct Expected {
    /// Payload bytes.
    pub(crate) len: Option<usize>,
    pub(crate) from: Vec<u32>,
    /// TCP control bits of a merged packet.
    pub(crate) flags: u8,
    pub(crate) way: Way,
}

impl Case {
    fn instance(&self, encap: Encap, family: Family) -> Instance {
        let expect: Vec<_> = self.expect.iter().map(Output::expected).collect();
        let ways: BTreeMap<u32, Way> = expect
            .iter()
            .flat_map(|output| output.from.iter().map(|from| (*from, output.way)))
            .collect();
        let mut inputs = Vec::new();
        for packet in &self.packets {
            for n in 0..packet.repeat.unwrap_or(1) {
                inputs.push(Input {
                    recipe: packet.recipe(encap, family, n),
                    gap_ns: if n == 0 { packet.gap_us * 1_000 } else { 0 },
                    way: ways[&(inputs.len() as u32)],
                });
            }
        }
        assert_eq!(inputs.len(), ways.len(), "{}", self.name);
        Instance {
            name: format!("{}/{encap:?}/{family:?}", self.name),
            encap,
            family,
            hold_ns: self.hold_us * 1_000,
            inputs,
            expect,
        }
    }
}

impl Output {
    fn expected(&self) -> Expected {
        let from = self.from.iter().flat_map(|inputs| match inputs {
            Inputs::One(at) => *at..*at + 1,
            Inputs::Range(range) => {
                let (first, last) = range.split_once('-').unwrap();
                first.parse().unwrap()..last.parse::<u32>().unwrap() + 1
            }
        });
        Expected {
            len: self.len,
            from: from.collect(),
            flags: flags(&self.flags),
            way: self.out,
        }
    }
}

impl Packet {
    /// The `n`th of this packet's repetitions.
    fn recipe(&self, encap: Encap, family: Family, n: u16) -> Recipe {
        let kind = match self.kind.as_deref() {
            None => family.kind(),
            Some("icmp") => Kind::Icmp,
            Some("ppp") => Kind::Ppp(self.ppp.unwrap()),
            Some("ppp_raw") => Kind::PppRaw(hex(self.ppp_raw.as_deref().unwrap())),
            Some(kind) => panic!("kind {kind}"),
        };
        let session = (encap == Encap::Pppoe).then(|| self.sid.unwrap_or(0x1234));
        let base = Recipe::new(kind, family.is_ipv6(), session);
        let mac = |text: &Option<String>, default| text.as_deref().map_or(default, mac);
        Recipe {
            len: self.len.unwrap_or(base.len),
            seq: self.seq.wrapping_add(self.seq_step * u32::from(n)),
            ack: base.ack + self.ack,
            window: self.win.unwrap_or(base.window),
            flags: Recipe::ACK | flags(&self.flags),
            urgent: self.urgptr,
            options: self.opts.iter().flat_map(Opt::bytes).collect(),
            ttl: self.ttl.unwrap_or(base.ttl),
            tos: self.tos,
            id: self.id,
            df: self.df.unwrap_or(base.df),
            mf: self.mf,
            ip_reserved: self.ip_reserved_bit,
            frag_off: self.frag_off,
            ip_options: self.ipopt_len,
            flow_label: self.flow_label,
            dstopt: (self.v6_dstopt.as_deref()).map(|text| hex(text).try_into().unwrap()),
            frag_hdr: self.v6_frag_hdr,
            ip_check: check(self.ip_csum.as_deref()),
            l4_check: check(self.l4_csum.as_deref()),
            udp_len_delta: self.udp_len_delta,
            ports: (base.ports.0 + self.flow + self.flow_step * n, base.ports.1),
            smac: mac(&self.smac, base.smac),
            dmac: mac(&self.dmac, base.dmac),
            vlans: self.vlan.clone(),
            priority: self.pcp << 1,
            compressed: self.ppp_proto_compressed,
            pppoe_len_delta: self.pppoe_len_delta,
            vertype: self.pppoe_vertype.unwrap_or(base.vertype),
            code: self.pppoe_code.unwrap_or(base.code),
            pad: self.pad,
            ..base
        }
    }
}

impl Opt {
    fn bytes(&self) -> Vec<u8> {
        match self {
            Self::Plain(name) => {
                assert_eq!(name, "nop");
                vec![1]
            }
            Self::Timestamp { ts: [value, echo] } => {
                [&[8, 10][..], &value.to_be_bytes(), &echo.to_be_bytes()].concat()
            }
            Self::Scale { ws } => vec![3, 3, *ws],
        }
    }
}

pub(crate) fn flags(names: &[String]) -> u8 {
    let bit = |name: &String| match name.as_str() {
        "FIN" => Recipe::FIN,
        "SYN" => Recipe::SYN,
        "RST" => Recipe::RST,
        "PSH" => Recipe::PSH,
        "URG" => Recipe::URG,
        "ECE" => Recipe::ECE,
        "CWR" => Recipe::CWR,
        _ => panic!("flag {name}"),
    };
    names.iter().map(bit).fold(0, |bits, bit| bits | bit)
}

fn check(word: Option<&str>) -> Check {
    match word {
        None | Some("good") => Check::Good,
        Some("bad") => Check::Bad,
        Some("zero") => Check::Zero,
        Some(word) => panic!("checksum {word}"),
    }
}

fn hex(text: &str) -> Vec<u8> {
    let digits = text.as_bytes().chunks(2);
    digits
        .map(|pair| u8::from_str_radix(std::str::from_utf8(pair).unwrap(), 16).unwrap())
        .collect()
}

fn mac(text: &str) -> MacAddr {
    let bytes: Vec<u8> = text.split(':').flat_map(hex).collect();
    MacAddr(bytes.try_into().unwrap())
}

/// A super-packet and the segments it is to be cut into.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Segmentation {
    pub(crate) name: String,
    pub(crate) encap: Encap,
    pub(crate) family: Family,
    #[serde(rename = "super")]
    pub(crate) whole: Super,
    pub(crate) expect_segments: Vec<Segment>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Super {
    pub(crate) seg_len: u16,
    pub(crate) payload: usize,
    #[serde(default)]
    pub(crate) seq: u32,
    #[serde(default)]
    pub(crate) flags: Vec<String>,
    #[serde(default)]
    pub(crate) first_id: u16,
    pub(crate) id_mode: Option<IdMode>,
    pub(crate) cwr_mode: Option<CwrMode>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum IdMode {
    Inc,
    Fixed,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum CwrMode {
    Every,
    First,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Segment {
    pub(crate) len: usize,
    pub(crate) seq: Option<u32>,
    #[serde(default)]
    pub(crate) flags: Vec<String>,
    pub(crate) ip_id: Option<u16>,
    pub(crate) ip_total: Option<u16>,
    pub(crate) ip6_payload: Option<u16>,
    pub(crate) pppoe_len: Option<u16>,
    pub(crate) udp_len: Option<u16>,
    pub(crate) ip_and_below_bytes: usize,
}
