//! Limits of a session's octets and times, also over restarts of the control plane.

use std::time::{Duration, Instant};

use bng_controlplane::policy_change::ChangeError;

use crate::client::Client;
use crate::world::{CONFIG, World};

const MIB: u64 = 1 << 20;

fn world(terms: &str) -> (World, [Client; 2]) {
    let terms = format!("password: wonderland, {terms}");
    let world = World::new(&CONFIG.replace("password: wonderland", &terms));
    let clients = [
        Client::new(1, 0, "alice", "wonderland"),
        Client::new(2, 0, "bob", "builder"),
    ];
    (world, clients)
}

/// The owner counts traffic of a client's session.
fn carry(world: &mut World, client: &Client, up: u64, down: u64) {
    let slot = world.slot(client);
    let owner = world.reader().owner(slot).unwrap();
    let worker = world.worker(owner.into());
    worker.count_up(slot, up, bng_shm::monotonic_ms());
    worker.count_down(slot, down);
}

fn ended_with(world: &mut World, clients: &mut [Client], cause: &str) -> Duration {
    let begun = Instant::now();
    world.until("the end", clients, |world, _| world.sessions().total == 1);
    assert!(clients[0].terminated && clients[1].up);
    assert_eq!(world.history().items[0].cause, cause);
    begun.elapsed()
}

#[test]
fn a_session_ends_when_its_octets_of_both_directions_are_used_up() {
    let (mut world, mut clients) = world("quota_mib: 1");
    world.dial(&mut clients);
    carry(&mut world, &clients[0], MIB / 2, MIB / 2 - 1);
    carry(&mut world, &clients[1], 9 * MIB, 9 * MIB);
    // Two ticks look at it and find nothing wrong.
    let begun = Instant::now();
    world.until("two ticks", &mut clients, |_, _| {
        begun.elapsed() > Duration::from_millis(2_100)
    });
    assert_eq!(world.sessions().total, 2);

    world.stop_control();
    world.start_control();
    carry(&mut world, &clients[0], 1, 0);
    let after = ended_with(&mut world, &mut clients, "quota");
    assert!(after < Duration::from_millis(2_500), "{after:?}");
    let ended = &world.history().items[0];
    let traffic = (
        &ended.traffic.upstream_bytes,
        &ended.traffic.downstream_bytes,
    );
    assert_eq!(traffic, (&(MIB / 2 + 1), &(MIB / 2 - 1)));
}

#[test]
fn session_time_goes_on_while_no_control_plane_runs() {
    let (mut world, mut clients) = world("session_timeout_s: 3");
    world.dial(&mut clients);
    let begun = Instant::now();
    world.stop_control();
    while begun.elapsed() < Duration::from_secs(3) {
        std::thread::park_timeout(Duration::from_millis(50));
    }
    world.start_control();
    let after = ended_with(&mut world, &mut clients, "session_timeout");
    assert!(after < Duration::from_millis(1_500), "{after:?}");
}

#[test]
fn an_idle_session_ends_and_one_with_traffic_does_not() {
    let (mut world, mut clients) = world("idle_timeout_s: 2");
    world.dial(&mut clients);
    let begun = Instant::now();
    world.until("traffic", &mut clients, |_, _| {
        begun.elapsed() > Duration::from_secs(1)
    });
    carry(&mut world, &clients[0], 100, 0);
    ended_with(&mut world, &mut clients, "idle_timeout");
    let lived = begun.elapsed();
    assert!(lived > Duration::from_millis(2_500), "{lived:?}");
}

#[test]
fn what_an_operator_has_changed_stays_when_the_client_negotiates_anew() {
    let (mut world, mut clients) =
        world("quota_mib: 1, session_timeout_s: 600, idle_timeout_s: 300");
    world.dial(&mut clients);
    let change = r#"{"quota_mib": 3, "idle_timeout_s": null, "session_timeout_s": 3600}"#;
    assert_eq!(world.change_limits(&clients[0], change), Ok(()));
    // What is kept is kept over a restart, too.
    world.stop_control();
    world.start_control();
    let before = world.engine_counted("outcome", "ipcp_opened");
    clients[0].renegotiate();
    world.until("the client's return", &mut clients, |world, clients| {
        clients[0].up && world.engine_counted("outcome", "ipcp_opened") > before
    });
    let kept = world.session(&clients[0]).unwrap();
    let left = kept.ppp.unwrap().session_time_left_s.unwrap();
    assert!((3400..=3600).contains(&left), "{left}");
    let record = world.record(&clients[0]);
    assert_eq!(record.quota_octets, 3 * MIB);
    assert_eq!((record.session_timeout_s, record.idle_timeout_s), (3600, 0));

    // Nobody has changed anything of this one, so it has what AAA says now.
    let before = world.engine_counted("outcome", "ipcp_opened");
    clients[1].renegotiate();
    world.until("the other one's return", &mut clients, |world, clients| {
        clients[1].up && world.engine_counted("outcome", "ipcp_opened") > before
    });
    assert_eq!(world.record(&clients[1]).quota_octets, 0);
}

#[test]
fn an_operator_changes_limits_of_a_live_session_and_a_restart_keeps_them() {
    let (mut world, mut clients) = world("quota_mib: 1");
    world.dial(&mut clients);
    let change = r#"{"quota_mib": 3, "idle_timeout_s": null, "session_timeout_s": 3600}"#;
    assert_eq!(world.change_limits(&clients[0], change), Ok(()));
    carry(&mut world, &clients[0], 2 * MIB, 0);
    world.stop_control();
    world.start_control();
    let begun = Instant::now();
    world.until("two ticks", &mut clients, |_, _| {
        begun.elapsed() > Duration::from_millis(2_100)
    });
    let detail = world.session(&clients[0]).unwrap();
    let left = detail.ppp.unwrap().session_time_left_s.unwrap();
    assert!((3500..3600).contains(&left), "{left}");

    assert_eq!(
        world.change_limits(&clients[0], r#"{"quota_mib": null}"#),
        Ok(())
    );
    carry(&mut world, &clients[0], 9 * MIB, 0);
    assert_eq!(
        world.change_limits(&clients[0], r#"{"session_timeout_s": 1}"#),
        Ok(())
    );
    ended_with(&mut world, &mut clients, "session_timeout");
    let gone = world.change_limits(&clients[0], r#"{"quota_mib": 1}"#);
    assert_eq!(gone, Err(ChangeError::NoSuchSession));
}
