//! LCP numbers, RFC 1661 sections 5 and 6 and RFC 1570.

/// Packet codes; 1 to 7 are shared by LCP and the network control protocols.
pub mod code {
    /// Configure-Request.
    pub const CONFIGURE_REQUEST: u8 = 1;
    /// Configure-Ack.
    pub const CONFIGURE_ACK: u8 = 2;
    /// Configure-Nak.
    pub const CONFIGURE_NAK: u8 = 3;
    /// Configure-Reject.
    pub const CONFIGURE_REJECT: u8 = 4;
    /// Terminate-Request.
    pub const TERMINATE_REQUEST: u8 = 5;
    /// Terminate-Ack.
    pub const TERMINATE_ACK: u8 = 6;
    /// Code-Reject.
    pub const CODE_REJECT: u8 = 7;
    /// Protocol-Reject, LCP only.
    pub const PROTOCOL_REJECT: u8 = 8;
    /// Echo-Request, LCP only.
    pub const ECHO_REQUEST: u8 = 9;
    /// Echo-Reply, LCP only.
    pub const ECHO_REPLY: u8 = 10;
    /// Discard-Request, LCP only.
    pub const DISCARD_REQUEST: u8 = 11;
    /// Identification, RFC 1570 section 2.1.
    pub const IDENTIFICATION: u8 = 12;
    /// Time-Remaining, RFC 1570 section 2.2.
    pub const TIME_REMAINING: u8 = 13;
}

/// Option types.
pub mod option {
    /// Maximum-Receive-Unit, two bytes.
    pub const MRU: u8 = 1;
    /// Authentication-Protocol, two bytes and protocol data.
    pub const AUTHENTICATION_PROTOCOL: u8 = 3;
    /// Magic-Number, four bytes.
    pub const MAGIC_NUMBER: u8 = 5;
}

/// MRU a peer has that does not ask for one, in bytes (RFC 1661 section 6.1).
pub const DEFAULT_MRU: u16 = 1500;
/// Largest MRU of PPPoE without RFC 4638, in bytes (RFC 2516 section 7).
pub const PPPOE_MRU: u16 = 1492;
