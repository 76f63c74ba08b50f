//! Events and traces, a line for each.

use serde_json::Value;

use super::{bytes, cell, finish, list, number, since, span, table, vlans};

/// Time of day in UTC, to the millisecond.
fn time_of_day(unix_ms: u64) -> String {
    let (seconds, ms) = (unix_ms / 1_000 % 86_400, unix_ms % 1_000);
    let (hour, minute, second) = (seconds / 3_600, seconds / 60 % 60, seconds % 60);
    format!("{hour:02}:{minute:02}:{second:02}.{ms:03}Z")
}

/// One event.
pub(crate) fn event(event: &str, id: &str, data: &Value) -> String {
    let at = time_of_day(number(data, "unix_ms"));
    let field = |key: &str| cell(data, &[key]);
    let who = || {
        format!(
            "{} user {} mac {} vlan {}",
            field("id"),
            field("user"),
            field("mac"),
            vlans(data)
        )
    };
    let traffic = |key: &str| bytes(number(data, key));
    let text = match event {
        "session_up" => format!("{} address {}", who(), field("framed_ip")),
        "session_down" => format!(
            "{} cause {} up {} down {}",
            who(),
            field("cause"),
            traffic("upstream_bytes"),
            traffic("downstream_bytes")
        ),
        "auth_failure" => format!("{} cause {}", who(), field("cause")),
        "framed_route_refused" => format!(
            "{} route {} cause {}",
            who(),
            field("route"),
            field("cause")
        ),
        "dataplane_up" => format!("pid {}", field("pid")),
        "dataplane_down" => String::new(),
        _ => cell(&Value::String(data.to_string()), &[]),
    };
    format!("{at} {event} {text} [{id}]\n")
}

/// The list of traces.
pub(crate) fn traces(traces: &Value) -> String {
    let mut table = table(&["TRACE", "RUNS", "SINCE", "FRAMES", "FORGOTTEN", "PASSWORDS"]);
    for trace in list(traces) {
        table.add_row([
            cell(trace, &["id"]),
            cell(trace, &["running"]),
            since(number(trace, "started_unix_ms")),
            cell(trace, &["frames"]),
            cell(trace, &["forgotten"]),
            cell(trace, &["with_passwords"]),
        ]);
    }
    finish(table, &[0, 2, 3, 4])
}

/// The frames of a trace.
pub(crate) fn trace(trace: &Value) -> String {
    let mut text = String::new();
    for line in trace.get("lines").map_or(&[][..], list) {
        let us = number(line, "unix_us");
        let at = time_of_day(us / 1_000);
        let arrow = match line.get("direction").and_then(Value::as_str) {
            Some("up") => "-->",
            _ => "<--",
        };
        let (port, said) = (cell(line, &["port"]), cell(line, &["text"]));
        text += &format!("{at} {port} {arrow} {said}");
        if let Some(Value::String(_)) = line.get("drop") {
            text += &format!(" [dropped: {}]", cell(line, &["drop"]));
        }
        text.push('\n');
    }
    let forgotten = number(trace, "forgotten");
    if forgotten > 0 {
        text += &format!("{forgotten} earlier frames are forgotten\n");
    }
    if trace.get("running") == Some(&Value::Bool(true)) {
        text += "the trace goes on\n";
    }
    text
}

/// Clients that are kept out.
pub(crate) fn lockouts(lockouts: &Value) -> String {
    let mut table = table(&["PORT", "MAC", "VLAN", "CIRCUIT", "FAILURES", "FOR"]);
    for lockout in list(lockouts) {
        table.add_row([
            cell(lockout, &["port"]),
            cell(lockout, &["mac"]),
            vlans(lockout),
            cell(lockout, &["circuit_id"]),
            cell(lockout, &["failures"]),
            span(number(lockout, "ms_left").div_ceil(1_000)),
        ]);
    }
    finish(table, &[4, 5])
}

/// What a reload has done, or would do.
pub(crate) fn reload(reload: &Value) -> String {
    let mut table = table(&["KEY", "CHANGE", "TAKES EFFECT"]);
    let changes = reload.get("changes").map_or(&[][..], list);
    for change in changes {
        let effect = match change.get("class").and_then(Value::as_str) {
            Some("live") => "at once".to_owned(),
            Some("new_sessions") => "for new sessions".to_owned(),
            Some("needs_drop") => "for new sessions; ends those it has no place for".to_owned(),
            Some("dataplane_restart") => "when bng-dataplane is restarted".to_owned(),
            Some("restart") => "when both daemons are restarted".to_owned(),
            _ => cell(change, &["class"]),
        };
        table.add_row([cell(change, &["key"]), cell(change, &["change"]), effect]);
    }
    let mut text = match changes.is_empty() {
        true => "nothing is different\n".to_owned(),
        false => finish(table, &[]),
    };
    let mut line = |count: u64, what: &str| {
        if count > 0 {
            text += &format!("{count} {what}\n");
        }
    };
    let count = |key| number(reload, key);
    line(count("more_changes"), "more differences");
    line(count("sessions_changed"), "sessions have another policy");
    line(
        count("sessions_unserved"),
        "sessions are on VLANs that are not served any more",
    );
    line(
        count("sessions_of_removed_users"),
        "sessions are of users that are gone",
    );
    line(count("sessions_dropped"), "sessions end");
    let is = |key: &str| reload.get(key) == Some(&Value::Bool(true));
    if is("dataplane_restart") {
        text += "restart bng-dataplane for the rest\n";
    }
    if let Some(Value::String(_)) = reload.get("refused") {
        text += &format!("would be refused: {}\n", cell(reload, &["refused"]));
    } else if is("applied") {
        text += "in force\n";
    } else {
        text += "not in force, as asked\n";
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn an_event_is_one_line_whatever_a_subscriber_calls_itself() {
        let data = json!({
            "event": "auth_failure", "unix_ms": 1_700_000_000_123_u64, "cause": "unknown_user",
            "id": "access0-7", "user": "a\u{1b}[2J\nb", "mac": "02:00:00:00:00:01", "s_vlan": 7
        });
        let line = event("auth_failure", "ab-1", &data);
        assert_eq!(
            line,
            "22:13:20.123Z auth_failure access0-7 user a\u{fffd}[2J\u{fffd}b mac 02:00:00:00:00:01 vlan 7 cause unknown_user [ab-1]\n"
        );
        let data = json!({
            "event": "framed_route_refused", "unix_ms": 1_700_000_000_123_u64, "id": "access0-7", "user": "bob",
            "mac": "02:00:00:00:00:01", "route": "198.18.7.0/24", "cause": "framed_route_conflict"
        });
        let line = event("framed_route_refused", "ab-2", &data);
        assert_eq!(
            line,
            "22:13:20.123Z framed_route_refused access0-7 user bob mac 02:00:00:00:00:01 vlan - route 198.18.7.0/24 cause framed_route_conflict [ab-2]\n"
        );
        let line = event("new_kind", "ab-2", &json!({"x": 1}));
        assert_eq!(line, "00:00:00.000Z new_kind {\"x\":1} [ab-2]\n");
    }

    #[test]
    fn a_trace_shows_direction_and_drops() {
        let shown = trace(&json!({
            "running": true, "forgotten": 2,
            "lines": [
                {"unix_us": 1_500, "direction": "up", "port": "access0", "text": "PADI", "drop": "padi_mac_rate"},
                {"unix_us": 2_500, "direction": "down", "port": "access0", "text": "PADO", "drop": null}
            ]
        }));
        assert_eq!(
            shown,
            "00:00:00.001Z access0 --> PADI [dropped: padi_mac_rate]\n00:00:00.002Z access0 <-- PADO\n2 earlier frames are forgotten\nthe trace goes on\n"
        );
    }
}
