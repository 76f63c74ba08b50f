//! Two real processes on one memory. The second one is this test binary again, started with the name
//! of a job in its environment.
#![allow(
    clippy::unwrap_used,
    clippy::panic,
    reason = "the jobs of the second process are tests as well"
)]

mod directory;

use bng_shm::{
    Counter, Dataplane, Delegated, Event, FRAME_MAX, FrameMeta, PolicyId, PortBlock, Publisher,
    PuntClass, Record, Session, SessionState, SlotError, SlotIndex, Take, Vlans,
};
use directory::{Directory, SMALL};
use std::io::{BufRead, BufReader};
use std::net::Ipv6Addr;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Command, ExitStatus, Stdio};
use std::thread;
use std::time::{Duration, Instant};

const JOB: &str = "BNG_SHM_TEST_JOB";
const DIRECTORY: &str = "BNG_SHM_TEST_DIRECTORY";
/// A wake-up that is lost shows as a sleep of this length, which no test takes without one.
const FOREVER: Duration = Duration::from_secs(60);

#[test]
#[ignore = "the second process: the other tests run it"]
fn second_process() {
    let dir = PathBuf::from(std::env::var_os(DIRECTORY).unwrap());
    match std::env::var(JOB).unwrap().as_str() {
        "be_control" => be_control(&dir),
        "be_a_worker" => be_a_worker(&dir),
        "look_up" => look_up(&dir),
        "punt" => punt(&dir),
        "take" => take(&dir),
        "answer" => answer(&dir),
        job => panic!("no job {job}"),
    }
}

/// The second process; killed when the test ends before it does.
struct Second {
    process: Child,
    /// Kept open for what its test harness says at the end.
    output: BufReader<ChildStdout>,
}

impl Second {
    fn start(job: &str, dir: &Path) -> Self {
        let mut process = Command::new("/proc/self/exe")
            .args(["--ignored", "--exact", "--nocapture", "second_process"])
            .env(JOB, job)
            .env(DIRECTORY, dir)
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let output = BufReader::new(process.stdout.take().unwrap());
        Self { process, output }
    }

    /// Waits until it says that it is ready.
    fn ready(mut self) -> Self {
        let mut lines = (&mut self.output).lines().map_while(Result::ok);
        let ready = lines.any(|line| line.ends_with("ready"));
        assert!(ready, "the second process ended early");
        self
    }

    fn kill(mut self) {
        self.process.kill().unwrap();
        self.process.wait().unwrap();
    }

    fn has_ended(&mut self) -> Option<ExitStatus> {
        self.process.try_wait().unwrap()
    }
}

impl Drop for Second {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

fn until_killed() -> ! {
    loop {
        thread::park();
    }
}

// ---- locks --------------------------------------------------------------------------------------

fn be_control(dir: &Path) {
    let _control = Publisher::attach(dir, SMALL).unwrap();
    println!("ready");
    until_killed();
}

#[test]
fn a_killed_process_leaves_its_role_free() {
    let dir = Directory::new();
    let dataplane = Dataplane::attach(&dir, SMALL).unwrap();
    for _ in 0..3 {
        let control = Second::start("be_control", &dir).ready();
        assert!(dataplane.control_alive());
        let said = Publisher::attach(&dir, SMALL).unwrap_err().to_string();
        assert!(
            said.contains("another bng-controlplane is running"),
            "{said}"
        );
        control.kill();
        assert!(!dataplane.control_alive());
        let control = Publisher::attach(&dir, SMALL).unwrap();
        assert!(!control.created() && dataplane.control_alive());
    }
}

#[test]
fn of_two_processes_that_start_at_once_each_finds_the_other() {
    for _ in 0..10 {
        let dir = Directory::new();
        let second = Second::start("be_control", &dir);
        let dataplane = Dataplane::attach(&dir, SMALL).unwrap();
        let _second = second.ready();
        assert!(dataplane.control_alive());
    }
}

fn be_a_worker(dir: &Path) {
    let mut dataplane = Dataplane::attach(dir, SMALL).unwrap();
    dataplane.worker(0).unwrap().enter(0);
    println!("ready");
    until_killed();
}

#[test]
fn a_dead_dataplane_does_not_hold_up_an_epoch() {
    let dir = Directory::new();
    let mut control = Publisher::attach(&dir, SMALL).unwrap();
    let worker = Second::start("be_a_worker", &dir).ready();
    let token = control.advance_epoch();
    assert!(
        !control.epoch_passed(token),
        "the worker runs and says nothing"
    );
    worker.kill();
    assert!(
        control.worker_status(0).unwrap().present,
        "it said no good-bye"
    );
    assert!(control.epoch_passed(token), "but its lock is gone");
    let _next = Second::start("be_a_worker", &dir).ready();
    let token = control.advance_epoch();
    assert!(
        !control.epoch_passed(token),
        "the next worker is waited for"
    );
}

// ---- session table ------------------------------------------------------------------------------

const SLOTS: u32 = 16;
const LOOK_UPS: u32 = 3_000_000;

/// A session in which every field tells the same number (1 to 2^32 - 1).
fn pattern(number: u32) -> Session {
    let mixed = number.wrapping_mul(0x9e37_79b9);
    let [a, b, c, d] = number.to_be_bytes();
    let prefix = Ipv6Addr::from_bits(u128::from(number) << 64);
    Session {
        generation: 0,
        state: SessionState::Forwarding,
        owner: 0,
        client_mac: [a, b, c, d, a, b],
        vlans: Vlans {
            s_vlan: Some((number % 4_094) as u16),
            c_vlan: number.is_multiple_of(2).then_some((mixed % 4_094) as u16),
            outer_is_88a8: number.is_multiple_of(3),
        },
        mtu: mixed as u16,
        framed_ip: (number ^ 0x5555_5555).into(),
        gateway_ip: mixed.into(),
        nat: Some(PortBlock {
            address: (!number).into(),
            address_index: number as u16,
            first_port: (mixed >> 16) as u16,
            size: (number as u16).max(1),
        }),
        policy: PolicyId(number as u16),
        ipv6_prefix: Some(prefix),
        delegated: Some(Delegated {
            prefix,
            length: (number % 64) as u8 + 1,
        }),
    }
}

fn number_of(session: &Session) -> u32 {
    let [a, b, c, d, ..] = session.client_mac;
    u32::from_be_bytes([a, b, c, d])
}

fn look_up(dir: &Path) {
    let dataplane = Dataplane::attach(dir, SMALL).unwrap();
    let reader = dataplane.reader();
    let mut last = [(0, 0); SLOTS as usize];
    let (mut looked_up, mut changes) = (0, 0);
    println!("ready");
    // Both many look-ups and many changes under way, however the two processes are scheduled.
    while looked_up < LOOK_UPS || changes < LOOK_UPS / 100 {
        looked_up += 1;
        let slot = SlotIndex(looked_up % SLOTS);
        let found = match reader.session(slot).unwrap() {
            Ok(found) => found,
            Err(SlotError::Busy) => continue,
            Err(SlotError::Corrupt) => panic!("slot {slot:?} is corrupt"),
        };
        let number = number_of(&found);
        if number == 0 {
            assert!(found.nat.is_none() && found.gateway_ip.is_unspecified());
            assert_eq!(found.state, SessionState::Free);
        } else {
            let whole = Session {
                generation: found.generation,
                state: found.state,
                ..pattern(number)
            };
            assert_eq!(found, whole, "a mixture");
        }
        let now = (found.generation, number);
        let before = std::mem::replace(&mut last[slot.0 as usize], now);
        assert!(now.0 >= before.0, "an older session came back");
        changes += u32::from(now != before);
    }
}

#[test]
fn a_reader_in_another_process_never_sees_a_mixture() {
    let dir = Directory::new();
    let mut control = Publisher::attach(&dir, SMALL).unwrap();
    let mut reader = Second::start("look_up", &dir).ready();
    let record = Record::default();
    let mut number = 0;
    let status = loop {
        for slot in (0..SLOTS).map(SlotIndex) {
            number += 4;
            control
                .publish_session(slot, &pattern(number), &record)
                .unwrap();
            for update in 1..4 {
                let session = pattern(number + update);
                control.update_session(slot, &session, &record).unwrap();
            }
            control.withdraw_session(slot).unwrap();
            control.free_session(slot).unwrap();
        }
        if let Some(status) = reader.has_ended() {
            break status;
        }
    };
    assert!(status.success(), "{status}");
}

// ---- rings --------------------------------------------------------------------------------------

const META: FrameMeta = FrameMeta {
    port: 1,
    class: PuntClass::Ppp,
    session: None,
};

/// A frame whose every byte follows from its number.
fn frame(number: u32) -> Vec<u8> {
    let len = 4 + number as usize * 7 % (FRAME_MAX - 3);
    let mut bytes = number.to_le_bytes().to_vec();
    bytes.extend((4..len).map(|at| (number as usize + at) as u8));
    bytes
}

fn meta(number: u32) -> FrameMeta {
    FrameMeta {
        session: Some((SlotIndex(number), !number)),
        ..META
    }
}

fn number_in(bytes: &[u8], found: FrameMeta) -> u32 {
    let number = u32::from_le_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]);
    assert!(bytes == frame(number), "frame {number} is a mixture");
    assert_eq!(found, meta(number));
    number
}

fn punt(dir: &Path) {
    let mut dataplane = Dataplane::attach(dir, SMALL).unwrap();
    let mut worker = dataplane.worker(0).unwrap();
    for number in 0.. {
        while worker.punt(&meta(number), 0, &frame(number)).is_err() {
            worker.pay_bell();
            thread::yield_now();
        }
        if number.is_multiple_of(32) {
            worker.pay_bell();
        }
    }
}

#[test]
fn a_producer_killed_at_any_moment_leaves_whole_frames_in_order() {
    let dir = Directory::new();
    let mut control = Publisher::attach(&dir, SMALL).unwrap();
    let mut buffer = [0; FRAME_MAX];
    for round in 0..12 {
        let producer = Second::start("punt", &dir);
        let mut next = 0;
        while next < 1_500 + 97 * round {
            match control.take_punted(0, &mut buffer) {
                Take::Item(got) => {
                    assert_eq!(number_in(&buffer[..got.len], got.meta), next);
                    next += 1;
                }
                Take::Empty => {
                    let slept = Instant::now();
                    control.sleep(FOREVER, || false);
                    assert!(slept.elapsed() < FOREVER / 2, "a wake-up was lost");
                }
                Take::Corrupt => panic!("round {round}: corrupt"),
            }
        }
        producer.kill();
        loop {
            match control.take_punted(0, &mut buffer) {
                Take::Item(got) => {
                    assert_eq!(number_in(&buffer[..got.len], got.meta), next);
                    next += 1;
                }
                Take::Empty => break,
                Take::Corrupt => panic!("round {round}: corrupt"),
            }
        }
    }
}

fn take(dir: &Path) {
    let mut dataplane = Dataplane::attach(dir, SMALL).unwrap();
    let mut worker = dataplane.worker(0).unwrap();
    let mut buffer = [0; FRAME_MAX];
    let mut expected = None;
    loop {
        match worker.take_injected(&mut buffer) {
            Take::Item(got) => {
                let number = number_in(&buffer[..got.len], got.meta);
                assert_eq!(number, expected.unwrap_or(number), "lost or doubled");
                expected = Some(number + 1);
                let taken = Event::BlockExhausted {
                    slot: SlotIndex(number),
                    generation: std::process::id(),
                };
                while !worker.tell(taken) {
                    thread::yield_now();
                }
                worker.pay_bell();
            }
            Take::Empty => thread::yield_now(),
            Take::Corrupt => panic!("corrupt"),
        }
    }
}

#[test]
fn a_consumer_killed_at_any_moment_loses_no_frame() {
    let dir = Directory::new();
    let mut control = Publisher::attach(&dir, SMALL).unwrap();
    let (mut injected, mut told) = (0, None);
    for round in 1..=8 {
        let consumer = Second::start("take", &dir);
        let mut first_of_this_one = true;
        while told.is_none_or(|told| told < 1_200 * round) {
            while control
                .inject(0, &meta(injected), &frame(injected))
                .unwrap()
            {
                injected += 1;
            }
            while let Take::Item(event) = control.take_event(0) {
                let Some(Event::BlockExhausted { slot, generation }) = event else {
                    panic!("{event:?}");
                };
                if generation == consumer.process.id() && first_of_this_one {
                    first_of_this_one = false;
                    // The one before may have died between taking a frame and telling so, or between
                    // reading it and taking it: then it is read again.
                    let last: u32 = told.unwrap_or(0);
                    assert!((last..=last + 2).contains(&slot.0), "{slot:?} after {last}");
                } else {
                    assert_eq!(slot.0, told.map_or(0, |told| told + 1));
                }
                told = Some(slot.0);
            }
        }
        consumer.kill();
    }
}

// ---- bell ---------------------------------------------------------------------------------------

fn answer(dir: &Path) {
    let mut dataplane = Dataplane::attach(dir, SMALL).unwrap();
    let mut worker = dataplane.worker(0).unwrap();
    let mut buffer = [0; FRAME_MAX];
    loop {
        match worker.take_injected(&mut buffer) {
            Take::Item(got) if got.len == 0 => return,
            Take::Item(got) => {
                let event = Event::BlockExhausted {
                    slot: SlotIndex(number_in(&buffer[..got.len], got.meta)),
                    generation: 0,
                };
                assert!(worker.tell(event));
                worker.pay_bell();
            }
            Take::Empty => thread::yield_now(),
            Take::Corrupt => panic!("corrupt"),
        }
    }
}

#[test]
fn the_bell_wakes_a_sleeper_in_another_process_every_time() {
    let dir = Directory::new();
    let mut control = Publisher::attach(&dir, SMALL).unwrap();
    let mut second = Second::start("answer", &dir);
    for number in 0..2_000 {
        assert!(control.inject(0, &meta(number), &frame(number)).unwrap());
        let got = loop {
            match control.take_event(0) {
                Take::Item(got) => break got,
                Take::Empty => {
                    let slept = Instant::now();
                    control.sleep(FOREVER, || false);
                    assert!(slept.elapsed() < FOREVER / 2, "a wake-up was lost");
                }
                Take::Corrupt => panic!("corrupt"),
            }
        };
        let slot = SlotIndex(number);
        assert_eq!(
            got,
            Some(Event::BlockExhausted {
                slot,
                generation: 0
            })
        );
    }
    assert!(control.inject(0, &META, &[]).unwrap());
    assert!(second.process.wait().unwrap().success());
    let counters = control.worker_status(0).unwrap().counters;
    assert!(counters[Counter::ControlWoken.index()] > 0, "nobody slept");
}
