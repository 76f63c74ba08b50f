//! Policies, filters and VLANs: who gets what, changes of live sessions, restarts.

use bng_controlplane::policy_change::ChangeError;
use bng_shm::{FilterId, Filters, Policy, PolicyId, Rate, SessionState};
use bng_wire::{VlanStack, VlanTag};

use crate::client::Client;
use crate::world::World;

/// Alice has a policy of her own, VLAN 7 another one and a pool, the others the default.
const CONFIG: &str = r#"
dataplane:
  workers: [1, 2]
  ports:
    - {name: access0, role: access, device: net_null0}
    - {name: core0, role: core, device: net_null1}
    - name: access1
      role: access
      device: net_null2
      vlans:
        - {s_vlan: 7, policy: silver, pool: office, max_sessions_per_mac: 1}
        - {s_vlan: none}
pppoe:
  echo: {interval_s: 1, failures: 3}
  lcp: {restart_ms: 500}
  padi_per_second_per_mac: 100
auth:
  default_policy: bronze
  users:
    - {name: alice, password: wonderland, policy: gold}
    - {name: bob, password: builder}
    - {name: carol, password: christmas}
policies:
  - {name: bronze, up: {rate_kbps: 1000}, down: {rate_kbps: 2000}}
  - {name: silver, down: {rate_kbps: 8000}}
  - {name: gold, filter: mail}
filters:
  - {name: games, other_up: drop}
  - {name: mail, up: [{action: drop, protocol: tcp, remote_ports: 25}]}
pools:
  - {name: home, ranges: [100.64.0.0/28], gateway: 100.64.0.1, dns: [9.9.9.9]}
  - {name: office, ranges: [100.65.0.0/28], gateway: 100.65.0.1, dns: [9.9.9.9]}
"#;

fn tagged(mut client: Client, vid: u16) -> Client {
    client.vlans = VlanStack::single(VlanTag {
        tpid: 0x8100,
        tci: vid,
    });
    client
}

fn rate(kbps: u32, burst_bytes: u32) -> Option<Rate> {
    Some(Rate { kbps, burst_bytes })
}

fn bronze() -> Policy {
    Policy {
        up: rate(1000, 12_500),
        down: rate(2000, 25_000),
        ..Policy::default()
    }
}

#[test]
fn the_policy_is_the_user_s_else_the_vlan_s_else_the_default() {
    let mut world = World::new(CONFIG);
    let mut clients = [
        Client::new(1, 0, "alice", "wonderland"),
        Client::new(2, 0, "bob", "builder"),
        tagged(Client::new(3, 2, "carol", "christmas"), 7),
        tagged(Client::new(4, 2, "alice", "wonderland"), 7),
    ];
    world.dial(&mut clients);
    let gold = Policy {
        filter: Some(FilterId(1)),
        ..Policy::default()
    };
    let silver = Policy {
        down: rate(8000, 100_000),
        ..Policy::default()
    };
    let policies = clients
        .each_ref()
        .map(|client| world.policy(client).unwrap());
    assert_eq!(policies, [gold, bronze(), silver, gold]);
    let [one, _, _, other] = clients.each_ref().map(|client| world.entry(client).policy);
    assert_eq!(one, other, "those who may do the same share a place");

    let mut filters = Filters::default();
    assert!(world.reader().refresh_filters(&mut filters));
    let mail = filters.get(FilterId(1)).unwrap();
    assert_eq!(mail.up[0].remote_ports, Some((25, 25)));
    assert!(filters.get(FilterId(0)).unwrap().drop_other_up);

    let shown = world.session(&clients[0]).unwrap().session.policy.unwrap();
    assert_eq!(shown.name.as_deref(), Some("gold"));
    assert_eq!(shown.rules.filter.as_deref(), Some("mail"));
    assert!(shown.published && !shown.by_operator);

    // Places of policies that nobody has any more are taken back.
    let slots = clients.each_ref().map(|client| world.entry(client).policy);
    clients.iter_mut().for_each(Client::hang_up);
    world.until("all free", &mut clients, |world, _| {
        let reader = world.reader();
        world.sessions().total == 0 && slots.iter().all(|id| reader.policy(*id).is_none())
    });
    assert_eq!(world.status().policies, 0);
}

#[test]
fn without_a_word_of_policies_nothing_is_limited_and_sources_are_checked() {
    let mut world = World::new(crate::world::CONFIG);
    let mut clients = [Client::new(1, 0, "alice", "wonderland")];
    clients[0].dial();
    world.until("PADS", &mut clients, |_, clients| {
        clients[0].session_id != 0
    });
    world.until("up", &mut clients, |world, clients| {
        clients[0].up && world.entry(&clients[0]).state == SessionState::Forwarding
    });
    assert_eq!(world.policy(&clients[0]), Some(Policy::default()));
    let shown = world.session(&clients[0]).unwrap().session.policy.unwrap();
    assert_eq!(shown.name.as_deref(), Some("default"));
    assert!(!shown.by_operator);
}

#[test]
fn vlans_decide_on_pool_and_sessions_and_others_are_ignored_and_counted() {
    let mut world = World::new(CONFIG);
    let mut clients = vec![
        tagged(Client::new(1, 2, "bob", "builder"), 7),
        tagged(Client::new(2, 2, "carol", "christmas"), 0),
    ];
    world.dial(&mut clients[..1]);
    assert_eq!(clients[0].address.unwrap().octets()[..2], [100, 65]);
    assert_eq!(world.entry(&clients[0]).vlans.s_vlan, Some(7));
    // The session of this client answers, so it does not make room for another.
    clients.push(tagged(Client::new(1, 2, "bob", "builder"), 7));
    clients[2].dial();
    world.until("a refusal", &mut clients, |world, _| {
        world.engine_counted("drop", "padi_busy") == 1
    });

    let mut unserved = [tagged(Client::new(3, 2, "bob", "builder"), 8)];
    unserved[0].dial();
    world.until("a drop", &mut unserved, |world, _| {
        world.engine_counted("drop", "vlan_not_configured") == 1
    });
    assert_eq!(unserved[0].session_id, 0);

    // A priority tag names no VLAN: answers are untagged, and so is the session's entry.
    world.dial(&mut clients[1..2]);
    assert_eq!(clients[1].address.unwrap().octets()[..2], [100, 64]);
    assert_eq!(world.entry(&clients[1]).vlans, bng_shm::Vlans::default());
}

#[test]
fn a_change_is_answered_when_the_epoch_after_it_has_passed() {
    let mut world = World::new(CONFIG);
    let mut clients = [Client::new(2, 0, "bob", "builder")];
    world.dial(&mut clients);
    let before = world.entry(&clients[0]);
    let mut answer = world.change_policy(&clients[0], r#"{"up": {"rate_kbps": 500}}"#);
    let expected = Policy {
        up: rate(500, 6250),
        ..bronze()
    };
    let start = std::time::Instant::now();
    while world.entry(&clients[0]).policy == before.policy {
        assert!(start.elapsed().as_secs() < 20);
        std::thread::yield_now();
    }
    // The entry names the new place, and no worker has gone through its loop since.
    assert_eq!(world.policy(&clients[0]), Some(expected));
    assert_eq!(world.reader().policy(before.policy), Some(bronze()));
    assert!(answer.try_recv().is_err(), "not confirmed yet");
    assert_eq!(world.entry(&clients[0]).generation, before.generation);
    // The epoch begins after the entry is written: with this answer the driver is past both.
    world.status();
    world.worker(0).quiescent();
    world.status();
    assert!(answer.try_recv().is_err(), "the other worker has not");
    world.worker(1).quiescent();
    let view = answer.blocking_recv().unwrap().unwrap();
    assert_eq!((view.name, view.by_operator), (None, true));
    assert_eq!(view.rules.up.unwrap().rate_kbps, 500);
    world.until("the old place is free", &mut [], |world, _| {
        world.reader().policy(before.policy).is_none()
    });
}

#[test]
fn a_worker_that_stands_still_is_told_of_and_the_change_stays() {
    let mut world = World::new(CONFIG);
    let mut clients = [Client::new(2, 0, "bob", "builder")];
    world.dial(&mut clients);
    let answer = world.change_policy(&clients[0], r#"{"policy": "silver"}"#);
    let answer = answer.blocking_recv().unwrap();
    assert_eq!(answer, Err(ChangeError::NotConfirmed));
    let silver = world.policy(&clients[0]).unwrap();
    assert_eq!(silver.down, rate(8000, 100_000));
    // Without a dataplane there is nobody to wait for.
    let slot = world.slot(&clients[0]);
    world.kill_dataplane();
    let (sender, receiver) = tokio::sync::oneshot::channel();
    let change = serde_json::from_str(r#"{"policy": "gold"}"#).unwrap();
    let request = bng_controlplane::request::Request::ChangePolicy(slot, Box::new(change), sender);
    world.handle().tell(request).unwrap();
    let view = receiver.blocking_recv().unwrap().unwrap();
    assert_eq!(view.name.as_deref(), Some("gold"));
}

#[test]
fn a_change_that_cannot_be_changes_nothing() {
    let mut world = World::new(CONFIG);
    let mut clients = [Client::new(2, 0, "bob", "builder")];
    world.dial(&mut clients);
    for (change, expected) in [
        ("{}", ChangeError::Nothing),
        (
            r#"{"policy": "tin"}"#,
            ChangeError::UnknownPolicy("tin".to_owned()),
        ),
        (
            r#"{"filter": "tin"}"#,
            ChangeError::UnknownFilter("tin".to_owned()),
        ),
    ] {
        assert_eq!(world.changed(&clients[0], change), Err(expected));
    }
    assert_eq!(world.policy(&clients[0]), Some(bronze()));
    let mut nobody = Client::new(9, 0, "bob", "builder");
    nobody.session_id = 4242;
    let answer = world.changed(&nobody, r#"{"policy": "gold"}"#);
    assert_eq!(answer, Err(ChangeError::NoSuchSession));
}

#[test]
fn with_a_policy_that_cannot_be_written_nothing_passes() {
    let mut world = World::asleep(CONFIG);
    world.start_dataplane(1);
    // Every place is taken, and none can be taken back before an epoch has passed.
    let mut publisher = world.publisher();
    for id in 1..=u16::MAX {
        let policy = Policy {
            up: rate(id.into(), 3000),
            ..Policy::default()
        };
        publisher.write_policy(PolicyId(id), Some(&policy)).unwrap();
    }
    drop(publisher);
    world.no_epoch = true;
    world.start_control();
    let mut clients = [Client::new(2, 0, "bob", "builder")];
    world.dial(&mut clients);
    assert_eq!(world.entry(&clients[0]).policy, PolicyId(0));
    assert_eq!(world.policy(&clients[0]), None);
    let shown = world.session(&clients[0]).unwrap().session.policy.unwrap();
    assert!(!shown.published, "and that is told");
    assert_eq!(world.counted("publish_failed"), 1);
    let refused = world.changed(&clients[0], r#"{"policy": "silver"}"#);
    assert!(matches!(refused, Err(ChangeError::NotPublished(_))));

    world.no_epoch = false;
    world.until("room", &mut clients, |world, _| {
        world.status().policies == 0
    });
    let view = world
        .changed(&clients[0], r#"{"policy": "bronze"}"#)
        .unwrap();
    assert!(view.published);
    assert_eq!(world.policy(&clients[0]), Some(bronze()));
}

#[test]
fn a_change_survives_renegotiation_and_a_restart_of_the_control_plane() {
    let mut world = World::new(CONFIG);
    let mut clients = [
        Client::new(1, 0, "alice", "wonderland"),
        Client::new(2, 0, "bob", "builder"),
    ];
    world.dial(&mut clients);
    let change = r#"{"policy": "bronze", "down": null, "filter": "mail"}"#;
    world.changed(&clients[0], change).unwrap();
    let changed = Policy {
        down: None,
        filter: Some(FilterId(1)),
        ..bronze()
    };
    assert_eq!(world.policy(&clients[0]), Some(changed));
    clients[0].renegotiate();
    world.until("down", &mut clients, |world, clients| {
        world.entry(&clients[0]).state == SessionState::Negotiating
    });
    world.until("up again", &mut clients, |world, clients| {
        clients[0].up && world.entry(&clients[0]).state == SessionState::Forwarding
    });
    assert_eq!(world.policy(&clients[0]), Some(changed));

    let before = clients.each_ref().map(|client| world.entry(client));
    world.stop_control();
    world.start_control();
    let after = clients.each_ref().map(|client| world.entry(client));
    assert_eq!(after, before, "entries are not touched");
    assert_eq!(world.policy(&clients[0]), Some(changed));
    assert_eq!(world.policy(&clients[1]), Some(bronze()));
    let by_operator = |world: &World, client: &Client| {
        let detail = world.session(client).unwrap();
        detail.session.policy.unwrap().by_operator
    };
    assert!(by_operator(&world, &clients[0]) && !by_operator(&world, &clients[1]));
}

#[test]
fn a_restart_with_another_configuration_gives_its_policies_and_keeps_what_operators_gave() {
    let mut world = World::new(CONFIG);
    let mut clients = [
        Client::new(1, 0, "alice", "wonderland"),
        Client::new(2, 0, "bob", "builder"),
        Client::new(3, 0, "carol", "christmas"),
    ];
    world.dial(&mut clients);
    world.changed(&clients[1], r#"{"filter": "mail"}"#).unwrap();
    world
        .changed(&clients[2], r#"{"filter": "games"}"#)
        .unwrap();
    world.stop_control();
    // Games are gone, so that mail has the position games had; bronze has become slower.
    let changed = CONFIG
        .replace("  - {name: games, other_up: drop}\n", "")
        .replace("up: {rate_kbps: 1000}", "up: {rate_kbps: 100}");
    world.configure(&changed);
    world.start_control();
    let mail = Some(FilterId(0));
    let slow = Policy {
        up: rate(100, 3000),
        ..bronze()
    };
    let policies = clients.each_ref().map(|client| world.policy(client));
    let alice = Policy {
        filter: mail,
        ..Policy::default()
    };
    let bob = Policy {
        filter: mail,
        ..bronze()
    };
    assert_eq!(
        policies,
        [Some(alice), Some(bob), Some(slow)],
        "her own under its new place; what the operator gave; the configuration's, as the filter is gone"
    );
    let mut filters = Filters::default();
    world.reader().refresh_filters(&mut filters);
    assert_eq!(filters.get(FilterId(0)).unwrap().up.len(), 1);
    assert_eq!(filters.get(FilterId(1)), None);
}

#[test]
fn a_session_on_a_vlan_that_is_not_served_any_more_ends_at_the_restart() {
    let mut world = World::new(CONFIG);
    let mut clients = [tagged(Client::new(1, 2, "bob", "builder"), 7)];
    world.dial(&mut clients);
    world.stop_control();
    world.configure(&CONFIG.replace("{s_vlan: 7,", "{s_vlan: 9,"));
    world.start_control();
    world.until("the end", &mut clients, |world, clients| {
        clients[0].over && world.sessions().total == 0
    });
    assert_eq!(world.counted("not_adopted_vlan"), 1);
}
