//! The kernel's end: sockets, and one thread that reads them and counts.

use std::io::{ErrorKind, Read};
use std::net::{Ipv4Addr, SocketAddrV4, TcpListener, TcpStream, UdpSocket};
use std::os::fd::AsFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use rustix::event::{Timespec, epoll};

use super::cell::Protocol;
use super::peer::FIRST_PORT;

/// First port of our datagram sockets.
const FIRST_UDP: u16 = 6_000;
/// Port of the server for connections of subscribers.
pub(super) const SERVER: u16 = 5_001;
/// Bytes read at once.
const READ: usize = 256 * 1_024;
/// Bytes a datagram socket may hold: more than is ever on its way.
const DATAGRAM_BUFFER: usize = 8 << 20;
/// How often the thread looks whether it shall end, when nothing arrives.
const TICK: Timespec = Timespec {
    tv_sec: 0,
    tv_nsec: 50_000_000,
};
/// How long a connection may take.
const CONNECT: Duration = Duration::from_secs(10);

/// Payload bytes read, by flow.
#[derive(Clone, Debug)]
pub(super) struct Delivered(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    bytes: Vec<AtomicU64>,
    reads: AtomicU64,
    stop: AtomicBool,
}

impl Delivered {
    fn new(flows: u16) -> Self {
        Self(Arc::new(Shared {
            bytes: (0..flows).map(|_| AtomicU64::new(0)).collect(),
            reads: AtomicU64::new(0),
            stop: AtomicBool::new(false),
        }))
    }

    /// Of one flow.
    pub(super) fn bytes(&self, flow: usize) -> u64 {
        self.0
            .bytes
            .get(flow)
            .map_or(0, |bytes| bytes.load(Ordering::Relaxed))
    }

    /// Of all flows.
    pub(super) fn total(&self) -> u64 {
        self.0
            .bytes
            .iter()
            .map(|bytes| bytes.load(Ordering::Relaxed))
            .sum()
    }

    /// System calls that read something.
    pub(super) fn reads(&self) -> u64 {
        self.0.reads.load(Ordering::Relaxed)
    }
}

/// What the sockets are for.
#[derive(Clone, Copy, Debug)]
pub(super) enum Role {
    /// Connect to the peer, which then sends.
    Connect(Ipv4Addr),
    /// Wait for connections of subscribers.
    Listen,
}

/// A socket that is read.
enum Socket {
    Tcp(TcpStream),
    Udp(UdpSocket),
}

impl Socket {
    fn read(&mut self, buffer: &mut [u8]) -> std::io::Result<usize> {
        match self {
            Self::Tcp(stream) => stream.read(buffer),
            Self::Udp(socket) => socket.recv(buffer),
        }
    }

    /// Reads before the next socket has its turn: a stream gives all it has, a datagram socket one datagram.
    const fn reads(&self) -> usize {
        match self {
            Self::Tcp(_) => 1,
            Self::Udp(_) => 64,
        }
    }
}

/// The thread.
pub(super) struct Receiver {
    delivered: Delivered,
    thread: Option<JoinHandle<Result<()>>>,
}

impl Receiver {
    /// Starts it on `core`, in the network namespace of the caller.
    pub(super) fn start(core: usize, protocol: Protocol, role: Role, flows: u16) -> Result<Self> {
        let delivered = Delivered::new(flows);
        let shared = delivered.clone();
        // Before anybody connects.
        let listener = match role {
            Role::Listen => Some(TcpListener::bind((Ipv4Addr::UNSPECIFIED, SERVER))?),
            Role::Connect(_) => None,
        };
        let thread = std::thread::Builder::new()
            .name("receiver".to_owned())
            .spawn(move || {
                core_affinity::set_for_current(core_affinity::CoreId { id: core });
                let sockets = match (role, listener) {
                    (Role::Connect(peer), _) => connect(protocol, peer, flows)?,
                    (Role::Listen, Some(listener)) => accept(&listener, flows, &shared)?,
                    (Role::Listen, None) => Vec::new(),
                };
                read_all(sockets, &shared)
            })?;
        Ok(Self {
            delivered,
            thread: Some(thread),
        })
    }

    /// What it has read.
    pub(super) fn delivered(&self) -> Delivered {
        self.delivered.clone()
    }

    /// Whether it ended before it was told to.
    pub(super) fn has_ended(&self) -> bool {
        self.thread.as_ref().is_none_or(JoinHandle::is_finished)
    }

    /// Ends it; the sockets go away with it.
    pub(super) fn stop(mut self) -> Result<()> {
        self.delivered.0.stop.store(true, Ordering::Relaxed);
        match self.thread.take().map(JoinHandle::join) {
            Some(Ok(result)) => result,
            Some(Err(_)) => bail!("the receiver panicked"),
            None => Ok(()),
        }
    }
}

fn connect(protocol: Protocol, peer: Ipv4Addr, flows: u16) -> Result<Vec<Socket>> {
    let socket = |at: u16| -> Result<Socket> {
        let to = SocketAddrV4::new(peer, FIRST_PORT + at);
        match protocol {
            Protocol::Tcp => {
                let stream = TcpStream::connect_timeout(&to.into(), CONNECT)
                    .with_context(|| format!("connection to {to}"))?;
                stream.set_nonblocking(true)?;
                Ok(Socket::Tcp(stream))
            }
            Protocol::Udp => {
                let socket = UdpSocket::bind((Ipv4Addr::UNSPECIFIED, FIRST_UDP + at))?;
                rustix::net::sockopt::set_socket_recv_buffer_size_force(&socket, DATAGRAM_BUFFER)?;
                socket.connect(to)?;
                socket
                    .send(b"hello")
                    .with_context(|| format!("datagram to {to}"))?;
                socket.set_nonblocking(true)?;
                Ok(Socket::Udp(socket))
            }
        }
    };
    (0..flows).map(socket).collect()
}

fn accept(listener: &TcpListener, flows: u16, shared: &Delivered) -> Result<Vec<Socket>> {
    let mut sockets = Vec::new();
    listener.set_nonblocking(true)?;
    let epoll = epoll::create(epoll::CreateFlags::CLOEXEC)?;
    epoll::add(
        &epoll,
        listener,
        epoll::EventData::new_u64(0),
        epoll::EventFlags::IN,
    )?;
    while sockets.len() < usize::from(flows) && !shared.0.stop.load(Ordering::Relaxed) {
        match listener.accept() {
            Ok((stream, _)) => {
                stream.set_nonblocking(true)?;
                sockets.push(Socket::Tcp(stream));
            }
            Err(error) if error.kind() == ErrorKind::WouldBlock => {
                let mut events = Vec::with_capacity(1);
                epoll::wait(
                    &epoll,
                    rustix::buffer::spare_capacity(&mut events),
                    Some(&TICK),
                )?;
            }
            Err(error) => return Err(error.into()),
        }
    }
    Ok(sockets)
}

/// Reads until told to stop.
fn read_all(mut sockets: Vec<Socket>, shared: &Delivered) -> Result<()> {
    let epoll = epoll::create(epoll::CreateFlags::CLOEXEC)?;
    for (at, socket) in (0u64..).zip(&sockets) {
        let fd = match socket {
            Socket::Tcp(stream) => stream.as_fd(),
            Socket::Udp(socket) => socket.as_fd(),
        };
        epoll::add(
            &epoll,
            fd,
            epoll::EventData::new_u64(at),
            epoll::EventFlags::IN,
        )?;
    }
    let mut buffer = vec![0; READ];
    let mut events = Vec::with_capacity(sockets.len());
    while !shared.0.stop.load(Ordering::Relaxed) {
        events.clear();
        match epoll::wait(
            &epoll,
            rustix::buffer::spare_capacity(&mut events),
            Some(&TICK),
        ) {
            Ok(_) | Err(rustix::io::Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
        for event in &events {
            let at = event.data.u64() as usize;
            let (Some(socket), Some(bytes)) = (sockets.get_mut(at), shared.0.bytes.get(at)) else {
                continue;
            };
            for _ in 0..socket.reads() {
                match socket.read(&mut buffer) {
                    Ok(0) => bail!("flow {at} was closed by the other end"),
                    Ok(len) => {
                        bytes.fetch_add(len as u64, Ordering::Relaxed);
                        shared.0.reads.fetch_add(1, Ordering::Relaxed);
                    }
                    Err(error) if error.kind() == ErrorKind::WouldBlock => break,
                    Err(error) => return Err(error).with_context(|| format!("flow {at}")),
                }
            }
        }
    }
    Ok(())
}
