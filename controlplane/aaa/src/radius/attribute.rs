//! Attribute types (RFC 2865, 2866, 2869, 3162, 4675, 4818, 5176, 6911, 8045) and those of vendors.

#![allow(missing_docs)]

pub const USER_NAME: u8 = 1;
pub const USER_PASSWORD: u8 = 2;
pub const CHAP_PASSWORD: u8 = 3;
pub const NAS_IP_ADDRESS: u8 = 4;
pub const NAS_PORT: u8 = 5;
pub const SERVICE_TYPE: u8 = 6;
pub const FRAMED_PROTOCOL: u8 = 7;
pub const FRAMED_IP_ADDRESS: u8 = 8;
pub const FILTER_ID: u8 = 11;
pub const REPLY_MESSAGE: u8 = 18;
pub const FRAMED_ROUTE: u8 = 22;
pub const STATE: u8 = 24;
pub const CLASS: u8 = 25;
pub const VENDOR_SPECIFIC: u8 = 26;
pub const SESSION_TIMEOUT: u8 = 27;
pub const IDLE_TIMEOUT: u8 = 28;
pub const CALLED_STATION_ID: u8 = 30;
pub const CALLING_STATION_ID: u8 = 31;
pub const NAS_IDENTIFIER: u8 = 32;
pub const PROXY_STATE: u8 = 33;
pub const ACCT_STATUS_TYPE: u8 = 40;
pub const ACCT_DELAY_TIME: u8 = 41;
pub const ACCT_INPUT_OCTETS: u8 = 42;
pub const ACCT_OUTPUT_OCTETS: u8 = 43;
pub const ACCT_SESSION_ID: u8 = 44;
pub const ACCT_AUTHENTIC: u8 = 45;
pub const ACCT_SESSION_TIME: u8 = 46;
pub const ACCT_INPUT_PACKETS: u8 = 47;
pub const ACCT_OUTPUT_PACKETS: u8 = 48;
pub const ACCT_TERMINATE_CAUSE: u8 = 49;
pub const ACCT_INPUT_GIGAWORDS: u8 = 52;
pub const ACCT_OUTPUT_GIGAWORDS: u8 = 53;
pub const EVENT_TIMESTAMP: u8 = 55;
pub const CHAP_CHALLENGE: u8 = 60;
pub const NAS_PORT_TYPE: u8 = 61;
pub const MESSAGE_AUTHENTICATOR: u8 = 80;
pub const ACCT_INTERIM_INTERVAL: u8 = 85;
pub const NAS_PORT_ID: u8 = 87;
pub const FRAMED_POOL: u8 = 88;
pub const NAS_IPV6_ADDRESS: u8 = 95;
pub const FRAMED_INTERFACE_ID: u8 = 96;
pub const FRAMED_IPV6_PREFIX: u8 = 97;
pub const ERROR_CAUSE: u8 = 101;
pub const DELEGATED_IPV6_PREFIX: u8 = 123;
pub const DNS_SERVER_IPV6_ADDRESS: u8 = 169;
/// Extended type 1 (RFC 6929); its first octet is the extended type.
pub const EXTENDED_1: u8 = 241;

pub const MICROSOFT: u32 = 311;
pub const MS_PRIMARY_DNS_SERVER: u8 = 28;
pub const MS_SECONDARY_DNS_SERVER: u8 = 29;

/// ADSL Forum, now Broadband Forum (RFC 4679).
pub const ADSL_FORUM: u32 = 3561;
pub const AGENT_CIRCUIT_ID: u8 = 1;
pub const AGENT_REMOTE_ID: u8 = 2;

pub const WISPR: u32 = 14122;
pub const WISPR_BANDWIDTH_MAX_UP: u8 = 7;
pub const WISPR_BANDWIDTH_MAX_DOWN: u8 = 8;

pub const MIKROTIK: u32 = 14988;
pub const MIKROTIK_RATE_LIMIT: u8 = 8;
pub const MIKROTIK_TOTAL_LIMIT: u8 = 17;
pub const MIKROTIK_TOTAL_LIMIT_GIGAWORDS: u8 = 18;

/// Service-Type Framed.
pub const FRAMED: u32 = 2;
/// Service-Type Authorize Only (RFC 5176 section 3.1).
pub const AUTHORIZE_ONLY: u32 = 17;
/// Framed-Protocol PPP.
pub const PPP: u32 = 1;
