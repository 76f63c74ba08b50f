//! The real FreeRADIUS, from Debian's package, as a subscriber operator runs it: users in a file, accounting in a detail file.
//!
//! Everything is generated below the lab's directory, so the machine's own FreeRADIUS configuration is neither read nor changed:
//!
//! ```text
//!   DIR/NAME/raddb/{radiusd.conf,users,dictionary}
//!   DIR/NAME/{auth,acct}.detail     every request as the server understood it
//!   DIR/NAME.log                    the server's own log
//! ```
//!
//! Every client must send Message-Authenticator, and every reply carries it (a FreeRADIUS before 3.2.5 adds it only where its
//! configuration says so).

use std::fmt::Write as _;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use crate::error::{Context, LabError, Result};
use crate::namespace::Namespace;
use crate::process::Process;
use crate::topology::addresses;
use crate::wait::wait_until;

/// Secret the lab's servers share with the gateway.
pub const RADIUS_SECRET: &str = "lab-radius-secret";

/// It reads its dictionaries first, which are large.
const READY_LIMIT: Duration = Duration::from_secs(60);

/// A running FreeRADIUS. It is killed on drop.
#[derive(Debug)]
pub struct FreeRadius {
    dir: PathBuf,
    name: String,
    address: SocketAddr,
    process: Option<Process>,
}

/// A request, or a reply to `radclient`: attribute names of FreeRADIUS' dictionaries and values in its notation, in order.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Attributes(pub Vec<(String, String)>);

impl Attributes {
    /// The first value of an attribute, without the quotes of a string.
    #[must_use]
    pub fn get(&self, name: &str) -> Option<&str> {
        self.all(name).next()
    }

    /// All values of an attribute.
    pub fn all(&self, name: &str) -> impl Iterator<Item = &str> {
        self.0
            .iter()
            .filter(move |(have, _)| have == name)
            .map(|(_, value)| value.as_str())
    }

    /// The value of an attribute as a number, 0 when it is absent.
    ///
    /// # Errors
    /// [`LabError::Unreadable`] when it is no number.
    pub fn number(&self, name: &str) -> Result<u64> {
        let value = self.get(name).unwrap_or("0");
        value.parse().map_err(|_| LabError::Unreadable {
            what: name.to_owned(),
            text: value.to_owned(),
        })
    }

    /// 64-bit octet counter out of `NAME-Octets` and `NAME-Gigawords` (RFC 2869 section 5.1); `Acct-Input`, `Acct-Output`.
    ///
    /// # Errors
    /// As [`Attributes::number`].
    pub fn octets(&self, name: &str) -> Result<u64> {
        let low = self.number(&format!("{name}-Octets"))?;
        Ok(self.number(&format!("{name}-Gigawords"))? << 32 | low)
    }

    /// `NAME = value` of a detail file or of `radclient -x`.
    fn push(&mut self, line: &str) {
        if let Some((name, value)) = line.split_once(" = ") {
            let value = value
                .strip_prefix('"')
                .and_then(|value| value.strip_suffix('"'))
                .unwrap_or(value);
            self.0.push((name.trim().to_owned(), value.to_owned()));
        }
    }
}

/// The records of a detail file: a line with the time, one indented line per attribute, an empty line. A record that is still
/// being written is left out.
fn records(text: &str) -> Vec<Attributes> {
    let mut whole = Vec::new();
    let mut record = Attributes::default();
    for line in text.lines() {
        if line.is_empty() {
            whole.push(std::mem::take(&mut record));
        } else if line.starts_with('\t') {
            record.push(line);
        }
    }
    whole
}

impl FreeRadius {
    /// Starts a server on `address` (accounting one port above) in `namespace`, with its files in `DIR/NAME`, for the
    /// gateway's address on the core network; returns when it takes requests. `users` is a file of module `rlm_files`.
    ///
    /// # Errors
    /// When FreeRADIUS is not installed or refuses its configuration.
    pub fn start(
        namespace: &Namespace,
        dir: &Path,
        name: &str,
        address: SocketAddr,
        users: &str,
    ) -> Result<Self> {
        let own = dir.join(name);
        let raddb = own.join("raddb");
        std::fs::create_dir_all(&raddb).context(|| format!("create {}", raddb.display()))?;
        let files = [
            ("radiusd.conf", configuration(&own, name, address)),
            ("users", users.to_owned()),
            ("dictionary", String::new()),
        ];
        for (file, text) in files {
            let path = raddb.join(file);
            std::fs::write(&path, text).context(|| format!("write {}", path.display()))?;
        }
        let mut server = Self {
            dir: dir.to_owned(),
            name: name.to_owned(),
            address,
            process: None,
        };
        server.restart(namespace)?;
        Ok(server)
    }

    /// Starts the server again, after [`FreeRadius::kill`] or with the users of [`FreeRadius::set_users`].
    ///
    /// # Errors
    /// As [`FreeRadius::start`].
    pub fn restart(&mut self, namespace: &Namespace) -> Result<()> {
        self.process = None;
        let log = self.dir.join(format!("{}.log", self.name));
        let mut command = Command::new("freeradius");
        command
            .args(["-f", "-n", "radiusd", "-d"])
            .arg(self.own("raddb"))
            .arg("-l")
            .arg(&log);
        let mark = log.metadata().map_or(0, |meta| meta.len());
        let process = Process::start(namespace, &self.dir, &self.name, command);
        let mut process = process.map_err(|error| match error {
            LabError::Io { source, .. } if source.kind() == std::io::ErrorKind::NotFound => {
                LabError::Missing {
                    path: PathBuf::from("freeradius"),
                    remedy: "`scripts/setup test` installs it",
                }
            }
            other => other,
        })?;
        process.wait_for_log("Ready to process requests", mark, READY_LIMIT)?;
        self.process = Some(process);
        Ok(())
    }

    /// Kills the server: from now on nobody answers.
    ///
    /// # Errors
    /// When it does not end.
    pub fn kill(&mut self) -> Result<()> {
        if let Some(mut process) = self.process.take() {
            process.kill()?;
        }
        Ok(())
    }

    /// Replaces the users; [`FreeRadius::restart`] makes them known.
    ///
    /// # Errors
    /// When the file cannot be written.
    pub fn set_users(&self, users: &str) -> Result<()> {
        let path = self.own("raddb/users");
        std::fs::write(&path, users).context(|| format!("write {}", path.display()))
    }

    /// Where it listens for authentication.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Access-Requests so far, as the server understood them, repetitions among them.
    ///
    /// # Errors
    /// When the file cannot be read.
    pub fn access_requests(&self) -> Result<Vec<Attributes>> {
        self.detail("auth.detail")
    }

    /// Accounting-Requests so far.
    ///
    /// # Errors
    /// When the file cannot be read.
    pub fn accounting(&self) -> Result<Vec<Attributes>> {
        self.detail("acct.detail")
    }

    /// Waits until `accept` is true of the Accounting-Requests so far, and returns them.
    ///
    /// # Errors
    /// [`LabError::Timeout`] with the records after `limit`.
    pub fn wait_for_accounting(
        &self,
        what: &str,
        limit: Duration,
        accept: impl Fn(&[Attributes]) -> bool,
    ) -> Result<Vec<Attributes>> {
        wait_until(what, limit, || self.accounting(), |all| accept(all))
    }

    fn detail(&self, file: &str) -> Result<Vec<Attributes>> {
        let path = self.own(file);
        match std::fs::read_to_string(&path) {
            Ok(text) => Ok(records(&text)),
            // Made with the first record.
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(Vec::new()),
            Err(error) => Err(error).context(|| format!("read {}", path.display())),
        }
    }

    fn own(&self, file: &str) -> PathBuf {
        self.dir.join(&self.name).join(file)
    }
}

/// `radiusd.conf`, whole: no other file of the machine's configuration is included.
fn configuration(own: &Path, name: &str, address: SocketAddr) -> String {
    let own = own.display();
    let (ip, port) = (address.ip(), address.port());
    let mut text = format!(
        "\
prefix = /usr
name = {name}
raddbdir = {own}/raddb
confdir = {own}/raddb
logdir = {own}
run_dir = {own}
libdir = /usr/lib/freeradius
proxy_requests = no
log {{
    destination = files
    file = {own}.log
    auth = yes
}}
security {{
    reject_delay = 0
    status_server = no
    allow_vulnerable_openssl = yes
}}
thread pool {{
    start_servers = 1
    max_servers = 2
    min_spare_servers = 0
    max_spare_servers = 1
}}
modules {{
    files {{
        usersfile = {own}/raddb/users
    }}
    pap {{
    }}
    chap {{
    }}
    detail auth_detail {{
        filename = {own}/auth.detail
    }}
    detail acct_detail {{
        filename = {own}/acct.detail
    }}
}}
"
    );
    // The host itself is for `radclient` beside the server.
    for (client, from) in [
        ("gateway", addresses::GATEWAY_CORE),
        ("host", addresses::ROUTER),
    ] {
        let _ = write!(
            text,
            "\
client {client} {{
    ipaddr = {from}
    secret = {RADIUS_SECRET}
    require_message_authenticator = yes
}}
"
        );
    }
    let _ = write!(
        text,
        "\
server lab {{
    listen {{
        type = auth
        ipaddr = {ip}
        port = {port}
    }}
    listen {{
        type = acct
        ipaddr = {ip}
        port = {accounting}
    }}
    authorize {{
        auth_detail
        chap
        files
        pap
    }}
    authenticate {{
        Auth-Type PAP {{
            pap
        }}
        Auth-Type CHAP {{
            chap
        }}
    }}
    accounting {{
        acct_detail
    }}
    post-auth {{
        update reply {{
            Message-Authenticator := 0x00
        }}
        Post-Auth-Type REJECT {{
            update reply {{
                Message-Authenticator := 0x00
            }}
        }}
    }}
}}
",
        accounting = port + 1
    );
    text
}

/// What a server answered to `radclient`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RadiusReply {
    /// `Access-Accept`, `CoA-NAK`, ...
    pub code: String,
    /// Its attributes.
    pub attributes: Attributes,
}

/// Sends one request with `radclient` from `namespace` and returns the answer, or `None` when there is none within the time of
/// `tries` tries of a second each. `command` is `auth`, `acct`, `coa` or `disconnect`; `attributes` are in FreeRADIUS' notation,
/// separated by commas. `Packet-Src-IP-Address` among them is the sender. `coa` and `disconnect` get the Event-Timestamp that the
/// gateway requires.
///
/// # Errors
/// When `radclient` is not installed or does not understand the request.
pub fn radclient(
    namespace: &Namespace,
    server: SocketAddr,
    command: &str,
    secret: &str,
    attributes: &str,
    tries: u32,
) -> Result<Option<RadiusReply>> {
    let attributes = match command {
        "coa" | "disconnect" => {
            let now = SystemTime::now().duration_since(UNIX_EPOCH);
            let now = now.unwrap_or_default().as_secs();
            format!("{attributes}, Event-Timestamp = {now}")
        }
        _ => attributes.to_owned(),
    };
    let mut radclient = Command::new("radclient");
    radclient
        .args(["-x", "-t", "1", "-r", &tries.to_string()])
        .args([&server.to_string(), command, secret])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    let output = namespace
        .within(|| {
            use std::io::Write;
            let mut child = radclient.spawn()?;
            if let Some(mut input) = child.stdin.take() {
                writeln!(input, "{attributes}")?;
            }
            child.wait_with_output()
        })?
        .context(|| "run radclient".to_owned())?;
    let said = String::from_utf8_lossy(&output.stdout);
    if let Some(reply) = reply(&said) {
        return Ok(Some(reply));
    }
    let errors = String::from_utf8_lossy(&output.stderr);
    if errors.contains("No reply from server") || said.contains("No reply from server") {
        return Ok(None);
    }
    Err(LabError::Command {
        command: format!("radclient {server} {command} <<< {attributes:?}"),
        status: output.status,
        output: format!("{said}{errors}"),
    })
}

/// The answer in what `radclient -x` printed: `Received CODE Id ...` and indented attributes.
fn reply(text: &str) -> Option<RadiusReply> {
    let mut lines = text
        .lines()
        .skip_while(|line| !line.starts_with("Received "));
    let code = lines.next()?.split(' ').nth(1)?.to_owned();
    let mut attributes = Attributes::default();
    for line in lines.take_while(|line| line.starts_with('\t')) {
        attributes.push(line);
    }
    Some(RadiusReply { code, attributes })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn records_of_a_detail_file_are_read_and_the_unfinished_last_one_is_not() {
        let text = "\
Tue Dec  1 12:00:00 2026
\tUser-Name = \"al = ice\"
\tAcct-Output-Octets = 7
\tAcct-Output-Gigawords = 1
\tTimestamp = 1764590400

Tue Dec  1 12:00:01 2026
\tUser-Name = \"bob\"
";
        let [record] = &records(text)[..] else {
            panic!("{:?}", records(text));
        };
        assert_eq!(record.get("User-Name"), Some("al = ice"));
        assert_eq!(record.octets("Acct-Output").unwrap(), (1 << 32) + 7);
        assert_eq!(record.octets("Acct-Input").unwrap(), 0);
        assert!(record.number("User-Name").is_err());
    }

    #[test]
    fn the_answer_is_found_in_what_radclient_prints() {
        let text = "\
Sent Disconnect-Request Id 5 from 0.0.0.0:1 to 198.51.100.1:3799 length 30
\tUser-Name = \"alice\"
Received Disconnect-NAK Id 5 from 198.51.100.1:3799 to 198.51.100.2:1 length 26
\tError-Cause = Session-Context-Not-Found
(0) -: Expected Disconnect-ACK got Disconnect-NAK
";
        let reply = reply(text).unwrap();
        assert_eq!(reply.code, "Disconnect-NAK");
        let cause = reply.attributes.get("Error-Cause");
        assert_eq!(cause, Some("Session-Context-Not-Found"));
        assert_eq!(super::reply("(0) No reply from server"), None);
    }
}
