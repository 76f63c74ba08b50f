//! Another configuration while sessions go on.

use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;

use bng_config::{Config, LogLevel};
use bng_controlplane::reload::InForce;
use bng_controlplane::request::Link;
use bng_controlplane::rest::token::Token;
use bng_controlplane::settings::Settings;
use bng_shm::{FilterId, SessionState};
use serde_json::{Value, json};
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};

use crate::client::Client;
use crate::radius::{self, Server, State};
use crate::rest_interface::{Answer, Served, TOKEN};
use crate::world::{CONFIG, World};

/// A gateway that was started with a file.
struct Gateway {
    world: World,
    served: Served,
    dir: PathBuf,
    level: Arc<AtomicU8>,
}

impl Drop for Gateway {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.dir);
    }
}

impl Gateway {
    fn new(name: &str, text: &str) -> Self {
        let name = format!("ctl-reload-{}-{name}", std::process::id());
        let dir = std::env::temp_dir().join(name);
        std::fs::create_dir(&dir).unwrap();
        let token = dir.join("token");
        std::fs::write(&token, format!("{TOKEN}\n")).unwrap();
        std::fs::set_permissions(&token, std::fs::Permissions::from_mode(0o600)).unwrap();
        let file = dir.join("gateway.yaml");
        std::fs::write(&file, Self::whole(&dir, text)).unwrap();
        let config = Config::load(&file).unwrap();
        let world = World::new(&Self::whole(&dir, text));
        let link = Link::waiting("starting");
        link.set_up(world.handle());
        let level = Arc::new(AtomicU8::new(0));
        let set = level.clone();
        let in_force = InForce::new(
            file,
            config.clone(),
            Arc::new(Settings::new(&config).unwrap()),
            Token::read(&token).unwrap(),
            link.clone(),
            Box::new(move |level| {
                set.store(1 + u8::from(level == LogLevel::Debug), Ordering::Relaxed)
            }),
        );
        let served = Served::serve(link, in_force);
        Self {
            world,
            served,
            dir,
            level,
        }
    }

    fn whole(dir: &std::path::Path, text: &str) -> String {
        format!("{text}\napi: {{token_file: {}/token}}\n", dir.display())
    }

    fn write(&self, text: &str) {
        std::fs::write(self.dir.join("gateway.yaml"), Self::whole(&self.dir, text)).unwrap();
    }

    fn reload(&self, body: &str) -> Answer {
        let token = format!("Bearer {TOKEN}");
        self.served
            .request_json("POST", "/api/v1/reload", &token, body)
    }

    /// The workers make their turn, so that what was changed before is known to them.
    fn settle(&mut self, clients: &mut [Client]) {
        self.world.turn(clients);
        self.world.turn(clients);
    }

    fn in_force(&self) -> Value {
        let answer = self.reload("{}");
        assert_eq!(answer.status, 200, "{}", answer.body);
        let view = answer.json();
        assert_eq!(view["applied"], true, "{view}");
        view
    }
}

/// [`CONFIG`] with policies and a filter for bob.
fn with_policies() -> String {
    CONFIG
        .replace("password: builder}", "password: builder, policy: gold}")
        .replace(
            "\npools:\n",
            "\npolicies: [{name: gold, up: {rate_kbps: 1000}, filter: mail}]\nfilters: [{name: other}, {name: mail, other_up: drop}]\npools:\n",
        )
}

#[test]
fn rates_filters_and_users_change_for_sessions_that_go_on() {
    let text = with_policies();
    let mut gateway = Gateway::new("live", &text);
    let mut clients = [
        Client::new(1, 0, "alice", "wonderland"),
        Client::new(2, 0, "bob", "builder"),
    ];
    gateway.world.dial(&mut clients);
    gateway.settle(&mut clients);
    let before = gateway.world.entry(&clients[1]);
    assert_eq!(
        gateway.world.policy(&clients[1]).unwrap().filter,
        Some(FilterId(1))
    );

    let next = text
        .replace("rate_kbps: 1000", "rate_kbps: 2000")
        .replace("{name: other}, ", "")
        .replace(
            "password: christmas}",
            "password: christmas}\n    - {name: dora, password: explorer}",
        )
        + "log: {level: debug}\n";
    gateway.write(&next);
    let asked = gateway.reload(r#"{"dry_run": true}"#).json();
    assert_eq!(
        (&asked["applied"], &asked["refused"]),
        (&json!(false), &Value::Null)
    );
    assert_eq!(
        asked["changes"],
        json!([
            {"key": "filters[other]", "change": "removed", "class": "live"},
            {"key": "log.level", "change": "added", "class": "live"},
            {"key": "policies[gold].up.rate_kbps", "change": "changed", "class": "live"},
            {"key": "auth.users[dora]", "change": "added", "class": "new_sessions"}
        ])
    );
    assert_eq!(
        gateway.world.policy(&clients[1]).unwrap().up.unwrap().kbps,
        1000
    );

    let view = gateway.in_force();
    assert_eq!(view["sessions_changed"], 1);
    let policy = gateway.world.policy(&clients[1]).unwrap();
    assert_eq!(policy.up.unwrap().kbps, 2000);
    assert_eq!(policy.filter, Some(FilterId(1)), "a filter keeps its place");
    assert_eq!(
        gateway.world.entry(&clients[1]).generation,
        before.generation
    );
    assert_eq!(
        gateway.world.entry(&clients[1]).state,
        SessionState::Forwarding
    );
    assert_eq!(gateway.level.load(Ordering::Relaxed), 2);
    let filters = gateway.served.get("/api/v1/filters").json();
    let names: Vec<_> = filters
        .as_array()
        .unwrap()
        .iter()
        .map(|it| &it["name"])
        .collect();
    assert_eq!(names, ["mail"]);

    let mut dora = [Client::new(4, 0, "dora", "explorer")];
    gateway.world.dial(&mut dora);
    gateway.settle(&mut dora);
    let again = gateway.in_force();
    assert_eq!(
        (&again["changes"], &again["sessions_changed"]),
        (&json!([]), &json!(0))
    );
    let metrics = gateway.served.request("GET", "/metrics", None, b"").body;
    assert!(
        metrics.contains("bng_config_reloads_total{result=\"applied\"} 2"),
        "{metrics}"
    );
}

#[test]
fn a_mistake_or_what_takes_a_restart_changes_nothing() {
    let text = with_policies();
    let mut gateway = Gateway::new("nothing", &text);
    let line = text
        .lines()
        .position(|line| line.contains("restart_ms"))
        .unwrap()
        + 1;
    for (from, to, expected) in [
        (
            "restart_ms",
            "restart_mss",
            format!("gateway.yaml:{line}:9: pppoe.lcp.restart_mss: unknown key"),
        ),
        (
            "filter: mail}",
            "filter: male}",
            "policies[0].filter".to_owned(),
        ),
        (
            "100.64.0.0/28",
            "100.64.0.0/33",
            "pools[0].ranges[0]".to_owned(),
        ),
    ] {
        gateway.write(
            &text
                .replace(from, to)
                .replace("rate_kbps: 1000", "rate_kbps: 5"),
        );
        let answer = gateway.reload("{}");
        assert_eq!(
            (answer.status, answer.error().as_str()),
            (422, "bad_configuration")
        );
        let detail = answer.json()["detail"].as_str().unwrap().to_owned();
        assert!(detail.contains(&expected), "{detail}");
    }
    gateway.write(
        &text
            .replace("workers: [1, 2]", "workers: [1, 2, 3]")
            .replace("rate_kbps: 1000", "rate_kbps: 5"),
    );
    let answer = gateway.reload("{}");
    assert_eq!(
        (answer.status, answer.error().as_str()),
        (409, "reload_refused")
    );
    assert!(
        answer
            .body
            .contains("dataplane.workers takes effect with a restart"),
        "{}",
        answer.body
    );
    let asked = gateway.reload(r#"{"dry_run": true}"#).json();
    assert!(
        asked["refused"]
            .as_str()
            .unwrap()
            .contains("dataplane.workers")
    );
    assert_eq!(gateway.reload(r#"{"dry": true}"#).status, 400);
    std::fs::remove_file(gateway.dir.join("gateway.yaml")).unwrap();
    assert_eq!(gateway.reload("{}").error(), "bad_configuration");

    let policies = gateway.served.get("/api/v1/policies").json();
    assert_eq!(policies[0]["up"]["rate_kbps"], 1000, "nothing has changed");
    let metrics = gateway.served.request("GET", "/metrics", None, b"").body;
    for (result, count) in [("applied", 0), ("refused", 1), ("failed", 4)] {
        let line = format!("bng_config_reloads_total{{result=\"{result}\"}} {count}");
        assert!(metrics.contains(&line), "{line}: {metrics}");
    }
    gateway.write(&text);
    let answer = gateway.reload("{}");
    assert_eq!(
        (answer.status, answer.error().as_str()),
        (503, "reload_not_now"),
        "no worker has seen the filters of the start yet"
    );
    gateway.settle(&mut []);
    assert_eq!(gateway.in_force()["changes"], json!([]));
}

#[test]
fn sessions_without_a_place_end_only_if_that_is_allowed() {
    let port = "device: net_null0}";
    let text = CONFIG.replace(
        port,
        "device: net_null0, vlans: [{s_vlan: none}, {s_vlan: 7}]}",
    );
    let mut gateway = Gateway::new("drops", &text);
    let mut clients = [
        Client::new(1, 0, "alice", "wonderland"),
        Client::new(2, 2, "bob", "builder"),
    ];
    gateway.world.dial(&mut clients);
    gateway.settle(&mut clients);

    gateway.write(&text.replace("{s_vlan: none}, ", ""));
    let answer = gateway.reload("{}");
    assert_eq!(
        (answer.status, answer.error().as_str()),
        (409, "reload_refused")
    );
    assert!(
        answer.body.contains("1 sessions are on VLANs"),
        "{}",
        answer.body
    );
    assert_eq!(gateway.world.sessions().total, 2);

    let gone = text.replace("    - {name: bob, password: builder}\n", "");
    gateway.write(&gone);
    let view = gateway.in_force();
    assert_eq!(
        (
            &view["sessions_of_removed_users"],
            &view["sessions_dropped"]
        ),
        (&json!(1), &json!(0))
    );
    gateway.settle(&mut clients);
    assert_eq!(gateway.world.sessions().total, 2, "bob goes on");

    gateway.write(&gone.replace("{s_vlan: none}, ", ""));
    let asked = gateway
        .reload(r#"{"dry_run": true, "allow_drops": true}"#)
        .json();
    assert_eq!(
        (&asked["sessions_unserved"], &asked["sessions_dropped"]),
        (&json!(1), &json!(1))
    );
    let answer = gateway.reload(r#"{"allow_drops": true}"#);
    assert_eq!(answer.json()["applied"], true, "{}", answer.body);
    gateway
        .world
        .until("the end", &mut clients, |world, clients| {
            clients[0].over && world.sessions().total == 1
        });
    let history = gateway.world.history();
    assert_eq!(
        (history.total, history.items[0].cause.as_str()),
        (1, "operator")
    );
    assert!(!clients[1].over);
}

/// Workers drop discovery on VLANs bng-dataplane was not started with.
#[test]
fn vlans_that_were_not_served_before_wait_for_the_dataplane_and_the_answer_says_so() {
    let port = "device: net_null0}";
    let with =
        |vlans: &str| CONFIG.replace(port, &format!("device: net_null0, vlans: [{vlans}]}}"));
    let mut gateway = Gateway::new("vlans", &with("{s_vlan: 7-9}, {s_vlan: 20}"));
    gateway.settle(&mut []);
    for (vlans, waits) in [
        ("{s_vlan: 7-9}", false),
        ("{s_vlan: 8, policy: default}, {s_vlan: 7}", false),
        ("{s_vlan: 7-9}", true),
        ("{s_vlan: 7-9, c_vlan: any}", true),
        ("{s_vlan: none}, {s_vlan: 7, c_vlan: any}", true),
        ("", true),
        ("{s_vlan: 300}", false),
    ] {
        gateway.write(&with(vlans));
        let asked = gateway.reload(r#"{"dry_run": true}"#).json();
        assert_eq!(asked["dataplane_restart"], waits, "{vlans}: {asked}");
        let view = gateway.in_force();
        assert_eq!(view["dataplane_restart"], waits, "{vlans}: {view}");
        gateway.settle(&mut []);
    }
}

#[test]
fn clients_that_keep_failing_are_shown_and_let_in_again() {
    let text = CONFIG.replace(
        "pppoe:\n",
        "pppoe:\n  lockout: {failures: 1, first_s: 600, longest_s: 600}\n",
    );
    let mut gateway = Gateway::new("lockout", &text);
    let mut clients = [Client::new(1, 0, "alice", "wrong")];
    clients[0].dial();
    gateway
        .world
        .until("refusal", &mut clients, |world, clients| {
            clients[0].refused.is_some() && world.history().total == 1
        });
    let shown = gateway.served.get("/api/v1/lockouts").json();
    assert_eq!(shown.as_array().unwrap().len(), 1, "{shown}");
    assert_eq!(
        (&shown[0]["mac"], &shown[0]["port"]),
        (&json!("02:c1:00:00:00:01"), &json!("access0"))
    );
    assert_eq!(shown[0]["failures"], 1);
    assert!(shown[0]["ms_left"].as_u64().unwrap() <= 600_000);
    let token = format!("Bearer {TOKEN}");
    let clear = |query: &str| {
        let path = format!("/api/v1/lockouts{query}");
        gateway.served.request("DELETE", &path, Some(&token), b"")
    };
    assert_eq!(clear("").error(), "bad_query");
    assert_eq!(clear("?circuit=x").json()["unlocked"], 0);
    assert_eq!(
        clear("?mac=2:c1:0:0:0:1&port=access0").json()["unlocked"],
        1
    );
    let shown = gateway.served.get("/api/v1/lockouts").json();
    assert_eq!(shown, json!([]));
}

#[test]
fn other_servers_take_over_and_requests_under_way_end_with_the_old_ones() {
    let (first, second, state) = (Server::new(), Server::new(), State::new());
    let port = radius::free_port();
    let slow = |server: &Server| {
        let text = radius::config(server, &state, port);
        text.replace("timeout_ms: 500", "timeout_ms: 20000")
    };
    let mut gateway = Gateway::new("radius", &slow(&first));
    let mut clients = Vec::from([
        Client::new(1, 0, "erin", "anything"),
        Client::new(2, 0, "frank", "anything"),
    ]);
    gateway.world.dial(&mut clients[..1]);
    let is_started = |_: &World, _: &[Client]| first.counts().accounting[0] == 1;
    gateway
        .world
        .until("the start", &mut clients[..1], is_started);
    gateway.settle(&mut clients[..1]);

    // The second one's question is with the first server, which takes its time.
    let silent = first.responder.lock();
    clients[1].dial();
    let is_asked = |world: &World, _: &[Client]| {
        let radius = world.status().radius.clone().unwrap();
        radius.servers[0].authentication.pending == 1
    };
    gateway.world.until("the question", &mut clients, is_asked);
    gateway.settle(&mut clients);
    gateway.write(&slow(&second));
    let view = gateway.in_force();
    let keys: Vec<_> = view["changes"].as_array().unwrap().iter().collect();
    assert!(keys.iter().all(|it| it["class"] == "live"), "{view}");

    clients.push(Client::new(3, 0, "grace", "anything"));
    gateway.world.dial(&mut clients[2..]);
    assert_eq!(second.counts().accepted, 1);
    assert!(!clients[1].up, "it waits for the first server");
    drop(silent);
    let is_up = |_: &World, clients: &[Client]| clients[1].up;
    gateway.world.until("its answer", &mut clients, is_up);
    assert_eq!((first.counts().accepted, second.counts().accepted), (2, 1));
    assert!(gateway.world.end(&clients[0]));
    let is_stopped = |_: &World, _: &[Client]| second.counts().accounting[1] == 1;
    gateway.world.until("the stop", &mut clients, is_stopped);
    assert_eq!(first.counts().accounting[1], 0);

    // Whom to ask is another question; whether to ask servers at all takes a restart.
    gateway.settle(&mut clients);
    let local = slow(&second).replace("backends: [local, radius]", "backends: [local]");
    gateway.write(&local);
    gateway.in_force();
    let mut henry = [Client::new(4, 0, "henry", "anything")];
    henry[0].dial();
    let is_refused = |_: &World, clients: &[Client]| clients[0].refused.is_some();
    gateway.world.until("the refusal", &mut henry, is_refused);
    assert_eq!(second.counts().accepted, 1, "nobody has asked");
    gateway.settle(&mut clients);
    let without = local.replace("  accounting: {interim_s: 0}\n", "");
    assert_ne!(without, local);
    gateway.write(&without);
    let answer = gateway.reload("{}");
    assert_eq!(answer.status, 409);
    assert!(answer.body.contains("radius.accounting"), "{}", answer.body);
}
