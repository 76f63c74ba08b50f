//! lwIP's PPPoE client (PPPoE, LCP, PAP, CHAP, IPCP, IPv6CP) driven by frames and time, as a peer for tests that shares no line
//! with ours.
//!
//! lwIP keeps its state in statics, so a process has one [`Peer`] at most.

use std::ffi::{CString, c_char, c_int, c_void};
use std::net::Ipv4Addr;
use std::sync::atomic::{AtomicBool, Ordering};

type Send = extern "C" fn(*mut c_void, *const u8, usize);

unsafe extern "C" {
    fn lwip_peer_start(
        mac: *const u8,
        by_chap: c_int,
        user: *const c_char,
        password: *const c_char,
        now_ms: u32,
        send: Send,
        context: *mut c_void,
    ) -> c_int;
    fn lwip_peer_connect() -> c_int;
    fn lwip_peer_close() -> c_int;
    fn lwip_peer_receive(bytes: *const u8, length: usize);
    fn lwip_peer_tick(now_ms: u32) -> u32;
    fn lwip_peer_status() -> c_int;
    fn lwip_peer_address() -> u32;
    fn lwip_peer_gateway() -> u32;
    fn lwip_peer_has_ipv6() -> c_int;
}

/// How lwIP proves who it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Proof {
    /// PAP (RFC 1334).
    Pap,
    /// CHAP with MD5 (RFC 1994).
    Chap,
}

/// What became of the connection, by lwIP's own codes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Status {
    /// It is being made, or nothing has begun.
    Pending,
    /// IPCP or IPv6CP is open.
    Up,
    /// lwIP ended it.
    Closed,
    /// The gateway refused the name or the password.
    AuthenticationFailed,
    /// The gateway ended it, or it was never there.
    Lost,
    /// No answer to its Echo-Requests.
    PeerDead,
    /// Another of lwIP's `PPPERR_` codes.
    Other(i32),
}

static TAKEN: AtomicBool = AtomicBool::new(false);

/// Frames lwIP has sent.
#[derive(Debug, Default)]
struct Sent(Vec<Vec<u8>>);

/// lwIP with one PPPoE session.
#[derive(Debug)]
pub struct Peer {
    // At an address of its own, which C keeps.
    sent: Box<Sent>,
    // lwIP keeps these two as they are.
    _strings: (CString, CString),
}

extern "C" fn send(context: *mut c_void, bytes: *const u8, length: usize) {
    // SAFETY: the context is the `sent` of the one `Peer`, which is alive and borrowed by the method that called into C.
    let sent = unsafe { &mut *context.cast::<Sent>() };
    // SAFETY: C gives `length` bytes that live until this returns.
    let bytes = unsafe { std::slice::from_raw_parts(bytes, length) };
    sent.0.push(bytes.to_vec());
}

impl Peer {
    /// The one peer of this process; `None` when there was one before, or a string has a zero byte.
    #[must_use]
    pub fn new(
        mac: [u8; 6],
        proof: Proof,
        user: &str,
        password: &str,
        now_ms: u32,
    ) -> Option<Self> {
        let strings = (CString::new(user).ok()?, CString::new(password).ok()?);
        if TAKEN.swap(true, Ordering::AcqRel) {
            return None;
        }
        let mut sent = Box::<Sent>::default();
        let context: *mut Sent = &mut *sent;
        // SAFETY: called once; strings and context live as long as the peer, of which there is one, and lwIP is used by it alone.
        let started = unsafe {
            lwip_peer_start(
                mac.as_ptr(),
                (proof == Proof::Chap).into(),
                strings.0.as_ptr(),
                strings.1.as_ptr(),
                now_ms,
                send,
                context.cast(),
            )
        };
        (started == 0).then_some(Self {
            sent,
            _strings: strings,
        })
    }

    /// Dials; `false` when lwIP will not.
    pub fn connect(&mut self) -> bool {
        // SAFETY: the peer has been started, and `&mut self` makes this the only call.
        unsafe { lwip_peer_connect() == 0 }
    }

    /// Hangs up.
    pub fn close(&mut self) -> bool {
        // SAFETY: as in `connect`.
        unsafe { lwip_peer_close() == 0 }
    }

    /// Gives it a frame.
    pub fn receive(&mut self, frame: &[u8]) {
        // SAFETY: as in `connect`; C copies the bytes.
        unsafe { lwip_peer_receive(frame.as_ptr(), frame.len()) }
    }

    /// Lets its time pass to `now_ms`.
    pub fn tick(&mut self, now_ms: u32) {
        // SAFETY: as in `connect`.
        unsafe { lwip_peer_tick(now_ms) };
    }

    /// What it has sent since the last call.
    pub fn take_sent(&mut self) -> Vec<Vec<u8>> {
        std::mem::take(&mut self.sent.0)
    }

    /// What became of the connection.
    #[must_use]
    pub fn status(&self) -> Status {
        // SAFETY: reads a number of the started peer; only methods that have it exclusively write it.
        match unsafe { lwip_peer_status() } {
            -1 => Status::Pending,
            0 => Status::Up,
            5 => Status::Closed,
            6 => Status::Lost,
            7 => Status::AuthenticationFailed,
            9 => Status::PeerDead,
            other => Status::Other(other),
        }
    }

    /// Its address, and the gateway's.
    #[must_use]
    pub fn addresses(&self) -> (Ipv4Addr, Ipv4Addr) {
        // SAFETY: as in `status`.
        let (own, gateway) = unsafe { (lwip_peer_address(), lwip_peer_gateway()) };
        (own.into(), gateway.into())
    }

    /// Whether IPv6CP is open: it has a link-local address on the session.
    #[must_use]
    pub fn has_ipv6(&self) -> bool {
        // SAFETY: as in `status`.
        unsafe { lwip_peer_has_ipv6() != 0 }
    }
}
