//! IPv6CP numbers, RFC 5072 section 4.

/// Option types.
pub mod option {
    /// Interface-Identifier, eight bytes (RFC 5072 section 4.1).
    pub const INTERFACE_IDENTIFIER: u8 = 1;
}
