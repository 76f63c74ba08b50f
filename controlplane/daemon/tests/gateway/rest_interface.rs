//! REST, health and metrics over real sockets.

use std::net::SocketAddr;
use std::os::unix::fs::PermissionsExt;
use std::sync::Arc;

use bng_controlplane::reload::InForce;
use bng_controlplane::request::Link;
use bng_controlplane::rest::token::Token;
use bng_controlplane::rest::{self, Api};
use bng_shm::Counter;
use serde_json::Value;
use tokio::sync::oneshot;

use crate::client::Client;
use crate::world::{CONFIG, World};

pub(crate) const TOKEN: &str = "0123456789abcdef0123";

/// The servers, ended with the value.
pub(crate) struct Served {
    pub(crate) address: SocketAddr,
    _end: oneshot::Sender<()>,
    runtime: tokio::runtime::Runtime,
}

pub(crate) struct Answer {
    pub(crate) status: u16,
    pub(crate) body: String,
    challenge: bool,
}

impl Answer {
    pub(crate) fn json(&self) -> Value {
        serde_json::from_str(&self.body).unwrap_or_else(|e| panic!("{e}: {}", self.body))
    }

    pub(crate) fn error(&self) -> String {
        let json = self.json();
        assert!(json["detail"].as_str().is_some_and(|text| !text.is_empty()));
        json["error"].as_str().unwrap().to_owned()
    }
}

impl Served {
    fn new(link: Link, world: &World) -> Self {
        let in_force = Self::in_force(world, link.clone());
        Self::serve(link, in_force)
    }

    fn in_force(world: &World, link: Link) -> InForce {
        let name = format!("ctl-rest-{}-{:p}", std::process::id(), world);
        let path = std::env::temp_dir().join(name);
        std::fs::write(&path, format!("{TOKEN}\n")).unwrap();
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o600)).unwrap();
        let token = Token::read(&path).unwrap();
        std::fs::remove_file(&path).unwrap();
        InForce::new(
            "/nonexistent".into(),
            world.config.clone(),
            world.settings.clone(),
            token,
            link,
            Box::new(|_| ()),
        )
    }

    /// As the configuration in force is to be read again from a file.
    pub(crate) fn serve(link: Link, in_force: InForce) -> Self {
        Self::serve_with(link, in_force, rest::ListenLimits::default())
    }

    fn serve_with(link: Link, in_force: InForce, limits: rest::ListenLimits) -> Self {
        let api = Api {
            link,
            in_force: Arc::new(in_force),
        };
        let runtime = tokio::runtime::Runtime::new().unwrap();
        let (end, ended) = oneshot::channel();
        let address = runtime.block_on(async {
            let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
            let address = listener.local_addr().unwrap();
            let router = rest::router(api, true);
            tokio::spawn(rest::serve(listener, router, limits, async {
                let _ = ended.await;
            }));
            address
        });
        Self {
            address,
            _end: end,
            runtime,
        }
    }

    pub(crate) fn of(world: &World) -> Self {
        let link = Link::waiting("starting");
        link.set_up(world.handle());
        Self::new(link, world)
    }

    pub(crate) fn request(
        &self,
        method: &str,
        path: &str,
        token: Option<&str>,
        body: &[u8],
    ) -> Answer {
        self.request_as(method, path, token, body, "text/plain")
    }

    fn request_as(
        &self,
        method: &str,
        path: &str,
        token: Option<&str>,
        body: &[u8],
        kind: &str,
    ) -> Answer {
        let agent: ureq::Agent = ureq::Agent::config_builder()
            .http_status_as_error(false)
            .allow_non_standard_methods(true)
            .build()
            .into();
        let mut request = ureq::http::Request::builder()
            .method(method)
            .uri(format!("http://{}{path}", self.address))
            .header("Content-Type", kind);
        if let Some(token) = token {
            request = request.header("Authorization", token);
        }
        let mut answer = agent.run(request.body(body).unwrap()).unwrap();
        Answer {
            status: answer.status().as_u16(),
            challenge: answer.headers().contains_key("www-authenticate"),
            body: answer.body_mut().read_to_string().unwrap(),
        }
    }

    pub(crate) fn request_json(&self, method: &str, path: &str, token: &str, body: &str) -> Answer {
        self.request_as(
            method,
            path,
            Some(token),
            body.as_bytes(),
            "application/json",
        )
    }

    pub(crate) fn get(&self, path: &str) -> Answer {
        self.request("GET", path, Some(&format!("Bearer {TOKEN}")), b"")
    }

    fn items(&self, path: &str) -> (u64, Vec<String>) {
        let answer = self.get(path);
        assert_eq!(answer.status, 200, "{}", answer.body);
        let json = answer.json();
        let items = json["items"].as_array().unwrap().iter();
        let ids = items.map(|item| item["id"].as_str().unwrap().to_owned());
        (json["total"].as_u64().unwrap(), ids.collect())
    }
}

#[test]
fn every_path_but_health_metrics_and_description_wants_the_token() {
    let world = World::new(CONFIG);
    let served = Served::of(&world);
    let guarded = [
        "sessions",
        "sessions/access0-1",
        "sessions/history",
        "workers",
        "ports",
        "drops",
        "pools",
        "policies",
        "filters",
        "dataplane",
        "coalescing",
        "events",
        "traces",
        "traces/1",
        "traces/1/pcapng",
        "lockouts",
    ];
    for path in guarded.map(|path| format!("/api/v1/{path}")) {
        for token in [
            None,
            Some("Bearer wrong"),
            Some("Bearer "),
            Some(TOKEN),
            Some("Basic 0123456789abcdef0123"),
        ] {
            let answer = served.request("GET", &path, token, b"");
            assert_eq!(answer.status, 401, "{path} {token:?}");
            assert_eq!(answer.error(), "unauthorized");
            assert!(answer.challenge);
        }
    }
    for (method, path) in [
        ("DELETE", "/api/v1/sessions/access0-1"),
        ("PATCH", "/api/v1/sessions/access0-1"),
        ("PATCH", "/api/v1/sessions/access0-1/policy"),
        ("POST", "/api/v1/traces"),
        ("DELETE", "/api/v1/traces/1"),
        ("DELETE", "/api/v1/lockouts?port=access0"),
        ("POST", "/api/v1/reload"),
    ] {
        assert_eq!(served.request(method, path, None, b"{}").status, 401);
    }
    for open in ["/healthz", "/metrics", "/api/v1/openapi.json"] {
        assert_eq!(served.request("GET", open, None, b"").status, 200, "{open}");
    }
}

#[test]
fn limits_of_a_live_session_are_changed() {
    let mut world = World::new(CONFIG);
    let mut clients = [Client::new(1, 0, "alice", "wonderland")];
    world.dial(&mut clients);
    let served = Served::of(&world);
    let token = format!("Bearer {TOKEN}");
    let session = format!("/api/v1/sessions/access0-{}", clients[0].session_id);
    let change = |body: &str| served.request_json("PATCH", &session, &token, body);
    let answer = change(r#"{"session_timeout_s": 600, "quota_mib": 5}"#);
    assert_eq!(answer.status, 200, "{}", answer.body);
    let left = answer.json()["ppp"]["session_time_left_s"]
        .as_u64()
        .unwrap();
    assert!((580..=600).contains(&left), "{left}");
    let answer = change(r#"{"session_timeout_s": null}"#);
    assert_eq!(answer.json()["ppp"]["session_time_left_s"], Value::Null);
    for wrong in ["{}", r#"{"quota_mib": 0}"#, r#"{"quota": 1}"#, "[]"] {
        assert_eq!(change(wrong).status, 400, "{wrong}");
    }
    let nobody = "/api/v1/sessions/access0-65000";
    let answer = served.request_json("PATCH", nobody, &token, r#"{"quota_mib": 1}"#);
    assert_eq!(answer.status, 404);
}

#[test]
fn sessions_are_filtered_paged_shown_and_ended() {
    let mut world = World::new(CONFIG);
    let mut clients = [
        Client::new(1, 0, "alice", "wonderland"),
        Client::new(2, 2, "bob", "builder"),
        Client::new(3, 0, "alice", "wonderland"),
    ];
    world.dial(&mut clients);
    let served = Served::of(&world);
    let id = |client: &Client| {
        let port = if client.port == 0 {
            "access0"
        } else {
            "access1"
        };
        format!("{port}-{}", client.session_id)
    };

    let (total, all) = served.items("/api/v1/sessions");
    assert_eq!((total, all.len()), (3, 3));
    let (total, page) = served.items("/api/v1/sessions?limit=2&offset=1");
    assert_eq!((total, page.as_slice()), (3, &all[1..]));
    let bob = id(&clients[1]);
    for filter in [
        "user=bob".to_owned(),
        "port=access1".to_owned(),
        "mac=02:C1:0:0:0:02".to_owned(),
        format!("ip={}&state=forwarding", clients[1].address.unwrap()),
        format!("session_id={}&port=access1", clients[1].session_id),
        "pool=home&policy=default&s_vlan=0&c_vlan=0&user=bob".to_owned(),
    ] {
        let (total, found) = served.items(&format!("/api/v1/sessions?{filter}"));
        assert_eq!((total, found), (1, vec![bob.clone()]), "{filter}");
    }
    assert_eq!(
        served.items("/api/v1/sessions?user=alice&port=access1").0,
        0
    );
    for nobody in ["s_vlan=7", "c_vlan=7", "circuit=olt", "remote=r", "user=bo"] {
        assert_eq!(served.items(&format!("/api/v1/sessions?{nobody}")).0, 0);
    }
    for bad in [
        "pool=hom",
        "policy=gold",
        "s_vlan=4095",
        "session_id=65536",
        "limit=0",
        "limit=1001",
        "limit=x",
        "ip=1.2.3",
        "mac=02",
        "port=core0",
        "state=up",
        "usr=alice",
    ] {
        let answer = served.get(&format!("/api/v1/sessions?{bad}"));
        assert_eq!(answer.status, 400, "{bad}: {}", answer.body);
        assert_eq!(answer.error(), "bad_query");
    }

    let shown = served.get(&format!("/api/v1/sessions/{bob}")).json();
    assert_eq!(shown["user"], "bob");
    assert_eq!(shown["ppp"]["lcp"], "Opened");
    assert_eq!(shown["ppp"]["auth_protocol"], "pap");
    assert!(
        shown["ppp"]["next_echo_s"]
            .as_u64()
            .is_some_and(|left| left <= 1)
    );
    assert_eq!(shown["ppp"]["idle_time_left_s"], Value::Null);
    for nobody in [
        "access0-0",
        "core0-1",
        "access0",
        "nonsense-x",
        "access1-70000",
    ] {
        let answer = served.get(&format!("/api/v1/sessions/{nobody}"));
        assert_eq!(answer.status, 404, "{nobody}");
        assert_eq!(answer.error(), "no_such_session");
    }

    let token = format!("Bearer {TOKEN}");
    let path = format!("/api/v1/sessions/{bob}");
    assert_eq!(
        served.request("DELETE", &path, Some(&token), b"").status,
        202
    );
    world.until("the end", &mut clients, |world, clients| {
        clients[1].over && world.sessions().total == 2
    });
    assert_eq!(
        served.request("DELETE", &path, Some(&token), b"").status,
        404
    );
    let history = served.get("/api/v1/sessions/history?limit=1").json();
    assert_eq!(history["items"][0]["id"], bob);
    assert_eq!(history["items"][0]["cause"], "operator");
    let ended = history["items"][0]["ended_unix_ms"].as_u64().unwrap();
    let found = |query: &str| served.items(&format!("/api/v1/sessions/history?{query}")).0;
    assert_eq!(
        found("user=bob&cause=operator&was_up=true&mac=2:c1:0:0:0:2"),
        1
    );
    assert_eq!(found(&format!("since={ended}&until={}", ended + 1)), 1);
    for nobody in ["user=alice", "cause=dead_peer", "was_up=false"] {
        assert_eq!(found(nobody), 0, "{nobody}");
    }
    assert_eq!(found(&format!("since={}", ended + 1)), 0);
    for bad in ["cause=nonsense", "was_up=1", "since=-1", "state=closing"] {
        let answer = served.get(&format!("/api/v1/sessions/history?{bad}"));
        assert_eq!(
            (answer.status, answer.error().as_str()),
            (400, "bad_query"),
            "{bad}"
        );
    }
}

#[test]
fn the_state_of_the_rest_is_shown() {
    let mut world = World::new(CONFIG);
    let mut clients = [Client::new(1, 0, "alice", "wonderland")];
    world.dial(&mut clients);
    world.worker(1).count(Counter::NoRoute, 7);
    let served = Served::of(&world);
    let workers = served.get("/api/v1/workers").json();
    assert_eq!(workers.as_array().unwrap().len(), 3);
    assert_eq!(
        (&workers[2]["worker"], &workers[1]["drops"]),
        (&"host".into(), &7.into())
    );
    let drops = served.get("/api/v1/drops").json();
    let no_route = drops
        .as_array()
        .unwrap()
        .iter()
        .find(|d| d["reason"] == "no_route");
    assert_eq!(no_route.unwrap()["workers"], serde_json::json!([0, 7]));
    let ports = served.get("/api/v1/ports").json();
    assert_eq!(ports[2]["mac"], "02:ac:00:00:02:01");
    assert_eq!(ports[2]["steering_reason"], "the port offers nothing");
    assert_eq!(ports[2]["offloads"], serde_json::json!(["rss"]));
    let pools = served.get("/api/v1/pools").json();
    assert_eq!(pools["address"][0]["used"], 1);
    assert_eq!(pools["address"][0]["nat"], "out");
    let metrics = served.request("GET", "/metrics", None, b"").body;
    for line in [
        r#"bng_sessions{state="forwarding"} 1"#,
        r#"bng_drops_total{reason="no_route",worker="1"} 7"#,
        r#"bng_pppoe_outcomes_total{outcome="ipcp_opened"} 1"#,
        r#"bng_pool_addresses{pool="home",state="used"} 1"#,
        "bng_dataplane_up 1",
        "bng_policies 1",
        r#"bng_port_info{driver="test",offloads="rss",port="access0",role="access",steering="hand-over"} 1"#,
    ] {
        assert!(metrics.lines().any(|it| it == line), "{line}\n{metrics}");
    }
}

#[test]
fn coalescing_is_shown_with_its_settings_its_ratio_and_its_reasons() {
    let config = CONFIG.replace(
        "  ports:\n",
        "  coalescing: {upstream: {tcp: true}, hold_us: 20, verify_checksums: false}\n  ports:\n",
    );
    let mut world = World::new(&config);
    world.segmenting_port(1, "handed to the peer");
    for (counter, value) in [
        (Counter::CoalesceFrames, 40),
        (Counter::CoalesceMerged, 36),
        (Counter::CoalesceSingle, 4),
        (Counter::CoalesceSupers, 3),
        (Counter::CoalesceSegments16, 3),
        (Counter::SuperSent, 3),
        (Counter::PassPush, 2),
        (Counter::EndHold, 7),
    ] {
        world.worker(1).count(counter, value);
    }
    world.worker(0).count(Counter::EndHold, 1);
    let served = Served::of(&world);
    let shown = served.get("/api/v1/coalescing").json();
    assert_eq!(
        shown["settings"],
        serde_json::json!({
            "on": true, "upstream": {"tcp": true, "udp": false}, "downstream": {"tcp": false, "udp": false},
            "ipv4": true, "ipv6": true, "hold_us": 20, "max_frames": 64, "verify_checksums": false
        })
    );
    assert_eq!(
        shown["ports"][1],
        serde_json::json!({
            "name": "core0", "role": "core", "coalescing": true, "segmentation": "port",
            "segmentation_reason": "handed to the peer", "twin_offloads": true
        })
    );
    assert_eq!(shown["ports"][0]["segmentation"], "software");
    assert_eq!(shown["total"]["frames_per_super_packet"], 12.0);
    assert_eq!(shown["total"]["candidates"], 40);
    assert_eq!(shown["total"]["sent_to_port"], 3);
    assert_eq!(
        shown["total"]["sizes"][3],
        serde_json::json!({"up_to": 16, "super_packets": 3})
    );
    assert_eq!(shown["workers"][0]["frames_per_super_packet"], Value::Null);
    assert_eq!(shown["workers"][1]["merged"], 36);
    let reason = |list: &str, label: &str| {
        let mut all = shown[list].as_array().unwrap().iter();
        all.find(|it| it["reason"] == label).unwrap()["workers"].clone()
    };
    assert_eq!(reason("passed", "pass_push"), serde_json::json!([0, 2]));
    assert_eq!(reason("ended", "end_hold"), serde_json::json!([1, 7]));
    let ports = served.get("/api/v1/ports").json();
    assert_eq!(ports[1]["segmentation"], "port");
    assert_eq!(ports[1]["segmentation_reason"], "handed to the peer");
}

#[test]
fn health_names_what_is_missing() {
    let mut world = World::new(CONFIG);
    let served = Served::of(&world);
    let health = || served.request("GET", "/healthz", None, b"");
    let component = |json: &Value, name: &str| {
        let mut all = json["components"].as_array().unwrap().iter();
        let found = all.find(|it| it["name"] == name).unwrap();
        found["status"].as_str().unwrap().to_owned()
    };
    let answer = health();
    assert_eq!(answer.status, 200);
    let json = answer.json();
    assert_eq!(component(&json, "bng-dataplane"), "ok");
    assert_eq!(component(&json, "driver"), "ok");
    assert_eq!(component(&json, "port access1"), "ok");
    // No netlink watcher runs in this test.
    assert_eq!(component(&json, "routes"), "degraded");

    world.kill_dataplane();
    let json = loop {
        let json = health().json();
        if component(&json, "bng-dataplane") != "ok" {
            break json;
        }
    };
    assert_eq!(json["status"], "degraded");
    assert!(json.to_string().contains("bng-dataplane is not running"));

    world.stop_control();
    let answer = health();
    assert_eq!(answer.status, 503);
    assert_eq!(component(&answer.json(), "driver"), "fail");
    assert_eq!(served.get("/api/v1/sessions").error(), "driver_gone");
}

#[test]
fn without_shared_memory_the_reason_is_told() {
    let world = World::asleep(CONFIG);
    let reason = "shared memory /x: ABI version is 2 there and 1 here";
    let served = Served::new(Link::waiting(reason), &world);
    let answer = served.request("GET", "/healthz", None, b"");
    assert_eq!(answer.status, 503);
    assert!(answer.body.contains(reason));
    let answer = served.get("/api/v1/workers");
    assert_eq!(
        (answer.status, answer.error()),
        (503, "not_ready".to_owned())
    );
    assert!(answer.body.contains(reason));
}

#[test]
fn a_policy_is_changed_shown_and_counted() {
    let config = CONFIG.replace(
        "\npools:\n",
        "\npolicies: [{name: gold, up: {rate_kbps: 1000}}, {name: tin, filter: mail}]\nfilters: [{name: mail, other_up: drop, up: [{action: accept, remote: 198.51.100.0/24}]}]\npools:\n",
    );
    let mut world = World::new(&config);
    let mut clients = [Client::new(1, 0, "alice", "wonderland")];
    world.dial(&mut clients);
    // Workers go on meanwhile, in another thread.
    let workers = world.workers_by_themselves();
    let served = Served::of(&world);
    let token = format!("Bearer {TOKEN}");
    let session = format!("/api/v1/sessions/access0-{}", clients[0].session_id);
    let change =
        |body: &str| served.request_json("PATCH", &format!("{session}/policy"), &token, body);
    let answer = change(r#"{"policy": "gold"}"#);
    assert_eq!(answer.status, 200, "{}", answer.body);
    let policy = answer.json();
    assert_eq!(policy["name"], "gold");
    assert_eq!(
        policy["up"],
        serde_json::json!({"rate_kbps": 1000, "burst_bytes": 12_500})
    );
    let answer = change(r#"{"up": null, "filter": "mail", "source_check": false}"#);
    assert_eq!(answer.json()["name"], Value::Null);
    let shown = served.get(&session).json();
    assert_eq!(shown["policy"], answer.json());
    assert_eq!(shown["policy"]["filter"], "mail");
    assert_eq!(shown["policy"]["by_operator"], true);

    assert_eq!(change(r#"{"policy": "tin"}"#).status, 200);
    let policies = served.get("/api/v1/policies").json();
    let sessions = |name: &str| {
        let mut all = policies.as_array().unwrap().iter();
        all.find(|it| it["name"] == name).unwrap()["sessions"].clone()
    };
    assert_eq!((sessions("gold"), sessions("tin")), (0.into(), 1.into()));
    let filters = served.get("/api/v1/filters").json();
    assert_eq!(filters[0]["sessions"], 1);
    assert_eq!(filters[0]["other_up"], "drop");
    assert_eq!(filters[0]["up"][0]["remote"], "198.51.100.0/24");

    for (body, status, error) in [
        (r#"{"policy": "lead"}"#, 400, "bad_body"),
        (r#"{"up": {"rate_kbps": 0}}"#, 400, "bad_body"),
        ("{", 400, "bad_body"),
        ("{}", 400, "bad_body"),
    ] {
        let answer = change(body);
        assert_eq!(
            (answer.status, answer.error().as_str()),
            (status, error),
            "{body}"
        );
    }
    let nobody = "/api/v1/sessions/access0-65000/policy";
    let answer = served.request_json("PATCH", nobody, &token, r#"{"policy": "gold"}"#);
    assert_eq!(
        (answer.status, answer.error().as_str()),
        (404, "no_such_session")
    );
    workers.stop();
}

#[test]
fn metrics_have_no_series_per_session() {
    let mut world = World::new(CONFIG);
    let served = Served::of(&world);
    let names = || {
        let text = served.request("GET", "/metrics", None, b"").body;
        let series = text.lines().filter(|line| !line.starts_with('#'));
        let names = series.map(|line| line.rsplit_once(' ').unwrap().0.to_owned());
        names.collect::<std::collections::BTreeSet<_>>()
    };
    let before = names();
    let mut clients = [
        Client::new(1, 0, "alice", "wonderland"),
        Client::new(2, 0, "bob", "builder"),
    ];
    world.dial(&mut clients);
    assert_eq!(names(), before);
}

#[test]
fn what_does_not_exist_or_is_too_large_is_refused_in_json() {
    let world = World::new(CONFIG);
    let served = Served::of(&world);
    let token = format!("Bearer {TOKEN}");
    let answer = served.get("/api/v2/sessions");
    assert_eq!(
        (answer.status, answer.error()),
        (404, "no_such_path".to_owned())
    );
    let answer = served.get("/api/v1/sessions/%ff");
    assert_eq!(
        (answer.status, answer.error()),
        (400, "bad_query".to_owned())
    );
    let answer = served.request("PUT", "/api/v1/workers", Some(&token), b"");
    assert_eq!(
        (answer.status, answer.error()),
        (405, "method_not_allowed".to_owned())
    );
    let answer = served.request(
        "DELETE",
        "/api/v1/sessions/access0-1",
        Some(&token),
        &[b'x'; 20_000],
    );
    assert_eq!(
        (answer.status, answer.error()),
        (413, "body_too_large".to_owned())
    );
}

/// What operators read about this interface.
const DOCUMENT: &str = include_str!("../../../../docs/rest.md");

#[test]
fn every_metric_is_documented() {
    let world = World::new(CONFIG);
    let served = Served::of(&world);
    let metrics = served.request("GET", "/metrics", None, b"").body;
    let types = metrics
        .lines()
        .filter_map(|line| line.strip_prefix("# TYPE "));
    let names: Vec<_> = types.map(|line| line.split(' ').next().unwrap()).collect();
    assert!(names.len() > 10, "{names:?}");
    for name in names {
        assert!(DOCUMENT.contains(&format!("`{name}`")), "{name}");
    }
}

#[test]
fn the_description_lists_every_path() {
    let world = World::new(CONFIG);
    let served = Served::of(&world);
    let description = served
        .request("GET", "/api/v1/openapi.json", None, b"")
        .json();
    let paths = description["paths"].as_object().unwrap();
    let listed: Vec<_> = paths.keys().map(String::as_str).collect();
    assert_eq!(
        listed,
        [
            "/api/v1/coalescing",
            "/api/v1/dataplane",
            "/api/v1/drops",
            "/api/v1/events",
            "/api/v1/filters",
            "/api/v1/lockouts",
            "/api/v1/nat/who",
            "/api/v1/policies",
            "/api/v1/pools",
            "/api/v1/ports",
            "/api/v1/radius",
            "/api/v1/reload",
            "/api/v1/sessions",
            "/api/v1/sessions/history",
            "/api/v1/sessions/{id}",
            "/api/v1/sessions/{id}/policy",
            "/api/v1/traces",
            "/api/v1/traces/{id}",
            "/api/v1/traces/{id}/pcapng",
            "/api/v1/workers"
        ]
    );
    for (path, methods) in paths {
        for method in methods.as_object().unwrap().keys() {
            let line = format!("`{} {path}`", method.to_uppercase());
            assert!(DOCUMENT.contains(&line), "{line}");
        }
    }
    assert!(paths["/api/v1/sessions/{id}"]["delete"].is_object());
    assert!(description["components"]["schemas"]["Error"].is_object());
    assert!(served.runtime.metrics().num_workers() > 0);
}

#[test]
fn who_asks_for_nothing_keeps_no_place_from_those_who_ask() {
    use std::io::{Read, Write};
    let world = World::new(CONFIG);
    let link = Link::waiting("starting");
    link.set_up(world.handle());
    let limits = rest::ListenLimits {
        connections: 8,
        head: std::time::Duration::from_millis(300),
    };
    let in_force = Served::in_force(&world, link.clone());
    let served = Served::serve_with(link, in_force, limits);
    let mut silent: Vec<_> = (0..40)
        .map(|n| {
            let mut stream = std::net::TcpStream::connect(served.address).unwrap();
            if n % 2 == 0 {
                let head = b"GET /healthz HTTP/1.1\r\nHost: x\r\n";
                stream.write_all(head).unwrap();
            }
            stream
        })
        .collect();
    // All places are taken, and 32 more wait for one in front of this request.
    assert_eq!(served.request("GET", "/healthz", None, b"").status, 200);
    for stream in &mut silent {
        // Perhaps with a word why: the end is what counts.
        let _ = stream.read_to_end(&mut Vec::new());
    }
    // One that has asked once and asks no more is ended as well.
    let mut idle = std::net::TcpStream::connect(served.address).unwrap();
    idle.write_all(b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n")
        .unwrap();
    let mut said = Vec::new();
    let _ = idle.read_to_end(&mut said);
    assert!(said.starts_with(b"HTTP/1.1 200"));
}
