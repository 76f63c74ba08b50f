//! Whose sessions are meant, as a client of this interface writes it: the one list of keys for sessions, history and traces.

use bng_wire::MacAddr;

use crate::selection::Subscriber;
use crate::settings::Settings;

/// Makes a request whose fields are those that tell whose sessions are meant, and then its own.
macro_rules! of_subscribers {
    (
        $(#[$meta:meta])*
        pub(crate) struct $name:ident {
            $( $(#[$field_meta:meta])* $field:ident: $type:ty, )*
        }
    ) => {
        $(#[$meta])*
        pub(crate) struct $name {
            /// Name of the subscriber, whole.
            user: Option<String>,
            /// Address of the subscriber: IPv4, or an IPv6 address in one of its prefixes.
            ip: Option<String>,
            /// Client MAC address.
            mac: Option<String>,
            /// Name of the access port.
            port: Option<String>,
            /// TR-101 Agent-Circuit-Id, whole.
            circuit: Option<String>,
            /// TR-101 Agent-Remote-Id, whole.
            remote: Option<String>,
            /// S-VLAN id, 0 for frames without a tag.
            s_vlan: Option<u16>,
            /// C-VLAN id, 0 for frames without a second tag.
            c_vlan: Option<u16>,
            /// PPPoE session id.
            session_id: Option<u16>,
            $( $(#[$field_meta])* $field: $type, )*
        }

        impl $name {
            /// Whose.
            fn written(&self) -> $crate::rest::subscriber::Written<'_> {
                $crate::rest::subscriber::Written {
                    user: self.user.as_deref(),
                    ip: self.ip.as_deref(),
                    mac: self.mac.as_deref(),
                    port: self.port.as_deref(),
                    circuit: self.circuit.as_deref(),
                    remote: self.remote.as_deref(),
                    s_vlan: self.s_vlan,
                    c_vlan: self.c_vlan,
                    session_id: self.session_id,
                }
            }
        }
    };
}

/// A subscriber as a client of this interface writes it.
#[derive(Debug, Default)]
pub(super) struct Written<'a> {
    pub(super) user: Option<&'a str>,
    pub(super) ip: Option<&'a str>,
    pub(super) mac: Option<&'a str>,
    pub(super) port: Option<&'a str>,
    pub(super) circuit: Option<&'a str>,
    pub(super) remote: Option<&'a str>,
    pub(super) s_vlan: Option<u16>,
    pub(super) c_vlan: Option<u16>,
    pub(super) session_id: Option<u16>,
}

/// What is wrong with a value, and what it should be.
pub(super) fn bad(what: &str, value: &str, expected: &str) -> String {
    format!("{what} is `{value}`, expected is {expected}")
}

impl Written<'_> {
    /// What is meant.
    ///
    /// # Errors
    /// A sentence that says which value cannot be.
    pub(super) fn read(&self, settings: &Settings) -> Result<Subscriber, String> {
        let ip = |text: &str| {
            text.parse()
                .map_err(|_| bad("ip", text, "an IPv4 or IPv6 address"))
        };
        let mac = |text: &str| {
            parse_mac(text).ok_or_else(|| bad("mac", text, "an address such as 02:00:00:00:00:01"))
        };
        let port = |text: &str| {
            let port = settings.port(text).and_then(|(_, port)| port.access);
            port.ok_or_else(|| bad("port", text, "the name of an access port"))
        };
        let vlan = |what: &str, id: Option<u16>| match id {
            Some(4095..) => Err(bad(what, &id.unwrap_or(0).to_string(), "0 to 4094")),
            id => Ok(id),
        };
        Ok(Subscriber {
            user: self.user.map(str::to_owned),
            ip: self.ip.map(ip).transpose()?,
            mac: self.mac.map(mac).transpose()?,
            access_port: self.port.map(port).transpose()?,
            circuit_id: self.circuit.map(str::to_owned),
            remote_id: self.remote.map(str::to_owned),
            s_vlan: vlan("s_vlan", self.s_vlan)?,
            c_vlan: vlan("c_vlan", self.c_vlan)?,
            session_id: self.session_id,
        })
    }
}

fn parse_mac(text: &str) -> Option<MacAddr> {
    let mut bytes = [0; 6];
    let mut parts = text.split([':', '-']);
    for byte in &mut bytes {
        let is_hex = |part: &&str| part.bytes().all(|digit| digit.is_ascii_hexdigit());
        let fits = |part: &&str| matches!(part.len(), 1 | 2) && is_hex(part);
        let part = parts.next().filter(fits)?;
        *byte = u8::from_str_radix(part, 16).ok()?;
    }
    parts.next().is_none().then_some(MacAddr(bytes))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mac_addresses_are_read_as_operators_write_them() {
        let mac = Some(MacAddr([2, 0, 0xab, 0, 0, 1]));
        assert_eq!(parse_mac("02:00:ab:00:00:01"), mac);
        assert_eq!(parse_mac("2-0-AB-0-0-1"), mac);
        for wrong in [
            "",
            "02:00:ab:00:00",
            "02:00:ab:00:00:01:02",
            "02:00:ab:00:00:+1",
            "x",
        ] {
            assert_eq!(parse_mac(wrong), None, "{wrong}");
        }
    }
}
