//! An output: its thread reads the segments from its cursor on and sends.
//!
//! Neither syslog nor IPFIX is answered, so nobody says what has arrived. Over TCP, what was sent counts as delivered when it is
//! fifteen seconds old and the connection still stands: the kernel ends a connection (`TCP_USER_TIMEOUT`) on which anything has
//! been without acknowledgement for ten. A collector that reads slowly may have more in its own buffers; if writing has had to wait lately, what
//! was sent counts only when eight mebibytes more have followed. Whatever does not count is sent again on the next connection.

use std::collections::VecDeque;
use std::fs::{self, File};
use std::io::{self, Read, Write};
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr, TcpStream, UdpSocket};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use rustix::event::{PollFd, PollFlags, Timespec, poll};

use crate::frames::{body_at, put};
use crate::index::{Output, Position, Shared};
use crate::ipfix::Exporter;
use crate::record::Record;
use crate::syslog;

/// How long what was sent over TCP may be on its way.
const HOLD: Duration = Duration::from_secs(15);
/// Without acknowledgement for so long, a connection is over.
const USER_TIMEOUT_MS: u32 = 10_000;
/// What a collector that reads slowly may have in its buffers, bytes.
const BUFFERED: u64 = 8 << 20;
/// How long an error of a datagram (ICMP) may be in coming.
const ERROR_DELAY: Duration = Duration::from_secs(1);
/// How long a connection may be in the making.
const CONNECT_LIMIT: Duration = Duration::from_secs(1);
/// Time until the next attempt, at first and at most.
const RETRY_FIRST: Duration = Duration::from_millis(500);
const RETRY_LONGEST: Duration = Duration::from_secs(5);
/// Log read at once, bytes; over UDP less, with a pause, so that the buffers of collectors do not overflow.
const CHUNK: usize = 256 << 10;
const UDP_CHUNK: usize = 16 << 10;
const UDP_PAUSE: Duration = Duration::from_millis(5);
/// Longest IPFIX message over UDP and TCP, bytes.
const UDP_MESSAGE: usize = 1_400;
const TCP_MESSAGE: usize = 16 << 10;
/// Time after which templates are sent again over UDP (RFC 7011 section 8.1).
const TEMPLATE_AGE: Duration = Duration::from_secs(60);
/// Looks at an idle connection and notes of the cursor.
const TICK: Duration = Duration::from_millis(500);

/// How records are written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Protocol {
    /// RFC 5424.
    Syslog,
    /// RFC 7011, with the observation domain.
    Ipfix(u32),
}

/// How they travel.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Transport {
    /// Datagrams.
    Udp,
    /// A connection.
    Tcp,
}

/// An output.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OutputOptions {
    /// How records are written.
    pub protocol: Protocol,
    /// How they travel.
    pub transport: Transport,
    /// Where to.
    pub server: SocketAddr,
}

impl OutputOptions {
    /// The name in metrics.
    #[must_use]
    pub fn name(&self) -> String {
        let protocol = match self.protocol {
            Protocol::Syslog => "syslog",
            Protocol::Ipfix(_) => "ipfix",
        };
        let transport = match self.transport {
            Transport::Udp => "udp",
            Transport::Tcp => "tcp",
        };
        format!("{protocol}-{transport}-{}", self.server)
    }

    fn cursor(&self, directory: &Path) -> PathBuf {
        let name = self.name().replace(':', "_");
        directory.join(format!("{name}.cursor"))
    }
}

/// Where an output goes on: where it was, at the beginning if its cursor is damaged, at the end if it is new.
pub(crate) fn recall(
    options: &OutputOptions,
    directory: &Path,
    begin: Position,
    end: Position,
) -> io::Result<Position> {
    let bytes = match fs::read(options.cursor(directory)) {
        Ok(bytes) => bytes,
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            save(options, directory, end)?;
            return Ok(end);
        }
        Err(error) => return Err(error),
    };
    let numbers = body_at(&bytes, 0, 24).map(|body| {
        let mut numbers = body.chunks_exact(8).map(|it| {
            let bytes = it.try_into().unwrap_or([0; 8]);
            u64::from_be_bytes(bytes)
        });
        Some(Position {
            segment: numbers.next()?,
            offset: numbers.next()?,
            number: numbers.next()?,
        })
    });
    let position = numbers.flatten();
    if position.is_none() {
        let output = options.name();
        tracing::warn!(output, "damaged cursor: the whole NAT log is sent again");
    }
    Ok(position.unwrap_or(begin))
}

fn save(options: &OutputOptions, directory: &Path, at: Position) -> io::Result<()> {
    let mut body = Vec::with_capacity(24);
    for number in [at.segment, at.offset, at.number] {
        body.extend(number.to_be_bytes());
    }
    let mut bytes = Vec::new();
    put(&mut bytes, &body);
    let path = options.cursor(directory);
    let new = path.with_extension("new");
    let mut file = File::create(&new)?;
    file.write_all(&bytes)?;
    file.sync_data()?;
    fs::rename(new, path)
}

#[derive(Debug)]
enum Link {
    Udp(UdpSocket),
    Tcp(TcpStream),
}

/// What was sent and may have to be sent again.
#[derive(Debug)]
struct Burst {
    at: Instant,
    /// Bytes of all connections up to its end.
    after: u64,
    behind: Position,
}

/// The thread.
#[derive(Debug)]
pub(crate) struct Sender {
    shared: Arc<Shared>,
    index: usize,
    options: OutputOptions,
    hostname: String,
    exporter: Exporter,
    link: Option<Link>,
    has_been_up: bool,
    /// Records from here on are not sent.
    next: Position,
    confirmed: Position,
    saved: Position,
    bursts: VecDeque<Burst>,
    bytes: u64,
    /// When writing last had to wait.
    waited: Option<Instant>,
    template_sent: Option<Instant>,
    pause: Duration,
}

impl Sender {
    pub(crate) fn new(
        shared: Arc<Shared>,
        index: usize,
        options: OutputOptions,
        hostname: String,
        at: Position,
    ) -> Self {
        let domain = match options.protocol {
            Protocol::Syslog => 0,
            Protocol::Ipfix(domain) => domain,
        };
        Self {
            shared,
            index,
            options,
            hostname,
            exporter: Exporter::new(domain),
            link: None,
            has_been_up: false,
            next: at,
            confirmed: at,
            saved: at,
            bursts: VecDeque::new(),
            bytes: 0,
            waited: None,
            template_sent: None,
            pause: RETRY_FIRST,
        }
    }

    /// Until the log is closed.
    pub(crate) fn run(mut self) {
        let mut noted = Instant::now();
        while !self.shared.state.lock().stop {
            if let Err(error) = self.turn() {
                self.fail(&error);
                self.wait(self.pause);
                self.pause = (self.pause * 2).min(RETRY_LONGEST);
            }
            if noted.elapsed() >= TICK {
                noted = Instant::now();
                self.note();
            }
        }
        self.note();
    }

    /// Waits for at least so long, or until the log is closed.
    fn wait(&self, time: Duration) {
        let until = Instant::now() + time;
        let mut state = self.shared.state.lock();
        while !state.stop {
            if self
                .shared
                .changed
                .wait_until(&mut state, until)
                .timed_out()
            {
                return;
            }
        }
    }

    /// Waits until there is more to send, for a tick at most.
    fn wait_for_more(&self) {
        let until = Instant::now() + TICK;
        let mut state = self.shared.state.lock();
        while !state.stop && state.end() <= self.next {
            if self
                .shared
                .changed
                .wait_until(&mut state, until)
                .timed_out()
            {
                return;
            }
        }
    }

    fn turn(&mut self) -> io::Result<()> {
        self.look_at_link()?;
        self.confirm();
        let is_done = {
            let state = self.shared.state.lock();
            let (nearest, lost) = state.nearest(self.next);
            self.next = nearest;
            drop(state);
            if lost != 0 {
                self.lose(lost);
            }
            self.shared.state.lock().end() <= self.next
        };
        if is_done {
            self.show(0);
            self.wait_for_more();
            return Ok(());
        }
        let chunk = match self.options.transport {
            Transport::Udp => UDP_CHUNK,
            Transport::Tcp => CHUNK,
        };
        let Some((records, behind)) = self.shared.read(self.next, chunk)? else {
            return Ok(());
        };
        if records.is_empty() {
            self.next = behind;
            return Ok(());
        }
        if self.link.is_none() {
            self.connect()?;
        }
        self.send(&records)?;
        self.next = behind;
        self.bursts.push_back(Burst {
            at: Instant::now(),
            after: self.bytes,
            behind,
        });
        self.show(records.len() as u64);
        if self.options.transport == Transport::Udp {
            self.wait(UDP_PAUSE);
        }
        Ok(())
    }

    fn connect(&mut self) -> io::Result<()> {
        let server = self.options.server;
        let link = match self.options.transport {
            Transport::Udp => {
                let any: SocketAddr = match server {
                    SocketAddr::V4(_) => (Ipv4Addr::UNSPECIFIED, 0).into(),
                    SocketAddr::V6(_) => (Ipv6Addr::UNSPECIFIED, 0).into(),
                };
                let socket = UdpSocket::bind(any)?;
                socket.connect(server)?;
                Link::Udp(socket)
            }
            Transport::Tcp => {
                let stream = TcpStream::connect_timeout(&server, CONNECT_LIMIT)?;
                stream.set_nodelay(true)?;
                stream.set_nonblocking(true)?;
                rustix::net::sockopt::set_tcp_user_timeout(&stream, USER_TIMEOUT_MS)?;
                Link::Tcp(stream)
            }
        };
        self.link = Some(link);
        self.exporter.restart();
        self.template_sent = None;
        self.pause = RETRY_FIRST;
        let again = std::mem::replace(&mut self.has_been_up, true);
        let output = self.options.name();
        tracing::debug!(output, "NAT log: connected");
        let mut state = self.shared.state.lock();
        if let Some(own) = state.outputs.get_mut(self.index) {
            own.connected = true;
            own.reconnects += u64::from(again);
        }
        Ok(())
    }

    fn send(&mut self, records: &[Record]) -> io::Result<()> {
        let mut rest = records;
        let mut stream = Vec::new();
        while let Some(first) = rest.first() {
            let (bytes, used) = match (self.options.protocol, self.options.transport) {
                (Protocol::Syslog, Transport::Udp) => {
                    (Some(syslog::message(first, &self.hostname)), 1)
                }
                (Protocol::Syslog, Transport::Tcp) => {
                    let message = syslog::message(first, &self.hostname);
                    (Some(syslog::counted(&message)), 1)
                }
                (Protocol::Ipfix(_), transport) => self.export(rest, transport),
            };
            rest = rest.get(used..).unwrap_or(&[]);
            match (&self.link, bytes) {
                (Some(Link::Udp(socket)), Some(bytes)) => {
                    socket.send(&bytes)?;
                }
                (_, Some(bytes)) => stream.extend(bytes),
                (_, None) => {}
            }
        }
        self.write(&stream)
    }

    fn export(&mut self, records: &[Record], transport: Transport) -> (Option<Vec<u8>>, usize) {
        let now = SystemTime::now().duration_since(UNIX_EPOCH);
        let unix_s = now.unwrap_or_default().as_secs();
        let is_due = match (self.template_sent, transport) {
            (None, _) => true,
            (Some(sent), Transport::Udp) => sent.elapsed() >= TEMPLATE_AGE,
            (Some(_), Transport::Tcp) => false,
        };
        let most = match transport {
            Transport::Udp => UDP_MESSAGE,
            Transport::Tcp => TCP_MESSAGE,
        };
        let (message, used) = self.exporter.message(records.iter(), is_due, most, unix_s);
        if is_due && message.is_some() {
            self.template_sent = Some(Instant::now());
        }
        (message, used)
    }

    /// Writes to the connection, however long it takes. A connection that takes nothing is ended by the kernel.
    fn write(&mut self, mut bytes: &[u8]) -> io::Result<()> {
        while !bytes.is_empty() {
            let Some(Link::Tcp(stream)) = &mut self.link else {
                return Err(io::ErrorKind::NotConnected.into());
            };
            match stream.write(bytes) {
                Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
                Ok(written) => {
                    self.bytes += written as u64;
                    bytes = bytes.get(written..).unwrap_or(&[]);
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    self.waited = Some(Instant::now());
                    let flags = PollFlags::OUT | PollFlags::RDHUP;
                    let limit = Timespec {
                        tv_sec: 0,
                        tv_nsec: 200_000_000,
                    };
                    poll(&mut [PollFd::new(stream, flags)], Some(&limit))?;
                    if self.shared.state.lock().stop {
                        return Err(io::ErrorKind::Interrupted.into());
                    }
                    self.look_at_link()?;
                }
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    /// Whether the connection still stands; what a collector says is not looked at.
    fn look_at_link(&mut self) -> io::Result<()> {
        match &mut self.link {
            None => Ok(()),
            Some(Link::Udp(socket)) => match socket.take_error()? {
                Some(error) => Err(error),
                None => Ok(()),
            },
            Some(Link::Tcp(stream)) => match stream.read(&mut [0; 512]) {
                Ok(0) => Err(io::ErrorKind::UnexpectedEof.into()),
                Ok(_) => Ok(()),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => Ok(()),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => Ok(()),
                Err(error) => Err(error),
            },
        }
    }

    fn confirm(&mut self) {
        let now = Instant::now();
        let (hold, is_flowing) = match self.options.transport {
            Transport::Udp => (ERROR_DELAY, true),
            Transport::Tcp => {
                let waited = self.waited.map(|at| now.duration_since(at));
                (HOLD, waited.is_none_or(|ago| ago >= HOLD))
            }
        };
        while let Some(burst) = self.bursts.front() {
            let is_old = now.duration_since(burst.at) >= hold;
            if !is_old || !(is_flowing || self.bytes - burst.after >= BUFFERED) {
                return;
            }
            self.confirmed = burst.behind;
            self.bursts.pop_front();
        }
        // Segments that hold nothing for it are behind it too.
        self.confirmed = self.next;
    }

    /// Goes back to what may not have arrived.
    fn fail(&mut self, error: &io::Error) {
        let output = self.options.name();
        tracing::debug!(output, %error, "NAT log: not sent");
        self.link = None;
        self.bursts.clear();
        self.waited = None;
        self.next = self.confirmed;
        let mut state = self.shared.state.lock();
        if let Some(own) = state.outputs.get_mut(self.index) {
            own.connected = false;
            own.errors += 1;
            own.next = self.next.number;
        }
    }

    fn lose(&mut self, records: u64) {
        let output = self.options.name();
        tracing::error!(
            output,
            records,
            "records of the NAT log were removed before the collector had them"
        );
        self.bursts.clear();
        self.confirmed = self.next;
        if let Some(own) = self.shared.state.lock().outputs.get_mut(self.index) {
            own.lost += records;
        }
    }

    fn show(&self, sent: u64) {
        let now = SystemTime::now().duration_since(UNIX_EPOCH);
        let now_ms = u64::try_from(now.unwrap_or_default().as_millis()).unwrap_or(0);
        let mut state = self.shared.state.lock();
        if let Some(own) = state.outputs.get_mut(self.index) {
            own.next = self.next.number;
            own.sent += sent;
            own.current_ms = now_ms;
        }
    }

    /// Writes the cursor down, and says what need not be kept for this output.
    fn note(&mut self) {
        self.confirm();
        if self.confirmed != self.saved {
            match save(&self.options, &self.shared.directory, self.confirmed) {
                Ok(()) => self.saved = self.confirmed,
                Err(error) => {
                    let output = self.options.name();
                    tracing::warn!(output, %error, "cursor of the NAT log could not be written");
                }
            }
        }
        let mut state = self.shared.state.lock();
        if let Some(Output { confirmed, .. }) = state.outputs.get_mut(self.index) {
            *confirmed = self.saved;
        }
    }
}
