//! The EAL command line as a builder.

/// Where EAL takes packet memory from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Memory {
    /// Hugepages, in files named after the file prefix on a mounted hugetlbfs. The files stay when the process is killed.
    HugepageFiles,
    /// Hugepages without files (`--in-memory`): needs no mounted hugetlbfs and leaves nothing behind.
    HugepagesUnlinked,
    /// Ordinary pages (`--no-huge`), for tests and development; table walks cost more. EAL takes `mib` MiB at the start.
    NoHugepages {
        /// MiB to take.
        mib: u32,
    },
}

/// Which CPUs EAL uses. Worker threads of the program are not EAL's and are not listed here.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Lcores {
    FirstAllowed,
    List(String),
    Map(String),
}

/// The arguments of `rte_eal_init`.
///
/// By default EAL runs one lcore, on the first CPU that the calling thread may use, and starts no thread of its own to run
/// packets: workers are std threads that pin themselves and then call [`Eal::register_thread`](crate::Eal::register_thread).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EalArgs {
    file_prefix: String,
    lcores: Lcores,
    main_lcore: Option<u32>,
    memory: Memory,
    memory_mib: Option<u32>,
    single_file_segments: bool,
    pci: bool,
    telemetry: bool,
    log_levels: Vec<String>,
    extra: Vec<String>,
    restore_affinity: bool,
}

impl EalArgs {
    /// Arguments for a process whose run-time files are called by `file_prefix` (`--file-prefix`): unique on the machine
    /// among DPDK processes that run at the same time.
    #[must_use]
    pub fn new(file_prefix: &str) -> Self {
        EalArgs {
            file_prefix: file_prefix.to_owned(),
            lcores: Lcores::FirstAllowed,
            main_lcore: None,
            memory: Memory::HugepageFiles,
            memory_mib: None,
            single_file_segments: false,
            pci: true,
            telemetry: true,
            log_levels: Vec::new(),
            extra: Vec::new(),
            restore_affinity: false,
        }
    }

    /// CPUs for EAL, as `-l` takes them (`0,2-3`). EAL starts a thread on each but the main one.
    #[must_use]
    pub fn core_list(mut self, list: &str) -> Self {
        self.lcores = Lcores::List(list.to_owned());
        self
    }

    /// Lcore ids mapped to CPUs, as `--lcores` takes them (`0@4`). Needed for CPU numbers above DPDK's `RTE_MAX_LCORE`.
    #[must_use]
    pub fn lcore_map(mut self, map: &str) -> Self {
        self.lcores = Lcores::Map(map.to_owned());
        self
    }

    /// The lcore of the thread that calls `Eal::init` (`--main-lcore`); the first one otherwise.
    #[must_use]
    pub fn main_lcore(mut self, lcore: u32) -> Self {
        self.main_lcore = Some(lcore);
        self
    }

    /// Where packet memory comes from.
    #[must_use]
    pub fn memory(mut self, memory: Memory) -> Self {
        self.memory = memory;
        self
    }

    /// MiB of hugepages to take at the start (`-m`); EAL takes more when it needs more. Has no effect on
    /// [`Memory::NoHugepages`], which has its own figure.
    #[must_use]
    pub fn reserve_mib(mut self, mib: u32) -> Self {
        self.memory_mib = Some(mib);
        self
    }

    /// Few large memory files in place of one per hugepage (`--single-file-segments`): `net_vhost`, `net_virtio_user` and
    /// memif zero-copy need it, since they pass the file descriptors to their peer.
    #[must_use]
    pub fn single_file_segments(mut self, on: bool) -> Self {
        self.single_file_segments = on;
        self
    }

    /// Whether EAL scans the PCI bus (`--no-pci` when not).
    #[must_use]
    pub fn pci(mut self, on: bool) -> Self {
        self.pci = on;
        self
    }

    /// Whether EAL opens its telemetry socket (`--no-telemetry` when not).
    #[must_use]
    pub fn telemetry(mut self, on: bool) -> Self {
        self.telemetry = on;
        self
    }

    /// A log level, as `--log-level` takes it (`lib.eal:debug`, `pmd.*:info`). May be given several times.
    #[must_use]
    pub fn log_level(mut self, level: &str) -> Self {
        self.log_levels.push(level.to_owned());
        self
    }

    /// Further arguments, passed on as they are (`--allow`, `--iova-mode=pa`).
    #[must_use]
    pub fn extra<S: Into<String>>(mut self, arguments: impl IntoIterator<Item = S>) -> Self {
        self.extra.extend(arguments.into_iter().map(Into::into));
        self
    }

    /// `rte_eal_init` pins the calling thread to the main lcore's CPU, and threads it starts later inherit that. With
    /// `true` the thread gets back the affinity it had.
    #[must_use]
    pub fn restore_affinity(mut self, on: bool) -> Self {
        self.restore_affinity = on;
        self
    }

    pub(crate) fn restores_affinity(&self) -> bool {
        self.restore_affinity
    }

    /// The argument vector, program name first. `first_cpu` is the CPU for the one lcore of the default.
    pub(crate) fn to_argv(&self, first_cpu: usize) -> Vec<String> {
        let mut argv = vec![
            self.file_prefix.clone(),
            format!("--file-prefix={}", self.file_prefix),
        ];
        match &self.lcores {
            Lcores::FirstAllowed => argv.push(format!("--lcores=0@{first_cpu}")),
            Lcores::List(list) => argv.extend(["-l".to_owned(), list.clone()]),
            Lcores::Map(map) => argv.push(format!("--lcores={map}")),
        }
        if let Some(lcore) = self.main_lcore {
            argv.push(format!("--main-lcore={lcore}"));
        }
        let mut mib = self.memory_mib;
        match self.memory {
            Memory::HugepageFiles => {}
            Memory::HugepagesUnlinked => argv.push("--in-memory".to_owned()),
            Memory::NoHugepages { mib: ordinary } => {
                argv.push("--no-huge".to_owned());
                mib = Some(ordinary);
            }
        }
        if let Some(mib) = mib {
            argv.extend(["-m".to_owned(), mib.to_string()]);
        }
        if self.single_file_segments {
            argv.push("--single-file-segments".to_owned());
        }
        if !self.pci {
            argv.push("--no-pci".to_owned());
        }
        if !self.telemetry {
            argv.push("--no-telemetry".to_owned());
        }
        argv.extend(
            self.log_levels
                .iter()
                .map(|level| format!("--log-level={level}")),
        );
        argv.extend(self.extra.iter().cloned());
        argv
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn default_is_one_lcore_on_the_given_cpu() {
        let argv = EalArgs::new("bng").to_argv(5);
        assert_eq!(argv, ["bng", "--file-prefix=bng", "--lcores=0@5"]);
    }

    #[test]
    fn every_choice_reaches_the_command_line() {
        let argv = EalArgs::new("bng")
            .core_list("1-2")
            .main_lcore(2)
            .memory(Memory::NoHugepages { mib: 256 })
            .reserve_mib(1)
            .single_file_segments(true)
            .pci(false)
            .telemetry(false)
            .log_level("lib.eal:debug")
            .extra(["--iova-mode=va"])
            .to_argv(0);
        assert_eq!(
            argv.join(" "),
            "bng --file-prefix=bng -l 1-2 --main-lcore=2 --no-huge -m 256 --single-file-segments --no-pci --no-telemetry \
             --log-level=lib.eal:debug --iova-mode=va"
        );
        let argv = EalArgs::new("bng")
            .lcore_map("0@200")
            .memory(Memory::HugepagesUnlinked)
            .reserve_mib(64)
            .to_argv(0);
        assert_eq!(
            argv.join(" "),
            "bng --file-prefix=bng --lcores=0@200 --in-memory -m 64"
        );
    }
}
