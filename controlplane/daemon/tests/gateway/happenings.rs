//! The stream of events and the traces, over real sockets.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::time::Duration;

use serde_json::{Value, json};

use crate::client::Client;
use crate::rest_interface::{Served, TOKEN};
use crate::world::{CONFIG, World};

/// A stream of events as its reader gets it.
struct Stream(BufReader<TcpStream>);

impl Stream {
    /// Opens a stream; the status is that of the answer.
    fn open(served: &Served, last: Option<&str>) -> (u16, Self) {
        let mut socket = TcpStream::connect(served.address).unwrap();
        let limit = Some(Duration::from_secs(30));
        socket.set_read_timeout(limit).unwrap();
        let last = last.map_or_else(String::new, |id| format!("Last-Event-ID: {id}\r\n"));
        write!(
            socket,
            "GET /api/v1/events HTTP/1.1\r\nHost: x\r\nConnection: close\r\nAuthorization: Bearer {TOKEN}\r\n{last}\r\n"
        )
        .unwrap();
        let mut stream = Self(BufReader::new(socket));
        let status = stream.line();
        let status = status.split(' ').nth(1).unwrap().parse().unwrap();
        while !stream.line().is_empty() {}
        (status, stream)
    }

    fn line(&mut self) -> String {
        let mut line = String::new();
        self.0.read_line(&mut line).unwrap();
        line.trim_end().to_owned()
    }

    /// The next event: its name, its id and its data.
    fn next(&mut self) -> (String, String, Value) {
        let (mut event, mut id) = (String::new(), String::new());
        loop {
            let line = self.line();
            let value = |name: &str| Some(line.strip_prefix(name)?.trim_start().to_owned());
            event = value("event:").unwrap_or(event);
            id = value("id:").unwrap_or(id);
            if let Some(data) = value("data:") {
                return (event, id, serde_json::from_str(&data).unwrap());
            }
        }
    }
}

#[test]
fn whoever_listens_hears_of_sessions_and_refusals_and_can_come_back() {
    let mut world = World::new(CONFIG);
    let served = Served::of(&world);
    let (status, mut stream) = Stream::open(&served, None);
    assert_eq!(status, 200);
    let mut clients = [
        Client::new(1, 0, "alice", "wonderland"),
        Client::new(2, 0, "bob", "wrong"),
    ];
    world.dial(&mut clients[..1]);
    clients[1].dial();
    world.until("refusal", &mut clients, |_, clients| {
        clients[1].refused.is_some()
    });
    let (event, first, up) = stream.next();
    assert_eq!(event, "session_up");
    assert_eq!(up["event"], "session_up");
    assert_eq!(up["id"], format!("access0-{}", clients[0].session_id));
    assert_eq!(up["user"], "alice");
    assert_eq!(up["mac"], "02:c1:00:00:00:01");
    assert_eq!(up["framed_ip"], clients[0].address.unwrap().to_string());
    assert!(up["unix_ms"].as_u64().is_some_and(|at| at > 0));
    let (event, refused, failure) = stream.next();
    assert_eq!(event, "auth_failure");
    assert_eq!(failure["cause"], "wrong_password");
    assert_eq!(
        (&failure["user"], &failure["port"]),
        (&json!("bob"), &json!("access0"))
    );

    assert!(world.end(&clients[0]));
    world.until("the end", &mut clients, |world, _| {
        world.sessions().total == 0
    });
    // Bob's session ends too, before or after.
    let mut ended = [stream.next(), stream.next()].map(|(event, _, data)| {
        assert_eq!(event, "session_down");
        (
            data["user"].clone(),
            data["cause"].clone(),
            data["was_up"].clone(),
        )
    });
    ended.sort_by_key(|(user, ..)| user.to_string());
    assert_eq!(ended[0], (json!("alice"), json!("operator"), json!(true)));
    assert_eq!(ended[1].2, json!(false));

    let (_, mut back) = Stream::open(&served, Some(&first));
    assert_eq!(back.next().1, refused, "what came after the one named");
    let (_, mut stranger) = Stream::open(&served, Some("0-9"));
    assert_eq!(stranger.next().1, first, "all there is");

    world.kill_dataplane();
    let (event, ..) = stream.next();
    assert_eq!(event, "dataplane_down");
    let status = world.status();
    let told: Vec<_> = status.feed.events.iter().map(|it| it.1).collect();
    assert_eq!((told[0], told[1], told[2], told[4]), (1, 2, 1, 1));
    assert_eq!(status.feed.streams, 3);
    world.stop_control();
    let mut rest = String::new();
    stream.0.read_to_string(&mut rest).unwrap();
    assert!(
        rest.ends_with("0\r\n\r\n"),
        "the stream ends, whole: {rest:?}"
    );
}

#[test]
fn streams_are_bounded_in_number() {
    let world = World::new(CONFIG);
    let served = Served::of(&world);
    let mut open = Vec::new();
    let refused = loop {
        let (status, stream) = Stream::open(&served, None);
        if status != 200 {
            break status;
        }
        open.push(stream);
        assert!(open.len() <= 16);
    };
    assert_eq!((refused, open.len()), (503, 16));
    let answer = served.get("/api/v1/events");
    assert_eq!(answer.error(), "too_many_streams");
}

#[test]
fn a_subscriber_is_traced_from_its_first_padi_and_no_password_is_seen() {
    let mut world = World::new(CONFIG);
    let served = Served::of(&world);
    let token = format!("Bearer {TOKEN}");
    let start = |body: &str| served.request_json("POST", "/api/v1/traces", &token, body);
    for bad in [
        "{}",
        r#"{"mac": "02"}"#,
        r#"{"frames": 0, "all": true}"#,
        r#"{"seconds": 86401, "all": true}"#,
        r#"{"usr": "x"}"#,
        r#"{"port": "core0"}"#,
        "{",
    ] {
        let answer = start(bad);
        assert_eq!(
            (answer.status, answer.error().as_str()),
            (400, "bad_body"),
            "{bad}"
        );
    }
    let answer = start(r#"{"mac": "02:c1:0:0:0:1"}"#);
    assert_eq!(answer.status, 201, "{}", answer.body);
    let id = answer.json()["id"].as_u64().unwrap();
    let secret = start(r#"{"all": true, "with_passwords": true}"#).json()["id"].clone();
    let mut clients = [
        Client::new(1, 0, "alice", "wonderland"),
        Client::new(2, 2, "bob", "builder"),
    ];
    world.dial(&mut clients);
    let shown = served.get(&format!("/api/v1/traces/{id}")).json();
    assert_eq!(shown["running"], true);
    let lines = shown["lines"].as_array().unwrap();
    let text = |line: &Value| line["text"].as_str().unwrap().to_owned();
    let said: Vec<_> = lines.iter().map(text).collect();
    assert!(said[0].starts_with("02:c1:00:00:00:01 > ff:ff:ff:ff:ff:ff PADI, Service-Name"));
    assert_eq!(
        (&lines[0]["direction"], &lines[1]["direction"]),
        (&json!("up"), &json!("down"))
    );
    assert!(said[1].contains("PADO"), "{said:?}");
    for words in [
        "PAP Authenticate-Request id",
        "user \"alice\", password of 10 bytes",
        "LCP Configure-Ack",
        "IPCP Configure-Nak",
    ] {
        assert!(
            said.iter().any(|line| line.contains(words)),
            "{words}: {said:?}"
        );
    }
    assert!(!said.iter().any(|line| line.contains("02:c1:00:00:00:02")));

    let pcapng = |id: &str| {
        let mut answer = ureq::get(format!(
            "http://{}/api/v1/traces/{id}/pcapng",
            served.address
        ))
        .header("Authorization", &token)
        .call()
        .unwrap();
        answer.body_mut().read_to_vec().unwrap()
    };
    let has = |file: &[u8], word: &[u8]| file.windows(word.len()).any(|part| part == word);
    let file = pcapng(&id.to_string());
    assert_eq!(file[..4], [0x0a, 0x0d, 0x0d, 0x0a]);
    assert!(has(&file, b"alice") && !has(&file, b"wonderland") && !has(&file, b"bob"));
    let file = pcapng(&secret.to_string());
    assert!(has(&file, b"wonderland") && has(&file, b"builder"));

    let listed = served.get("/api/v1/traces").json();
    assert_eq!(listed.as_array().unwrap().len(), 2);
    let path = format!("/api/v1/traces/{id}");
    assert_eq!(
        served.request("DELETE", &path, Some(&token), b"").status,
        204
    );
    for gone in [
        path.as_str(),
        "/api/v1/traces/x",
        "/api/v1/traces/99/pcapng",
    ] {
        let answer = served.get(gone);
        assert_eq!(
            (answer.status, answer.error().as_str()),
            (404, "no_such_trace"),
            "{gone}"
        );
    }
    for _ in 0..7 {
        assert_eq!(start(r#"{"user": "bob"}"#).status, 201);
    }
    let answer = start(r#"{"user": "bob"}"#);
    assert_eq!(
        (answer.status, answer.error().as_str()),
        (409, "too_many_traces")
    );
}
