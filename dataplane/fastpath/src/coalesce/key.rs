//! Which flow a frame belongs to (K1, K2).

use bng_wire::EthFrame;

/// Everything that tells flows apart, as words to compare and to hash. Nothing else is in it: whatever else must be the same
/// in frames that are merged is a merge condition (K4).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Key {
    /// Port, destination MAC address, number of VLAN tags; source MAC address and session id.
    link: [u64; 2],
    /// VLANs, IP version and protocol, both TCP or UDP ports.
    flow: u64,
    /// Both addresses; those of IPv4 in the first word.
    addresses: [u64; 4],
}

const PORTS: u64 = 0xffff_ffff;
const VLANS: u64 = 0x00ff_ffff << 32;
const TCP: u64 = 1 << 56;
const IPV6: u64 = 1 << 57;
const SESSION: u64 = 1 << 58;
/// Number of buckets [`Key::bucket`] tells apart.
pub(super) const BUCKETS: usize = 128;

impl Key {
    pub(super) const EMPTY: Self = Self {
        link: [0; 2],
        flow: 0,
        addresses: [0; 4],
    };

    /// The link layer's part: receive port, MAC addresses, VLANs with their number (K3: untagged and priority-tagged are
    /// different) and, if it is one, the session.
    #[inline(always)]
    pub(super) fn new(port: u8, link: &EthFrame, session: Option<u16>) -> Self {
        let tags = &link.tags;
        let place = u64::from(port) << 48 | (tags.count() as u64) << 56;
        let (id, session) = session.map_or((0, 0), |id| (u64::from(id) << 48, SESSION));
        let vlans = u64::from(tags.s_vlan()) << 12 | u64::from(tags.c_vlan());
        Self {
            link: [link.dst.to_u64() | place, link.src.to_u64() | id],
            flow: vlans << 32 | session,
            addresses: [0; 4],
        }
    }

    #[inline(always)]
    pub(super) const fn set_ipv4(&mut self, src: u32, dst: u32) {
        self.addresses = [(src as u64) << 32 | dst as u64, 0, 0, 0];
    }

    #[inline(always)]
    pub(super) fn set_ipv6(&mut self, src: &[u8; 16], dst: &[u8; 16]) {
        let [src, dst] = [src, dst].map(|address| u128::from_ne_bytes(*address));
        self.addresses = [
            src as u64,
            (src >> 64) as u64,
            dst as u64,
            (dst >> 64) as u64,
        ];
        self.flow |= IPV6;
    }

    #[inline(always)]
    pub(super) const fn set_ports(&mut self, is_tcp: bool, ports: [u8; 4]) {
        self.flow |= u32::from_ne_bytes(ports) as u64 | if is_tcp { TCP } else { 0 };
    }

    /// Whether both are of one PPPoE session.
    #[inline]
    pub(super) const fn same_session(&self, other: &Self) -> bool {
        let of = VLANS | SESSION;
        self.link[0] == other.link[0]
            && self.link[1] == other.link[1]
            && (self.flow ^ other.flow) & of == 0
    }

    /// Whether both are of one port, session and pair of addresses.
    #[inline]
    pub(super) fn same_addresses(&self, other: &Self) -> bool {
        self.link == other.link
            && (self.flow ^ other.flow) & !(PORTS | TCP) == 0
            && self.addresses == other.addresses
    }

    /// Where runs of this key are looked for. No frame's sender gains by knowing this: a search meets 64 runs at most (X1).
    #[inline(always)]
    pub(super) const fn bucket(&self) -> u8 {
        let [dst, src] = self.link;
        let [a, b, c, d] = self.addresses;
        let x = fold(self.flow ^ src.rotate_left(17), 0x9e37_79b9_7f4a_7c15);
        let y = fold(a ^ dst, 0xe703_7ed1_a0b4_28db ^ b);
        let z = fold(c ^ 0x8ebc_6af0_9c88_c6e3, d ^ 0x5899_65cc_7537_4cc3);
        ((x ^ y ^ z) >> 24) as u8 & (BUCKETS - 1) as u8
    }
}

/// Both halves of a product in one.
#[inline(always)]
const fn fold(a: u64, b: u64) -> u64 {
    let wide = a as u128 * b as u128;
    wide as u64 ^ (wide >> 64) as u64
}
