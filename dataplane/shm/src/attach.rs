//! How a process comes to the shared memory, and how it knows whether the other one lives.
//!
//! A directory holds the state file and one lock file per role. Two bytes of it are locked: the first
//! from the start, so that a role has one process, the second from the moment the process has the
//! memory. The kernel lets go of both when the process dies, so "is the other side alive?" is a
//! question to the lock, not a guess from a heartbeat, and asking does not take the lock.

use crate::layout::{
    ABI_VERSION, Capacities, CapacityError, Header, LAYOUT_HASH, Layout, MAGIC, Mismatch, Process,
};
use crate::lock::LockFile;
use crate::mapping::{HEADER_MAP_LEN, Tables, map_header};
use rustix::fs::{FallocateFlags, Mode, OFlags};
use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::Ordering;
use std::time::{SystemTime, UNIX_EPOCH};

/// Which process this is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Role {
    /// bng-controlplane, the only writer of the tables.
    Control,
    /// bng-dataplane.
    Dataplane,
}

impl Role {
    const fn lock_name(self) -> &'static str {
        match self {
            Self::Control => "control.lock",
            Self::Dataplane => "dataplane.lock",
        }
    }

    /// The other role.
    #[must_use]
    pub const fn other(self) -> Self {
        match self {
            Self::Control => Self::Dataplane,
            Self::Dataplane => Self::Control,
        }
    }

    /// Name of the process, for messages.
    #[must_use]
    pub const fn process(self) -> &'static str {
        match self {
            Self::Control => "bng-controlplane",
            Self::Dataplane => "bng-dataplane",
        }
    }
}

/// Why a process could not attach.
#[derive(Debug, thiserror::Error)]
pub enum AttachError {
    /// A capacity is out of range.
    #[error(transparent)]
    Capacity(#[from] CapacityError),
    /// A file operation failed.
    #[error("shared memory {path}: {action}")]
    Io {
        /// The file or directory.
        path: PathBuf,
        /// What was tried.
        action: &'static str,
        /// The system's answer.
        source: io::Error,
    },
    /// A process of the same role holds the lock.
    #[error(
        "shared memory {path}: another {process} is running; stop it first, or give this one another shared_memory.path"
    )]
    Taken {
        /// The lock file.
        path: PathBuf,
        /// Name of the role's process.
        process: &'static str,
    },
    /// The memory was made for another version or another size, and the other process uses it.
    #[error(
        "shared memory {path}: {mismatch}; {process} is running with it: restart both with the same version and configuration"
    )]
    Mismatch {
        /// The state file.
        path: PathBuf,
        /// The first difference found.
        mismatch: Mismatch,
        /// The process that uses the memory.
        process: &'static str,
    },
    /// The state file was removed under a running process.
    #[error("shared memory {path}: removed while {process} is running with it: restart {process}")]
    Removed {
        /// The state file.
        path: PathBuf,
        /// The process that uses the memory.
        process: &'static str,
    },
    /// Somebody else's directory: its owner could put other files into it.
    #[error(
        "shared memory {path}: the directory belongs to user {owner}, not to this process's user {us}; remove it, or use another shared_memory.path"
    )]
    Foreign {
        /// The directory.
        path: PathBuf,
        /// Its owner's user id.
        owner: u32,
        /// The user id of this process.
        us: u32,
    },
    /// Others than the owner may put files into the directory.
    #[error(
        "shared memory {path}: mode {mode:04o} lets others than its owner write there; use a directory of mode 0700"
    )]
    Exposed {
        /// The directory.
        path: PathBuf,
        /// Its permission bits.
        mode: u32,
    },
}

/// A process's hold on the shared memory.
pub(crate) struct Attached {
    pub(crate) tables: Tables,
    pub(crate) capacities: Capacities,
    pub(crate) presence: Presence,
    /// The memory was made anew because it was made for something else and nobody used it.
    pub(crate) replaced: Option<Mismatch>,
    /// Nobody had made the memory before.
    pub(crate) created: bool,
}

/// Byte of a lock file: a process of the role runs. The making lock uses it as well.
const RUNS: u8 = 0;
/// Byte of a lock file: that process has the memory. Taken only under the making lock.
const HAS_MEMORY: u8 = 1;

/// The role's lock, and sight of the other role's.
#[derive(Debug)]
pub(crate) struct Presence {
    _own: Option<LockFile>,
    other: Option<LockFile>,
}

impl Presence {
    /// Memory without files: both sides are in this process.
    pub(crate) const fn alone() -> Self {
        Self {
            _own: None,
            other: None,
        }
    }

    /// Whether a process of the other role has the memory. In memory without files there is none but
    /// ours. Should the kernel refuse to tell, the answer is the careful one: yes.
    pub(crate) fn other_alive(&self) -> bool {
        self.other
            .as_ref()
            .is_none_or(|other| other.is_held_elsewhere(HAS_MEMORY).unwrap_or(true))
    }
}

fn io_error<E: Into<io::Error>>(
    path: &Path,
    action: &'static str,
) -> impl FnOnce(E) -> AttachError {
    move |error| AttachError::Io {
        path: path.to_owned(),
        action,
        source: error.into(),
    }
}

fn open_lock(dir: &Path, name: &str) -> Result<(LockFile, PathBuf), AttachError> {
    let path = dir.join(name);
    let fd = rustix::fs::open(
        &path,
        OFlags::RDWR | OFlags::CREATE | OFlags::CLOEXEC | OFlags::NOFOLLOW,
        Mode::RUSR | Mode::WUSR,
    )
    .map_err(io_error(&path, "open"))?;
    Ok((LockFile::new(fd), path))
}

/// Makes the directory, or makes sure that only its owner can put files into the one that is there.
fn open_directory(dir: &Path) -> Result<(), AttachError> {
    match rustix::fs::mkdir(dir, Mode::RWXU) {
        Ok(()) | Err(rustix::io::Errno::EXIST) => {}
        Err(errno) => return Err(io_error(dir, "create directory")(errno)),
    }
    let stat = rustix::fs::stat(dir).map_err(io_error(dir, "look at"))?;
    // On /dev/shm anybody can make a directory of our name before we do.
    let us = rustix::process::geteuid().as_raw();
    if stat.st_uid != us {
        return Err(AttachError::Foreign {
            path: dir.to_owned(),
            owner: stat.st_uid,
            us,
        });
    }
    let mode = stat.st_mode & 0o777;
    if mode & 0o022 != 0 {
        return Err(AttachError::Exposed {
            path: dir.to_owned(),
            mode,
        });
    }
    Ok(())
}

/// Attaches to (or makes) the memory in `dir`.
pub(crate) fn attach(
    dir: &Path,
    capacities: Capacities,
    role: Role,
) -> Result<Attached, AttachError> {
    capacities.check()?;
    open_directory(dir)?;
    let (own, own_path) = open_lock(dir, role.lock_name())?;
    if !own.try_lock(RUNS).map_err(io_error(&own_path, "lock"))? {
        return Err(AttachError::Taken {
            path: own_path,
            process: role.process(),
        });
    }
    let (other, _) = open_lock(dir, role.other().lock_name())?;

    // Both may start at once; one at a time looks at the state file.
    let (making, making_path) = open_lock(dir, "making.lock")?;
    making.lock(RUNS).map_err(io_error(&making_path, "lock"))?;
    let (tables, replaced, created) = find_or_make(dir, &capacities, role, || {
        other.is_held_elsewhere(HAS_MEMORY).unwrap_or(true)
    })?;
    // Nobody but us asks for this byte of our own lock, and we hold the other one.
    own.try_lock(HAS_MEMORY)
        .map_err(io_error(&own_path, "lock"))?;
    Ok(Attached {
        tables,
        capacities,
        presence: Presence {
            _own: Some(own),
            other: Some(other),
        },
        replaced,
        created,
    })
}

/// The memory, what it replaced if it was made for something else, and whether it was made now.
fn find_or_make(
    dir: &Path,
    capacities: &Capacities,
    role: Role,
    in_use: impl Fn() -> bool,
) -> Result<(Tables, Option<Mismatch>, bool), AttachError> {
    let layout = Layout::of(capacities);
    let path = dir.join("state");
    let process = role.other().process();
    let mut replaced = None;
    match open_state(&path)? {
        Some(file) => match verify(&file, &path, capacities, &layout)? {
            Ok(tables) => return Ok((tables, None, false)),
            Err(mismatch) if in_use() => {
                return Err(AttachError::Mismatch {
                    path,
                    mismatch,
                    process,
                });
            }
            Err(mismatch) => replaced = Some(mismatch),
        },
        // A second file would part the two processes without either noticing.
        None if in_use() => return Err(AttachError::Removed { path, process }),
        None => {}
    }
    let tables = make(dir, &path, capacities, &layout)?;
    Ok((tables, replaced, true))
}

fn open_state(path: &Path) -> Result<Option<File>, AttachError> {
    match rustix::fs::open(
        path,
        OFlags::RDWR | OFlags::CLOEXEC | OFlags::NOFOLLOW,
        Mode::empty(),
    ) {
        Ok(fd) => Ok(Some(fd.into())),
        Err(rustix::io::Errno::NOENT) => Ok(None),
        Err(errno) => Err(io_error(path, "open")(errno)),
    }
}

/// Maps the file and compares its header with what this process needs.
fn verify(
    file: &File,
    path: &Path,
    capacities: &Capacities,
    layout: &Layout,
) -> Result<Result<Tables, Mismatch>, AttachError> {
    let len = file.metadata().map_err(io_error(path, "look at"))?.len();
    let differs = |what, ours: u64, theirs: u64| Mismatch { what, ours, theirs };
    // The header must be there before it can be read: reading beyond the file's end would fault.
    if len < HEADER_MAP_LEN as u64 {
        return Ok(Err(differs("length in bytes", layout.len as u64, len)));
    }
    let header = map_header(file).map_err(io_error(path, "map"))?;
    if let Some(found) = compare(&header[0], capacities) {
        return Ok(Err(found));
    }
    if len != layout.len as u64 {
        return Ok(Err(differs("length in bytes", layout.len as u64, len)));
    }
    Tables::map(file, layout)
        .map(Ok)
        .map_err(io_error(path, "map"))
}

fn compare(header: &Header, capacities: &Capacities) -> Option<Mismatch> {
    let differs =
        |what, ours: u64, theirs: u64| (ours != theirs).then_some(Mismatch { what, ours, theirs });
    if let Some(found) = differs("magic", MAGIC, header.magic.load(Ordering::Acquire))
        .or_else(|| {
            let theirs = header.abi_version.load(Ordering::Relaxed);
            differs("ABI version", u64::from(ABI_VERSION), u64::from(theirs))
        })
        .or_else(|| {
            differs(
                "layout hash",
                LAYOUT_HASH,
                header.layout_hash.load(Ordering::Relaxed),
            )
        })
    {
        return Some(found);
    }
    for (at, (what, ours, _, _)) in capacities.fields().into_iter().enumerate() {
        let theirs = header.capacities[at].load(Ordering::Relaxed);
        if ours != theirs {
            return Some(Mismatch {
                what,
                ours: u64::from(ours),
                theirs: u64::from(theirs),
            });
        }
    }
    differs(
        "ready mark",
        1,
        u64::from(header.ready.load(Ordering::Acquire)),
    )
}

/// Makes the state file under another name and renames it, so that nobody sees half of it.
fn make(
    dir: &Path,
    path: &Path,
    capacities: &Capacities,
    layout: &Layout,
) -> Result<Tables, AttachError> {
    let new = dir.join("state.new");
    let _ = rustix::fs::unlink(&new);
    let made = fill(&new, capacities, layout).and_then(|tables| {
        rustix::fs::rename(&new, path).map_err(io_error(path, "rename into place"))?;
        Ok(tables)
    });
    if made.is_err() {
        // Half a file would keep memory that somebody may be short of.
        let _ = rustix::fs::unlink(&new);
    }
    made
}

fn fill(new: &Path, capacities: &Capacities, layout: &Layout) -> Result<Tables, AttachError> {
    let file: File = rustix::fs::open(
        new,
        OFlags::RDWR | OFlags::CREATE | OFlags::EXCL | OFlags::CLOEXEC,
        Mode::RUSR | Mode::WUSR,
    )
    .map_err(io_error(new, "create"))?
    .into();
    let len = layout.len as u64;
    file.set_len(len).map_err(io_error(new, "set its length"))?;
    // Memory that is short is said now. Without this, the first touch of a page that is not there
    // kills the process (SIGBUS) at any time later.
    match rustix::fs::fallocate(&file, FallocateFlags::empty(), 0, len) {
        Ok(()) | Err(rustix::io::Errno::OPNOTSUPP) => {}
        Err(errno) => return Err(io_error(new, "reserve its memory")(errno)),
    }
    let tables = Tables::map(&file, layout).map_err(io_error(new, "map"))?;
    initialise(&tables, capacities);
    Ok(tables)
}

pub(crate) fn initialise(tables: &Tables, capacities: &Capacities) {
    let header = &tables.header[0];
    header.abi_version.store(ABI_VERSION, Ordering::Relaxed);
    header.layout_hash.store(LAYOUT_HASH, Ordering::Relaxed);
    for (at, (_, value, _, _)) in capacities.fields().into_iter().enumerate() {
        header.capacities[at].store(value, Ordering::Relaxed);
    }
    let mut boot_id = [0; 16];
    // Without randomness the id is zero: it only helps a person to tell two memories apart.
    let _ = getrandom::fill(&mut boot_id);
    let id = u128::from_ne_bytes(boot_id);
    header.boot_id[0].store(id as u64, Ordering::Relaxed);
    header.boot_id[1].store((id >> 64) as u64, Ordering::Relaxed);
    header.magic.store(MAGIC, Ordering::Release);
    header.ready.store(1, Ordering::Release);
}

/// Milliseconds of CLOCK_MONOTONIC, the same in both processes.
#[must_use]
pub fn monotonic_ms() -> u64 {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
    now.tv_sec as u64 * 1_000 + now.tv_nsec as u64 / 1_000_000
}

/// Nanoseconds of CLOCK_MONOTONIC.
#[inline]
#[must_use]
pub fn monotonic_ns() -> u64 {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
    now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64
}

/// Milliseconds of Unix time.
#[must_use]
pub fn unix_ms() -> u64 {
    SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .map_or(0, |d| d.as_millis() as u64)
}

impl Process {
    pub(crate) fn announce(&self) {
        self.pid.store(
            rustix::process::getpid().as_raw_nonzero().get() as u32,
            Ordering::Relaxed,
        );
        self.started_unix_ms.store(unix_ms(), Ordering::Relaxed);
        self.heartbeat_ms.store(monotonic_ms(), Ordering::Relaxed);
        self.incarnation.fetch_add(1, Ordering::Release);
    }
}
