//! bngctl: the operator's command line over REST.
//!
//! Exit status: 0 done, 1 the gateway refused or is failing, 2 wrong usage, 3 the gateway cannot be reached.

mod arguments;
mod gateway;
mod tables;

use std::io::Write;
use std::process::ExitCode;

use clap::Parser;
use serde_json::Value;

use arguments::{Arguments, Command, ListCommand, SessionCommand};
use gateway::{Failure, Gateway};

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    match run(&arguments) {
        Ok(status) => status,
        Err(failure) => {
            eprintln!("bngctl: {failure}");
            failure.exit_code()
        }
    }
}

fn run(arguments: &Arguments) -> Result<ExitCode, Failure> {
    let gateway = Gateway::new(&arguments.url, &arguments.token_file);
    let (answer, text) = match &arguments.command {
        Command::Sessions(filter) => {
            let page = gateway.get("/api/v1/sessions", &filter.query())?;
            let text = tables::sessions(&page);
            (page, text)
        }
        Command::History(part) => {
            let page = gateway.get("/api/v1/sessions/history", &part.query())?;
            let text = tables::history(&page);
            (page, text)
        }
        Command::Session(SessionCommand::Show { id }) => {
            let session = gateway.get(&session_path(id), &[])?;
            let text = tables::details(&session);
            (session, text)
        }
        Command::Session(SessionCommand::End { id }) => {
            gateway.delete(&session_path(id))?;
            let text = format!("session {id} is being ended\n");
            (serde_json::json!({ "ending": id }), text)
        }
        Command::Session(SessionCommand::SetPolicy { id, change }) => {
            let path = format!("{}/policy", session_path(id));
            let policy = gateway.patch(&path, &change.body())?;
            let text = tables::details(&policy);
            (policy, text)
        }
        Command::Policy(ListCommand::List) => {
            let policies = gateway.get("/api/v1/policies", &[])?;
            let text = tables::policies(&policies);
            (policies, text)
        }
        Command::Filter(ListCommand::List) => {
            let filters = gateway.get("/api/v1/filters", &[])?;
            let text = tables::filters(&filters);
            (filters, text)
        }
        Command::Drops { all } => {
            let drops = gateway.get("/api/v1/drops", &[])?;
            let text = tables::drops(&drops, *all);
            (drops, text)
        }
        Command::Workers => {
            let workers = gateway.get("/api/v1/workers", &[])?;
            let text = tables::workers(&workers);
            (workers, text)
        }
        Command::Ports => {
            let ports = gateway.get("/api/v1/ports", &[])?;
            let text = tables::ports(&ports);
            (ports, text)
        }
        Command::Coalescing { all } => {
            let view = gateway.get("/api/v1/coalescing", &[])?;
            let text = tables::coalescing(&view, *all);
            (view, text)
        }
        Command::Pools => {
            let pools = gateway.get("/api/v1/pools", &[])?;
            let text = tables::pools(&pools);
            (pools, text)
        }
        Command::Health => return health(&gateway, arguments.json),
    };
    show(arguments.json, &answer, &text);
    Ok(ExitCode::SUCCESS)
}

/// A health that fails comes with a status of its own, but it is an answer like any other.
fn health(gateway: &Gateway, json: bool) -> Result<ExitCode, Failure> {
    let health = gateway.health()?;
    show(json, &health, &tables::health(&health));
    Ok(match health.get("status").and_then(Value::as_str) {
        Some("ok" | "degraded") => ExitCode::SUCCESS,
        _ => ExitCode::FAILURE,
    })
}

fn session_path(id: &str) -> String {
    // Ids are made of a-z, 0-9 and `-`; anything else must not become another path.
    let safe = |c: char| c.is_ascii_alphanumeric() || c == '-';
    let id: String = id.chars().map(|c| if safe(c) { c } else { '_' }).collect();
    format!("/api/v1/sessions/{id}")
}

fn show(json: bool, answer: &Value, text: &str) {
    let out = match json {
        true => format!("{answer:#}\n"),
        false => text.to_owned(),
    };
    // A reader that has seen enough (`| head`) is no error.
    let _ = std::io::stdout().write_all(out.as_bytes());
}
