//! Advisory locks on single bytes of a file, owned by the open file description (`F_OFD_SETLK`).
//!
//! Why these and not flock: they can be *asked* about (`F_OFD_GETLK`). With flock the only way to ask
//! is to take the lock for a moment, and a process that starts in that moment is refused for nothing.
//! Unlike the process-owned POSIX locks they are not lost when some other descriptor of the file is
//! closed, and two owners in one process exclude each other. The kernel lets go of them when the last
//! descriptor is closed, so also when the process is killed.

use std::io;
use std::os::fd::{AsRawFd, OwnedFd};

/// A file whose bytes are locked; letting go of it unlocks them.
#[derive(Debug)]
pub(crate) struct LockFile(OwnedFd);

impl LockFile {
    /// The file behind `fd`, opened for reading and writing. Locks may lie beyond its end.
    pub(crate) const fn new(fd: OwnedFd) -> Self {
        Self(fd)
    }

    /// Locks `byte`; false when another open file description holds it.
    pub(crate) fn try_lock(&self, byte: u8) -> io::Result<bool> {
        match self.call(libc::F_OFD_SETLK, libc::F_WRLCK, byte) {
            Ok(_) => Ok(true),
            Err(error) if matches!(error.raw_os_error(), Some(libc::EAGAIN | libc::EACCES)) => {
                Ok(false)
            }
            Err(error) => Err(error),
        }
    }

    /// Locks `byte`, waiting for whoever holds it.
    pub(crate) fn lock(&self, byte: u8) -> io::Result<()> {
        loop {
            match self.call(libc::F_OFD_SETLKW, libc::F_WRLCK, byte) {
                Ok(_) => return Ok(()),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
    }

    /// Whether another open file description holds `byte`. Takes nothing.
    pub(crate) fn is_held_elsewhere(&self, byte: u8) -> io::Result<bool> {
        self.call(libc::F_OFD_GETLK, libc::F_WRLCK, byte)
            .map(|lock| lock.l_type != libc::F_UNLCK as libc::c_short)
    }

    fn call(&self, command: libc::c_int, kind: libc::c_int, byte: u8) -> io::Result<libc::flock> {
        let mut lock = libc::flock {
            l_type: kind as libc::c_short,
            l_whence: libc::SEEK_SET as libc::c_short,
            l_start: byte.into(),
            l_len: 1,
            // Must be zero for the OFD commands.
            l_pid: 0,
        };
        // SAFETY: the descriptor is open for the life of `self`, and these commands take a pointer to
        // a `flock` that outlives the call.
        let result = unsafe { libc::fcntl(self.0.as_raw_fd(), command, &raw mut lock) };
        if result == -1 {
            return Err(io::Error::last_os_error());
        }
        Ok(lock)
    }
}

impl Drop for LockFile {
    fn drop(&mut self) {
        // Closing would do, were there not children between fork and exec that hold a copy of the
        // descriptor: unlocking takes effect for all copies. There is nothing to do about an error.
        for byte in 0..=1 {
            let _ = self.call(libc::F_OFD_SETLK, libc::F_UNLCK, byte);
        }
    }
}
