//! Who had a public port.

use serde_json::Value;

use super::{cell, details, list};

/// The answer to "who".
pub(crate) fn who(who: &Value) -> String {
    let public = format!("{}:{}", cell(who, &["address"]), cell(who, &["port"]));
    let at = cell(who, &["at"]);
    let holders = who.get("holders").map_or(&[][..], list);
    match who.get("answer").and_then(Value::as_str) {
        Some("held") => holders
            .iter()
            .map(|holder| {
                let user = cell(holder, &["user"]);
                format!("{public} at {at}: {user}\n{}", details(holder))
            })
            .collect(),
        Some("nobody") => format!("{public} at {at}: nobody had it\n"),
        Some("before_log") => {
            let since = cell(who, &["log_since"]);
            format!("{public} at {at}: not known, the log begins at {since}\n")
        }
        Some("no_log") => {
            format!(
                "{public} at {at}: not known, nothing is logged (nat.log); only the present is\n"
            )
        }
        _ => details(who),
    }
}
