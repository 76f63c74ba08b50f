//! Leaving nothing behind: on drop, on panic, on SIGINT and SIGTERM, and afterwards with `bng-lab down`.
//!
//! Every lab has a name, `bng-lab-PID-N`. Its namespaces, its DPDK run-time files and its working directory begin with
//! that name, and `/run/bng-lab/NAME.json` says who owns it, so whoever finds the remains can tell them from a lab in use.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, PidfdFlags, Signal, kill_process, pidfd_open};
use serde::{Deserialize, Serialize};

use crate::command::ip;
use crate::error::{Context, LabError, Result};

/// Every name of a lab begins with this.
pub const PREFIX: &str = "bng-lab-";

const STATE_DIR: &str = "/run/bng-lab";

/// Where files named after the lab lie: DPDK's run-time files per `--file-prefix`, hugetlbfs by convention, and the daemons'
/// shared memory.
const RUNTIME_DIRS: [&str; 3] = ["/run/dpdk", "/dev/hugepages", "/dev/shm"];

static INTERRUPTED: AtomicBool = AtomicBool::new(false);
static NEXT: AtomicU32 = AtomicU32::new(0);
static MINE: Mutex<BTreeSet<String>> = Mutex::new(BTreeSet::new());

/// What is written down about a lab.
#[derive(Debug, Clone, Serialize, Deserialize)]
struct State {
    owner: u32,
    /// Start time of the owner in clock ticks since boot: tells it from a later process with the same id.
    owner_start: u64,
    /// Left up on purpose: outlives its owner until `bng-lab down`.
    kept: bool,
    work_dir: PathBuf,
}

/// A name and a working directory registered for clean-up; both are gone after drop.
#[derive(Debug)]
pub(crate) struct Registration {
    name: String,
    work_dir: PathBuf,
    kept: bool,
}

impl Registration {
    /// Registers a new lab of this process, and removes the remains of labs whose owners are gone.
    pub(crate) fn new() -> Result<Self> {
        require_root()?;
        end_on_signals()?;
        refuse_when_interrupted()?;
        remove_orphans();
        let owner = std::process::id();
        let name = format!("{PREFIX}{owner}-{}", NEXT.fetch_add(1, Ordering::Relaxed));
        let work_dir = std::env::temp_dir().join(&name);
        std::fs::create_dir_all(&work_dir).context(|| format!("create {}", work_dir.display()))?;
        let registration = Self {
            name,
            work_dir,
            kept: false,
        };
        registration.write_state()?;
        lock_mine().insert(registration.name.clone());
        Ok(registration)
    }

    pub(crate) fn name(&self) -> &str {
        &self.name
    }

    pub(crate) fn work_dir(&self) -> &Path {
        &self.work_dir
    }

    /// From now on the lab outlives this value and this process.
    pub(crate) fn keep(&mut self) -> Result<()> {
        self.kept = true;
        self.write_state()?;
        lock_mine().remove(&self.name);
        Ok(())
    }

    fn write_state(&self) -> Result<()> {
        let state = State {
            owner: std::process::id(),
            owner_start: start_time(std::process::id()).unwrap_or(0),
            kept: self.kept,
            work_dir: self.work_dir.clone(),
        };
        let path = state_path(&self.name);
        std::fs::create_dir_all(STATE_DIR).context(|| format!("create {STATE_DIR}"))?;
        let text = serde_json::to_vec(&state).unwrap_or_default();
        std::fs::write(&path, text).context(|| format!("write {}", path.display()))
    }
}

impl Drop for Registration {
    fn drop(&mut self) {
        if !self.kept {
            take_down(&self.name);
            lock_mine().remove(&self.name);
        }
    }
}

/// Takes down every lab on this machine that is kept or whose owner is gone; with `all`, also those in use.
/// Returns the names of what was found.
///
/// # Errors
/// [`LabError::NotRoot`].
pub fn down(all: bool) -> Result<Vec<String>> {
    require_root()?;
    let mut found = Vec::new();
    for name in names() {
        let in_use = read_state(&name).is_some_and(|state| !state.kept && owner_lives(&state));
        if all || !in_use {
            take_down(&name);
            found.push(name);
        }
    }
    Ok(found)
}

fn require_root() -> Result<()> {
    if rustix::process::geteuid().is_root() {
        return Ok(());
    }
    Err(LabError::NotRoot)
}

/// The kept labs on this machine with their working directories, oldest name first.
#[must_use]
pub fn kept() -> Vec<(String, PathBuf)> {
    let states = names().into_iter().filter_map(|name| {
        let state = read_state(&name)?;
        state.kept.then_some((name, state.work_dir))
    });
    states.collect()
}

fn remove_orphans() {
    for name in names() {
        // Without a state file it may be a lab that is being created this moment.
        let Some(state) = read_state(&name) else {
            continue;
        };
        if !state.kept && !owner_lives(&state) {
            take_down(&name);
        }
    }
}

/// True once the process was told to end; the thread that cleans up will end it.
#[must_use]
pub fn interrupted() -> bool {
    INTERRUPTED.load(Ordering::Acquire)
}

/// Ends the processes of lab `name` and removes its namespaces and files. Goes on past every failure.
fn take_down(name: &str) {
    let own = format!("{name}-");
    for namespace in namespaces().iter().filter(|n| n.starts_with(&own)) {
        delete_namespace(namespace);
    }
    for dir in RUNTIME_DIRS {
        for entry in std::fs::read_dir(dir).into_iter().flatten().flatten() {
            let file = entry.file_name();
            let file = file.to_string_lossy();
            // `NAME`, `NAME-gw`, `NAMEmap_0`: but lab 12-1 must not take files of lab 12-10.
            let rest = file.strip_prefix(name);
            if rest.is_some_and(|rest| !rest.starts_with(|c: char| c.is_ascii_digit())) {
                remove(&entry.path());
            }
        }
    }
    if let Some(state) = read_state(name)
        && state.work_dir.ends_with(name)
    {
        remove(&state.work_dir);
    }
    remove(&state_path(name));
}

fn remove(path: &Path) {
    let outcome = match path.symlink_metadata() {
        Ok(meta) if meta.is_dir() => std::fs::remove_dir_all(path),
        Ok(_) => std::fs::remove_file(path),
        Err(_) => return,
    };
    if let Err(error) = outcome {
        eprintln!("bng-lab: cannot remove {}: {error}", path.display());
    }
}

/// Kills every process of the namespace, waits until they are gone, and deletes it.
pub(crate) fn delete_namespace(name: &str) {
    for pid in ip(&format!("netns pids {name}"))
        .unwrap_or_default()
        .split_ascii_whitespace()
        .filter_map(|word| word.parse().ok().and_then(Pid::from_raw))
    {
        end(pid);
    }
    if Path::new("/run/netns").join(name).exists()
        && let Err(error) = ip(&format!("netns del {name}"))
    {
        eprintln!("bng-lab: {error}");
    }
}

fn end(pid: Pid) {
    let Ok(handle) = pidfd_open(pid, PidfdFlags::empty()) else {
        return; // already gone
    };
    let _ = kill_process(pid, Signal::KILL);
    let limit = Timespec::try_from(Duration::from_secs(5)).ok();
    let _ = poll(&mut [PollFd::new(&handle, PollFlags::IN)], limit.as_ref());
}

fn namespaces() -> Vec<String> {
    let entries = std::fs::read_dir("/run/netns")
        .into_iter()
        .flatten()
        .flatten();
    let names = entries.map(|entry| entry.file_name().to_string_lossy().into_owned());
    names.filter(|name| name.starts_with(PREFIX)).collect()
}

/// Names of all labs of which anything is left: a state file or a namespace.
fn names() -> BTreeSet<String> {
    let states = std::fs::read_dir(STATE_DIR).into_iter().flatten().flatten();
    let mut names: BTreeSet<String> = states
        .filter_map(|entry| {
            entry
                .file_name()
                .to_string_lossy()
                .strip_suffix(".json")
                .map(str::to_owned)
        })
        .filter(|name| name.starts_with(PREFIX))
        .collect();
    // A namespace is called NAME-ROLE.
    names.extend(
        namespaces()
            .iter()
            .filter_map(|n| Some(n.rsplit_once('-')?.0.to_owned())),
    );
    names
}

fn state_path(name: &str) -> PathBuf {
    Path::new(STATE_DIR).join(format!("{name}.json"))
}

fn read_state(name: &str) -> Option<State> {
    serde_json::from_slice(&std::fs::read(state_path(name)).ok()?).ok()
}

fn owner_lives(state: &State) -> bool {
    start_time(state.owner) == Some(state.owner_start)
}

/// Field 22 of `/proc/PID/stat`; the second field, a name in parentheses, may itself hold spaces.
fn start_time(pid: u32) -> Option<u64> {
    let text = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    let after_name = text.rsplit_once(')')?.1;
    after_name.split_ascii_whitespace().nth(19)?.parse().ok()
}

fn lock_mine() -> std::sync::MutexGuard<'static, BTreeSet<String>> {
    MINE.lock()
        .unwrap_or_else(std::sync::PoisonError::into_inner)
}

pub(crate) fn refuse_when_interrupted() -> Result<()> {
    if interrupted() {
        return Err(LabError::Interrupted);
    }
    Ok(())
}

/// Starts, once, the thread that cleans up and ends the process on SIGINT, SIGTERM and SIGHUP.
fn end_on_signals() -> Result<()> {
    static STARTED: Mutex<bool> = Mutex::new(false);
    let mut started = STARTED
        .lock()
        .unwrap_or_else(std::sync::PoisonError::into_inner);
    if *started {
        return Ok(());
    }
    use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
    let mut signals = signal_hook::iterator::Signals::new([SIGINT, SIGTERM, SIGHUP])
        .context(|| "take over SIGINT and SIGTERM".to_owned())?;
    std::thread::spawn(move || {
        if let Some(signal) = signals.forever().next() {
            INTERRUPTED.store(true, Ordering::Release);
            eprintln!("\nbng-lab: interrupted, cleaning up");
            let mine: Vec<String> = lock_mine().iter().cloned().collect();
            for name in mine {
                take_down(&name);
            }
            std::process::exit(128 + signal);
        }
    });
    *started = true;
    Ok(())
}
