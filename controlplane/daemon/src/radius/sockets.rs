//! UDP sockets to servers: one for each 256 requests under way to one.

use std::collections::HashMap;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::Arc;
use std::task::{Context, Poll};

use bng_aaa::radius::Transmit;
use bng_aaa::radius::packet::LONGEST;
use tokio::net::UdpSocket;
use tokio::sync::mpsc;

/// Datagrams that may wait for the client; the kernel's buffer comes before.
const WAITING: usize = 256;

/// A datagram of a server.
#[derive(Debug)]
pub(super) struct Datagram {
    pub(super) server: usize,
    pub(super) socket: u8,
    pub(super) bytes: Vec<u8>,
}

/// All sockets. Each is opened when it is needed and connected, so that the kernel lets nothing else in.
#[derive(Debug)]
pub(super) struct Sockets {
    servers: Vec<SocketAddr>,
    source: Option<IpAddr>,
    open: HashMap<(usize, u8), Arc<UdpSocket>>,
    sender: mpsc::Sender<Datagram>,
    receiver: mpsc::Receiver<Datagram>,
    failed: u64,
}

impl Sockets {
    pub(super) fn new(servers: Vec<SocketAddr>, source: Option<IpAddr>) -> Self {
        let (sender, receiver) = mpsc::channel(WAITING);
        Self {
            servers,
            source,
            open: HashMap::new(),
            sender,
            receiver,
            failed: 0,
        }
    }

    /// The next datagram.
    pub(super) fn poll_receive(&mut self, context: &mut Context<'_>) -> Poll<Datagram> {
        match self.receiver.poll_recv(context) {
            Poll::Ready(Some(datagram)) => Poll::Ready(datagram),
            // None never comes: `sender` is ours.
            Poll::Ready(None) | Poll::Pending => Poll::Pending,
        }
    }

    /// Sends. What cannot be sent is like a datagram that is lost: the client tries again.
    pub(super) async fn send(&mut self, transmit: &Transmit) {
        let mut result = self.try_send(transmit).await;
        if result.is_err() {
            // The first error may be that of an earlier datagram (ICMP port unreachable).
            result = self.try_send(transmit).await;
        }
        if let Err(error) = result {
            self.failed += 1;
            let server = self.servers.get(transmit.server);
            tracing::debug!(?server, %error, "RADIUS request could not be sent");
            self.open.remove(&(transmit.server, transmit.socket));
        }
    }

    async fn try_send(&mut self, transmit: &Transmit) -> io::Result<()> {
        let key = (transmit.server, transmit.socket);
        let socket = match self.open.get(&key) {
            Some(socket) => socket.clone(),
            None => {
                let socket = Arc::new(self.connect(transmit.server).await?);
                self.open.insert(key, socket.clone());
                tokio::spawn(read(Arc::downgrade(&socket), key, self.sender.clone()));
                socket
            }
        };
        socket.send(&transmit.bytes).await?;
        Ok(())
    }

    async fn connect(&self, server: usize) -> io::Result<UdpSocket> {
        let server = self.servers.get(server).ok_or(io::ErrorKind::NotFound)?;
        let any = match server {
            SocketAddr::V4(_) => IpAddr::V4(Ipv4Addr::UNSPECIFIED),
            SocketAddr::V6(_) => IpAddr::V6(Ipv6Addr::UNSPECIFIED),
        };
        let socket = UdpSocket::bind((self.source.unwrap_or(any), 0)).await?;
        socket.connect(server).await?;
        Ok(socket)
    }

    /// Datagrams that could not be sent.
    pub(super) fn failed(&self) -> u64 {
        self.failed
    }
}

/// Reads until the socket is given up: it may go between two datagrams.
async fn read(
    socket: std::sync::Weak<UdpSocket>,
    (server, number): (usize, u8),
    sender: mpsc::Sender<Datagram>,
) {
    let mut buffer = vec![0; LONGEST];
    loop {
        let Some(socket) = socket.upgrade() else {
            return;
        };
        match socket.recv(&mut buffer).await {
            Ok(length) => {
                let datagram = Datagram {
                    server,
                    socket: number,
                    bytes: buffer.get(..length).unwrap_or(&[]).to_vec(),
                };
                if sender.send(datagram).await.is_err() {
                    return;
                }
            }
            // The server's port is closed: told again with each request, so there is no storm of it.
            Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => {}
            Err(error) => {
                tracing::debug!(%error, "RADIUS socket");
                return;
            }
        }
    }
}
