//! Bit sets of DPDK: port offloads, RSS types and the per-packet `ol_flags`.

/// Defines a set of bits with named members.
macro_rules! bit_set {
    ($(#[$doc:meta])* $set:ident { $($(#[$member_doc:meta])* $member:ident = $bits:ident;)+ }) => {
        $(#[$doc])*
        #[derive(Clone, Copy, PartialEq, Eq, Default, Hash)]
        pub struct $set(u64);

        impl $set {
            /// The empty set.
            pub const NONE: $set = $set(0);
            $($(#[$member_doc])* pub const $member: $set = $set(dpdk_sys::$bits);)+

            /// A set from DPDK's bits, unnamed ones included.
            #[must_use]
            pub const fn from_bits(bits: u64) -> Self {
                $set(bits)
            }

            /// DPDK's bits.
            #[must_use]
            pub const fn bits(self) -> u64 {
                self.0
            }

            /// Whether all of `other` is in this set.
            #[must_use]
            pub const fn contains(self, other: Self) -> bool {
                self.0 & other.0 == other.0
            }

            /// Both; as `|`, in constants too.
            #[must_use]
            pub const fn with(self, other: Self) -> Self {
                $set(self.0 | other.0)
            }

            /// Whether the set is empty.
            #[must_use]
            pub const fn is_empty(self) -> bool {
                self.0 == 0
            }

            /// What is in this set and not in `other`.
            #[must_use]
            pub const fn difference(self, other: Self) -> Self {
                $set(self.0 & !other.0)
            }
        }

        impl std::ops::BitOr for $set {
            type Output = Self;
            fn bitor(self, other: Self) -> Self {
                $set(self.0 | other.0)
            }
        }

        impl std::ops::BitAnd for $set {
            type Output = Self;
            fn bitand(self, other: Self) -> Self {
                $set(self.0 & other.0)
            }
        }

        /// Member names in lower case joined by commas, then unnamed bits in hexadecimal; `none` when empty.
        impl std::fmt::Display for $set {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                if self.is_empty() {
                    return f.write_str("none");
                }
                let mut rest = *self;
                let mut comma = "";
                $(if self.contains(Self::$member) {
                    write!(f, "{comma}{}", stringify!($member).to_ascii_lowercase())?;
                    rest = rest.difference(Self::$member);
                    comma = ",";
                })+
                if !rest.is_empty() {
                    write!(f, "{comma}{:#x}", rest.0)?;
                }
                Ok(())
            }
        }

        impl std::fmt::Debug for $set {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                write!(f, concat!(stringify!($set), "({})"), self)
            }
        }
    };
}

bit_set! {
    /// Receive offloads of a port (`RTE_ETH_RX_OFFLOAD_*`).
    RxOffloads {
        /// The outer VLAN tag is taken out of the frame and put in [`Mbuf::vlan_tci`](crate::Mbuf::vlan_tci).
        VLAN_STRIP = SHIM_RX_VLAN_STRIP;
        /// Two tags are taken out.
        QINQ_STRIP = SHIM_RX_QINQ_STRIP;
        /// The IPv4 header checksum is verified.
        IPV4_CKSUM = SHIM_RX_IPV4_CKSUM;
        /// The UDP checksum is verified.
        UDP_CKSUM = SHIM_RX_UDP_CKSUM;
        /// The TCP checksum is verified.
        TCP_CKSUM = SHIM_RX_TCP_CKSUM;
        /// TCP segments are coalesced.
        TCP_LRO = SHIM_RX_TCP_LRO;
        /// A frame larger than one mbuf becomes a chain.
        SCATTER = SHIM_RX_SCATTER;
        /// The RSS hash is delivered with the packet.
        RSS_HASH = SHIM_RX_RSS_HASH;
    }
}

bit_set! {
    /// Transmit offloads of a port (`RTE_ETH_TX_OFFLOAD_*`).
    TxOffloads {
        /// Inserts the tag in `vlan_tci`.
        VLAN_INSERT = SHIM_TX_VLAN_INSERT;
        /// Inserts two tags.
        QINQ_INSERT = SHIM_TX_QINQ_INSERT;
        /// Computes the IPv4 header checksum.
        IPV4_CKSUM = SHIM_TX_IPV4_CKSUM;
        /// Computes the UDP checksum.
        UDP_CKSUM = SHIM_TX_UDP_CKSUM;
        /// Computes the TCP checksum.
        TCP_CKSUM = SHIM_TX_TCP_CKSUM;
        /// TCP segmentation.
        TCP_TSO = SHIM_TX_TCP_TSO;
        /// Sends chains of mbufs.
        MULTI_SEGS = SHIM_TX_MULTI_SEGS;
        /// Frees without looking at the mbufs: for queues whose mbufs are all of one pool and never shared.
        MBUF_FAST_FREE = SHIM_TX_MBUF_FAST_FREE;
    }
}

bit_set! {
    /// What a port's receive-side scaling can hash (`RTE_ETH_RSS_*`).
    RssTypes {
        /// IPv4 addresses.
        IPV4 = SHIM_RSS_IPV4;
        /// IPv4 fragments.
        FRAG_IPV4 = SHIM_RSS_FRAG_IPV4;
        /// IPv4 that is neither a fragment nor TCP, UDP or SCTP.
        NONFRAG_IPV4_OTHER = SHIM_RSS_NONFRAG_IPV4_OTHER;
        /// IPv6 addresses.
        IPV6 = SHIM_RSS_IPV6;
        /// TCP ports over IPv4 and IPv6.
        TCP = SHIM_RSS_TCP;
        /// UDP ports over IPv4 and IPv6.
        UDP = SHIM_RSS_UDP;
        /// PPPoE session id and what is inside.
        PPPOE = SHIM_RSS_PPPOE;
        /// S-VLAN id.
        S_VLAN = SHIM_RSS_S_VLAN;
        /// C-VLAN id.
        C_VLAN = SHIM_RSS_C_VLAN;
        /// Modifier: the source MAC address only.
        L2_SRC_ONLY = SHIM_RSS_L2_SRC_ONLY;
        /// Modifier: the source IP address only.
        L3_SRC_ONLY = SHIM_RSS_L3_SRC_ONLY;
        /// Modifier: the destination IP address only.
        L3_DST_ONLY = SHIM_RSS_L3_DST_ONLY;
    }
}

/// Bits of [`Mbuf::ol_flags`](crate::Mbuf::ol_flags) (`RTE_MBUF_F_*`).
pub mod ol_flags {
    /// `vlan_tci` holds the tag of the received frame.
    pub const RX_VLAN: u64 = dpdk_sys::SHIM_MBUF_RX_VLAN;
    /// The tag was taken out of the frame.
    pub const RX_VLAN_STRIPPED: u64 = dpdk_sys::SHIM_MBUF_RX_VLAN_STRIPPED;
    /// `vlan_tci_outer` holds the outer of two tags.
    pub const RX_QINQ: u64 = dpdk_sys::SHIM_MBUF_RX_QINQ;
    /// Both tags were taken out of the frame.
    pub const RX_QINQ_STRIPPED: u64 = dpdk_sys::SHIM_MBUF_RX_QINQ_STRIPPED;
    /// The RSS hash is valid.
    pub const RX_RSS_HASH: u64 = dpdk_sys::SHIM_MBUF_RX_RSS_HASH;
    /// The packet was coalesced by the device.
    pub const RX_LRO: u64 = dpdk_sys::SHIM_MBUF_RX_LRO;
    /// The received IPv4 header checksum is right.
    pub const RX_IP_CKSUM_GOOD: u64 = dpdk_sys::SHIM_MBUF_RX_IP_CKSUM_GOOD;
    /// The received IPv4 header checksum is wrong.
    pub const RX_IP_CKSUM_BAD: u64 = dpdk_sys::SHIM_MBUF_RX_IP_CKSUM_BAD;
    /// The received layer 4 checksum is right.
    pub const RX_L4_CKSUM_GOOD: u64 = dpdk_sys::SHIM_MBUF_RX_L4_CKSUM_GOOD;
    /// The received layer 4 checksum is wrong.
    pub const RX_L4_CKSUM_BAD: u64 = dpdk_sys::SHIM_MBUF_RX_L4_CKSUM_BAD;
    /// Insert the tag in `vlan_tci`.
    pub const TX_VLAN: u64 = dpdk_sys::SHIM_MBUF_TX_VLAN;
    /// Insert `vlan_tci_outer` and `vlan_tci`.
    pub const TX_QINQ: u64 = dpdk_sys::SHIM_MBUF_TX_QINQ;
    /// The packet is IPv4; needed by the checksum and segmentation offloads.
    pub const TX_IPV4: u64 = dpdk_sys::SHIM_MBUF_TX_IPV4;
    /// The packet is IPv6; needed by the checksum and segmentation offloads.
    pub const TX_IPV6: u64 = dpdk_sys::SHIM_MBUF_TX_IPV6;
    /// Compute the IPv4 header checksum.
    pub const TX_IP_CKSUM: u64 = dpdk_sys::SHIM_MBUF_TX_IP_CKSUM;
    /// Compute the TCP checksum; the packet holds the pseudo-header checksum.
    pub const TX_TCP_CKSUM: u64 = dpdk_sys::SHIM_MBUF_TX_TCP_CKSUM;
    /// Compute the UDP checksum; the packet holds the pseudo-header checksum.
    pub const TX_UDP_CKSUM: u64 = dpdk_sys::SHIM_MBUF_TX_UDP_CKSUM;
    /// Cut the packet into TCP segments.
    pub const TX_TCP_SEG: u64 = dpdk_sys::SHIM_MBUF_TX_TCP_SEG;
    /// Cut the packet into UDP datagrams.
    pub const TX_UDP_SEG: u64 = dpdk_sys::SHIM_MBUF_TX_UDP_SEG;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sets_print_their_members_and_the_rest() {
        assert_eq!(RxOffloads::NONE.to_string(), "none");
        let set = RxOffloads::VLAN_STRIP | RxOffloads::SCATTER | RxOffloads::from_bits(1 << 63);
        assert_eq!(set.to_string(), "vlan_strip,scatter,0x8000000000000000");
        assert!(set.contains(RxOffloads::SCATTER));
        assert_eq!(set & RxOffloads::VLAN_STRIP, RxOffloads::VLAN_STRIP);
    }
}
