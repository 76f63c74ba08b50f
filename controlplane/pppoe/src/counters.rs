//! One list of everything the engine counts: drop reasons, outcomes and end causes.
//!
//! The list below makes the enums, the counter indices, the metric labels and the help texts, so none can be missing.

macro_rules! counters {
    (
        malformed { $($malformed:ident = $malformed_name:literal, $malformed_help:literal;)* }
        refused { $($refused:ident = $refused_name:literal, $refused_help:literal;)* }
        outcomes { $($outcome:ident = $outcome_name:literal, $outcome_help:literal;)* }
        ended { $($cause:ident = $cause_name:literal, $cause_help:literal;)* }
    ) => {
        /// Why a received frame had no effect. Each reason is a counter; none of them produces a reply.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        #[repr(u8)]
        pub enum DropReason {
            $(#[doc = $malformed_help] $malformed,)*
            $(#[doc = $refused_help] $refused,)*
        }

        impl DropReason {
            /// All reasons, in counter order.
            pub const ALL: &[Self] = &[$(Self::$malformed,)* $(Self::$refused,)*];

            /// The metric label.
            #[must_use]
            pub const fn name(self) -> &'static str {
                match self {
                    $(Self::$malformed => $malformed_name,)*
                    $(Self::$refused => $refused_name,)*
                }
            }

            /// One sentence for operators.
            #[must_use]
            pub const fn help(self) -> &'static str {
                match self {
                    $(Self::$malformed => $malformed_help,)*
                    $(Self::$refused => $refused_help,)*
                }
            }

            /// Whether the frame broke its format; the others are well-formed but unwelcome.
            #[must_use]
            pub const fn is_malformed(self) -> bool {
                matches!(self, $(Self::$malformed)|*)
            }
        }

        /// What the engine did, counted.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        #[repr(u8)]
        pub enum Outcome {
            $(#[doc = $outcome_help] $outcome,)*
        }

        impl Outcome {
            /// All outcomes, in counter order.
            pub const ALL: &[Self] = &[$(Self::$outcome,)*];

            /// The metric label.
            #[must_use]
            pub const fn name(self) -> &'static str {
                match self { $(Self::$outcome => $outcome_name,)* }
            }

            /// One sentence for operators.
            #[must_use]
            pub const fn help(self) -> &'static str {
                match self { $(Self::$outcome => $outcome_help,)* }
            }
        }

        /// Why a session ended.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        #[repr(u8)]
        pub enum TerminateCause {
            $(#[doc = $cause_help] $cause,)*
        }

        impl TerminateCause {
            /// All causes, in counter order.
            pub const ALL: &[Self] = &[$(Self::$cause,)*];

            /// The metric label, also shown to operators.
            #[must_use]
            pub const fn name(self) -> &'static str {
                match self { $(Self::$cause => $cause_name,)* }
            }

            /// One sentence for operators.
            #[must_use]
            pub const fn help(self) -> &'static str {
                match self { $(Self::$cause => $cause_help,)* }
            }
        }
    };
}

counters! {
    malformed {
        FrameTruncated = "frame_truncated", "Frame shorter than its Ethernet or VLAN header.";
        TooManyTags = "too_many_tags", "More than two VLAN tags.";
        SourceMac = "source_mac", "Source address is a group address, zero or our own.";
        PppoeTruncated = "pppoe_truncated", "Frame shorter than its PPPoE header.";
        PppoeVersion = "pppoe_version", "PPPoE version or type is not 1.";
        PppoeLength = "pppoe_length", "PPPoE length goes past the frame.";
        PppoeSessionCode = "pppoe_session_code", "Session-stage frame with a code other than 0.";
        PppLength = "ppp_length", "Session-stage frame too short for a PPP protocol field.";
        PppCompressedProtocol = "ppp_compressed_protocol", "One-byte PPP protocol field, which was never negotiated.";
        DiscoveryCode = "discovery_code", "Discovery code that is unknown or never sent to an access concentrator.";
        DiscoverySessionId = "discovery_session_id", "PADI or PADR with a session id, or PADT without one.";
        Destination = "destination", "PADI not broadcast, or another frame not unicast to us.";
        TagTruncated = "tag_truncated", "Discovery tag list ends inside a tag header.";
        TagLength = "tag_length", "Discovery tag length goes past the tag list.";
        VendorTagLength = "vendor_tag_length", "Vendor-Specific tag too short, or an access-line item goes past it.";
        ControlTruncated = "control_truncated", "PPP control packet shorter than its header.";
        ControlLength = "control_length", "PPP control packet length below 4 or past the PPPoE payload.";
        OptionTruncated = "option_truncated", "Option list ends inside an option header.";
        OptionLength = "option_length", "Option length below 2 or past the option list.";
        AckMismatch = "ack_mismatch", "Configure-Ack whose options are not those we sent.";
        RejectMismatch = "reject_mismatch", "Configure-Reject with an option we did not send.";
        CodeRejectShort = "code_reject_short", "Code-Reject without the rejected packet.";
        ProtocolRejectShort = "protocol_reject_short", "Protocol-Reject without a protocol number.";
        MagicTruncated = "magic_truncated", "Echo, Discard-Request, Identification or Time-Remaining without a magic number.";
        PapLength = "pap_length", "PAP name or password length goes past the packet.";
        PapCode = "pap_code", "PAP code that is unknown or only an authenticator sends.";
        ChapLength = "chap_length", "CHAP value that is empty, not of MD5's length or goes past the packet, or a name over 255 bytes.";
        ChapCode = "chap_code", "CHAP code that is unknown or only an authenticator sends.";
        Ipv6Truncated = "ipv6_truncated", "IPv6 packet shorter than its header.";
        Ipv6Version = "ipv6_version", "IPv6 packet whose version is not 6.";
        Ipv6Length = "ipv6_length", "IPv6 payload length goes past the PPP packet.";
        Ipv6Source = "ipv6_source", "ICMPv6 from a multicast address.";
        Icmpv6Truncated = "icmpv6_truncated", "ICMPv6 message shorter than its type needs.";
        Icmpv6Checksum = "icmpv6_checksum", "ICMPv6 checksum is wrong.";
        NdHopLimit = "nd_hop_limit", "Neighbour discovery whose hop limit is not 255, so that a router has passed it on.";
        NdCode = "nd_code", "Neighbour discovery with a code other than 0.";
        NdOption = "nd_option", "Neighbour discovery with an option of length 0, past the message, or not allowed there.";
        UdpLength = "udp_length", "UDP datagram shorter than its header, or whose length goes past the IPv6 packet.";
        UdpChecksum = "udp_checksum", "UDP checksum of DHCPv6 is wrong or missing.";
        Dhcpv6Truncated = "dhcpv6_truncated", "DHCPv6 message shorter than its header.";
        Dhcpv6Option = "dhcpv6_option", "DHCPv6 option that goes past what it is in, is too short for its type, or is there twice.";
        Dhcpv6Identifier = "dhcpv6_identifier", "DHCPv6 message without an identifier or with one or an identity association its type must not have.";
    }
    refused {
        PortUnknown = "port_unknown", "Frame from a port the engine was not configured with.";
        VlanNotConfigured = "vlan_not_configured", "Discovery on a VLAN the access port does not serve.";
        NotPppoe = "not_pppoe", "EtherType is neither PPPoE discovery nor PPPoE session.";
        PadiPortRate = "padi_port_rate", "PADI above the access port's rate.";
        PadiMacRate = "padi_mac_rate", "PADI above the rate of one MAC address.";
        PadiServiceName = "padi_service_name", "PADI for a Service-Name we do not offer.";
        PadiBusy = "padi_busy", "PADI while a session limit is reached.";
        PadiHalfOpen = "padi_half_open", "PADI while half-open sessions are above three quarters of their limit, or all are taken or under way; the rest is for clients that have a PADO.";
        PadiLockedOut = "padi_locked_out", "PADI of a client that kept failing.";
        PadrLockedOut = "padr_locked_out", "PADR with a valid AC-Cookie of a client that kept failing.";
        ReplyTooLarge = "reply_too_large", "Discovery request whose reply would exceed the MTU.";
        CookieMissing = "cookie_missing", "PADR without AC-Cookie.";
        CookieForged = "cookie_forged", "PADR whose AC-Cookie is not ours for this port, VLANs and MAC.";
        CookieExpired = "cookie_expired", "PADR whose AC-Cookie is too old.";
        SessionUnknown = "session_unknown", "Session frame or PADT for a session id not in use.";
        SessionMismatch = "session_mismatch", "Session frame or PADT whose VLANs or MAC are not the session's.";
        PppOversize = "ppp_oversize", "PPP packet longer than the link's largest MRU, or a ping whose reply would exceed the peer's.";
        SessionEnding = "session_ending", "Frame for a session that is being terminated.";
        StaleReply = "stale_reply", "Configure-Ack, -Nak or -Reject that answers no request of ours, or one more often than it was sent.";
        BeforeOpened = "before_opened", "PPP packet that counts only once LCP is Opened.";
        BeforeNetwork = "before_network", "Network-phase packet before authentication succeeded.";
        DataPunted = "data_punted", "IPv4 data that reached the control plane.";
        Ipv6NotOpen = "ipv6_not_open", "IPv6 packet before IPv6CP is Opened.";
        Ipv6Ignored = "ipv6_ignored", "IPv6 packet nobody here answers: MLD, other control or data.";
        SolicitationRate = "solicitation_rate", "Router or neighbour solicitation, or ping of our link-local address, above the session's rate.";
        Dhcpv6Relay = "dhcpv6_relay", "DHCPv6 of a relay agent; a subscriber is a client.";
        Dhcpv6Type = "dhcpv6_type", "DHCPv6 message type that is unknown or that only a server sends.";
        Dhcpv6TooMany = "dhcpv6_too_many", "DHCPv6 message with more than 8 identity associations, or more than 8 addresses and prefixes in them.";
        Dhcpv6OtherServer = "dhcpv6_other_server", "DHCPv6 message to another server.";
        Dhcpv6Source = "dhcpv6_source", "DHCPv6 message that is not from a link-local address.";
        Dhcpv6Destination = "dhcpv6_destination", "DHCPv6 message to an address that is not ours, or to ours what goes to all servers.";
        Dhcpv6Rate = "dhcpv6_rate", "DHCPv6 message above the session's rate.";
        Dhcpv6NothingToConfirm = "dhcpv6_nothing_to_confirm", "DHCPv6 Confirm without an address.";
        PapOutstanding = "pap_outstanding", "PAP request with other credentials while one is being decided.";
        ChapStale = "chap_stale", "CHAP Response to another challenge than the latest.";
        AuthMismatch = "auth_mismatch", "PAP or CHAP packet while the other protocol was agreed on.";
        RejectRate = "reject_rate", "Code-Reject or Protocol-Reject suppressed by its rate limit.";
        EchoLooped = "echo_looped", "Echo-Request or Discard-Request carrying our own magic number.";
    }
    outcomes {
        Padi = "padi", "PADI received well-formed.";
        PadoSent = "pado_sent", "PADO sent.";
        PadoDelayed = "pado_delayed", "PADO held back for the configured delay.";
        PadoEarly = "pado_early", "PADO sent before its delay was over because too many waited.";
        Padr = "padr", "PADR received with a valid AC-Cookie.";
        PadrRepeated = "padr_repeated", "PADR answered with the session it already has.";
        PadsSent = "pads_sent", "PADS sent with a session id.";
        PadsServiceNameError = "pads_service_name_error", "PADR refused: Service-Name not offered.";
        PadsMacLimit = "pads_mac_limit", "PADR refused: sessions per MAC.";
        PadsCircuitLimit = "pads_circuit_limit", "PADR refused: sessions per circuit.";
        PadsPortLimit = "pads_port_limit", "PADR refused: sessions per port.";
        PadsHalfOpenLimit = "pads_half_open_limit", "PADR refused: half-open sessions.";
        PadsNoSessionId = "pads_no_session_id", "PADR refused: out of session ids.";
        PadtReceived = "padt_received", "PADT received for a session of ours.";
        PadtSent = "padt_sent", "PADT sent.";
        SessionsAdopted = "sessions_adopted", "Sessions taken over from a record.";
        LcpOpened = "lcp_opened", "LCP reached Opened.";
        LcpRenegotiated = "lcp_renegotiated", "LCP left Opened because the peer negotiates again.";
        Retransmissions = "retransmissions", "Configure- and Terminate-Requests sent again after a timeout.";
        EarlyRetransmissions = "early_retransmissions", "First Configure-Request sent again when the peer's arrived.";
        AnswersRepeated = "configure_answers_repeated", "Configure-Acks, -Naks and -Rejects of a request that we had sent more than once and that was answered before.";
        RequestsRepeated = "configure_requests_repeated", "Configure-Requests the peer sent again before it had our Ack; acknowledged again, nothing renegotiated.";
        PapRequests = "pap_requests", "PAP requests handed to AAA.";
        PapRepeated = "pap_repeated", "PAP requests answered without asking AAA again.";
        PapEmptyPassword = "pap_empty_password", "PAP requests with an empty password, refused without asking AAA.";
        PapAck = "pap_ack", "PAP Authenticate-Ack sent.";
        PapNak = "pap_nak", "PAP Authenticate-Nak sent.";
        ChapChallenges = "chap_challenges", "CHAP Challenges sent.";
        ChapRechallenges = "chap_rechallenges", "CHAP Challenges to peers that were accepted before; those sent again not counted.";
        ChapResponses = "chap_responses", "CHAP Responses handed to AAA.";
        ChapRepeated = "chap_repeated", "CHAP Responses answered without asking AAA again.";
        ChapNameChanged = "chap_name_changed", "CHAP Responses to a repeated Challenge under another name than the session's, refused without asking AAA.";
        ChapUndecided = "chap_undecided", "Repeated CHAP proofs nobody decided on; the session went on.";
        ChapSuccess = "chap_success", "CHAP Success sent.";
        ChapFailure = "chap_failure", "CHAP Failure sent.";
        IpcpOpened = "ipcp_opened", "IPCP reached Opened.";
        Ipv6cpOpened = "ipv6cp_opened", "IPv6CP reached Opened.";
        RouterSolicitations = "router_solicitations", "Router solicitations answered.";
        Dhcpv6Advertises = "dhcpv6_advertises", "DHCPv6 Advertise sent.";
        Dhcpv6Replies = "dhcpv6_replies", "DHCPv6 Reply sent.";
        Dhcpv6Unicasts = "dhcpv6_unicasts", "DHCPv6 messages to our own address, answered that they are to go to all servers.";
        Dhcpv6Releases = "dhcpv6_releases", "DHCPv6 Release answered; the session keeps its prefixes.";
        Dhcpv6Declines = "dhcpv6_declines", "DHCPv6 Decline answered; its address is not given again until IPv6CP opens anew.";
        RouterAdvertisements = "router_advertisements", "Router advertisements sent.";
        NeighbourAdvertisements = "neighbour_advertisements", "Neighbour advertisements of our link-local address sent.";
        EchoReplies6 = "icmpv6_echo_replies", "Pings of our link-local address answered.";
        EchoRequestsSent = "echo_requests_sent", "LCP Echo-Request sent.";
        StaleProbes = "stale_probes", "LCP Echo-Request sent because the client of a session wants another one at its limit.";
        EchoRepliesReceived = "echo_replies_received", "LCP Echo-Reply received.";
        EchoRepliesSent = "echo_replies_sent", "LCP Echo-Reply sent.";
        CodeRejectsSent = "code_rejects_sent", "Code-Reject sent.";
        ProtocolRejectsSent = "protocol_rejects_sent", "Protocol-Reject sent.";
    }
    ended {
        PeerTerminated = "peer_terminated", "The peer sent an LCP Terminate-Request.";
        PeerPadt = "peer_padt", "The peer sent a PADT.";
        Operator = "operator", "An operator ended the session.";
        Shutdown = "shutdown", "The gateway is going down.";
        Displaced = "displaced", "Half-open sessions were at their limit; this one's peer had said nothing and another client came.";
        PortDown = "port_down", "The access port went down, or came back with another MAC address before the session was up.";
        SessionTimeout = "session_timeout", "The session's time was used up.";
        IdleTimeout = "idle_timeout", "No traffic for the idle time.";
        Quota = "quota", "The session's bytes were used up.";
        Replaced = "replaced", "The same client or user came with a new session.";
        AaaDisconnect = "aaa_disconnect", "AAA asked for the end (RFC 5176).";
        DeadPeer = "dead_peer", "The peer answered no Echo-Request and sent nothing else.";
        SetupTimeout = "setup_timeout", "The network phase was not reached in time.";
        LcpTimeout = "lcp_timeout", "The peer did not answer our LCP Configure-Requests.";
        LoopedBack = "looped_back", "The link is looped back: the peer's magic number is ours.";
        ProtocolError = "protocol_error", "The peer rejected a code or protocol PPP cannot do without.";
        AuthRefused = "auth_refused", "The peer refused to authenticate.";
        AuthTimeout = "auth_timeout", "The peer sent no credentials in time.";
        WrongCredentials = "wrong_credentials", "Unknown user or wrong password.";
        PoolEmpty = "pool_empty", "No address was left for the subscriber.";
        AaaUnavailable = "aaa_unavailable", "Nobody could decide on the credentials.";
        AaaRefused = "aaa_refused", "AAA refused the subscriber for another reason than the credentials.";
        IpcpTimeout = "ipcp_timeout", "The peer did not answer our IPCP Configure-Requests.";
        IpcpFailed = "ipcp_failed", "The peer insisted on another address than the one it was given.";
        IpcpRefused = "ipcp_refused", "The peer rejected IPCP, the last network protocol.";
        IpcpClosed = "ipcp_closed", "The peer closed IPCP, the last network protocol.";
        Ipv6cpTimeout = "ipv6cp_timeout", "The peer did not answer our IPv6CP Configure-Requests, and IPCP is not open.";
        Ipv6cpFailed = "ipv6cp_failed", "No interface identifiers could be agreed on, and IPCP is not open.";
        Ipv6cpRefused = "ipv6cp_refused", "The peer rejected IPv6CP, the last network protocol.";
        Ipv6cpClosed = "ipv6cp_closed", "The peer closed IPv6CP, the last network protocol.";
    }
}

const DROPS: usize = DropReason::ALL.len();
const OUTCOMES: usize = Outcome::ALL.len();
const CAUSES: usize = TerminateCause::ALL.len();

/// One counter as it is read out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CounterValue {
    /// `drop`, `outcome` or `ended`.
    pub group: &'static str,
    /// The metric label, unique within its group.
    pub name: &'static str,
    /// One sentence for operators.
    pub help: &'static str,
    /// Events since the engine was made.
    pub value: u64,
}

/// All counters of an engine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Counters {
    drops: [u64; DROPS],
    outcomes: [u64; OUTCOMES],
    ended: [u64; CAUSES],
}

impl Default for Counters {
    fn default() -> Self {
        Self {
            drops: [0; DROPS],
            outcomes: [0; OUTCOMES],
            ended: [0; CAUSES],
        }
    }
}

impl Counters {
    /// Frames dropped for `reason`.
    #[must_use]
    pub fn dropped(&self, reason: DropReason) -> u64 {
        self.drops[reason as usize]
    }

    /// How often `outcome` happened.
    #[must_use]
    pub fn outcome(&self, outcome: Outcome) -> u64 {
        self.outcomes[outcome as usize]
    }

    /// Sessions that ended for `cause`.
    #[must_use]
    pub fn ended(&self, cause: TerminateCause) -> u64 {
        self.ended[cause as usize]
    }

    /// Every counter, zero ones included, in a fixed order.
    pub fn iter(&self) -> impl Iterator<Item = CounterValue> + '_ {
        let drops = DropReason::ALL.iter().map(|d| CounterValue {
            group: "drop",
            name: d.name(),
            help: d.help(),
            value: self.dropped(*d),
        });
        let outcomes = Outcome::ALL.iter().map(|o| CounterValue {
            group: "outcome",
            name: o.name(),
            help: o.help(),
            value: self.outcome(*o),
        });
        let ended = TerminateCause::ALL.iter().map(|c| CounterValue {
            group: "ended",
            name: c.name(),
            help: c.help(),
            value: self.ended(*c),
        });
        drops.chain(outcomes).chain(ended)
    }

    pub(crate) fn count_drop(&mut self, reason: DropReason) {
        self.drops[reason as usize] += 1;
    }

    pub(crate) fn count(&mut self, outcome: Outcome) {
        self.outcomes[outcome as usize] += 1;
    }

    pub(crate) fn count_end(&mut self, cause: TerminateCause) {
        self.ended[cause as usize] += 1;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::collections::BTreeSet;

    #[test]
    fn labels_are_unique_within_a_group_and_indices_match() {
        let mut counters = Counters::default();
        for reason in DropReason::ALL {
            counters.count_drop(*reason);
        }
        for outcome in Outcome::ALL {
            counters.count(*outcome);
        }
        for cause in TerminateCause::ALL {
            counters.count_end(*cause);
        }
        let all: alloc::vec::Vec<_> = counters.iter().collect();
        assert!(all.iter().all(|c| c.value == 1));
        let labels: BTreeSet<_> = all.iter().map(|c| (c.group, c.name)).collect();
        assert_eq!(labels.len(), all.len());
    }
}
