//! What is said of a subscriber and its session: attributes of Access-Request and Accounting-Request.

use std::net::Ipv4Addr;
use std::time::Duration;

use super::attribute as a;
use super::client::{Draft, Kind};
use super::packet::{HEADER, LONGEST, List, TooLong, VALUE_MAX};
use crate::accounting::{Accounting, Line, Status};
use crate::authenticator::{AuthRequest, Credentials};
use crate::prefix_pool::Prefix;

/// NAS-Port-Type Ethernet.
const ETHERNET: u32 = 15;
/// Acct-Status-Type of the gateway itself.
const ACCOUNTING_ON: u32 = 7;
/// Most octets of the attributes of an Accounting-Request: Message-Authenticator and Acct-Delay-Time come with them.
const ACCOUNTING_MAX: usize = LONGEST - HEADER - 18 - 6;
/// Longest value of a sub-attribute of a vendor.
const VENDOR_VALUE_MAX: usize = VALUE_MAX - 6;
/// Longest Acct-Session-Id that can be ours: 16 hexadecimal digits.
const ID_DIGITS: usize = 16;

/// What the gateway is called.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Nas {
    /// NAS-Identifier, 1 to 253 octets.
    pub identifier: String,
    /// NAS-IP-Address.
    pub address: Option<Ipv4Addr>,
}

impl Nas {
    fn write(&self, list: &mut List) -> Result<(), TooLong> {
        if let Some(address) = self.address {
            list.number(a::NAS_IP_ADDRESS, address.to_bits());
        }
        list.bytes(a::NAS_IDENTIFIER, self.identifier.as_bytes())
    }

    /// An Access-Request.
    ///
    /// # Errors
    /// [`TooLong`]: a name or a password that no attribute can hold. An empty name is one, too (RFC 2865 section 5.1): a server
    /// that discards it would count as dead.
    pub fn access(&self, request: &AuthRequest) -> Result<Draft, TooLong> {
        if request.peer_id.is_empty() {
            return Err(TooLong);
        }
        let mut list = List::default();
        list.bytes(a::USER_NAME, &request.peer_id)?;
        let password = match &request.credentials {
            Credentials::Pap { password } => Some(password.clone().into()),
            Credentials::ChapMd5 {
                identifier,
                challenge,
                response,
            } => {
                let mut value = [*identifier; 17];
                value[1..].copy_from_slice(response);
                list.bytes(a::CHAP_PASSWORD, &value)?;
                list.bytes(a::CHAP_CHALLENGE, challenge)?;
                None
            }
        };
        self.write(&mut list)?;
        list.number(a::SERVICE_TYPE, a::FRAMED);
        list.number(a::FRAMED_PROTOCOL, a::PPP);
        self.line(&mut list, &request.line, &request.service_name)?;
        if request.accounting_id != 0 {
            session_id(&mut list, request.accounting_id)?;
        }
        if let Some(address) = request.framed_ip {
            list.number(a::FRAMED_IP_ADDRESS, address.to_bits());
        }
        Ok(Draft {
            kind: Kind::Access,
            password,
            attributes: list.into_bytes(),
            event_unix_s: None,
        })
    }

    fn line(&self, list: &mut List, line: &Line, service: &[u8]) -> Result<(), TooLong> {
        // Eight bits of port and twelve of each VLAN.
        let vlans = u32::from(line.s_vlan & 0xfff) << 12 | u32::from(line.c_vlan & 0xfff);
        list.number(a::NAS_PORT, u32::from(line.port_index) << 24 | vlans);
        list.number(a::NAS_PORT_TYPE, ETHERNET);
        list.bytes(a::NAS_PORT_ID, line.nas_port_id().as_bytes())?;
        list.bytes(a::CALLING_STATION_ID, station(line.mac).as_bytes())?;
        let mut called = self.identifier.clone().into_bytes();
        if !service.is_empty() {
            called.push(b':');
            called.extend(service);
        }
        called.truncate(super::packet::VALUE_MAX);
        list.bytes(a::CALLED_STATION_ID, &called)?;
        for (kind, value) in [
            (a::AGENT_CIRCUIT_ID, &line.circuit_id),
            (a::AGENT_REMOTE_ID, &line.remote_id),
        ] {
            if !value.is_empty() {
                // RFC 4679 allows 63 octets; who sends more must not be without accounting for it.
                let value = value.get(..VENDOR_VALUE_MAX).unwrap_or(value);
                list.vendor(a::ADSL_FORUM, kind, value)?;
            }
        }
        Ok(())
    }

    /// The attributes of an Accounting-Request, but for Acct-Delay-Time.
    ///
    /// # Errors
    /// [`TooLong`]: a name of a port that no attribute can hold. Of a longer user name its beginning is told, and Class
    /// attributes for which there is no room are left out: a message without them is better than none.
    pub fn accounting(&self, event: &Accounting) -> Result<Vec<u8>, TooLong> {
        let mut list = List::default();
        let (status, cause) = match event.status {
            Status::Start => (1, None),
            Status::Stop(cause) => (2, Some(cause)),
            Status::Interim => (3, None),
        };
        list.number(a::ACCT_STATUS_TYPE, status);
        session_id(&mut list, event.accounting_id)?;
        let user = event.user.get(..VALUE_MAX).unwrap_or(&event.user);
        list.bytes(a::USER_NAME, user)?;
        self.write(&mut list)?;
        list.number(a::SERVICE_TYPE, a::FRAMED);
        list.number(a::FRAMED_PROTOCOL, a::PPP);
        self.line(&mut list, &event.line, &[])?;
        list.number(a::ACCT_AUTHENTIC, if event.is_local { 2 } else { 1 });
        if let Some(address) = event.framed_ip {
            list.number(a::FRAMED_IP_ADDRESS, address.to_bits());
        }
        for route in &event.framed_routes {
            let text = format!(
                "{}/{} 0.0.0.0 {}",
                route.network, route.length, route.metric
            );
            list.bytes(a::FRAMED_ROUTE, text.as_bytes())?;
        }
        if let Some(id) = event.interface_id {
            list.bytes(a::FRAMED_INTERFACE_ID, &id.to_be_bytes())?;
        }
        for (kind, prefix) in [
            (a::FRAMED_IPV6_PREFIX, event.framed_ipv6_prefix),
            (a::DELEGATED_IPV6_PREFIX, event.delegated_ipv6_prefix),
        ] {
            if let Some(prefix) = prefix {
                list.bytes(kind, &prefix_value(&prefix))?;
            }
        }
        if let Some((address, first, last)) = event.nat {
            let value = port_range(address, first, last, cause.is_some());
            list.bytes(a::EXTENDED_1, &value)?;
        }
        if status != 1 {
            let totals = &event.totals;
            // Low and high half of each count of octets.
            list.number(a::ACCT_INPUT_OCTETS, totals.up_octets as u32);
            list.number(a::ACCT_INPUT_GIGAWORDS, (totals.up_octets >> 32) as u32);
            list.number(a::ACCT_OUTPUT_OCTETS, totals.down_octets as u32);
            list.number(a::ACCT_OUTPUT_GIGAWORDS, (totals.down_octets >> 32) as u32);
            list.number(a::ACCT_INPUT_PACKETS, totals.up_packets as u32);
            list.number(a::ACCT_OUTPUT_PACKETS, totals.down_packets as u32);
            list.number(a::ACCT_SESSION_TIME, whole_seconds(event.session_time));
        }
        if let Some(cause) = cause {
            list.number(a::ACCT_TERMINATE_CAUSE, cause as u32);
        }
        list.number(a::EVENT_TIMESTAMP, event.event_unix_s as u32);
        for class in &event.class {
            if list.as_bytes().len() + class.len() + 2 <= ACCOUNTING_MAX {
                list.bytes(a::CLASS, class)?;
            }
        }
        Ok(list.into_bytes())
    }

    /// The attributes of the Accounting-On of a gateway that has no sessions (RFC 2866 section 5.1).
    ///
    /// # Errors
    /// Never for an identifier of at most 253 octets.
    pub fn accounting_on(&self, accounting_id: u64, unix_s: u64) -> Result<Vec<u8>, TooLong> {
        let mut list = List::default();
        list.number(a::ACCT_STATUS_TYPE, ACCOUNTING_ON);
        session_id(&mut list, accounting_id)?;
        self.write(&mut list)?;
        list.number(a::EVENT_TIMESTAMP, unix_s as u32);
        Ok(list.into_bytes())
    }
}

fn session_id(list: &mut List, id: u64) -> Result<(), TooLong> {
    list.bytes(a::ACCT_SESSION_ID, format!("{id:0ID_DIGITS$x}").as_bytes())
}

/// The session an Acct-Session-Id names.
#[must_use]
pub fn parse_session_id(value: &[u8]) -> Option<u64> {
    let text = std::str::from_utf8(value).ok()?;
    let is_ours = text.len() == ID_DIGITS && text.bytes().all(|it| it.is_ascii_hexdigit());
    is_ours
        .then(|| u64::from_str_radix(text, 16).ok())
        .flatten()
}

/// A MAC address as Calling-Station-Id (RFC 3580 section 3.21).
fn station(mac: [u8; 6]) -> String {
    mac.map(|octet| format!("{octet:02X}")).join("-")
}

/// The MAC address a Calling-Station-Id names: six pairs of hexadecimal digits, with `-`, `:` or `.` or nothing between.
#[must_use]
pub fn parse_station(value: &[u8]) -> Option<[u8; 6]> {
    let digits: Vec<u8> = (value.iter().copied())
        .filter(|it| !b"-:.".contains(it))
        .collect();
    let digits = std::str::from_utf8(&digits).ok()?;
    if digits.len() != 12 || !digits.bytes().all(|it| it.is_ascii_hexdigit()) {
        return None;
    }
    let bits = u64::from_str_radix(digits, 16).ok()?.to_be_bytes();
    let [_, _, mac @ ..] = bits;
    Some(mac)
}

fn prefix_value(prefix: &Prefix) -> Vec<u8> {
    let octets = prefix.address.octets();
    let needed = usize::from(prefix.length).div_ceil(8);
    let mut value = vec![0, prefix.length];
    value.extend(octets.iter().take(needed));
    value
}

/// IP-Port-Range (RFC 8045 section 3.1.2): whether it is given or taken back, the public address, first and last port.
fn port_range(address: Ipv4Addr, first: u16, last: u16, is_over: bool) -> Vec<u8> {
    const IP_PORT_RANGE: u8 = 6;
    let mut value = vec![IP_PORT_RANGE];
    for (kind, number) in [
        (8, if is_over { 2 } else { 1 }),
        (3, address.to_bits()),
        (9, u32::from(first)),
        (10, u32::from(last)),
    ] {
        value.extend([kind, 6]);
        value.extend(u32::to_be_bytes(number));
    }
    value
}

fn whole_seconds(time: Duration) -> u32 {
    time.as_secs().try_into().unwrap_or(u32::MAX)
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use crate::RequestId;
    use crate::accounting::{StopCause, Totals};
    use crate::profile::FramedRoute;
    use crate::radius::packet::Attributes;
    use crate::radius::terms;

    pub(crate) fn nas() -> Nas {
        Nas {
            identifier: "bng1".to_owned(),
            address: Some(Ipv4Addr::new(192, 0, 2, 1)),
        }
    }

    fn line() -> Line {
        Line {
            port: "access0".to_owned(),
            port_index: 1,
            s_vlan: 100,
            c_vlan: 7,
            mac: [2, 0, 0, 0, 0, 0xab],
            session_id: 9,
            circuit_id: b"olt 1/1".to_vec(),
            remote_id: Vec::new(),
        }
    }

    pub(crate) fn asked(id: u64, credentials: Credentials) -> AuthRequest {
        AuthRequest {
            id: RequestId(id),
            peer_id: b"alice".to_vec(),
            credentials,
            line: line(),
            service_name: b"gold".to_vec(),
            accounting_id: 0xabc,
            framed_ip: None,
        }
    }

    pub(crate) fn event(status: Status) -> Accounting {
        Accounting {
            status,
            accounting_id: 0xabc,
            user: b"alice".to_vec(),
            is_local: false,
            class: vec![b"c1".to_vec(), b"c2".to_vec()],
            line: line(),
            framed_ip: Some(Ipv4Addr::new(100, 64, 0, 2)),
            interface_id: Some(6),
            framed_ipv6_prefix: None,
            delegated_ipv6_prefix: Some(Prefix {
                address: "2001:db8:1:100::".parse().unwrap(),
                length: 56,
            }),
            framed_routes: vec![FramedRoute {
                network: Ipv4Addr::new(10, 0, 0, 0),
                length: 8,
                metric: 1,
            }],
            nat: Some((Ipv4Addr::new(198, 51, 100, 1), 1_024, 2_047)),
            gateway6: None,
            session_time: Duration::from_millis(61_500),
            totals: Totals {
                up_octets: (3 << 32) + 5,
                up_packets: 4,
                down_octets: 6,
                down_packets: 2,
            },
            event_unix_s: 1_700_000_000,
        }
    }

    fn all(bytes: &[u8], kind: u8) -> Vec<&[u8]> {
        let all = Attributes::of(bytes).filter(|(it, _)| *it == kind);
        all.map(|(_, value)| value).collect()
    }

    #[test]
    fn whatever_a_client_or_a_server_says_there_is_accounting() {
        let mut event = event(Status::Stop(StopCause::UserRequest));
        event.user = vec![b'u'; 255];
        event.line.circuit_id = vec![b'c'; 255];
        event.class = vec![vec![7; 253]; 16];
        let bytes = nas().accounting(&event).unwrap();
        assert!(bytes.len() <= ACCOUNTING_MAX, "{}", bytes.len());
        assert_eq!(all(&bytes, a::USER_NAME), [[b'u'; 253]]);
        assert!(all(&bytes, a::CLASS).len() > 10);
        let mut delay = List::default();
        delay.number(a::ACCT_DELAY_TIME, 1);
        let parts = [&bytes[..], delay.as_bytes()];
        assert!(crate::radius::packet::signed_request(4, 0, b"s", &parts).is_ok());

        let mut asked = asked(
            1,
            Credentials::Pap {
                password: b"pw".to_vec(),
            },
        );
        asked.line.circuit_id = vec![b'c'; 255];
        assert!(nas().access(&asked).is_ok());
        asked.peer_id.clear();
        assert_eq!(nas().access(&asked), Err(TooLong), "no server can know it");
    }

    #[test]
    fn an_access_request_says_who_and_where() {
        let draft = nas().access(&asked(
            1,
            Credentials::Pap {
                password: b"pw".to_vec(),
            },
        ));
        let draft = draft.unwrap();
        assert_eq!(
            draft.password.as_deref().map(Vec::as_slice),
            Some(&b"pw"[..])
        );
        let cases: &[(u8, &[u8])] = &[
            (a::USER_NAME, b"alice"),
            (a::NAS_IP_ADDRESS, &[192, 0, 2, 1]),
            (a::NAS_IDENTIFIER, b"bng1"),
            (a::NAS_PORT, &[1, 6, 0x40, 7]),
            (a::NAS_PORT_TYPE, &[0, 0, 0, 15]),
            (a::NAS_PORT_ID, b"access0/100.7"),
            (a::CALLING_STATION_ID, b"02-00-00-00-00-AB"),
            (a::CALLED_STATION_ID, b"bng1:gold"),
            (a::SERVICE_TYPE, &[0, 0, 0, 2]),
            (a::FRAMED_PROTOCOL, &[0, 0, 0, 1]),
            (a::ACCT_SESSION_ID, b"0000000000000abc"),
            (a::VENDOR_SPECIFIC, b"\0\0\x0d\xe9\x01\x09olt 1/1"),
        ];
        for (kind, value) in cases {
            assert_eq!(all(&draft.attributes, *kind), [*value], "{kind}");
        }
        assert!(all(&draft.attributes, a::CHAP_PASSWORD).is_empty());
        let long = AuthRequest {
            peer_id: vec![b'a'; 254],
            ..asked(
                1,
                Credentials::Pap {
                    password: Vec::new(),
                },
            )
        };
        assert_eq!(nas().access(&long).unwrap_err(), TooLong);
    }

    #[test]
    fn chap_goes_as_identifier_response_and_challenge() {
        let draft = nas().access(&asked(
            1,
            Credentials::ChapMd5 {
                identifier: 5,
                challenge: [7; 16],
                response: [8; 16],
            },
        ));
        let draft = draft.unwrap();
        assert_eq!(draft.password, None);
        let mut value = vec![5];
        value.extend([8; 16]);
        assert_eq!(all(&draft.attributes, a::CHAP_PASSWORD), [&value[..]]);
        assert_eq!(all(&draft.attributes, a::CHAP_CHALLENGE), [&[7; 16][..]]);
    }

    #[test]
    fn a_stop_says_what_was_used_and_why_it_ended() {
        let bytes = nas()
            .accounting(&event(Status::Stop(StopCause::IdleTimeout)))
            .unwrap();
        let cases: &[(u8, &[u8])] = &[
            (a::ACCT_STATUS_TYPE, &[0, 0, 0, 2]),
            (a::ACCT_SESSION_ID, b"0000000000000abc"),
            (a::ACCT_INPUT_OCTETS, &[0, 0, 0, 5]),
            (a::ACCT_INPUT_GIGAWORDS, &[0, 0, 0, 3]),
            (a::ACCT_OUTPUT_OCTETS, &[0, 0, 0, 6]),
            (a::ACCT_OUTPUT_GIGAWORDS, &[0, 0, 0, 0]),
            (a::ACCT_INPUT_PACKETS, &[0, 0, 0, 4]),
            (a::ACCT_OUTPUT_PACKETS, &[0, 0, 0, 2]),
            (a::ACCT_SESSION_TIME, &[0, 0, 0, 61]),
            (a::ACCT_TERMINATE_CAUSE, &[0, 0, 0, 4]),
            (a::ACCT_AUTHENTIC, &[0, 0, 0, 1]),
            (a::EVENT_TIMESTAMP, &1_700_000_000u32.to_be_bytes()),
            (a::FRAMED_IP_ADDRESS, &[100, 64, 0, 2]),
            (a::FRAMED_INTERFACE_ID, &[0, 0, 0, 0, 0, 0, 0, 6]),
            (a::FRAMED_ROUTE, b"10.0.0.0/8 0.0.0.0 1"),
            (
                a::DELEGATED_IPV6_PREFIX,
                &[0, 56, 0x20, 1, 0xd, 0xb8, 0, 1, 1],
            ),
            (
                a::EXTENDED_1,
                &[
                    6, 8, 6, 0, 0, 0, 2, 3, 6, 198, 51, 100, 1, 9, 6, 0, 0, 4, 0, 10, 6, 0, 0, 7,
                    255,
                ],
            ),
        ];
        for (kind, value) in cases {
            assert_eq!(all(&bytes, *kind), [*value], "{kind}");
        }
        assert_eq!(all(&bytes, a::CLASS), [b"c1", b"c2"]);
        // Delegated prefix and route are read as they are written.
        let read = terms::profile(Attributes::of(&bytes)).unwrap();
        assert_eq!(
            read.delegated_ipv6_prefix,
            event(Status::Start).delegated_ipv6_prefix
        );
        assert_eq!(read.framed_routes, event(Status::Start).framed_routes);
    }

    #[test]
    fn a_start_has_no_totals_and_an_interim_no_cause() {
        let start = nas().accounting(&event(Status::Start)).unwrap();
        assert!(all(&start, a::ACCT_INPUT_OCTETS).is_empty());
        let interim = nas().accounting(&event(Status::Interim)).unwrap();
        assert_eq!(all(&interim, a::ACCT_INPUT_OCTETS).len(), 1);
        assert!(all(&interim, a::ACCT_TERMINATE_CAUSE).is_empty());
    }

    #[test]
    fn names_of_sessions_and_stations_are_read_strictly() {
        assert_eq!(parse_session_id(b"0000000000000abc"), Some(0xabc));
        for bad in [&b"abc"[..], b"+000000000000abc", b"", b"000000000000000g"] {
            assert_eq!(parse_session_id(bad), None);
        }
        let mac = Some([2, 0, 0, 0, 0, 0xab]);
        for good in [
            &b"02-00-00-00-00-AB"[..],
            b"02:00:00:00:00:ab",
            b"0200.0000.00ab",
        ] {
            assert_eq!(parse_station(good), mac);
        }
        for bad in [
            &b"02-00-00-00-00"[..],
            b"",
            b"02-00-00-00-00-ABC",
            b"+2-00-00-00-00-AB",
        ] {
            assert_eq!(parse_station(bad), None);
        }
    }
}
