//! The one list of everything a worker counts.
//!
//! It makes the enum, the index into the shared counter array, the metric label, the operator's text
//! and the table in `docs/counters.md` (a test compares them). Adding a line changes the layout hash,
//! so two daemons built from different lists refuse each other by name.

macro_rules! counters {
    ($(
        $(#[$meta:meta])* $group:ident {
            $( $name:ident = $label:literal, $help:literal; )+
        }
    )+) => {
        /// Something a worker counts: one index into the shared counter array.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
        #[repr(u16)]
        #[non_exhaustive]
        pub enum Counter { $($( #[doc = $help] $name, )+)+ }

        impl Counter {
            /// All counters in index order.
            pub const ALL: &'static [Counter] = &[ $($( Counter::$name, )+)+ ];

            /// The group, as in the metric name.
            #[must_use]
            pub const fn group(self) -> Group {
                match self { $($( Counter::$name => Group::$group, )+)+ }
            }

            /// The label: lower case, stable, used in metrics, REST and `bngctl`.
            #[must_use]
            pub const fn label(self) -> &'static str {
                match self { $($( Counter::$name => $label, )+)+ }
            }

            /// What it means, for an operator.
            #[must_use]
            pub const fn help(self) -> &'static str {
                match self { $($( Counter::$name => $help, )+)+ }
            }

            /// Index into the counter array.
            #[inline]
            #[must_use]
            pub const fn index(self) -> usize { self as usize }
        }

        /// The kinds of counter.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
        pub enum Group { $( $(#[$meta])* $group, )+ }

        impl Group {
            /// All groups, in the list's order.
            pub const ALL: &'static [Group] = &[ $( Group::$group, )+ ];

            /// Name of the group.
            #[must_use]
            pub const fn name(self) -> &'static str {
                match self { $( Group::$group => stringify!($group), )+ }
            }
        }

        /// Number of counters.
        pub const COUNTERS: usize = Counter::ALL.len();
    };
}

counters! {
    /// Frames and bytes in and out, and hand-overs.
    Traffic {
        RxAccess = "rx_access", "Frames received on access ports.";
        RxCore = "rx_core", "Frames received on core ports.";
        RxAccessBytes = "rx_access_bytes", "Bytes received on access ports, Ethernet header included, FCS not.";
        RxCoreBytes = "rx_core_bytes", "Bytes received on core ports, Ethernet header included, FCS not.";
        TxAccess = "tx_access", "Frames given to access ports, injected ones included.";
        TxCore = "tx_core", "Frames given to core ports, host frames included.";
        TxAccessBytes = "tx_access_bytes", "Bytes given to access ports.";
        TxCoreBytes = "tx_core_bytes", "Bytes given to core ports.";
        ForwardedUpstream = "forwarded_upstream", "Packets from subscribers forwarded to the core or to another subscriber.";
        ForwardedDownstream = "forwarded_downstream", "Packets from the core forwarded to subscribers.";
        HandedOver = "handed_over", "Frames passed to the worker that owns their session.";
        TakenOver = "taken_over", "Frames received from other workers.";
        EchoAnswered = "echo_answered", "ICMP and ICMPv6 echo requests to the gateway address answered in place.";
        IcmpErrorSent = "icmp_error_sent", "ICMP and ICMPv6 errors sent in place of a dropped packet (time exceeded, fragmentation needed, packet too big, unreachable).";
        FragmentsMade = "fragments_made", "IPv4 fragments made beyond the packets they were made of.";
        FragmentsHeld = "fragments_held", "Later IPv4 fragments that had to wait for their first one, or for the worker that has it.";
        FragmentsResumed = "fragments_resumed", "Of these, fragments that wait no more: they went on, or are counted as drops.";
        MssClamped = "mss_clamped", "TCP SYN packets whose MSS option was lowered.";
    }
    /// Frames given to the control plane.
    Punt {
        PuntDiscovery = "punt_discovery", "PPPoE discovery frames given to control (RFC 2516).";
        PuntPpp = "punt_ppp", "PPP control frames of known sessions given to control.";
    }
    /// Frames given to the kernel's TAP twin, and back.
    Host {
        HostIn = "host_in", "Frames from core ports given to the kernel's TAP twin.";
        HostOut = "host_out", "Frames from the kernel's TAP twin sent on core ports.";
    }
    /// Frames from control.
    Inject {
        Injected = "injected", "Frames from control sent on access ports.";
    }
    /// What the worker did besides.
    Work {
        NatMappingCreated = "nat_mapping_created", "NAT mappings made.";
        NatMappingExpired = "nat_mapping_expired", "NAT mappings ended by age, by a closed session or by reuse.";
        ResolveRequested = "resolve_requested", "Requests to control to resolve a neighbour.";
        ControlWoken = "control_woken", "System calls made to wake the control plane.";
        Loops = "loops", "Poll loops.";
        IdleLoops = "idle_loops", "Poll loops that found nothing.";
        BusyCycles = "busy_cycles", "Time-stamp counter ticks spent in poll loops that found something.";
        IdleCycles = "idle_cycles", "Time-stamp counter ticks spent in poll loops that found nothing, back-off included.";
        LateWake = "late_wake", "Sleeps of the host path that ended by their time limit (10 ms) though there was work: a wake-up was missed.";
        IcmpErrorLimited = "icmp_error_limited", "ICMP errors not sent because of the rate limit; the packet they would have answered is counted under its own reason.";
    }
    /// What the coalescer did (coalescing is optional, and off by default).
    Coalesce {
        CoalesceFrames = "coalesce_frames", "TCP and UDP frames that could be merged with others of their flow.";
        CoalesceSingle = "coalesce_single", "Of these, frames that found no other to be merged with.";
        CoalesceMerged = "coalesce_merged", "Of these, frames that became part of a super-packet.";
        CoalesceSupers = "coalesce_supers", "Super-packets: runs of two frames or more.";
        CoalesceSegments2 = "coalesce_segments_2", "Super-packets of 2 frames.";
        CoalesceSegments4 = "coalesce_segments_4", "Super-packets of 3 or 4 frames.";
        CoalesceSegments8 = "coalesce_segments_8", "Super-packets of 5 to 8 frames.";
        CoalesceSegments16 = "coalesce_segments_16", "Super-packets of 9 to 16 frames.";
        CoalesceSegments32 = "coalesce_segments_32", "Super-packets of 17 to 32 frames.";
        CoalesceSegmentsMore = "coalesce_segments_more", "Super-packets of more than 32 frames.";
        SuperSent = "super_sent", "Super-packets given to a core port in one piece.";
        SuperHost = "super_host", "Super-packets given to the kernel's TAP twin in one piece.";
        HostSupers = "host_supers", "Super-packets of the kernel, from the TAP twin, cut into frames.";
    }
    /// Frames the coalescer left alone, by reason.
    CoalescePass {
        PassPort = "pass_port", "Port, protocol or address family is not to be coalesced.";
        PassNotIp = "pass_not_ip", "No IP packet, a group address, more than two tags, several buffers: nothing to merge.";
        PassControl = "pass_control", "PPP control, unknown PPP protocol or PPPoE discovery; the session's runs go out first.";
        PassProtocol = "pass_protocol", "Neither TCP nor UDP directly over IP.";
        PassLength = "pass_length", "Padded, or a length field does not fit.";
        PassIpHeader = "pass_ip_header", "IPv4 options or a wrong IPv4 header checksum, an IPv6 extension header; runs between the addresses go out first.";
        PassFragment = "pass_fragment", "Fragment; runs between the addresses go out first.";
        PassEmpty = "pass_empty", "No payload (a pure acknowledgement).";
        PassTcpFlags = "pass_tcp_flags", "TCP with SYN, RST or URG, or without ACK.";
        PassPush = "pass_push", "TCP with FIN or PSH and no run to join.";
        PassL4Checksum = "pass_l4_checksum", "Wrong TCP or UDP checksum.";
        PassUdpZero = "pass_udp_zero", "UDP without checksum.";
    }
    /// Runs that ended, by reason.
    CoalesceEnd {
        EndBurst = "end_burst", "End of the receive burst (hold time 0), or a poll without frames.";
        EndHold = "end_hold", "Hold time over.";
        EndQuiescent = "end_quiescent", "The worker was about to tell that it holds nothing.";
        EndShort = "end_short", "The last frame was shorter than the first.";
        EndPush = "end_push", "The last frame has PSH or FIN.";
        EndSize = "end_size", "No room for one more frame: 65,535 bytes, 64 datagrams, or the configured limit.";
        EndLarger = "end_larger", "A frame larger than the first.";
        EndSequence = "end_sequence", "TCP sequence number is not the next one.";
        EndIpId = "end_ip_id", "IPv4 identification or DF breaks the pattern.";
        EndHeader = "end_header", "TTL, TOS, flow label, VLAN priority or extension headers differ.";
        EndTcpFields = "end_tcp_fields", "TCP acknowledgement, window, options or flags differ.";
        EndFlow = "end_flow", "A frame of the flow that cannot be merged.";
        EndSession = "end_session", "A control frame of the session.";
        EndAddresses = "end_addresses", "A fragment or an unusual IP header between the addresses.";
        EndTableFull = "end_table_full", "The oldest run made room.";
        EndVerdict = "end_verdict", "A frame of the run was dropped, punted or handed over.";
    }
    /// Frames dropped, by reason.
    Drop {
        VlanNotConfigured = "vlan_not_configured", "VLAN tags that no entry of the port's `vlans` admits.";
        FrameTruncated = "frame_truncated", "Frame shorter than its Ethernet or VLAN header.";
        FrameSegmented = "frame_segmented", "Frame spread over several buffers, which no stage accepts.";
        TooManyTags = "too_many_tags", "More than two VLAN tags.";
        NotForUs = "not_for_us", "Destination MAC is not the port's.";
        NotPppoe = "not_pppoe", "EtherType on an access port other than PPPoE discovery or session.";
        PppoeTruncated = "pppoe_truncated", "Shorter than a PPPoE header.";
        PppoeVersion = "pppoe_version", "PPPoE version or type is not 1 (RFC 2516 section 4).";
        PppoeCode = "pppoe_code", "PPPoE session frame with a code other than 0.";
        PppoeLengthZero = "pppoe_length_zero", "PPPoE length 0: no PPP protocol field.";
        PppoeLengthOne = "pppoe_length_one", "PPPoE length 1: half a PPP protocol field.";
        PppoeLengthLong = "pppoe_length_long", "PPPoE length reaches beyond the frame.";
        PppProtocolCompressed = "ppp_protocol_compressed", "One-byte PPP protocol field, which is never negotiated.";
        SessionUnknown = "session_unknown", "No session with this port, session id, VLANs and MAC.";
        SessionNotOpen = "session_not_open", "Data for a session whose network phase of this protocol (IPCP, IPv6CP) is not open.";
        SessionBusy = "session_busy", "Session entry not readable: control stopped inside a write.";
        HandoverStale = "handover_stale", "Handed over, but this worker does not own the session any more.";
        HandoverFull = "handover_full", "The ring to the owning worker is full.";
        Ipv4Truncated = "ipv4_truncated", "Shorter than its IPv4 header or total length says.";
        Ipv4Header = "ipv4_header", "IPv4 version or header length is wrong.";
        Ipv4Checksum = "ipv4_checksum", "IPv4 header checksum is wrong.";
        Ipv4Options = "ipv4_options", "IPv4 options, which are not forwarded.";
        Ipv6Truncated = "ipv6_truncated", "Shorter than its IPv6 header or payload length says.";
        Ipv6Header = "ipv6_header", "IPv6 version is wrong.";
        Ipv6Extension = "ipv6_extension", "IPv6 extension headers that are truncated or longer than the gateway looks through.";
        L4Truncated = "l4_truncated", "Shorter than its TCP, UDP or ICMP header.";
        UdpLength = "udp_length", "UDP length does not fit the IP payload.";
        IcmpChecksum = "icmp_checksum", "ICMP checksum is wrong, where the gateway answers or translates the message.";
        SourceSpoofed = "source_spoofed", "Source address is not one of the session's; on a core port: is one of our pools' or no host's.";
        DestinationInvalid = "destination_invalid", "Destination is multicast, broadcast, loopback, unspecified, link-local or reserved.";
        DestinationGateway = "destination_gateway", "Packet from a subscriber to one of the gateway's own addresses, other than an ICMP echo request to the one on its session.";
        DestinationSubscriber = "destination_subscriber", "Packet to a subscriber's or a NAT pool's address from a side it must not come from.";
        NoPolicy = "no_policy", "The session's policy or filter is absent: nothing passes.";
        PolicerUpstream = "policer_upstream", "Packet from a subscriber beyond the committed rate and burst.";
        PolicerDownstream = "policer_downstream", "Packet to a subscriber beyond the committed rate and burst.";
        FilterUpstream = "filter_upstream", "Packet from a subscriber that the session's filter drops.";
        FilterDownstream = "filter_downstream", "Packet to a subscriber that the session's filter drops.";
        PuntRateLimited = "punt_rate_limited", "Frame for control beyond the limit per session.";
        EchoRateLimited = "echo_rate_limited", "ICMP echo request to the gateway above the rate limit.";
        TtlExpired = "ttl_expired", "TTL or hop limit is 1 or 0 and the packet would have to be forwarded.";
        NoRoute = "no_route", "No route to the destination.";
        RouteBlackhole = "route_blackhole", "Route is a blackhole or unreachable route.";
        NeighbourUnresolved = "neighbour_unresolved", "Next hop has no MAC address yet; the kernel was asked to resolve it.";
        PacketTooBig = "packet_too_big", "Packet is larger than the session's or the port's MTU and must not be fragmented.";
        FragmentNoBuffer = "fragment_no_buffer", "No packet buffer to fragment a packet into.";
        FragmentUnsupported = "fragment_unsupported", "ICMP error in fragments, which NAT cannot translate.";
        FragmentOverlap = "fragment_overlap", "Later TCP fragment of a session behind NAT that would lie over the TCP header (RFC 1858, RFC 3128).";
        NatFragmentNoFirst = "nat_fragment_no_first", "Later IPv4 fragment of a session behind NAT whose first one did not come within two seconds, was dropped, or is one of several to different sessions.";
        NatFragmentRoom = "nat_fragment_room", "Later IPv4 fragment of a session behind NAT without its first one, and no room to wait.";
        NatNone = "nat_none", "Session has neither a port block nor a routed address.";
        NatBlockExhausted = "nat_block_exhausted", "The subscriber's port blocks have no free port.";
        NatLimitMappings = "nat_limit_mappings", "The subscriber has as many mappings as `nat.limits` allows.";
        NatLimitRate = "nat_limit_rate", "The subscriber has made as many mappings in this second as `nat.limits` allows.";
        NatTableFull = "nat_table_full", "The worker's mapping table has no room for this mapping.";
        NatProtocol = "nat_protocol", "IP protocol without ports, which the NAT pool does not let pass.";
        NatProtocolTaken = "nat_protocol_taken", "Packet of a protocol without ports to a remote with which another subscriber behind the same NAT address exchanges it.";
        NatNoMapping = "nat_no_mapping", "Packet from the core to a NAT address and port with no mapping.";
        NatIcmpUnsupported = "nat_icmp_unsupported", "ICMP type that NAT does not translate.";
        NatIcmpEmbedded = "nat_icmp_embedded", "ICMP error whose embedded packet is truncated, corrupt or unknown.";
        HeadroomMissing = "headroom_missing", "No room in the buffer for the new headers.";
        PuntRingFull = "punt_ring_full", "Control frame dropped: the punt ring is full.";
        PuntRingReserved = "punt_ring_reserved", "Discovery frame dropped: the rest of the punt ring is kept for sessions.";
        PuntTooLong = "punt_too_long", "Control frame longer than a punt ring slot.";
        HostRingFull = "host_ring_full", "Frame for the kernel dropped: the host ring is full.";
        HostNoTwin = "host_no_twin", "Frame for the kernel dropped: the port has no TAP twin.";
        HostWriteFailed = "host_write_failed", "Frame for the kernel dropped: the TAP twin refused it.";
        HostInjectFull = "host_inject_full", "Frame from the kernel dropped: the ring to the worker is full.";
        HostOffloadInvalid = "host_offload_invalid", "Packet from the kernel dropped: its offload header makes no sense, or it is too large for a buffer.";
        InjectStale = "inject_stale", "Injected frame for a session that is gone.";
        InjectInvalid = "inject_invalid", "Injected frame with an unknown port or a bad length.";
        InjectNoBuffer = "inject_no_buffer", "No packet buffer for an injected frame.";
        RingCorrupt = "ring_corrupt", "A ring's index was nonsense; the ring was emptied.";
        TxQueueFull = "tx_queue_full", "The port's transmit queue had no room.";
    }
}

impl Counter {
    /// All drop reasons, in index order.
    pub fn drops() -> impl Iterator<Item = Counter> {
        Self::ALL
            .iter()
            .copied()
            .filter(|c| matches!(c.group(), Group::Drop))
    }

    /// Whether this counts dropped frames.
    #[must_use]
    pub const fn is_drop(self) -> bool {
        matches!(self.group(), Group::Drop)
    }
}

/// The operator's table of all counters (`docs/counters.md`).
#[must_use]
pub fn counters_markdown() -> String {
    let mut text = String::from(
        "# Counters\n\n\
         Everything a worker counts, from the one list in `dataplane/shm/src/counters.rs`. Every frame \
         ends in exactly one verdict; each drop has one reason. Do not edit this file:\n\n\
         ```text\n\
         cargo run -p bng-shm --example counters > docs/counters.md\n\
         ```\n",
    );
    for group in Group::ALL {
        text += &format!("\n## {}\n\n| label | meaning |\n|---|---|\n", group.name());
        for counter in Counter::ALL.iter().filter(|c| c.group() == *group) {
            text += &format!("| `{}` | {} |\n", counter.label(), counter.help());
        }
    }
    text
}

/// A hash over the list, part of the layout hash.
pub(crate) const fn list_hash(mut hash: u64) -> u64 {
    let mut i = 0;
    while i < COUNTERS {
        hash = crate::layout::fnv(hash, Counter::ALL[i].label().as_bytes());
        hash = crate::layout::fnv(hash, b",");
        i += 1;
    }
    hash
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use std::collections::HashSet;

    #[test]
    fn the_table_in_the_docs_is_this_list() {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/counters.md");
        let file = std::fs::read_to_string(path).unwrap_or_default();
        assert!(
            file == counters_markdown(),
            "docs/counters.md is out of date; make it anew with\n\
             cargo run -p bng-shm --example counters > docs/counters.md"
        );
    }

    #[test]
    fn labels_are_unique_and_fit_a_metric() {
        let labels: HashSet<_> = Counter::ALL.iter().map(|c| c.label()).collect();
        assert_eq!(labels.len(), COUNTERS);
        for counter in Counter::ALL {
            assert!(
                counter
                    .label()
                    .bytes()
                    .all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'_')
            );
            assert!(counter.help().ends_with('.'));
            assert_eq!(Counter::ALL[counter.index()], *counter);
        }
    }
}
