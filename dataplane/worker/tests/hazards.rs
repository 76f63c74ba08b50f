//! Receive-path hazards on the real process: sessions that come and go under traffic, and the books afterwards.
//! `docs/hazards.md` says which hazard each test is for.
#![allow(missing_docs, clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod running;

use bng_fastpath::testing::{echo, udp};
use bng_shm::{Counter, FRAME_MAX, Session, SessionState, Take, Vlans};
use bng_wire::pppoe::protocol;
use running::frames::{QINQ, from_core, from_subscriber, source_port, two_subscribers};
use running::{Gateway, HOST, OURS, ROUTER, Subscriber, WORKERS, run, wait_for};
use rustix::process::{Signal, kill_process};
use std::os::unix::fs::FileExt;
use std::time::{Duration, Instant};

/// All frames received so far have been looked at.
fn settle(g: &Gateway, received: u64) {
    let end = Instant::now() + Duration::from_secs(10);
    // Thousands of times in a test: the time slice goes to the workers, but no timer is waited for.
    while g.count(Counter::RxAccess) + g.count(Counter::RxCore) < received {
        assert!(Instant::now() < end, "frames lost before the ports");
        std::thread::yield_now();
    }
}

/// HZ-01 C(c).
#[test]
fn short_frames_in_a_flood_are_counted_to_the_frame_while_their_session_comes_and_goes() {
    const ROUNDS: u32 = 1_000;
    let mut g = Gateway::start("short");
    let s = Subscriber::new(7, 0, QINQ);
    let zero = {
        let mut frame = from_subscriber(&g, &s, protocol::IPV4, b"");
        // Length field of the PPPoE header behind two tags.
        frame[26..28].copy_from_slice(&[0, 0]);
        frame
    };
    let one = {
        let mut frame = zero.clone();
        frame[27] = 1;
        frame
    };
    let mut sent = 0;
    for round in 0..ROUNDS {
        g.open(&s);
        for frame in [&zero, &one, &zero] {
            g.access.send(frame);
        }
        sent += 3;
        if round % 2 == 0 {
            // Renegotiation: the entry is written anew under the workers' eyes.
            for state in [SessionState::Negotiating, SessionState::Forwarding] {
                let session = Session { state, ..s.session };
                let record = bng_shm::Record::default();
                g.control.update_session(s.slot, &session, &record).unwrap();
                g.access.send(&one);
                sent += 1;
            }
        }
        g.close(&s);
        settle(&g, sent);
    }
    let rounds = u64::from(ROUNDS);
    g.expect(Counter::PppoeLengthZero, 2 * rounds);
    g.expect(Counter::PppoeLengthOne, rounds + rounds);
    g.assert_silent();
    g.assert_conservation();
}

/// HZ-05 C(a).
#[test]
fn over_ten_thousand_bring_ups_control_frames_and_packets_keep_their_order() {
    const ROUNDS: u32 = 10_000;
    let mut g = Gateway::start("order");
    let s = Subscriber::new(7, 1, Vlans::default());
    let record = bng_shm::Record::default();
    let lcp = |g: &Gateway, n: u32| {
        from_subscriber(
            g,
            &s,
            protocol::LCP,
            &[&[9, 0, 0, 8][..], &n.to_be_bytes()].concat(),
        )
    };
    let ip = |g: &Gateway, n: u32| {
        let packet = udp((s.session.framed_ip, 5_000), (HOST, 53), &n.to_be_bytes());
        from_subscriber(g, &s, protocol::IPV4, &packet)
    };
    let number = |bytes: &[u8]| u32::from_be_bytes(*bytes.last_chunk().unwrap());
    let (mut next, mut sent_ip, mut sent) = (1u32, 0u64, 0u64);
    let (mut last_punted, mut punted) = (0, 0u64);
    let (mut last_forwarded, mut forwarded) = (0, 0u64);
    let mut buffer = Box::new([0; FRAME_MAX]);
    for _ in 0..ROUNDS {
        let negotiating = Session {
            state: SessionState::Negotiating,
            ..s.session
        };
        g.open(&Subscriber {
            session: negotiating,
            ..s
        });
        let mut burst = |g: &Gateway| {
            for _ in 0..2 {
                g.access.send(&lcp(g, next));
                g.access.send(&ip(g, next + 1));
                next += 2;
            }
            sent_ip += 2;
            sent += 4;
        };
        burst(&g);
        g.control
            .update_session(s.slot, &s.session, &record)
            .unwrap();
        burst(&g);
        settle(&g, sent);
        g.close(&s);
        for worker in 0..WORKERS {
            while let Take::Item(frame) = g.control.take_punted(worker, &mut buffer) {
                assert_eq!(worker, 1, "control frames come by the owner's ring alone");
                let n = number(&buffer[..frame.len]);
                assert!(n > last_punted, "{n} after {last_punted}");
                (last_punted, punted) = (n, punted + 1);
            }
        }
        while let Some(frame) = g.core.receive_within(Duration::ZERO) {
            let n = number(&frame);
            assert!(n > last_forwarded, "{n} after {last_forwarded}");
            (last_forwarded, forwarded) = (n, forwarded + 1);
        }
    }
    // What is left on its way.
    while forwarded < g.count(Counter::TxCore) {
        let n = number(&g.core.receive());
        assert!(n > last_forwarded, "{n} after {last_forwarded}");
        (last_forwarded, forwarded) = (n, forwarded + 1);
    }
    let lost = 2 * sent_ip - forwarded - punted;
    let named = [
        Counter::SessionNotOpen,
        Counter::SessionUnknown,
        // A loaded machine may stop control in the middle of a write.
        Counter::SessionBusy,
        Counter::HandoverStale,
    ];
    let named: u64 = named.iter().map(|counter| g.count(*counter)).sum();
    assert_eq!(named, lost, "every frame that is missing is in the books");
    assert!(
        punted > 0 && forwarded > 0 && lost > 0,
        "{punted} {forwarded} {lost}"
    );
    assert_eq!(
        Counter::drops()
            .map(|counter| g.count(counter))
            .sum::<u64>(),
        lost
    );
    g.assert_conservation();
}

/// HZ-06 C(b), HZ-21 C(a).
#[test]
fn after_a_storm_of_sessions_under_traffic_the_books_balance_and_no_buffer_is_missing() {
    const ROUNDS: u32 = 2_000;
    let mut g = Gateway::start("storm");
    let idle = wait_for("count of packet buffers", || {
        let (all, in_use) = g.control.mbufs();
        (all > 0).then_some(in_use)
    });
    let sessions: Vec<_> = (0..8)
        .map(|n| {
            Subscriber::new(
                10 + n,
                (n % 2) as u8,
                if n % 4 < 2 { QINQ } else { Vlans::default() },
            )
        })
        .collect();
    let began = Instant::now();
    let mut sent = 0u64;
    for round in 0..ROUNDS {
        let s = &sessions[round as usize % sessions.len()];
        let from = (s.session.framed_ip, 5_000 + (round % 50) as u16);
        let up = from_subscriber(&g, s, protocol::IPV4, &udp(from, (HOST, 53), b"up"));
        let down = from_core(
            &g,
            &udp(
                (HOST, 53),
                (s.block().address, s.block().first_port),
                b"down",
            ),
        );
        let control = from_subscriber(&g, s, protocol::LCP, &[9, 0, 0, 8, 0, 0, 0, 0]);
        g.open(s);
        for frame in [&up, &control, &up] {
            g.access.send(frame);
        }
        g.core.send(&down);
        g.close(s);
        sent += 4;
        if round % 16 == 0 {
            settle(&g, sent);
            let mut buffer = Box::new([0; FRAME_MAX]);
            for worker in 0..WORKERS {
                while let Take::Item(_) = g.control.take_punted(worker, &mut buffer) {}
            }
        }
    }
    settle(&g, sent);
    let rate = f64::from(ROUNDS) / began.elapsed().as_secs_f64();
    println!("{rate:.0} sessions up and down per second");
    g.assert_conservation();
    wait_for("return of all packet buffers", || {
        (g.control.mbufs().1 == idle).then_some(())
    });
}

/// HZ-09 C(b).
#[test]
fn no_packet_of_a_session_comes_out_of_the_one_that_takes_its_place() {
    const ROUNDS: u32 = 500;
    let mut g = Gateway::start("reuse");
    let owners = [Subscriber::new(7, 0, Vlans::default()), {
        let mut other = Subscriber::new(7, 0, Vlans::default());
        other.session.client_mac = [2, 0, 0, 0, 2, 2];
        other
    }];
    // Each sends its own mark to its own port of the same host.
    let mark = |who: usize| [b'A' + who as u8; 4];
    let remote = |who: usize| 1_000 + who as u16;
    let (mut sent, mut came) = (0u64, [0u32; 2]);
    for round in 0..ROUNDS {
        let who = round as usize % 2;
        let (s, before) = (&owners[who], &owners[1 - who]);
        let packet = |who: usize| {
            let from = (s.session.framed_ip, 5_000);
            udp(from, (HOST, remote(who)), &mark(who))
        };
        g.open(s);
        // The session before still sends, with its own MAC address, under the same id and address.
        g.access.send(&from_subscriber(
            &g,
            before,
            protocol::IPV4,
            &packet(1 - who),
        ));
        g.access
            .send(&from_subscriber(&g, s, protocol::IPV4, &packet(who)));
        sent += 2;
        let frame = g.core.receive();
        assert!(frame.ends_with(&mark(who)), "round {round}: {frame:02x?}");
        came[who] += 1;
        let port = source_port(&frame);
        // An answer, and one for whoever had the port before: both are for the present owner or for nobody.
        for from in [remote(who), remote(1 - who)] {
            let answer = udp((HOST, from), (s.block().address, port), &mark(who));
            g.core.send(&from_core(&g, &answer));
            sent += 1;
        }
        for _ in 0..2 {
            let frame = g.access.receive();
            assert_eq!(frame[..6], s.session.client_mac, "round {round}");
        }
        g.close(s);
        // Too late: its port leads nowhere now.
        let late = udp((HOST, remote(who)), (s.block().address, port), &mark(who));
        g.core.send(&from_core(&g, &late));
        sent += 1;
        settle(&g, sent);
    }
    assert_eq!(came, [ROUNDS / 2; 2]);
    g.expect(Counter::NatNoMapping, ROUNDS.into());
    g.expect(Counter::SessionUnknown, ROUNDS.into());
    g.assert_silent();
    g.assert_conservation();
}

/// HZ-09 C(c): workers that stand still hold everything back that is withdrawn, and nobody waits for them.
#[test]
fn nothing_is_reclaimed_while_the_workers_stand_still_and_all_of_it_soon_after() {
    let mut g = Gateway::start("still");
    let s = Subscriber::new(7, 0, Vlans::default());
    g.open(&s);
    let pid = g.pid();
    kill_process(pid, Signal::STOP).unwrap();
    wait_for("stop of every thread", || {
        let tasks = format!("/proc/{}/task", pid.as_raw_nonzero());
        let stands = |stat: String| {
            stat.rsplit(')')
                .next()
                .is_some_and(|rest| rest.starts_with(" T"))
        };
        let all = std::fs::read_dir(tasks).unwrap().all(|task| {
            std::fs::read_to_string(task.unwrap().path().join("stat")).is_ok_and(stands)
        });
        all.then_some(())
    });
    g.control.withdraw_session(s.slot).unwrap();
    let token = g.control.advance_epoch();
    let until = Instant::now() + Duration::from_secs(2);
    let mut asked = 0u64;
    while Instant::now() < until {
        assert!(!g.control.epoch_passed(token));
        // Control goes on: tables, rings, status.
        g.control.heartbeat();
        assert!(g.control.worker_status(0).unwrap().present);
        asked += 1;
    }
    assert!(asked > 1_000, "{asked}: control was never held up");
    kill_process(pid, Signal::CONT).unwrap();
    let began = Instant::now();
    wait_for("passed epoch", || {
        g.control.epoch_passed(token).then_some(())
    });
    assert!(
        began.elapsed() < Duration::from_millis(500),
        "{:?}",
        began.elapsed()
    );
    g.control.free_session(s.slot).unwrap();
    g.access.send(&from_subscriber(
        &g,
        &s,
        protocol::IPV4,
        &echo(s.session.framed_ip, HOST, true, 1, b""),
    ));
    g.expect(Counter::SessionUnknown, 1);
    g.assert_conservation();
}

/// HZ-03 R4: control that dies between the stores of an entry leaves one that no worker forwards by.
#[test]
fn an_entry_whose_writer_died_forwards_nothing_until_it_is_written_again() {
    let mut g = Gateway::start("torn");
    let s = Subscriber::new(7, 0, Vlans::default());
    g.open(&s);
    let packet = udp((s.session.framed_ip, 5_000), (HOST, 53), b"question");
    let frame = from_subscriber(&g, &s, protocol::IPV4, &packet);
    g.access.send(&frame);
    g.core.receive();
    // The entry is found by its client's MAC address, the first word behind the state word.
    let state = g.state_file();
    let bytes = std::fs::read(&state).unwrap();
    let mut mac = [0; 8];
    mac[..6].copy_from_slice(&s.session.client_mac);
    let words = bytes.chunks_exact(8).enumerate();
    let at = words
        .filter(|(_, word)| **word == mac)
        .map(|(at, _)| at * 8 - 8)
        .find(|at| at % 128 == 0)
        .expect("the entry");
    let file = std::fs::OpenOptions::new()
        .write(true)
        .open(&state)
        .unwrap();
    // Bits 16 to 31 of the state word are the version, odd while somebody writes.
    let version = [bytes[at + 2] | 1, bytes[at + 3]];
    file.write_all_at(&version, at as u64 + 2).unwrap();
    for _ in 0..3 {
        g.access.send(&frame);
    }
    g.expect(Counter::SessionBusy, 3);
    g.assert_silent();
    let record = bng_shm::Record::default();
    g.control
        .update_session(s.slot, &s.session, &record)
        .unwrap();
    g.access.send(&frame);
    g.core.receive();
    g.assert_conservation();
}

/// A frame for the kernel that its twin refuses is in the books.
#[test]
fn a_twin_that_is_down_costs_the_frames_for_it_and_nothing_else() {
    let mut g = Gateway::start("down");
    let [s, _] = two_subscribers(&mut g);
    run("ip", "link set core0 down");
    let ping = udp((ROUTER, 1), (OURS, 1), b"for the kernel");
    for _ in 0..3 {
        g.core.send(&from_core(&g, &ping));
    }
    g.expect(Counter::HostWriteFailed, 3);
    let packet = udp((s.session.framed_ip, 5_000), (HOST, 53), b"question");
    g.access
        .send(&from_subscriber(&g, &s, protocol::IPV4, &packet));
    g.core.receive();
    run("ip", "link set core0 up");
    g.core.send(&from_core(&g, &ping));
    g.expect(Counter::HostIn, 1);
    g.assert_conservation();
}

/// HZ-11 C(b), HZ-17 C(a): ports that always have frames, workers that never rest.
#[test]
fn a_busy_worker_makes_no_system_call() {
    let g = Gateway::start_with("calls", |yaml| {
        let yaml = yaml.replace("net_af_packet0,iface=acc,qpairs=2", "net_null0");
        let yaml = yaml.replace("net_af_packet1,iface=cor,qpairs=2", "net_null1");
        // One of two cores is left to everybody else.
        let workers = yaml
            .lines()
            .find(|line| line.contains("workers:"))
            .unwrap()
            .to_owned();
        let one = format!(
            "  workers: [{}]",
            workers.trim_end_matches(']').rsplit(' ').next().unwrap()
        );
        yaml.replace(&workers, &one)
            .replace("idle_backoff_us: 100", "idle_backoff_us: 0")
    });
    let tasks = format!("/proc/{}/task", g.pid().as_raw_nonzero());
    let thread = std::fs::read_dir(tasks)
        .unwrap()
        .map(|task| task.unwrap())
        .find(|task| {
            std::fs::read_to_string(task.path().join("comm"))
                .unwrap()
                .trim()
                == "worker-0"
        })
        .expect("the worker's thread")
        .file_name();
    let before = g.count(Counter::RxAccess);
    let traced = std::process::Command::new("timeout")
        .args(["--signal=INT", "3", "strace", "-qqq", "-p"])
        .arg(thread)
        .output()
        .unwrap();
    let calls = String::from_utf8_lossy(&traced.stderr);
    let calls: Vec<_> = calls.lines().filter(|line| line.contains('(')).collect();
    assert!(
        traced.status.code() == Some(124),
        "strace came to an end of its own: {traced:?}"
    );
    assert_eq!(calls, Vec::<&str>::new());
    assert!(
        g.count(Counter::RxAccess) > before + 100_000,
        "the worker was busy"
    );
}
