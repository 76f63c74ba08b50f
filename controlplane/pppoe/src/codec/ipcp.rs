//! IPCP numbers, RFC 1332 section 3 and RFC 1877.

/// Option types.
pub mod option {
    /// IP-Address, four bytes.
    pub const IP_ADDRESS: u8 = 3;
    /// Primary DNS server address, four bytes.
    pub const PRIMARY_DNS: u8 = 129;
    /// Secondary DNS server address, four bytes.
    pub const SECONDARY_DNS: u8 = 131;
}
