//! Another kernel behind a core port: a namespace with a TAP device, and a cable from there to the port on which every frame
//! is looked at.

use crate::running::{ROUTER, ROUTER_MAC, Tap, run};
use bng_fastpath::testing::{wrong_checksum, wrong_checksum6};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};
use std::fs::File;
use std::os::fd::AsFd;
use std::process::Command;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use tun_rs::{DeviceBuilder, Layer, SyncDevice};

/// Longest frame without tags on the cable.
const LONGEST: usize = 1_514;

/// A kernel with the router's addresses.
pub(crate) struct Peer {
    namespace: String,
    device: SyncDevice,
}

/// What went over the cable.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Seen {
    /// Frames out of the process.
    pub(crate) out: u64,
    /// Frames into it.
    pub(crate) back: u64,
    /// Of the frames out, TCP with CWR.
    pub(crate) cwr: u64,
    /// Of these, those right behind another one of the same flow.
    pub(crate) cwr_in_a_row: u64,
}

impl Peer {
    /// Makes the namespace. The router's IPv6 address in it is `router6`.
    pub(crate) fn start(name: &str, router6: &str) -> Self {
        let namespace = format!("bng-{name}-peer-{}", std::process::id());
        run("ip", &format!("netns add {namespace}"));
        let router6 = router6.to_owned();
        let device = inside(&namespace, move || {
            std::fs::write("/proc/sys/net/ipv6/conf/default/accept_dad", "0").unwrap();
            let device = DeviceBuilder::new()
                .name("peer0")
                .layer(Layer::L2)
                .mac_addr(ROUTER_MAC.0)
                .build_sync()
                .unwrap();
            device.set_nonblocking(true).unwrap();
            run("ip", &format!("address add {ROUTER}/24 dev peer0"));
            run("ip", &format!("address add {router6}/64 dev peer0 nodad"));
            run("ip", "link set lo up");
            device
        });
        let device = device.join().unwrap();
        Self { namespace, device }
    }

    /// Runs `body` on a thread inside.
    pub(crate) fn inside<T: Send + 'static>(
        &self,
        body: impl FnOnce() -> T + Send + 'static,
    ) -> JoinHandle<T> {
        inside(&self.namespace, body)
    }

    /// Carries frames between the kernel here and the core port until `stop`. What the port sends must have the size of a
    /// frame and right checksums. `out` may change what comes out of the port.
    pub(crate) fn cable(
        &self,
        core: &Tap,
        stop: &AtomicBool,
        seen: &Mutex<Seen>,
        mut out: impl FnMut(&mut [u8]),
    ) {
        let mut frame = vec![0; 65_600];
        let mut last_had_cwr = false;
        while !stop.load(Ordering::Relaxed) {
            let mut moved = false;
            while let Some(len) = core.take(&mut frame) {
                let frame = &mut frame[..len];
                check(frame);
                let mut seen = seen.lock().unwrap();
                seen.out += 1;
                if let Some(has_cwr) = cwr_of_data(frame) {
                    seen.cwr += u64::from(has_cwr);
                    seen.cwr_in_a_row += u64::from(has_cwr && last_had_cwr);
                    last_had_cwr = has_cwr;
                }
                drop(seen);
                out(frame);
                self.device.send(frame).unwrap();
                moved = true;
            }
            while let Ok(len) = self.device.recv(&mut frame) {
                core.send(&frame[..len]);
                seen.lock().unwrap().back += 1;
                moved = true;
            }
            if !moved {
                let limit = Timespec {
                    tv_sec: 0,
                    tv_nsec: 10_000_000,
                };
                let mut fds = [
                    PollFd::from_borrowed_fd(core.as_fd(), PollFlags::IN),
                    PollFd::from_borrowed_fd(self.device.as_fd(), PollFlags::IN),
                ];
                poll(&mut fds, Some(&limit)).unwrap();
            }
        }
    }
}

impl Drop for Peer {
    fn drop(&mut self) {
        let _ = Command::new("ip")
            .args(["netns", "del", &self.namespace])
            .status();
    }
}

fn inside<T: Send + 'static>(
    namespace: &str,
    body: impl FnOnce() -> T + Send + 'static,
) -> JoinHandle<T> {
    let file = File::open(format!("/run/netns/{namespace}")).unwrap();
    std::thread::spawn(move || {
        move_into_link_name_space(file.as_fd(), Some(LinkNameSpaceType::Network)).unwrap();
        body()
    })
}

fn check(frame: &[u8]) {
    assert!(frame.len() <= LONGEST, "{} bytes", frame.len());
    match frame[12..14] {
        [0x08, 0x00] => assert_eq!(wrong_checksum(&frame[14..]), None, "{frame:02x?}"),
        [0x86, 0xdd] => assert_eq!(wrong_checksum6(&frame[14..]), None, "{frame:02x?}"),
        _ => {}
    }
}

/// Whether an IPv4 TCP frame with payload has CWR.
fn cwr_of_data(frame: &[u8]) -> Option<bool> {
    let is_tcp = frame[12..14] == [8, 0] && frame[23] == 6;
    (is_tcp && frame.len() > 100).then(|| frame[47] & 0x80 != 0)
}
