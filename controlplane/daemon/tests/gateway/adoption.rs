//! Restarts of either side.

use std::net::Ipv4Addr;

use bng_shm::{BlockOwner, Event, PortBlock, SessionState, SlotIndex};

use crate::client::Client;
use crate::world::{CONFIG, World};

fn clients() -> [Client; 2] {
    [
        Client::new(1, 0, "alice", "wonderland"),
        Client::new(2, 2, "bob", "builder"),
    ]
}

#[test]
fn sessions_go_on_over_a_restart_of_the_control_plane() {
    let mut world = World::new(CONFIG);
    let mut clients = clients();
    world.dial(&mut clients);
    let before = clients.each_ref().map(|client| world.entry(client));
    let shown = serde_json::to_value(world.sessions()).unwrap();
    world.stop_control();
    for (client, entry) in clients.iter().zip(&before) {
        assert_eq!(world.entry(client), *entry, "traffic goes on meanwhile");
    }
    world.start_control();
    for (client, entry) in clients.iter().zip(&before) {
        assert_eq!(world.entry(client), *entry);
        let detail = world.session(client).unwrap();
        assert!(detail.adopted);
        assert_eq!(detail.ppp.unwrap().peer_mru, 1492);
    }
    assert_eq!(world.counted("adopted"), 2);
    assert_eq!(serde_json::to_value(world.sessions()).unwrap(), shown);

    // Echo goes on, and nobody has negotiated anything again.
    let heard = clients.each_ref().map(|client| client.echoes);
    world.until("echoes", &mut clients, |_, clients| {
        clients
            .iter()
            .zip(&heard)
            .all(|(c, before)| c.echoes > before + 1)
    });
    assert!(clients.iter().all(|client| client.up));

    // What they hold is theirs; a new one gets something else.
    let mut third = [Client::new(3, 0, "carol", "christmas")];
    world.dial(&mut third);
    assert!(
        clients
            .iter()
            .all(|client| client.address != third[0].address)
    );
    let blocks: Vec<_> = before.iter().map(|entry| entry.nat).collect();
    assert!(!blocks.contains(&world.entry(&third[0]).nat));

    // An adopted session ends like any other.
    assert!(world.end(&clients[0]));
    world.until("the end", &mut clients, |world, clients| {
        clients[0].over && world.sessions().total == 2
    });
    assert!(clients[0].terminated);
    assert_eq!(world.history().items[0].cause, "operator");
    assert_eq!(world.status().pools.address[0].used, 2);
}

#[test]
fn a_padr_repeated_after_a_restart_leads_to_the_session_there_is() {
    let mut world = World::new(CONFIG);
    let mut clients = clients();
    world.dial(&mut clients);
    let id = clients[0].session_id;
    world.stop_control();
    world.start_control();
    clients[0].repeat_padr();
    world.until("PADS", &mut clients, |_, clients| {
        clients[0].pads == 2 && clients[0].up
    });
    assert_eq!(clients[0].session_id, id);
    assert_eq!(world.sessions().total, 2);
}

#[test]
fn a_session_that_was_not_up_is_ended_with_a_padt_and_can_dial_again() {
    let mut world = World::new(CONFIG);
    let mut clients = clients();
    world.dial(&mut clients[1..]);
    clients[0].dial();
    world.until("PADS", &mut clients[..1], |world, clients| {
        clients[0].session_id != 0 && world.entry(&clients[0]).state == SessionState::Negotiating
    });
    let id = clients[0].session_id;
    clients[0].out.clear();
    world.stop_control();
    world.start_control();
    world.until("PADT", &mut clients[..1], |world, clients| {
        clients[0].over && world.sessions().total == 1
    });
    assert_eq!(world.counted("not_adopted_negotiating"), 1);
    assert_eq!(world.counted("adopted"), 1);
    assert_eq!(world.history().items[0].cause, "not_adopted");
    world.dial(&mut clients[..1]);
    assert_ne!(clients[0].session_id, id, "the id rests");
}

#[test]
fn a_session_whose_address_is_no_longer_configured_is_ended() {
    let mut world = World::new(CONFIG);
    let mut clients = clients();
    world.dial(&mut clients);
    world.stop_control();
    world.configure(&CONFIG.replace("100.64.0.", "100.65.0."));
    world.start_control();
    world.until("both over", &mut clients, |world, clients| {
        clients.iter().all(|client| client.over) && world.sessions().total == 0
    });
    assert_eq!(world.counted("not_adopted_address"), 2);
    world.dial(&mut clients);
    assert_eq!(clients[0].address.unwrap().octets()[..2], [100, 65]);
}

#[test]
fn a_session_whose_block_is_cut_otherwise_now_is_ended() {
    let mut world = World::new(CONFIG);
    let mut clients = clients();
    world.dial(&mut clients);
    world.stop_control();
    world.configure(&CONFIG.replace("block_size: 1024", "block_size: 512"));
    world.start_control();
    world.until("both over", &mut clients, |world, clients| {
        clients.iter().all(|client| client.over) && world.sessions().total == 0
    });
    assert_eq!(world.counted("not_adopted_block"), 2);
    let pools = world.status().pools.clone();
    assert_eq!((pools.address[0].used, pools.nat[0].used), (0, 0));
}

#[test]
fn blocks_nobody_holds_lead_nowhere_after_a_restart() {
    let mut world = World::new(CONFIG);
    let mut clients = clients();
    world.dial(&mut clients);
    let held = clients.each_ref().map(|it| world.entry(it).nat.unwrap());
    let live = world.entry(&clients[0]);
    let slot = world.slot(&clients[0]);
    world.stop_control();

    let mut publisher = world.publisher();
    let range = publisher.pool_ranges()[0];
    let address = Ipv4Addr::new(198, 51, 100, 1);
    let free = |first_port| PortBlock {
        address,
        address_index: 1,
        first_port,
        size: 1024,
    };
    // As after a change of `first_port` (a live session, another meaning of the word), and as left by a session that is gone.
    let named = |slot, generation| Some(BlockOwner { slot, generation });
    let (other_meaning, gone) = (free(1024 * 9), free(1024 * 62));
    (publisher.set_block_owner(&other_meaning, named(slot, live.generation))).unwrap();
    (publisher.set_block_owner(&gone, named(SlotIndex::new(1, 99), 3))).unwrap();
    drop(publisher);

    world.start_control();
    assert_eq!(world.counted("adopted"), 2);
    let reader = world.reader();
    for block in [other_meaning, gone] {
        assert_eq!(reader.block_owner(&range, address, block.first_port), None);
    }
    for (block, client) in held.iter().zip(&clients) {
        let owner = reader.block_owner(&range, block.address, block.first_port);
        assert_eq!(owner.map(|owner| owner.slot), Some(world.slot(client)));
    }
}

#[test]
fn a_restart_in_the_middle_of_an_end_finishes_it() {
    let mut world = World::new(CONFIG);
    let mut clients = clients();
    world.dial(&mut clients);
    let slot = world.slot(&clients[0]);
    clients[0].hang_up();
    // The workers do not echo the epoch, so the slot cannot be freed before the restart.
    world.turn(&mut clients[..1]);
    let reader = world.reader();
    while reader.session(slot).unwrap().unwrap().state != SessionState::Closing {
        std::thread::yield_now();
    }
    world.stop_control();
    world.start_control();
    world.until("freed", &mut clients, |world, _| {
        world.sessions().total == 1
    });
    assert_eq!(
        reader.session(slot).unwrap().unwrap().state,
        SessionState::Free
    );
    assert_eq!(world.status().pools.address[0].used, 1);
}

/// A worker says that a session's ports run short.
pub(crate) fn run_short(world: &mut World, client: &Client) {
    let slot = world.slot(client);
    let generation = world.entry(client).generation;
    let worker = world.worker(world.entry(client).owner.into());
    assert!(worker.tell(Event::BlockLow { slot, generation }));
    worker.pay_bell();
}

#[test]
fn a_session_that_runs_short_of_ports_gets_blocks_up_to_its_limit_and_keeps_them_over_a_restart() {
    let mut world = World::new(&CONFIG.replace(
        "block_size: 1024",
        "block_size: 1024, blocks_per_subscriber: 3",
    ));
    let mut clients = clients();
    world.dial(&mut clients);
    let slot = world.slot(&clients[0]);
    let used = |world: &World| world.status().pools.nat[0].used;
    assert_eq!(used(&world), 2);
    for count in 1..=2 {
        run_short(&mut world, &clients[0]);
        world.until("one more block", &mut clients, |world, _| {
            world.counted("block_added") == count
        });
    }
    run_short(&mut world, &clients[0]);
    world.until("the limit", &mut clients, |world, _| {
        world.counted("block_limit") == 1
    });
    assert_eq!(used(&world), 4);
    let entry = world.entry(&clients[0]);
    let first = entry.nat.unwrap();
    let further = world.reader().further_blocks(slot);
    assert_eq!(further.count(), 2);
    let pools = world.reader();
    let view = world.session(&clients[0]).unwrap().session.nat.unwrap();
    assert_eq!(
        (view.address, view.first_port),
        (first.address, first.first_port)
    );
    assert!(
        view.further
            .iter()
            .map(|ports| ports.first_port)
            .eq(further.iter())
    );
    assert!(
        view.further
            .iter()
            .all(|ports| ports.last_port - ports.first_port == 1_023)
    );
    let mine: Vec<u16> = further.iter().chain([first.first_port]).collect();
    let others = world.entry(&clients[1]).nat.unwrap();
    assert!(others.address != first.address || !mine.contains(&others.first_port));
    world.stop_control();
    world.start_control();
    world.until("adopted", &mut clients, |world, _| {
        world.counted("adopted") == 2
    });
    assert_eq!(used(&world), 4);
    assert_eq!(pools.further_blocks(slot), further);
    // The other one's next block is none of the first one's.
    run_short(&mut world, &clients[1]);
    world.until("one more block", &mut clients, |world, _| {
        world.counted("block_added") == 1
    });
    let theirs = world.reader().further_blocks(world.slot(&clients[1]));
    assert!(theirs.iter().all(|port| !mine.contains(&port)) || others.address != first.address);
    assert!(world.end(&clients[0]));
    world.until("the end", &mut clients, |world, clients| {
        clients[0].over && world.sessions().total == 1 && used(world) == 2
    });
    assert_eq!(world.status().pools.nat[0].resting, 3);
    let ended = world.history().items[0].nat.clone().unwrap();
    assert_eq!(ended.further, view.further);
}

#[test]
fn a_session_that_is_out_of_ports_gets_the_block_it_did_not_get_when_they_ran_short() {
    let mut world = World::new(CONFIG);
    let mut clients = clients();
    world.dial(&mut clients[..1]);
    let slot = world.slot(&clients[0]);
    let generation = world.entry(&clients[0]).generation;
    let worker = world.worker(world.entry(&clients[0]).owner.into());
    // An earlier session's report has no effect.
    for generation in [generation + 1, generation] {
        assert!(worker.tell(Event::BlockExhausted { slot, generation }));
    }
    worker.pay_bell();
    world.until("one more block", &mut clients, |world, _| {
        world.counted("block_exhausted") == 2 && world.counted("block_added") == 1
    });
    assert_eq!(world.reader().further_blocks(slot).count(), 1);
}

#[test]
fn sessions_go_on_over_a_restart_of_the_dataplane() {
    let mut world = World::new(CONFIG);
    let mut clients = clients();
    world.dial(&mut clients);
    let before = clients.each_ref().map(|client| world.entry(client));
    world.kill_dataplane();
    while world.status().dataplane.alive {
        std::thread::yield_now();
    }
    while world.counted("dataplane_lost") == 0 {
        std::thread::yield_now();
    }
    assert!(world.status().ports.iter().all(|port| !port.started));
    assert_eq!(world.sessions().total, 2, "they wait for it");
    world.start_dataplane(1);
    let echoes = clients.each_ref().map(|client| client.echoes);
    world.until("echoes", &mut clients, |_, clients| {
        clients
            .iter()
            .zip(&echoes)
            .all(|(c, before)| c.echoes > *before)
    });
    assert_eq!(clients.each_ref().map(|client| world.entry(client)), before);
    assert_eq!(world.counted("dataplane_started"), 1);
    assert_eq!(world.engine_counted("outcome", "ipcp_opened"), 2);
}

#[test]
fn ports_with_other_addresses_after_a_restart_keep_the_sessions() {
    let mut world = World::new(CONFIG);
    let mut clients = clients();
    world.dial(&mut clients[..1]);
    clients[1].dial();
    world.until("PADS", &mut clients[1..], |_, clients| {
        clients[0].session_id != 0
    });
    clients[1].out.clear();
    world.kill_dataplane();
    world.start_dataplane(9);
    // The one that was up lives on, now with frames from the new address; the half-open one has to dial again.
    world.until("PADT", &mut clients, |world, clients| {
        clients[1].over && world.sessions().total == 1
    });
    let echoes = clients[0].echoes;
    world.until("echo", &mut clients, |_, clients| {
        clients[0].echoes > echoes
    });
    assert_eq!(world.history().items[0].cause, "port_down");
    assert_eq!(world.engine_counted("outcome", "padi"), 2);
    world.dial(&mut clients[1..]);
}
