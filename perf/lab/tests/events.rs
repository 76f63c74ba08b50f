//! What happens to a real client, as operators hear of it: the stream of events, its replay, and the history, over REST and by
//! `bngctl`.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod running_gateway;

use std::time::Duration;

use bng_lab::{Daemon, Event, GatewayConfig, Lab, Programs, addresses, pppd_status, wait_until};
use running_gateway::{LIMIT, PASSWORD, USER, wait_for_sessions};
use serde_json::Value;

const LINK: &str = "wan";
const MAC: &str = "02:00:00:00:00:11";
/// For a stream as long as a test may take.
const STREAM_LIMIT: Duration = Duration::from_secs(300);

/// A lab whose history outlives the control plane.
fn started(mut config: GatewayConfig) -> Lab {
    let mut lab = Lab::create(Programs::of_workspace(), &config).unwrap();
    config.more = format!("state_directory: {}/state\n", lab.dir().display());
    lab.configure(&config).unwrap();
    lab.start_www().unwrap();
    lab.start(Daemon::Dataplane).unwrap();
    lab.start(Daemon::Controlplane).unwrap();
    lab.boot_client().unwrap();
    lab
}

/// Dials and pings; returns the session's id and the client's address.
fn dial_and_ping(lab: &mut Lab, pings: u32) -> (String, String) {
    let client = lab.client().unwrap();
    let link = client.dial(LINK, USER, PASSWORD, "", LIMIT).unwrap();
    let id = wait_for_sessions(lab, 1).into_keys().next().unwrap();
    ping(lab, pings);
    (id, link.local)
}

fn ping(lab: &mut Lab, pings: u32) {
    let ping = format!("busybox ping -c {pings} -i 0.2 {}", addresses::WWW);
    let text = lab.client().unwrap().sh(&ping, LIMIT).unwrap();
    assert!(text.contains(" 0% packet loss"), "{text}");
}

fn history(lab: &Lab, query: &str) -> Vec<Value> {
    let page = lab
        .api()
        .get(&format!("/api/v1/sessions/history{query}"))
        .unwrap();
    page["items"].as_array().unwrap().clone()
}

/// The event without what it has beyond the session: as the history shows it.
fn session_of(event: &Event) -> Value {
    let mut session = event.data.clone();
    let fields = session.as_object_mut().unwrap();
    fields.remove("event");
    fields.remove("unix_ms");
    session
}

fn names(events: &[Event]) -> Vec<(&str, &str)> {
    events
        .iter()
        .map(|it| (it.name.as_str(), it.text("cause")))
        .collect()
}

#[test]
fn a_dial_a_wrong_password_and_hanging_up_at_either_end_are_told_in_order_and_told_again() {
    let mut lab = started(GatewayConfig::default());
    let mut stream = lab.api().events(None, STREAM_LIMIT).unwrap();

    let (first, address) = dial_and_ping(&mut lab, 5);
    let client = lab.client().unwrap();
    client.hang_up(LINK, LIMIT).unwrap();
    wait_for_sessions(&lab, 0);
    let client = lab.client().unwrap();
    let status = client.dial_refused(LINK, USER, "looking-glass", "", LIMIT);
    assert_eq!(status.unwrap(), pppd_status::AUTH_FAILED);
    wait_for_sessions(&lab, 0);
    let (last, _) = dial_and_ping(&mut lab, 3);
    let path = format!("/api/v1/sessions/{last}");
    lab.api().delete(&path).unwrap();
    let status = lab.client().unwrap().wait_link_end(LINK, LIMIT).unwrap();
    assert_eq!(status, pppd_status::ENDED_BY_PEER);
    wait_for_sessions(&lab, 0);

    let told = stream.take(6).unwrap();
    assert_eq!(
        names(&told),
        [
            ("session_up", ""),
            ("session_down", "peer_terminated"),
            ("auth_failure", "wrong_password"),
            ("session_down", "wrong_credentials"),
            ("session_up", ""),
            ("session_down", "operator"),
        ]
    );
    for event in &told {
        assert_eq!((event.text("user"), event.text("mac")), (USER, MAC));
        assert_eq!(event.text("event"), event.name);
    }
    let times: Vec<_> = told.iter().map(|it| it.data["unix_ms"].as_u64()).collect();
    assert!(times.is_sorted(), "{times:?}");
    assert_eq!(told[0].text("id"), first);
    assert_eq!(told[0].text("framed_ip"), address);
    assert_eq!(told[1].text("id"), first);
    assert_eq!(told[2].text("id"), told[3].text("id"));
    assert_eq!(told[5].text("id"), last);
    for (event, was_up, packets) in [(1, true, 5), (3, false, 0), (5, true, 3)] {
        let data = &told[event].data;
        assert_eq!(data["was_up"], was_up, "{data}");
        assert_eq!(data["upstream_packets"], packets, "{data}");
        assert_eq!(data["downstream_packets"], packets, "{data}");
    }

    // Whoever comes back gets what it missed, and nothing twice.
    let mut again = lab.api().events(Some(&told[1].id), STREAM_LIMIT).unwrap();
    assert_eq!(again.take(4).unwrap(), told[2..]);

    // The history says the same, the latest first.
    let ended: Vec<_> = [5, 3, 1].map(|at| session_of(&told[at])).to_vec();
    assert_eq!(history(&lab, ""), ended);
    assert_eq!(history(&lab, "?was_up=false"), ended[1..2]);
    assert_eq!(history(&lab, "?cause=peer_terminated"), ended[2..]);

    // And so does bngctl.
    let mut follower = lab
        .start_bngctl("bngctl", &["events", "--json", "--since", &told[1].id])
        .unwrap();
    let all = |text: &String| text.matches('\n').count() >= 4;
    let text = wait_until("4 events", LIMIT, || follower.output(), all).unwrap();
    let lines: Vec<Value> = text
        .lines()
        .map(|line| serde_json::from_str(line).unwrap())
        .collect();
    let data: Vec<Value> = told[2..].iter().map(|it| it.data.clone()).collect();
    assert_eq!(lines, data);
    let refused = lab
        .start_bngctl(
            "refused",
            &["events", "--since", "0", "--only", "auth_failure"],
        )
        .unwrap();
    let one = |text: &String| text.ends_with('\n');
    let line = wait_until("a refusal", LIMIT, || refused.output(), one).unwrap();
    let expected = format!(
        " auth_failure {} user {USER} mac {MAC} vlan - cause wrong_password [{}]\n",
        told[2].text("id"),
        told[2].id
    );
    assert_eq!(line.split_once('Z').unwrap().1, expected, "{line}");
    let shown = lab.bngctl(&["history"]).unwrap();
    let at = |cause| {
        shown
            .find(cause)
            .unwrap_or_else(|| panic!("{cause}: {shown}"))
    };
    assert!(at("operator") < at("wrong_credentials"), "{shown}");
    assert!(at("wrong_credentials") < at("peer_terminated"), "{shown}");
    let shown = lab.bngctl(&["history", "--was-up", "false"]).unwrap();
    assert!(shown.contains("wrong_credentials") && !shown.contains("operator"));

    // Streams end with the process, and whoever follows is told so.
    lab.terminate(Daemon::Controlplane).unwrap();
    assert_eq!(stream.next_event().unwrap(), None);
    assert_eq!(follower.wait(LIMIT).unwrap().code(), Some(3));
    assert!(follower.log_tail().contains("ended the stream"));
    lab.start(Daemon::Controlplane).unwrap();
    assert_eq!(history(&lab, ""), ended, "kept on disk");
    lab.api().wait_until_conserved().unwrap();
}

#[test]
fn the_end_of_a_session_that_outlived_the_control_plane_is_told_to_who_comes_back() {
    let mut lab = started(GatewayConfig::default());
    let mut stream = lab.api().events(None, STREAM_LIMIT).unwrap();
    let (id, _) = dial_and_ping(&mut lab, 4);
    let up = stream.take(1).unwrap().remove(0);
    assert_eq!(up.name, "session_up");
    lab.kill(Daemon::Controlplane).unwrap();
    ping(&mut lab, 4);
    lab.start(Daemon::Controlplane).unwrap();
    assert!(wait_for_sessions(&lab, 1).contains_key(&id));

    // An id of the process that is gone stands for all that there is.
    let mut stream = lab.api().events(Some(&up.id), STREAM_LIMIT).unwrap();
    lab.client().unwrap().hang_up(LINK, LIMIT).unwrap();
    let down = loop {
        let event = stream.take(1).unwrap().remove(0);
        assert_ne!(event.name, "session_up", "it was up all the time");
        if event.name == "session_down" {
            break event;
        }
    };
    assert_eq!((down.text("id"), down.text("user")), (id.as_str(), USER));
    assert_eq!(down.text("cause"), "peer_terminated");
    assert_eq!(down.data["upstream_packets"], 8, "{}", down.data);
    assert_eq!(history(&lab, ""), [session_of(&down)]);
    lab.api().wait_until_conserved().unwrap();
}

/// A client that is gone without a word is found out by its silence.
#[test]
fn a_client_that_vanishes_is_told_as_dead() {
    let mut lab = started(GatewayConfig {
        echo_interval_s: 2,
        ..GatewayConfig::default()
    });
    let mut stream = lab.api().events(None, STREAM_LIMIT).unwrap();
    let (id, _) = dial_and_ping(&mut lab, 1);
    lab.client().unwrap().vanish(LINK, LIMIT).unwrap();
    let told = stream.take(2).unwrap();
    assert_eq!(
        names(&told),
        [("session_up", ""), ("session_down", "dead_peer")]
    );
    assert_eq!(told[1].text("id"), id);
    assert_eq!(history(&lab, "?cause=dead_peer"), [session_of(&told[1])]);
    lab.api().wait_until_conserved().unwrap();
}
