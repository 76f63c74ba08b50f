//! Long-lived processes in a namespace: started with their output in files, awaited by events, never left behind.

use std::fs::File;
use std::os::fd::OwnedFd;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::inotify;
use rustix::process::{Pid, PidfdFlags, Signal, kill_process, kill_process_group, pidfd_open};

use crate::cleanup;
use crate::error::{Context, LabError, Result, log_tail};
use crate::namespace::Namespace;

/// Lines of a log that an error shows.
const TAIL: usize = 30;

/// A process in a namespace. It is killed on drop, with the process group it leads.
#[derive(Debug)]
pub struct Process {
    name: String,
    child: Child,
    handle: OwnedFd,
    stdout: PathBuf,
    log: PathBuf,
    status: Option<ExitStatus>,
    kept: bool,
}

impl Process {
    /// Starts `command` in `namespace`. Standard output goes to `DIR/NAME.out` and standard error to `DIR/NAME.log`; both
    /// are appended to, so that the log of a restarted daemon tells the whole story.
    ///
    /// # Errors
    /// When the program cannot be started.
    pub fn start(namespace: &Namespace, dir: &Path, name: &str, command: Command) -> Result<Self> {
        let stdout = append(&dir.join(format!("{name}.out")))?;
        Self::start_with_stdout(namespace, dir, name, command, stdout)
    }

    /// As [`Process::start`], with standard output of the caller's choice.
    pub(crate) fn start_with_stdout(
        namespace: &Namespace,
        dir: &Path,
        name: &str,
        mut command: Command,
        stdout: Stdio,
    ) -> Result<Self> {
        cleanup::refuse_when_interrupted()?;
        let log = dir.join(format!("{name}.log"));
        command
            .stdout(stdout)
            .stderr(append(&log)?)
            // A group of its own: Ctrl-C in the terminal reaches the lab alone, which then ends everything in order.
            .process_group(0);
        let child = namespace
            .within(|| command.spawn())?
            .context(|| format!("start {}", command.get_program().to_string_lossy()))?;
        let handle = pidfd(&child)?;
        Ok(Self {
            name: name.to_owned(),
            child,
            handle,
            stdout: dir.join(format!("{name}.out")),
            log,
            status: None,
            kept: false,
        })
    }

    /// Name it was started with.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Process id.
    #[must_use]
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Where its standard error goes.
    #[must_use]
    pub fn log(&self) -> &Path {
        &self.log
    }

    /// Where its standard output goes.
    #[must_use]
    pub fn stdout(&self) -> &Path {
        &self.stdout
    }

    /// A descriptor that polls readable when the process has ended.
    pub(crate) fn handle(&self) -> &OwnedFd {
        &self.handle
    }

    /// Lets the process go on when this value is dropped.
    pub fn keep(&mut self) {
        self.kept = true;
    }

    /// Octets the log holds now; lines that follow are newer than this moment.
    #[must_use]
    pub fn log_mark(&self) -> u64 {
        self.log.metadata().map_or(0, |meta| meta.len())
    }

    /// Waits until the log holds a line containing `text` after position `mark`, and returns that line.
    ///
    /// # Errors
    /// [`LabError::Ended`] when the process ends without it, [`LabError::Timeout`] after `limit`.
    pub fn wait_for_log(&mut self, text: &str, mark: u64, limit: Duration) -> Result<String> {
        let what = format!("`{text}` in the log of {}", self.name);
        let end = Instant::now() + limit;
        let watch = inotify::init(inotify::CreateFlags::NONBLOCK | inotify::CreateFlags::CLOEXEC)
            .context(|| "start watching files".to_owned())?;
        inotify::add_watch(&watch, &self.log, inotify::WatchFlags::MODIFY)
            .context(|| format!("watch {}", self.log.display()))?;
        loop {
            // The order matters: a process that has ended writes no more, so what is read after that is all.
            let ended = self.try_status()?;
            if let Some(line) = self.find_in_log(text, mark)? {
                return Ok(line);
            }
            if let Some(status) = ended {
                return Err(self.ended(status, &what));
            }
            let left = end.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Err(self.timeout(&what, limit));
            }
            wait_readable(&[&watch, &self.handle], left)?;
            let mut events = [0u8; 4096];
            while rustix::io::read(&watch, &mut events).is_ok_and(|count| count > 0) {}
        }
    }

    fn find_in_log(&self, text: &str, mark: u64) -> Result<Option<String>> {
        let bytes = std::fs::read(&self.log).context(|| format!("read {}", self.log.display()))?;
        let from = usize::try_from(mark).unwrap_or(usize::MAX).min(bytes.len());
        let new = String::from_utf8_lossy(&bytes[from..]);
        // Only whole lines: the writer may be in the middle of the last one.
        let whole = new.rfind('\n').map_or("", |last| &new[..last]);
        Ok(whole
            .lines()
            .find(|line| line.contains(text))
            .map(str::to_owned))
    }

    /// Whether the process still runs.
    ///
    /// # Errors
    /// When the system cannot tell.
    pub fn is_running(&mut self) -> Result<bool> {
        Ok(self.try_status()?.is_none())
    }

    /// Sends a signal to the process.
    ///
    /// # Errors
    /// When it has ended already.
    pub fn signal(&self, signal: Signal) -> Result<()> {
        kill_process(pid_of(&self.child), signal).context(|| format!("signal {}", self.name))
    }

    /// Waits for the end of the process.
    ///
    /// # Errors
    /// [`LabError::Timeout`] after `limit`.
    pub fn wait(&mut self, limit: Duration) -> Result<ExitStatus> {
        if let Some(status) = self.status {
            return Ok(status);
        }
        if wait_readable(&[&self.handle], limit)? {
            let status = self
                .child
                .wait()
                .context(|| format!("wait for {}", self.name))?;
            self.status = Some(status);
            return Ok(status);
        }
        Err(self.timeout(&format!("end of {}", self.name), limit))
    }

    /// SIGTERM, then [`Process::wait`].
    ///
    /// # Errors
    /// As [`Process::signal`] and [`Process::wait`].
    pub fn terminate(&mut self, limit: Duration) -> Result<ExitStatus> {
        if self.is_running()? {
            self.signal(Signal::TERM)?;
        }
        self.wait(limit)
    }

    /// SIGKILL to the process and its group, then waits for the end.
    ///
    /// # Errors
    /// When it does not end.
    pub fn kill(&mut self) -> Result<ExitStatus> {
        if self.is_running()? {
            // The group can be gone when only the leader's entry is left; that is what the wait below is for.
            let _ = kill_process_group(pid_of(&self.child), Signal::KILL);
        }
        self.wait(Duration::from_secs(10))
    }

    /// What it wrote to standard output so far.
    ///
    /// # Errors
    /// When the file cannot be read.
    pub fn output(&self) -> Result<String> {
        std::fs::read_to_string(&self.stdout).context(|| format!("read {}", self.stdout.display()))
    }

    /// The last lines of its log.
    #[must_use]
    pub fn log_tail(&self) -> String {
        log_tail(&self.log, TAIL)
    }

    pub(crate) fn try_status(&mut self) -> Result<Option<ExitStatus>> {
        if self.status.is_none() {
            self.status = self
                .child
                .try_wait()
                .context(|| format!("ask for {}", self.name))?;
        }
        Ok(self.status)
    }

    pub(crate) fn ended(&self, status: ExitStatus, what: &str) -> LabError {
        LabError::Ended {
            process: self.name.clone(),
            status: status.to_string(),
            what: what.to_owned(),
            tail: self.log_tail(),
        }
    }

    pub(crate) fn timeout(&self, what: &str, after: Duration) -> LabError {
        LabError::Timeout {
            what: what.to_owned(),
            after,
            tail: self.log_tail(),
        }
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        if !self.kept {
            let _ = self.kill();
        }
    }
}

/// Waits until one of the descriptors can be read; false when the time is over first.
pub(crate) fn wait_readable(descriptors: &[&OwnedFd], limit: Duration) -> Result<bool> {
    let mut set: Vec<PollFd<'_>> = descriptors
        .iter()
        .map(|fd| PollFd::new(*fd, PollFlags::IN))
        .collect();
    // The caller computes `limit` anew each time, so an interrupted call needs no care beyond not being an error.
    let limit = Timespec::try_from(limit).ok();
    match poll(&mut set, limit.as_ref()) {
        Ok(ready) => Ok(ready > 0),
        Err(rustix::io::Errno::INTR) => Ok(false),
        Err(error) => Err(error).context(|| "wait for an event".to_owned()),
    }
}

fn append(path: &Path) -> Result<Stdio> {
    let file = File::options().create(true).append(true).open(path);
    Ok(Stdio::from(
        file.context(|| format!("create {}", path.display()))?,
    ))
}

fn pid_of(child: &Child) -> Pid {
    Pid::from_child(child)
}

fn pidfd(child: &Child) -> Result<OwnedFd> {
    pidfd_open(pid_of(child), PidfdFlags::empty())
        .context(|| format!("watch process {}", child.id()))
}
