//! The history of ended sessions: what it says, and that it outlives the process.

use std::path::PathBuf;

use crate::client::Client;
use crate::world::{CONFIG, World};

/// A directory of its own, gone at the end.
struct State(PathBuf);

impl State {
    fn new(name: &str) -> Self {
        let name = format!("state-{name}-{}", std::process::id());
        Self(std::env::temp_dir().join(name))
    }

    fn config(&self) -> String {
        format!("{CONFIG}state_directory: {}\n", self.0.display())
    }
}

impl Drop for State {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

fn show(world: &World) -> String {
    serde_json::to_string(&world.history()).unwrap()
}

#[test]
fn ended_sessions_are_found_again_after_a_restart_as_they_were() {
    let state = State::new("again");
    let mut world = World::new(&state.config());
    let mut clients = [
        Client::new(1, 0, "alice", "wonderland"),
        Client::new(2, 0, "bob", "wrong"),
        Client::new(3, 2, "carol", "christmas"),
    ];
    world.dial(&mut clients[..1]);
    world.dial(&mut clients[2..]);
    let entry = world.entry(&clients[0]);
    let worker = world.worker(entry.owner.into());
    let slot = bng_shm::SlotIndex::new(0, clients[0].session_id);
    worker.count_up(slot, 1_000, bng_shm::monotonic_ms());
    clients[1].dial();
    world.until("refused", &mut clients, |world, clients| {
        clients[1].over && world.sessions().total == 2
    });
    clients[0].hang_up();
    world.until("the end", &mut clients, |world, _| {
        world.sessions().total == 1
    });
    let history = world.history();
    let [alice, bob] = &history.items[..] else {
        panic!("two: {history:?}")
    };
    assert!(alice.was_up && alice.cause == "peer_padt" && alice.refused.is_none());
    assert_eq!(alice.framed_ip, clients[0].address);
    assert_eq!(alice.traffic.upstream_bytes, 1_000);
    let agreed = alice.agreed.as_ref().unwrap();
    assert_eq!(
        (agreed.auth_protocol.as_str(), agreed.peer_mru),
        ("pap", 1492)
    );
    assert!(alice.opened_unix_ms.is_some() && alice.accounting_id.is_some());
    assert!(!bob.was_up && bob.cause == "wrong_credentials" && bob.agreed.is_none());
    assert_eq!(bob.refused.as_deref(), Some("wrong_password"));
    assert_eq!((bob.user.as_str(), bob.accounting_id), ("bob", None));

    let before = show(&world);
    world.stop_control();
    world.start_control();
    assert_eq!(show(&world), before);
    clients[2].hang_up();
    world.until("the last", &mut clients, |world, _| {
        world.sessions().total == 0
    });
    world.stop_control();
    world.start_control();
    let history = world.history();
    let users: Vec<_> = history.items.iter().map(|it| it.user.as_str()).collect();
    assert_eq!(users, ["carol", "alice", "bob"]);
}

#[test]
fn without_a_place_for_it_sessions_go_on_and_the_loss_is_counted() {
    let state = State::new("nowhere");
    std::fs::write(&state.0, "no directory").unwrap();
    let mut world = World::new(&state.config());
    let mut clients = [Client::new(1, 0, "alice", "wonderland")];
    world.dial(&mut clients);
    assert_eq!(world.counted("history_lost"), 1);
    std::fs::remove_file(&state.0).unwrap();
}
